//! System relations: `weir.queries`, `weir.checkpoints`, `weir.late_rows`, `weir.bad_rows`, `weir.rejected_counts`,
//! `weir.relations`, `weir.savepoints`, `weir.options`.

use std::sync::Arc;

use arrow::array::RecordBatch;
use weir_planner::SqlError;

use crate::engine::Engine;
use crate::error::from_datafusion;
use crate::session::show::{batch, checkpoints_batch, queries_batch, savepoints_batch, strings};

/// The schema that holds them.
pub const SCHEMA: &str = "weir";

/// Names of all system relations.
pub const RELATIONS: &[&str] =
    &["bad_rows", "checkpoints", "late_rows", "options", "queries", "rejected_counts", "relations", "savepoints"];

/// The rows of a system relation at this moment; `None` when there is none of that name.
pub fn rows(engine: &Arc<Engine>, name: &str) -> Result<Option<RecordBatch>, SqlError> {
    let arrow = |result: Result<RecordBatch, arrow::error::ArrowError>| result.map_err(|e| from_datafusion(e.into()));
    Ok(Some(match name {
        "late_rows" => arrow(engine.late_rows())?,
        "bad_rows" => arrow(engine.bad_rows())?,
        "rejected_counts" => arrow(engine.rejected_counts())?,
        "queries" => queries_batch(&engine.queries())?,
        "checkpoints" => checkpoints_batch(&engine.checkpoints(None)?)?,
        "savepoints" => savepoints_batch(&engine.savepoints(None))?,
        "relations" => {
            let relations = engine.relations();
            batch(vec![
                ("name", strings(relations.iter().map(|r| r.name.clone()))),
                ("kind", strings(relations.iter().map(|r| r.kind.name().to_owned()))),
                ("definition", strings(relations.iter().map(|r| r.definition_sql.clone()))),
            ])?
        }
        "options" => {
            let all = weir_planner::options::OPTIONS;
            batch(vec![
                ("name", strings(all.iter().map(|o| o.name.to_owned()))),
                ("default", strings(all.iter().map(|o| o.default.to_owned()))),
                ("meaning", strings(all.iter().map(|o| o.doc.to_owned()))),
            ])?
        }
        _ => return Ok(None),
    }))
}
