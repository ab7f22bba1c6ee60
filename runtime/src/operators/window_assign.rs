//! `TUMBLE` and `HOP`: which windows a row belongs to.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, Int8Array, RecordBatch, TimestampMicrosecondArray, UInt32Array};
use arrow::compute::{take, take_record_batch};
use arrow::datatypes::{DataType, SchemaRef, TimestampMicrosecondType};

use super::Site;
use crate::error::{Result, RuntimeError};
use crate::graph::WindowSpec;
use crate::message::Chunk;
use crate::operator::{Operator, Output};
use crate::rejects::BadRow;

/// Appends `window_start` and `window_end`. A row is repeated for each of its windows. A row without an event time
/// belongs to no window and is counted as a bad row.
pub(super) struct WindowAssign {
    site: Site,
    spec: WindowSpec,
    schema: SchemaRef,
}

impl WindowAssign {
    pub(super) fn new(site: Site, spec: WindowSpec, schema: SchemaRef) -> Self {
        Self { site, spec, schema }
    }

    fn reject(&self, chunk: &Chunk, rows: &[(usize, &'static str)]) -> Result<()> {
        self.site.metrics.bad_rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
        let bad = rows
            .iter()
            .map(|(row, reason)| {
                Ok(BadRow {
                    relation: self.site.query.clone(),
                    split: self.site.name.clone(),
                    position: format!("row {row} of a batch"),
                    reason: format!(
                        "column \"{}\": {reason}, so the row belongs to no window",
                        chunk.batch().schema_ref().field(self.spec.time_column).name()
                    ),
                    raw: super::row_text(chunk.batch(), *row)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        self.site.rejects.bad(bad);
        Ok(())
    }
}

/// Calls `each` with the start of every window that contains `time`, latest first. `None` when a bound of a window
/// cannot be told in 64 bits.
fn windows_of(spec: &WindowSpec, time: i64, mut each: impl FnMut(i64)) -> Option<()> {
    // Floor, not truncation: a time before the epoch belongs to the window that starts before it.
    let mut start = time.checked_sub(time.checked_sub(spec.offset)?.rem_euclid(spec.slide))?;
    start.checked_add(spec.size)?;
    start.checked_sub(spec.size)?;
    while start + spec.size > time {
        each(start);
        start -= spec.slide;
    }
    Some(())
}

impl Operator for WindowAssign {
    fn batch(&mut self, _input: usize, chunk: Chunk, out: &mut Output) -> Result<()> {
        let column = chunk.batch().column(self.spec.time_column);
        let Some(times) = column.as_primitive_opt::<TimestampMicrosecondType>() else {
            return Err(RuntimeError::Internal {
                place: "window assignment",
                reason: format!("the time column has type {}", column.data_type()),
            });
        };
        let mut rows: Vec<u32> = Vec::with_capacity(times.len());
        let mut starts: Vec<i64> = Vec::with_capacity(times.len());
        let mut rejected = Vec::new();
        for row in 0..times.len() {
            let reason = if times.is_null(row) {
                Some("event time is null")
            } else {
                let assigned = windows_of(&self.spec, times.value(row), |start| {
                    rows.push(row as u32);
                    starts.push(start);
                });
                assigned.is_none().then_some("event time is out of range")
            };
            // A retraction takes back a row that was rejected, and counted, when it came.
            if let Some(reason) = reason
                && chunk.op(row) > 0
            {
                rejected.push((row, reason));
            }
        }
        if !rejected.is_empty() {
            self.reject(&chunk, &rejected)?;
        }
        let once_each = rows.len() == times.len() && rows.iter().enumerate().all(|(i, row)| i == *row as usize);
        let (batch, ops) = if once_each {
            (chunk.batch().clone(), chunk.ops().cloned())
        } else {
            let rows = UInt32Array::from(rows);
            let ops = match chunk.ops() {
                None => None,
                Some(ops) => Some(take(ops, &rows, None)?.as_primitive().clone()),
            };
            (take_record_batch(chunk.batch(), &rows)?, ops)
        };
        let ends: Vec<i64> = starts.iter().map(|start| start + self.spec.size).collect();
        let zone = match column.data_type() {
            DataType::Timestamp(_, zone) => zone.clone(),
            _ => None,
        };
        let mut columns = batch.columns().to_vec();
        for bound in [starts, ends] {
            let bound = TimestampMicrosecondArray::from(bound).with_timezone_opt(zone.clone());
            columns.push(Arc::new(bound) as ArrayRef);
        }
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        out.push(weighted(batch, ops));
        Ok(())
    }
}

fn weighted(batch: RecordBatch, ops: Option<Int8Array>) -> Chunk {
    match ops {
        None => Chunk::insert(batch),
        Some(ops) => Chunk::new(batch, ops),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::OperatorSpec;
    use crate::operators::testing::{Harness, schema};

    fn harness(size: i64, slide: i64, offset: i64) -> Harness {
        let input = schema("t timestamp, v bigint");
        let output = schema("t timestamp, v bigint, window_start timestamp, window_end timestamp");
        let spec = WindowSpec { time_column: 0, size, slide, offset };
        Harness::new(OperatorSpec::WindowAssign(spec), &[&input], &output, true)
    }

    #[test]
    fn tumbling_windows_floor_before_the_epoch() {
        let mut h = harness(10, 10, 0);
        h.batch(0, "+ 0 1\n+ 9 2\n- 10 3\n+ -1 4\n+ -10 5\n+ -11 6");
        assert_eq!(h.emitted(), "+ 0 1 0 10\n+ 9 2 0 10\n- 10 3 10 20\n+ -1 4 -10 0\n+ -10 5 -10 0\n+ -11 6 -20 -10\n");
    }

    #[test]
    fn hopping_windows_repeat_the_row_and_offset_shifts() {
        let mut h = harness(10, 5, 0);
        h.batch(0, "+ 7 1\n- 3 2");
        assert_eq!(h.emitted(), "+ 7 1 5 15\n+ 7 1 0 10\n- 3 2 0 10\n- 3 2 -5 5\n");
        let mut h = harness(10, 10, 3);
        h.batch(0, "+ 2 1\n+ 3 2");
        assert_eq!(h.emitted(), "+ 2 1 -7 3\n+ 3 2 3 13\n");
    }

    #[test]
    fn a_window_shorter_than_its_slide_leaves_gaps() {
        let mut h = harness(2, 5, 0);
        h.batch(0, "+ 1 1\n+ 3 2\n+ 6 3");
        assert_eq!(h.emitted(), "+ 1 1 0 2\n+ 6 3 5 7\n");
    }

    #[test]
    fn rows_without_time_are_counted_and_kept_readable() {
        let mut h = harness(10, 10, 0);
        h.batch(0, "+ ~ 1\n+ 5 2\n- ~ 1");
        assert_eq!(h.emitted(), "+ 5 2 0 10\n");
        let bad = h.bad_rows();
        assert_eq!(bad.len(), 1);
        assert_eq!(bad[0].reason, "column \"t\": event time is null, so the row belongs to no window");
    }
}
