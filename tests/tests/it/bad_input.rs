//! What a careless user does: a clear error or a counted row, never a crash, a hang or silence.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use weir_tests::process::binary;
use weir_tests::{Weir, assert_same_rows, row};

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_row_is_counted_and_harms_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(&directory.path().join("data"));
    let csv = directory.path().join("a.csv");
    let mut bytes = b"id,name,price\n1,good,1.5\ntwo,bad id,1\n3,too,many,fields\n4\n5,good,x\n6,".to_vec();
    bytes.extend([0xff, 0xfe]);
    bytes.extend(b",6\n7,\"quoted, \"\"well\"\"\",7.25\n");
    fs::write(&csv, bytes).unwrap();
    let json = directory.path().join("a.jsonl");
    fs::write(
        &json,
        "{\"id\":1,\"name\":\"good\"}\n{\"id\":\"x\",\"name\":\"bad\"}\nnot json\n{\"id\":2,\n{\"id\":3}\n",
    )
    .unwrap();
    weir.sql(&format!(
        "CREATE STREAM c (id INT, name TEXT, price DOUBLE PRECISION)
           WITH (connector = 'file', path = '{}', format = 'csv', header = 'true');
         CREATE STREAM j (id INT, name TEXT) WITH (connector = 'file', path = '{}', format = 'json');
         CREATE MATERIALIZED VIEW cv AS SELECT id, name, price FROM c;
         CREATE MATERIALIZED VIEW jv AS SELECT id, name FROM j;",
        csv.display(),
        json.display()
    ))
    .await;
    weir.wait_finished().await;
    assert_same_rows(
        "good CSV rows",
        weir.sql("SELECT * FROM cv").await,
        vec![row(&["1", "good", "1.5"]), row(&["7", "quoted, \"well\"", "7.25"])],
    );
    let mut third = row(&["3"]);
    third.push(None);
    assert_same_rows("good JSON rows", weir.sql("SELECT * FROM jv").await, vec![row(&["1", "good"]), third]);
    let counts = weir.sql("SELECT query, count(*) FROM weir.bad_rows GROUP BY query ORDER BY query").await;
    assert_eq!(
        counts,
        vec![row(&["cv", "5"]), row(&["jv", "3"])],
        "{:?}",
        weir.sql("SELECT * FROM weir.bad_rows").await
    );
    let reasons = weir.sql("SELECT reason, raw FROM weir.bad_rows WHERE query = 'cv' AND raw LIKE 'two%'").await;
    assert!(reasons[0][0].as_deref().unwrap().contains("id"), "{reasons:?}");
}

/// What a file of [`rejected_csv`] holds: rows that can be read, bad and late ones, and the others by key.
#[derive(Default)]
struct Rejectable {
    readable: u64,
    bad: u64,
    late: u64,
    counts: std::collections::BTreeMap<(usize, usize), u64>,
    last_bad: String,
}

/// Rows of the second of January, among them ones whose number or time cannot be read, and, once event time has come
/// that far for certain, ones of the first of January.
fn rejected_csv(rows: usize) -> (String, Rejectable) {
    let (mut csv, mut holds) = ("at,k,v\n".to_owned(), Rejectable::default());
    for i in 0..rows {
        let (key, hour) = (i % 5, i % 4);
        let time = format!("2013-01-02T{hour:02}:30:00Z");
        let line = match i {
            _ if i % 7 == 3 => {
                holds.bad += 1;
                holds.last_bad = format!("{time},{key},x{i}");
                holds.last_bad.clone()
            }
            _ if i % 11 == 5 => {
                (holds.readable, holds.bad) = (holds.readable + 1, holds.bad + 1);
                format!("NA,{key},{i}")
            }
            _ if i > 40_000 && i % 3 == 0 => {
                (holds.readable, holds.late) = (holds.readable + 1, holds.late + 1);
                format!("2013-01-01T12:00:00Z,{key},{i}")
            }
            _ => {
                holds.readable += 1;
                *holds.counts.entry((key, hour)).or_default() += 1;
                format!("{time},{key},{i}")
            }
        };
        csv.push_str(&line);
        csv.push('\n');
    }
    (csv, holds)
}

#[tokio::test(flavor = "multi_thread")]
async fn late_and_bad_rows_are_counted_once_however_often_the_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (csv, holds) = rejected_csv(400_000);
    let file = directory.path().join("a.csv");
    fs::write(&file, csv).unwrap();
    let mut weir = Weir::new(&directory.path().join("data")).args(&["--parallelism", "2"]);
    weir.run();
    weir.sql(&format!(
        "CREATE STREAM s (at TIMESTAMPTZ, k INT, v INT, WATERMARK FOR at AS at - INTERVAL '6 hours')
           WITH (connector = 'file', path = '{}', format = 'csv', header = 'true', null = 'NA');
         SET 'execution.checkpointing.interval' = '20ms';",
        file.display()
    ))
    .await;
    weir.kill();
    weir.env("WEIR_FAIL_POINT", "before-manifest:2");
    weir.run();
    // The server may die before it has answered.
    let _ = weir
        .try_sql(
            "SET 'execution.checkpointing.interval' = '20ms';
             CREATE MATERIALIZED VIEW v AS SELECT k, window_start, count(v) AS n
               FROM TUMBLE(TABLE s, DESCRIPTOR(at), INTERVAL '1 hour')
               GROUP BY k, window_start, window_end EMIT ON WINDOW CLOSE",
        )
        .await;
    assert!(!weir.wait_for_end().success(), "it dies in its second checkpoint");
    for fail_point in ["after-upload:3", "after-manifest:2", "after-snapshot:5", "before-clean-up:2"] {
        weir.env("WEIR_FAIL_POINT", fail_point);
        if weir.try_run() {
            let _ = weir.try_wait_finished().await;
        }
        weir.kill();
    }
    weir.env("WEIR_FAIL_POINT", "");
    weir.run();
    let expected: Vec<_> = holds
        .counts
        .iter()
        .map(|((key, hour), n)| row(&[&key.to_string(), &format!("2013-01-02 {hour:02}:00:00+00"), &n.to_string()]))
        .collect();
    let counted = [holds.readable, expected.len() as u64, holds.late, holds.bad].map(|n| n.to_string());
    let counted = row(&counted.each_ref().map(String::as_str));
    // A finished query knows them after a restart, too.
    for _ in 0..2 {
        weir.wait_finished().await;
        assert_same_rows("the view", weir.sql("SELECT * FROM v").await, expected.clone());
        let rows = weir.sql("SELECT rows_in, rows_out, late_rows, bad_rows FROM weir.queries WHERE name = 'v'").await;
        assert_eq!(rows, vec![counted.clone()]);
        let counts = weir.sql("SELECT late_rows, bad_rows FROM weir.rejected_counts WHERE query = 'v'").await;
        assert_eq!(counts, vec![counted[2..].to_vec()]);
        let late = weir.sql("SELECT row FROM weir.late_rows WHERE query = 'v'").await;
        assert!(
            !late.is_empty() && late.iter().all(|r| r[0].as_deref().unwrap().contains("2013-01-01T12")),
            "{late:?}"
        );
        let newest = weir.sql(&format!("SELECT count(*) FROM weir.bad_rows WHERE raw = '{}'", holds.last_bad)).await;
        assert_eq!(newest, vec![row(&["1"])]);
        assert!(weir.terminate().success(), "{}", weir.log());
        weir.run();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_input_is_told_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(&directory.path().join("data"));
    let path = |name: &str| directory.path().join(name).display().to_string();
    let create = |file: &str, columns: &str| {
        format!(
            "CREATE STREAM s ({columns}) WITH (connector = 'file', path = '{file}', format = 'csv', header = 'true')"
        )
    };
    let (_, message) = weir.sql_error(&create(&path("missing.csv"), "id INT")).await;
    assert!(message.contains("missing.csv"), "{message}");
    fs::write(path("header.csv"), "id,nam\n1,x\n").unwrap();
    let (_, message) = weir.sql_error(&create(&path("header.csv"), "id INT, name TEXT")).await;
    assert!(message.contains("name") && message.contains("nam"), "{message}");
    fs::write(path("empty.csv"), "").unwrap();
    let empty = create(&path("empty.csv"), "id INT").replace("STREAM s", "STREAM empty");
    weir.sql(&format!("{empty}; CREATE MATERIALIZED VIEW ev AS SELECT count(*) AS n FROM empty")).await;
    weir.wait_finished().await;
    assert_eq!(weir.sql("SELECT * FROM ev").await, vec![row(&["0"])]);

    let (state, message) = weir.sql_error("CREATE STREAM s (id INT) WITH (connector = 'flie', path = 'x')").await;
    assert!(message.contains("file"), "{state} {message}");
    let (_, message) = weir.sql_error("CREATE STREAM s (id INT) WITH (connector = 'file', pth = 'x')").await;
    assert!(message.contains("path"), "{message}");
    let (state, _) = weir.sql_error("SELECT * FROM nothing").await;
    assert_eq!(state, "42P01");
    let (state, message) = weir.sql_error("SELEC 1").await;
    assert_eq!(state, "42601", "{message}");
    let (state, message) = weir.sql_error("SET 'execution.checkpointing.intervall' = '1s'").await;
    assert_eq!(state, "42704");
    assert!(message.contains("execution.checkpointing.interval"), "{message}");
    let (_, message) = weir.sql_error("SET 'execution.checkpointing.interval' = 'soon'").await;
    assert!(message.contains("soon"), "{message}");
    let (state, message) = weir.sql_error("CREATE MATERIALIZED VIEW v AS SELECT n FROM ev ORDER BY n").await;
    assert_eq!(state, "0A000", "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_and_a_taken_port_are_refused_with_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let weir = Weir::start(&directory.path().join("data"));
    let second = Command::new(binary())
        .args(["serve", "--data-dir"])
        .arg(&weir.data)
        .args(["--listen-sql", "127.0.0.1:0", "--listen-http", "127.0.0.1:0"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success());
    assert!(text.contains("in use") && text.contains(&weir.pid().to_string()), "{text}");
    let third = Command::new(binary())
        .args(["serve", "--data-dir"])
        .arg(directory.path().join("other"))
        .args(["--listen-sql", &format!("127.0.0.1:{}", weir.sql_port), "--listen-http", "127.0.0.1:0"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&third.stderr).into_owned();
    assert!(!third.status.success());
    assert!(text.contains(&weir.sql_port.to_string()), "{text}");
}

#[test]
fn unknown_flags_and_commands_name_the_nearest() {
    for (arguments, expected) in [
        (&["serve", "--data-dri", "x"][..], "--data-dir"),
        (&["serv"][..], "serve"),
        (&["checkpoint", "lst", "x"][..], "list"),
    ] {
        let output = Command::new(binary()).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_store_that_cannot_be_written_stops_the_start_with_its_url() {
    if nix::unistd::geteuid().is_root() {
        // Permissions do not bind root; a path under a file cannot be created by anybody.
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let output = Command::new(binary())
            .args(["serve", "--data-dir"])
            .arg(directory.path().join("data"))
            .args(["--store", &format!("file://{}/store", file.display())])
            .args(["--listen-sql", "127.0.0.1:0", "--listen-http", "127.0.0.1:0"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(text.contains(&file.display().to_string()), "{text}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let locked = directory.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
    let output = Command::new(binary()).args(["serve", "--data-dir"]).arg(locked.join("data")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(text.contains("locked"), "{text}");
}

/// A full disk: a small tmpfs. Needs root and mount; skips aloud without them.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_fails_the_query_and_not_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted = nix::unistd::geteuid().is_root()
        && Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
            .arg(&small)
            .status()
            .is_ok_and(|s| s.success());
    if !mounted {
        eprintln!("SKIPPED: mounting a small tmpfs needs root");
        return;
    }
    let weir = Weir::start(&directory.path().join("data"));
    weir.sql(&format!(
        "SET 'execution.checkpointing.interval' = '50ms';
         CREATE STREAM g (id BIGINT, text TEXT) WITH (connector = 'datagen', number_of_rows = '2000000');
         CREATE SINK out FROM g WITH (connector = 'file', path = '{}', format = 'json');",
        small.join("out").display()
    ))
    .await;
    let until = std::time::Instant::now() + weir_tests::process::PATIENCE;
    loop {
        let rows = weir.sql("SELECT state, reason FROM weir.queries WHERE name = 'out'").await;
        if rows[0][0].as_deref() == Some("RESTARTING") {
            assert!(rows[0][1].as_deref().unwrap().contains("out"), "{rows:?}");
            break;
        }
        assert!(std::time::Instant::now() < until, "{rows:?}\n{}", weir.log());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(weir.sql("SELECT 1").await, vec![row(&["1"])]);
    drop(weir);
    let _ = Command::new("umount").arg("-l").arg(&small).status();
}
