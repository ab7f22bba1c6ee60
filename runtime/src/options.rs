//! How a job takes checkpoints, and how it is restarted.

use std::time::Duration;

/// What a checkpoint promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckpointMode {
    /// Every row counts exactly once, whatever fails. Channels wait for each other at barriers.
    #[default]
    ExactlyOnce,
    /// Channels do not wait; rows may count twice after a failure.
    AtLeastOnce,
}

/// What becomes of a job's checkpoints when it is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    /// They stay, and the job can be restored from them.
    #[default]
    Retain,
    /// They are deleted.
    Delete,
}

/// How a job takes checkpoints. Names follow Flink's `execution.checkpointing.*`.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointOptions {
    /// What a checkpoint promises.
    pub mode: CheckpointMode,
    /// Time from one trigger to the next; none: checkpoints are taken on request and at the end only.
    pub interval: Option<Duration>,
    /// Least time from a completion to the next periodic trigger.
    pub min_pause: Duration,
    /// A checkpoint that its tasks have not all acknowledged after this time has failed.
    pub timeout: Duration,
    /// Failed checkpoints in a row after which the job restarts from the last complete one is one more than this.
    pub tolerable_failed: u32,
    /// Checkpoints that may be in progress at a time.
    pub max_concurrent: usize,
    /// Complete checkpoints that are kept.
    pub num_retained: usize,
    /// Bytes of state that may stand in one manifest.
    pub inline_threshold: u64,
    /// Whether the segments of a checkpoint share objects.
    pub merging: bool,
    /// Size at which an object of merged segments is closed.
    pub max_file_size: u64,
    /// Whether barriers may overtake rows. Needs exactly-once and one checkpoint at a time.
    pub unaligned: bool,
    /// How long after its trigger a barrier is aligned before it overtakes; zero: it overtakes at once.
    pub aligned_timeout: Duration,
    /// Whether barriers overtake even rows that can be restored at the same parallelism only.
    pub unaligned_forced: bool,
    /// How many subtasks share an object of rows in flight when segments are not merged.
    pub in_flight_sharers: usize,
    /// What becomes of checkpoints when the job is cancelled.
    pub retention: Retention,
    /// How long an object that no checkpoint names is kept.
    pub orphan_grace: Duration,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self {
            mode: CheckpointMode::ExactlyOnce,
            interval: Some(Duration::from_secs(1)),
            min_pause: Duration::ZERO,
            timeout: Duration::from_secs(600),
            tolerable_failed: 3,
            max_concurrent: 1,
            num_retained: 2,
            inline_threshold: 20 << 10,
            merging: true,
            max_file_size: 256 << 20,
            unaligned: false,
            aligned_timeout: Duration::ZERO,
            unaligned_forced: false,
            in_flight_sharers: 5,
            retention: Retention::Retain,
            orphan_grace: Duration::from_secs(3600),
        }
    }
}

/// When a failed job is started again.
#[derive(Debug, Clone, PartialEq)]
pub struct RestartPolicy {
    /// Time before the first attempt.
    pub initial: Duration,
    /// Each failure doubles the time, up to this.
    pub max: Duration,
    /// After running for so long a job counts as healthy, and the next failure as its first.
    pub reset_after: Duration,
    /// Attempts in a row after which the job is given up; none: never.
    pub max_attempts: Option<u32>,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(200),
            max: Duration::from_secs(30),
            reset_after: Duration::from_secs(60),
            max_attempts: None,
        }
    }
}

impl RestartPolicy {
    /// Time to wait before attempt number `attempt`, counted from 1; none when the job is to be given up.
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Option<Duration> {
        if self.max_attempts.is_some_and(|max| attempt > max) {
            return None;
        }
        let factor = 2u32.saturating_pow(attempt.saturating_sub(1));
        Some(self.initial.saturating_mul(factor).min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_wait_twice_as_long_each_time_up_to_a_limit_and_are_never_given_up() {
        let policy = RestartPolicy::default();
        let millis = |attempt| policy.delay(attempt).unwrap().as_millis();
        assert_eq!([millis(1), millis(2), millis(3)], [200, 400, 800]);
        assert_eq!([millis(9), millis(u32::MAX)], [30_000, 30_000]);
        assert_eq!(RestartPolicy { max_attempts: Some(2), ..policy }.delay(3), None);
    }
}
