//! Crash: the real process is killed at every fail point and at random moments; what it answers in the end, and what it
//! wrote, equals the batch answer, and the store holds nothing that no checkpoint needs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use weir_tests::process::binary;
use weir_tests::{Row, Weir, sample};

use super::flights::{check, expected, queries, streams};

/// Where the process is killed, and at which passing of the place. Low numbers hit the first checkpoint, higher ones the
/// middle of the run.
const FAIL_POINTS: &[&str] = &[
    "before-snapshot:2",
    "after-snapshot:3",
    "before-upload:2",
    "after-upload:5",
    "before-manifest:1",
    "before-manifest:4",
    "after-manifest:2",
    "before-sink-commit:1",
    "before-sink-commit:3",
    "after-sink-commit:2",
    "before-clean-up:2",
    "after-clean-up:1",
];

struct Scene {
    directory: tempfile::TempDir,
    weir: Weir,
}

impl Scene {
    fn new(parallelism: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let weir = Weir::new(&directory.path().join("data")).args(&["--parallelism", parallelism]);
        Self { directory, weir }
    }

    async fn begin(&mut self) {
        let inputs = [sample("flights-2013-01.csv"), sample("weather-2013-01.csv"), sample("planes.csv")];
        self.weir.run();
        self.weir.sql(&streams(&inputs[0], &inputs[1], &inputs[2])).await;
        self.weir.kill();
    }

    /// Runs to the end of the input, starting the process again whenever it has died.
    async fn finish(&mut self) {
        for _ in 0..100 {
            if (!self.weir.has_ended() || self.weir.try_run()) && self.weir.try_wait_finished().await {
                return;
            }
            // It died at its fail point; the next one goes through.
            self.weir.env("WEIR_FAIL_POINT", "");
        }
        panic!("the server never gets to the end:\n{}", self.weir.log());
    }

    async fn verify(&mut self, expected: &BTreeMap<&'static str, Vec<Row>>) {
        let late = self.directory.path().join("late");
        check(&self.weir, &late, expected).await;
        assert!(self.weir.terminate().success(), "{}", self.weir.log());
        let store = format!("file://{}", self.directory.path().join("data/store").display());
        let verified = Command::new(binary()).args(["checkpoint", "verify", &store]).output().unwrap();
        assert!(
            verified.status.success(),
            "{}{}",
            String::from_utf8_lossy(&verified.stdout),
            String::from_utf8_lossy(&verified.stderr)
        );
        let leftovers = files(&late).into_iter().filter(|f| !f.ends_with(".json")).collect::<Vec<_>>();
        assert!(leftovers.is_empty(), "uncommitted files stayed: {leftovers:?}");
    }
}

fn files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { found.push(path.display().to_string()) }
        }
    }
    found
}

async fn answers() -> BTreeMap<&'static str, Vec<Row>> {
    expected(&sample("flights-2013-01.csv"), &sample("weather-2013-01.csv"), &sample("planes.csv"), "true").await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_fail_point() {
    let expected = answers().await;
    for (i, fail_point) in FAIL_POINTS.iter().enumerate() {
        let mut scene = Scene::new(if i % 2 == 0 { "1" } else { "2" });
        scene.begin().await;
        scene.weir.env("WEIR_FAIL_POINT", fail_point);
        scene.weir.run();
        let late = scene.directory.path().join("late");
        for statement in queries(&late, "20ms").split_inclusive(';') {
            create_once(&mut scene, statement).await;
        }
        scene.finish().await;
        scene.verify(&expected).await;
    }
}

/// Creates a query even when the process dies on the way: a statement that was not acknowledged is given again.
async fn create_once(scene: &mut Scene, statement: &str) {
    create_once_with(scene, "SET 'execution.checkpointing.interval' = '20ms';", statement).await;
}

async fn create_once_with(scene: &mut Scene, set: &str, statement: &str) {
    if !statement.contains("CREATE") {
        return;
    }
    let again = statement
        .replace("CREATE MATERIALIZED VIEW", "CREATE MATERIALIZED VIEW IF NOT EXISTS")
        .replace("CREATE SINK", "CREATE SINK IF NOT EXISTS");
    for _ in 0..100 {
        if scene.weir.has_ended() {
            scene.weir.env("WEIR_FAIL_POINT", "");
            if !scene.weir.try_run() {
                continue;
            }
        }
        match scene.weir.try_sql(&format!("{set}{again}")).await {
            Ok(_) => return,
            Err(error) if error.as_db_error().is_some() && !scene.weir.has_ended() => {
                panic!("{again}\n{}", weir_tests::process::describe(&error))
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    panic!("not created: {again}");
}

/// Killed while it recovers from a kill.
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_recovery() {
    let expected = answers().await;
    for fail_point in ["in-recovery:1", "in-recovery:3", "in-recovery-after-recommit:2"] {
        let mut scene = Scene::new("2");
        scene.begin().await;
        scene.weir.env("WEIR_FAIL_POINT", "before-sink-commit:2");
        scene.weir.run();
        let late = scene.directory.path().join("late");
        for statement in queries(&late, "20ms").split_inclusive(';') {
            create_once(&mut scene, statement).await;
        }
        scene.weir.kill();
        scene.weir.env("WEIR_FAIL_POINT", fail_point);
        let _ = scene.weir.try_run();
        scene.finish().await;
        scene.verify(&expected).await;
    }
}

/// Killed at thirty random moments.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random() {
    let expected = answers().await;
    let seed: u64 = std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(2013);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut kills = 0;
    while kills < 30 {
        let mut scene = Scene::new(if random.random_bool(0.5) { "1" } else { "2" });
        scene.begin().await;
        let late = scene.directory.path().join("late");
        scene.weir.run();
        for statement in queries(&late, "20ms").split_inclusive(';') {
            create_once(&mut scene, statement).await;
        }
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
            scene.weir.kill();
            kills += 1;
            let _ = scene.weir.try_run();
        }
        scene.finish().await;
        scene.verify(&expected).await;
    }
}

/// Killed while barriers overtake rows, and started with another parallelism each time. Short channels are full most of the
/// time, so that nearly every checkpoint holds rows in flight.
#[tokio::test(flavor = "multi_thread")]
async fn killed_with_rows_in_flight() {
    let expected = answers().await;
    for (timeout, fail_points) in [
        ("0 ms", ["before-upload:7", "after-manifest:3", "in-recovery-after-recommit:2", "before-sink-commit:4"]),
        ("5 ms", ["after-snapshot:9", "before-manifest:4", "after-sink-commit:5", "after-manifest:6"]),
    ] {
        let set = format!(
            "SET 'execution.checkpointing.interval' = '20ms'; SET 'execution.checkpointing.unaligned.enabled' = 'true';
             SET 'execution.checkpointing.aligned-checkpoint-timeout' = '{timeout}'; SET 'pipeline.channel-bytes' = '2kb';"
        );
        let mut scene = Scene::new("1");
        scene.begin().await;
        scene.weir.run();
        let late = scene.directory.path().join("late");
        for statement in queries(&late, "20ms").split_inclusive(';') {
            create_once_with(&mut scene, &set, statement).await;
        }
        for (fail_point, parallelism) in fail_points.into_iter().zip(["2", "3", "1", "2"]) {
            scene.weir.kill();
            scene.weir.env("WEIR_FAIL_POINT", fail_point);
            scene.weir.set_argument("--parallelism", parallelism);
            if scene.weir.try_run() {
                // It dies there, or has nothing left to do.
                let _ = scene.weir.try_wait_finished().await;
            }
        }
        scene.weir.env("WEIR_FAIL_POINT", "");
        scene.finish().await;
        scene.verify(&expected).await;
    }
}
