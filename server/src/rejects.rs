//! Late and bad rows as `weir.late_rows`, `weir.bad_rows` and `weir.rejected_counts`.
//!
//! Those of a query are part of its checkpoints and come from its job. Rows that no query reads (bodies of HTTP requests,
//! a SELECT over a stream) are kept here, from the start of the server on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{Field, Schema};
use arrow::error::ArrowError;
use parking_lot::Mutex;
use weir_runtime::message::EventTime;
use weir_runtime::rejects::{BadRow, KEPT_ROWS, KeptBadRow, LateRow};
use weir_storage::OperatorUid;

/// Bad rows that were read for no query, by relation.
#[derive(Debug, Default)]
pub struct UnownedRows {
    inner: Mutex<HashMap<String, OfRelation>>,
}

#[derive(Debug, Default)]
struct OfRelation {
    rows: VecDeque<KeptBadRow>,
    count: u64,
}

impl UnownedRows {
    /// Counts rows and keeps the newest.
    pub fn add(&self, relation: &str, rows: Vec<BadRow>) {
        let seen_at_us = chrono::Utc::now().timestamp_micros();
        let mut inner = self.inner.lock();
        let of_relation = inner.entry(relation.to_owned()).or_default();
        of_relation.count += rows.len() as u64;
        for row in rows {
            if of_relation.rows.len() == KEPT_ROWS {
                of_relation.rows.pop_front();
            }
            of_relation.rows.push_back(KeptBadRow { seen_at_us, row });
        }
    }

    /// Forgets a dropped relation.
    pub fn forget(&self, relation: &str) {
        self.inner.lock().remove(relation);
    }

    /// All rows that are kept.
    pub(crate) fn rows(&self) -> Vec<(String, KeptBadRow)> {
        let inner = self.inner.lock();
        let of_relation = |(relation, of): (&String, &OfRelation)| -> Vec<_> {
            of.rows.iter().map(|row| (relation.clone(), row.clone())).collect()
        };
        inner.iter().flat_map(of_relation).collect()
    }

    /// How many there were, by relation.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        self.inner.lock().iter().map(|(relation, of)| (relation.clone(), of.count)).collect()
    }
}

/// `weir.late_rows`: late rows by query, oldest first.
pub(crate) fn late_batch(mut rows: Vec<(String, OperatorUid, LateRow)>) -> Result<RecordBatch, ArrowError> {
    rows.sort_by(|a, b| (&a.0, a.2.seen_at_us).cmp(&(&b.0, b.2.seen_at_us)));
    let told =
        |watermark: EventTime| (watermark != EventTime::MAX && watermark != EventTime::MIN).then_some(watermark.0);
    batch(vec![
        ("query", false, strings(rows.iter().map(|(query, ..)| query.as_str()))),
        ("operator", false, strings(rows.iter().map(|(_, operator, _)| operator.0.as_str()))),
        ("seen_at", false, timestamps(rows.iter().map(|(.., row)| Some(row.seen_at_us)))),
        ("watermark", true, timestamps(rows.iter().map(|(.., row)| told(row.watermark)))),
        ("row", false, strings(rows.iter().map(|(.., row)| row.row.as_str()))),
    ])
}

/// `weir.bad_rows`: bad rows by query, oldest first.
pub(crate) fn bad_batch(mut rows: Vec<(String, KeptBadRow)>) -> Result<RecordBatch, ArrowError> {
    rows.sort_by(|a, b| (&a.0, a.1.seen_at_us).cmp(&(&b.0, b.1.seen_at_us)));
    let text = |get: fn(&BadRow) -> &String| strings(rows.iter().map(|(_, kept)| get(&kept.row).as_str()));
    batch(vec![
        ("query", false, strings(rows.iter().map(|(query, _)| query.as_str()))),
        ("relation", false, text(|row| &row.relation)),
        ("source", false, text(|row| &row.split)),
        ("position", false, text(|row| &row.position)),
        ("reason", false, text(|row| &row.reason)),
        ("raw", false, text(|row| &row.raw)),
        ("seen_at", false, timestamps(rows.iter().map(|(_, kept)| Some(kept.seen_at_us)))),
    ])
}

/// `weir.rejected_counts`: late and bad rows by query. Queries without any are left out.
pub(crate) fn count_batch(mut rows: Vec<(String, u64, u64)>) -> Result<RecordBatch, ArrowError> {
    rows.retain(|(_, late, bad)| late + bad > 0);
    rows.sort();
    let count = |get: fn(&(String, u64, u64)) -> u64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| i64::try_from(get(row)).unwrap_or(i64::MAX))))
    };
    batch(vec![
        ("query", false, strings(rows.iter().map(|(query, ..)| query.as_str()))),
        ("late_rows", false, count(|row| row.1)),
        ("bad_rows", false, count(|row| row.2)),
    ])
}

/// Columns with their names and whether they may be null.
fn batch(columns: Vec<(&str, bool, ArrayRef)>) -> Result<RecordBatch, ArrowError> {
    let field =
        |(name, nullable, column): &(&str, bool, ArrayRef)| Field::new(*name, column.data_type().clone(), *nullable);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.into_iter().map(|(.., column)| column).collect())
}

fn strings<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn timestamps(values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(values.collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;

    use super::*;

    fn row(raw: String) -> BadRow {
        let (relation, split) = ("flights".into(), "file:///a.csv".into());
        BadRow { relation, split, position: "line 1".into(), reason: "\"x\" is not a number".into(), raw }
    }

    #[test]
    fn rows_of_no_query_are_counted_and_kept_up_to_the_bound() {
        let rejected = UnownedRows::default();
        rejected.add("s", (0..KEPT_ROWS + 5).map(|i| row(i.to_string())).collect());
        assert_eq!(rejected.counts(), [("s".to_owned(), KEPT_ROWS as u64 + 5)]);
        let rows = rejected.rows();
        assert_eq!((rows.len(), rows[0].1.row.raw.as_str()), (KEPT_ROWS, "5"));
        rejected.forget("s");
        assert!(rejected.counts().is_empty());
    }

    #[test]
    fn relations_are_sorted_by_query_and_time() {
        let late = |query: &str, seen_at_us, watermark| {
            (query.to_owned(), OperatorUid("o".into()), LateRow { seen_at_us, watermark, row: "{}".into() })
        };
        let batch = late_batch(vec![late("b", 1, EventTime(5)), late("a", 9, EventTime::MAX)]).unwrap();
        assert_eq!(batch.num_rows(), 2);
        assert!(batch.column(3).is_null(0), "event time at its end is told as none");
        let counts = count_batch(vec![("b".into(), 0, 1), ("c".into(), 0, 0), ("a".into(), 2, 0)]).unwrap();
        assert_eq!(counts.num_rows(), 2);
        assert_eq!(bad_batch(Vec::new()).unwrap().num_columns(), 7);
    }
}
