//! Alignment of a barrier that may overtake, over the channels of one task: pure, over a clock that is given in.
//!
//! ```text
//!               aligned until `overtakes_at` …             … and unaligned from then on
//!  channel 0    d d B ▒ ▒ ▒   blocked at its barrier         d d B d d d   free again
//!  channel 1    d d d d d B   its barrier is known of        d d d d d B   rows before it: in flight, so is what was
//!  channel 2    d d d d …     not sent yet                   d d d d …     received, until the barrier has come
//! ```
//!
//! If all channels have brought the barrier in their turn before the time, the snapshot is taken then, and nothing is in
//! flight. Otherwise it is taken at the time, which is one moment for all tasks; a time that has passed when the barrier
//! is first known of means: at once. From the snapshot on, the rows that come before a channel's barrier are in flight:
//! they are counted in neither the task's snapshot nor its upstream's. A channel that must not be overtaken has to bring
//! its barrier in its turn; the snapshot waits for those.
//!
//! The state of the task and the channel's state together are thus exactly what was sent before the barriers.

use std::time::{Duration, Instant};

use weir_storage::CheckpointId;

use crate::message::Barrier;

/// What a task has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Take the snapshot and pass the barrier on.
    Snapshot(Barrier),
    /// The rows that are queued on this channel before the barrier are in flight: note them, and take the barrier out.
    Overtake {
        /// Which channel.
        channel: usize,
        /// Whose barrier.
        checkpoint: CheckpointId,
    },
    /// All channels have brought the barrier: what is in flight is known.
    Complete {
        /// The barrier.
        barrier: Barrier,
        /// From when the barrier was first known of until now.
        alignment: Duration,
    },
}

/// The barrier that a task waits for. There is one at a time: unaligned checkpoints do not run concurrently.
#[derive(Debug)]
pub struct Overtaking {
    channels: Vec<Channel>,
    current: Option<Current>,
}

#[derive(Debug, Clone)]
struct Channel {
    overtakable: bool,
    place: Place,
    /// The last checkpoint whose barrier it brought.
    reached: CheckpointId,
}

/// Where a channel's barrier is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Not sent yet.
    Ahead,
    /// Behind rows in the channel.
    Queued,
    /// Here.
    Arrived,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    barrier: Barrier,
    overtakes_at: Instant,
    since: Instant,
    snapshot_taken: bool,
}

impl Overtaking {
    /// Over channels of which each may be overtaken or not.
    #[must_use]
    pub fn new(overtakable: Vec<bool>) -> Self {
        let channel = |overtakable| Channel { overtakable, place: Place::Ahead, reached: CheckpointId(0) };
        Self { channels: overtakable.into_iter().map(channel).collect(), current: None }
    }

    /// Whether there is no barrier to wait for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// Whether nothing may be taken from `channel` at present.
    #[must_use]
    pub fn is_blocked(&self, channel: usize) -> bool {
        self.current.is_some_and(|current| !current.snapshot_taken) && self.channels[channel].place == Place::Arrived
    }

    /// Whether rows that are received on `channel` are in flight.
    #[must_use]
    pub fn is_watched(&self, channel: usize) -> bool {
        self.current.is_some_and(|current| current.snapshot_taken) && self.channels[channel].place != Place::Arrived
    }

    /// When [`Overtaking::next`] is to be asked at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let waiting = self.current.filter(|current| !current.snapshot_taken);
        // One that an edge holds back is not brought forward by time.
        waiting.filter(|_| self.may_overtake()).map(|current| current.overtakes_at)
    }

    /// The barrier was queued on `channel`. It may have arrived meanwhile.
    pub fn announced(&mut self, channel: usize, barrier: Barrier, overtakes_at: Instant, now: Instant) {
        if self.begin(channel, barrier, overtakes_at, now) && self.channels[channel].place == Place::Ahead {
            self.channels[channel].place = Place::Queued;
        }
    }

    /// `channel` has brought the barrier in its turn.
    pub fn arrived(&mut self, channel: usize, barrier: Barrier, overtakes_at: Instant, now: Instant) {
        if self.begin(channel, barrier, overtakes_at, now) {
            self.reach(channel, barrier.checkpoint);
        }
    }

    /// Forgets a checkpoint that was given up.
    pub fn abort(&mut self, checkpoint: CheckpointId) {
        if self.current.is_some_and(|current| current.barrier.checkpoint == checkpoint) {
            self.end();
        }
    }

    /// What to do at `now`; to be asked until there is nothing.
    pub fn next(&mut self, now: Instant) -> Option<Act> {
        let current = self.current?;
        let all = self.channels.iter().all(|channel| channel.place == Place::Arrived);
        if !current.snapshot_taken {
            if all || (now >= current.overtakes_at && self.may_overtake()) {
                self.current = Some(Current { snapshot_taken: true, ..current });
                return Some(Act::Snapshot(current.barrier));
            }
            return None;
        }
        let checkpoint = current.barrier.checkpoint;
        if let Some(channel) = self.channels.iter().position(|channel| channel.place == Place::Queued) {
            self.reach(channel, checkpoint);
            return Some(Act::Overtake { channel, checkpoint });
        }
        if !all {
            return None;
        }
        self.end();
        let alignment = now.saturating_duration_since(current.since);
        Some(Act::Complete { barrier: current.barrier, alignment })
    }

    /// Whether all channels that must not be overtaken have brought the barrier.
    fn may_overtake(&self) -> bool {
        self.channels.iter().all(|channel| channel.overtakable || channel.place == Place::Arrived)
    }

    /// Whether the barrier is the one to wait for, now at the latest.
    fn begin(&mut self, channel: usize, barrier: Barrier, overtakes_at: Instant, now: Instant) -> bool {
        if barrier.checkpoint <= self.channels[channel].reached {
            return false;
        }
        let known = self.current.map(|current| current.barrier.checkpoint);
        if known > Some(barrier.checkpoint) {
            return false;
        }
        if known != Some(barrier.checkpoint) {
            // A later one is triggered only when the one before is over.
            self.end();
            self.current = Some(Current { barrier, overtakes_at, since: now, snapshot_taken: false });
        }
        true
    }

    fn reach(&mut self, channel: usize, checkpoint: CheckpointId) {
        self.channels[channel].place = Place::Arrived;
        self.channels[channel].reached = checkpoint;
    }

    fn end(&mut self) {
        self.current = None;
        self.channels.iter_mut().for_each(|channel| channel.place = Place::Ahead);
    }
}

#[cfg(test)]
#[path = "overtaking_tests.rs"]
mod tests;
