//! The dashboard in Chromium, against a real server that has queries.

use std::process::Command;

use weir_tests::{Weir, root, sample};

use super::flights::{queries, streams};

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_does_in_chromium_what_it_should() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(&directory.path().join("data"));
    weir.sql(&streams(&sample("flights-2013-01.csv"), &sample("weather-2013-01.csv"), &sample("planes.csv"))).await;
    weir.sql(&queries(&directory.path().join("late"), "300ms")).await;
    weir.wait_finished().await;
    let url = format!("http://127.0.0.1:{}", weir.http_port);
    let run = tokio::task::spawn_blocking(move || {
        Command::new(root().join("tests/browser/run.sh")).arg(url).output().unwrap()
    });
    let output = run.await.unwrap();
    assert!(
        output.status.success(),
        "{}{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        weir.log()
    );
}
