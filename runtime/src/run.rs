//! What the tasks of one run of a job share, and what they and its driver tell each other.
//!
//! A run is the time from one start or restart of a job to its end or failure. Nothing of it outlives it: the next run
//! builds its tasks anew from the last checkpoint.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use weir_storage::{CheckpointId, CheckpointWriter, Epoch, OperatorUid, Subtask, SubtaskState};

use crate::error::RuntimeError;
use crate::fail_point::FailPoints;
use crate::graph::NodeIndex;
use crate::message::Barrier;
use crate::source::SplitState;

/// Index of a task subtask in its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaskId(pub(crate) usize);

/// A task subtask as people know it: the names of its operators and its number.
#[derive(Debug, Clone)]
pub(crate) struct TaskName {
    pub(crate) chain: Arc<str>,
    pub(crate) subtask: Subtask,
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.chain, self.subtask)
    }
}

/// What the driver tells a task. Only source tasks are told of epochs, barriers, pauses and splits: the others learn of
/// marks from their channels.
#[derive(Debug, Clone)]
pub(crate) enum Control {
    /// End the epoch.
    Epoch(Epoch),
    /// Take a checkpoint. A barrier that is the last holds the source until its checkpoint has completed (the job then
    /// ends) or was aborted.
    Barrier(Barrier),
    /// Read nothing until told to.
    Pause,
    /// Read again.
    Resume,
    /// Read no more, as if the input had ended here.
    Drain,
    /// Read these, too.
    AddSplits(Vec<SplitState>),
    /// The checkpoint is durable and its output is committed.
    Completed(CheckpointId),
    /// The checkpoint was given up.
    Aborted(CheckpointId),
}

/// What a task tells the driver.
#[derive(Debug)]
pub(crate) enum TaskEvent {
    /// Its part of a checkpoint is durable.
    Acked(Box<Ack>),
    /// Its part of a checkpoint could not be made durable.
    Declined { checkpoint: CheckpointId, task: TaskId, reason: String },
    /// An epoch has passed through it, and nothing comes after it.
    EpochDone { task: TaskId, epoch: Epoch },
    /// A source subtask has come to the end of what there was to read when it began.
    CaughtUp { task: TaskId },
    /// A source subtask has read all of its input.
    SourceEnded { task: TaskId },
    /// It failed.
    Failed { task: TaskId, error: RuntimeError },
}

/// One task subtask's part of a checkpoint.
#[derive(Debug)]
pub(crate) struct Ack {
    pub(crate) checkpoint: CheckpointId,
    pub(crate) task: TaskId,
    pub(crate) alignment: Duration,
    pub(crate) snapshot: Duration,
    pub(crate) parts: Vec<Part>,
}

/// One operator's part of it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) node: NodeIndex,
    pub(crate) state: SubtaskState,
    /// What a sink has prepared since the last checkpoint that it knows to be complete, with the checkpoint for which
    /// it did: the driver leaves out what a completed checkpoint holds already.
    pub(crate) committables: Vec<(CheckpointId, Vec<Vec<u8>>)>,
}

/// What the tasks of a run share.
pub(crate) struct Run {
    pub(crate) query: String,
    /// Of all operators, by node.
    pub(crate) uids: Vec<OperatorUid>,
    pub(crate) events: mpsc::UnboundedSender<TaskEvent>,
    /// Below it, uploads keep the files of their snapshots.
    pub(crate) staging: PathBuf,
    /// Whether a checkpoint uses what earlier ones have uploaded.
    pub(crate) incremental: bool,
    /// Where uploads run.
    pub(crate) io: Handle,
    pub(crate) points: FailPoints,
    open: Mutex<HashMap<CheckpointId, Open>>,
    uploads: Mutex<JoinSet<()>>,
}

/// A checkpoint in progress.
struct Open {
    writer: CheckpointWriter,
    overtakes_at: Instant,
}

impl Run {
    pub(crate) fn new(
        query: String,
        uids: Vec<OperatorUid>,
        events: mpsc::UnboundedSender<TaskEvent>,
        staging: PathBuf,
        incremental: bool,
        points: FailPoints,
    ) -> Self {
        let (open, uploads) = (Mutex::default(), Mutex::default());
        Self { query, uids, events, staging, incremental, io: Handle::current(), points, open, uploads }
    }

    /// Tells the driver. Once it is gone the run is over, and the task will be cancelled.
    pub(crate) fn tell(&self, event: TaskEvent) {
        let _ = self.events.send(event);
    }

    /// Tasks may take their snapshots of a checkpoint from now on. If its barriers may overtake, they do so from
    /// `overtakes_at` on: one moment for all tasks, by a clock that nobody sets.
    pub(crate) fn open(&self, writer: CheckpointWriter, overtakes_at: Instant) {
        self.open.lock().insert(writer.checkpoint(), Open { writer, overtakes_at });
    }

    /// From when on the barriers of `checkpoint` overtake; none if it is not in progress.
    pub(crate) fn overtakes_at(&self, checkpoint: CheckpointId) -> Option<Instant> {
        self.open.lock().get(&checkpoint).map(|open| open.overtakes_at)
    }

    /// The checkpoint is over: a task that its barrier reaches later only passes it on.
    pub(crate) fn close(&self, checkpoint: CheckpointId) -> Option<CheckpointWriter> {
        self.open.lock().remove(&checkpoint).map(|open| open.writer)
    }

    /// Where the data of `checkpoint` goes, while it is in progress.
    pub(crate) fn writer(&self, checkpoint: CheckpointId) -> Option<CheckpointWriter> {
        self.open.lock().get(&checkpoint).map(|open| open.writer.clone())
    }

    /// Runs an upload in the background.
    pub(crate) fn upload(&self, upload: impl Future<Output = ()> + Send + 'static) {
        let mut uploads = self.uploads.lock();
        while uploads.try_join_next().is_some() {}
        uploads.spawn_on(upload, &self.io);
    }

    /// Stops all uploads and waits until they have.
    pub(crate) async fn shut_down(&self) {
        let mut uploads = std::mem::take(&mut *self.uploads.lock());
        uploads.shutdown().await;
        self.open.lock().clear();
    }
}
