//! What Weir adds to DataFusion's SQL in batch queries, so that they read as continuous ones do.

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;

use crate::context::Types;
use crate::window::BatchWindows;

/// Adds TUMBLE and HOP as relations, and SQL types as Weir has them, to a session.
pub fn register_functions(builder: SessionStateBuilder) -> SessionStateBuilder {
    builder.with_relation_planners(vec![Arc::new(BatchWindows)]).with_type_planner(Arc::new(Types))
}
