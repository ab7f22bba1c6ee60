//! The source trait: how rows come in, split by split, with positions that a checkpoint can hold.

use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::message::EventTime;
use crate::rejects::BadRow;

/// Stable name of a split within its source: a file's URL and byte range, a partition, a log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SplitId(pub String);

/// A split with where to go on reading it. `position` is the connector's own (JSON), opaque to the runtime.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitState {
    /// Which split.
    pub id: SplitId,
    /// Where to go on; `null` means from its start.
    pub position: serde_json::Value,
    /// Whether all of it has been read. Finished splits stay in the table of splits for ever, so that discovery
    /// never takes one for new.
    pub finished: bool,
}

/// What a reader yields.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an event is taken apart at once and never stored")]
pub enum SourceEvent {
    /// Rows of one split, in its order, and the split's position *after* them. Every `RecordBatch` has the schema
    /// that the source was asked for. Bad rows passed on the way are reported here too.
    Rows {
        /// Which split they came from.
        split: SplitId,
        /// The rows; may be empty when only the position moved or rows were bad.
        batch: RecordBatch,
        /// Weights, when the source carries a changelog; absent means all +1.
        ops: Option<arrow::array::Int8Array>,
        /// Where the split stands after these rows.
        position: serde_json::Value,
        /// Rows that could not be read.
        bad: Vec<BadRow>,
    },
    /// The split itself tells how far its event time has come: all rows before that were given out, late ones
    /// excepted. It counts where the query has no watermark of its own for the relation.
    Watermark {
        /// Which split.
        split: SplitId,
        /// The time.
        watermark: EventTime,
        /// Where the split stands behind it. Until then it is told again after a restart.
        position: serde_json::Value,
    },
    /// The split has no more rows, ever.
    SplitFinished {
        /// Which split.
        split: SplitId,
    },
    /// Nothing to read at present; ask again after the given time, or when woken by [`SourceReader::next`] itself.
    Idle(Duration),
    /// Every split that this reader was given has ended, and, the source being bounded, none will be added.
    End,
}

/// A source relation as declared: creates enumerators and readers. One per source operator.
#[async_trait]
pub trait Source: Send + Sync {
    /// All splits that exist now. `known` holds every split ever handed out (finished ones included) at its last
    /// position; the answer holds only new ones. Called once at start, and again at [`Source::discovery_interval`].
    async fn discover(&self, known: &[SplitState], parallelism: u32) -> Result<Vec<SplitState>>;

    /// How often to look for new splits; `None` for a bounded source.
    fn discovery_interval(&self) -> Option<Duration>;

    /// Whether all of it will have been read some day.
    fn is_bounded(&self) -> bool {
        self.discovery_interval().is_none()
    }

    /// A reader for one subtask.
    async fn reader(&self, splits: Vec<SplitState>) -> Result<Box<dyn SourceReader>>;

    /// `retained` are the splits as they stand in each checkpoint that is kept. What lies before all of them will not be
    /// asked for by this query any more. Called when older checkpoints have been removed; must return at once.
    fn release(&self, _retained: &[Vec<SplitState>]) {}
}

/// Reads the splits of one subtask.
#[async_trait]
pub trait SourceReader: Send {
    /// The next rows. **Must be cancel-safe**: the task drops the future whenever a barrier or an epoch is due,
    /// and calls again afterwards; no row may be lost by that.
    async fn next(&mut self) -> Result<SourceEvent>;

    /// Take newly discovered splits.
    async fn add_splits(&mut self, splits: Vec<SplitState>) -> Result<()>;
}

/// What a source is asked to produce.
#[derive(Debug, Clone)]
pub struct SourceRequest {
    /// The relation's name, for errors and bad rows.
    pub relation: String,
    /// All physical (not generated) columns as declared, in order: the layout of positional formats.
    pub declared: SchemaRef,
    /// Indices into `declared` of the columns that the query needs, in the order in which they are wanted.
    pub projection: Vec<usize>,
}

impl SourceRequest {
    /// Schema of the batches to produce.
    pub fn projected(&self) -> Result<SchemaRef> {
        Ok(std::sync::Arc::new(self.declared.project(&self.projection)?))
    }
}
