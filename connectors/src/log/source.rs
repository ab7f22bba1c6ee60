//! Reads a log entry by entry, waiting at its head until more is committed.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use weir_runtime::message::EventTime;
use weir_runtime::source::{Source, SourceEvent, SourceReader, SourceRequest, SplitId, SplitState};
use weir_runtime::{Result, RuntimeError};
use weir_storage::{Log, LogBatch, LogSeq};

use super::END_KEY;

/// How long a reader waits at the head before it reports that there is nothing.
const HEAD_PATIENCE: Duration = Duration::from_millis(500);

/// A relation's log as a source. It has one split: entries have one order.
pub struct LogSource {
    log: Log,
    request: SourceRequest,
    until: Option<LogSeq>,
    delivered: Option<watch::Sender<LogSeq>>,
    retained: Option<Arc<RetainedPositions>>,
}

/// Which entries a query may still ask for: where its retained checkpoints stand.
#[derive(Debug, Default)]
pub struct RetainedPositions {
    positions: Mutex<Option<Vec<LogSeq>>>,
    moved: Arc<Notify>,
}

impl RetainedPositions {
    /// Nothing is known yet. `moved` is notified when something is.
    pub fn new(moved: Arc<Notify>) -> Self {
        Self { positions: Mutex::default(), moved }
    }

    /// The entry that comes next after each retained checkpoint; `None` until the first one has told.
    pub fn get(&self) -> Option<Vec<LogSeq>> {
        self.positions.lock().clone()
    }

    fn set(&self, positions: Vec<LogSeq>) {
        *self.positions.lock() = Some(positions);
        self.moved.notify_one();
    }
}

/// Where reading goes on: the batch of the entry that comes next. Behind an entry's last batch stands its watermark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    entry: LogSeq,
    #[serde(default)]
    batch: usize,
}

impl LogSource {
    /// Follows `log` until its end mark. `request.declared` names the columns to find in its entries.
    pub fn new(log: Log, request: SourceRequest) -> Self {
        Self { log, request, until: None, delivered: None, retained: None }
    }

    /// Ends after the entry `until`.
    #[must_use]
    pub fn until(mut self, until: LogSeq) -> Self {
        self.until = Some(until);
        self
    }

    /// Tells through `delivered` which entry has been handed over in full.
    #[must_use]
    pub fn telling(mut self, delivered: watch::Sender<LogSeq>) -> Self {
        self.delivered = Some(delivered);
        self
    }
}

impl LogSource {
    /// Tells through `retained` which entries may still be asked for.
    #[must_use]
    pub fn keeping(mut self, retained: Arc<RetainedPositions>) -> Self {
        self.retained = Some(retained);
        self
    }
}

#[async_trait]
impl Source for LogSource {
    async fn discover(&self, known: &[SplitState], _parallelism: u32) -> Result<Vec<SplitState>> {
        if !known.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![SplitState { id: SplitId("log".to_owned()), position: serde_json::Value::Null, finished: false }])
    }

    fn discovery_interval(&self) -> Option<Duration> {
        None
    }

    fn is_bounded(&self) -> bool {
        self.until.is_some()
    }

    async fn reader(&self, splits: Vec<SplitState>) -> Result<Box<dyn SourceReader>> {
        let mut next = None;
        for split in splits.into_iter().filter(|s| !s.finished) {
            let position = match split.position {
                serde_json::Value::Null => Position { entry: self.log.first().await?, batch: 0 },
                value => serde_json::from_value(value).map_err(|e| RuntimeError::Internal {
                    place: "log source",
                    reason: format!("position of split {} cannot be read: {e}", split.id.0),
                })?,
            };
            next = Some((split.id, position));
        }
        if let Some((_, position)) = &next {
            // Learns the head, which the watch then follows.
            self.log.head().await?;
            if let Some(delivered) = &self.delivered {
                // What the restored state holds was handed over by an earlier run.
                delivered.send_replace(LogSeq(position.entry.0.saturating_sub(1)));
            }
        }
        Ok(Box::new(LogReader {
            projected: self.request.projected()?,
            log: self.log.clone(),
            head: self.log.watch(),
            until: self.until,
            delivered: self.delivered.clone(),
            next,
            entry: None,
            finished: None,
        }))
    }

    fn release(&self, retained: &[Vec<SplitState>]) {
        let Some(positions) = &self.retained else { return };
        let entry = |splits: &Vec<SplitState>| {
            let position = |split: &SplitState| serde_json::from_value::<Position>(split.position.clone()).ok();
            // A checkpoint that had not begun to read needs the log from its beginning.
            splits.first().and_then(position).map_or(LogSeq(0), |position| position.entry)
        };
        positions.set(retained.iter().map(entry).collect());
    }
}

/// An entry at which a reader stands.
struct Entry {
    batches: Vec<LogBatch>,
    watermark: Option<EventTime>,
    /// Whether it ends the log.
    ends: bool,
}

struct LogReader {
    log: Log,
    projected: SchemaRef,
    head: watch::Receiver<LogSeq>,
    until: Option<LogSeq>,
    delivered: Option<watch::Sender<LogSeq>>,
    /// The split and where it stands; `None` when there is nothing (more) to read.
    next: Option<(SplitId, Position)>,
    /// The entry at the position, read already.
    entry: Option<Arc<Entry>>,
    /// A split whose end has still to be told.
    finished: Option<SplitId>,
}

impl LogReader {
    fn finish(&mut self) {
        self.finished = self.next.take().map(|(split, _)| split);
    }

    /// The columns that were asked for, found by name: a table's log of changes holds generated columns too.
    fn project(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = self
            .projected
            .fields()
            .iter()
            .map(|field| {
                let column = batch.column_by_name(field.name()).ok_or_else(|| RuntimeError::Internal {
                    place: "log source",
                    reason: format!("an entry of {} has no column \"{}\"", self.log.url(), field.name()),
                })?;
                if column.data_type() == field.data_type() {
                    Ok(Arc::clone(column))
                } else {
                    Ok(arrow::compute::cast(column, field.data_type())?)
                }
            })
            .collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.projected), columns, &options)?)
    }
}

#[async_trait]
impl SourceReader for LogReader {
    async fn next(&mut self) -> Result<SourceEvent> {
        loop {
            if let Some(split) = self.finished.take() {
                return Ok(SourceEvent::SplitFinished { split });
            }
            let Some((split, position)) = self.next.clone() else { return Ok(SourceEvent::End) };
            if self.until.is_some_and(|until| position.entry > until) {
                self.finish();
                continue;
            }
            if self.entry.is_none() {
                if *self.head.borrow_and_update() < position.entry {
                    tokio::select! {
                        changed = self.head.changed() => {
                            if changed.is_err() {
                                return Err(RuntimeError::Internal {
                                    place: "log source",
                                    reason: format!("the log {} was closed under its reader", self.log.url()),
                                });
                            }
                        }
                        () = tokio::time::sleep(HEAD_PATIENCE) => return Ok(SourceEvent::Idle(Duration::ZERO)),
                    }
                    continue;
                }
                let Some((meta, batches)) = self.log.read(position.entry).await? else { continue };
                let ends = meta.client_keys.iter().any(|key| key == END_KEY);
                self.entry = Some(Arc::new(Entry { batches, watermark: meta.watermark.map(EventTime), ends }));
            }
            let Some(entry) = self.entry.clone() else { continue };
            let (rows, next) = (entry.batches.get(position.batch), position.batch + 1);
            // The position is in the entry until its watermark has been given out: a checkpoint between the two must
            // not lose it.
            let stays = rows.is_some() && (next < entry.batches.len() || entry.watermark.is_some());
            let after = match stays {
                true => Position { entry: position.entry, batch: next },
                false => Position { entry: position.entry.next(), batch: 0 },
            };
            let told = serde_json::to_value(after).map_err(|e| RuntimeError::Internal {
                place: "log source",
                reason: format!("a position cannot be written: {e}"),
            })?;
            let event = match (rows, entry.watermark) {
                (Some((batch, ops)), _) => {
                    let (batch, ops) = (self.project(batch)?, ops.clone());
                    SourceEvent::Rows { split: split.clone(), batch, ops, position: told, bad: Vec::new() }
                }
                (None, Some(watermark)) => SourceEvent::Watermark { split: split.clone(), watermark, position: told },
                (None, None) => {
                    let batch = RecordBatch::new_empty(Arc::clone(&self.projected));
                    SourceEvent::Rows { split: split.clone(), batch, ops: None, position: told, bad: Vec::new() }
                }
            };
            self.next = Some((split, after));
            if !stays {
                self.entry = None;
                if let Some(delivered) = &self.delivered {
                    delivered.send_replace(position.entry);
                }
                if entry.ends {
                    self.finish();
                }
            }
            return Ok(event);
        }
    }

    async fn add_splits(&mut self, splits: Vec<SplitState>) -> Result<()> {
        if splits.is_empty() {
            return Ok(());
        }
        Err(RuntimeError::Internal { place: "log source", reason: "a log has one split, another was added".to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use weir_storage::{CheckpointId, Fence, JobId, LogEntry, OwnerInfo, Store, Subtask};

    use super::super::end_log;
    use super::*;

    fn batch(values: &[i64]) -> RecordBatch {
        let names: Vec<String> = values.iter().map(|v| format!("row {v}")).collect();
        RecordBatch::try_from_iter([
            ("name", Arc::new(StringArray::from(names)) as ArrayRef),
            ("n", Arc::new(Int64Array::from(values.to_vec())) as ArrayRef),
        ])
        .unwrap()
    }

    fn request() -> SourceRequest {
        let declared =
            Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("name", DataType::Utf8, true)]);
        SourceRequest { relation: "r".into(), declared: Arc::new(declared), projection: vec![0] }
    }

    async fn setup() -> (Log, Fence) {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let fence = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
        (Log::new(&store, "r"), fence)
    }

    async fn read_to_end(source: &LogSource, splits: Vec<SplitState>) -> (Vec<i64>, serde_json::Value) {
        let mut reader = source.reader(splits).await.unwrap();
        let (mut values, mut last) = (Vec::new(), serde_json::Value::Null);
        loop {
            match reader.next().await.unwrap() {
                SourceEvent::Rows { batch, position, .. } => {
                    let column = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
                    values.extend(column.values());
                    last = position;
                }
                SourceEvent::SplitFinished { .. } | SourceEvent::Watermark { .. } => {}
                SourceEvent::Idle(_) => panic!("the log has an end"),
                SourceEvent::End => return (values, last),
            }
        }
    }

    #[tokio::test]
    async fn reads_all_entries_by_column_name_up_to_the_end_mark() {
        let (log, fence) = setup().await;
        log.append(&fence, LogEntry::new(vec![(batch(&[1, 2]), None), (batch(&[3]), None)])).await.unwrap();
        log.append(&fence, LogEntry::new(vec![(batch(&[4]), None)])).await.unwrap();
        let end = end_log(&log, &fence).await.unwrap();
        assert_eq!(end_log(&log, &fence).await.unwrap(), end);
        let source = LogSource::new(log, request());
        let splits = source.discover(&[], 2).await.unwrap();
        assert_eq!(read_to_end(&source, splits).await.0, vec![1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn goes_on_from_any_position() {
        let (log, fence) = setup().await;
        log.append(&fence, LogEntry::new(vec![(batch(&[1]), None), (batch(&[2]), None)])).await.unwrap();
        log.append(&fence, LogEntry::new(vec![(batch(&[3]), None)])).await.unwrap();
        end_log(&log, &fence).await.unwrap();
        let source = LogSource::new(log, request());
        let id = SplitId("log".into());
        for (position, expected) in
            [(serde_json::json!({"entry": 1, "batch": 1}), vec![2, 3]), (serde_json::json!({"entry": 2}), vec![3])]
        {
            let splits = vec![SplitState { id: id.clone(), position, finished: false }];
            assert_eq!(read_to_end(&source, splits).await.0, expected);
        }
        let finished = vec![SplitState { id, position: serde_json::Value::Null, finished: true }];
        assert_eq!(read_to_end(&source, finished).await.0, Vec::<i64>::new());
    }

    #[tokio::test]
    async fn stops_where_it_was_told_to() {
        let (log, fence) = setup().await;
        log.append(&fence, LogEntry::new(vec![(batch(&[1]), None)])).await.unwrap();
        let until = log.head().await.unwrap();
        log.append(&fence, LogEntry::new(vec![(batch(&[2]), None)])).await.unwrap();
        let source = LogSource::new(log, request()).until(until);
        let splits = source.discover(&[], 1).await.unwrap();
        assert_eq!(read_to_end(&source, splits).await.0, vec![1]);
    }

    /// What a reader tells from `position` on, to the end mark, with the position behind each event.
    async fn told(source: &LogSource, position: serde_json::Value) -> Vec<(String, serde_json::Value)> {
        let splits = vec![SplitState { id: SplitId("log".into()), position, finished: false }];
        let mut reader = source.reader(splits).await.unwrap();
        let mut told = Vec::new();
        loop {
            match reader.next().await.unwrap() {
                SourceEvent::Rows { batch, position, .. } => {
                    told.push((format!("{} rows", batch.num_rows()), position))
                }
                SourceEvent::Watermark { watermark, position, .. } => {
                    told.push((format!("at {}", watermark.0), position))
                }
                SourceEvent::SplitFinished { .. } => {}
                SourceEvent::Idle(_) => panic!("the log has an end"),
                SourceEvent::End => return told,
            }
        }
    }

    #[tokio::test]
    async fn a_watermark_comes_behind_its_rows_from_whatever_position_reading_goes_on() {
        let (log, fence) = setup().await;
        let job = JobId("r-1".into());
        for (id, values, watermark) in [(1, &[1, 2][..], Some(10)), (2, &[][..], Some(20)), (3, &[3][..], None)] {
            let rows: Vec<LogBatch> = values.iter().map(|value| (batch(&[*value]), None)).collect();
            let mut parts = Vec::new();
            for row in rows {
                parts.extend(log.stage(&job, CheckpointId(id), Subtask(0), &[row]).await.unwrap());
            }
            log.publish(&fence, (job.clone(), CheckpointId(id)), parts, watermark).await.unwrap();
        }
        end_log(&log, &fence).await.unwrap();
        let source = LogSource::new(log, request());
        let all = told(&source, serde_json::Value::Null).await;
        let events: Vec<&str> = all.iter().map(|(event, _)| event.as_str()).collect();
        // The third entry carries on the watermark of before.
        assert_eq!(events, ["1 rows", "1 rows", "at 10", "at 20", "1 rows", "at 20", "0 rows"]);
        for (i, (_, position)) in all.iter().enumerate().take(all.len() - 1) {
            let rest = told(&source, position.clone()).await;
            assert_eq!(rest, all[i + 1..], "from {position}");
        }
    }

    #[tokio::test]
    async fn what_the_retained_checkpoints_need_is_told() {
        let (log, _fence) = setup().await;
        let retained = Arc::new(RetainedPositions::default());
        let source = LogSource::new(log, request()).keeping(Arc::clone(&retained));
        assert_eq!(retained.get(), None);
        let split = |position| vec![SplitState { id: SplitId("log".into()), position, finished: false }];
        let positions = [serde_json::json!({"entry": 7, "batch": 2}), serde_json::json!({"entry": 9})];
        source.release(&positions.map(split));
        assert_eq!(retained.get(), Some(vec![LogSeq(7), LogSeq(9)]));
        source.release(&[split(serde_json::Value::Null), Vec::new()]);
        assert_eq!(retained.get(), Some(vec![LogSeq(0), LogSeq(0)]));
    }
}
