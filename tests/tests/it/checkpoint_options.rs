//! Checkpoint options of a Flink configuration file, of SET and of WITH, at a real server.

use std::fs;

use weir_tests::{Weir, row};

/// Directories of jobs in a store, without their unique part.
fn jobs(store: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(store.join("jobs"))
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            fs::read_dir(entry.path()).unwrap().any(|e| e.unwrap().file_name().to_string_lossy().starts_with("chk-"))
        })
        .map(|entry| entry.file_name().to_string_lossy().split('-').next().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flink_configuration_file_names_the_store_and_what_becomes_of_dropped_querys_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("ckpt");
    let config = directory.path().join("flink-conf.yaml");
    fs::write(
        &config,
        format!(
            "execution.checkpointing.dir: file://{}\n\
             execution.checkpointing.min-pause: 20ms\n\
             execution.checkpointing.cleaner.parallel-mode: false\n\
             execution:\n  checkpointing:\n    interval: 20ms\n    num-retained: 3\n    incremental: false\n    \
             externalized-checkpoint-retention: RETAIN_ON_CANCELLATION\n",
            store.display()
        ),
    )
    .unwrap();
    let mut weir = Weir::new(&directory.path().join("data")).args(&[
        "--config",
        &config.display().to_string(),
        "--parallelism",
        "2",
    ]);
    weir.run();
    weir.sql(
        "CREATE STREAM g (id BIGINT, text TEXT) WITH (connector = 'datagen', number_of_rows = '100000');
         CREATE MATERIALIZED VIEW kept AS SELECT count(*) AS n FROM g;
         CREATE MATERIALIZED VIEW gone AS SELECT count(*) AS n FROM g
           WITH (execution.checkpointing.externalized-checkpoint-retention = 'DELETE_ON_CANCELLATION');
         SET 'execution.checkpointing.interval-during-backlog' = '0';
         CREATE MATERIALIZED VIEW backlog AS SELECT count(*) AS n FROM g",
    )
    .await;
    weir.wait_finished().await;
    for view in ["kept", "gone", "backlog"] {
        assert_eq!(weir.sql(&format!("SELECT * FROM {view}")).await, vec![row(&["100000"])]);
    }
    let taken = weir.sql("SELECT checkpoint FROM weir.checkpoints WHERE query = 'backlog'").await;
    assert_eq!(taken, vec![row(&["1"])], "all of a bounded input is backlog");
    assert_eq!(jobs(&store), ["backlog", "gone", "kept"]);
    weir.sql("DROP MATERIALIZED VIEW kept; DROP MATERIALIZED VIEW gone").await;
    assert_eq!(jobs(&store), ["backlog", "kept"]);
    // Its checkpoints do not bring a dropped query back.
    assert!(weir.terminate().success(), "{}", weir.log());
    weir.run();
    assert_eq!(weir.sql("SELECT name FROM weir.queries").await, vec![row(&["backlog"])]);
    assert_eq!(jobs(&store), ["backlog", "kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_cannot_hold_are_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let weir = Weir::start(&directory.path().join("data"));
    weir.sql("CREATE STREAM g (id BIGINT) WITH (connector = 'datagen', number_of_rows = '1')").await;
    let view = |option: &str, value: &str| {
        format!("CREATE MATERIALIZED VIEW v AS SELECT id FROM g WITH (execution.checkpointing.{option} = '{value}')")
    };
    for (option, value, state, said) in [
        ("timeout", "1ms", "22023", "below 10 ms"),
        ("data-inline-threshold", "1gb", "22023", "above 1 mb"),
        ("interval-during-backlog", "20ms", "22023", "below execution.checkpointing.interval"),
        ("num-retaind", "1", "42704", "num-retained"),
        ("dir", "s3://b/x", "0A000", "belongs to the server"),
        ("storage", "jobmanager", "0A000", "filesystem"),
    ] {
        let (given, message) = weir.sql_error(&view(option, value)).await;
        assert_eq!(given, state, "{option}: {message}");
        assert!(message.contains(said), "{option}: {message}");
    }
}
