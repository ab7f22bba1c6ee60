//! Event time over the splits of one source subtask, and when a split counts as idle.
//!
//! The clock of idleness is the source's own: the caller tells how much time passed, and leaves out the time in which
//! the source was held back by those after it, or paused. Otherwise a slow sink would make every split look idle, and
//! the rows that had been waiting would come late.
//!
//! A split that has never been read ages only while the reader has nothing at all to read: a reader that works through
//! its files one by one has not begun the last one, which is no reason to declare that one's rows late. The splits of a
//! bounded source never count as idle, since each will be read to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::EventTime;
use crate::source::SplitId;

use super::Progress;

/// The watermarks of one subtask's splits.
#[derive(Debug)]
pub struct SplitTimes {
    splits: BTreeMap<SplitId, Split>,
    idle_timeout: Option<Duration>,
    emitted: EventTime,
    idle: bool,
}

#[derive(Debug)]
struct Split {
    watermark: EventTime,
    started: bool,
    finished: bool,
    /// Had rows since the clock last moved.
    touched: bool,
    quiet: Duration,
}

impl SplitTimes {
    /// Times of no split yet. `idle_timeout`: after how long without rows a split no longer holds time back; none
    /// means never. `floor`: what a former run of the subtask had emitted.
    #[must_use]
    pub fn new(idle_timeout: Option<Duration>, floor: Option<EventTime>) -> Self {
        Self { splits: BTreeMap::new(), idle_timeout, emitted: floor.unwrap_or(EventTime::MIN), idle: false }
    }

    /// A split that will be read, with the watermark it had come to.
    pub fn add(&mut self, split: SplitId, watermark: Option<EventTime>) {
        let started = watermark.is_some();
        let watermark = watermark.unwrap_or(EventTime::MIN);
        let quiet = Duration::ZERO;
        self.splits.insert(split, Split { watermark, started, finished: false, touched: false, quiet });
        self.idle = false;
    }

    /// Rows of `split` came; `watermark` is theirs, if they have one.
    pub fn rows(&mut self, split: &SplitId, watermark: Option<EventTime>) {
        if let Some(split) = self.splits.get_mut(split) {
            split.started = true;
            split.touched = true;
            split.quiet = Duration::ZERO;
            split.watermark = watermark.unwrap_or(EventTime::MIN).max(split.watermark);
            self.idle = false;
        }
    }

    /// `split` itself tells how far it has come. That it does so is no rows, but a sign of life.
    pub fn told(&mut self, split: &SplitId, watermark: EventTime) {
        self.rows(split, Some(watermark));
    }

    /// `split` has been read to its end: it no longer holds time back.
    pub fn finished(&mut self, split: &SplitId) {
        if let Some(split) = self.splits.get_mut(split) {
            split.finished = true;
        }
    }

    /// `elapsed` of the source's own time passed; `nothing_to_read` says whether the reader found nothing in it.
    pub fn pass(&mut self, elapsed: Duration, nothing_to_read: bool) {
        for split in self.splits.values_mut() {
            if !std::mem::take(&mut split.touched) && (split.started || nothing_to_read) {
                split.quiet += elapsed;
            }
        }
    }

    /// The watermark that `split` has come to.
    #[must_use]
    pub fn of(&self, split: &SplitId) -> Option<EventTime> {
        self.splits.get(split).filter(|split| split.started).map(|split| split.watermark)
    }

    /// What was last emitted; none before the first.
    #[must_use]
    pub fn emitted(&self) -> Option<EventTime> {
        (self.emitted != EventTime::MIN).then_some(self.emitted)
    }

    /// How event time moved since the last call: advanced, turned idle, or both in this order.
    pub fn progress(&mut self) -> [Option<Progress>; 2] {
        let timeout = self.idle_timeout;
        let active = |split: &&Split| !split.finished && timeout.is_none_or(|timeout| split.quiet < timeout);
        let slowest = self.splits.values().filter(active).map(|split| split.watermark).min();
        let all_idle = slowest.is_none();
        let now = slowest.or_else(|| self.splits.values().map(|split| split.watermark).max()).unwrap_or(EventTime::MIN);
        let advanced = (now > self.emitted).then(|| {
            self.emitted = now;
            Progress::Watermark(now)
        });
        let turned = all_idle && !std::mem::replace(&mut self.idle, all_idle);
        [advanced, turned.then_some(Progress::Idle)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn split(name: &str) -> SplitId {
        SplitId(name.to_owned())
    }

    fn times(names: &[&str]) -> SplitTimes {
        let mut times = SplitTimes::new(Some(2 * SECOND), None);
        names.iter().for_each(|name| times.add(split(name), None));
        times
    }

    const fn at(time: i64) -> Option<Progress> {
        Some(Progress::Watermark(EventTime(time)))
    }

    #[test]
    fn the_slowest_split_decides_and_a_finished_one_does_not() {
        let mut times = times(&["a", "b"]);
        times.rows(&split("a"), Some(EventTime(10)));
        assert_eq!(times.progress(), [None, None]);
        times.rows(&split("b"), Some(EventTime(4)));
        assert_eq!(times.progress(), [at(4), None]);
        times.finished(&split("b"));
        assert_eq!(times.progress(), [at(10), None]);
        times.finished(&split("a"));
        assert_eq!(times.progress(), [None, Some(Progress::Idle)]);
        assert_eq!(times.progress(), [None, None]);
    }

    #[test]
    fn a_quiet_split_is_idle_after_its_timeout_and_back_with_its_next_rows() {
        let mut times = times(&["a", "b"]);
        times.rows(&split("a"), Some(EventTime(10)));
        times.rows(&split("b"), Some(EventTime(4)));
        times.pass(SECOND, false);
        assert_eq!(times.progress(), [at(4), None]);
        for _ in 0..2 {
            times.rows(&split("a"), Some(EventTime(20)));
            times.pass(SECOND, false);
        }
        assert_eq!(times.progress(), [at(20), None]);
        times.rows(&split("b"), Some(EventTime(5)));
        times.rows(&split("a"), Some(EventTime(30)));
        assert_eq!(times.progress(), [None, None], "time does not go back");
        times.rows(&split("b"), Some(EventTime(25)));
        assert_eq!(times.progress(), [at(25), None]);
    }

    #[test]
    fn time_that_does_not_pass_makes_nothing_idle() {
        let mut times = times(&["a"]);
        times.rows(&split("a"), Some(EventTime(1)));
        times.pass(Duration::ZERO, true);
        times.pass(Duration::ZERO, true);
        assert_eq!(times.progress(), [at(1), None]);
    }

    #[test]
    fn a_split_not_begun_ages_only_while_there_is_nothing_to_read() {
        let mut times = times(&["a", "b"]);
        for _ in 0..9 {
            times.rows(&split("a"), Some(EventTime(10)));
            times.pass(SECOND, false);
        }
        assert_eq!(times.progress(), [None, None]);
        times.rows(&split("a"), Some(EventTime(11)));
        times.pass(2 * SECOND, true);
        assert_eq!(times.progress(), [at(11), None]);
    }

    #[test]
    fn without_splits_a_subtask_is_idle_and_a_restored_one_goes_on_from_its_floor() {
        let mut times = SplitTimes::new(None, Some(EventTime(7)));
        assert_eq!(times.progress(), [None, Some(Progress::Idle)]);
        assert_eq!(times.emitted(), Some(EventTime(7)));
        times.add(split("new"), None);
        times.rows(&split("new"), Some(EventTime(5)));
        assert_eq!(times.progress(), [None, None]);
        times.rows(&split("new"), Some(EventTime(9)));
        assert_eq!(times.progress(), [at(9), None]);
    }

    #[test]
    fn a_split_that_tells_its_time_is_alive_and_does_not_go_back() {
        let mut times = times(&["a", "b"]);
        times.told(&split("a"), EventTime(10));
        times.told(&split("b"), EventTime(20));
        assert_eq!(times.progress(), [at(10), None]);
        for told in [30, 25] {
            times.told(&split("b"), EventTime(told));
            times.pass(SECOND, true);
        }
        times.told(&split("b"), EventTime(26));
        times.pass(SECOND, true);
        assert_eq!(times.progress(), [at(30), None], "the other has been quiet for too long");
        assert_eq!(times.of(&split("b")), Some(EventTime(30)));
    }
}
