//! The sink trait: how rows go out, in two phases.
//!
//! ```text
//!   write(chunk)*  ──►  prepare(checkpoint)  ──►  manifest durable  ──►  commit(checkpoint, committables)
//!                         │ bytes in the manifest                          │ idempotent, in checkpoint order,
//!                         ▼                                                ▼ repeated after recovery
//!                      nothing is visible yet                           readers see it
//! ```

use async_trait::async_trait;
use weir_storage::{CheckpointId, JobId, Subtask};

use crate::error::Result;
use crate::message::Chunk;
use crate::time::Progress;

/// A sink as declared: creates writers (one per subtask) and one committer.
#[async_trait]
pub trait Sink: Send + Sync {
    /// A writer for one subtask. `restored` is the state that its [`SinkWriter::prepare`] returned in the
    /// checkpoint that is restored (several after a change of parallelism, none at the first start).
    async fn writer(&self, job: &JobId, subtask: Subtask, restored: Vec<Vec<u8>>) -> Result<Box<dyn SinkWriter>>;

    /// The committer, or `None` when writing is all there is (print, blackhole).
    async fn committer(&self, job: &JobId) -> Result<Option<Box<dyn SinkCommitter>>>;
}

/// What a writer hands over at a barrier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepared {
    /// To be committed once the checkpoint is durable. Each is one unit for [`SinkCommitter::commit`].
    pub committables: Vec<Vec<u8>>,
    /// The writer's own state, given back on restore.
    pub state: Vec<u8>,
}

/// Writes the rows of one subtask.
#[async_trait]
pub trait SinkWriter: Send {
    /// Resolves when rows can be written without waiting for the outside world. A writer that is held back from outside
    /// (a full buffer, a request under way) waits here rather than in [`SinkWriter::write`]: rows that it has not taken
    /// yet can go into a checkpoint, those in a write that is under way cannot. Must be cancel-safe.
    async fn ready(&mut self) -> Result<()> {
        Ok(())
    }

    /// Write changes. Nothing of it may be visible to readers before the commit.
    async fn write(&mut self, chunk: Chunk) -> Result<()>;

    /// Event time moved: what was written so far is all there is before it, late rows excepted. Most writers do not
    /// care.
    fn progress(&mut self, _progress: Progress) {}

    /// Make everything written so far durable, uncommitted.
    async fn prepare(&mut self, checkpoint: CheckpointId) -> Result<Prepared>;
}

/// Makes prepared output visible. Called in checkpoint order, from one place.
#[async_trait]
pub trait SinkCommitter: Send {
    /// Commit; must be idempotent: after a crash the same call is repeated.
    async fn commit(&mut self, checkpoint: CheckpointId, committables: Vec<Vec<u8>>) -> Result<()>;

    /// Remove uncommitted leftovers of earlier attempts. Called once after recovery, after the restored
    /// checkpoint's committables have been committed again and before any writer starts.
    async fn clean_up(&mut self) -> Result<()>;
}
