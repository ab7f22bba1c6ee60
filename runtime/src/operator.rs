//! The operator trait and what an operator is given.

use std::sync::Arc;

use weir_storage::{CheckpointId, Epoch, KeyGroupRange, OperatorUid, StateTable, Subtask};

use crate::error::Result;
use crate::message::{Chunk, EventTime};
use crate::metrics::OperatorMetrics;
use crate::rejects::Rejects;

/// One operator's part in a task's loop. All methods are synchronous: an operator computes and reads local state,
/// it waits for nobody. What it emits is collected in [`Output`] and sent on by the task, which is where
/// back-pressure applies.
///
/// A snapshot must hold everything the operator has not yet emitted: an aligned barrier is preceded by
/// [`Operator::epoch`], an unaligned one is not.
pub trait Operator: Send {
    /// Changes arrived on `input` (0-based; only joins and unions have more than one).
    fn batch(&mut self, input: usize, chunk: Chunk, out: &mut Output) -> Result<()>;

    /// Event time, the minimum over all inputs that are not idle, has advanced to `watermark`. The task forwards
    /// the watermark after this call; an operator that holds rows back emits them here first.
    fn watermark(&mut self, watermark: EventTime, out: &mut Output) -> Result<()> {
        let _ = (watermark, out);
        Ok(())
    }

    /// An epoch ends: emit the net change of the epoch.
    fn epoch(&mut self, epoch: Epoch, out: &mut Output) -> Result<()> {
        let _ = (epoch, out);
        Ok(())
    }

    /// Write what is only in memory into the operator's state tables and return small operator state (kept in the
    /// manifest); the task snapshots the tables right after.
    fn snapshot(&mut self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// Take up the small state of a snapshot. The tables are already restored. After a change of parallelism there
    /// are several; each is one former subtask's.
    fn restore(&mut self, states: &[Vec<u8>]) -> Result<()> {
        let _ = states;
        Ok(())
    }

    /// The checkpoint is durable.
    fn checkpoint_complete(&mut self, checkpoint: CheckpointId) -> Result<()> {
        let _ = checkpoint;
        Ok(())
    }

    /// All inputs have ended; the watermark has already gone to [`EventTime::MAX`] and an epoch end follows.
    fn end(&mut self, out: &mut Output) -> Result<()> {
        let _ = out;
        Ok(())
    }
}

/// Collects what an operator emits in one call.
#[derive(Debug, Default)]
pub struct Output {
    chunks: Vec<Chunk>,
}

impl Output {
    /// Emit changes. Empty chunks are dropped.
    pub fn push(&mut self, chunk: Chunk) {
        if !chunk.is_empty() {
            self.chunks.push(chunk);
        }
    }

    /// Take all that was emitted since the last call, in order.
    pub fn take(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.chunks)
    }
}

/// Gives an operator its keyed state by name. The same name yields the same table after a restart.
pub trait StateAccess: Send {
    /// The state table called `name` of this operator. Names are part of the persisted format.
    fn table(&mut self, name: &str) -> Result<StateTable>;
}

/// What an operator is created with.
pub struct OperatorContext<'a> {
    /// The query's name, for errors and metrics.
    pub query: &'a str,
    /// Stable name of the operator.
    pub uid: &'a OperatorUid,
    /// Which parallel instance this is.
    pub subtask: Subtask,
    /// How many instances there are.
    pub parallelism: u32,
    /// Number of key groups of the job.
    pub max_parallelism: u16,
    /// The key groups that this instance owns.
    pub key_groups: KeyGroupRange,
    /// Keyed state. Only operators whose spec says `stateful` may ask for tables.
    pub state: &'a mut dyn StateAccess,
    /// Where late and bad rows go, so that they can be read.
    pub rejects: Arc<dyn Rejects>,
    /// Counters of this subtask.
    pub metrics: Arc<OperatorMetrics>,
}
