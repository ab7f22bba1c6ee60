//! Late and bad rows: counted and kept readable, never dropped in silence.
//!
//! How many there were stands in a subtask's counters, which are part of every checkpoint. The newest of them are kept in
//! the subtask's `RejectLedger`, which is part of it too: a failure takes back what came after the checkpoint, and
//! reading that again counts it again, once.

mod ledger;

use arrow::array::RecordBatch;
use serde::{Deserialize, Serialize};
use weir_storage::OperatorUid;

use crate::message::EventTime;

pub(crate) use ledger::{PendingRejects, RejectLedger, Snapshot};

/// Rows of each kind that a subtask keeps at most; older ones are only counted.
pub const KEPT_ROWS: usize = 1_000;
/// Bytes of text of each kind that a subtask keeps at most.
pub const KEPT_BYTES: usize = 64 << 10;
/// A row's text is cut at this many bytes.
pub const ROW_BYTES: usize = 4 << 10;

/// A row of the outside world that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// A bad row that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptBadRow {
    /// When it came, in microseconds since 1970.
    pub seen_at_us: i64,
    /// The row.
    #[serde(flatten)]
    pub row: BadRow,
}

/// A late row that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateRow {
    /// When it came, in microseconds since 1970.
    pub seen_at_us: i64,
    /// How far event time had come.
    pub watermark: EventTime,
    /// The row as a JSON object, cut at 4 KiB.
    pub row: String,
}

/// The newest rejected rows of a job, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RejectedRows {
    /// Late rows with the operator that rejected them.
    pub late: Vec<(OperatorUid, LateRow)>,
    /// Bad rows.
    pub bad: Vec<KeptBadRow>,
}

/// Takes the rows of one subtask that no result will contain. The caller counts them.
pub trait Rejects: Send + Sync {
    /// Rows that came after their window had closed.
    fn late(&self, watermark: EventTime, rows: &RecordBatch);
    /// Rows that a source or format could not read.
    fn bad(&self, rows: Vec<BadRow>);
}
