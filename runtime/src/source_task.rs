//! The task at a source: reads splits, computes the declared columns and event time, and is where marks enter the graph.
//!
//! ```text
//!   control ──► epoch, barrier, pause, resume, new splits
//!                  │
//!   reader.next() ─┴─► columns ──► event time per split ──► chain ──► edges or sink
//! ```
//!
//! A watermark is sent when the epoch ends, when there is nothing more to read at present, and after every
//! [`WATERMARK_ROWS`] rows: seldom enough that small parts can be collected on the way, often enough that state closes.
//! The watermark stands in the checkpoint. After a restart event time goes on from there, so that rows which were late
//! before the failure are late again, and a window whose result went out is never opened anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, Int8Array, RecordBatch, RecordBatchOptions};
use arrow::compute::{cast, max};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit, TimestampMicrosecondType};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use weir_storage::CheckpointId;

use crate::alignment::Mark;
use crate::channel::ChannelId;
use crate::error::{Result, internal};
use crate::graph::{Expr, NodeIndex, SourceSpec};
use crate::message::{Alignment, Barrier, Chunk, EventTime};
use crate::metrics::OperatorMetrics;
use crate::rejects::{RejectLedger, Rejects};
use crate::run::{Control, TaskEvent};
use crate::source::{SourceEvent, SourceReader, SplitId, SplitState};
use crate::task::Task;
use crate::time::{Progress, SplitTimes};

/// A watermark that advanced is sent after so many rows at the latest.
const WATERMARK_ROWS: usize = 16_384;

/// A source subtask's part of a checkpoint: its share of the source's table of splits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SplitTable {
    /// The watermark that the subtask had sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) watermark: Option<EventTime>,
    /// Its splits, finished ones included.
    pub(crate) splits: Vec<TableSplit>,
}

/// A split in the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TableSplit {
    #[serde(flatten)]
    pub(crate) state: SplitState,
    /// The watermark that its rows had come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) watermark: Option<EventTime>,
}

/// The columns of a source and its event time.
pub(crate) struct SourceColumns {
    exprs: Vec<Expr>,
    schema: SchemaRef,
    watermark: Option<Expr>,
    /// Whether event time is what the splits tell.
    told: bool,
}

impl SourceColumns {
    pub(crate) fn new(spec: &SourceSpec, schema: SchemaRef) -> Self {
        let watermark = spec.watermark.as_ref().and_then(|watermark| watermark.expr.clone());
        let told = spec.watermark.as_ref().is_some_and(|watermark| watermark.expr.is_none());
        Self { exprs: spec.columns.clone(), schema, watermark, told }
    }

    /// The source's rows out of what was read, and how far they bring event time.
    fn compute(&self, read: &RecordBatch) -> Result<(RecordBatch, Option<EventTime>)> {
        let rows = read.num_rows();
        let column = |expr: &Expr| -> Result<ArrayRef> { Ok(expr.evaluate(read)?.into_array(rows)?) };
        let columns = self.exprs.iter().map(column).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        let Some(expr) = &self.watermark else { return Ok((batch, None)) };
        let times = expr.evaluate(&batch)?.into_array(rows)?;
        let times = match times.data_type() {
            DataType::Timestamp(TimeUnit::Microsecond, _) => times,
            _ => cast(&times, &DataType::Timestamp(TimeUnit::Microsecond, None))?,
        };
        let latest = max(times.as_primitive::<TimestampMicrosecondType>()).map(EventTime);
        Ok((batch, latest))
    }
}

/// A task that reads a source.
pub(crate) struct SourceTask {
    pub(crate) task: Task,
    pub(crate) node: NodeIndex,
    pub(crate) relation: String,
    /// None when all splits are finished and no more will come.
    pub(crate) reader: Option<Box<dyn SourceReader>>,
    pub(crate) columns: SourceColumns,
    pub(crate) splits: BTreeMap<SplitId, SplitState>,
    pub(crate) times: SplitTimes,
    pub(crate) control: mpsc::UnboundedReceiver<Control>,
    pub(crate) metrics: Arc<OperatorMetrics>,
    pub(crate) rejects: Arc<RejectLedger>,
    pub(crate) paused: bool,
    pub(crate) state: ReadState,
}

/// What a source task remembers between two steps.
pub(crate) struct ReadState {
    /// Whether event time goes on; not before all recovered rows are taken up.
    begun: bool,
    ended: bool,
    /// Whether there was nothing to read, once.
    caught_up: bool,
    /// The last checkpoint: nothing may be read behind its barrier.
    held_by: Option<CheckpointId>,
    /// There was nothing to read; ask again then.
    ask_again: Option<Instant>,
    rows_since_watermark: usize,
    /// Since the clock of idleness moved.
    read_rows: bool,
    clock: Instant,
    clock_blocked: Duration,
}

impl Default for ReadState {
    fn default() -> Self {
        Self {
            begun: false,
            ended: false,
            caught_up: false,
            held_by: None,
            ask_again: None,
            rows_since_watermark: 0,
            read_rows: false,
            clock: Instant::now(),
            clock_blocked: Duration::ZERO,
        }
    }
}

/// What a source task does next.
#[allow(clippy::large_enum_variant, reason = "it lives for one step of the loop and is never stored")]
enum Step {
    Control(Option<Control>),
    Recovered(ChannelId, Chunk),
    /// What comes after has room, or is ready.
    Freed,
    Read(SourceEvent),
    AskAgain,
}

impl SourceTask {
    /// Runs until cancelled.
    pub(crate) async fn run(mut self) -> Result<()> {
        loop {
            if self.task.recovered.is_empty() {
                self.begin()?;
            }
            match self.next().await? {
                Step::Control(Some(control)) => self.on_control(control).await?,
                // The driver is gone: the run is over.
                Step::Control(None) => return Ok(()),
                Step::Recovered(channel, chunk) => self.task.recover(channel, chunk)?,
                Step::Freed => self.task.write().await?,
                Step::Read(event) => self.on_event(event)?,
                Step::AskAgain => self.state.ask_again = None,
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Event time goes on from where it was, behind the rows that were in flight.
    fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.state.begun, true) {
            return Ok(());
        }
        if let Some(floor) = self.times.emitted() {
            self.progress([Some(Progress::Watermark(floor)), None])?;
        }
        if self.reader.is_none() { self.end() } else { Ok(()) }
    }

    async fn next(&mut self) -> Result<Step> {
        if let Ok(control) = self.control.try_recv() {
            return Ok(Step::Control(Some(control)));
        }
        let held_back = !self.task.may_take();
        if !held_back && let Some((channel, chunk)) = self.task.recovered.pop_front() {
            return Ok(Step::Recovered(channel, chunk));
        }
        let since = Instant::now();
        let may_read = !self.paused && !self.state.ended && self.state.held_by.is_none();
        let step = match (&mut self.reader, self.state.ask_again) {
            _ if held_back => tokio::select! {
                biased;
                control = self.control.recv() => Step::Control(control),
                freed = self.task.freed() => {
                    freed?;
                    Step::Freed
                }
            },
            (Some(reader), None) if may_read => tokio::select! {
                biased;
                control = self.control.recv() => Step::Control(control),
                event = reader.next() => Step::Read(event?),
            },
            (Some(_), Some(at)) if may_read => tokio::select! {
                biased;
                control = self.control.recv() => Step::Control(control),
                () = tokio::time::sleep_until(at.into()) => Step::AskAgain,
            },
            _ => Step::Control(self.control.recv().await),
        };
        self.task.count_wait(held_back, since.elapsed());
        Ok(step)
    }

    async fn on_control(&mut self, control: Control) -> Result<()> {
        match control {
            Control::Epoch(epoch) => self.mark(Mark::Epoch(epoch)).await,
            Control::Barrier(barrier) => self.barrier(barrier).await,
            Control::Pause => {
                self.move_clock();
                self.paused = true;
                Ok(())
            }
            Control::Resume => {
                self.paused = false;
                self.restart_clock();
                Ok(())
            }
            Control::Drain => {
                if self.state.ended {
                    return Ok(());
                }
                self.paused = false;
                self.restart_clock();
                self.end()
            }
            // What was found while it was being drained belongs to nobody any more.
            Control::AddSplits(_) if self.state.ended && self.reader.is_some() => Ok(()),
            Control::AddSplits(splits) => self.add_splits(splits).await,
            Control::Completed(checkpoint) => self.task.completed(checkpoint),
            Control::Aborted(checkpoint) => {
                if self.state.held_by == Some(checkpoint) {
                    self.state.held_by = None;
                    self.restart_clock();
                }
                Ok(())
            }
        }
    }

    async fn barrier(&mut self, barrier: Barrier) -> Result<()> {
        let (query, task) = (&self.task.run.query, &self.task.name);
        tracing::debug!(%query, checkpoint = %barrier.checkpoint, %task, "barrier");
        // One that was given up meanwhile holds nothing: nobody would tell this task again.
        if barrier.last && self.task.run.writer(barrier.checkpoint).is_some() {
            self.state.held_by = Some(barrier.checkpoint);
        }
        if barrier.alignment != Alignment::Unaligned {
            return self.mark(Mark::Barrier(barrier)).await;
        }
        // Nothing comes before a source: its snapshot is taken when the barrier is triggered, however long it is held back.
        let Self { task, node, splits, times, .. } = self;
        if let Some((writer, snapshot)) = task.overtake(barrier, || table(*node, splits, times)).await? {
            task.run.upload(snapshot.upload(writer, Arc::clone(&task.run)));
        }
        Ok(())
    }

    async fn mark(&mut self, mark: Mark) -> Result<()> {
        // No mark passes rows that are to be taken up, and no time either.
        while let Some((channel, chunk)) = self.task.recovered.pop_front() {
            self.task.recover(channel, chunk)?;
        }
        self.begin()?;
        if !self.state.ended {
            self.move_clock();
            let moved = self.times.progress();
            self.progress(moved)?;
        }
        let Self { task, node, splits, times, .. } = self;
        task.mark(mark, Duration::ZERO, || table(*node, splits, times)).await
    }

    async fn add_splits(&mut self, splits: Vec<SplitState>) -> Result<()> {
        for split in &splits {
            self.times.add(split.id.clone(), None);
            self.splits.insert(split.id.clone(), split.clone());
        }
        self.state.ask_again = None;
        match &mut self.reader {
            Some(reader) => reader.add_splits(splits).await,
            None => Err(internal("source task", "splits were added to a source that has ended")),
        }
    }

    fn on_event(&mut self, event: SourceEvent) -> Result<()> {
        match event {
            SourceEvent::Rows { split, batch, ops, position, bad } => {
                if !bad.is_empty() {
                    self.metrics.bad_rows.fetch_add(bad.len() as u64, Relaxed);
                    self.rejects.bad(bad);
                }
                match self.splits.get_mut(&split) {
                    Some(state) => state.position = position,
                    None => return Err(self.unknown(&split)),
                }
                self.rows(&split, &batch, ops)
            }
            SourceEvent::Watermark { split, watermark, position } => {
                match self.splits.get_mut(&split) {
                    Some(state) => state.position = position,
                    None => return Err(self.unknown(&split)),
                }
                // It is sent with the next mark, or when there is nothing more to read.
                if self.columns.told {
                    self.times.told(&split, watermark);
                    self.state.read_rows = true;
                }
                Ok(())
            }
            SourceEvent::SplitFinished { split } => {
                match self.splits.get_mut(&split) {
                    Some(state) => state.finished = true,
                    None => return Err(self.unknown(&split)),
                }
                self.times.finished(&split);
                Ok(())
            }
            SourceEvent::Idle(time) => {
                self.state.ask_again = Some(Instant::now() + time);
                if !std::mem::replace(&mut self.state.caught_up, true) {
                    self.task.run.tell(TaskEvent::CaughtUp { task: self.task.id });
                }
                self.move_clock();
                let moved = self.times.progress();
                self.progress(moved)
            }
            SourceEvent::End => self.end(),
        }
    }

    fn unknown(&self, split: &SplitId) -> crate::RuntimeError {
        internal(
            "source task",
            format!("the reader of {} names split \"{}\", which it was not given", self.relation, split.0),
        )
    }

    fn rows(&mut self, split: &SplitId, read: &RecordBatch, ops: Option<Int8Array>) -> Result<()> {
        let rows = read.num_rows();
        if rows == 0 {
            return Ok(());
        }
        let since = Instant::now();
        let (batch, latest) = self.columns.compute(read)?;
        self.metrics.busy_ns.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        self.metrics.rows_in.fetch_add(rows as u64, Relaxed);
        self.metrics.rows_out.fetch_add(rows as u64, Relaxed);
        let chunk = match ops {
            Some(ops) => Chunk::new(batch, ops),
            None => Chunk::insert(batch),
        };
        self.task.chain.batch(0, chunk)?;
        self.task.drain()?;
        self.times.rows(split, latest);
        self.state.read_rows = true;
        self.state.rows_since_watermark += rows;
        if self.state.rows_since_watermark >= WATERMARK_ROWS {
            let moved = self.times.progress();
            self.progress(moved)?;
        }
        Ok(())
    }

    fn progress(&mut self, moved: [Option<Progress>; 2]) -> Result<()> {
        self.state.rows_since_watermark = 0;
        for progress in moved.into_iter().flatten() {
            if let Progress::Watermark(watermark) = progress {
                self.metrics.watermark.store(watermark.0, Relaxed);
            }
            self.task.chain.progress(progress)?;
        }
        self.task.drain()
    }

    fn end(&mut self) -> Result<()> {
        self.state.ended = true;
        self.splits.values_mut().for_each(|split| split.finished = true);
        self.progress([Some(Progress::Watermark(EventTime::MAX)), None])?;
        self.task.chain.end()?;
        self.task.drain()?;
        self.task.run.tell(TaskEvent::SourceEnded { task: self.task.id });
        Ok(())
    }

    /// Moves the clock of idleness on by the time in which the source was neither held back nor paused.
    fn move_clock(&mut self) {
        let held = self.paused || self.state.held_by.is_some();
        let (now, blocked) = (Instant::now(), self.task.blocked.total());
        let passed = now.duration_since(self.state.clock).saturating_sub(blocked - self.state.clock_blocked);
        if !held {
            self.times.pass(passed, !std::mem::take(&mut self.state.read_rows));
        }
        (self.state.clock, self.state.clock_blocked) = (now, blocked);
    }

    fn restart_clock(&mut self) {
        (self.state.clock, self.state.clock_blocked) = (Instant::now(), self.task.blocked.total());
    }
}

/// The source's part of a checkpoint.
fn table(
    node: NodeIndex,
    splits: &BTreeMap<SplitId, SplitState>,
    times: &SplitTimes,
) -> Result<Option<(NodeIndex, serde_json::Value)>> {
    match serde_json::to_value(SplitTable::of(splits, times)) {
        Ok(table) => Ok(Some((node, table))),
        Err(error) => Err(internal("table of splits", error.to_string())),
    }
}

impl SplitTable {
    fn of(splits: &BTreeMap<SplitId, SplitState>, times: &SplitTimes) -> Self {
        let split = |split: &SplitState| TableSplit { state: split.clone(), watermark: times.of(&split.id) };
        Self { watermark: times.emitted(), splits: splits.values().map(split).collect() }
    }
}
