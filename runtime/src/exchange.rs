//! The sending side of an edge: which subtask of the receiver gets which row.
//!
//! A chunk is parted by one stable counting sort of its rows by receiver and one `take` a column; the receivers' parts
//! are slices of the result. Rows of one key thus keep their order. Small parts are collected into chunks of up to
//! [`BATCH_ROWS`] rows, and everything collected is sent before any watermark, mark or end, so that nothing ever
//! arrives on the wrong side of one.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int8Array, RecordBatch, UInt32Array};
use arrow::compute::{concat, concat_batches, take, take_record_batch};
use arrow::datatypes::SchemaRef;
use weir_storage::{KeyEncoder, Subtask, owner_of};

use crate::channel::Sender;
use crate::error::{Result, internal};
use crate::graph::Exchange;
use crate::message::{Chunk, Message};

/// Parts are collected up to this many rows before they are sent.
pub const BATCH_ROWS: usize = 8192;
/// A chunk of at least this many rows is sent as it is.
const WHOLE_ROWS: usize = BATCH_ROWS / 4;
/// Parts are collected up to this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// How rows are parted.
#[derive(Debug)]
enum Parting {
    /// All to the only receiver.
    One,
    /// To the owner of the key group.
    Hash { columns: Vec<usize>, encoder: KeyEncoder, max_parallelism: u16 },
    /// Chunk by chunk in turn.
    Turns { next: usize },
}

/// One edge as one subtask of its upstream sees it.
#[derive(Debug)]
pub struct OutputEdge {
    parting: Parting,
    receivers: Vec<ToReceiver>,
}

#[derive(Debug)]
struct ToReceiver {
    sender: Sender,
    collected: Vec<Chunk>,
    rows: usize,
    bytes: usize,
}

impl OutputEdge {
    /// An edge to `senders`, one a receiving subtask in order, that carries rows of `schema`.
    pub fn new(exchange: &Exchange, senders: Vec<Sender>, schema: &SchemaRef, max_parallelism: u16) -> Result<Self> {
        let parting = match exchange {
            _ if senders.len() == 1 => Parting::One,
            Exchange::Forward => return Err(internal("exchange", "a forward edge has more than one receiver")),
            Exchange::Hash(columns) => {
                let types: Vec<_> = schema.project(columns)?.fields().iter().map(|f| f.data_type().clone()).collect();
                let encoder = KeyEncoder::new(&types, max_parallelism)?;
                Parting::Hash { columns: columns.clone(), encoder, max_parallelism }
            }
            Exchange::Rebalance => Parting::Turns { next: 0 },
        };
        let receivers = senders.into_iter().map(ToReceiver::new).collect();
        Ok(Self { parting, receivers })
    }

    /// Sends rows, or collects them to be sent.
    pub fn data(&mut self, chunk: Chunk) -> Result<()> {
        let count = self.receivers.len();
        match &mut self.parting {
            Parting::One => self.receivers[0].add(chunk),
            Parting::Turns { next } => {
                let turn = *next;
                *next = (turn + 1) % count;
                self.receivers[turn].add(chunk)
            }
            Parting::Hash { columns, encoder, max_parallelism } => {
                for (receiver, part) in part(&chunk, columns, encoder, count as u32, *max_parallelism)? {
                    self.receivers[receiver.0 as usize].add(part)?;
                }
                Ok(())
            }
        }
    }

    /// Sends all that is collected, then `message`, to every receiver.
    pub fn control(&mut self, message: &Message) -> Result<()> {
        for receiver in &mut self.receivers {
            receiver.flush()?;
            receiver.sender.send(message.clone());
        }
        Ok(())
    }
}

impl ToReceiver {
    fn new(sender: Sender) -> Self {
        Self { sender, collected: Vec::new(), rows: 0, bytes: 0 }
    }

    fn add(&mut self, chunk: Chunk) -> Result<()> {
        let rows = chunk.num_rows();
        if rows == 0 {
            return Ok(());
        }
        if rows >= WHOLE_ROWS {
            self.flush()?;
            self.sender.send(Message::Data(chunk));
            return Ok(());
        }
        self.rows += rows;
        self.bytes += chunk.memory_size();
        self.collected.push(chunk);
        if self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.collected.is_empty() {
            return Ok(());
        }
        let chunk = join(&self.collected)?;
        self.collected.clear();
        (self.rows, self.bytes) = (0, 0);
        self.sender.send(Message::Data(chunk));
        Ok(())
    }
}

/// Several chunks of one schema as one.
fn join(chunks: &[Chunk]) -> Result<Chunk> {
    if let [only] = chunks {
        return Ok(only.clone());
    }
    let Some(first) = chunks.first() else { return Err(internal("exchange", "joined no chunks")) };
    let batch = concat_batches(&first.schema(), chunks.iter().map(Chunk::batch))?;
    if chunks.iter().all(|chunk| chunk.ops().is_none()) {
        return Ok(Chunk::insert(batch));
    }
    let ops: Vec<ArrayRef> = chunks
        .iter()
        .map(|chunk| match chunk.ops() {
            Some(ops) => Arc::new(ops.clone()) as ArrayRef,
            None => Arc::new(Int8Array::from_value(1, chunk.num_rows())),
        })
        .collect();
    let ops = concat(&ops.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
    Ok(Chunk::new(batch, weights(&ops)?))
}

/// The rows of `chunk` by the subtask that owns their key group; subtasks without rows are left out.
pub(crate) fn part(
    chunk: &Chunk,
    columns: &[usize],
    encoder: &KeyEncoder,
    parallelism: u32,
    max_parallelism: u16,
) -> Result<Vec<(Subtask, Chunk)>> {
    let rows = chunk.num_rows();
    let key = crate::keys::key_columns(chunk.batch(), columns);
    let keys = encoder.encode_rows(&key, rows)?;
    let owners: Vec<u32> = (0..rows).map(|row| owner_of(keys.group(row), parallelism, max_parallelism).0).collect();
    let mut starts = vec![0u32; parallelism as usize + 1];
    for owner in &owners {
        starts[*owner as usize + 1] += 1;
    }
    for owner in 0..parallelism as usize {
        starts[owner + 1] += starts[owner];
    }
    let range = |owner: usize| (starts[owner] as usize, (starts[owner + 1] - starts[owner]) as usize);
    if let Some(only) = (0..parallelism as usize).find(|owner| range(*owner).1 == rows) {
        return Ok(vec![(Subtask(only as u32), chunk.clone())]);
    }
    let mut next: Vec<u32> = starts.clone();
    let mut order = vec![0u32; rows];
    for (row, owner) in owners.iter().enumerate() {
        let place = &mut next[*owner as usize];
        order[*place as usize] = row as u32;
        *place += 1;
    }
    let sorted = select(chunk, &UInt32Array::from(order))?;
    let parts = (0..parallelism as usize).filter_map(|owner| {
        let (start, length) = range(owner);
        (length > 0).then(|| (Subtask(owner as u32), sorted.slice(start, length)))
    });
    Ok(parts.collect())
}

/// The rows at `indices`, in that order.
fn select(chunk: &Chunk, indices: &UInt32Array) -> Result<Chunk> {
    let batch: RecordBatch = take_record_batch(chunk.batch(), indices)?;
    match chunk.ops() {
        None => Ok(Chunk::insert(batch)),
        Some(ops) => Ok(Chunk::new(batch, weights(&take(ops, indices, None)?)?)),
    }
}

fn weights(column: &ArrayRef) -> Result<Int8Array> {
    let weights = column.as_any().downcast_ref::<Int8Array>();
    weights.cloned().ok_or_else(|| internal("exchange", "weights are not of type Int8"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::channel::{ChannelId, Endpoint, Inbox};
    use crate::message::EventTime;
    use crate::testing::{int_values, ints, weighted};
    use weir_storage::{Epoch, key_group_of};

    fn edge(exchange: &Exchange, receivers: u32) -> (OutputEdge, Vec<Inbox>) {
        let mut inboxes: Vec<Inbox> = (0..receivers).map(|_| Inbox::default()).collect();
        let end = |node, subtask| Endpoint { node, subtask: Subtask(subtask) };
        let id = |to| ChannelId { from: end(0, 0), to: end(1, to), input: 0 };
        let senders =
            inboxes.iter_mut().zip(0..).map(|(inbox, to)| inbox.open(id(to), 1 << 30, Arc::default())).collect();
        (OutputEdge::new(exchange, senders, &ints(&[]).schema(), 128).unwrap(), inboxes)
    }

    fn received(inbox: &mut Inbox) -> Vec<Message> {
        std::iter::from_fn(|| inbox.try_receive(|_| false).map(|(_, message)| message)).collect()
    }

    #[test]
    fn rows_go_to_the_owner_of_their_key_group_with_their_weights_in_order() {
        let (mut edge, mut inboxes) = edge(&Exchange::Hash(vec![0]), 3);
        let rows: Vec<(i64, i8)> = (0..600).map(|i| (i % 50, if i % 7 == 0 { -1 } else { 1 })).collect();
        edge.data(weighted(&rows)).unwrap();
        edge.control(&Message::Epoch(Epoch(1))).unwrap();
        let encoder = KeyEncoder::new(&[arrow::datatypes::DataType::Int64], 128).unwrap();
        let mut all = Vec::new();
        for (subtask, inbox) in inboxes.iter_mut().enumerate() {
            let messages = received(inbox);
            assert!(matches!(messages.last(), Some(Message::Epoch(_))));
            let mut of_keys: BTreeMap<i64, Vec<i8>> = BTreeMap::new();
            for message in &messages {
                let Message::Data(chunk) = message else { continue };
                for (row, value) in int_values(chunk).into_iter().enumerate() {
                    let key = encoder.encode(&chunk.slice(row, 1).batch().columns()[..1]).unwrap();
                    let owner = owner_of(key_group_of(key.key(0), 128), 3, 128);
                    assert_eq!(owner.0 as usize, subtask);
                    of_keys.entry(value).or_default().push(chunk.op(row));
                    all.push((value, chunk.op(row)));
                }
            }
            for (key, weights) in of_keys {
                let expected: Vec<i8> = rows.iter().filter(|row| row.0 == key).map(|row| row.1).collect();
                assert_eq!(weights, expected, "order of key {key}");
            }
        }
        let mut expected = rows.clone();
        expected.sort_unstable();
        all.sort_unstable();
        assert_eq!(all, expected);
    }

    #[test]
    fn small_chunks_are_collected_and_sent_before_a_mark() {
        let (mut edge, mut inboxes) = edge(&Exchange::Forward, 1);
        edge.data(ints(&[1])).unwrap();
        edge.data(weighted(&[(1, -1)])).unwrap();
        assert!(received(&mut inboxes[0]).is_empty());
        edge.control(&Message::Watermark(EventTime(1))).unwrap();
        let messages = received(&mut inboxes[0]);
        let [Message::Data(chunk), Message::Watermark(_)] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((chunk.op(0), chunk.op(1)), (1, -1));
    }

    #[test]
    fn large_chunks_pass_at_once_and_behind_what_was_collected() {
        let (mut edge, mut inboxes) = edge(&Exchange::Forward, 1);
        edge.data(ints(&[7])).unwrap();
        edge.data(ints(&vec![1; BATCH_ROWS])).unwrap();
        let messages = received(&mut inboxes[0]);
        let [Message::Data(first), Message::Data(second)] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((first.num_rows(), second.num_rows()), (1, BATCH_ROWS));
    }

    #[test]
    fn rebalancing_takes_turns() {
        let (mut edge, mut inboxes) = edge(&Exchange::Rebalance, 2);
        for _ in 0..4 {
            edge.data(ints(&vec![1; WHOLE_ROWS])).unwrap();
        }
        assert_eq!(inboxes.iter_mut().map(|inbox| received(inbox).len()).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn without_columns_all_rows_have_one_owner() {
        let (mut edge, mut inboxes) = edge(&Exchange::Hash(vec![]), 4);
        edge.data(ints(&vec![1; BATCH_ROWS])).unwrap();
        let counts: Vec<usize> = inboxes.iter_mut().map(|inbox| received(inbox).len()).collect();
        assert_eq!(counts.iter().sum::<usize>(), 1);
        assert_eq!(counts[owner_of(key_group_of(&[1], 128), 4, 128).0 as usize], 1);
    }
}
