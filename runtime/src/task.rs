//! What tasks have in common: a chain of operators, where what it emits goes, and its part of a checkpoint.
//!
//! ```text
//!   input ──► chain ──► edges or sink          before it takes up more input, a task waits until its edges have room
//!     │                                        and its sink has written ([`Task::freed`])
//!     └ a mark:     flush the epoch, take the snapshot, pass the mark on, upload in the background, acknowledge
//!     └ a barrier that may overtake:  pass it on, take the snapshot as things are; rows in flight go with it
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use weir_storage::{CheckpointId, Epoch, KeyedState, OperatorUid, Subtask, SubtaskState};

use crate::alignment::Mark;
use crate::build::SubtaskMetrics;
use crate::chain::Chain;
use crate::channel::{BlockedTime, ChannelId, Endpoint, Room};
use crate::error::Result;
use crate::exchange::OutputEdge;
use crate::graph::NodeIndex;
use crate::in_flight::InFlight;
use crate::message::{Barrier, Chunk, Message};
use crate::run::{Run, TaskEvent, TaskId, TaskName};
use crate::sink_task::SinkEnd;
use crate::tables::{Header, frame};
use crate::time::Progress;
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
    /// Its first operator, in whose part of a checkpoint the rows in flight stand.
    pub(crate) first: NodeIndex,
    pub(crate) chain: Chain,
    pub(crate) end: TaskEnd,
    /// Room in the channels that it sends to.
    pub(crate) room: Arc<Room>,
    /// Rows in flight of the checkpoint that was restored: taken up before any input.
    pub(crate) recovered: VecDeque<(ChannelId, Chunk)>,
    /// The operator from which the sink gets its rows, if there is a sink.
    pub(crate) before_sink: Option<NodeIndex>,
    /// An epoch that has passed as soon as the sink has written.
    pub(crate) passing: Option<Epoch>,
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

    /// Whether more input may be taken: all outputs have room, and the sink has nothing left to write.
    pub(crate) fn may_take(&self) -> bool {
        self.room.is_there() && !self.sink_writes()
    }

    fn sink_writes(&self) -> bool {
        matches!(&self.end, TaskEnd::Sink(sink) if sink.is_writing())
    }

    /// Waits for what comes after: for room in the outputs, or for the sink to be ready for rows. Cancel-safe.
    pub(crate) async fn freed(&mut self) -> Result<()> {
        match &mut self.end {
            TaskEnd::Sink(sink) if sink.is_writing() => sink.ready().await,
            _ => {
                self.room.freed().await;
                Ok(())
            }
        }
    }

    /// Writes a piece of what waits for a sink that is ready.
    pub(crate) async fn write(&mut self) -> Result<()> {
        if let TaskEnd::Sink(sink) = &mut self.end {
            sink.write_piece().await?;
        }
        self.count_blocked();
        self.tell_passed();
        Ok(())
    }

    async fn write_all(&mut self) -> Result<()> {
        if let TaskEnd::Sink(sink) = &mut self.end {
            sink.write_all().await?;
        }
        self.count_blocked();
        Ok(())
    }

    /// Takes up rows that were in flight.
    pub(crate) fn recover(&mut self, channel: ChannelId, chunk: Chunk) -> Result<()> {
        match &mut self.end {
            TaskEnd::Sink(sink) if sink.node() == channel.to.node => sink.push(chunk),
            _ => self.chain.batch_into(channel.to.node, channel.input, chunk)?,
        }
        self.drain()
    }

    /// Sends on what the chain has emitted.
    pub(crate) fn drain(&mut self) -> Result<()> {
        let mut emitted = self.chain.take();
        for message in emitted.drain(..) {
            match (&mut self.end, message) {
                (TaskEnd::Sink(sink), Message::Data(chunk)) => sink.push(chunk),
                (TaskEnd::Sink(sink), Message::Watermark(time)) => sink.progress(Progress::Watermark(time)),
                (TaskEnd::Sink(sink), Message::Idle) => sink.progress(Progress::Idle),
                (TaskEnd::Sink(_), _) => {}
                (TaskEnd::Edges(edges), Message::Data(chunk)) => {
                    if let Some((last, others)) = edges.split_last_mut() {
                        for edge in others {
                            edge.data(chunk.clone())?;
                        }
                        last.data(chunk)?;
                    }
                }
                (TaskEnd::Edges(edges), control) => send_control(edges, &control)?,
            }
        }
        self.chain.reuse(emitted);
        Ok(())
    }

    fn pass_on(&mut self, mark: Mark) -> Result<()> {
        if let TaskEnd::Edges(edges) = &mut self.end {
            let message = match mark {
                Mark::Epoch(epoch) => Message::Epoch(epoch),
                Mark::Barrier(barrier) => Message::Barrier(barrier),
            };
            send_control(edges, &message)?;
        }
        if self.is_terminal() {
            self.passing = Some(mark.epoch());
            self.tell_passed();
        }
        Ok(())
    }

    /// Tells of an epoch that has passed through.
    fn tell_passed(&mut self) {
        if !self.sink_writes()
            && let Some(epoch) = self.passing.take()
        {
            self.run.tell(TaskEvent::EpochDone { task: self.id, epoch });
        }
    }

    /// A mark has come from everywhere: ends the epoch and, at a barrier, takes the snapshot.
    pub(crate) async fn mark(
        &mut self,
        mark: Mark,
        alignment: Duration,
        source: impl FnOnce() -> Result<Option<(NodeIndex, serde_json::Value)>>,
    ) -> Result<()> {
        self.chain.epoch(mark.epoch())?;
        self.drain()?;
        if let TaskEnd::Sink(sink) = &mut self.end {
            sink.end_epoch();
        }
        let snapshot = match mark {
            Mark::Epoch(_) => None,
            Mark::Barrier(barrier) => {
                self.write_all().await?;
                self.snapshot(barrier, source).await?
            }
        };
        self.pass_on(mark)?;
        if let Some((writer, mut snapshot)) = snapshot {
            snapshot.alignment = alignment;
            self.run.upload(snapshot.upload(writer, Arc::clone(&self.run)));
        }
        Ok(())
    }

    /// A barrier that may overtake: passes it on and takes the snapshot as things are, within the epoch. Rows in flight
    /// that this task holds itself are in the answer. None if the checkpoint is over.
    pub(crate) async fn overtake(
        &mut self,
        barrier: Barrier,
        source: impl FnOnce() -> Result<Option<(NodeIndex, serde_json::Value)>>,
    ) -> Result<Option<(weir_storage::CheckpointWriter, PendingSnapshotOf)>> {
        if self.run.writer(barrier.checkpoint).is_none() {
            return Ok(None);
        }
        match &mut self.end {
            TaskEnd::Edges(edges) => send_control(edges, &Message::Barrier(barrier))?,
            TaskEnd::Sink(sink) if !sink.may_be_overtaken() => self.write_all().await?,
            TaskEnd::Sink(_) => {}
        }
        self.tell_passed();
        let Some((writer, mut snapshot)) = self.snapshot(barrier, source).await? else { return Ok(None) };
        // Before what may come behind it: what is nearer to the sink was sent earlier.
        if let TaskEnd::Sink(sink) = &self.end {
            let end = |node| Endpoint { node, subtask: self.name.subtask };
            let from = self.before_sink.unwrap_or_default();
            let channel = ChannelId { from: end(from), to: end(sink.node()), input: 0 };
            snapshot.in_flight.push(InFlight { channel, chunks: sink.in_flight() });
        }
        for (channel, chunk) in &self.recovered {
            match snapshot.in_flight.last_mut() {
                Some(last) if last.channel == *channel => last.chunks.push(chunk.clone()),
                _ => snapshot.in_flight.push(InFlight { channel: *channel, chunks: vec![chunk.clone()] }),
            }
        }
        Ok(Some((writer, snapshot)))
    }

    /// The synchronous part of a snapshot. None if the checkpoint is over already.
    async fn snapshot(
        &mut self,
        barrier: Barrier,
        source: impl FnOnce() -> Result<Option<(NodeIndex, serde_json::Value)>>,
    ) -> Result<Option<(weir_storage::CheckpointWriter, PendingSnapshotOf)>> {
        let checkpoint = barrier.checkpoint;
        let Some(writer) = self.run.writer(checkpoint) else {
            tracing::debug!(query = %self.run.query, %checkpoint, task = %self.name, "barrier of a checkpoint that is over");
            return Ok(None);
        };
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
        Ok(Some((
            writer,
            PendingSnapshotOf {
                checkpoint,
                task,
                name,
                first: self.first,
                alignment: Duration::ZERO,
                snapshot,
                parts,
                keyed,
                in_flight: Vec::new(),
            },
        )))
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

    /// Counts waiting, for what comes after or for input.
    pub(crate) fn count_wait(&mut self, held_back: bool, waited: Duration) {
        if held_back { self.count_held_back(waited) } else { self.count_idle(waited) }
    }

    fn count_idle(&self, time: Duration) {
        let nanos = time.as_nanos() as u64;
        for report in &self.reports {
            report.metrics.idle_ns.fetch_add(nanos, Relaxed);
        }
    }

    fn count_held_back(&mut self, time: Duration) {
        self.blocked.add(time);
        self.count_blocked();
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

fn send_control(edges: &mut [OutputEdge], message: &Message) -> Result<()> {
    edges.iter_mut().try_for_each(|edge| edge.control(message))
}

/// The uid of the operator in whose part the keyed state of a chain stands: its first stateful one.
pub(crate) fn keyed_header(tables: BTreeMap<String, weir_storage::TableId>, host: &OperatorUid) -> Header {
    Header { tables, keyed_with: Some(host.clone()) }
}
