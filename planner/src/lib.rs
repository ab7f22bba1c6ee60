//! SQL text to dataflow graph. No I/O happens here.
//!
//! ```text
//!   text ──parse──► Statement ──┬─ CREATE STREAM, TABLE ──► Relation ──► Catalog
//!                               │
//!                               └─ a continuous query ──► DataFusion LogicalPlan (window.rs: TUMBLE, HOP)
//!                                                              │ optimizer rules that keep plans streamable
//!                                                              ▼
//!                                       refuse.rs ◄── what cannot stream, and what to write instead
//!                                                              │
//!                                      graph/  ── changelog.rs · time.rs · bounds.rs
//!                                                              ▼
//!                                                   weir_runtime::graph::Graph ──explain──► text
//! ```

pub mod catalog;
pub mod error;
pub mod options;
pub mod plan;
pub mod statement;
pub mod types;

pub use catalog::{Catalog, CatalogChange, Column, Entry, Relation, RelationKind, Watermark};
pub use error::{ErrorKind, Result, SqlError};
pub use options::Options;
pub use plan::{Parallelism, Planned, Target};
pub use statement::{Parsed, Statement, parse};
pub use types::SqlType;
