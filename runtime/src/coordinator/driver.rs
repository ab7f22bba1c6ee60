//! Drives one run of a job: starts its tasks, ticks epochs, tells the coordinator what happened, and ends the run.

mod actions;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use weir_storage::{CheckpointId, CheckpointInfo, Epoch, JobStore, Manifest, Subtask};

use super::manifest::committables;
use super::{Coordinator, Event, Ticket};
use crate::build::{BuiltTask, RunningSource};
use crate::error::{Result, RuntimeError};
use crate::fail_point::FailPoints;
use crate::graph::{Graph, NodeIndex};
use crate::job::{CheckpointState, JobServices, JobStatus, PinnedCheckpoint, StopMode};
use crate::run::{Ack, Control, Run, TaskEvent, TaskId, TaskName};
use crate::sink::SinkCommitter;
use crate::source::SplitState;
use crate::supervisor::{Command, Lineage, Restored, Shared};

/// Epochs that may be under way at a time; while so many are, sources are not asked to end another.
const EPOCHS_IN_FLIGHT: usize = 2;

/// The committers of a job's sinks.
pub(crate) type Committers = BTreeMap<NodeIndex, Box<dyn SinkCommitter>>;

/// Commits what `manifest` holds. Repeating it changes nothing.
pub(crate) async fn commit(
    committers: &mut Committers,
    manifest: &Manifest,
    graph: &Graph,
    points: &FailPoints,
) -> Result<()> {
    for (node, bytes) in committables(manifest, graph) {
        if let Some(committer) = committers.get_mut(&node) {
            points.hit("before-sink-commit")?;
            committer.commit(manifest.checkpoint, bytes).await?;
            points.hit("after-sink-commit")?;
        }
    }
    Ok(())
}

/// How a run ended.
pub(crate) enum Outcome {
    Finished,
    Stopped,
    Failed(RuntimeError),
}

/// What a job in the background has done.
enum Done {
    Manifest(CheckpointId, Result<(Arc<Manifest>, CheckpointInfo)>),
    Committed(CheckpointId, Result<Duration>),
    CleanedUp,
    Discovered(NodeIndex, Result<Vec<SplitState>>),
}

struct RunningTask {
    name: TaskName,
    is_source: bool,
    is_terminal: bool,
    control: mpsc::UnboundedSender<Control>,
    handle: JoinHandle<()>,
}

/// A checkpoint whose parts are being collected.
struct Collecting {
    epoch: Epoch,
    unaligned: bool,
    triggered_at_ms: i64,
    since: Instant,
    acks: Vec<Ack>,
}

/// Whom to answer.
enum Reply {
    Checkpoint(oneshot::Sender<Result<PinnedCheckpoint>>),
    Stop(oneshot::Sender<Result<Option<CheckpointInfo>>>),
}

/// Which epochs have passed through every task after which nothing comes.
struct Epochs {
    sent: Vec<Epoch>,
    reached: HashMap<TaskId, Epoch>,
    /// Who waits until an epoch has passed.
    waiting: Vec<(Epoch, oneshot::Sender<()>)>,
}

impl Epochs {
    fn passed(&mut self, task: TaskId, epoch: Epoch) {
        if let Some(reached) = self.reached.get_mut(&task) {
            *reached = epoch.max(*reached);
        }
        let all = self.reached.values().copied().min();
        self.sent.retain(|epoch| Some(*epoch) > all);
        for (_, reply) in self.waiting.extract_if(.., |(epoch, _)| Some(*epoch) <= all) {
            let _ = reply.send(());
        }
    }
}

/// See the module.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    services: JobServices,
    store: JobStore,
    run: Arc<Run>,
    events: mpsc::UnboundedReceiver<TaskEvent>,
    tasks: Vec<RunningTask>,
    unstarted: Vec<BuiltTask>,
    sources: BTreeMap<NodeIndex, RunningSource>,
    discoveries: BTreeMap<NodeIndex, Instant>,
    sources_running: usize,
    /// Source tasks that have not yet come to the end of what there was to read.
    behind: BTreeSet<TaskId>,
    committers: Arc<Mutex<Committers>>,
    /// Complete checkpoints that are kept, oldest first.
    retained: BTreeMap<CheckpointId, Arc<Manifest>>,
    collecting: HashMap<CheckpointId, Collecting>,
    infos: HashMap<CheckpointId, CheckpointInfo>,
    replies: HashMap<Ticket, Reply>,
    tickets: u64,
    epochs: Epochs,
    /// Manifests and commits: waited for even when the run fails.
    io: JoinSet<Done>,
    background: JoinSet<Done>,
    cleaning_up: bool,
    next_clean_up: Option<(Vec<CheckpointId>, Option<CheckpointId>)>,
    /// Restored from the last checkpoint of a job that had read everything.
    was_finished: bool,
    built_paused: bool,
    /// Who waits until what was read has gone through and the job is finished.
    draining: Vec<oneshot::Sender<Result<Option<CheckpointInfo>>>>,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, services: JobServices, store: JobStore, restored: Restored) -> Self {
        let Restored { run, events, built, committers, retained, paused } = restored;
        *shared.metrics.lock() = built.metrics;
        let now = Instant::now();
        let discovery = |(node, source): (&NodeIndex, &RunningSource)| {
            source.source.discovery_interval().map(|interval| (*node, now + interval))
        };
        // A query that has been given another operator since (a view that another query reads now writes its log) has
        // something left to commit.
        let was_finished = retained.last().is_some_and(|manifest| {
            let known =
                |uid: &weir_storage::OperatorUid| manifest.operators.iter().any(|operator| operator.uid == *uid);
            manifest.last && shared.spec.graph.nodes.iter().all(|node| known(&node.uid))
        });
        Self {
            discoveries: if was_finished {
                BTreeMap::new()
            } else {
                built.sources.iter().filter_map(discovery).collect()
            },
            behind: built.tasks.iter().filter(|task| task.is_source).map(|task| task.id).collect(),
            sources_running: built.tasks.iter().filter(|task| task.is_source).count(),
            epochs: Epochs {
                waiting: Vec::new(),
                sent: Vec::new(),
                reached: built.tasks.iter().filter(|task| task.is_terminal).map(|task| (task.id, Epoch(0))).collect(),
            },
            was_finished,
            retained: retained.into_iter().map(|manifest| (manifest.checkpoint, Arc::new(manifest))).collect(),
            shared,
            services,
            store,
            run,
            events,
            tasks: Vec::new(),
            unstarted: built.tasks,
            sources: built.sources,
            committers: Arc::new(Mutex::new(committers)),
            collecting: HashMap::new(),
            infos: HashMap::new(),
            replies: HashMap::new(),
            tickets: 0,
            io: JoinSet::new(),
            background: JoinSet::new(),
            cleaning_up: false,
            next_clean_up: None,
            built_paused: paused,
            draining: Vec::new(),
        }
    }

    fn query(&self) -> &str {
        &self.shared.spec.name
    }

    /// Runs until the run is over, and leaves nothing of it behind.
    pub(crate) async fn run(
        mut self,
        lineage: &mut Lineage,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        requested: Vec<oneshot::Sender<Result<PinnedCheckpoint>>>,
    ) -> Outcome {
        self.start();
        let requested: Vec<_> = requested.into_iter().map(|reply| self.ticket(Reply::Checkpoint(reply))).collect();
        if lineage.paused != self.built_paused {
            self.to_sources(if lineage.paused { &Control::Pause } else { &Control::Resume });
        }
        self.show_running(lineage.paused);
        let outcome = if self.was_finished {
            self.serve_finished(lineage, commands).await
        } else {
            let completed = self.retained.keys().copied().collect();
            let ids = (0..self.tasks.len()).map(TaskId);
            let options = self.shared.spec.checkpointing.clone();
            let mut coordinator = Coordinator::new(options, ids, lineage.next_checkpoint, completed, Instant::now());
            let mut happened = vec![Event::Backlog(!self.behind.is_empty()), Event::Paused(lineage.paused)];
            happened.extend(requested.into_iter().map(Event::Requested));
            let outcome = self.drive(&mut coordinator, happened, lineage, commands).await;
            lineage.next_checkpoint = coordinator.next_id();
            outcome
        };
        self.shut_down(&outcome).await;
        outcome
    }

    fn start(&mut self) {
        for task in std::mem::take(&mut self.unstarted) {
            let BuiltTask { id, name, is_source, is_terminal, control, body } = task;
            let (run, panicked) = (Arc::clone(&self.run), name.clone());
            let handle = self.services.cpu.spawn(async move {
                let error = match AssertUnwindSafe(body).catch_unwind().await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error,
                    Err(panic) => RuntimeError::Panicked { task: panicked.to_string(), reason: panic_text(&*panic) },
                };
                run.tell(TaskEvent::Failed { task: id, error });
            });
            self.tasks.push(RunningTask { name, is_source, is_terminal, control, handle });
        }
        let terminal = self.tasks.iter().filter(|task| task.is_terminal).count();
        let (query, tasks) = (self.query(), self.tasks.len());
        tracing::info!(%query, tasks, terminal, "running");
    }

    fn show_running(&self, paused: bool) {
        self.shared.status.send_replace(if paused { JobStatus::Paused } else { JobStatus::Running });
    }

    fn to_sources(&self, control: &Control) {
        for task in self.tasks.iter().filter(|task| task.is_source) {
            // A task that is gone has failed, and its event is on its way.
            let _ = task.control.send(control.clone());
        }
    }

    fn to_all(&self, control: &Control) {
        for task in &self.tasks {
            let _ = task.control.send(control.clone());
        }
    }

    /// A job that has read everything: its views are published, and that is all.
    async fn serve_finished(
        &mut self,
        lineage: &mut Lineage,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Outcome {
        self.end_epoch(lineage);
        while !self.epochs.sent.is_empty() {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(TaskEvent::EpochDone { task, epoch }) => self.epochs.passed(task, epoch),
                    Some(TaskEvent::Failed { task, error }) => return self.task_failed(task, error),
                    _ => {}
                },
                command = commands.recv() => match command {
                    None => return Outcome::Stopped,
                    Some(Command::Stop(_, reply)) => {
                        let _ = reply.send(Ok(None));
                        return Outcome::Stopped;
                    }
                    Some(Command::Checkpoint(reply)) => {
                        let reason = "it has read all of its input; its last checkpoint is complete".to_owned();
                        let _ = reply.send(Err(self.no_checkpoint(reason)));
                    }
                    Some(Command::Pause(reply) | Command::Resume(reply) | Command::Flush(reply)) => drop(reply.send(())),
                },
            }
        }
        Outcome::Finished
    }

    async fn drive(
        &mut self,
        coordinator: &mut Coordinator,
        mut happened: Vec<Event>,
        lineage: &mut Lineage,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Outcome {
        let mut tick = tokio::time::interval(self.shared.spec.epoch_interval.max(Duration::from_millis(1)));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            for event in std::mem::take(&mut happened) {
                for action in coordinator.on(event, Instant::now()) {
                    if let Some(outcome) = self.act(action, lineage).await {
                        return outcome;
                    }
                }
            }
            let wake = coordinator.wake_at();
            let discovery = self.discoveries.values().min().copied();
            tokio::select! {
                Some(event) = self.events.recv() => match self.on_task(event) {
                    Ok(event) => happened.extend(event),
                    Err(outcome) => return outcome,
                },
                command = commands.recv() => match command {
                    None => return Outcome::Stopped,
                    Some(Command::Stop(StopMode::Now, reply)) => {
                        let _ = reply.send(Ok(None));
                        return Outcome::Stopped;
                    }
                    Some(command) => happened.extend(self.on_command(command, lineage)),
                },
                Some(done) = self.io.join_next(), if !self.io.is_empty() => match done {
                    Ok(done) => match self.on_done(done) {
                        Ok(event) => happened.extend(event),
                        Err(error) => return Outcome::Failed(error),
                    },
                    Err(error) => return self.lost(&error),
                },
                Some(done) = self.background.join_next(), if !self.background.is_empty() => match done {
                    Ok(done) => match self.on_done(done) {
                        Ok(event) => happened.extend(event),
                        Err(error) => return Outcome::Failed(error),
                    },
                    Err(error) => return self.lost(&error),
                },
                _ = tick.tick() => {
                    if self.epochs.sent.len() < EPOCHS_IN_FLIGHT {
                        self.end_epoch(lineage);
                    }
                }
                () = sleep_until(wake), if wake.is_some() => happened.push(Event::Tick),
                () = sleep_until(discovery), if discovery.is_some() => self.discover(),
            }
        }
    }

    fn end_epoch(&mut self, lineage: &mut Lineage) {
        let epoch = self.next_epoch(lineage);
        self.to_sources(&Control::Epoch(epoch));
    }

    fn next_epoch(&mut self, lineage: &mut Lineage) -> Epoch {
        let epoch = lineage.take_epoch();
        self.epochs.sent.push(epoch);
        epoch
    }

    /// Takes in what a task says.
    fn on_task(&mut self, event: TaskEvent) -> Result<Vec<Event>, Outcome> {
        let event = match event {
            TaskEvent::Acked(ack) => {
                let (checkpoint, task) = (ack.checkpoint, ack.task);
                self.take_positions(&ack);
                let Some(collecting) = self.collecting.get_mut(&checkpoint) else { return Ok(Vec::new()) };
                collecting.acks.push(*ack);
                Some(Event::Acked(checkpoint, task))
            }
            TaskEvent::Declined { checkpoint, task, reason } => {
                let (query, task) = (self.query(), &self.tasks[task.0].name);
                tracing::debug!(%query, %checkpoint, %task, %reason, "declined");
                Some(Event::Declined(checkpoint, reason))
            }
            TaskEvent::EpochDone { task, epoch } => {
                self.epochs.passed(task, epoch);
                None
            }
            TaskEvent::SourceEnded { task } => {
                let (query, name) = (self.query(), &self.tasks[task.0].name);
                tracing::info!(%query, task = %name, "a source subtask has read all of its input");
                self.sources_running -= 1;
                let ended = if self.sources_running == 0 { Event::SourcesEnded } else { Event::SourceEnded };
                // In this order: the end of a backlog alone would begin a periodic checkpoint just before the last one.
                return Ok([ended].into_iter().chain(self.caught_up(task)).collect());
            }
            TaskEvent::CaughtUp { task } => self.caught_up(task),
            TaskEvent::Failed { task, error } => return Err(self.task_failed(task, error)),
        };
        Ok(event.into_iter().collect())
    }

    /// A source task has nothing to read at present, or never again.
    fn caught_up(&mut self, task: TaskId) -> Option<Event> {
        (self.behind.remove(&task) && self.behind.is_empty()).then_some(Event::Backlog(false))
    }

    fn task_failed(&self, task: TaskId, error: RuntimeError) -> Outcome {
        let (query, task) = (self.query(), &self.tasks[task.0].name);
        tracing::warn!(%query, %task, %error, "task failed");
        Outcome::Failed(error)
    }

    fn take_positions(&mut self, ack: &Ack) {
        for part in &ack.parts {
            if let Some(source) = self.sources.get_mut(&part.node)
                && let Ok(table) = serde_json::from_value(part.state.source_splits.clone())
            {
                source.assignment.acknowledged(part.state.subtask, table);
            }
        }
    }

    fn ticket(&mut self, reply: Reply) -> Ticket {
        self.tickets += 1;
        self.replies.insert(Ticket(self.tickets), reply);
        Ticket(self.tickets)
    }

    fn on_command(&mut self, command: Command, lineage: &mut Lineage) -> Option<Event> {
        match command {
            Command::Checkpoint(reply) => Some(Event::Requested(self.ticket(Reply::Checkpoint(reply)))),
            Command::Stop(StopMode::Drain, reply) => {
                self.draining.push(reply);
                self.to_sources(&Control::Drain);
                None
            }
            Command::Stop(_, reply) => Some(Event::StopRequested(self.ticket(Reply::Stop(reply)))),
            Command::Pause(reply) => {
                lineage.paused = true;
                self.to_sources(&Control::Pause);
                self.show_running(true);
                let _ = reply.send(());
                Some(Event::Paused(true))
            }
            Command::Resume(reply) => {
                lineage.paused = false;
                self.to_sources(&Control::Resume);
                self.show_running(false);
                let _ = reply.send(());
                Some(Event::Paused(false))
            }
            Command::Flush(reply) => {
                let epoch = self.next_epoch(lineage);
                self.epochs.waiting.push((epoch, reply));
                self.to_sources(&Control::Epoch(epoch));
                None
            }
        }
    }

    /// Takes in what was done. An error is one that no later checkpoint can get round: the store has another owner.
    fn on_done(&mut self, done: Done) -> Result<Option<Event>> {
        Ok(match done {
            Done::Manifest(_, Err(error)) | Done::Committed(_, Err(error)) if error.is_final() => return Err(error),
            Done::Manifest(checkpoint, Ok((manifest, info))) => {
                self.retained.insert(checkpoint, manifest);
                self.infos.insert(checkpoint, info);
                Some(Event::ManifestDurable(checkpoint))
            }
            Done::Manifest(checkpoint, Err(error)) => {
                Some(Event::ManifestFailed(checkpoint, format!("its manifest could not be written: {error}")))
            }
            Done::Committed(checkpoint, Ok(time)) => {
                if let Some(info) = self.infos.get_mut(&checkpoint) {
                    info.commit_ms = time.as_millis() as u64;
                }
                Some(Event::Committed(checkpoint))
            }
            Done::Committed(checkpoint, Err(error)) => Some(Event::CommitFailed(checkpoint, error.to_string())),
            Done::CleanedUp => {
                self.cleaning_up = false;
                if let Some((retained, in_progress)) = self.next_clean_up.take() {
                    self.clean_up(retained, in_progress);
                }
                None
            }
            Done::Discovered(node, found) => {
                self.discovered(node, found);
                None
            }
        })
    }

    /// Asks the sources whose turn it is for new splits.
    fn discover(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.discoveries.iter().filter(|(_, at)| **at <= now).map(|(node, _)| *node).collect();
        for node in due {
            // It is asked again when it has answered.
            self.discoveries.remove(&node);
            let Some(running) = self.sources.get(&node) else { continue };
            let (source, known) = (Arc::clone(&running.source), running.assignment.known());
            let parallelism = running.tasks.len() as u32;
            self.background.spawn(async move { Done::Discovered(node, source.discover(&known, parallelism).await) });
        }
    }

    fn discovered(&mut self, node: NodeIndex, found: Result<Vec<SplitState>>) {
        let query = self.shared.spec.name.clone();
        let Some(running) = self.sources.get_mut(&node) else { return };
        if let Some(interval) = running.source.discovery_interval() {
            self.discoveries.insert(node, Instant::now() + interval);
        }
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%query, relation = running.relation, %error, "cannot look for new splits; trying again");
                return;
            }
        };
        for (Subtask(subtask), splits) in running.assignment.add(found) {
            tracing::info!(%query, relation = running.relation, subtask, splits = splits.len(), "new splits");
            if let Some(task) = running.tasks.get(subtask as usize) {
                let _ = self.tasks[task.0].control.send(Control::AddSplits(splits));
            }
        }
    }

    fn lost(&self, error: &tokio::task::JoinError) -> Outcome {
        let task = format!("driver of {}", self.query());
        Outcome::Failed(RuntimeError::Panicked { task, reason: error.to_string() })
    }

    /// Ends all that runs. A manifest or a commit that is under way is waited for: recovery must not begin while it is
    /// undecided whether the checkpoint exists.
    async fn shut_down(&mut self, outcome: &Outcome) {
        for task in &self.tasks {
            task.handle.abort();
        }
        for task in &mut self.tasks {
            // Cancelled, or over already.
            let _ = (&mut task.handle).await;
        }
        self.run.shut_down().await;
        while self.io.join_next().await.is_some() {}
        if matches!(outcome, Outcome::Failed(_)) {
            self.background.shutdown().await;
        }
        self.discoveries.clear();
        while let Some(done) = self.background.join_next().await {
            if let Ok(Done::CleanedUp) = done
                && let Some((retained, in_progress)) = self.next_clean_up.take()
            {
                self.cleaning_up = false;
                self.clean_up(retained, in_progress);
            }
        }
        let reason = match outcome {
            Outcome::Failed(error) => format!("the query failed meanwhile: {error}"),
            Outcome::Finished | Outcome::Stopped => "the query has ended meanwhile".to_owned(),
        };
        for checkpoint in self.collecting.keys() {
            let triggered_at_ms = self.collecting[checkpoint].triggered_at_ms;
            self.shared.record(*checkpoint, triggered_at_ms, CheckpointState::Failed { reason: reason.clone() });
        }
        for reply in std::mem::take(&mut self.draining) {
            let _ = reply.send(Err(self.no_checkpoint(reason.clone())));
        }
        let tickets: Vec<_> = self.replies.keys().copied().collect();
        for ticket in tickets {
            self.answer_failure(ticket, &reason);
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it gave no reason".to_owned())
}
