//! Operators that run as one: what one emits goes into the next by a call, not through a channel.
//!
//! ```text
//!   batch ──► operator 0 ──► operator 1 ──► … ──► emitted
//!   epoch ──► operator 0 flushes into 1, then 1 flushes into 2, …
//! ```
//!
//! **Time waits behind state.** A stateful operator may hold the changes of an epoch back until the epoch ends, and a
//! watermark or an end that overtook them would make them late. So what such an operator is told of time reaches the
//! operators after it at the end of the epoch, after the changes. That is in the same pass of the epoch's mark through
//! the graph, so it delays nothing that anybody can see.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use weir_storage::{CheckpointId, Epoch};

use crate::error::Result;
use crate::graph::NodeIndex;
use crate::message::{Chunk, EventTime, Message};
use crate::metrics::OperatorMetrics;
use crate::operator::{Operator, Output};
use crate::time::Progress;

/// One operator of a chain.
pub struct Link {
    node: NodeIndex,
    operator: Box<dyn Operator>,
    /// Whether what it knows of time waits for the end of the epoch.
    holds_time: bool,
    held: Held,
    out: Output,
    metrics: Arc<OperatorMetrics>,
}

/// What the operators after a link are told at the end of the epoch.
#[derive(Debug, Default)]
struct Held {
    watermark: Option<EventTime>,
    idle: bool,
    end: bool,
}

impl Link {
    /// `operator` of `node`; `stateful` operators hold time back until the epoch ends.
    pub fn new(node: NodeIndex, operator: Box<dyn Operator>, stateful: bool, metrics: Arc<OperatorMetrics>) -> Self {
        Self { node, operator, holds_time: stateful, held: Held::default(), out: Output::default(), metrics }
    }
}

/// Operators of one task, the first being fed by its inputs.
#[derive(Default)]
pub struct Chain {
    links: Vec<Link>,
    emitted: Vec<Message>,
}

impl Chain {
    /// A chain of `links`; without any, everything passes through.
    #[must_use]
    pub fn new(links: Vec<Link>) -> Self {
        Self { links, emitted: Vec::new() }
    }

    /// Everything emitted since the last call, in order.
    pub fn take(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.emitted)
    }

    /// Gives the emptied buffer back, to be filled again.
    pub fn reuse(&mut self, mut buffer: Vec<Message>) {
        if self.emitted.is_empty() {
            buffer.clear();
            self.emitted = buffer;
        }
    }

    /// Changes arrived on `input` of the first operator.
    pub fn batch(&mut self, input: usize, chunk: Chunk) -> Result<()> {
        self.feed(0, input, chunk)
    }

    /// Changes for `input` of the operator of `node`, wherever it stands in the chain.
    pub fn batch_into(&mut self, node: NodeIndex, input: usize, chunk: Chunk) -> Result<()> {
        match self.links.iter().position(|link| link.node == node) {
            Some(at) => self.feed(at, input, chunk),
            None => Err(crate::error::internal("chain", format!("rows came for operator {node}, which is not in it"))),
        }
    }

    /// Event time moved.
    pub fn progress(&mut self, progress: Progress) -> Result<()> {
        self.tell(0, progress)
    }

    /// All inputs have ended, event time being at its end.
    pub fn end(&mut self) -> Result<()> {
        self.end_from(0)
    }

    /// The epoch ends: all operators flush, first to last. The mark itself is not emitted.
    pub fn epoch(&mut self, epoch: Epoch) -> Result<()> {
        for at in 0..self.links.len() {
            self.call(at, |operator, out| operator.epoch(epoch, out))?;
            let held = std::mem::take(&mut self.links[at].held);
            if let Some(watermark) = held.watermark {
                self.tell(at + 1, Progress::Watermark(watermark))?;
            }
            if held.idle {
                self.tell(at + 1, Progress::Idle)?;
            }
            if held.end {
                self.end_from(at + 1)?;
            }
        }
        Ok(())
    }

    /// The state of each operator that belongs into a checkpoint.
    pub fn snapshot(&mut self) -> Result<Vec<(NodeIndex, Vec<u8>)>> {
        self.links.iter_mut().map(|link| Ok((link.node, link.operator.snapshot()?))).collect()
    }

    /// A checkpoint is durable.
    pub fn checkpoint_complete(&mut self, checkpoint: CheckpointId) -> Result<()> {
        self.links.iter_mut().try_for_each(|link| link.operator.checkpoint_complete(checkpoint))
    }

    /// Counters of the operators in order.
    pub fn metrics(&self) -> impl Iterator<Item = &OperatorMetrics> {
        self.links.iter().map(|link| &*link.metrics)
    }

    fn feed(&mut self, at: usize, input: usize, chunk: Chunk) -> Result<()> {
        let Some(link) = self.links.get_mut(at) else {
            self.emitted.push(Message::Data(chunk));
            return Ok(());
        };
        link.held.idle = false;
        link.metrics.rows_in.fetch_add(chunk.num_rows() as u64, Relaxed);
        self.call(at, |operator, out| operator.batch(input, chunk, out))
    }

    /// Calls an operator and feeds what it emits into the next one.
    fn call(&mut self, at: usize, call: impl FnOnce(&mut dyn Operator, &mut Output) -> Result<()>) -> Result<()> {
        let link = &mut self.links[at];
        let since = Instant::now();
        let done = call(&mut *link.operator, &mut link.out);
        link.metrics.busy_ns.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        done?;
        let chunks = link.out.take();
        link.metrics.rows_out.fetch_add(chunks.iter().map(|chunk| chunk.num_rows() as u64).sum(), Relaxed);
        chunks.into_iter().try_for_each(|chunk| self.feed(at + 1, 0, chunk))
    }

    fn tell(&mut self, at: usize, progress: Progress) -> Result<()> {
        let Some(link) = self.links.get_mut(at) else {
            self.emitted.push(match progress {
                Progress::Watermark(watermark) => Message::Watermark(watermark),
                Progress::Idle => Message::Idle,
            });
            return Ok(());
        };
        match progress {
            Progress::Watermark(watermark) => {
                link.held.idle = false;
                link.metrics.watermark.store(watermark.0, Relaxed);
                self.call(at, |operator, out| operator.watermark(watermark, out))?;
                let link = &mut self.links[at];
                if link.holds_time {
                    link.held.watermark = Some(watermark);
                    return Ok(());
                }
            }
            Progress::Idle if link.holds_time => {
                link.held.idle = true;
                return Ok(());
            }
            Progress::Idle => {}
        }
        self.tell(at + 1, progress)
    }

    fn end_from(&mut self, first: usize) -> Result<()> {
        for at in first..self.links.len() {
            self.call(at, |operator, out| operator.end(out))?;
            let link = &mut self.links[at];
            if link.holds_time {
                link.held.end = true;
                return Ok(());
            }
        }
        self.emitted.push(Message::End);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{int_values, ints};

    /// Passes rows on, each with `add` added; a holding one does so when the epoch ends.
    struct Adder {
        add: i64,
        holds: bool,
        rows: Vec<i64>,
    }

    impl Operator for Adder {
        fn batch(&mut self, _input: usize, chunk: Chunk, out: &mut Output) -> Result<()> {
            self.rows.extend(int_values(&chunk).into_iter().map(|value| value + self.add));
            if !self.holds {
                out.push(ints(&std::mem::take(&mut self.rows)));
            }
            Ok(())
        }

        fn epoch(&mut self, _epoch: Epoch, out: &mut Output) -> Result<()> {
            out.push(ints(&std::mem::take(&mut self.rows)));
            Ok(())
        }
    }

    fn chain(adders: &[(i64, bool)]) -> Chain {
        let link = |(node, (add, holds)): (usize, &(i64, bool))| {
            Link::new(node, Box::new(Adder { add: *add, holds: *holds, rows: Vec::new() }), *holds, Arc::default())
        };
        Chain::new(adders.iter().enumerate().map(link).collect())
    }

    fn told(chain: &mut Chain) -> Vec<String> {
        let text = |message: Message| match message {
            Message::Data(chunk) => format!("{:?}", int_values(&chunk)),
            Message::Watermark(EventTime::MAX) => "end of time".to_owned(),
            other => format!("{other:?}"),
        };
        chain.take().into_iter().map(text).collect()
    }

    #[test]
    fn rows_time_and_end_pass_a_stateless_chain_at_once() {
        let mut chain = chain(&[(1, false), (10, false)]);
        chain.batch(0, ints(&[1, 2])).unwrap();
        chain.progress(Progress::Watermark(EventTime::MAX)).unwrap();
        chain.end().unwrap();
        assert_eq!(told(&mut chain), ["[12, 13]", "end of time", "End"]);
        chain.epoch(Epoch(1)).unwrap();
        assert!(told(&mut chain).is_empty());
    }

    #[test]
    fn what_is_held_for_the_epoch_leaves_before_the_time_that_came_after_it() {
        let mut chain = chain(&[(1, true), (10, true), (100, false)]);
        chain.batch(0, ints(&[1])).unwrap();
        chain.progress(Progress::Watermark(EventTime::MAX)).unwrap();
        chain.end().unwrap();
        assert!(told(&mut chain).is_empty());
        chain.epoch(Epoch(1)).unwrap();
        assert_eq!(told(&mut chain), ["[112]", "end of time", "End"]);
    }

    #[test]
    fn rows_end_an_idleness_that_was_not_yet_told() {
        let mut chain = chain(&[(1, true)]);
        chain.progress(Progress::Idle).unwrap();
        chain.batch(0, ints(&[1])).unwrap();
        chain.epoch(Epoch(1)).unwrap();
        assert_eq!(told(&mut chain), ["[2]"]);
        chain.progress(Progress::Idle).unwrap();
        chain.epoch(Epoch(2)).unwrap();
        assert_eq!(told(&mut chain), ["Idle"]);
    }

    #[test]
    fn counters_count() {
        let mut chain = chain(&[(1, false)]);
        chain.batch(0, ints(&[1, 2, 3])).unwrap();
        let metrics = chain.metrics().next().unwrap();
        assert_eq!((metrics.rows_in.load(Relaxed), metrics.rows_out.load(Relaxed)), (3, 3));
    }
}
