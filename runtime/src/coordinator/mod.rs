//! The checkpoint coordinator of one run of a job: a pure state machine. It is told what happened and when, and answers
//! what to do; [`driver`] does it.
//!
//! ```text
//!                      Trigger           WriteManifest           Commit            Complete
//!   due ─► collecting ─────────► all acked ─────────► manifest durable ─────► committed ─────► clean-up
//!              │ timeout, decline       │ failed              │ failed
//!              ▼                        ▼                     ▼
//!            Abort                    Abort              Fail: the job restarts and commits again
//! ```
//!
//! Rules that the model test checks under every interleaving:
//!
//! * Ids only increase, over all runs of a job in a process.
//! * A checkpoint is committed only when its manifest is durable, and only after every earlier one that completed: from
//!   manifest to commit there is one checkpoint at a time.
//! * When a later checkpoint has all acknowledgements, an earlier one that has not is subsumed, which is no failure.
//! * At least the `num_retained` newest complete checkpoints are kept, and besides those every one whose files a
//!   checkpoint in progress may refer to.

pub(crate) mod driver;
mod manifest;
#[cfg(test)]
mod model;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use weir_storage::CheckpointId;

use crate::options::CheckpointOptions;
use crate::run::TaskId;

/// How soon a failed final checkpoint is tried again when there is no interval.
const RETRY: Duration = Duration::from_secs(1);

/// Why a checkpoint is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The interval has passed.
    Periodic,
    /// Somebody asked.
    Requested,
    /// The job stops with it and can be restored from it.
    Stop,
    /// All input has been read; the job ends with it.
    Final,
}

impl Kind {
    /// Whether nothing is read behind its barrier.
    pub(crate) fn is_last(self) -> bool {
        matches!(self, Self::Stop | Self::Final)
    }
}

/// A request that waits for its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

/// What happened.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// Time passed.
    Tick,
    /// Somebody wants a checkpoint.
    Requested(Ticket),
    /// Somebody wants the job to stop with a checkpoint.
    StopRequested(Ticket),
    /// A source subtask has ended, and others have not.
    SourceEnded,
    /// All sources have ended.
    SourcesEnded,
    /// A source has not yet come to the end of what there was to read, or all have.
    Backlog(bool),
    /// Periodic checkpoints make no sense at present, or do again.
    Paused(bool),
    /// A task's part is durable.
    Acked(CheckpointId, TaskId),
    /// A task's part failed.
    Declined(CheckpointId, String),
    /// The manifest exists.
    ManifestDurable(CheckpointId),
    /// The manifest could not be written.
    ManifestFailed(CheckpointId, String),
    /// All sinks have committed.
    Committed(CheckpointId),
    /// A sink could not commit.
    CommitFailed(CheckpointId, String),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send barriers.
    Trigger { checkpoint: CheckpointId, kind: Kind },
    /// All parts are there.
    WriteManifest { checkpoint: CheckpointId, kind: Kind },
    /// Commit what the checkpoint's manifest holds.
    Commit { checkpoint: CheckpointId },
    /// Tell tasks and those who asked.
    Complete { checkpoint: CheckpointId, kind: Kind, tickets: Vec<Ticket> },
    /// Tell tasks and those who asked; stop its uploads.
    Abort { checkpoint: CheckpointId, reason: String, tickets: Vec<Ticket> },
    /// Remove all complete checkpoints but these.
    CleanUp { retained: BTreeSet<CheckpointId>, in_progress: Option<CheckpointId> },
    /// The run has failed.
    Fail { reason: String },
    /// The job is over: with its last checkpoint.
    End { checkpoint: CheckpointId, kind: Kind },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Collecting,
    Writing,
    Committing,
}

#[derive(Debug)]
struct Pending {
    id: CheckpointId,
    kind: Kind,
    triggered: Instant,
    missing: BTreeSet<TaskId>,
    stage: Stage,
    /// The newest complete checkpoint when it was triggered: its snapshots may refer to the files of that one and of
    /// all that complete while it is in progress. 0 if there was none.
    base: CheckpointId,
    tickets: Vec<Ticket>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Coordinator {
    options: CheckpointOptions,
    tasks: BTreeSet<TaskId>,
    next: CheckpointId,
    pending: VecDeque<Pending>,
    /// Kept complete checkpoints, oldest first.
    completed: Vec<CheckpointId>,
    requests: Vec<Ticket>,
    stop: Option<Ticket>,
    source_ended: bool,
    sources_ended: bool,
    backlog: bool,
    paused: bool,
    over: bool,
    failures: u32,
    last_trigger: Instant,
    last_completion: Option<Instant>,
    not_before: Instant,
}

impl Coordinator {
    /// A coordinator whose next checkpoint is `next`, with `completed` ones in the store, oldest first.
    pub(crate) fn new(
        options: CheckpointOptions,
        tasks: impl IntoIterator<Item = TaskId>,
        next: CheckpointId,
        completed: Vec<CheckpointId>,
        now: Instant,
    ) -> Self {
        Self {
            options,
            tasks: tasks.into_iter().collect(),
            next,
            pending: VecDeque::new(),
            completed,
            requests: Vec::new(),
            stop: None,
            source_ended: false,
            sources_ended: false,
            backlog: false,
            paused: false,
            over: false,
            failures: 0,
            last_trigger: now,
            last_completion: None,
            not_before: now,
        }
    }

    /// The id of the next checkpoint.
    pub(crate) fn next_id(&self) -> CheckpointId {
        self.next
    }

    /// Takes in what happened at `now`.
    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.over {
            return actions;
        }
        match event {
            Event::Tick => {}
            Event::Requested(ticket) => self.requests.push(ticket),
            Event::StopRequested(ticket) => match self.stop {
                None => self.stop = Some(ticket),
                // A second wish to stop is served by the same checkpoint.
                Some(_) => self.requests.push(ticket),
            },
            Event::SourceEnded => self.source_ended = true,
            Event::SourcesEnded => self.sources_ended = true,
            Event::Backlog(backlog) => self.backlog = backlog,
            Event::Paused(paused) => self.paused = paused,
            Event::Acked(checkpoint, task) => self.acked(checkpoint, task, &mut actions),
            Event::Declined(checkpoint, reason) => {
                self.failed(checkpoint, Stage::Collecting, reason, now, &mut actions)
            }
            Event::ManifestDurable(checkpoint) => {
                if let Some(pending) = self.at_stage(checkpoint, Stage::Writing) {
                    pending.stage = Stage::Committing;
                    actions.push(Action::Commit { checkpoint });
                }
            }
            Event::ManifestFailed(checkpoint, reason) => {
                self.failed(checkpoint, Stage::Writing, reason, now, &mut actions);
            }
            Event::Committed(checkpoint) => self.complete(checkpoint, now, &mut actions),
            Event::CommitFailed(checkpoint, reason) => {
                if self.at_stage(checkpoint, Stage::Committing).is_some() {
                    self.over = true;
                    let reason = format!("the output of checkpoint {checkpoint} could not be committed: {reason}");
                    actions.push(Action::Fail { reason });
                }
            }
        }
        self.expire(now, &mut actions);
        if !self.over {
            self.advance(&mut actions);
            self.trigger(now, &mut actions);
        }
        actions
    }

    /// When to tick at the latest; none: not before something happens.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        if self.over {
            return None;
        }
        let collecting = self.pending.iter().filter(|pending| pending.stage == Stage::Collecting);
        let expiry = collecting.map(|pending| pending.triggered + self.options.timeout).min();
        let free = self.pending.len() < self.options.max_concurrent.max(1) && !self.ending();
        let due = if !free {
            None
        } else if self.sources_ended || self.stop.is_some() || !self.requests.is_empty() {
            Some(self.not_before)
        } else {
            self.due()
        };
        expiry.into_iter().chain(due).min()
    }

    fn at_stage(&mut self, checkpoint: CheckpointId, stage: Stage) -> Option<&mut Pending> {
        self.pending.iter_mut().find(|pending| pending.id == checkpoint && pending.stage == stage)
    }

    /// Whether the checkpoint after which nothing follows is on its way.
    fn ending(&self) -> bool {
        self.pending.iter().any(|pending| pending.kind.is_last())
    }

    /// When the next periodic checkpoint is due.
    fn due(&self) -> Option<Instant> {
        if self.paused || (self.source_ended && !self.options.after_tasks_finish) {
            return None;
        }
        // The pause counts from an end that has not come.
        if !self.options.min_pause.is_zero() && !self.pending.is_empty() {
            return None;
        }
        let interval = self.options.interval?;
        let interval = match self.options.interval_during_backlog.filter(|_| self.backlog) {
            None => interval,
            Some(Duration::ZERO) => return None,
            Some(during_backlog) => during_backlog,
        };
        let due = self.last_trigger + interval;
        let rested = self.last_completion.map(|at| at + self.options.min_pause);
        Some(rested.map_or(due, |rested| due.max(rested)).max(self.not_before))
    }

    fn trigger(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.ending() || self.pending.len() >= self.options.max_concurrent.max(1) {
            return;
        }
        let kind = if self.sources_ended && now >= self.not_before {
            Kind::Final
        } else if self.stop.is_some() {
            Kind::Stop
        } else if !self.requests.is_empty() {
            Kind::Requested
        } else if !self.sources_ended && self.due().is_some_and(|due| now >= due) {
            Kind::Periodic
        } else {
            return;
        };
        let id = self.next;
        self.next = id.next();
        let mut tickets = std::mem::take(&mut self.requests);
        if kind.is_last() {
            tickets.extend(self.stop.take());
        }
        let (missing, base) = (self.tasks.clone(), self.completed.last().copied().unwrap_or_default());
        self.last_trigger = now;
        self.pending.push_back(Pending { id, kind, triggered: now, missing, stage: Stage::Collecting, base, tickets });
        actions.push(Action::Trigger { checkpoint: id, kind });
    }

    fn acked(&mut self, checkpoint: CheckpointId, task: TaskId, actions: &mut Vec<Action>) {
        let Some(at) = self.pending.iter().position(|p| p.id == checkpoint && p.stage == Stage::Collecting) else {
            return;
        };
        self.pending[at].missing.remove(&task);
        if !self.pending[at].missing.is_empty() {
            return;
        }
        // All that is earlier and incomplete is subsumed. Whoever waited for one of those gets the later one.
        let mut tickets = Vec::new();
        let mut kept = VecDeque::new();
        for mut pending in std::mem::take(&mut self.pending) {
            if pending.id < checkpoint && pending.stage == Stage::Collecting && !pending.missing.is_empty() {
                tickets.append(&mut pending.tickets);
                let reason = format!("subsumed by checkpoint {checkpoint}, which was complete before it");
                actions.push(Action::Abort { checkpoint: pending.id, reason, tickets: Vec::new() });
            } else {
                kept.push_back(pending);
            }
        }
        self.pending = kept;
        if let Some(pending) = self.at_stage(checkpoint, Stage::Collecting) {
            pending.tickets.append(&mut tickets);
        }
    }

    /// The oldest checkpoint goes on when all of its parts are there.
    fn advance(&mut self, actions: &mut Vec<Action>) {
        if let Some(oldest) = self.pending.front_mut()
            && oldest.stage == Stage::Collecting
            && oldest.missing.is_empty()
        {
            oldest.stage = Stage::Writing;
            actions.push(Action::WriteManifest { checkpoint: oldest.id, kind: oldest.kind });
        }
    }

    fn complete(&mut self, checkpoint: CheckpointId, now: Instant, actions: &mut Vec<Action>) {
        if self.at_stage(checkpoint, Stage::Committing).is_none() {
            return;
        }
        let Some(done) = self.pending.pop_front() else { return };
        self.completed.push(checkpoint);
        self.failures = 0;
        self.last_completion = Some(now);
        actions.push(Action::Complete { checkpoint, kind: done.kind, tickets: done.tickets });
        let newest = self.completed.len().saturating_sub(self.options.num_retained.max(1));
        let base = self.pending.iter().map(|pending| pending.base).min();
        let first = base.map_or(newest, |base| self.completed.partition_point(|id| *id < base));
        self.completed.drain(..newest.min(first));
        let in_progress = self.pending.front().map(|pending| pending.id);
        actions.push(Action::CleanUp { retained: self.completed.iter().copied().collect(), in_progress });
        if done.kind.is_last() {
            self.over = true;
            actions.push(Action::End { checkpoint, kind: done.kind });
        }
    }

    fn expire(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let timeout = self.options.timeout;
        let expired = |pending: &&Pending| pending.stage == Stage::Collecting && now >= pending.triggered + timeout;
        let expired: Vec<_> =
            self.pending.iter().filter(expired).map(|pending| (pending.id, pending.missing.len())).collect();
        for (checkpoint, missing) in expired {
            let reason = format!(
                "{missing} of {} subtasks had not acknowledged it after {timeout:?}; see which are busy or blocked, \
                 and raise execution.checkpointing.timeout if they need the time",
                self.tasks.len()
            );
            self.failed(checkpoint, Stage::Collecting, reason, now, actions);
        }
    }

    fn failed(
        &mut self,
        checkpoint: CheckpointId,
        stage: Stage,
        reason: String,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        if self.over {
            return;
        }
        let Some(at) = self.pending.iter().position(|pending| pending.id == checkpoint && pending.stage == stage)
        else {
            return;
        };
        let Some(mut pending) = self.pending.remove(at) else { return };
        let tickets = std::mem::take(&mut pending.tickets);
        actions.push(Action::Abort { checkpoint, reason: reason.clone(), tickets });
        if pending.kind == Kind::Final {
            self.not_before = now + self.options.interval.unwrap_or(RETRY).min(RETRY);
        }
        self.failures += 1;
        if self.failures > self.options.tolerable_failed {
            self.over = true;
            let failures = self.failures;
            let reason = if failures == 1 {
                format!("checkpoint {checkpoint} failed: {reason}")
            } else {
                format!("{failures} checkpoints in a row failed, the last one ({checkpoint}) because {reason}")
            };
            actions.push(Action::Fail { reason });
        }
    }
}
