//! Which entries of a log may go: a pure decision over what its readers may still ask for and what it shall keep.

use std::time::Duration;

use super::LogSeq;

/// Fewer entries than this are not worth a trim of their own.
const LEAST: u64 = 32;

/// What a log keeps beyond what its readers may still ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogRetention {
    /// Everything: a reader that comes later begins at the first entry.
    #[default]
    Forever,
    /// Nothing: the readers that there are will be the only ones.
    Consumed,
    /// What was written within this time.
    Age(Duration),
    /// The newest entries, up to so many bytes.
    Bytes(u64),
}

/// What lies in a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogExtent {
    /// The oldest entry.
    pub first: LogSeq,
    /// The newest entry.
    pub head: LogSeq,
    /// Bytes of all of it.
    pub bytes: u64,
    /// The oldest entries in order from `first`, as many as were looked at; needed for [`LogRetention::Age`] and
    /// [`LogRetention::Bytes`] only.
    pub oldest: Vec<OldEntry>,
}

/// An entry that may be old enough to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldEntry {
    /// When it was written, in milliseconds since 1970.
    pub written_ms: i64,
    /// Its bytes, those of its objects included.
    pub bytes: u64,
}

/// The entry before which all may be deleted; `extent.first` when there is nothing to delete.
///
/// `readers` has for each job that reads the log the positions in its retained checkpoints: the entries that it would
/// ask for next if it were restored from them. A job without any has yet to take its first checkpoint and may ask for
/// everything. The newest entry always stays.
#[must_use]
pub fn decide_trim(extent: &LogExtent, readers: &[Vec<LogSeq>], retention: LogRetention, now_ms: i64) -> LogSeq {
    let needed = readers.iter().map(|retained| retained.iter().copied().min().unwrap_or(extent.first)).min();
    let limit = needed.unwrap_or(extent.head).min(extent.head);
    let before = match retention {
        LogRetention::Forever => extent.first,
        // A log that is kept for its readers only, and has none that is known, waits for them.
        LogRetention::Consumed => needed.map_or(extent.first, |_| limit),
        LogRetention::Age(age) => {
            let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            let old = |entry: &&OldEntry| now_ms.saturating_sub(entry.written_ms) > age_ms;
            after(extent, extent.oldest.iter().take_while(old).count())
        }
        LogRetention::Bytes(most) => {
            let mut left = extent.bytes;
            let too_many = |entry: &&OldEntry| {
                let go = left > most;
                left = left.saturating_sub(entry.bytes);
                go
            };
            after(extent, extent.oldest.iter().take_while(too_many).count())
        }
    };
    let before = before.min(limit);
    if before.0 >= extent.first.0 + LEAST { before } else { extent.first }
}

fn after(extent: &LogExtent, entries: usize) -> LogSeq {
    LogSeq(extent.first.0 + entries as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(first: u64, head: u64) -> LogExtent {
        let oldest = (first..=head).map(|seq| OldEntry { written_ms: seq as i64 * 1000, bytes: 10 }).collect();
        LogExtent { first: LogSeq(first), head: LogSeq(head), bytes: (head + 1 - first) * 10, oldest }
    }

    fn at(positions: &[u64]) -> Vec<LogSeq> {
        positions.iter().copied().map(LogSeq).collect()
    }

    #[test]
    fn the_slowest_reader_decides() {
        let decide = |readers: &[Vec<LogSeq>]| decide_trim(&extent(1, 100), readers, LogRetention::Consumed, 0).0;
        assert_eq!(decide(&[at(&[90, 80]), at(&[95])]), 80);
        assert_eq!(decide(&[at(&[90, 80]), at(&[])]), 1, "one has no checkpoint yet");
        assert_eq!(decide(&[]), 1, "no reader is known");
        assert_eq!(decide(&[at(&[101])]), 100, "the newest entry stays");
        assert_eq!(decide(&[at(&[20])]), 1, "too few to be worth it");
    }

    #[test]
    fn a_stream_keeps_its_history_as_long_as_it_was_told_to() {
        let extent = extent(1, 100);
        let read = [at(&[90])];
        assert_eq!(decide_trim(&extent, &read, LogRetention::Forever, i64::MAX), LogSeq(1));
        let minute = LogRetention::Age(Duration::from_secs(60));
        assert_eq!(decide_trim(&extent, &read, minute, 140_000), LogSeq(80));
        assert_eq!(decide_trim(&extent, &read, minute, 400_000), LogSeq(90), "a reader still needs the rest");
        assert_eq!(decide_trim(&extent, &[], minute, 400_000), LogSeq(100), "nobody reads it");
        assert_eq!(decide_trim(&extent, &read, LogRetention::Bytes(600), 0), LogSeq(41));
        assert_eq!(decide_trim(&extent, &read, LogRetention::Bytes(1000), 0), LogSeq(1));
    }

    proptest! {
        #[test]
        fn nothing_that_may_be_asked_for_goes(
            first in 1u64..500,
            length in 0u64..500,
            readers in proptest::collection::vec(proptest::collection::vec(0u64..500, 0..4), 0..4),
            kind in 0u8..4,
            amount in 0u64..5_000,
            now in 0i64..2_000_000,
        ) {
            let extent = extent(first, first + length);
            // No checkpoint stands before the first entry.
            let readers: Vec<Vec<LogSeq>> =
                readers.iter().map(|retained| retained.iter().map(|ahead| LogSeq(first + ahead)).collect()).collect();
            let retention = match kind {
                0 => LogRetention::Forever,
                1 => LogRetention::Consumed,
                2 => LogRetention::Age(Duration::from_millis(amount * 100)),
                _ => LogRetention::Bytes(amount),
            };
            let before = decide_trim(&extent, &readers, retention, now);
            prop_assert!(before >= extent.first && before <= extent.head.max(extent.first));
            for position in readers.iter().flatten() {
                prop_assert!(before <= *position, "entry {position} may be asked for");
            }
            prop_assert!(readers.iter().all(|retained| !retained.is_empty()) || before == extent.first);
            let gone = &extent.oldest[..(before.0 - first) as usize];
            match retention {
                LogRetention::Forever => prop_assert_eq!(before, extent.first),
                LogRetention::Age(age) => {
                    prop_assert!(gone.iter().all(|entry| now - entry.written_ms > age.as_millis() as i64));
                }
                LogRetention::Bytes(most) => {
                    // Without the last one that goes there would still be too many.
                    let freed: u64 = gone.iter().skip(1).map(|entry| entry.bytes).sum();
                    prop_assert!(gone.is_empty() || extent.bytes - freed > most);
                }
                LogRetention::Consumed => {}
            }
            // Once trimmed, the same decision finds nothing more.
            let mut rest = extent.clone();
            rest.bytes -= gone.iter().map(|entry| entry.bytes).sum::<u64>();
            rest.oldest.drain(..gone.len());
            rest.first = before;
            prop_assert_eq!(decide_trim(&rest, &readers, retention, now), before);
        }
    }
}
