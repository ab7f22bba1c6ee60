//! Late and bad rows: counted and kept readable, never dropped in silence.

use arrow::array::RecordBatch;
use weir_storage::OperatorUid;

use crate::message::EventTime;

/// A row of the outside world that could not be read.
#[derive(Debug, Clone)]
pub struct BadRow {
    /// The relation it was read for.
    pub relation: String,
    /// The split it came from (a file's URL, …).
    pub split: String,
    /// Where in the split: byte offset, line or row number, as the source counts (`line 17`).
    pub position: String,
    /// Why it could not be read, naming the column and what was expected.
    pub reason: String,
    /// The row as it came, cut at 4 KiB; bytes that are not UTF-8 are escaped.
    pub raw: String,
}

/// Takes rows that no result will contain. Implementations are bounded in memory: they count every row and keep the
/// latest ones readable as `weir.late_rows` and `weir.bad_rows`.
pub trait Rejects: Send + Sync {
    /// Rows of `query` that came after their window had closed.
    fn late(&self, query: &str, operator: &OperatorUid, watermark: EventTime, rows: &RecordBatch);
    /// Rows that a source or format could not read.
    fn bad(&self, query: &str, rows: Vec<BadRow>);
}
