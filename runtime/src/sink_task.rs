//! A sink's writer at the end of a chain.
//!
//! What a writer prepared for a checkpoint that was given up is still to be committed: it holds the rows since the
//! checkpoint before. So it goes into every later one until the writer is told of one that completed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use weir_storage::CheckpointId;

use crate::channel::BlockedTime;
use crate::error::Result;
use crate::graph::NodeIndex;
use crate::message::Chunk;
use crate::metrics::OperatorMetrics;
use crate::sink::SinkWriter;
use crate::time::Progress;

/// A sink's writer and what it has prepared.
pub(crate) struct SinkEnd {
    node: NodeIndex,
    writer: Box<dyn SinkWriter>,
    unconfirmed: Vec<(CheckpointId, Vec<Vec<u8>>)>,
    metrics: Arc<OperatorMetrics>,
    blocked: Arc<BlockedTime>,
}

/// A sink's part of a checkpoint.
pub(crate) struct SinkPart {
    pub(crate) node: NodeIndex,
    pub(crate) state: Vec<u8>,
    pub(crate) committables: Vec<(CheckpointId, Vec<Vec<u8>>)>,
}

impl SinkEnd {
    pub(crate) fn new(
        node: NodeIndex,
        writer: Box<dyn SinkWriter>,
        metrics: Arc<OperatorMetrics>,
        blocked: Arc<BlockedTime>,
    ) -> Self {
        Self { node, writer, unconfirmed: Vec::new(), metrics, blocked }
    }

    /// Writes rows. Waiting for the outside world counts as being held back.
    pub(crate) async fn write(&mut self, chunk: Chunk) -> Result<()> {
        let rows = chunk.num_rows() as u64;
        self.metrics.rows_in.fetch_add(rows, Relaxed);
        let since = Instant::now();
        let written = self.writer.write(chunk).await;
        self.blocked.add(since.elapsed());
        self.metrics.rows_out.fetch_add(rows, Relaxed);
        written
    }

    /// Tells how event time moved.
    pub(crate) fn progress(&mut self, progress: Progress) {
        self.writer.progress(progress);
    }

    /// Prepares all that was written for `checkpoint`.
    pub(crate) async fn prepare(&mut self, checkpoint: CheckpointId) -> Result<SinkPart> {
        let prepared = self.writer.prepare(checkpoint).await?;
        if !prepared.committables.is_empty() {
            self.unconfirmed.push((checkpoint, prepared.committables));
        }
        Ok(SinkPart { node: self.node, state: prepared.state, committables: self.unconfirmed.clone() })
    }

    /// `checkpoint` completed, and with it all that was prepared until then.
    pub(crate) fn completed(&mut self, checkpoint: CheckpointId) {
        self.unconfirmed.retain(|(prepared, _)| *prepared > checkpoint);
    }
}
