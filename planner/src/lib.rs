//! SQL text to dataflow graph. No I/O happens here.
//!
//! ```text
//!   text ──parse──► Statement ──┬─ CREATE STREAM, TABLE ──define──► Relation ──► Catalog
//!        statement/             │
//!                               └─ a continuous query ──► DataFusion LogicalPlan       context.rs, window.rs
//!                                                              │
//!                                       refuse.rs ◄────────────┤ what cannot stream, and what to write instead
//!                                                              │ optimizer rules that keep plans streamable
//!                                                              ▼
//!                                      graph/  ── changelog.rs · time.rs · bounds.rs
//!                                                              │
//!                                                              ▼
//!                                                   weir_runtime::graph::Graph ──explain──► text
//! ```
//!
//! A catalog is plain data that comes with each call; what is planned depends on nothing else.

pub mod arrays;
mod bounds;
pub mod catalog;
mod changelog;
mod context;
mod define;
pub mod error;
mod explain;
mod functions;
mod graph;
pub mod options;
pub mod output;
pub mod plan;
mod planner;
mod refuse;
pub mod statement;
#[cfg(test)]
mod tests;
mod time;
pub mod types;
mod window;

pub use catalog::{Catalog, CatalogChange, Column, Entry, Relation, RelationKind, Savepoint, Watermark};
pub use error::{ErrorKind, Result, SqlError, from_datafusion};
pub use explain::explain;
pub use functions::register_functions;
pub use options::Options;
pub use plan::{Parallelism, Planned, Target};
pub use planner::Planner;
pub use statement::{Parsed, Statement, parse};
pub use types::SqlType;
