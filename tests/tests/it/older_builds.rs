//! State that an older build has written stays readable: stores kept as they were, gone on from by this build.
//!
//! A new one is added whenever a format changes, with the build that is about to be replaced: what `weir serve --data-dir
//! data --parallelism 2` made of `first.csv`, posted to a stream, and `second.csv`, which that build has not seen.

use std::path::Path;
use std::process::Command;

use weir_tests::{Weir, assert_same_rows, oracle, root, sample};

use super::flights::json_rows;

/// The views that the older build created, and the batch queries that they stand for.
const VIEWS: &[(&str, &str)] = &[
    ("by_carrier", "SELECT carrier, count(*), avg(dep_delay) FROM flights GROUP BY carrier"),
    ("sizes", "SELECT n, count(*) FROM (SELECT count(*) AS n FROM flights GROUP BY carrier) GROUP BY n"),
    ("named", "SELECT flight, time_hour, name FROM flights JOIN named_carriers USING (carrier)"),
    (
        "delayed",
        "SELECT flight, tailnum, name FROM flights LEFT JOIN named_carriers USING (carrier) WHERE dep_delay > 30",
    ),
    ("carriers", "SELECT DISTINCT carrier, dest FROM flights"),
    (
        "hours",
        "SELECT origin, date_bin(INTERVAL '1 hour', time_hour), count(*), max(dep_delay) FROM flights GROUP BY 1, 2",
    ),
];

fn unpack(archive: &Path, into: &Path) {
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into).status().unwrap();
    assert!(status.success());
    std::fs::create_dir(into.join("data")).unwrap();
    std::fs::rename(into.join("store"), into.join("data/store")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_an_older_build_is_gone_on_from() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    unpack(&root().join("tests/golden/store-2026-12.tar.gz"), directory.path());
    // Another parallelism than it was written with: its key groups are dealt out anew as well.
    let mut weir = Weir::new(&at("data")).started_in(directory.path()).args(&["--parallelism", "1"]);
    weir.run();
    weir.settled("SELECT sum(n) FROM by_carrier", "200").await;
    weir.settled("SELECT count(*) FROM weir.queries WHERE state = 'RUNNING'", "9").await;

    let posted = reqwest::Client::new()
        .post(format!("http://127.0.0.1:{}/v1/streams/flights", weir.http_port))
        .header("content-type", "application/x-ndjson")
        .body(std::fs::read(at("second.ndjson")).unwrap())
        .send()
        .await
        .unwrap();
    assert!(posted.status().is_success(), "{}", posted.text().await.unwrap());
    let texts = ["first.csv", "second.csv"].map(|file| std::fs::read_to_string(at(file)).unwrap());
    let rows = texts.iter().flat_map(|text| text.lines().skip(1));
    let all: Vec<&str> = texts[0].lines().take(1).chain(rows).collect();
    std::fs::write(at("all.csv"), all.join("\n")).unwrap();
    let (weather, planes) = (sample("weather-2013-01.csv"), sample("planes.csv"));
    let batch = oracle::flights(&at("all.csv"), &weather, &planes, &sample("airlines.csv")).await;
    let table = "CREATE VIEW named_carriers AS SELECT column1 AS carrier, column2 AS name
                 FROM (VALUES ('UA', 'United'), ('AA', 'American'), ('B6', 'JetBlue'))";
    batch.sql(table).await.unwrap();

    // Two of them read the three airlines as well.
    for (query, rows) in [
        ("by_carrier", "400"),
        ("carriers", "400"),
        ("hours", "400"),
        ("late", "400"),
        ("written", "400"),
        ("named", "403"),
        ("delayed", "403"),
    ] {
        weir.settled(&format!("SELECT rows_in FROM weir.queries WHERE name = '{query}'"), rows).await;
    }
    weir.settled("SELECT sum(n) FROM by_carrier", "400").await;
    // The log between the two is written with the checkpoint.
    weir.sql("CHECKPOINT by_carrier").await;
    weir.settled("SELECT sum(n * carriers) FROM sizes", "400").await;
    weir.sql("ALTER QUERY hours STOP WITH SAVEPOINT DRAIN; CHECKPOINT written; CHECKPOINT named; CHECKPOINT delayed")
        .await;
    weir.settled("SELECT state FROM weir.queries WHERE name = 'hours'", "FINISHED").await;
    for (view, sql) in VIEWS {
        let expected = oracle::answer(&batch, sql).await;
        assert_same_rows(view, weir.sql(&format!("SELECT * FROM {view}")).await, expected);
    }
    let written = oracle::answer(&batch, "SELECT carrier, flight, tailnum FROM flights").await;
    assert_same_rows("written", json_rows(&at("out")), written);
    assert!(weir.terminate().success(), "{}", weir.log());
}
