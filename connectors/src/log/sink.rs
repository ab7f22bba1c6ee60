//! Writes a query's result into its relation's log: staged before the checkpoint, published after it.

use std::sync::Arc;

use async_trait::async_trait;
use weir_runtime::message::Chunk;
use weir_runtime::sink::{Prepared, Sink, SinkCommitter, SinkWriter};
use weir_runtime::{Result, RuntimeError};
use weir_storage::{CheckpointId, Fence, JobId, Log, LogBatch, LogPart, Subtask};

/// Rows are made durable when so many bytes of them wait, rather than all at the barrier.
const STAGE_BYTES: usize = 8 << 20;

/// A relation's log as a sink.
pub struct LogSink {
    log: Log,
    fence: Arc<Fence>,
}

impl LogSink {
    /// Writes to `log` as long as `fence` holds.
    pub fn new(log: Log, fence: Arc<Fence>) -> Self {
        Self { log, fence }
    }
}

#[async_trait]
impl Sink for LogSink {
    async fn writer(&self, job: &JobId, subtask: Subtask, restored: Vec<Vec<u8>>) -> Result<Box<dyn SinkWriter>> {
        let last = restored.iter().filter_map(|state| serde_json::from_slice::<CheckpointId>(state).ok()).max();
        Ok(Box::new(LogWriter {
            log: self.log.clone(),
            job: job.clone(),
            subtask,
            next: last.unwrap_or_default().next(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            staged: Vec::new(),
        }))
    }

    async fn committer(&self, job: &JobId) -> Result<Option<Box<dyn SinkCommitter>>> {
        let committer =
            LogCommitter { log: self.log.clone(), fence: Arc::clone(&self.fence), job: job.clone(), last: None };
        Ok(Some(Box::new(committer)))
    }
}

struct LogWriter {
    log: Log,
    job: JobId,
    subtask: Subtask,
    /// The checkpoint that what is staged now will most likely belong to; names the objects, nothing else.
    next: CheckpointId,
    waiting: Vec<LogBatch>,
    waiting_bytes: usize,
    staged: Vec<LogPart>,
}

impl LogWriter {
    async fn stage(&mut self, checkpoint: CheckpointId) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let parts = self.log.stage(&self.job, checkpoint, self.subtask, &self.waiting).await?;
        self.staged.extend(parts);
        self.waiting.clear();
        self.waiting_bytes = 0;
        Ok(())
    }
}

#[async_trait]
impl SinkWriter for LogWriter {
    async fn write(&mut self, chunk: Chunk) -> Result<()> {
        self.waiting_bytes += chunk.memory_size();
        let (batch, ops) = chunk.into_parts();
        self.waiting.push((batch, ops.map(|ops| ops.as_ref().clone())));
        if self.waiting_bytes >= STAGE_BYTES {
            self.stage(self.next).await?;
        }
        Ok(())
    }

    async fn prepare(&mut self, checkpoint: CheckpointId) -> Result<Prepared> {
        self.stage(checkpoint).await?;
        self.next = checkpoint.next();
        let json = |e: serde_json::Error| RuntimeError::Internal { place: "log sink", reason: e.to_string() };
        let committables =
            std::mem::take(&mut self.staged).iter().map(serde_json::to_vec).collect::<Result<_, _>>().map_err(json)?;
        Ok(Prepared { committables, state: serde_json::to_vec(&checkpoint).map_err(json)? })
    }
}

struct LogCommitter {
    log: Log,
    fence: Arc<Fence>,
    job: JobId,
    last: Option<CheckpointId>,
}

#[async_trait]
impl SinkCommitter for LogCommitter {
    async fn commit(&mut self, checkpoint: CheckpointId, committables: Vec<Vec<u8>>) -> Result<()> {
        let parts = committables.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<Vec<LogPart>, _>>();
        let parts = parts.map_err(|e| RuntimeError::Internal {
            place: "log sink",
            reason: format!("what checkpoint {checkpoint} would publish cannot be read: {e}"),
        })?;
        self.log.publish(&self.fence, (self.job.clone(), checkpoint), parts).await?;
        self.last = Some(checkpoint);
        Ok(())
    }

    async fn clean_up(&mut self) -> Result<()> {
        // Without a commit before it nothing tells which staged objects an entry refers to: leaving some costs only space.
        if let Some(last) = self.last {
            self.log.discard_staged(&self.job, last).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use weir_storage::{LogSeq, OwnerInfo, Store};

    use super::*;

    #[tokio::test]
    async fn a_commit_that_is_repeated_publishes_once() {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let fence = Arc::new(Fence::acquire(&store, OwnerInfo::current()).await.unwrap());
        let log = Log::new(&store, "v");
        let sink = LogSink::new(log.clone(), fence);
        let job = JobId("v-1".into());
        let mut writer = sink.writer(&job, Subtask(0), Vec::new()).await.unwrap();
        let rows = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]).unwrap();
        writer.write(Chunk::insert(rows)).await.unwrap();
        let prepared = writer.prepare(CheckpointId(1)).await.unwrap();
        assert_eq!(log.head().await.unwrap(), LogSeq(0), "nothing is visible before the commit");
        for _ in 0..2 {
            let mut committer = sink.committer(&job).await.unwrap().unwrap();
            committer.commit(CheckpointId(1), prepared.committables.clone()).await.unwrap();
            committer.clean_up().await.unwrap();
        }
        assert_eq!(log.head().await.unwrap(), LogSeq(1));
        let (meta, batches) = log.read(LogSeq(1)).await.unwrap().unwrap();
        assert_eq!((meta.rows, batches.len()), (2, 1));
    }
}
