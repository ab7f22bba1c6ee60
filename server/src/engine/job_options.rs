//! A query's options as the runtime takes them.

use std::time::Duration;

use weir_planner::{Options, Parallelism, SqlError};
use weir_runtime::options::{CheckpointMode, CheckpointOptions, RestartPolicy, Retention};

use super::Engine;

/// How a query takes checkpoints.
pub(super) fn checkpointing(options: &Options) -> Result<CheckpointOptions, SqlError> {
    let key = |name: &str| format!("execution.checkpointing.{name}");
    let duration = |name: &str| options.duration(&key(name));
    let count = |name: &str| options.int(&key(name)).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let defaults = CheckpointOptions::default();
    Ok(CheckpointOptions {
        mode: match options.get(&key("mode"))? {
            "AT_LEAST_ONCE" => CheckpointMode::AtLeastOnce,
            _ => CheckpointMode::ExactlyOnce,
        },
        interval: duration("interval")?,
        interval_during_backlog: match options.is_set(&key("interval-during-backlog")) {
            true => Some(duration("interval-during-backlog")?.unwrap_or_default()),
            false => None,
        },
        min_pause: duration("min-pause")?.unwrap_or_default(),
        timeout: duration("timeout")?.unwrap_or(defaults.timeout),
        tolerable_failed: u32::try_from(count("tolerable-failed-checkpoints")?).unwrap_or(u32::MAX),
        max_concurrent: count("max-concurrent-checkpoints")?,
        num_retained: count("num-retained")?,
        after_tasks_finish: options.is_on(&key("checkpoints-after-tasks-finish"))?,
        incremental: options.is_on(&key("incremental"))?,
        ignore_unclaimed_state: options.is_on("execution.state-recovery.ignore-unclaimed-state")?,
        parallel_clean_up: options.is_on(&key("cleaner.parallel-mode"))?,
        inline_threshold: options.bytes(&key("data-inline-threshold"))?,
        merging: options.is_on(&key("file-merging.enabled"))?,
        max_file_size: options.bytes(&key("file-merging.max-file-size"))?,
        unaligned: options.is_on(&key("unaligned.enabled"))?,
        aligned_timeout: duration("aligned-checkpoint-timeout")?.unwrap_or_default(),
        unaligned_forced: options.is_on(&key("unaligned.forced"))?,
        in_flight_sharers: count("unaligned.max-subtasks-per-channel-state-file")?,
        retention: match options.get(&key("externalized-checkpoint-retention"))? {
            "RETAIN_ON_CANCELLATION" => Retention::Retain,
            _ => Retention::Delete,
        },
        ..defaults
    })
}

/// When a failed query starts again.
pub(super) fn restart_policy(options: &Options) -> Result<RestartPolicy, SqlError> {
    let duration = |name: &str, default: Duration| {
        options.duration(&format!("restart-strategy.{name}")).map(|d| d.unwrap_or(default))
    };
    let attempts =
        |name: &str| options.int(&format!("restart-strategy.{name}")).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let defaults = RestartPolicy::default();
    Ok(match options.get("restart-strategy.type")? {
        "none" => RestartPolicy { max_attempts: Some(0), ..defaults },
        "fixed-delay" => {
            let delay = duration("fixed-delay.delay", defaults.initial)?;
            RestartPolicy {
                initial: delay,
                max: delay,
                max_attempts: Some(attempts("fixed-delay.attempts")?),
                ..defaults
            }
        }
        _ => RestartPolicy {
            initial: duration("exponential-delay.initial-backoff", defaults.initial)?,
            multiplier: options.number("restart-strategy.exponential-delay.backoff-multiplier")?,
            max: duration("exponential-delay.max-backoff", defaults.max)?,
            reset_after: duration("exponential-delay.reset-backoff-threshold", defaults.reset_after)?,
            max_attempts: match attempts("exponential-delay.attempts-before-reset-backoff")? {
                0 => None,
                n => Some(n),
            },
        },
    })
}

/// How often results become visible.
pub(crate) fn epoch_interval(options: &Options) -> Result<Duration, SqlError> {
    Ok(options.duration("execution.epoch.interval")?.unwrap_or(Duration::from_millis(200)))
}

/// Bytes that may wait in one channel.
pub(crate) fn channel_bytes(options: &Options) -> Result<usize, SqlError> {
    Ok(usize::try_from(options.bytes("pipeline.channel-bytes")?).unwrap_or(usize::MAX))
}

impl Engine {
    /// Parallelism under these options.
    pub(crate) fn parallelism(&self, options: &Options) -> Result<Parallelism, SqlError> {
        let max = u16::try_from(options.int("pipeline.max-parallelism")?).unwrap_or(i16::MAX as u16);
        let default = if options.is_set("parallelism.default") {
            u32::try_from(options.int("parallelism.default")?).unwrap_or(1)
        } else {
            self.config.parallelism.min(u32::from(max))
        };
        Ok(Parallelism { default, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_unaligned_checkpoints_arrive_at_the_runtime() {
        let mut options = Options::new();
        options.set("execution.checkpointing.unaligned.enabled", "true").unwrap();
        options.set("execution.checkpointing.aligned-checkpoint-timeout", "2s").unwrap();
        options.set("execution.checkpointing.unaligned.max-subtasks-per-channel-state-file", "7").unwrap();
        let unaligned = super::checkpointing(&options).unwrap();
        assert!(unaligned.unaligned && !unaligned.unaligned_forced);
        assert_eq!((unaligned.aligned_timeout, unaligned.in_flight_sharers), (Duration::from_secs(2), 7));
    }

    #[test]
    fn options_arrive_at_the_runtime() {
        let mut options = Options::new();
        options.set("execution.checkpointing.interval", "300ms").unwrap();
        options.set("execution.checkpointing.num-retained", "3").unwrap();
        options.set("execution.checkpointing.file-merging.max-file-size", "256mb").unwrap();
        let checkpointing = checkpointing(&options).unwrap();
        assert_eq!(checkpointing.interval, Some(Duration::from_millis(300)));
        assert_eq!(checkpointing.num_retained, 3);
        assert_eq!(checkpointing.max_file_size, 256 << 20);
        assert_eq!(checkpointing.interval_during_backlog, None, "the same");
        options.set("execution.checkpointing.interval-during-backlog", "0").unwrap();
        options.set("execution.checkpointing.mode", "at_least_once").unwrap();
        options.set("execution.checkpointing.min-pause", "2s").unwrap();
        options.set("execution.checkpointing.timeout", "2m").unwrap();
        options.set("execution.checkpointing.tolerable-failed-checkpoints", "2").unwrap();
        options.set("execution.checkpointing.max-concurrent-checkpoints", "4").unwrap();
        options.set("execution.checkpointing.checkpoints-after-tasks-finish", "false").unwrap();
        options.set("execution.checkpointing.incremental", "false").unwrap();
        options.set("execution.checkpointing.data-inline-threshold", "1kb").unwrap();
        options.set("execution.checkpointing.cleaner.parallel-mode", "false").unwrap();
        options.set("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION").unwrap();
        let expected = CheckpointOptions {
            mode: CheckpointMode::AtLeastOnce,
            interval_during_backlog: Some(Duration::ZERO),
            min_pause: Duration::from_secs(2),
            timeout: Duration::from_secs(120),
            tolerable_failed: 2,
            max_concurrent: 4,
            after_tasks_finish: false,
            incremental: false,
            inline_threshold: 1024,
            parallel_clean_up: false,
            retention: Retention::Retain,
            ..checkpointing
        };
        assert_eq!(super::checkpointing(&options).unwrap(), expected);
        options.set("execution.checkpointing.interval", "0").unwrap();
        assert_eq!(super::checkpointing(&options).unwrap().interval, None);
        options.set("restart-strategy.type", "fixed-delay").unwrap();
        options.set("restart-strategy.fixed-delay.attempts", "4").unwrap();
        assert_eq!(restart_policy(&options).unwrap().max_attempts, Some(4));
    }
}
