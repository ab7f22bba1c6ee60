//! The coordinator under every order of events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use weir_storage::CheckpointId;

use super::{Action, Coordinator, Event, Kind, Ticket};
use crate::options::CheckpointOptions;
use crate::run::TaskId;

const TASKS: usize = 3;

fn options() -> CheckpointOptions {
    CheckpointOptions {
        interval: Some(Duration::from_secs(10)),
        min_pause: Duration::from_secs(2),
        timeout: Duration::from_secs(60),
        tolerable_failed: 1,
        max_concurrent: 1,
        num_retained: 2,
        ..CheckpointOptions::default()
    }
}

struct Bench {
    coordinator: Coordinator,
    start: Instant,
    at: Duration,
}

impl Bench {
    fn new(options: CheckpointOptions) -> Self {
        let start = Instant::now();
        let coordinator = Coordinator::new(options, (0..TASKS).map(TaskId), CheckpointId(1), Vec::new(), start);
        Self { coordinator, start, at: Duration::ZERO }
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        self.coordinator.on(event, self.start + self.at)
    }

    fn after(&mut self, seconds: u64) -> Vec<Action> {
        self.at += Duration::from_secs(seconds);
        self.on(Event::Tick)
    }

    fn ack_all(&mut self, checkpoint: u64) -> Vec<Action> {
        (0..TASKS).flat_map(|task| self.on(Event::Acked(CheckpointId(checkpoint), TaskId(task)))).collect()
    }

    fn finish(&mut self, checkpoint: u64) -> Vec<Action> {
        let id = CheckpointId(checkpoint);
        let mut actions = self.ack_all(checkpoint);
        actions.extend(self.on(Event::ManifestDurable(id)));
        actions.extend(self.on(Event::Committed(id)));
        actions
    }
}

fn trigger(checkpoint: u64, kind: Kind) -> Action {
    Action::Trigger { checkpoint: CheckpointId(checkpoint), kind }
}

#[test]
fn a_checkpoint_runs_from_interval_to_clean_up() {
    let mut bench = Bench::new(options());
    assert_eq!(bench.coordinator.wake_at(), Some(bench.start + Duration::from_secs(10)));
    assert!(bench.after(9).is_empty());
    assert_eq!(bench.after(1), [trigger(1, Kind::Periodic)]);
    let id = CheckpointId(1);
    assert_eq!(bench.ack_all(1), [Action::WriteManifest { checkpoint: id, kind: Kind::Periodic }]);
    assert_eq!(bench.on(Event::ManifestDurable(id)), [Action::Commit { checkpoint: id }]);
    let complete = Action::Complete { checkpoint: id, kind: Kind::Periodic, tickets: vec![] };
    let clean_up = Action::CleanUp { retained: BTreeSet::from([id]), in_progress: None };
    assert_eq!(bench.on(Event::Committed(id)), [complete, clean_up]);
}

#[test]
fn the_pause_counts_from_completion() {
    let mut bench = Bench::new(options());
    bench.after(10);
    bench.at += Duration::from_secs(9);
    bench.finish(1);
    assert!(bench.after(1).is_empty(), "the interval has passed, the pause has not");
    assert_eq!(bench.after(1), [trigger(2, Kind::Periodic)]);
}

#[test]
fn a_request_does_not_wait_for_the_interval_but_for_the_one_in_progress() {
    let mut bench = Bench::new(options());
    assert_eq!(bench.on(Event::Requested(Ticket(1))), [trigger(1, Kind::Requested)]);
    assert!(bench.on(Event::Requested(Ticket(2))).is_empty());
    assert!(bench.on(Event::Requested(Ticket(3))).is_empty());
    let actions = bench.finish(1);
    let complete = |id, tickets| Action::Complete { checkpoint: CheckpointId(id), kind: Kind::Requested, tickets };
    assert!(actions.contains(&complete(1, vec![Ticket(1)])));
    assert!(actions.contains(&trigger(2, Kind::Requested)));
    assert!(bench.finish(2).contains(&complete(2, vec![Ticket(2), Ticket(3)])));
}

#[test]
fn the_end_of_input_is_checkpointed_at_once_and_ends_the_job() {
    let mut bench = Bench::new(CheckpointOptions { interval: None, ..options() });
    assert_eq!(bench.on(Event::SourcesEnded), [trigger(1, Kind::Final)]);
    let actions = bench.finish(1);
    assert_eq!(actions.last(), Some(&Action::End { checkpoint: CheckpointId(1), kind: Kind::Final }));
    assert!(bench.after(1000).is_empty());
}

#[test]
fn a_failed_final_checkpoint_is_tried_again_soon() {
    let mut bench = Bench::new(options());
    bench.on(Event::SourcesEnded);
    let actions = bench.on(Event::Declined(CheckpointId(1), "disk full".into()));
    assert!(matches!(&actions[..], [Action::Abort { .. }]), "{actions:?}");
    assert_eq!(bench.coordinator.wake_at(), Some(bench.start + Duration::from_secs(1)));
    assert_eq!(bench.after(1), [trigger(2, Kind::Final)]);
}

#[test]
fn a_stop_that_fails_is_answered_and_the_job_goes_on() {
    let mut bench = Bench::new(options());
    assert_eq!(bench.on(Event::StopRequested(Ticket(7))), [trigger(1, Kind::Stop)]);
    assert!(bench.on(Event::Requested(Ticket(8))).is_empty(), "nothing follows the last one");
    let actions = bench.on(Event::Declined(CheckpointId(1), "disk full".into()));
    let abort = Action::Abort { checkpoint: CheckpointId(1), reason: "disk full".into(), tickets: vec![Ticket(7)] };
    assert_eq!(actions, [abort, trigger(2, Kind::Requested)]);
}

#[test]
fn a_timeout_is_a_failure_and_too_many_in_a_row_fail_the_job() {
    let mut bench = Bench::new(options());
    bench.after(10);
    let actions = bench.after(60);
    let [Action::Abort { reason, .. }, Action::Trigger { .. }] = &actions[..] else { panic!("{actions:?}") };
    assert!(reason.contains("3 of 3 subtasks"), "{reason}");
    let actions = bench.on(Event::Declined(CheckpointId(2), "disk full".into()));
    let [Action::Abort { .. }, Action::Fail { reason }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(reason, "2 checkpoints in a row failed, the last one (2) because disk full");
}

#[test]
fn success_forgives_failures_and_a_late_decline_of_an_older_one_counts_for_nothing() {
    let mut bench = Bench::new(options());
    bench.after(10);
    bench.on(Event::Declined(CheckpointId(1), "disk full".into()));
    bench.after(10);
    bench.finish(2);
    assert!(bench.on(Event::Declined(CheckpointId(1), "again".into())).is_empty());
    bench.after(10);
    let actions = bench.on(Event::Declined(CheckpointId(3), "disk full".into()));
    assert!(!actions.iter().any(|action| matches!(action, Action::Fail { .. })), "{actions:?}");
}

#[test]
fn a_later_complete_one_subsumes_an_earlier_one_and_its_requests() {
    let mut bench = Bench::new(CheckpointOptions { max_concurrent: 2, ..options() });
    bench.on(Event::Requested(Ticket(1)));
    bench.on(Event::Requested(Ticket(2)));
    let actions = bench.ack_all(2);
    let [Action::Abort { checkpoint, tickets, .. }, Action::WriteManifest { .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!((*checkpoint, tickets.len()), (CheckpointId(1), 0));
    bench.on(Event::ManifestDurable(CheckpointId(2)));
    let actions = bench.on(Event::Committed(CheckpointId(2)));
    let tickets = vec![Ticket(2), Ticket(1)];
    assert!(actions.contains(&Action::Complete { checkpoint: CheckpointId(2), kind: Kind::Requested, tickets }));
}

#[test]
fn paused_jobs_take_no_periodic_checkpoints_but_requested_ones() {
    let mut bench = Bench::new(options());
    bench.on(Event::Paused(true));
    assert!(bench.after(100).is_empty());
    assert_eq!(bench.on(Event::Requested(Ticket(1))), [trigger(1, Kind::Requested)]);
}

#[test]
fn no_periodic_checkpoint_begins_in_the_pause_of_one_that_has_not_ended() {
    let mut bench = Bench::new(CheckpointOptions { max_concurrent: 2, ..options() });
    assert_eq!(bench.after(10), [trigger(1, Kind::Periodic)]);
    assert!(bench.after(10).is_empty());
    assert_eq!(bench.on(Event::Requested(Ticket(1))), [trigger(2, Kind::Requested)], "who asks does not wait");
    bench.finish(1);
    bench.finish(2);
    assert!(bench.after(9).is_empty(), "the interval counts from the last trigger, whatever its kind");
    assert_eq!(bench.after(1), [trigger(3, Kind::Periodic)]);
}

#[test]
fn without_a_pause_periodic_checkpoints_run_concurrently_up_to_the_limit() {
    let options = CheckpointOptions { max_concurrent: 2, min_pause: Duration::ZERO, ..options() };
    let mut bench = Bench::new(options);
    assert_eq!(bench.after(10), [trigger(1, Kind::Periodic)]);
    assert_eq!(bench.after(10), [trigger(2, Kind::Periodic)]);
    assert!(bench.after(10).is_empty(), "two are in progress");
    let actions = bench.finish(1);
    assert_eq!(actions.last(), Some(&trigger(3, Kind::Periodic)), "it has been due since");
}

#[test]
fn another_interval_holds_until_the_backlog_is_read() {
    let during = |seconds| CheckpointOptions {
        interval_during_backlog: Some(Duration::from_secs(seconds)),
        min_pause: Duration::ZERO,
        ..options()
    };
    let mut bench = Bench::new(during(30));
    bench.on(Event::Backlog(true));
    assert_eq!(bench.coordinator.wake_at(), Some(bench.start + Duration::from_secs(30)));
    assert!(bench.after(29).is_empty());
    assert_eq!(bench.after(1), [trigger(1, Kind::Periodic)]);
    bench.finish(1);
    assert!(bench.after(10).is_empty());
    assert_eq!(bench.on(Event::Backlog(false)), [trigger(2, Kind::Periodic)], "it has been due for 10 s");
    bench.finish(2);
    assert_eq!(bench.after(10), [trigger(3, Kind::Periodic)]);

    let mut bench = Bench::new(during(0));
    bench.on(Event::Backlog(true));
    assert!(bench.after(1000).is_empty(), "none while there is a backlog");
    assert_eq!(bench.on(Event::Requested(Ticket(1))), [trigger(1, Kind::Requested)]);
    bench.finish(1);
    assert_eq!(bench.on(Event::SourcesEnded), [trigger(2, Kind::Final)]);
}

#[test]
fn an_interval_during_backlog_switches_nothing_on() {
    let options =
        CheckpointOptions { interval: None, interval_during_backlog: Some(Duration::from_secs(1)), ..options() };
    let mut bench = Bench::new(options);
    bench.on(Event::Backlog(true));
    assert!(bench.after(100).is_empty());
}

#[test]
fn checkpoints_after_tasks_finish_only_if_they_shall() {
    let mut bench = Bench::new(options());
    bench.on(Event::SourceEnded);
    assert_eq!(bench.after(10), [trigger(1, Kind::Periodic)]);

    let mut bench = Bench::new(CheckpointOptions { after_tasks_finish: false, ..options() });
    bench.on(Event::SourceEnded);
    assert!(bench.after(1000).is_empty());
    assert_eq!(bench.on(Event::Requested(Ticket(1))), [trigger(1, Kind::Requested)]);
    bench.finish(1);
    assert_eq!(bench.on(Event::SourcesEnded), [trigger(2, Kind::Final)], "the last one is always taken");
}

#[test]
fn each_checkpoint_fails_once_and_stale_failures_count_for_nothing() {
    let options = CheckpointOptions { tolerable_failed: 1, max_concurrent: 3, min_pause: Duration::ZERO, ..options() };
    let mut bench = Bench::new(options);
    (0..3).for_each(|_| drop(bench.after(10)));
    let declined = |id| Event::Declined(CheckpointId(id), "disk full".into());
    let fails = |actions: Vec<Action>| actions.iter().any(|action| matches!(action, Action::Fail { .. }));
    assert!(!fails(bench.on(declined(1))));
    assert!(!fails(bench.on(declined(1))), "the second task's decline of the same checkpoint");
    // 3 completes and subsumes 2, which is no failure, and makes what is said of 2 afterwards stale.
    assert!(!fails(bench.finish(3)));
    assert!(!fails(bench.on(declined(2))) && !fails(bench.on(declined(2))));
    bench.after(10);
    assert!(!fails(bench.on(declined(4))), "the first since the success of 3");
    bench.after(10);
    assert!(fails(bench.on(declined(5))));
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Request,
    Stop,
    SourceEnds,
    SourcesEnd,
    Backlog(bool),
    Pause(bool),
    Ack(usize, usize),
    AckAll(usize),
    Decline(usize),
    Io(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u64..30).prop_map(Step::Wait),
        2 => Just(Step::Request),
        1 => Just(Step::Stop),
        1 => Just(Step::SourceEnds),
        1 => Just(Step::SourcesEnd),
        1 => any::<bool>().prop_map(Step::Backlog),
        1 => any::<bool>().prop_map(Step::Pause),
        6 => (0usize..3, 0..TASKS).prop_map(|(which, task)| Step::Ack(which, task)),
        4 => (0usize..3).prop_map(Step::AckAll),
        1 => (0usize..3).prop_map(Step::Decline),
        8 => prop::bool::weighted(0.9).prop_map(Step::Io),
    ]
}

/// What the outside world knows of a checkpoint.
#[derive(Debug, Default)]
struct Seen {
    triggered: Vec<CheckpointId>,
    acked: BTreeMap<CheckpointId, BTreeSet<usize>>,
    writing: Option<CheckpointId>,
    committing: Option<CheckpointId>,
    durable: BTreeSet<CheckpointId>,
    committed: Vec<CheckpointId>,
    aborted: BTreeSet<CheckpointId>,
    retained: BTreeSet<CheckpointId>,
    bases: BTreeMap<CheckpointId, CheckpointId>,
    asked: BTreeSet<Ticket>,
    answered: BTreeSet<Ticket>,
    over: bool,
}

impl Seen {
    fn open(&self) -> Vec<CheckpointId> {
        let over = |id: &&CheckpointId| !self.committed.contains(id) && !self.aborted.contains(id);
        self.triggered.iter().filter(over).copied().collect()
    }

    fn take(&mut self, actions: &[Action], options: &CheckpointOptions) {
        for action in actions {
            assert!(!self.over, "{action:?} after the end");
            match action {
                Action::Trigger { checkpoint, .. } => {
                    assert!(self.triggered.last().is_none_or(|last| last < checkpoint), "ids increase");
                    assert!(self.open().len() < options.max_concurrent, "not too many at a time");
                    self.bases.insert(*checkpoint, self.committed.last().copied().unwrap_or_default());
                    self.triggered.push(*checkpoint);
                }
                Action::WriteManifest { checkpoint, .. } => {
                    assert_eq!(self.acked.get(checkpoint).map_or(0, BTreeSet::len), TASKS, "all have acknowledged");
                    assert!(self.writing.is_none() && self.committing.is_none(), "one at a time");
                    self.writing = Some(*checkpoint);
                }
                Action::Commit { checkpoint } => {
                    assert!(self.durable.contains(checkpoint), "no commit before the manifest");
                    assert!(self.committed.last().is_none_or(|last| last < checkpoint), "commits in order");
                    self.committing = Some(*checkpoint);
                }
                Action::Complete { checkpoint, tickets, .. } => {
                    assert_eq!(self.committed.last(), Some(checkpoint));
                    self.answer(tickets);
                }
                Action::Abort { checkpoint, tickets, .. } => {
                    assert!(self.triggered.contains(checkpoint) && !self.durable.contains(checkpoint));
                    assert!(self.aborted.insert(*checkpoint), "given up once");
                    self.answer(tickets);
                }
                Action::CleanUp { retained, in_progress } => {
                    let newest: BTreeSet<_> = self.committed.iter().rev().take(options.num_retained).copied().collect();
                    assert!(retained.is_superset(&newest), "the newest stay: {retained:?} {newest:?}");
                    for open in self.open() {
                        assert!(in_progress.is_some_and(|oldest| oldest <= open));
                        let mut needed = self.committed.iter().filter(|id| **id >= self.bases[&open]);
                        assert!(needed.all(|id| retained.contains(id)), "files in use stay");
                    }
                    self.retained.clone_from(retained);
                }
                Action::Fail { .. } | Action::End { .. } => self.over = true,
            }
        }
    }

    fn answer(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            assert!(self.asked.contains(ticket) && self.answered.insert(*ticket), "answered once");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_rules_hold_in_every_order(
        steps in prop::collection::vec(step(), 1..120),
        max_concurrent in 1usize..4,
        num_retained in 1usize..4,
        tolerable_failed in 0u32..4,
        pause in 0u64..4,
        interval_during_backlog in prop::option::of((0u64..30).prop_map(Duration::from_secs)),
        after_tasks_finish in any::<bool>(),
    ) {
        let options = CheckpointOptions {
            max_concurrent,
            num_retained,
            tolerable_failed,
            min_pause: Duration::from_secs(pause),
            interval_during_backlog,
            after_tasks_finish,
            ..options()
        };
        let mut bench = Bench::new(options.clone());
        let mut seen = Seen::default();
        for (number, step) in steps.into_iter().enumerate() {
            let open = seen.open();
            let pick = |which: usize| open.get(which % open.len().max(1)).copied();
            let actions = match step {
                Step::Wait(seconds) => bench.after(seconds),
                Step::Request | Step::Stop => {
                    let ticket = Ticket(number as u64);
                    seen.asked.insert(ticket);
                    bench.on(if matches!(step, Step::Stop) { Event::StopRequested(ticket) } else { Event::Requested(ticket) })
                }
                Step::SourceEnds => bench.on(Event::SourceEnded),
                Step::SourcesEnd => bench.on(Event::SourcesEnded),
                Step::Backlog(backlog) => bench.on(Event::Backlog(backlog)),
                Step::Pause(paused) => bench.on(Event::Paused(paused)),
                Step::Ack(which, task) => {
                    let Some(id) = pick(which) else { continue };
                    seen.acked.entry(id).or_default().insert(task);
                    bench.on(Event::Acked(id, TaskId(task)))
                }
                Step::AckAll(which) => {
                    let Some(id) = pick(which) else { continue };
                    seen.acked.insert(id, (0..TASKS).collect());
                    let mut all = Vec::new();
                    for task in 0..TASKS {
                        all.extend(bench.on(Event::Acked(id, TaskId(task))));
                    }
                    all
                }
                Step::Decline(which) => {
                    let Some(id) = pick(which) else { continue };
                    bench.on(Event::Declined(id, "declined".into()))
                }
                Step::Io(succeeds) => {
                    if let Some(id) = seen.writing.take() {
                        if succeeds {
                            seen.durable.insert(id);
                            bench.on(Event::ManifestDurable(id))
                        } else {
                            bench.on(Event::ManifestFailed(id, "no answer".into()))
                        }
                    } else if let Some(id) = seen.committing.take() {
                        if succeeds {
                            seen.committed.push(id);
                            bench.on(Event::Committed(id))
                        } else {
                            bench.on(Event::CommitFailed(id, "no answer".into()))
                        }
                    } else {
                        continue;
                    }
                }
            };
            seen.take(&actions, &options);
            if !seen.over {
                prop_assert!(bench.coordinator.wake_at().is_none_or(|at| at > bench.start + bench.at), "it would spin");
            }
        }
    }
}
