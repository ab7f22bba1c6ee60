//! Answers to SELECT: relations as DataFusion tables, for one statement at a time.
//!
//! ```text
//!   SELECT ─► statement_context ─► StatementSchema "public" ─► view_table.rs    a view's snapshot, keys looked up
//!                              │                            └─► stream_table.rs  a bounded stream, read through
//!                              ├─► SystemSchema "weir"      ─► system.rs        queries, checkpoints, bad rows, …
//!                              └─► batch.rs: computed on threads of its own, within a limit of memory
//! ```

mod batch;
mod changes;
mod schema;
mod stream_table;
mod system;
mod view_table;
mod yielding;

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;

pub(crate) use batch::{Batch, compute};
pub(crate) use changes::{follow_graph, view_changes};

use crate::engine::Engine;

/// Name of the one database.
pub const DATABASE: &str = "weir";

/// A context for one statement: each relation that it names is read at one epoch, however often it is named.
pub(crate) fn statement_context(engine: &Arc<Engine>) -> SessionContext {
    let catalogs = Arc::new(schema::StatementCatalogs::new(engine));
    let base = engine.batch().state().clone();
    SessionContext::new_with_state(SessionStateBuilder::new_from_existing(base).with_catalog_list(catalogs).build())
}
