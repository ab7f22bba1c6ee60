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
    /// The interval while a source has not yet come to the end of what there was to read; none: the same. 0: no periodic
    /// checkpoints meanwhile.
    pub interval_during_backlog: Option<Duration>,
    /// Least time from a completion to the next periodic trigger. Above 0, no periodic checkpoint begins while another is
    /// in progress.
    pub min_pause: Duration,
    /// A checkpoint that its tasks have not all acknowledged after this time has failed.
    pub timeout: Duration,
    /// Failed checkpoints in a row after which the job restarts from the last complete one is one more than this.
    pub tolerable_failed: u32,
    /// Checkpoints that may be in progress at a time.
    pub max_concurrent: usize,
    /// Complete checkpoints that are kept.
    pub num_retained: usize,
    /// Whether periodic checkpoints go on after a source subtask has read all of its input.
    pub after_tasks_finish: bool,
    /// Whether a checkpoint uses what earlier ones have uploaded.
    pub incremental: bool,
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
    /// Whether state of operators that the job no longer has is left behind rather than an error.
    pub ignore_unclaimed_state: bool,
    /// Whether what earlier checkpoints left is deleted side by side.
    pub parallel_clean_up: bool,
    /// How long an object that no checkpoint names is kept.
    pub orphan_grace: Duration,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self {
            mode: CheckpointMode::ExactlyOnce,
            interval: Some(Duration::from_secs(1)),
            interval_during_backlog: None,
            min_pause: Duration::ZERO,
            timeout: Duration::from_secs(600),
            tolerable_failed: 3,
            max_concurrent: 1,
            num_retained: 2,
            after_tasks_finish: true,
            incremental: true,
            inline_threshold: 20 << 10,
            merging: true,
            max_file_size: 256 << 20,
            unaligned: false,
            aligned_timeout: Duration::ZERO,
            unaligned_forced: false,
            in_flight_sharers: 5,
            retention: Retention::Retain,
            ignore_unclaimed_state: false,
            parallel_clean_up: true,
            orphan_grace: Duration::from_secs(3600),
        }
    }
}

/// When a failed job is started again.
#[derive(Debug, Clone, PartialEq)]
pub struct RestartPolicy {
    /// Time before the first attempt.
    pub initial: Duration,
    /// By how much each failure multiplies the time.
    pub multiplier: f64,
    /// The longest time.
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
            multiplier: 2.0,
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
        let factor = self.multiplier.powf(f64::from(attempt.saturating_sub(1)));
        // Beyond what a duration can hold it is longer than the longest.
        let delay = Duration::try_from_secs_f64(self.initial.as_secs_f64() * factor).unwrap_or(self.max);
        Some(delay.min(self.max))
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
        assert_eq!(RestartPolicy { max_attempts: Some(2), ..policy.clone() }.delay(3), None);
        assert_eq!(RestartPolicy { multiplier: 1.5, ..policy }.delay(2).unwrap().as_millis(), 300);
    }
}
