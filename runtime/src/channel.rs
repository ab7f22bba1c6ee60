//! Channels: FIFO queues from one subtask to one subtask, bounded by the bytes of the data in them.
//!
//! ```text
//!  task A/0 ──Sender──►[ D D W E D ]──┐ Receiver
//!  task A/1 ──Sender──►[ D B ]────────┼──► Inbox of task B/0: takes from any channel that is not blocked
//!                        ▲            │
//!                        └ bytes in the queue ≤ credit
//! ```
//!
//! A sender waits only with data: a mark, a watermark or an end is queued at once behind the data before it. One chunk
//! larger than the credit passes when the queue holds no other data.
//!
//! Every channel knows its two ends and its place among the receiver's inputs, and what is queued can be looked at:
//! a checkpoint that overtakes data has to name and persist it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_storage::Subtask;

use crate::graph::NodeIndex;
use crate::message::Message;

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

#[derive(Debug)]
struct Channel {
    id: ChannelId,
    credit: usize,
    queue: Mutex<Queue>,
    /// Told when bytes leave while the sender waits.
    room: Notify,
    /// The receiving task's, shared by all of its channels; told when a queue is no longer empty.
    arrived: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<(Message, usize)>,
    bytes: usize,
    sender_waits: bool,
}

/// The sending end. There is one.
#[derive(Debug)]
pub struct Sender {
    channel: Arc<Channel>,
    blocked: Arc<BlockedTime>,
}

/// The receiving end. There is one.
#[derive(Debug)]
pub struct Receiver {
    channel: Arc<Channel>,
}

impl Sender {
    /// Queues `message`; waits for room if it is data and the credit is used up. A receiver that is gone is not told
    /// of: its task has failed or was cancelled, and whoever runs the job cancels this one too.
    pub async fn send(&self, message: Message) {
        let bytes = match &message {
            Message::Data(chunk) => chunk.memory_size().max(1),
            _ => 0,
        };
        let mut message = Some(message);
        if self.offer(&mut message, bytes) {
            return;
        }
        let since = Instant::now();
        while !self.offer(&mut message, bytes) {
            self.channel.room.notified().await;
        }
        self.blocked.add(since.elapsed());
    }

    fn offer(&self, message: &mut Option<Message>, bytes: usize) -> bool {
        let mut queue = self.channel.queue.lock();
        if bytes > 0 && queue.bytes > 0 && queue.bytes + bytes > self.channel.credit {
            queue.sender_waits = true;
            return false;
        }
        if let Some(message) = message.take() {
            let was_empty = queue.messages.is_empty();
            queue.bytes += bytes;
            queue.messages.push_back((message, bytes));
            drop(queue);
            if was_empty {
                self.channel.arrived.notify_one();
            }
        }
        true
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
        let mut queue = self.channel.queue.lock();
        let (message, bytes) = queue.messages.pop_front()?;
        queue.bytes -= bytes;
        if bytes > 0 && std::mem::take(&mut queue.sender_waits) {
            drop(queue);
            self.channel.room.notify_one();
        }
        Some(message)
    }

    /// Which channel.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.channel.id
    }

    /// Looks at what is queued, oldest first, without taking it.
    pub fn inspect(&self, visit: &mut dyn FnMut(&Message)) {
        for (message, _) in &self.channel.queue.lock().messages {
            visit(message);
        }
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
    arrived: Arc<Notify>,
    channels: Vec<Receiver>,
    turn: usize,
}

impl Inbox {
    /// Opens a channel into this inbox that holds up to `credit` bytes of data. `blocked` counts the time for which its
    /// sender waits.
    pub fn open(&mut self, id: ChannelId, credit: usize, blocked: Arc<BlockedTime>) -> Sender {
        let (queue, room, arrived) = (Mutex::default(), Notify::new(), Arc::clone(&self.arrived));
        let channel = Arc::new(Channel { id, credit, queue, room, arrived });
        self.channels.push(Receiver { channel: Arc::clone(&channel) });
        Sender { channel, blocked }
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

    /// Resolves when something may have arrived since the last [`Inbox::try_receive`] that found nothing. Cancel-safe.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
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

    #[test]
    fn data_waits_for_credit_and_marks_do_not() {
        let mut inbox = Inbox::default();
        let sender = inbox.open(id(0), 1, Arc::default());
        assert!(poll(pin!(sender.send(Message::Data(ints(&[1]))))).is_ready());
        let mut second = pin!(sender.send(Message::Data(ints(&[2]))));
        assert!(poll(second.as_mut()).is_pending());
        assert!(matches!(inbox.try_receive(|_| false), Some((0, Message::Data(_)))));
        assert!(poll(second.as_mut()).is_ready());
        assert!(poll(pin!(sender.send(Message::Watermark(EventTime(7))))).is_ready());
        assert!(matches!(inbox.try_receive(|_| false), Some((0, Message::Data(_)))));
        assert!(matches!(inbox.try_receive(|_| false), Some((0, Message::Watermark(EventTime(7))))));
        assert!(inbox.try_receive(|_| false).is_none());
    }

    #[test]
    fn channels_take_turns_and_blocked_ones_are_passed_over() {
        let mut inbox = Inbox::default();
        let senders = [inbox.open(id(0), 100, Arc::default()), inbox.open(id(1), 100, Arc::default())];
        for sender in &senders {
            for _ in 0..2 {
                assert!(poll(pin!(sender.send(Message::Idle))).is_ready());
            }
        }
        let mut order = Vec::new();
        while let Some((index, _)) = inbox.try_receive(|_| false) {
            order.push(index);
        }
        assert_eq!(order, [0, 1, 0, 1]);
        assert!(poll(pin!(senders[0].send(Message::Idle))).is_ready());
        assert!(inbox.try_receive(|index| index == 0).is_none());
        assert!(inbox.try_receive(|_| false).is_some());
    }

    #[test]
    fn what_is_queued_can_be_looked_at() {
        let mut inbox = Inbox::default();
        let sender = inbox.open(id(0), 100, Arc::default());
        assert!(poll(pin!(sender.send(Message::Idle))).is_ready());
        let mut seen = 0;
        inbox.channels()[0].inspect(&mut |_| seen += 1);
        assert_eq!((seen, inbox.channels()[0].queued_bytes()), (1, 0));
        assert_eq!(inbox.channels()[0].id().to_string(), "0/0->1/0[0]");
    }
}
