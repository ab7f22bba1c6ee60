//! Late and bad rows, counted for ever and the latest kept readable as `weir.late_rows` and `weir.bad_rows`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use parking_lot::Mutex;
use weir_runtime::message::EventTime;
use weir_runtime::rejects::{BadRow, Rejects};
use weir_storage::OperatorUid;

/// Rows of each kind kept for each query; older ones are only counted.
const KEPT_ROWS: usize = 10_000;

/// The engine's collection of rejected rows.
#[derive(Debug, Default)]
pub struct RejectedRows {
    inner: Mutex<HashMap<String, OfQuery>>,
}

#[derive(Debug, Default)]
struct OfQuery {
    late: VecDeque<LateRow>,
    late_count: u64,
    bad: VecDeque<(i64, BadRow)>,
    bad_count: u64,
}

#[derive(Debug)]
struct LateRow {
    seen_at_us: i64,
    operator: String,
    watermark: EventTime,
    row: String,
}

impl RejectedRows {
    /// Rows of `query` counted so far: late, bad.
    pub fn counts(&self, query: &str) -> (u64, u64) {
        self.inner.lock().get(query).map_or((0, 0), |q| (q.late_count, q.bad_count))
    }

    /// Forget a dropped query.
    pub fn forget(&self, query: &str) {
        self.inner.lock().remove(query);
    }

    /// Schema of `weir.late_rows`.
    pub fn late_schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("query", DataType::Utf8, false),
            Field::new("operator", DataType::Utf8, false),
            Field::new("seen_at", utc_timestamp(), false),
            Field::new("watermark", utc_timestamp(), true),
            Field::new("row", DataType::Utf8, false),
        ]))
    }

    /// The contents of `weir.late_rows`, by query, oldest first.
    pub fn late_rows(&self) -> Result<RecordBatch, ArrowError> {
        let inner = self.inner.lock();
        let mut rows: Vec<(&str, &LateRow)> =
            inner.iter().flat_map(|(query, q)| q.late.iter().map(move |row| (query.as_str(), row))).collect();
        rows.sort_by_key(|(query, row)| (*query, row.seen_at_us));
        let columns: Vec<ArrayRef> = vec![
            strings(rows.iter().map(|(query, _)| *query)),
            strings(rows.iter().map(|(_, row)| row.operator.as_str())),
            timestamps(rows.iter().map(|(_, row)| Some(row.seen_at_us))),
            timestamps(rows.iter().map(|(_, row)| {
                (row.watermark != EventTime::MAX && row.watermark != EventTime::MIN).then_some(row.watermark.0)
            })),
            strings(rows.iter().map(|(_, row)| row.row.as_str())),
        ];
        RecordBatch::try_new(Self::late_schema(), columns)
    }

    /// Schema of `weir.bad_rows`.
    pub fn bad_schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("query", DataType::Utf8, false),
            Field::new("relation", DataType::Utf8, false),
            Field::new("source", DataType::Utf8, false),
            Field::new("position", DataType::Utf8, false),
            Field::new("reason", DataType::Utf8, false),
            Field::new("raw", DataType::Utf8, false),
            Field::new("seen_at", utc_timestamp(), false),
        ]))
    }

    /// The contents of `weir.bad_rows`, by query, oldest first.
    pub fn bad_rows(&self) -> Result<RecordBatch, ArrowError> {
        let inner = self.inner.lock();
        let mut rows: Vec<(&str, &(i64, BadRow))> =
            inner.iter().flat_map(|(query, q)| q.bad.iter().map(move |row| (query.as_str(), row))).collect();
        rows.sort_by_key(|(query, row)| (*query, row.0));
        let columns: Vec<ArrayRef> = vec![
            strings(rows.iter().map(|(query, _)| *query)),
            strings(rows.iter().map(|(_, (_, row))| row.relation.as_str())),
            strings(rows.iter().map(|(_, (_, row))| row.split.as_str())),
            strings(rows.iter().map(|(_, (_, row))| row.position.as_str())),
            strings(rows.iter().map(|(_, (_, row))| row.reason.as_str())),
            strings(rows.iter().map(|(_, (_, row))| row.raw.as_str())),
            timestamps(rows.iter().map(|(_, (seen, _))| Some(*seen))),
        ];
        RecordBatch::try_new(Self::bad_schema(), columns)
    }

    /// Schema of `weir.rejected_counts`.
    pub fn count_schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("query", DataType::Utf8, false),
            Field::new("late_rows", DataType::Int64, false),
            Field::new("bad_rows", DataType::Int64, false),
        ]))
    }

    /// The contents of `weir.rejected_counts`: all rows ever rejected since the server started, by query.
    pub fn count_rows(&self) -> Result<RecordBatch, ArrowError> {
        let inner = self.inner.lock();
        let mut rows: Vec<(&String, &OfQuery)> = inner.iter().collect();
        rows.sort_by_key(|(query, _)| *query);
        let count = |f: fn(&OfQuery) -> u64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|(_, q)| i64::try_from(f(q)).unwrap_or(i64::MAX))))
        };
        let columns =
            vec![strings(rows.iter().map(|(q, _)| q.as_str())), count(|q| q.late_count), count(|q| q.bad_count)];
        RecordBatch::try_new(Self::count_schema(), columns)
    }
}

impl Rejects for RejectedRows {
    fn late(&self, query: &str, operator: &OperatorUid, watermark: EventTime, rows: &RecordBatch) {
        let seen_at_us = chrono::Utc::now().timestamp_micros();
        let texts = json_lines(rows);
        let mut inner = self.inner.lock();
        let of_query = inner.entry(query.to_owned()).or_default();
        of_query.late_count += rows.num_rows() as u64;
        for row in texts {
            push_bounded(&mut of_query.late, LateRow { seen_at_us, operator: operator.0.clone(), watermark, row });
        }
    }

    fn bad(&self, query: &str, rows: Vec<BadRow>) {
        let seen_at_us = chrono::Utc::now().timestamp_micros();
        let mut inner = self.inner.lock();
        let of_query = inner.entry(query.to_owned()).or_default();
        of_query.bad_count += rows.len() as u64;
        for row in rows {
            push_bounded(&mut of_query.bad, (seen_at_us, row));
        }
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == KEPT_ROWS {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// Each row as a JSON object, at most as many as are kept.
fn json_lines(rows: &RecordBatch) -> Vec<String> {
    let rows = rows.slice(0, rows.num_rows().min(KEPT_ROWS));
    let mut writer = arrow::json::WriterBuilder::new()
        .with_explicit_nulls(true)
        .build::<_, arrow::json::writer::LineDelimited>(Vec::new());
    match writer.write(&rows).and_then(|()| writer.finish()) {
        Ok(()) => String::from_utf8_lossy(&writer.into_inner()).lines().map(str::to_owned).collect(),
        Err(error) => vec![format!("(cannot be shown: {error})"); rows.num_rows()],
    }
}

fn utc_timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

fn strings<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn timestamps(values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(values.collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_rows_are_counted_for_ever_and_kept_up_to_the_bound() {
        let rejected = RejectedRows::default();
        let row = |i: usize| BadRow {
            relation: "flights".into(),
            split: "file:///a.csv".into(),
            position: format!("line {i}"),
            reason: "column dep_delay: \"x\" is not a number".into(),
            raw: "x".into(),
        };
        rejected.bad("q", (0..KEPT_ROWS + 5).map(row).collect());
        assert_eq!(rejected.counts("q"), (0, KEPT_ROWS as u64 + 5));
        let rows = rejected.bad_rows().unwrap();
        assert_eq!(rows.num_rows(), KEPT_ROWS);
        rejected.forget("q");
        assert_eq!(rejected.counts("q"), (0, 0));
    }
}
