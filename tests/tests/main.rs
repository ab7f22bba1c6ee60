//! Tests from outside: real processes, real files, real clients. One binary, so that DataFusion is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod it {
    pub mod bad_input;
    pub mod crash;
    pub mod docs;
    pub mod flights;
    pub mod tables;
}
