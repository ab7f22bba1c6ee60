//! Nothing but a list of dependencies: every external crate with the one set of features that the whole workspace uses.
//!
//! Cargo unifies features over the packages that a command selects. Without this crate `cargo test -p weir-storage`
//! would compile another RocksDB and another Arrow than `cargo test --workspace`, half an hour for nothing.
