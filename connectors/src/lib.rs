//! Connectors: how rows come into Weir and go out of it, behind the runtime's [`Source`] and [`Sink`] traits.
//!
//! ```text
//!               registry.rs   names, options as data, validation, opening
//!      ┌────────────┬──────────────┼───────────────┬────────────┐
//!   file/        datagen.rs     nexmark/        print.rs    blackhole.rs
//!   source, sink    └── counted.rs ──┘              │
//!      │            rows from a counter             │
//!      └───────────────► format/ ◄──────────────────┘
//!           csv.rs json.rs parquet.rs: bytes ─► rows      encode.rs: rows ─► bytes
//!                       bad_rows.rs: what could not be read
//!   log/   a relation's own durable log as source and sink
//! ```
//!
//! A new connector is one file (or folder) and one entry in the registry. Its options are a table of names, defaults
//! and meanings: unknown ones are refused with the nearest known name, and the documentation lists the same table.
//!
//! [`Source`]: weir_runtime::source::Source
//! [`Sink`]: weir_runtime::sink::Sink

mod bad_rows;
mod blackhole;
mod counted;
mod datagen;
mod file;
pub mod format;
pub mod log;
pub mod nexmark;
mod options;
mod print;
mod registry;

pub use bad_rows::BadLine;
pub use format::{CsvOptions, Epoch, Format, decode_body};
pub use options::{OptionSpec, nearest};
pub use registry::{Connector, ConnectorContext, Role, connectors, documentation, sink, source, validate};
