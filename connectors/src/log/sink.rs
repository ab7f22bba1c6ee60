//! Writes a query's result into its relation's log: staged before the checkpoint, published after it.

use std::sync::Arc;

use async_trait::async_trait;
use weir_runtime::message::Chunk;
use weir_runtime::sink::{Prepared, Sink, SinkCommitter, SinkWriter};
use weir_runtime::time::Progress;
use weir_runtime::{Result, RuntimeError};
use weir_storage::{CheckpointId, Fence, JobId, Log, LogBatch, LogPart, Subtask};

use super::time::{Piece, SubtaskTime, watermark_of};

/// Rows are made durable when so many bytes of them wait, rather than all at the barrier.
const STAGE_BYTES: usize = 8 << 20;

/// A relation's log as a sink.
pub struct LogSink {
    log: Log,
    fence: Arc<Fence>,
    event_time: bool,
}

impl LogSink {
    /// Writes to `log` as long as `fence` holds.
    pub fn new(log: Log, fence: Arc<Fence>) -> Self {
        Self { log, fence, event_time: false }
    }

    /// Whether event time goes out with the rows.
    #[must_use]
    pub fn with_event_time(mut self, event_time: bool) -> Self {
        self.event_time = event_time;
        self
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
            time: self.event_time.then(|| SubtaskTime::new(subtask)),
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
    /// How far event time has come, if it goes out with the rows.
    time: Option<SubtaskTime>,
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
        self.time.iter_mut().for_each(SubtaskTime::active);
        self.waiting_bytes += chunk.memory_size();
        let (batch, ops) = chunk.into_parts();
        self.waiting.push((batch, ops.map(|ops| ops.as_ref().clone())));
        if self.waiting_bytes >= STAGE_BYTES {
            self.stage(self.next).await?;
        }
        Ok(())
    }

    fn progress(&mut self, progress: Progress) {
        self.time.iter_mut().for_each(|time| time.progress(progress));
    }

    async fn prepare(&mut self, checkpoint: CheckpointId) -> Result<Prepared> {
        self.stage(checkpoint).await?;
        self.next = checkpoint.next();
        let json = |e: serde_json::Error| RuntimeError::Internal { place: "log sink", reason: e.to_string() };
        // Every subtask tells its time at every barrier, moved or not: the earliest of all counts.
        let rows = std::mem::take(&mut self.staged).into_iter().map(Piece::Rows);
        let pieces = rows.chain(self.time.map(Piece::Time));
        let committables = pieces.map(|piece| serde_json::to_vec(&piece)).collect::<Result<_, _>>().map_err(json)?;
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
        let (mut parts, mut times) = (Vec::new(), Vec::new());
        for bytes in &committables {
            match serde_json::from_slice(bytes) {
                Ok(Piece::Rows(part)) => parts.push(part),
                Ok(Piece::Time(time)) => times.push(time),
                Err(e) => {
                    return Err(RuntimeError::Internal {
                        place: "log sink",
                        reason: format!("what checkpoint {checkpoint} would publish cannot be read: {e}"),
                    });
                }
            }
        }
        let watermark = watermark_of(times).map(|time| time.0);
        self.log.publish(&self.fence, (self.job.clone(), checkpoint), parts, watermark).await?;
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
    use weir_runtime::message::EventTime;
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

    #[tokio::test]
    async fn event_time_goes_out_with_the_rows_and_alone_only_when_it_moved() {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let fence = Arc::new(Fence::acquire(&store, OwnerInfo::current()).await.unwrap());
        let log = Log::new(&store, "v");
        let sink = LogSink::new(log.clone(), fence).with_event_time(true);
        let job = JobId("v-1".into());
        let mut writers = Vec::new();
        for subtask in 0..2 {
            writers.push(sink.writer(&job, Subtask(subtask), Vec::new()).await.unwrap());
        }
        let mut committer = sink.committer(&job).await.unwrap().unwrap();
        let mut checkpoint = CheckpointId(0);
        let mut commit = async |writers: &mut Vec<Box<dyn SinkWriter>>| {
            checkpoint = checkpoint.next();
            let mut pieces = Vec::new();
            for writer in writers {
                pieces.extend(writer.prepare(checkpoint).await.unwrap().committables);
            }
            committer.commit(checkpoint, pieces).await.unwrap();
            let head = log.head().await.unwrap();
            let entry = if head.0 == 0 { None } else { log.read(head).await.unwrap() };
            (head.0, entry.map(|(meta, _)| (meta.rows, meta.watermark)))
        };
        let at = |time: i64| Progress::Watermark(EventTime(time));
        let rows = || {
            let ids = Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef;
            Chunk::insert(RecordBatch::try_from_iter([("n", ids)]).unwrap())
        };
        writers[0].progress(at(50));
        assert_eq!(commit(&mut writers).await, (0, None), "the other has told nothing yet");
        writers[1].progress(at(30));
        assert_eq!(commit(&mut writers).await, (1, Some((0, Some(30)))));
        assert_eq!(commit(&mut writers).await.0, 1, "nothing moved");
        writers[0].write(rows()).await.unwrap();
        writers[0].progress(at(60));
        assert_eq!(commit(&mut writers).await, (2, Some((2, Some(30)))));
        writers[1].progress(Progress::Idle);
        assert_eq!(commit(&mut writers).await, (3, Some((0, Some(60)))));
        writers[1].write(rows()).await.unwrap();
        assert_eq!(commit(&mut writers).await, (4, Some((2, Some(60)))), "it does not go back");
        writers.iter_mut().for_each(|writer| writer.progress(Progress::Watermark(EventTime::MAX)));
        assert_eq!(commit(&mut writers).await, (5, Some((0, Some(i64::MAX)))));
    }
}
