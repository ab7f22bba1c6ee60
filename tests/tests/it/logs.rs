//! Logs between queries: event time crosses them, they do not grow for ever, and checkpoints outlive a DROP when asked to.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use weir_tests::process::{PATIENCE, binary};
use weir_tests::{Row, Weir, assert_same_rows, cells, oracle, sample};

use super::flights::streams;

/// The one log whose directory's name begins with `prefix` and ends with `suffix`.
fn log_of(weir: &Weir, prefix: &str, suffix: &str) -> PathBuf {
    let logs = std::fs::read_dir(weir.data.join("store/logs")).unwrap();
    let fits = |name: &str| name.starts_with(prefix) && name.ends_with(suffix);
    let mut found =
        logs.map(|entry| entry.unwrap().path()).filter(|path| fits(path.file_name().unwrap().to_str().unwrap()));
    let log = found.next().unwrap_or_else(|| panic!("no log {prefix}…{suffix}"));
    assert_eq!(found.next(), None);
    log
}

/// Numbers of the entries in a log.
fn entries(log: &Path) -> Vec<u64> {
    let names = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut numbers: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// A derived stream without a WATERMARK of its own feeds a view that closes windows, and that one another; all are killed
/// again and again, and in the end equal the batch answer.
#[tokio::test(flavor = "multi_thread")]
async fn windows_close_over_a_derived_stream_whatever_is_killed() {
    let files = [sample("flights-2013-01.csv"), sample("weather-2013-01.csv"), sample("planes.csv")];
    let context = oracle::flights(&files[0], &files[1], &files[2], &sample("airlines.csv")).await;
    let hourly = "SELECT origin, date_bin(INTERVAL '1 hour', time_hour) + INTERVAL '1 hour' AS ended, count(*) AS n
                  FROM flights WHERE dep_delay > 0 GROUP BY 1, 2";
    let by_hour = oracle::answer(&context, &format!("SELECT origin, ended, n FROM ({hourly})")).await;
    let daily = format!("SELECT date_bin(INTERVAL '1 day', ended), sum(n), count(*) FROM ({hourly}) GROUP BY 1");
    let by_day = oracle::answer(&context, &daily).await;
    let fail_points =
        ["after-sink-commit:2", "before-sink-commit:4", "after-manifest:3", "before-clean-up:5", "after-upload:9"];
    for (i, fail_point) in fail_points.iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let parallelism = if i % 2 == 0 { "2" } else { "1" };
        let mut weir = Weir::new(&directory.path().join("data")).args(&["--parallelism", parallelism]);
        weir.run();
        weir.sql(&streams(&files[0], &files[1], &files[2])).await;
        weir.kill();
        weir.env("WEIR_FAIL_POINT", fail_point);
        for statement in [
            "CREATE STREAM IF NOT EXISTS delayed AS SELECT origin, time_hour AS at FROM flights WHERE dep_delay > 0",
            "CREATE MATERIALIZED VIEW IF NOT EXISTS by_hour AS SELECT origin, window_end AS ended, count(*) AS n
               FROM TUMBLE(TABLE delayed, DESCRIPTOR(at), INTERVAL '1 hour')
               GROUP BY origin, window_start, window_end EMIT ON WINDOW CLOSE",
            "CREATE MATERIALIZED VIEW IF NOT EXISTS by_day AS SELECT window_start, sum(n) AS n, count(*) AS hours
               FROM TUMBLE(TABLE by_hour, DESCRIPTOR(ended), INTERVAL '1 day')
               GROUP BY window_start, window_end EMIT ON WINDOW CLOSE",
        ] {
            while !runs(&mut weir) || create(&mut weir, statement).await.is_err() {}
        }
        weir.kill();
        while !runs(&mut weir) || !weir.try_wait_finished().await {}
        assert_same_rows("by hour", weir.sql("SELECT origin, ended, n FROM by_hour").await, by_hour.clone());
        assert_same_rows("by day", weir.sql("SELECT window_start, n, hours FROM by_day").await, by_day.clone());
        assert_eq!(weir.sql("SELECT * FROM weir.late_rows").await, Vec::<Row>::new(), "{fail_point}");
    }
}

/// Starts the server unless it runs; one that died at its fail point passes it the next time.
fn runs(weir: &mut Weir) -> bool {
    if !weir.has_ended() {
        return true;
    }
    let began = weir.try_run();
    weir.env("WEIR_FAIL_POINT", "");
    began
}

async fn create(weir: &mut Weir, statement: &str) -> Result<(), ()> {
    let script = format!("SET 'execution.checkpointing.interval' = '20ms'; {statement}");
    match weir.try_sql(&script).await {
        Ok(_) => Ok(()),
        Err(error) if error.as_db_error().is_some() && !weir.has_ended() => {
            panic!("{statement}\n{}\n{}", weir_tests::process::describe(&error), weir.log())
        }
        Err(_) => Err(()),
    }
}

/// Input without end: windows close by the watermark that entries carry, also by entries without rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_without_rows_still_tells_the_time_and_a_quiet_one_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(&directory.path().join("data"));
    weir.sql(
        "SET 'execution.checkpointing.interval' = '20ms';
         CREATE STREAM raw (id INT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1 s');
         CREATE STREAM evens AS SELECT id, ts FROM raw WHERE id % 2 = 0;
         CREATE MATERIALIZED VIEW counted AS SELECT window_start, count(*) AS n
           FROM TUMBLE(TABLE evens, DESCRIPTOR(ts), INTERVAL '10 s')
           GROUP BY window_start, window_end EMIT ON WINDOW CLOSE;",
    )
    .await;
    let all = "SELECT * FROM counted";
    weir.sql(
        "INSERT INTO raw VALUES (2, '2026-01-01 00:00:01'), (4, '2026-01-01 00:00:09'), (6, '2026-01-01 00:00:12')",
    )
    .await;
    weir.settled_rows(all, cells(&[&["2026-01-01 00:00:00", "2"]])).await;
    // No row of this passes the filter, but time does.
    weir.sql("INSERT INTO raw VALUES (7, '2026-01-01 00:00:31')").await;
    let both = cells(&[&["2026-01-01 00:00:00", "2"], &["2026-01-01 00:00:10", "1"]]);
    weir.settled_rows(all, both.clone()).await;

    let log = log_of(&weir, "evens-", "");
    let before = entries(&log);
    for _ in 0..5 {
        weir.sql("CHECKPOINT evens").await;
    }
    assert_eq!(entries(&log), before, "nothing moved, nothing was written");

    weir.kill();
    weir.run();
    weir.sql("INSERT INTO raw VALUES (8, '2026-01-01 00:00:32'), (9, '2026-01-01 00:00:45')").await;
    let third = cells(&[&["2026-01-01 00:00:30", "1"]]);
    weir.settled_rows(all, [both, third].concat()).await;
    assert_eq!(weir.sql("SELECT * FROM weir.late_rows").await, Vec::<Row>::new());
    assert!(weir.terminate().success(), "{}", weir.log());
}

/// A table's input and a stream with a retention stay short however much is written; nothing is lost by it.
#[tokio::test(flavor = "multi_thread")]
async fn logs_do_not_grow_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(&directory.path().join("data"));
    weir.sql(
        "SET 'execution.checkpointing.interval' = '20ms';
         CREATE TABLE account (id INT PRIMARY KEY, balance INT);
         CREATE STREAM event (n INT) WITH (retention = '0 s');
         CREATE STREAM history (n INT);
         CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(balance) AS balance FROM account;
         CREATE MATERIALIZED VIEW events AS SELECT count(*) AS n FROM event;
         CREATE MATERIALIZED VIEW past AS SELECT count(*) AS n FROM history;",
    )
    .await;
    let mut written = 0;
    for restart in [true, false] {
        for _ in 0..150 {
            written += 1;
            weir.sql(&format!(
                "INSERT INTO account VALUES ({written}, 1); INSERT INTO event VALUES ({written});
                 INSERT INTO history VALUES ({written})"
            ))
            .await;
        }
        if restart {
            weir.kill();
            weir.run();
        }
    }
    weir.settled_rows("SELECT * FROM total", cells(&[&["300", "300"]])).await;
    for log in [log_of(&weir, "account-", ".input"), log_of(&weir, "event-", "")] {
        let until = Instant::now() + PATIENCE;
        while entries(&log).len() > 64 {
            assert!(Instant::now() < until, "{}: {:?}\n{}", log.display(), entries(&log), weir.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(entries(&log).last(), Some(&300), "the newest stays");
    }
    assert_eq!(entries(&log_of(&weir, "history-", "")).len(), 300, "history is kept unless it is told otherwise");
    for _ in 0..2 {
        weir.settled_rows("SELECT count(*), sum(balance) FROM account", cells(&[&["300", "300"]])).await;
        weir.settled_rows("SELECT * FROM events", cells(&[&["300"]])).await;
        weir.settled_rows("SELECT * FROM past", cells(&[&["300"]])).await;
        weir.kill();
        weir.run();
    }
    weir.sql("CREATE MATERIALIZED VIEW later AS SELECT count(*) AS n FROM history").await;
    weir.settled_rows("SELECT * FROM later", cells(&[&["300"]])).await;
}

/// Checkpoints of a dropped query stay when it was told so, whole and apart from those of a successor of its name.
#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_outlive_a_drop_when_they_are_to_be_retained() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::new(&directory.path().join("data"));
    weir.env("WEIR_LOG", "info");
    weir.run();
    weir.sql("CREATE STREAM event (n INT); INSERT INTO event VALUES (1), (2)").await;
    let view = |retention: &str| {
        format!(
            "SET 'execution.checkpointing.externalized-checkpoint-retention' = '{retention}';
             CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM event;
             CHECKPOINT counted"
        )
    };
    let jobs = |weir: &Weir| -> Vec<PathBuf> {
        // The directory itself goes with the last job in it.
        let jobs = std::fs::read_dir(weir.data.join("store/jobs")).into_iter().flatten();
        let jobs = jobs.map(|entry| entry.unwrap().path());
        // A directory without a manifest holds nothing.
        let mut jobs: Vec<PathBuf> = jobs.filter(|job| manifests(job) > 0).collect();
        jobs.sort();
        jobs
    };
    for gone in ["DELETE_ON_CANCELLATION", "NO_EXTERNALIZED_CHECKPOINTS"] {
        weir.sql(&view(gone)).await;
        assert_eq!(jobs(&weir).len(), 1);
        weir.sql("DROP MATERIALIZED VIEW counted").await;
        assert_eq!(jobs(&weir), Vec::<PathBuf>::new(), "{gone}");
    }
    weir.sql(&view("RETAIN_ON_CANCELLATION")).await;
    let kept = jobs(&weir);
    weir.sql("DROP MATERIALIZED VIEW counted").await;
    assert_eq!(jobs(&weir), kept);
    let log = weir.log();
    let line = log.lines().rfind(|line| line.contains("checkpoint kept after DROP")).expect("a line about it");
    let url = line.split_whitespace().find_map(|word| word.split_once("file://")).expect("its URL").1;
    let url = format!("file://{}", url.trim_end_matches('"'));
    assert!(url.ends_with("_metadata"), "{line}");

    weir.sql(&view("DELETE_ON_CANCELLATION")).await;
    weir.sql("INSERT INTO event VALUES (3)").await;
    weir.settled_rows("SELECT * FROM counted", cells(&[&["3"]])).await;
    weir.kill();
    weir.run();
    weir.settled_rows("SELECT * FROM counted", cells(&[&["3"]])).await;
    weir.sql("DROP MATERIALIZED VIEW counted").await;
    assert_eq!(jobs(&weir), kept, "its successor leaves them alone");
    assert!(weir.terminate().success(), "{}", weir.log());
    let job = url.rsplitn(3, '/').nth(2).unwrap().to_owned();
    for url in [&url, &job, &format!("file://{}", weir.data.join("store").display())] {
        let verified = Command::new(binary()).args(["checkpoint", "verify", url]).output().unwrap();
        let said = String::from_utf8_lossy(&verified.stdout).into_owned() + &String::from_utf8_lossy(&verified.stderr);
        assert!(verified.status.success(), "{url}: {said}");
        assert!(said.contains("all can be restored") && !said.starts_with("0 "), "{url}: {said}");
    }
}

fn manifests(job: &Path) -> usize {
    let checkpoints = std::fs::read_dir(job).unwrap().map(|entry| entry.unwrap().path());
    checkpoints.filter(|checkpoint| checkpoint.join("_metadata").exists()).count()
}
