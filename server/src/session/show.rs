//! SHOW and DESCRIBE.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use weir_planner::statement::{ObjectKind, Show};
use weir_planner::{ErrorKind, Relation, RelationKind, Savepoint, SqlError};

use super::{Outcome, Session};
use crate::engine::{CheckpointRow, QueryInfo};
use crate::error::from_datafusion;

impl Session {
    pub(super) fn show(&self, show: &Show) -> Result<Outcome, SqlError> {
        let batch = match show {
            Show::Objects(ObjectKind::Query) => queries_batch(&self.engine.queries())?,
            Show::Objects(kind) => self.objects(*kind)?,
            Show::Checkpoints { query } => checkpoints_batch(&self.engine.checkpoints(query.as_deref())?)?,
            Show::Savepoints { query } => savepoints_batch(&self.engine.savepoints(query.as_deref()))?,
            Show::Create { kind, name } => self.show_create(*kind, name)?,
            Show::Columns { relation } => return self.describe_relation(relation, "SHOW"),
        };
        Ok(Outcome::table("SHOW", batch))
    }

    fn objects(&self, kind: ObjectKind) -> Result<RecordBatch, SqlError> {
        let relations: Vec<Arc<Relation>> =
            self.engine.relations().into_iter().filter(|r| ObjectKind::from(r.kind) == kind).collect();
        let columns = |r: &Relation| {
            r.columns.iter().map(|c| format!("{} {}", c.name, c.pg_type())).collect::<Vec<_>>().join(", ")
        };
        let from = |r: &Relation| match (r.connector_name(), r.reads.as_slice()) {
            (Some(connector), []) => format!("connector {connector}"),
            (Some(connector), reads) => format!("{} to connector {connector}", reads.join(", ")),
            (None, []) => "INSERT".to_owned(),
            (None, reads) => reads.join(", "),
        };
        batch(vec![
            ("name", strings(relations.iter().map(|r| r.name.clone()))),
            ("columns", strings(relations.iter().map(|r| columns(r)))),
            ("key", strings(relations.iter().map(|r| key_names(r)))),
            ("fed_by", strings(relations.iter().map(|r| from(r)))),
        ])
    }

    fn show_create(&self, kind: Option<ObjectKind>, name: &str) -> Result<RecordBatch, SqlError> {
        let catalog = self.engine.catalog();
        let relation = catalog.find(name)?;
        let mistaken = |kind: &ObjectKind| *kind != ObjectKind::Query && ObjectKind::from(relation.kind) != *kind;
        if let Some(kind) = kind.filter(mistaken) {
            return Err(SqlError::new(
                ErrorKind::WRONG_KIND,
                format!("\"{name}\" is a {}, not a {}", relation.kind.name(), kind.name()),
            )
            .hint(format!("write SHOW CREATE {} {name}", relation.kind.name().to_uppercase())));
        }
        batch(vec![
            ("name", strings([relation.name.clone()].into_iter())),
            ("create_statement", strings([relation.definition_sql.clone()].into_iter())),
        ])
    }

    pub(super) fn describe_relation(&self, name: &str, tag: &'static str) -> Result<Outcome, SqlError> {
        let catalog = self.engine.catalog();
        let relation = catalog.find(name)?;
        let event_time = relation.event_time();
        let note = |i: usize| {
            let column = &relation.columns[i];
            let mut notes = Vec::new();
            if let Some(expr) = &column.generated {
                notes.push(format!("generated always as ({expr})"));
            }
            if let Some(expr) = &column.default {
                notes.push(format!("default {expr}"));
            }
            if let Some((_, watermark)) = event_time.filter(|(column, _)| *column == i) {
                notes.push(format!("event time, watermark {watermark}"));
            }
            notes.join("; ")
        };
        let columns = &relation.columns;
        let batch = batch(vec![
            ("column", strings(columns.iter().map(|c| c.name.clone()))),
            ("type", strings(columns.iter().map(|c| c.pg_type()))),
            ("nullable", Arc::new(BooleanArray::from_iter(columns.iter().map(|c| Some(c.nullable)))) as ArrayRef),
            ("key", Arc::new(BooleanArray::from_iter((0..columns.len()).map(|i| Some(relation.key.contains(&i)))))),
            ("extra", strings((0..columns.len()).map(note))),
        ])?;
        Ok(Outcome::table(tag, batch))
    }
}

fn key_names(relation: &Relation) -> String {
    relation.key.iter().map(|&i| relation.columns[i].name.as_str()).collect::<Vec<_>>().join(", ")
}

/// `SHOW QUERIES` and `weir.queries`.
pub(crate) fn queries_batch(queries: &[QueryInfo]) -> Result<RecordBatch, SqlError> {
    batch(vec![
        ("name", strings(queries.iter().map(|q| q.name.clone()))),
        ("kind", strings(queries.iter().map(|q| q.kind.clone()))),
        ("state", strings(queries.iter().map(|q| q.state.clone()))),
        ("rows_in", counts(queries.iter().map(|q| Some(q.rows_in)))),
        ("rows_out", counts(queries.iter().map(|q| Some(q.rows_out)))),
        ("late_rows", counts(queries.iter().map(|q| Some(q.late_rows)))),
        ("bad_rows", counts(queries.iter().map(|q| Some(q.bad_rows)))),
        (
            "event_time_lag_ms",
            Arc::new(queries.iter().map(|q| q.event_time_lag_ms).collect::<Int64Array>()) as ArrayRef,
        ),
        ("back_pressure", Arc::new(Float64Array::from_iter_values(queries.iter().map(|q| q.back_pressure)))),
        ("last_checkpoint", counts(queries.iter().map(|q| q.last_checkpoint))),
        ("created_at", times(queries.iter().map(|q| Some(q.created_at_ms)))),
        ("reason", optional_strings(queries.iter().map(|q| q.reason.clone()))),
        ("job", strings(queries.iter().map(|q| q.id.clone()))),
    ])
}

/// `SHOW CHECKPOINTS` and `weir.checkpoints`.
pub(crate) fn checkpoints_batch(rows: &[CheckpointRow]) -> Result<RecordBatch, SqlError> {
    batch(vec![
        ("query", strings(rows.iter().map(|r| r.query.clone()))),
        ("checkpoint", counts(rows.iter().map(|r| Some(r.id)))),
        ("state", strings(rows.iter().map(|r| r.state.clone()))),
        ("manifest", optional_strings(rows.iter().map(|r| r.url.clone()))),
        ("triggered_at", times(rows.iter().map(|r| Some(r.triggered_at_ms)))),
        ("completed_at", times(rows.iter().map(|r| r.completed_at_ms))),
        ("alignment_ms", counts(rows.iter().map(|r| r.alignment_ms))),
        ("snapshot_ms", counts(rows.iter().map(|r| r.snapshot_ms))),
        ("upload_ms", counts(rows.iter().map(|r| r.upload_ms))),
        ("commit_ms", counts(rows.iter().map(|r| r.commit_ms))),
        ("inline_bytes", counts(rows.iter().map(|r| r.inline_bytes))),
        ("new_bytes", counts(rows.iter().map(|r| r.new_bytes))),
        ("shared_bytes", counts(rows.iter().map(|r| r.shared_bytes))),
        ("total_bytes", counts(rows.iter().map(|r| r.total_bytes))),
        ("objects", counts(rows.iter().map(|r| r.objects))),
        ("note", optional_strings(rows.iter().map(|r| r.note.clone()))),
    ])
}

/// `SHOW SAVEPOINTS` and `weir.savepoints`.
pub(crate) fn savepoints_batch(savepoints: &[Savepoint]) -> Result<RecordBatch, SqlError> {
    batch(vec![
        ("query", strings(savepoints.iter().map(|s| s.query.clone()))),
        ("name", optional_strings(savepoints.iter().map(|s| s.name.clone()))),
        ("url", strings(savepoints.iter().map(|s| s.url.clone()))),
        ("checkpoint", counts(savepoints.iter().map(|s| Some(s.checkpoint)))),
        ("created_at", times(savepoints.iter().map(|s| Some(s.created_at_ms)))),
        ("bytes", counts(savepoints.iter().map(|s| Some(s.bytes)))),
        ("objects", counts(savepoints.iter().map(|s| Some(s.objects)))),
        ("job", strings(savepoints.iter().map(|s| s.job.clone()))),
    ])
}

/// A batch from named columns.
pub(crate) fn batch(columns: Vec<(&str, ArrayRef)>) -> Result<RecordBatch, SqlError> {
    RecordBatch::try_from_iter(columns).map_err(|e| from_datafusion(e.into()))
}

/// A column of text.
pub(crate) fn strings(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

pub(crate) fn optional_strings(values: impl Iterator<Item = Option<String>>) -> ArrayRef {
    Arc::new(values.collect::<StringArray>())
}

fn counts(values: impl Iterator<Item = Option<u64>>) -> ArrayRef {
    Arc::new(values.map(|v| v.map(|v| i64::try_from(v).unwrap_or(i64::MAX))).collect::<Int64Array>())
}

fn times(milliseconds: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(milliseconds.map(|ms| ms.map(|ms| ms * 1000)).collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
}

/// `view`, `table`, `stream`, `sink`: kind of the query behind a relation.
pub(crate) fn query_kind(kind: RelationKind) -> &'static str {
    match kind {
        RelationKind::Stream => "stream",
        RelationKind::Table => "table",
        RelationKind::View => "view",
        RelationKind::Sink => "sink",
    }
}
