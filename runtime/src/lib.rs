//! Runs dataflow graphs.

mod error;
pub mod graph;
pub mod message;
pub mod metrics;
pub mod operator;
pub mod rejects;
pub mod sink;
pub mod source;
pub mod view;

pub use error::{Result, RuntimeError};
