//! A sink's writer at the end of a chain.
//!
//! ```text
//!   chain ──► held ──epoch ends──► waiting ──piece by piece, when the writer is ready──► writer
//!             (sinks of changes)      └─────────────┬────────────┘
//!                                                   └ a barrier passes between two pieces
//! ```
//!
//! Rows that the writer has not taken yet are in flight, as those in a channel are: a barrier that overtakes takes them
//! into the checkpoint. So that it finds a gap, rows are written in pieces that take [`PIECE`] each.
//!
//! **A sink of changes gets whole epochs** when barriers may overtake. What a checkpoint commits then never ends between
//! the retraction and the insertion of an update. An epoch that has begun to be written is finished before the barrier.
//!
//! What a writer prepared for a checkpoint that was given up is still to be committed: it holds the rows since the
//! checkpoint before. So it goes into every later one until the writer is told of one that completed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use weir_storage::CheckpointId;

use crate::channel::BlockedTime;
use crate::error::Result;
use crate::graph::NodeIndex;
use crate::message::Chunk;
use crate::metrics::OperatorMetrics;
use crate::sink::SinkWriter;
use crate::time::Progress;

/// How long writing a piece should take at most.
const PIECE: Duration = Duration::from_millis(5);
/// Rows of the first piece.
const FIRST_PIECE: usize = 256;
/// Rows of a piece at most.
const LARGEST_PIECE: usize = 1 << 20;

/// How a sink's rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteMode {
    /// Whether barriers may overtake: rows are written in pieces.
    pub(crate) pieces: bool,
    /// Whether the writer gets the rows of an epoch when the epoch has ended.
    pub(crate) whole_epochs: bool,
}

/// What a writer is told, in order.
#[derive(Debug, Clone)]
enum Item {
    Rows(Chunk),
    /// Behind the rows that it speaks of.
    Progress(Progress),
}

/// A sink's writer, what it has still to write and what it has prepared.
pub(crate) struct SinkEnd {
    node: NodeIndex,
    writer: Box<dyn SinkWriter>,
    mode: WriteMode,
    /// Rows of the present epoch, if the writer gets whole ones.
    held: Vec<Item>,
    /// Begins with rows, if there is anything.
    waiting: VecDeque<Item>,
    /// Whether a part of what waited has been written.
    begun: bool,
    piece: usize,
    unconfirmed: Vec<(CheckpointId, Vec<Vec<u8>>)>,
    metrics: Arc<OperatorMetrics>,
    blocked: Arc<BlockedTime>,
}

/// A sink's part of a checkpoint.
pub(crate) struct SinkPart {
    pub(crate) node: NodeIndex,
    pub(crate) state: Vec<u8>,
    pub(crate) committables: Vec<(CheckpointId, Vec<Vec<u8>>)>,
}

impl SinkEnd {
    pub(crate) fn new(
        node: NodeIndex,
        writer: Box<dyn SinkWriter>,
        mode: WriteMode,
        metrics: Arc<OperatorMetrics>,
        blocked: Arc<BlockedTime>,
    ) -> Self {
        Self {
            node,
            writer,
            mode,
            held: Vec::new(),
            waiting: VecDeque::new(),
            begun: false,
            piece: FIRST_PIECE,
            unconfirmed: Vec::new(),
            metrics,
            blocked,
        }
    }

    pub(crate) fn node(&self) -> NodeIndex {
        self.node
    }

    /// Takes rows to be written.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        self.metrics.rows_in.fetch_add(chunk.num_rows() as u64, Relaxed);
        self.add(Item::Rows(chunk));
    }

    /// Takes in how event time moved: to be told when all rows before it are written.
    pub(crate) fn progress(&mut self, progress: Progress) {
        self.add(Item::Progress(progress));
    }

    fn add(&mut self, item: Item) {
        if self.mode.whole_epochs {
            self.held.push(item);
        } else {
            self.waiting.push_back(item);
            self.tell_progress();
        }
    }

    /// Tells all that comes before the next rows.
    fn tell_progress(&mut self) {
        while let Some(Item::Progress(progress)) = self.waiting.front() {
            self.writer.progress(*progress);
            self.waiting.pop_front();
        }
    }

    /// An epoch ends.
    pub(crate) fn end_epoch(&mut self) {
        self.waiting.extend(self.held.drain(..));
        self.tell_progress();
    }

    /// Whether rows wait to be written.
    pub(crate) fn is_writing(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a barrier may pass at this moment.
    pub(crate) fn may_be_overtaken(&self) -> bool {
        !(self.mode.whole_epochs && self.begun)
    }

    /// Waits until the writer can take rows. Cancel-safe.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        self.writer.ready().await
    }

    /// Writes a piece of what waits. Waiting for the outside world counts as being held back.
    pub(crate) async fn write_piece(&mut self) -> Result<()> {
        let Some(Item::Rows(chunk)) = self.waiting.pop_front() else { return Ok(()) };
        let (piece, rest) = match chunk.num_rows() {
            rows if self.mode.pieces && rows > self.piece => {
                (chunk.slice(0, self.piece), Some(chunk.slice(self.piece, rows - self.piece)))
            }
            _ => (chunk, None),
        };
        if let Some(rest) = rest {
            self.waiting.push_front(Item::Rows(rest));
        }
        let rows = piece.num_rows();
        self.begun = true;
        let since = Instant::now();
        let written = self.writer.write(piece).await;
        let took = since.elapsed();
        self.blocked.add(took);
        self.piece = next_piece(self.piece, rows, took);
        self.tell_progress();
        self.begun = !self.waiting.is_empty();
        self.metrics.rows_out.fetch_add(rows as u64, Relaxed);
        written
    }

    /// Writes all that waits.
    pub(crate) async fn write_all(&mut self) -> Result<()> {
        while self.is_writing() {
            self.ready().await?;
            self.write_piece().await?;
        }
        Ok(())
    }

    /// Rows that the writer has not taken, in order.
    pub(crate) fn in_flight(&self) -> Vec<Chunk> {
        let rows = |item: &Item| match item {
            Item::Rows(chunk) => Some(chunk.clone()),
            Item::Progress(_) => None,
        };
        self.waiting.iter().chain(&self.held).filter_map(rows).collect()
    }

    /// Prepares all that was written for `checkpoint`.
    pub(crate) async fn prepare(&mut self, checkpoint: CheckpointId) -> Result<SinkPart> {
        let prepared = self.writer.prepare(checkpoint).await?;
        if !prepared.committables.is_empty() {
            self.unconfirmed.push((checkpoint, prepared.committables));
        }
        Ok(SinkPart { node: self.node, state: prepared.state, committables: self.unconfirmed.clone() })
    }

    /// `checkpoint` completed, and with it all that was prepared until then.
    pub(crate) fn completed(&mut self, checkpoint: CheckpointId) {
        self.unconfirmed.retain(|(prepared, _)| *prepared > checkpoint);
    }
}

/// Rows of the next piece, after one of `rows` rows `took` so long.
fn next_piece(piece: usize, rows: usize, took: Duration) -> usize {
    let at_this_rate = match took.as_nanos() {
        0 => u128::MAX,
        nanos => rows as u128 * PIECE.as_nanos() / nanos,
    };
    // A short piece says little about a longer one.
    let most = if rows < piece { piece } else { piece.saturating_mul(4) };
    usize::try_from(at_this_rate).unwrap_or(usize::MAX).clamp(1, most.min(LARGEST_PIECE))
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;
    use crate::sink::Prepared;
    use crate::testing::{int_values, ints};

    /// Notes what it is told; a watermark as a negative number.
    #[derive(Default)]
    struct Writer(Arc<Mutex<Vec<Vec<i64>>>>);

    #[async_trait]
    impl SinkWriter for Writer {
        async fn write(&mut self, chunk: Chunk) -> Result<()> {
            self.0.lock().push(int_values(&chunk));
            Ok(())
        }

        fn progress(&mut self, progress: Progress) {
            if let Progress::Watermark(watermark) = progress {
                self.0.lock().push(vec![-watermark.0]);
            }
        }

        async fn prepare(&mut self, _: CheckpointId) -> Result<Prepared> {
            Ok(Prepared::default())
        }
    }

    fn end(mode: WriteMode) -> (SinkEnd, Arc<Mutex<Vec<Vec<i64>>>>) {
        let written = Arc::default();
        let writer = Box::new(Writer(Arc::clone(&written)));
        (SinkEnd::new(0, writer, mode, Arc::default(), Arc::default()), written)
    }

    fn in_flight(end: &SinkEnd) -> Vec<i64> {
        end.in_flight().iter().flat_map(int_values).collect()
    }

    #[tokio::test]
    async fn a_barrier_passes_between_two_pieces() {
        let (mut end, written) = end(WriteMode { pieces: true, whole_epochs: false });
        end.piece = 2;
        end.push(ints(&[1, 2, 3]));
        end.push(ints(&[4]));
        end.write_piece().await.unwrap();
        assert!(end.may_be_overtaken());
        assert_eq!((written.lock().concat(), in_flight(&end)), (vec![1, 2], vec![3, 4]));
        end.write_all().await.unwrap();
        assert_eq!((written.lock().concat(), in_flight(&end)), (vec![1, 2, 3, 4], vec![]));
    }

    #[tokio::test]
    async fn a_sink_of_changes_gets_whole_epochs() {
        let (mut end, written) = end(WriteMode { pieces: true, whole_epochs: true });
        end.piece = 2;
        end.push(ints(&[1, 2, 3]));
        assert!(!end.is_writing());
        end.end_epoch();
        end.push(ints(&[4]));
        assert!(end.may_be_overtaken());
        assert_eq!(in_flight(&end), [1, 2, 3, 4]);
        end.write_piece().await.unwrap();
        assert!(!end.may_be_overtaken(), "an epoch is being written");
        end.write_all().await.unwrap();
        assert!(end.may_be_overtaken());
        assert_eq!((written.lock().concat(), in_flight(&end)), (vec![1, 2, 3], vec![4]));
    }

    #[tokio::test]
    async fn time_is_told_behind_the_rows_that_it_speaks_of() {
        let at = |time| Progress::Watermark(crate::message::EventTime(time));
        let (mut end, written) = end(WriteMode { pieces: true, whole_epochs: false });
        end.progress(at(5));
        end.push(ints(&[1, 2]));
        end.progress(at(7));
        assert_eq!(written.lock().concat(), [-5], "there are no rows before it");
        end.write_all().await.unwrap();
        assert_eq!(written.lock().concat(), [-5, 1, 2, -7]);
        let (mut whole, written) = super::tests::end(WriteMode { pieces: true, whole_epochs: true });
        whole.progress(at(5));
        assert!(written.lock().is_empty());
        whole.end_epoch();
        assert_eq!(written.lock().concat(), [-5]);
        assert!(!whole.is_writing());
    }

    #[test]
    fn pieces_take_so_long_and_grow_step_by_step() {
        assert_eq!(next_piece(256, 256, Duration::from_millis(256)), 5);
        assert_eq!(next_piece(5, 5, Duration::from_millis(5)), 5);
        assert_eq!(next_piece(5, 5, Duration::from_secs(60)), 1);
        assert_eq!(next_piece(256, 256, Duration::ZERO), 1024);
        assert_eq!(next_piece(256, 3, Duration::ZERO), 256, "a short one says nothing about longer ones");
        assert_eq!(next_piece(LARGEST_PIECE, LARGEST_PIECE, Duration::ZERO), LARGEST_PIECE);
    }
}
