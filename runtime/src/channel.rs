//! Channels: FIFO queues from one subtask to one subtask, bounded by the bytes of the data in them.
//!
//! ```text
//!  task A/0 ──Sender──►[ D D W E D ]──┐ Receiver
//!  task A/1 ──Sender──►[ D B ]────────┼──► Inbox of task B/0: takes from any channel that is not blocked
//!                        ▲            │
//!                        └ from `credit` bytes on the channel is full, and its sender takes no further input
//! ```
//!
//! **Sending never waits.** A task that has work in hand sends all that comes of it; before it takes up more, all of its
//! channels must have room ([`Room`]). So a task is always at a place where it can take a snapshot, however long those
//! after it hold it back, and what is queued exceeds the credit by what comes of one message at most.
//!
//! **A barrier that may overtake** is queued in its place like every message, and the receiving task is told of it at
//! once ([`Inbox::announced`]). The receiver then either comes to it in its turn, or takes it out of the queue together
//! with a copy of the rows before it ([`Inbox::overtake`]): they are the channel's state. There is one queue between two
//! subtasks, so this covers what is called output and input buffers elsewhere.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_storage::{CheckpointId, Subtask};

use crate::graph::NodeIndex;
use crate::message::{Alignment, Barrier, Chunk, Message};

/// One end of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The operator at this end.
    pub node: NodeIndex,
    /// Its parallel instance.
    pub subtask: Subtask,
}

/// Which channel: stable for a graph and a parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChannelId {
    /// Who sends.
    pub from: Endpoint,
    /// Who receives.
    pub to: Endpoint,
    /// Which of the receiver's inputs the channel belongs to; the same two subtasks may be joined twice.
    pub input: usize,
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, input } = self;
        write!(f, "{}/{}->{}/{}[{input}]", from.node, from.subtask, to.node, to.subtask)
    }
}

/// Time that a task has spent waiting for those after it.
#[derive(Debug, Default)]
pub struct BlockedTime(AtomicU64);

impl BlockedTime {
    /// Adds to it.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Room in the channels that one task sends to.
#[derive(Debug, Default)]
pub struct Room {
    /// Channels that are full.
    full: AtomicUsize,
    freed: Notify,
}

impl Room {
    /// Whether none of the channels is full.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.full.load(Ordering::Acquire) == 0
    }

    /// Resolves when none of the channels is full. Cancel-safe.
    pub async fn freed(&self) {
        while !self.is_there() {
            self.freed.notified().await;
        }
    }
}

/// What the channels of one inbox tell their task.
#[derive(Debug, Default)]
struct Arrivals {
    /// Told when a queue is no longer empty, or a barrier is announced.
    notify: Notify,
    announced: Mutex<Vec<(usize, Barrier)>>,
    any_announced: AtomicBool,
}

#[derive(Debug)]
struct Channel {
    id: ChannelId,
    credit: usize,
    queue: Mutex<Queue>,
    /// The sending task's, shared by all of its channels.
    room: Arc<Room>,
    /// The receiving task's, shared by all of its channels.
    arrivals: Arc<Arrivals>,
    /// Which of these it is.
    index: usize,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<(Message, usize)>,
    bytes: usize,
    /// Counted in [`Room::full`].
    full: bool,
}

/// The sending end. There is one.
#[derive(Debug)]
pub struct Sender {
    channel: Arc<Channel>,
}

/// The receiving end. There is one.
#[derive(Debug)]
pub struct Receiver {
    channel: Arc<Channel>,
}

impl Sender {
    /// Queues `message`. A receiver that is gone is not told of: its task has failed or was cancelled, and whoever runs
    /// the job cancels this one too.
    pub fn send(&self, message: Message) {
        let bytes = match &message {
            Message::Data(chunk) => chunk.memory_size().max(1),
            _ => 0,
        };
        let announced = match &message {
            Message::Barrier(barrier) if barrier.alignment == Alignment::Unaligned => Some(*barrier),
            _ => None,
        };
        let channel = &*self.channel;
        let mut queue = channel.queue.lock();
        let was_empty = queue.messages.is_empty();
        queue.bytes += bytes;
        queue.messages.push_back((message, bytes));
        if !queue.full && queue.bytes >= channel.credit {
            queue.full = true;
            channel.room.full.fetch_add(1, Ordering::AcqRel);
        }
        drop(queue);
        if let Some(barrier) = announced {
            channel.arrivals.announced.lock().push((channel.index, barrier));
            channel.arrivals.any_announced.store(true, Ordering::Release);
        }
        if was_empty || announced.is_some() {
            channel.arrivals.notify.notify_one();
        }
    }

    /// Which channel.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.channel.id
    }
}

impl Receiver {
    /// The oldest message, if there is one.
    pub fn try_receive(&self) -> Option<Message> {
        let channel = &*self.channel;
        let mut queue = channel.queue.lock();
        let (message, bytes) = queue.messages.pop_front()?;
        queue.bytes -= bytes;
        let freed = queue.full && queue.bytes < channel.credit;
        if freed {
            queue.full = false;
        }
        drop(queue);
        if freed && channel.room.full.fetch_sub(1, Ordering::AcqRel) == 1 {
            channel.room.freed.notify_one();
        }
        Some(message)
    }

    /// Takes the barrier of `checkpoint` out of the queue. Answers the rows that were before it, which stay; none if it
    /// is not in the queue.
    fn overtake(&self, checkpoint: CheckpointId) -> Option<Vec<Chunk>> {
        let mut queue = self.channel.queue.lock();
        let is_it = |message: &Message| {
            matches!(message, Message::Barrier(barrier)
                if barrier.checkpoint == checkpoint && barrier.alignment == Alignment::Unaligned)
        };
        let place = queue.messages.iter().position(|(message, _)| is_it(message))?;
        queue.messages.remove(place);
        let rows = queue.messages.iter().take(place).filter_map(|(message, _)| match message {
            Message::Data(chunk) => Some(chunk.clone()),
            _ => None,
        });
        Some(rows.collect())
    }

    /// Which channel.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.channel.id
    }

    /// Bytes of the data that is queued.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.channel.queue.lock().bytes
    }
}

/// The receiving ends of one task.
#[derive(Debug, Default)]
pub struct Inbox {
    arrivals: Arc<Arrivals>,
    channels: Vec<Receiver>,
    turn: usize,
}

impl Inbox {
    /// Opens a channel into this inbox that is full from `credit` bytes of data on. `room` is the sending task's.
    pub fn open(&mut self, id: ChannelId, credit: usize, room: Arc<Room>) -> Sender {
        let (queue, arrivals, index) = (Mutex::default(), Arc::clone(&self.arrivals), self.channels.len());
        let channel = Arc::new(Channel { id, credit: credit.max(1), queue, room, arrivals, index });
        self.channels.push(Receiver { channel: Arc::clone(&channel) });
        Sender { channel }
    }

    /// The channels in the order in which they were opened.
    #[must_use]
    pub fn channels(&self) -> &[Receiver] {
        &self.channels
    }

    /// The next message of the channels that are not blocked, each in its turn, and the channel's index.
    pub fn try_receive(&mut self, blocked: impl Fn(usize) -> bool) -> Option<(usize, Message)> {
        for step in 0..self.channels.len() {
            let index = (self.turn + step) % self.channels.len();
            if blocked(index) {
                continue;
            }
            if let Some(message) = self.channels[index].try_receive() {
                self.turn = index + 1;
                return Some((index, message));
            }
        }
        None
    }

    /// Barriers that may overtake and were queued since the last call, each with its channel. Some may have been received
    /// meanwhile.
    #[must_use]
    pub fn announced(&self) -> Vec<(usize, Barrier)> {
        if !self.arrivals.any_announced.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.arrivals.any_announced.store(false, Ordering::Release);
        std::mem::take(&mut *self.arrivals.announced.lock())
    }

    /// Takes the barrier of `checkpoint` out of `channel`. Answers a copy of the rows that were queued before it; none if
    /// it is not there.
    #[must_use]
    pub fn overtake(&self, channel: usize, checkpoint: CheckpointId) -> Option<Vec<Chunk>> {
        self.channels.get(channel)?.overtake(checkpoint)
    }

    /// Resolves when something may have arrived since the last [`Inbox::try_receive`] that found nothing. Cancel-safe.
    pub async fn arrived(&self) {
        self.arrivals.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::message::EventTime;
    use crate::testing::ints;

    fn id(subtask: u32) -> ChannelId {
        let end = |node| Endpoint { node, subtask: Subtask(subtask) };
        ChannelId { from: end(0), to: end(1), input: 0 }
    }

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn barrier(checkpoint: u64) -> Barrier {
        let (checkpoint, epoch) = (CheckpointId(checkpoint), weir_storage::Epoch(checkpoint));
        Barrier { checkpoint, epoch, triggered_at_ms: 0, alignment: Alignment::Unaligned, last: false }
    }

    #[test]
    fn nobody_waits_to_send_and_a_full_channel_is_told() {
        let (mut inbox, room) = (Inbox::default(), Arc::new(Room::default()));
        let sender = inbox.open(id(0), 16, Arc::clone(&room));
        let other = inbox.open(id(1), 1, Arc::clone(&room));
        sender.send(Message::Data(ints(&[1])));
        assert!(room.is_there());
        for _ in 0..2 {
            sender.send(Message::Data(ints(&[2])));
        }
        other.send(Message::Data(ints(&[3])));
        sender.send(Message::Watermark(EventTime(7)));
        assert!(!room.is_there());
        let mut freed = pin!(room.freed());
        assert!(poll(freed.as_mut()).is_pending());
        let mut take = |channel: usize| inbox.try_receive(|index| index != channel).unwrap().1;
        assert!(matches!(take(0), Message::Data(_)));
        assert!(matches!(take(0), Message::Data(_)));
        assert!(poll(freed.as_mut()).is_pending(), "the other one is still full");
        assert!(matches!(take(1), Message::Data(_)));
        assert!(poll(freed.as_mut()).is_ready());
        assert!(matches!(take(0), Message::Data(_)));
        assert!(matches!(take(0), Message::Watermark(EventTime(7))));
    }

    #[test]
    fn a_barrier_is_announced_and_overtakes_rows_that_stay() {
        let mut inbox = Inbox::default();
        let senders = [inbox.open(id(0), 1, Arc::default()), inbox.open(id(1), 1, Arc::default())];
        senders[1].send(Message::Data(ints(&[1])));
        senders[1].send(Message::Watermark(EventTime(3)));
        senders[1].send(Message::Data(ints(&[2])));
        assert!(inbox.announced().is_empty());
        senders[1].send(Message::Barrier(barrier(7)));
        senders[1].send(Message::Data(ints(&[3])));
        assert_eq!(inbox.announced(), [(1, barrier(7))]);
        assert!(inbox.announced().is_empty(), "once");
        assert!(inbox.overtake(0, CheckpointId(7)).is_none());
        assert!(inbox.overtake(1, CheckpointId(6)).is_none());
        let rows: Vec<i64> =
            inbox.overtake(1, CheckpointId(7)).unwrap().iter().flat_map(crate::testing::int_values).collect();
        assert_eq!(rows, [1, 2], "those before it, not those behind it");
        assert!(inbox.overtake(1, CheckpointId(7)).is_none());
        let left: Vec<Message> = std::iter::from_fn(|| inbox.try_receive(|_| false)).map(|(_, left)| left).collect();
        assert!(
            matches!(&left[..], [Message::Data(_), Message::Watermark(_), Message::Data(_), Message::Data(_)]),
            "{left:?}"
        );
    }

    #[test]
    fn channels_take_turns_and_blocked_ones_are_passed_over() {
        let mut inbox = Inbox::default();
        let senders = [inbox.open(id(0), 100, Arc::default()), inbox.open(id(1), 100, Arc::default())];
        for sender in &senders {
            for _ in 0..2 {
                sender.send(Message::Idle);
            }
        }
        let mut order = Vec::new();
        while let Some((index, _)) = inbox.try_receive(|_| false) {
            order.push(index);
        }
        assert_eq!(order, [0, 1, 0, 1]);
        senders[0].send(Message::Idle);
        assert!(inbox.try_receive(|index| index == 0).is_none());
        assert!(inbox.try_receive(|_| false).is_some());
    }
}
