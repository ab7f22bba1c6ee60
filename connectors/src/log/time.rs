//! Event time on its way into a log: each subtask of the writer tells how far it has come, and the entry carries what
//! holds for all of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_runtime::message::EventTime;
use weir_runtime::time::Progress;
use weir_storage::{LogPart, Subtask};

/// What a subtask hands over at a barrier: rows that are durable, and the event time that it has come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Piece {
    /// Event time.
    Time(SubtaskTime),
    /// Rows, as they were written before there was event time beside them.
    #[serde(untagged)]
    Rows(LogPart),
}

/// How far a subtask has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SubtaskTime {
    subtask: Subtask,
    watermark: EventTime,
    /// It has no rows at present and shall not hold the others back.
    idle: bool,
}

impl SubtaskTime {
    /// Before all time.
    pub fn new(subtask: Subtask) -> Self {
        Self { subtask, watermark: EventTime::MIN, idle: false }
    }

    /// Event time moved.
    pub fn progress(&mut self, progress: Progress) {
        match progress {
            Progress::Watermark(watermark) => {
                self.watermark = watermark.max(self.watermark);
                self.idle = false;
            }
            Progress::Idle => self.idle = true,
        }
    }

    /// Rows came.
    pub fn active(&mut self) {
        self.idle = false;
    }
}

/// The watermark of what all subtasks have handed over: the earliest of those that are not idle, or when all are, the
/// latest that any of them knew. Of a subtask that speaks twice (what it prepared for a checkpoint that was given up is
/// handed over again) the last word counts.
pub(super) fn watermark_of(times: impl IntoIterator<Item = SubtaskTime>) -> Option<EventTime> {
    let last: BTreeMap<Subtask, SubtaskTime> = times.into_iter().map(|time| (time.subtask, time)).collect();
    let active = last.values().filter(|time| !time.idle).map(|time| time.watermark).min();
    let watermark = active.or_else(|| last.values().map(|time| time.watermark).max())?;
    (watermark > EventTime::MIN).then_some(watermark)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn time(subtask: u32, watermark: i64, idle: bool) -> SubtaskTime {
        SubtaskTime { subtask: Subtask(subtask), watermark: EventTime(watermark), idle }
    }

    #[test]
    fn the_slowest_subtask_decides_unless_it_is_idle() {
        assert_eq!(watermark_of([time(0, 5, false), time(1, 3, false)]), Some(EventTime(3)));
        assert_eq!(watermark_of([time(0, 5, false), time(1, i64::MIN, true)]), Some(EventTime(5)));
        assert_eq!(watermark_of([time(0, 5, true), time(1, 3, true)]), Some(EventTime(5)));
        assert_eq!(watermark_of([time(0, 5, false), time(1, i64::MIN, false)]), None);
        assert_eq!(watermark_of([]), None);
        assert_eq!(watermark_of([time(0, i64::MAX, false), time(1, i64::MAX, false)]), Some(EventTime::MAX));
    }

    #[test]
    fn rows_and_watermarks_end_an_idleness_and_time_does_not_go_back() {
        let mut subtask = SubtaskTime::new(Subtask(0));
        subtask.progress(Progress::Watermark(EventTime(7)));
        subtask.progress(Progress::Idle);
        assert_eq!(subtask, time(0, 7, true));
        subtask.active();
        subtask.progress(Progress::Watermark(EventTime(6)));
        assert_eq!(subtask, time(0, 7, false));
    }

    #[test]
    fn pieces_of_before_there_was_event_time_are_read() {
        let rows = LogPart::Inline { rows: 2, bytes: Bytes::from_static(b"arrow") };
        let old = serde_json::to_vec(&rows).unwrap();
        let read: Piece = serde_json::from_slice(&old).unwrap();
        assert_eq!(read, Piece::Rows(rows.clone()));
        assert_eq!(serde_json::to_vec(&read).unwrap(), old);
        let object = LogPart::Object { rows: 2, path: "data/v/chk-1-0-a".into(), length: 9, crc32: 7 };
        let told = Piece::Time(time(1, -5, true));
        for piece in [Piece::Rows(object), told] {
            let json = serde_json::to_vec(&piece).unwrap();
            assert_eq!(serde_json::from_slice::<Piece>(&json).unwrap(), piece);
        }
        assert_eq!(
            serde_json::to_string(&Piece::Time(time(1, -5, true))).unwrap(),
            r#"{"time":{"subtask":1,"watermark":-5,"idle":true}}"#
        );
    }

    proptest! {
        #[test]
        fn no_subtask_with_rows_is_overtaken(
            told in proptest::collection::vec((0u32..4, -50i64..50, any::<bool>()), 0..20),
        ) {
            let times: Vec<SubtaskTime> = told.iter().map(|(s, w, idle)| time(*s, *w, *idle)).collect();
            let watermark = watermark_of(times.clone());
            for subtask in 0..4 {
                let Some(last) = times.iter().rev().find(|time| time.subtask == Subtask(subtask)) else { continue };
                prop_assert!(last.idle || watermark.is_some_and(|watermark| watermark <= last.watermark));
            }
            if let Some(watermark) = watermark {
                prop_assert!(times.iter().any(|time| time.watermark == watermark), "somebody said so");
            }
        }
    }
}
