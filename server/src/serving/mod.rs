//! Answers to SELECT: relations as DataFusion tables, for one statement at a time.
//!
//! ```text
//!   SELECT ─► statement_context ─► StatementSchema "public" ─► view_table.rs    a view's snapshot, keys looked up
//!                              │                            └─► stream_table.rs  a bounded stream, read through
//!                              └─► SystemSchema "weir"      ─► system.rs        queries, checkpoints, bad rows, …
//! ```

mod changes;
mod schema;
mod stream_table;
mod system;
mod view_table;
mod yielding;

use std::sync::{Arc, OnceLock};

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::prelude::{SessionConfig, SessionContext};

pub(crate) use changes::{follow_graph, view_changes};

use crate::engine::Engine;

/// Name of the one database.
pub const DATABASE: &str = "weir";

/// A context for one statement: each relation that it names is read at one epoch, however often it is named.
pub(crate) fn statement_context(engine: &Arc<Engine>) -> SessionContext {
    let catalogs = Arc::new(schema::StatementCatalogs::new(engine));
    let state = SessionStateBuilder::new_from_existing(base_state().clone()).with_catalog_list(catalogs).build();
    SessionContext::new_with_state(state)
}

/// Functions, optimizer rules and settings common to all statements; building them once keeps a point read cheap.
fn base_state() -> &'static SessionState {
    static BASE: OnceLock<SessionState> = OnceLock::new();
    BASE.get_or_init(|| {
        let config = SessionConfig::new()
            .with_default_catalog_and_schema(DATABASE, "public")
            .with_create_default_catalog_and_schema(false)
            .with_information_schema(false)
            .with_target_partitions(crate::config::cores() as usize)
            .set_str("datafusion.sql_parser.dialect", "postgresql");
        let builder = SessionStateBuilder::new()
            .with_config(config)
            .with_default_features()
            .with_physical_optimizer_rule(Arc::new(yielding::YieldAfterMultipliers));
        weir_planner::register_functions(builder).build()
    })
}
