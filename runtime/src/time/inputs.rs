//! Event time over the channels of a task: the minimum over those that are not idle.

use crate::message::EventTime;

use super::Progress;

/// The watermarks of a task's channels.
#[derive(Debug)]
pub struct InputTimes {
    channels: Vec<Channel>,
    emitted: EventTime,
    idle: bool,
}

#[derive(Debug, Clone)]
struct Channel {
    watermark: EventTime,
    idle: bool,
}

impl InputTimes {
    /// Times of `channels` channels, before all time.
    #[must_use]
    pub fn new(channels: usize) -> Self {
        let channel = Channel { watermark: EventTime::MIN, idle: false };
        Self { channels: vec![channel; channels], emitted: EventTime::MIN, idle: false }
    }

    /// `channel` brought data: it is no longer idle.
    pub fn active(&mut self, channel: usize) {
        self.channels[channel].idle = false;
        self.idle = false;
    }

    /// `channel` brought a watermark. Answers the task's own, if that advanced.
    pub fn watermark(&mut self, channel: usize, watermark: EventTime) -> Option<Progress> {
        self.active(channel);
        let known = &mut self.channels[channel].watermark;
        *known = watermark.max(*known);
        self.advance()
    }

    /// `channel` has become idle. Answers how event time moved: others may now advance it; when all are idle it goes to
    /// the latest that any of them knew, and then the task is idle too.
    pub fn idle(&mut self, channel: usize) -> [Option<Progress>; 2] {
        self.channels[channel].idle = true;
        let advanced = self.advance();
        let all = self.channels.iter().all(|channel| channel.idle);
        let turned = all && !std::mem::replace(&mut self.idle, all);
        [advanced, turned.then_some(Progress::Idle)]
    }

    /// All channels have ended. Answers the end of time, unless the watermarks brought it already.
    pub fn end(&mut self) -> Option<Progress> {
        let before = std::mem::replace(&mut self.emitted, EventTime::MAX);
        (before < EventTime::MAX).then_some(Progress::Watermark(EventTime::MAX))
    }

    fn advance(&mut self) -> Option<Progress> {
        let active = self.channels.iter().filter(|channel| !channel.idle).map(|channel| channel.watermark).min();
        let now = active.or_else(|| self.channels.iter().map(|channel| channel.watermark).max())?;
        if now <= self.emitted {
            return None;
        }
        self.emitted = now;
        Some(Progress::Watermark(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(time: i64) -> Option<Progress> {
        Some(Progress::Watermark(EventTime(time)))
    }

    #[test]
    fn the_slowest_channel_decides_and_time_never_goes_back() {
        let mut times = InputTimes::new(2);
        assert_eq!(times.watermark(0, EventTime(5)), None);
        assert_eq!(times.watermark(1, EventTime(3)), at(3));
        assert_eq!(times.watermark(1, EventTime(9)), at(5));
        assert_eq!(times.watermark(0, EventTime(4)), None);
    }

    #[test]
    fn an_idle_channel_holds_nothing_back_until_it_has_data() {
        let mut times = InputTimes::new(2);
        assert_eq!(times.watermark(0, EventTime(5)), None);
        assert_eq!(times.idle(1), [at(5), None]);
        assert_eq!(times.watermark(0, EventTime(6)), at(6));
        times.active(1);
        assert_eq!(times.watermark(0, EventTime(9)), None);
        assert_eq!(times.watermark(1, EventTime(7)), at(7));
    }

    #[test]
    fn the_end_of_time_comes_once() {
        let mut times = InputTimes::new(1);
        assert_eq!(times.watermark(0, EventTime(5)), at(5));
        assert_eq!(times.end(), at(i64::MAX));
        assert_eq!(times.end(), None);
    }

    #[test]
    fn when_all_are_idle_time_goes_to_the_latest_and_the_task_is_idle_once() {
        let mut times = InputTimes::new(2);
        assert_eq!(times.watermark(0, EventTime(5)), None);
        assert_eq!(times.watermark(1, EventTime(3)), at(3));
        assert_eq!(times.idle(0), [None, None]);
        assert_eq!(times.idle(1), [at(5), Some(Progress::Idle)]);
        assert_eq!(times.idle(1), [None, None]);
        assert_eq!(times.watermark(0, EventTime(8)), at(8));
        assert_eq!(times.idle(0), [None, Some(Progress::Idle)]);
    }
}
