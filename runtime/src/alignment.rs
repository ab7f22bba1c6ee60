//! Alignment of marks over the channels of one task: pure.
//!
//! An epoch's end and a checkpoint's barrier reach a task once on each of its channels, on all of them in the same
//! order. The mark is complete when the last channel has brought it:
//!
//! ```text
//!  channel 0  d d M ▒ ▒ ▒     blocked: what follows the mark belongs to the next epoch
//!  channel 1  d d d d d M     the last one: complete, all are free again
//! ```
//!
//! A mark that does not block (a barrier of at-least-once) leaves channels running ahead, so several marks may be
//! waiting at a time; they still complete in their order. The aligner knows channels by index and nothing of their
//! queues. Barriers that may overtake end no epoch and are no marks: see [`overtaking`].

pub mod overtaking;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weir_storage::Epoch;

use crate::message::{Alignment, Barrier};

/// What is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// End of an epoch.
    Epoch(Epoch),
    /// A checkpoint's barrier, which ends an epoch too.
    Barrier(Barrier),
}

impl Mark {
    /// The epoch that it ends: marks are ordered by it.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        match self {
            Self::Epoch(epoch) => *epoch,
            Self::Barrier(barrier) => barrier.epoch,
        }
    }

    /// Whether a channel that has brought it must wait for the others.
    #[must_use]
    pub fn blocks(&self) -> bool {
        match self {
            Self::Epoch(_) => true,
            Self::Barrier(barrier) => barrier.alignment != Alignment::AtLeastOnce,
        }
    }
}

/// What the arrival of a mark settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// All channels have brought the mark: act on it.
    Complete {
        /// The mark.
        mark: Mark,
        /// From its first arrival to its last.
        alignment: Duration,
    },
    /// A channel brought a later mark without this one, which can therefore never complete.
    Superseded {
        /// The mark that is given up.
        mark: Mark,
    },
}

/// The marks that a task waits for.
#[derive(Debug)]
pub struct Aligner {
    channels: Vec<Channel>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Default)]
struct Channel {
    /// The last mark it brought.
    reached: Option<Epoch>,
    /// The mark it waits at.
    blocked_at: Option<Epoch>,
}

#[derive(Debug)]
struct Waiting {
    mark: Mark,
    since: Instant,
}

impl Aligner {
    /// Alignment over `channels` channels.
    #[must_use]
    pub fn new(channels: usize) -> Self {
        Self { channels: vec![Channel::default(); channels], waiting: VecDeque::new() }
    }

    /// Whether nothing may be taken from `channel` at present.
    #[must_use]
    pub fn is_blocked(&self, channel: usize) -> bool {
        self.channels[channel].blocked_at.is_some()
    }

    /// Channels that have not brought the oldest mark that is waited for.
    pub fn missing(&self) -> impl Iterator<Item = usize> {
        let oldest = self.waiting.front().map(|waiting| waiting.mark.epoch());
        let missing = self.channels.iter().enumerate().filter(move |(_, c)| oldest.is_some() && c.reached < oldest);
        missing.map(|(index, _)| index)
    }

    /// `channel` brought `mark`. Answers what that settled, oldest first.
    pub fn arrive(&mut self, channel: usize, mark: Mark, now: Instant) -> Vec<Settled> {
        let epoch = mark.epoch();
        if self.channels[channel].reached >= Some(epoch) {
            return Vec::new();
        }
        let before = self.channels[channel].reached.replace(epoch);
        let mut settled = Vec::new();
        // Marks between the channel's last one and this one did not come on it and never will.
        let skipped = |waiting: &Waiting| Some(waiting.mark.epoch()) > before && waiting.mark.epoch() < epoch;
        for waiting in self.waiting.iter().filter(|waiting| skipped(waiting)) {
            settled.push(Settled::Superseded { mark: waiting.mark });
        }
        self.waiting.retain(|waiting| !skipped(waiting));
        match self.waiting.iter().position(|waiting| waiting.mark.epoch() >= epoch) {
            Some(at) if self.waiting[at].mark.epoch() == epoch => {}
            // Others have gone past it without bringing it.
            Some(_) => settled.push(Settled::Superseded { mark }),
            None => self.waiting.push_back(Waiting { mark, since: now }),
        }
        if mark.blocks() {
            self.channels[channel].blocked_at = Some(epoch);
        }
        while let Some(oldest) = self.waiting.front() {
            let oldest_epoch = oldest.mark.epoch();
            if self.channels.iter().any(|channel| channel.reached < Some(oldest_epoch)) {
                break;
            }
            settled
                .push(Settled::Complete { mark: oldest.mark, alignment: now.saturating_duration_since(oldest.since) });
            self.waiting.pop_front();
        }
        self.free();
        settled
    }

    /// A channel waits only for a mark that is still waited for.
    fn free(&mut self) {
        for channel in &mut self.channels {
            if channel.blocked_at.is_some_and(|at| !self.waiting.iter().any(|waiting| waiting.mark.epoch() == at)) {
                channel.blocked_at = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_storage::CheckpointId;

    fn barrier(epoch: u64, alignment: Alignment) -> Mark {
        let (checkpoint, epoch) = (CheckpointId(epoch), Epoch(epoch));
        Mark::Barrier(Barrier { checkpoint, epoch, triggered_at_ms: 0, alignment, last: false })
    }

    fn complete(settled: &[Settled]) -> Vec<u64> {
        let epoch = |settled: &Settled| match settled {
            Settled::Complete { mark, .. } => Some(mark.epoch().0),
            Settled::Superseded { .. } => None,
        };
        settled.iter().filter_map(epoch).collect()
    }

    fn blocked(aligner: &Aligner) -> Vec<usize> {
        (0..aligner.channels.len()).filter(|channel| aligner.is_blocked(*channel)).collect()
    }

    #[test]
    fn one_channel_never_waits() {
        let mut aligner = Aligner::new(1);
        let now = Instant::now();
        assert_eq!(complete(&aligner.arrive(0, Mark::Epoch(Epoch(1)), now)), [1]);
        assert_eq!(complete(&aligner.arrive(0, barrier(2, Alignment::Aligned), now)), [2]);
        assert!(blocked(&aligner).is_empty());
    }

    #[test]
    fn a_channel_is_blocked_from_its_mark_to_the_last_one() {
        let mut aligner = Aligner::new(3);
        let now = Instant::now();
        assert!(aligner.arrive(1, barrier(1, Alignment::Aligned), now).is_empty());
        assert_eq!(blocked(&aligner), [1]);
        assert!(aligner.arrive(0, barrier(1, Alignment::Aligned), now).is_empty());
        assert_eq!(blocked(&aligner), [0, 1]);
        assert_eq!(aligner.missing().collect::<Vec<_>>(), [2]);
        let later = now + Duration::from_millis(5);
        let settled = aligner.arrive(2, barrier(1, Alignment::Aligned), later);
        let alignment = Duration::from_millis(5);
        assert_eq!(settled, [Settled::Complete { mark: barrier(1, Alignment::Aligned), alignment }]);
        assert!(blocked(&aligner).is_empty());
    }

    #[test]
    fn epochs_and_barriers_complete_in_order() {
        let mut aligner = Aligner::new(2);
        let now = Instant::now();
        assert!(aligner.arrive(0, Mark::Epoch(Epoch(1)), now).is_empty());
        assert_eq!(complete(&aligner.arrive(1, Mark::Epoch(Epoch(1)), now)), [1]);
        assert!(aligner.arrive(1, barrier(2, Alignment::Aligned), now).is_empty());
        assert_eq!(complete(&aligner.arrive(0, barrier(2, Alignment::Aligned), now)), [2]);
    }

    #[test]
    fn at_least_once_blocks_nothing_and_lets_a_channel_run_ahead() {
        let mut aligner = Aligner::new(2);
        let now = Instant::now();
        assert!(aligner.arrive(0, barrier(1, Alignment::AtLeastOnce), now).is_empty());
        assert!(blocked(&aligner).is_empty());
        assert!(aligner.arrive(0, barrier(2, Alignment::AtLeastOnce), now).is_empty());
        assert!(aligner.arrive(0, Mark::Epoch(Epoch(3)), now).is_empty());
        assert_eq!(blocked(&aligner), [0], "an epoch blocks in every mode: views show whole cuts");
        assert_eq!(complete(&aligner.arrive(1, barrier(1, Alignment::AtLeastOnce), now)), [1]);
        assert_eq!(complete(&aligner.arrive(1, barrier(2, Alignment::AtLeastOnce), now)), [2]);
        assert_eq!(complete(&aligner.arrive(1, Mark::Epoch(Epoch(3)), now)), [3]);
        assert!(blocked(&aligner).is_empty());
    }

    #[test]
    fn a_mark_that_a_channel_skipped_is_given_up_and_frees_the_others() {
        let mut aligner = Aligner::new(3);
        let now = Instant::now();
        assert!(aligner.arrive(0, barrier(1, Alignment::Aligned), now).is_empty());
        let settled = aligner.arrive(1, barrier(2, Alignment::Aligned), now);
        assert_eq!(settled, [Settled::Superseded { mark: barrier(1, Alignment::Aligned) }]);
        assert_eq!(blocked(&aligner), [1]);
        assert!(aligner.arrive(0, barrier(2, Alignment::Aligned), now).is_empty());
        // Too late: nobody waits for it, and its channel goes on to the next.
        let settled = aligner.arrive(2, barrier(1, Alignment::Aligned), now);
        assert_eq!(settled, [Settled::Superseded { mark: barrier(1, Alignment::Aligned) }]);
        assert_eq!(blocked(&aligner), [0, 1]);
        assert_eq!(complete(&aligner.arrive(2, barrier(2, Alignment::Aligned), now)), [2]);
    }

    #[test]
    fn a_repeated_mark_is_ignored() {
        let mut aligner = Aligner::new(2);
        let now = Instant::now();
        assert!(aligner.arrive(0, barrier(1, Alignment::Aligned), now).is_empty());
        assert!(aligner.arrive(0, barrier(1, Alignment::Aligned), now).is_empty());
        assert_eq!(complete(&aligner.arrive(1, barrier(1, Alignment::Aligned), now)), [1]);
    }
}
