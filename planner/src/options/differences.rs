//! What differs from Flink, for those who bring their configuration.

/// Options whose default or meaning is not Flink's: name, and what differs and why. An option that is Weir's own says so.
pub static DIFFERENCES: &[(&str, &str)] = &[
    (
        "execution.checkpointing.mode",
        "Together with unaligned checkpoints AT_LEAST_ONCE is an error; Flink only warns.",
    ),
    (
        "execution.checkpointing.interval",
        "Flink: none by default. Output becomes visible with checkpoints, so Weir takes them unless told otherwise.",
    ),
    (
        "execution.checkpointing.interval-during-backlog",
        "Flink asks the source, and most never report a backlog. In Weir every source has one from the start of a run until \
         it has once nothing to read; a bounded one until its end.",
    ),
    (
        "execution.checkpointing.tolerable-failed-checkpoints",
        "Flink: 0. A store that does not answer for a moment need not restart a query.",
    ),
    (
        "execution.checkpointing.storage",
        "Flink: the job manager's memory by default, which a restart loses. Weir keeps all state in its store and refuses \
         that.",
    ),
    (
        "execution.checkpointing.dir",
        "Flink: a directory of each job. Weir keeps everything durable in one store, so it is given to the server and not \
         to a query.",
    ),
    ("execution.checkpointing.num-retained", "Flink: 1. With 2, one that is damaged is not the only one."),
    (
        "execution.checkpointing.externalized-checkpoint-retention",
        "Flink: NO_EXTERNALIZED_CHECKPOINTS, which in Weir is the same as DELETE_ON_CANCELLATION: a query that fails or is \
         stopped keeps its checkpoints in either.",
    ),
    (
        "execution.checkpointing.checkpoints-after-tasks-finish",
        "With false, Flink takes no further checkpoint at all, and what sinks wrote last is never committed. Weir still \
         takes those that are asked for and the one at the end.",
    ),
    ("execution.checkpointing.incremental", "Flink: false. Both kinds have one format here and are restored alike."),
    (
        "execution.checkpointing.data-inline-threshold",
        "Flink: for each state file. Weir: for all that a manifest holds, so that its size has a bound.",
    ),
    (
        "execution.checkpointing.file-merging.enabled",
        "Flink: false. Fewer objects cost less, and restoring reads either.",
    ),
    ("execution.checkpointing.file-merging.max-file-size", "Flink: 32 mb."),
    ("execution.epoch.interval", "Weir's own: Flink shows results when a sink does."),
    ("retention", "Weir's own: Flink has no streams of its own."),
    ("parallelism.default", "Flink: 1."),
    (
        "pipeline.max-parallelism",
        "Flink: derived from the parallelism when a job starts first. Weir: a number that does not depend on it.",
    ),
    ("restart-strategy.exponential-delay.initial-backoff", "Flink: 1 s. A restart from local state takes less."),
    ("restart-strategy.exponential-delay.max-backoff", "Flink: 1 min."),
    ("restart-strategy.exponential-delay.backoff-multiplier", "Flink: 1.5."),
    ("restart-strategy.exponential-delay.reset-backoff-threshold", "Flink: 1 h."),
    ("pipeline.channel-bytes", "Weir's own: Flink counts buffers of network memory."),
    ("state.memory.bytes", "Weir's own: Flink gives each task manager a share of managed memory."),
];
