//! What Weir adds to DataFusion's SQL in batch queries, so that they read as continuous ones do.

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;

use crate::context::Types;
use crate::window::BatchWindows;

/// Adds TUMBLE and HOP as relations, comparisons with arrays, and SQL types as Weir has them, to a session that has its
/// other functions already.
pub fn register_functions(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    builder.scalar_functions().get_or_insert_default().extend(crate::arrays::functions());
    builder.with_relation_planners(vec![Arc::new(BatchWindows)]).with_type_planner(Arc::new(Types))
}
