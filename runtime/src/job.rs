//! Jobs: a graph that runs, takes checkpoints, fails and is started again from the last one.
//!
//! ```text
//!   Created ─► Restoring ─► Running ⇄ Paused ─► Finished   all input read, last checkpoint committed
//!                  ▲           │        │  └──► Stopped    somebody asked
//!                  └ Restarting ◄───────┘ failure, after a growing delay     Failed: no restart can help
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use weir_storage::{CheckpointId, CheckpointInfo, Fence, JobId, StateResources, Store};

use crate::error::{Result, RuntimeError};
use crate::fail_point::FailPoints;
use crate::graph::{Graph, Resolver};
use crate::metrics::OperatorMetricsSnapshot;
use crate::options::{CheckpointOptions, RestartPolicy};
use crate::pins::{Pin, Pins};
use crate::rejects::RejectedRows;
use crate::supervisor::{Command, Shared, Supervisor};
use crate::view::ViewHandle;

/// What a job is.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// Its lineage: where its checkpoints are.
    pub id: JobId,
    /// The query's name.
    pub name: String,
    /// The query's text, kept in every checkpoint.
    pub sql: String,
    /// What runs.
    pub graph: Graph,
    /// How checkpoints are taken.
    pub checkpointing: CheckpointOptions,
    /// Time from one epoch to the next: how old what a reader sees may be.
    pub epoch_interval: Duration,
    /// Bytes of rows that a channel holds.
    pub channel_bytes: usize,
    /// When a failed job is started again.
    pub restart: RestartPolicy,
    /// Whether it begins paused.
    pub paused: bool,
}

/// Finds the doors through which materializations are read.
pub trait Views: Send + Sync {
    /// The view called `relation`; none if nobody can read it.
    fn view(&self, relation: &str) -> Option<Arc<ViewHandle>>;
}

/// What a job runs with.
#[derive(Clone)]
pub struct JobServices {
    /// Where everything durable is.
    pub store: Store,
    /// Proof that this process owns the store.
    pub fence: Arc<Fence>,
    /// Memory of keyed state.
    pub state: StateResources,
    /// Local directory of keyed state, for all jobs.
    pub state_dir: PathBuf,
    /// Opens sources and sinks.
    pub resolver: Arc<dyn Resolver>,
    /// Finds views.
    pub views: Arc<dyn Views>,
    /// Checkpoints that are being copied.
    pub pins: Pins,
    /// Where tasks run, apart from whatever does I/O.
    pub cpu: tokio::runtime::Handle,
}

/// What a job is doing.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum JobStatus {
    /// Not begun.
    Created,
    /// Reading its last checkpoint and building its tasks.
    Restoring,
    /// Running.
    Running,
    /// Reading nothing, on request.
    Paused,
    /// Failed, to be started again.
    Restarting {
        /// Number of the next attempt, counted from 1 since it was last healthy.
        attempt: u32,
        /// Why it failed.
        reason: String,
        /// When, in milliseconds since 1970.
        since_ms: i64,
        /// When it will be started, in milliseconds since 1970.
        next_try_ms: i64,
    },
    /// All input has been read and its last checkpoint is committed.
    Finished,
    /// Given up.
    Failed {
        /// Why.
        reason: String,
    },
    /// Stopped on request; it can be spawned again and goes on from its last checkpoint.
    Stopped,
}

impl JobStatus {
    /// Whether nothing follows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Finished | Self::Failed { .. } | Self::Stopped)
    }
}

/// How a job is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// After one more checkpoint, so that nothing is read twice when it is started again.
    WithCheckpoint,
    /// After its input was taken to have ended: event time goes to the end of time, windows close, and what comes of
    /// that is committed with the last checkpoint. The job is then finished.
    Drain,
    /// At once. Output since the last checkpoint is dropped and made again when it is started again.
    Now,
}

/// A completed checkpoint that stays as long as this does.
#[derive(Debug)]
pub struct PinnedCheckpoint {
    /// The checkpoint.
    pub info: CheckpointInfo,
    /// What keeps it.
    pub pin: Pin,
}

/// What became of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum CheckpointState {
    /// Its barriers are under way, or its data is being written.
    InProgress,
    /// It is durable and its output is committed.
    Completed(CheckpointInfo),
    /// It was given up.
    Failed {
        /// Why, and what to do about it.
        reason: String,
    },
}

/// A checkpoint that was triggered.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CheckpointRecord {
    /// Its number.
    pub id: CheckpointId,
    /// When, in milliseconds since 1970.
    pub triggered_at_ms: i64,
    /// What became of it.
    pub state: CheckpointState,
}

/// Starts a job. It goes on from the latest checkpoint of `spec.id`, if there is one, and is started again whenever it
/// fails. Must be called within a Tokio runtime, which does its I/O.
///
/// The job stops at once when the last handle is dropped.
pub fn spawn(spec: JobSpec, services: JobServices) -> JobHandle {
    spawn_with(spec, services, FailPoints::default())
}

pub(crate) fn spawn_with(spec: JobSpec, services: JobServices, points: FailPoints) -> JobHandle {
    let (commands, receiver) = tokio::sync::mpsc::unbounded_channel();
    let shared = Arc::new(Shared::new(spec));
    tokio::spawn(Box::pin(Supervisor::new(Arc::clone(&shared), services, receiver, points).run()));
    JobHandle { shared, commands }
}

/// A running job.
#[derive(Debug, Clone)]
pub struct JobHandle {
    shared: Arc<Shared>,
    commands: tokio::sync::mpsc::UnboundedSender<Command>,
}

impl JobHandle {
    /// Its lineage.
    #[must_use]
    pub fn id(&self) -> &JobId {
        &self.shared.spec.id
    }

    /// The query's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.spec.name
    }

    /// Follows what it is doing.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<JobStatus> {
        self.shared.status.subscribe()
    }

    /// Takes a checkpoint now, or as soon as the job is restored. Fails while the job waits for its restart.
    pub async fn checkpoint(&self) -> Result<CheckpointInfo> {
        self.pinned_checkpoint().await.map(|pinned| pinned.info)
    }

    /// The same, with the checkpoint kept from clean-up.
    pub async fn pinned_checkpoint(&self) -> Result<PinnedCheckpoint> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Checkpoint(reply));
        answer.await.unwrap_or_else(|_| Err(self.over()))
    }

    /// Ends an epoch now and waits until readers see it: what sources had handed over before the call is then visible.
    pub async fn flush(&self) -> Result<()> {
        let (reply, done) = oneshot::channel();
        let _ = self.commands.send(Command::Flush(reply));
        done.await.map_err(|_| self.over())
    }

    /// Stops reading; checkpoints still pass. Kept over restarts of the job.
    pub async fn pause(&self) {
        let (reply, done) = oneshot::channel();
        let _ = self.commands.send(Command::Pause(reply));
        let _ = done.await;
    }

    /// Reads again.
    pub async fn resume(&self) {
        let (reply, done) = oneshot::channel();
        let _ = self.commands.send(Command::Resume(reply));
        let _ = done.await;
    }

    /// Stops the job; answers the checkpoint that it stopped with. A job that is not running has none but its last. If
    /// the checkpoint fails, so does this, and the job goes on.
    pub async fn stop(&self, mode: StopMode) -> Result<Option<CheckpointInfo>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Stop(mode, reply));
        // The answer comes before the tasks are gone.
        let stopped = answer.await.unwrap_or(Ok(None))?;
        self.finished().await;
        Ok(stopped)
    }

    /// Counters of all subtasks. Rows are counted from the job's creation on, time from the start of the present run.
    #[must_use]
    pub fn metrics(&self) -> Vec<OperatorMetricsSnapshot> {
        let snapshot = |subtask: &crate::build::SubtaskMetrics| {
            let node = &self.shared.spec.graph.nodes[subtask.node];
            subtask.metrics.snapshot(&node.uid.0, &node.name, subtask.subtask.0)
        };
        self.shared.metrics.lock().iter().map(snapshot).collect()
    }

    /// The newest late and bad rows of all subtasks, oldest first.
    #[must_use]
    pub fn rejected(&self) -> RejectedRows {
        let mut rows = RejectedRows::default();
        for subtask in self.shared.metrics.lock().iter() {
            subtask.rejects.read(&self.shared.spec.graph.nodes[subtask.node].uid, &mut rows);
        }
        rows.late.sort_by_key(|(_, row)| row.seen_at_us);
        rows.bad.sort_by_key(|row| row.seen_at_us);
        rows
    }

    /// What runs.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.shared.spec.graph
    }

    /// The latest checkpoints, oldest first.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<CheckpointRecord> {
        self.shared.records.lock().iter().cloned().collect()
    }

    /// Resolves when the job is over.
    pub async fn finished(&self) -> JobStatus {
        let mut status = self.shared.status.subscribe();
        match status.wait_for(JobStatus::is_over).await {
            Ok(status) => status.clone(),
            // The sender is in what this handle shares.
            Err(_) => JobStatus::Stopped,
        }
    }

    fn over(&self) -> RuntimeError {
        RuntimeError::Checkpoint {
            query: self.shared.spec.name.clone(),
            reason: "it has ended; its last checkpoint is complete".to_owned(),
        }
    }
}
