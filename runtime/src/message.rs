//! What travels on a channel.

use std::sync::Arc;

use arrow::array::{Array, Int8Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};
use weir_storage::{CheckpointId, Epoch};

/// A point in event time, microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventTime(pub i64);

impl EventTime {
    /// Before every row: no watermark has been seen yet.
    pub const MIN: EventTime = EventTime(i64::MIN);
    /// The end of time: a bounded input has ended, every window closes.
    pub const MAX: EventTime = EventTime(i64::MAX);
}

/// A batch of changes: rows, each with weight +1 (insert) or -1 (retract). An update is a retraction followed by
/// an insertion in the same epoch. A chunk is thus a Z-set (Budiu et al., "DBSP", VLDB 2023), and an operator is
/// defined by what it does to one.
#[derive(Debug, Clone)]
pub struct Chunk {
    batch: RecordBatch,
    /// +1 / -1 for each row; absent means all +1.
    ops: Option<Arc<Int8Array>>,
}

impl Chunk {
    /// Rows that are all insertions.
    pub fn insert(batch: RecordBatch) -> Self {
        Self { batch, ops: None }
    }

    /// Rows with a weight each. `ops` must be as long as the batch and hold only +1 and -1; one that holds only +1
    /// is dropped so that append-only data stays cheap.
    pub fn new(batch: RecordBatch, ops: Int8Array) -> Self {
        debug_assert_eq!(batch.num_rows(), ops.len());
        if ops.values().iter().all(|op| *op == 1) {
            Self::insert(batch)
        } else {
            Self { batch, ops: Some(Arc::new(ops)) }
        }
    }

    /// The rows.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The weights, or `None` when all are +1.
    pub fn ops(&self) -> Option<&Int8Array> {
        self.ops.as_deref()
    }

    /// The weight of row `i`.
    pub fn op(&self, i: usize) -> i8 {
        self.ops.as_ref().map_or(1, |ops| ops.value(i))
    }

    /// The same weights over other columns (a projection).
    pub fn with_batch(&self, batch: RecordBatch) -> Self {
        debug_assert_eq!(batch.num_rows(), self.batch.num_rows());
        Self { batch, ops: self.ops.clone() }
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.batch.num_rows() == 0
    }

    /// Schema of the rows.
    pub fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }

    /// Bytes of the chunk's own rows, for channel credit: a slice counts what it shows, not all that it keeps alive.
    pub fn memory_size(&self) -> usize {
        let size = |column: &Arc<dyn Array>| {
            let whole = || column.get_array_memory_size();
            column.to_data().get_slice_memory_size().unwrap_or_else(|_| whole())
        };
        self.batch.columns().iter().map(size).sum::<usize>() + self.ops.as_ref().map_or(0, |ops| ops.len())
    }

    /// A slice of rows.
    pub fn slice(&self, offset: usize, length: usize) -> Self {
        Self {
            batch: self.batch.slice(offset, length),
            ops: self.ops.as_ref().map(|ops| Arc::new(ops.slice(offset, length))),
        }
    }

    /// Rows and weights apart.
    pub fn into_parts(self) -> (RecordBatch, Option<Arc<Int8Array>>) {
        (self.batch, self.ops)
    }
}

/// The mark of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {
    /// Which checkpoint.
    pub checkpoint: CheckpointId,
    /// The epoch that the barrier ends: operators flush it before they take their snapshot.
    pub epoch: Epoch,
    /// When the coordinator triggered it, milliseconds since the Unix epoch (alignment timeouts count from here).
    pub triggered_at_ms: i64,
    /// Whether channels are blocked until every barrier has come (exactly-once), passed over (unaligned), or
    /// not blocked at all (at-least-once).
    pub alignment: Alignment,
    /// Whether the job ends or stops with this checkpoint.
    pub last: bool,
}

/// How a barrier treats the data around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Alignment {
    /// Block each channel at its barrier until all channels have theirs.
    Aligned,
    /// Overtake: snapshot at the first barrier, in-flight data becomes part of the checkpoint.
    Unaligned,
    /// Do not block: rows after the barrier may be counted twice on recovery.
    AtLeastOnce,
}

/// A message on a channel, in order.
#[derive(Debug, Clone)]
pub enum Message {
    /// Changes.
    Data(Chunk),
    /// No row with an earlier event time will follow on this channel (late ones excepted).
    Watermark(EventTime),
    /// The channel has no data at present and shall not hold back event time; any later message but `Epoch` and
    /// `Barrier` ends the idleness.
    Idle,
    /// End of an epoch.
    Epoch(Epoch),
    /// A checkpoint's mark.
    Barrier(Barrier),
    /// No data will follow. Epochs and barriers still do: a subtask whose input has ended keeps its place in later
    /// checkpoints until the last one.
    End,
}
