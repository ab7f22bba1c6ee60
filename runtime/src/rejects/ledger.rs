//! The newest rejected rows of one subtask, and their part in checkpoints.
//!
//! Rows that did not change since a complete checkpoint are not written again: the next one names the same segment.

use std::collections::VecDeque;

use arrow::array::RecordBatch;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use weir_storage::{CheckpointId, OperatorUid, Segment};

use super::{BadRow, KEPT_BYTES, KEPT_ROWS, KeptBadRow, LateRow, ROW_BYTES, RejectedRows, Rejects};
use crate::error::{Result, internal};
use crate::message::EventTime;

/// Rows in the order in which they came, within the bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Newest<T> {
    rows: VecDeque<T>,
    #[serde(skip)]
    bytes: usize,
}

/// A row that takes room.
trait Text {
    fn text_bytes(&self) -> usize;
}

impl Text for LateRow {
    fn text_bytes(&self) -> usize {
        self.row.len()
    }
}

impl Text for KeptBadRow {
    fn text_bytes(&self) -> usize {
        let BadRow { relation, split, position, reason, raw } = &self.row;
        [relation, split, position, reason, raw].iter().map(|text| text.len()).sum()
    }
}

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Self { rows: VecDeque::new(), bytes: 0 }
    }
}

impl<T: Text> Newest<T> {
    /// Adds a row. The newest stays whatever its size.
    fn push(&mut self, row: T) {
        self.bytes += row.text_bytes();
        self.rows.push_back(row);
        while self.rows.len() > KEPT_ROWS || (self.bytes > KEPT_BYTES && self.rows.len() > 1) {
            let Some(oldest) = self.rows.pop_front() else { return };
            self.bytes -= oldest.text_bytes();
        }
    }
}

/// What a checkpoint holds of a ledger, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    #[serde(default, skip_serializing_if = "is_empty")]
    late: Newest<LateRow>,
    #[serde(default, skip_serializing_if = "is_empty")]
    bad: Newest<KeptBadRow>,
}

fn is_empty<T>(newest: &Newest<T>) -> bool {
    newest.rows.is_empty()
}

/// A number that changes with the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RejectLedger {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    kept: Kept,
    version: Version,
    /// Durable, of checkpoints that are not known to be complete.
    written: Vec<(CheckpointId, Version, Segment)>,
    /// In the newest checkpoint that is known to be complete.
    confirmed: Option<(Version, Segment)>,
}

/// A ledger's part of a checkpoint.
#[derive(Debug)]
pub(crate) enum Snapshot {
    /// It is empty.
    Nothing,
    /// A complete checkpoint has the same.
    Same(Segment),
    /// To be written.
    New(PendingRejects),
}

/// Rows that are to be written.
#[derive(Debug, Clone)]
pub(crate) struct PendingRejects {
    pub(crate) version: Version,
    pub(crate) bytes: Vec<u8>,
}

impl RejectLedger {
    /// A ledger with what those of former subtasks held. One alone, unchanged, goes on using its segment.
    pub(crate) fn restore(former: Vec<(Segment, Vec<u8>)>) -> Result<Self> {
        let mut parts = Vec::with_capacity(former.len());
        for (_, bytes) in &former {
            let kept: Kept = serde_json::from_slice(bytes)
                .map_err(|error| internal("rejected rows of the checkpoint", error.to_string()))?;
            parts.push(kept);
        }
        let (mut late, mut bad) = (Vec::new(), Vec::new());
        for part in parts {
            late.extend(part.late.rows);
            bad.extend(part.bad.rows);
        }
        late.sort_by_key(|row| row.seen_at_us);
        bad.sort_by_key(|row| row.seen_at_us);
        let mut inner = Inner::default();
        late.into_iter().for_each(|row| inner.kept.late.push(row));
        bad.into_iter().for_each(|row| inner.kept.bad.push(row));
        if let Ok([(segment, _)]) = <[_; 1]>::try_from(former) {
            inner.confirmed = Some((inner.version, segment));
        }
        Ok(Self { inner: Mutex::new(inner) })
    }

    /// Its part of a checkpoint; `incremental`: which may use what an earlier one has written.
    pub(crate) fn snapshot(&self, incremental: bool) -> Result<Snapshot> {
        let inner = self.inner.lock();
        if inner.kept == Kept::default() {
            return Ok(Snapshot::Nothing);
        }
        if let Some((version, segment)) = &inner.confirmed
            && *version == inner.version
            && incremental
        {
            return Ok(Snapshot::Same(segment.clone()));
        }
        let bytes = serde_json::to_vec(&inner.kept).map_err(|error| internal("rejected rows", error.to_string()))?;
        Ok(Snapshot::New(PendingRejects { version: inner.version, bytes }))
    }

    /// What was to be written is durable.
    pub(crate) fn written(&self, checkpoint: CheckpointId, version: Version, segment: Segment) {
        self.inner.lock().written.push((checkpoint, version, segment));
    }

    /// `checkpoint` is complete: what it holds stays as long as one names it.
    pub(crate) fn completed(&self, checkpoint: CheckpointId) {
        let mut inner = self.inner.lock();
        let written = std::mem::take(&mut inner.written);
        for (of, version, segment) in written {
            match of.cmp(&checkpoint) {
                std::cmp::Ordering::Greater => inner.written.push((of, version, segment)),
                std::cmp::Ordering::Equal => inner.confirmed = Some((version, segment)),
                // Given up, or older than what is confirmed now.
                std::cmp::Ordering::Less => {}
            }
        }
    }

    /// Adds what it holds to `rows`; `operator` is whose it is.
    pub(crate) fn read(&self, operator: &OperatorUid, rows: &mut RejectedRows) {
        let inner = self.inner.lock();
        rows.late.extend(inner.kept.late.rows.iter().map(|row| (operator.clone(), row.clone())));
        rows.bad.extend(inner.kept.bad.rows.iter().cloned());
    }

    fn change(&self, change: impl FnOnce(&mut Kept)) {
        let mut inner = self.inner.lock();
        change(&mut inner.kept);
        inner.version.0 += 1;
    }
}

impl Rejects for RejectLedger {
    fn late(&self, watermark: EventTime, rows: &RecordBatch) {
        let newest = rows.num_rows().min(KEPT_ROWS);
        let rows = rows.slice(rows.num_rows() - newest, newest);
        let seen_at_us = chrono::Utc::now().timestamp_micros();
        let texts = json_lines(&rows);
        self.change(|kept| texts.into_iter().for_each(|row| kept.late.push(LateRow { seen_at_us, watermark, row })));
    }

    fn bad(&self, rows: Vec<BadRow>) {
        let seen_at_us = chrono::Utc::now().timestamp_micros();
        let older = rows.len().saturating_sub(KEPT_ROWS);
        let newest = rows.into_iter().skip(older);
        self.change(|kept| newest.for_each(|row| kept.bad.push(KeptBadRow { seen_at_us, row })));
    }
}

/// Each row as a JSON object.
fn json_lines(rows: &RecordBatch) -> Vec<String> {
    let mut writer = arrow::json::WriterBuilder::new()
        .with_explicit_nulls(true)
        .build::<_, arrow::json::writer::LineDelimited>(Vec::new());
    match writer.write(rows).and_then(|()| writer.finish()) {
        Ok(()) => String::from_utf8_lossy(&writer.into_inner()).lines().map(cut).collect(),
        Err(error) => vec![format!("(cannot be shown: {error})"); rows.num_rows()],
    }
}

fn cut(line: &str) -> String {
    line[..line.floor_char_boundary(ROW_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ints;

    fn bad(raw: &str) -> BadRow {
        let (relation, split, position) = ("flights".to_owned(), "a.csv".to_owned(), "line 1".to_owned());
        BadRow { relation, split, position, reason: "no number".to_owned(), raw: raw.to_owned() }
    }

    fn rows(ledger: &RejectLedger) -> RejectedRows {
        let mut rows = RejectedRows::default();
        ledger.read(&OperatorUid("o".to_owned()), &mut rows);
        rows
    }

    fn raws(ledger: &RejectLedger) -> Vec<String> {
        rows(ledger).bad.into_iter().map(|kept| kept.row.raw).collect()
    }

    fn pending(ledger: &RejectLedger) -> PendingRejects {
        match ledger.snapshot(true).unwrap() {
            Snapshot::New(pending) => pending,
            other => panic!("{other:?}"),
        }
    }

    fn segment(bytes: &[u8]) -> Segment {
        Segment::inline(bytes.to_vec())
    }

    #[test]
    fn the_newest_rows_are_kept_within_both_bounds() {
        let ledger = RejectLedger::default();
        ledger.bad((0..KEPT_ROWS + 5).map(|i| bad(&i.to_string())).collect());
        assert_eq!((raws(&ledger).len(), raws(&ledger)[0].as_str()), (KEPT_ROWS, "5"));
        ledger.bad(vec![bad(&"x".repeat(KEPT_BYTES / 2)); 3]);
        assert_eq!(raws(&ledger).len(), 1, "two of them are too much with their other texts");
        let numbers: Vec<i64> = (0..KEPT_ROWS as i64 + 2).collect();
        ledger.late(EventTime(7), ints(&numbers).batch());
        let late = rows(&ledger).late;
        assert_eq!((late.len(), late[0].1.row.as_str(), late[0].1.watermark), (KEPT_ROWS, "{\"n\":2}", EventTime(7)));
    }

    #[test]
    fn nothing_new_is_written_only_once() {
        let ledger = RejectLedger::default();
        assert!(matches!(ledger.snapshot(true).unwrap(), Snapshot::Nothing));
        ledger.bad(vec![bad("a")]);
        let first = pending(&ledger);
        ledger.written(CheckpointId(1), first.version, segment(b"1"));
        pending(&ledger);
        ledger.completed(CheckpointId(1));
        assert!(matches!(ledger.snapshot(true).unwrap(), Snapshot::Same(same) if same == segment(b"1")));
        assert!(matches!(ledger.snapshot(false).unwrap(), Snapshot::New(_)));
        ledger.bad(vec![bad("b")]);
        let second = pending(&ledger);
        ledger.written(CheckpointId(2), second.version, segment(b"2"));
        // 2 is given up: what it wrote will be deleted.
        let third = pending(&ledger);
        assert_eq!(third.version, second.version);
        ledger.written(CheckpointId(3), third.version, segment(b"3"));
        ledger.completed(CheckpointId(3));
        assert!(matches!(ledger.snapshot(true).unwrap(), Snapshot::Same(same) if same == segment(b"3")));
    }

    #[test]
    fn what_came_after_the_snapshot_is_new_in_the_next() {
        let ledger = RejectLedger::default();
        ledger.bad(vec![bad("a")]);
        let first = pending(&ledger);
        ledger.bad(vec![bad("b")]);
        ledger.written(CheckpointId(1), first.version, segment(b"1"));
        ledger.completed(CheckpointId(1));
        assert_ne!(pending(&ledger).version, first.version);
    }

    #[test]
    fn restored_rows_are_those_of_the_snapshot_and_several_ledgers_become_one() {
        let (left, right) = (RejectLedger::default(), RejectLedger::default());
        left.bad(vec![bad("a")]);
        left.late(EventTime(3), ints(&[1]).batch());
        let bytes = pending(&left).bytes;
        left.bad(vec![bad("lost with the failure")]);
        right.bad(vec![bad("b")]);
        let other = pending(&right).bytes;
        let alone = RejectLedger::restore(vec![(segment(&bytes), bytes.clone())]).unwrap();
        assert_eq!((raws(&alone), rows(&alone).late.len()), (vec!["a".to_owned()], 1));
        assert!(matches!(alone.snapshot(true).unwrap(), Snapshot::Same(same) if same == segment(&bytes)));
        let both = vec![(segment(&bytes), bytes), (segment(&other), other)];
        let merged = RejectLedger::restore(both).unwrap();
        assert_eq!(raws(&merged), ["a", "b"]);
        pending(&merged);
        assert!(RejectLedger::restore(vec![(segment(b"x"), b"x".to_vec())]).is_err());
    }

    #[test]
    fn the_persisted_form_is_fixed_for_good() {
        let mut kept = Kept::default();
        kept.late.push(LateRow { seen_at_us: 1, watermark: EventTime(2), row: "{}".to_owned() });
        kept.bad.push(KeptBadRow { seen_at_us: 3, row: bad("x") });
        let json = r#"{"late":[{"seen_at_us":1,"watermark":2,"row":"{}"}],"bad":[{"seen_at_us":3,"relation":"flights","split":"a.csv","position":"line 1","reason":"no number","raw":"x"}]}"#;
        assert_eq!(serde_json::to_string(&kept).unwrap(), json);
        let read: Kept = serde_json::from_str(json).unwrap();
        assert_eq!(read.bad.rows, kept.bad.rows);
    }
}
