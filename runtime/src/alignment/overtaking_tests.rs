use std::time::{Duration, Instant};

use proptest::prelude::*;
use weir_storage::{CheckpointId, Epoch};

use super::{Act, Overtaking};
use crate::channel::{ChannelId, Endpoint, Inbox, Sender};
use crate::message::{Alignment, Barrier, Message};
use crate::testing::{int_values, ints};

const NO_TIME: Duration = Duration::ZERO;

fn barrier(checkpoint: u64) -> Barrier {
    let (checkpoint, epoch) = (CheckpointId(checkpoint), Epoch(checkpoint));
    Barrier { checkpoint, epoch, triggered_at_ms: 0, alignment: Alignment::Unaligned, last: false }
}

fn blocked(overtaking: &Overtaking) -> Vec<usize> {
    (0..overtaking.channels.len()).filter(|channel| overtaking.is_blocked(*channel)).collect()
}

fn watched(overtaking: &Overtaking) -> Vec<usize> {
    (0..overtaking.channels.len()).filter(|channel| overtaking.is_watched(*channel)).collect()
}

#[test]
fn without_a_timeout_the_snapshot_is_taken_at_the_first_barrier() {
    let mut overtaking = Overtaking::new(vec![true; 3]);
    let now = Instant::now();
    overtaking.announced(1, barrier(1), now, now);
    assert_eq!(overtaking.next(now), Some(Act::Snapshot(barrier(1))));
    assert_eq!(overtaking.next(now), Some(Act::Overtake { channel: 1, checkpoint: CheckpointId(1) }));
    assert_eq!(overtaking.next(now), None);
    assert_eq!((blocked(&overtaking), watched(&overtaking)), (vec![], vec![0, 2]));
    overtaking.arrived(0, barrier(1), now, now);
    overtaking.announced(2, barrier(1), now, now);
    assert_eq!(overtaking.next(now), Some(Act::Overtake { channel: 2, checkpoint: CheckpointId(1) }));
    let later = now + Duration::from_millis(3);
    let alignment = Duration::from_millis(3);
    assert_eq!(overtaking.next(later), Some(Act::Complete { barrier: barrier(1), alignment }));
    assert!(overtaking.is_idle() && watched(&overtaking).is_empty());
    overtaking.announced(0, barrier(1), now, now);
    assert!(overtaking.is_idle(), "the announcement of what has arrived says nothing");
}

#[test]
fn within_the_timeout_a_barrier_is_aligned() {
    let mut overtaking = Overtaking::new(vec![true; 2]);
    let now = Instant::now();
    let at = now + Duration::from_secs(1);
    overtaking.announced(0, barrier(1), at, now);
    assert_eq!((overtaking.next(now), blocked(&overtaking)), (None, vec![]), "it has its place among the rows");
    overtaking.arrived(0, barrier(1), at, now);
    assert_eq!((overtaking.next(now), blocked(&overtaking)), (None, vec![0]));
    assert_eq!(overtaking.wake_at(), Some(at));
    overtaking.arrived(1, barrier(1), at, now);
    assert_eq!(overtaking.next(now), Some(Act::Snapshot(barrier(1))));
    assert_eq!(overtaking.next(now), Some(Act::Complete { barrier: barrier(1), alignment: NO_TIME }));
    assert!(blocked(&overtaking).is_empty());
}

#[test]
fn after_the_timeout_it_overtakes_on_both_sides_of_a_channel() {
    let mut overtaking = Overtaking::new(vec![true; 3]);
    let now = Instant::now();
    let at = now + Duration::from_secs(1);
    overtaking.arrived(0, barrier(1), at, now);
    overtaking.announced(1, barrier(1), at, now);
    assert_eq!(overtaking.next(at - Duration::from_nanos(1)), None);
    assert_eq!(overtaking.next(at), Some(Act::Snapshot(barrier(1))));
    assert_eq!(overtaking.next(at), Some(Act::Overtake { channel: 1, checkpoint: CheckpointId(1) }));
    assert_eq!((overtaking.next(at), blocked(&overtaking), watched(&overtaking)), (None, vec![], vec![2]));
    overtaking.arrived(2, barrier(1), at, at);
    assert_eq!(overtaking.next(at), Some(Act::Complete { barrier: barrier(1), alignment: at - now }));
}

#[test]
fn a_channel_that_must_not_be_overtaken_is_waited_for_and_then_the_others_are() {
    let mut overtaking = Overtaking::new(vec![true, false, true]);
    let now = Instant::now();
    overtaking.announced(0, barrier(1), now, now);
    overtaking.announced(1, barrier(1), now, now);
    assert_eq!((overtaking.next(now), overtaking.wake_at()), (None, None));
    overtaking.arrived(1, barrier(1), now, now);
    assert_eq!(blocked(&overtaking), [1]);
    assert_eq!(overtaking.next(now), Some(Act::Snapshot(barrier(1))));
    assert_eq!(overtaking.next(now), Some(Act::Overtake { channel: 0, checkpoint: CheckpointId(1) }));
    assert_eq!((blocked(&overtaking), watched(&overtaking)), (vec![], vec![2]));
}

#[test]
fn one_that_was_given_up_holds_nothing_and_a_later_one_takes_its_place() {
    let mut overtaking = Overtaking::new(vec![true; 2]);
    let now = Instant::now();
    let at = now + Duration::from_secs(1);
    overtaking.arrived(0, barrier(1), at, now);
    overtaking.abort(CheckpointId(2));
    assert_eq!(blocked(&overtaking), [0]);
    overtaking.abort(CheckpointId(1));
    assert!(blocked(&overtaking).is_empty() && overtaking.is_idle());
    overtaking.arrived(1, barrier(2), at, now);
    overtaking.arrived(0, barrier(3), at, now);
    assert_eq!(blocked(&overtaking), [0]);
    overtaking.arrived(0, barrier(2), at, now);
    assert_eq!(blocked(&overtaking), [0], "what is late says nothing");
    overtaking.arrived(1, barrier(3), at, now);
    assert_eq!(overtaking.next(now), Some(Act::Snapshot(barrier(3))));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Row(usize),
    Barrier(usize),
    Receive,
    /// The task looks at what was announced, and acts.
    Look,
    Pass,
}

/// A task whose state is the rows it has received, over real channels.
struct Model {
    overtaking: Overtaking,
    inbox: Inbox,
    senders: Vec<Sender>,
    start: Instant,
    now: Instant,
    timeout: Duration,
    next_row: i64,
    /// Rows of each channel before its barrier.
    expected: Vec<Vec<i64>>,
    sent_barrier: Vec<bool>,
    received: Vec<Vec<i64>>,
    snapshot: Option<Vec<Vec<i64>>>,
    in_flight: Vec<Vec<i64>>,
    completions: usize,
}

impl Model {
    fn new(overtakable: Vec<bool>, timeout: Duration) -> Self {
        let count = overtakable.len();
        let mut inbox = Inbox::default();
        let end = |node, subtask| Endpoint { node, subtask: weir_storage::Subtask(subtask) };
        let senders = (0..count as u32)
            .map(|from| inbox.open(ChannelId { from: end(0, from), to: end(1, 0), input: 0 }, 8, Default::default()))
            .collect();
        let now = Instant::now();
        Self {
            overtaking: Overtaking::new(overtakable),
            inbox,
            senders,
            start: now,
            now,
            timeout,
            next_row: 0,
            expected: vec![Vec::new(); count],
            sent_barrier: vec![false; count],
            received: vec![Vec::new(); count],
            snapshot: None,
            in_flight: vec![Vec::new(); count],
            completions: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Row(channel) => {
                self.next_row += 1;
                self.senders[channel].send(Message::Data(ints(&[self.next_row])));
                if !self.sent_barrier[channel] {
                    self.expected[channel].push(self.next_row);
                }
            }
            Step::Barrier(channel) => {
                if !std::mem::replace(&mut self.sent_barrier[channel], true) {
                    self.senders[channel].send(Message::Barrier(barrier(1)));
                }
            }
            Step::Receive => self.receive(),
            Step::Look => self.look(),
            Step::Pass => self.now += Duration::from_millis(1),
        }
    }

    fn receive(&mut self) {
        let overtaking = &self.overtaking;
        match self.inbox.try_receive(|channel| overtaking.is_blocked(channel)) {
            Some((channel, Message::Data(chunk))) => {
                let rows = int_values(&chunk);
                if self.overtaking.is_watched(channel) {
                    self.in_flight[channel].extend(&rows);
                }
                self.received[channel].extend(rows);
            }
            Some((channel, Message::Barrier(barrier))) => {
                self.overtaking.arrived(channel, barrier, self.start + self.timeout, self.now);
            }
            _ => {}
        }
    }

    fn look(&mut self) {
        for (channel, barrier) in self.inbox.announced() {
            self.overtaking.announced(channel, barrier, self.start + self.timeout, self.now);
        }
        while let Some(act) = self.overtaking.next(self.now) {
            match act {
                Act::Snapshot(_) => assert!(self.snapshot.replace(self.received.clone()).is_none(), "once"),
                Act::Overtake { channel, checkpoint } => {
                    let rows = self.inbox.overtake(channel, checkpoint).expect("what was announced is there");
                    self.in_flight[channel].extend(rows.iter().flat_map(int_values));
                }
                Act::Complete { .. } => self.completions += 1,
            }
        }
    }
}

fn step(channels: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..channels).prop_map(Step::Row),
        2 => (0..channels).prop_map(Step::Barrier),
        4 => Just(Step::Receive),
        3 => Just(Step::Look),
        1 => Just(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// No row is lost or repeated, whatever comes in which order.
    #[test]
    fn state_and_channel_state_are_the_cut(
        (overtakable, steps) in prop::collection::vec(prop::bool::weighted(0.8), 2..4).prop_flat_map(|overtakable| {
            let channels = overtakable.len();
            (Just(overtakable), prop::collection::vec(step(channels), 0..60))
        }),
        timeout in 0u64..4,
    ) {
        let mut model = Model::new(overtakable.clone(), Duration::from_millis(timeout));
        for step in steps {
            model.step(step);
        }
        // The barriers come on all channels in the end, and time passes.
        for channel in 0..overtakable.len() {
            model.step(Step::Barrier(channel));
        }
        for _ in 0..200 {
            model.step(Step::Pass);
            model.step(Step::Look);
            model.step(Step::Receive);
        }
        prop_assert_eq!(model.completions, 1);
        let snapshot = model.snapshot.clone().expect("it was taken");
        for (channel, may) in overtakable.iter().enumerate() {
            let cut: Vec<i64> = snapshot[channel].iter().chain(&model.in_flight[channel]).copied().collect();
            prop_assert_eq!(&cut, &model.expected[channel], "channel {}", channel);
            prop_assert!(*may || model.in_flight[channel].is_empty(), "channel {} was overtaken", channel);
        }
        prop_assert!(model.received.iter().map(Vec::len).sum::<usize>() as i64 == model.next_row, "nothing is stuck");
    }
}
