//! The end of bounded input: its last checkpoint, and the commit of what sinks had written. The process is killed anywhere
//! around it, and nothing is lost or comes twice.
//!
//! Thirty times by default; `WEIR_KILLS=300 cargo test --release -p weir-tests final_commit` does it three hundred times.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use weir_runtime::fail_point::OF_A_CHECKPOINT;
use weir_tests::{Row, Weir, assert_same_rows};

use super::flights::json_rows;

const ROWS: i64 = 500;

struct Scene {
    directory: tempfile::TempDir,
    weir: Weir,
}

impl Scene {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A sink and a view that end with their only checkpoint.
    fn queries(&self, round: usize) -> String {
        format!(
            "SET 'execution.checkpointing.interval' = '1h';
             CREATE SINK IF NOT EXISTS sink_{round} AS SELECT id, word FROM numbers
               WITH (connector = 'file', path = '{}', format = 'json');
             CREATE MATERIALIZED VIEW IF NOT EXISTS view_{round} AS SELECT word, count(*) AS n FROM numbers GROUP BY word",
            self.path(&format!("out-{round}")).display()
        )
    }

    /// Runs the process and the queries of `round` to their end, however often it takes.
    async fn finish(&mut self, round: usize) {
        for _ in 0..20 {
            if self.weir.has_ended() {
                self.weir.env("WEIR_FAIL_POINT", "");
                if !self.weir.try_run() {
                    continue;
                }
            }
            match self.weir.try_sql(&self.queries(round)).await {
                Ok(_) if self.weir.try_wait_finished().await => return,
                Err(error) if error.as_db_error().is_some() && !self.weir.has_ended() => {
                    panic!("{}\n{}", weir_tests::process::describe(&error), self.weir.log())
                }
                _ => {}
            }
        }
        panic!("it never comes to the end:\n{}", self.weir.log());
    }

    async fn check(&self, round: usize, what: &str) {
        let written = json_rows(&self.path(&format!("out-{round}")));
        assert_same_rows(what, written, rows().map(|(id, word)| vec![Some(id.to_string()), Some(word)]).collect());
        let counted = self.weir.sql(&format!("SELECT * FROM view_{round}")).await;
        let each = (ROWS / WORDS).to_string();
        let expected: Vec<Row> = (0..WORDS).map(|w| vec![Some(format!("word {w}")), Some(each.clone())]).collect();
        assert_same_rows(what, counted, expected);
        self.weir.sql(&format!("DROP SINK sink_{round}; DROP MATERIALIZED VIEW view_{round}")).await;
    }
}

const WORDS: i64 = 10;

fn rows() -> impl Iterator<Item = (i64, String)> {
    (0..ROWS).map(|id| (id, format!("word {}", id % WORDS)))
}

fn write(directory: &Path) {
    // Several files: subtasks finish one after the other.
    std::fs::create_dir(directory).unwrap();
    for part in 0..4 {
        let lines: Vec<String> =
            rows().filter(|(id, _)| id % 4 == part).map(|(id, word)| format!("{id},{word}\n")).collect();
        std::fs::write(directory.join(format!("{part}.csv")), lines.concat()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_the_final_commit() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let kills = number("WEIR_KILLS").unwrap_or(30) as usize;
    let mut random = SmallRng::seed_from_u64(number("WEIR_SEED").unwrap_or(147));
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("in"));
    let weir = Weir::new(&directory.path().join("data")).args(&["--parallelism", "2"]);
    let mut scene = Scene { directory, weir };
    scene.weir.run();
    let stream = format!(
        "CREATE STREAM numbers (id BIGINT, word TEXT) WITH (connector = 'file', path = '{}', format = 'csv')",
        scene.path("in/*.csv").display()
    );
    scene.weir.sql(&stream).await;
    // How long it takes undisturbed tells where the kills are to fall.
    let begin = Instant::now();
    scene.finish(0).await;
    let undisturbed = begin.elapsed();
    scene.check(0, "undisturbed").await;
    for round in 1..=kills {
        let what = match round % 2 {
            0 => {
                // Each is passed once: the queries have no other checkpoint.
                let fail_point = OF_A_CHECKPOINT[round / 2 % OF_A_CHECKPOINT.len()];
                scene.weir.kill();
                scene.weir.env("WEIR_FAIL_POINT", fail_point);
                scene.weir.run();
                // The statements may not be answered any more.
                let _ = scene.weir.try_sql(&scene.queries(round)).await;
                let finished = scene.weir.try_wait_finished().await;
                // Clean-up goes on behind the end of the query.
                assert!(!finished || fail_point.ends_with("clean-up"), "{fail_point} was not passed");
                format!("round {round}: {fail_point}")
            }
            _ => {
                let delay = undisturbed.mul_f64(random.random_range(0.0..1.5));
                let (client, sql) = (scene.weir.connect().await.unwrap(), scene.queries(round));
                let asked = tokio::spawn(async move { client.simple_query(&sql).await.is_ok() });
                tokio::time::sleep(delay.min(Duration::from_secs(5))).await;
                scene.weir.kill();
                let _ = asked.await;
                format!("round {round}: after {delay:?}")
            }
        };
        scene.finish(round).await;
        scene.check(round, &what).await;
    }
    assert!(scene.weir.terminate().success(), "{}", scene.weir.log());
}
