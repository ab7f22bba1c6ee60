//! Tests from outside: real processes, real files, real clients. One binary, so that DataFusion is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod it {
    pub mod bad_input;
    pub mod browser;
    pub mod cases;
    pub mod checkpoint_options;
    pub mod clients;
    pub mod crash;
    pub mod docs;
    pub mod final_commit;
    pub mod flights;
    pub mod logs;
    pub mod older_builds;
    pub mod properties;
    pub mod readme;
    pub mod s3;
    pub mod savepoints;
    pub mod soak;
    pub mod tables;
}
