//! The task loop: takes messages from channels, runs them through a chain, sends on what comes out.
//!
//! ```text
//!   inbox ──► aligner ──► chain ──► edges or sink
//!                │
//!                └ all channels have brought a mark:  flush the epoch, take the snapshot, pass the mark on,
//!                                                     upload in the background, acknowledge
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use weir_storage::{CheckpointId, KeyedState, OperatorUid, Subtask, SubtaskState};

use crate::alignment::{Aligner, Mark, Settled};
use crate::build::SubtaskMetrics;
use crate::chain::Chain;
use crate::channel::{BlockedTime, Inbox};
use crate::error::Result;
use crate::exchange::OutputEdge;
use crate::graph::NodeIndex;
use crate::message::{Barrier, Message};
use crate::run::{Control, Run, TaskEvent, TaskId, TaskName};
use crate::sink_task::SinkEnd;
use crate::tables::{Header, frame};
use crate::time::{InputTimes, Progress};
use crate::upload::{PendingPart, PendingSnapshotOf};

/// Where what a chain emits goes.
pub(crate) enum TaskEnd {
    /// To the tasks after it; none if its last operator is read in place.
    Edges(Vec<OutputEdge>),
    /// Out.
    Sink(SinkEnd),
}

/// What every task has, whether it reads channels or a source.
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) name: TaskName,
    pub(crate) run: Arc<Run>,
    pub(crate) chain: Chain,
    pub(crate) end: TaskEnd,
    /// Keyed state of all stateful operators of the chain, and the first of them, in whose part it stands.
    pub(crate) keyed: Option<(NodeIndex, KeyedState)>,
    /// What the runtime keeps for each operator that has state.
    pub(crate) headers: BTreeMap<NodeIndex, Header>,
    pub(crate) blocked: Arc<BlockedTime>,
    pub(crate) counted_blocked: Duration,
    /// Counters and rejected rows of all of its operators.
    pub(crate) reports: Vec<SubtaskMetrics>,
}

impl Task {
    pub(crate) fn subtask(&self) -> Subtask {
        self.name.subtask
    }

    /// Whether nothing comes after this task.
    fn is_terminal(&self) -> bool {
        match &self.end {
            TaskEnd::Edges(edges) => edges.is_empty(),
            TaskEnd::Sink(_) => true,
        }
    }

    /// Sends on what the chain has emitted.
    pub(crate) async fn drain(&mut self) -> Result<()> {
        let mut emitted = self.chain.take();
        for message in emitted.drain(..) {
            match (&mut self.end, message) {
                (TaskEnd::Sink(sink), Message::Data(chunk)) => sink.write(chunk).await?,
                (TaskEnd::Sink(sink), Message::Watermark(time)) => sink.progress(Progress::Watermark(time)),
                (TaskEnd::Sink(sink), Message::Idle) => sink.progress(Progress::Idle),
                (TaskEnd::Sink(_), _) => {}
                (TaskEnd::Edges(edges), Message::Data(chunk)) => {
                    if let Some((last, others)) = edges.split_last_mut() {
                        for edge in others {
                            edge.data(chunk.clone()).await?;
                        }
                        last.data(chunk).await?;
                    }
                }
                (TaskEnd::Edges(edges), control) => send_control(edges, &control).await?,
            }
        }
        self.chain.reuse(emitted);
        self.count_blocked();
        Ok(())
    }

    async fn pass_on(&mut self, mark: Mark) -> Result<()> {
        if let TaskEnd::Edges(edges) = &mut self.end {
            let message = match mark {
                Mark::Epoch(epoch) => Message::Epoch(epoch),
                Mark::Barrier(barrier) => Message::Barrier(barrier),
            };
            send_control(edges, &message).await?;
        }
        self.count_blocked();
        if self.is_terminal() {
            self.run.tell(TaskEvent::EpochDone { task: self.id, epoch: mark.epoch() });
        }
        Ok(())
    }

    /// A mark has come from everywhere: ends the epoch and, at a barrier, takes the snapshot.
    pub(crate) async fn mark(
        &mut self,
        mark: Mark,
        alignment: Duration,
        source: impl FnOnce() -> Result<Option<(NodeIndex, serde_json::Value)>>,
    ) -> Result<()> {
        self.chain.epoch(mark.epoch())?;
        self.drain().await?;
        let snapshot = match mark {
            Mark::Epoch(_) => None,
            Mark::Barrier(barrier) => self.snapshot(barrier, alignment, source).await?,
        };
        self.pass_on(mark).await?;
        if let Some((writer, snapshot)) = snapshot {
            self.run.upload(snapshot.upload(writer, Arc::clone(&self.run)));
        }
        Ok(())
    }

    /// The synchronous part of a snapshot. None if the checkpoint is over already.
    async fn snapshot(
        &mut self,
        barrier: Barrier,
        alignment: Duration,
        source: impl FnOnce() -> Result<Option<(NodeIndex, serde_json::Value)>>,
    ) -> Result<Option<(weir_storage::CheckpointWriter, PendingSnapshotOf)>> {
        let checkpoint = barrier.checkpoint;
        let Some(writer) = self.run.writer(checkpoint) else {
            tracing::debug!(query = %self.run.query, %checkpoint, task = %self.name, "barrier of a checkpoint that is over");
            return Ok(None);
        };
        let alignment_ms = alignment.as_millis() as u64;
        tracing::debug!(query = %self.run.query, %checkpoint, task = %self.name, alignment_ms, "aligned");
        self.run.points.hit("before-snapshot")?;
        let since = Instant::now();
        let mut parts: BTreeMap<NodeIndex, PendingPart> = BTreeMap::new();
        let empty = || PendingPart::new(SubtaskState::empty(self.name.subtask));
        for (node, state) in self.chain.snapshot()? {
            let header = self.headers.get(&node).cloned().unwrap_or_default();
            parts.entry(node).or_insert_with(empty).operator_state = frame(&header, &state)?;
        }
        if let Some((node, splits)) = source()? {
            parts.entry(node).or_insert_with(empty).state.source_splits = splits;
        }
        let keyed = match &self.keyed {
            None => None,
            Some((node, keyed)) => {
                if !self.run.incremental {
                    keyed.upload_again(&|_| true);
                }
                let staging = self.run.staging.join(format!("{checkpoint}-{}", self.id.0));
                Some((*node, keyed.snapshot(&staging)?))
            }
        };
        if let TaskEnd::Sink(sink) = &mut self.end {
            let prepared = sink.prepare(checkpoint).await?;
            let part = parts.entry(prepared.node).or_insert_with(empty);
            part.state.sink_state = prepared.state.into();
            part.committables = prepared.committables;
        }
        for report in &self.reports {
            parts.entry(report.node).or_insert_with(empty).report(report, self.run.incremental)?;
        }
        let snapshot = since.elapsed();
        self.run.points.hit("after-snapshot")?;
        tracing::debug!(query = %self.run.query, %checkpoint, task = %self.name, ms = snapshot.as_millis() as u64, "snapshot");
        let (task, name) = (self.id, self.name.clone());
        Ok(Some((writer, PendingSnapshotOf { checkpoint, task, name, alignment, snapshot, parts, keyed })))
    }

    pub(crate) fn completed(&mut self, checkpoint: CheckpointId) -> Result<()> {
        if let Some((_, keyed)) = &self.keyed {
            keyed.confirm(checkpoint);
        }
        if let TaskEnd::Sink(sink) = &mut self.end {
            sink.completed(checkpoint);
        }
        for report in &self.reports {
            report.rejects.completed(checkpoint);
        }
        self.chain.checkpoint_complete(checkpoint)
    }

    /// Counts waiting for input.
    pub(crate) fn count_idle(&self, time: Duration) {
        let nanos = time.as_nanos() as u64;
        for report in &self.reports {
            report.metrics.idle_ns.fetch_add(nanos, Relaxed);
        }
    }

    fn count_blocked(&mut self) {
        let total = self.blocked.total();
        let nanos = (total - self.counted_blocked).as_nanos() as u64;
        if nanos > 0 {
            self.counted_blocked = total;
            for report in &self.reports {
                report.metrics.blocked_ns.fetch_add(nanos, Relaxed);
            }
        }
    }
}

async fn send_control(edges: &mut [OutputEdge], message: &Message) -> Result<()> {
    for edge in edges {
        edge.control(message).await?;
    }
    Ok(())
}

/// The uid of the operator in whose part the keyed state of a chain stands: its first stateful one.
pub(crate) fn keyed_header(tables: BTreeMap<String, weir_storage::TableId>, host: &OperatorUid) -> Header {
    Header { tables, keyed_with: Some(host.clone()) }
}

/// A task that reads channels.
pub(crate) struct ProcessTask {
    task: Task,
    inbox: Inbox,
    control: mpsc::UnboundedReceiver<Control>,
    aligner: Aligner,
    times: InputTimes,
    ended: Vec<bool>,
}

impl ProcessTask {
    pub(crate) fn new(task: Task, inbox: Inbox, control: mpsc::UnboundedReceiver<Control>) -> Self {
        let channels = inbox.channels().len();
        let (aligner, times) = (Aligner::new(channels), InputTimes::new(channels));
        Self { task, inbox, control, aligner, times, ended: vec![false; channels] }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self) -> Result<()> {
        loop {
            while let Ok(control) = self.control.try_recv() {
                self.on_control(control)?;
            }
            match self.inbox.try_receive(|channel| self.aligner.is_blocked(channel)) {
                Some((channel, message)) => self.on_message(channel, message).await?,
                None => {
                    let since = Instant::now();
                    let control = tokio::select! {
                        control = self.control.recv() => Some(control),
                        () = self.inbox.arrived() => None,
                    };
                    self.task.count_idle(since.elapsed());
                    match control {
                        None => {}
                        Some(Some(control)) => self.on_control(control)?,
                        // The driver is gone: the run is over.
                        Some(None) => return Ok(()),
                    }
                }
            }
            // A task whose inputs never run dry must let others run, and notice that it was cancelled.
            tokio::task::coop::consume_budget().await;
        }
    }

    fn on_control(&mut self, control: Control) -> Result<()> {
        match control {
            Control::Completed(checkpoint) => self.task.completed(checkpoint),
            _ => Ok(()),
        }
    }

    async fn on_message(&mut self, channel: usize, message: Message) -> Result<()> {
        let chain = &mut self.task.chain;
        match message {
            Message::Data(chunk) => {
                self.times.active(channel);
                let input = self.inbox.channels()[channel].id().input;
                chain.batch(input, chunk)?;
            }
            Message::Watermark(watermark) => {
                if let Some(progress) = self.times.watermark(channel, watermark) {
                    chain.progress(progress)?;
                }
            }
            Message::Idle => {
                self.times.idle(channel).into_iter().flatten().try_for_each(|progress| chain.progress(progress))?;
            }
            Message::End => {
                let all_ended = !std::mem::replace(&mut self.ended[channel], true) && self.ended.iter().all(|e| *e);
                if all_ended {
                    self.times.end().into_iter().try_for_each(|progress| chain.progress(progress))?;
                    chain.end()?;
                }
            }
            Message::Epoch(epoch) => return self.on_mark(channel, Mark::Epoch(epoch)).await,
            Message::Barrier(barrier) => return self.on_mark(channel, Mark::Barrier(barrier)).await,
        }
        self.task.drain().await
    }

    async fn on_mark(&mut self, channel: usize, mark: Mark) -> Result<()> {
        if let Mark::Barrier(barrier) = mark {
            // Whatever completed before the checkpoint was triggered is known before its snapshot is taken: only the files
            // of the newest complete one are sure to stay.
            while let Ok(control) = self.control.try_recv() {
                self.on_control(control)?;
            }
            let (query, task) = (&self.task.run.query, &self.task.name);
            let channel = self.inbox.channels()[channel].id();
            tracing::trace!(%query, checkpoint = %barrier.checkpoint, %task, %channel, "barrier");
        }
        for settled in self.aligner.arrive(channel, mark, Instant::now()) {
            match settled {
                Settled::Complete { mark, alignment } => self.task.mark(mark, alignment, || Ok(None)).await?,
                Settled::Superseded { mark: Mark::Barrier(barrier) } => {
                    let reason = format!("a later mark overtook its barrier at task \"{}\"", self.task.name);
                    let (checkpoint, task) = (barrier.checkpoint, self.task.id);
                    self.task.run.tell(TaskEvent::Declined { checkpoint, task, reason });
                }
                Settled::Superseded { mark: Mark::Epoch(_) } => {}
            }
        }
        Ok(())
    }
}
