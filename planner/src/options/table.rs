//! The table of all options: the one place that SET, WITH, the configuration file and the documentation read.

use super::{Availability, Kind, OptionSpec, Scope};

const fn query(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default, doc, scope: Scope::Query, available: Availability::Full }
}

const fn server(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default, doc, scope: Scope::Server, available: Availability::Full }
}

const fn only(mut spec: OptionSpec, values: &'static [&'static str]) -> OptionSpec {
    spec.available = Availability::Only(values);
    spec
}

const NATURAL: Kind = Kind::Int { min: 0, max: i64::MAX };
const POSITIVE: Kind = Kind::Int { min: 1, max: i64::MAX };

/// Every option, in the order of the documentation. Names of `execution.checkpointing.*` are Flink's.
pub static OPTIONS: &[OptionSpec] = &[
    query(
        "execution.checkpointing.mode",
        Kind::Enum(&["EXACTLY_ONCE", "AT_LEAST_ONCE"]),
        "EXACTLY_ONCE",
        "Whether barriers are aligned, so that each row counts exactly once after a recovery.",
    ),
    query(
        "execution.checkpointing.interval",
        Kind::Duration,
        "1 s",
        "Time between the starts of two checkpoints. 0 takes none but the one at the end or at a CHECKPOINT statement.",
    ),
    query(
        "execution.checkpointing.min-pause",
        Kind::Duration,
        "0 ms",
        "Least time from one checkpoint's end to the next periodic one's start. Above 0, periodic checkpoints do not overlap.",
    ),
    query("execution.checkpointing.timeout", Kind::Duration, "10 min", "A checkpoint that takes longer is given up."),
    query(
        "execution.checkpointing.tolerable-failed-checkpoints",
        NATURAL,
        "3",
        "How many checkpoints may fail one after the other before the query is restarted from the last good one.",
    ),
    query(
        "execution.checkpointing.max-concurrent-checkpoints",
        POSITIVE,
        "1",
        "How many checkpoints may be under way at once.",
    ),
    only(
        query(
            "execution.checkpointing.storage",
            Kind::Enum(&["filesystem", "jobmanager"]),
            "filesystem",
            "Where checkpoints are kept. Weir always keeps them in its store.",
        ),
        &["filesystem"],
    ),
    server(
        "execution.checkpointing.dir",
        Kind::Text,
        "",
        "The store's URL; the same as store and --store. Empty: below data-dir.",
    ),
    query("execution.checkpointing.num-retained", POSITIVE, "2", "How many completed checkpoints are kept."),
    query(
        "execution.checkpointing.externalized-checkpoint-retention",
        Kind::Enum(&["DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION", "NO_EXTERNALIZED_CHECKPOINTS"]),
        "DELETE_ON_CANCELLATION",
        "Whether checkpoints stay in the store when their query is dropped. They always stay when it fails or is stopped.",
    ),
    query(
        "execution.checkpointing.unaligned.enabled",
        Kind::Bool,
        "false",
        "Whether barriers overtake rows that wait in channels; those rows become part of the checkpoint. Needs EXACTLY_ONCE and one checkpoint at a time.",
    ),
    query(
        "execution.checkpointing.unaligned.forced",
        Kind::Bool,
        "false",
        "Whether barriers overtake even where the rows could not be shared out anew: such a checkpoint is restored at the same parallelism only.",
    ),
    query(
        "execution.checkpointing.unaligned.max-subtasks-per-channel-state-file",
        POSITIVE,
        "5",
        "How many subtasks share an object of overtaken rows when file merging is off; with it, all share.",
    ),
    query(
        "execution.checkpointing.aligned-checkpoint-timeout",
        Kind::Duration,
        "0 ms",
        "How long after its start a checkpoint that may be unaligned is aligned; then its barriers overtake. 0: they overtake at once.",
    ),
    query(
        "execution.checkpointing.checkpoints-after-tasks-finish",
        Kind::Bool,
        "true",
        "Whether periodic checkpoints go on after a subtask of a source has read all of its input.",
    ),
    query(
        "execution.checkpointing.incremental",
        Kind::Bool,
        "true",
        "Whether a checkpoint uploads only what no retained one has. Without, each holds all of its state.",
    ),
    query(
        "execution.checkpointing.interval-during-backlog",
        Kind::Duration,
        "",
        "Another interval while a source reads its backlog: until it has once come to the end of what there is to read. \
         0: no periodic checkpoints meanwhile. Unset: the same.",
    ),
    query(
        "execution.checkpointing.data-inline-threshold",
        Kind::Bytes,
        "20 kb",
        "State up to this size is kept inside the manifest rather than in a data object. At most 1 mb.",
    ),
    only(
        query(
            "execution.checkpointing.local-backup.enabled",
            Kind::Bool,
            "false",
            "Whether a copy of the state stays on the local disk.",
        ),
        &["false"],
    ),
    only(server("execution.checkpointing.local-backup.dirs", Kind::Text, "", "Where local copies are kept."), &[""]),
    query(
        "execution.checkpointing.file-merging.enabled",
        Kind::Bool,
        "true",
        "Whether the state of many subtasks shares a data object.",
    ),
    query(
        "execution.checkpointing.file-merging.max-file-size",
        Kind::Bytes,
        "256 mb",
        "A data object is closed when it has grown to this.",
    ),
    only(
        query(
            "execution.checkpointing.file-merging.max-space-amplification",
            Kind::Number { min: 1.0 },
            "2",
            "Most bytes in the store for each byte in use before objects are packed anew.",
        ),
        &["2"],
    ),
    only(
        query(
            "execution.checkpointing.file-merging.across-checkpoint-boundary",
            Kind::Bool,
            "false",
            "Whether a data object is shared by several checkpoints.",
        ),
        &["false"],
    ),
    only(
        query(
            "execution.checkpointing.file-merging.pool-blocking",
            Kind::Bool,
            "false",
            "Whether a subtask waits for an open data object rather than opening another.",
        ),
        &["false"],
    ),
    query(
        "execution.checkpointing.cleaner.parallel-mode",
        Kind::Bool,
        "true",
        "Whether objects of old checkpoints are deleted side by side or one after the other.",
    ),
    query("execution.checkpointing.savepoint-dir", Kind::Text, "", "Where savepoints go when no place is named."),
    query(
        "execution.state-recovery.path",
        Kind::Text,
        "",
        "URL of the savepoint or checkpoint that a new query starts from.",
    ),
    query(
        "execution.state-recovery.claim-mode",
        Kind::Enum(&["NO_CLAIM", "CLAIM"]),
        "NO_CLAIM",
        "Who owns the checkpoint that a query starts from.",
    ),
    query(
        "execution.state-recovery.ignore-unclaimed-state",
        Kind::Bool,
        "false",
        "Whether state that no operator takes may be left behind when a query starts from a checkpoint.",
    ),
    query(
        "execution.epoch.interval",
        Kind::Duration,
        "200 ms",
        "How often results become visible: operators batch their changes from one epoch to the next.",
    ),
    query(
        "parallelism.default",
        Kind::Int { min: 1, max: 1024 },
        "0",
        "Number of parallel subtasks of a query. Unset: one for each core.",
    ),
    query(
        "pipeline.max-parallelism",
        Kind::Int { min: 1, max: 32_767 },
        "128",
        "Number of key groups of a query, the most subtasks that it can ever have.",
    ),
    query(
        "restart-strategy.type",
        Kind::Enum(&["exponential-delay", "fixed-delay", "none"]),
        "exponential-delay",
        "What happens to a query that fails.",
    ),
    query(
        "restart-strategy.exponential-delay.initial-backoff",
        Kind::Duration,
        "200 ms",
        "Wait before the first restart.",
    ),
    query("restart-strategy.exponential-delay.max-backoff", Kind::Duration, "30 s", "Longest wait before a restart."),
    query(
        "restart-strategy.exponential-delay.backoff-multiplier",
        Kind::Number { min: 1.0 },
        "2",
        "By how much the wait grows with each restart.",
    ),
    query(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        Kind::Duration,
        "1 min",
        "A query that ran this long starts with the first wait again.",
    ),
    query(
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        NATURAL,
        "0",
        "Restarts before the query is given up. 0: never given up.",
    ),
    query("restart-strategy.fixed-delay.attempts", NATURAL, "1", "Restarts before the query is given up."),
    query("restart-strategy.fixed-delay.delay", Kind::Duration, "1 s", "Wait before a restart."),
    query(
        "pipeline.channel-bytes",
        Kind::Bytes,
        "4 mb",
        "Bytes that may wait in one channel before its sender is held back.",
    ),
    query(
        "retention",
        Kind::Retention,
        "forever",
        "How much of a stream's history is kept for queries that are yet to come: forever, the time since rows were \
         written, or the bytes of the newest ones. What a running query has yet to read is kept in any case. For streams \
         of Weir's own: those of a query, and those written by INSERT and HTTP.",
    ),
    query(
        "table.exec.source.idle-timeout",
        Kind::Duration,
        "0 ms",
        "A split without rows for this long no longer holds back event time. 0: it always does.",
    ),
    only(
        query(
            "table.exec.state.ttl",
            Kind::Duration,
            "0 ms",
            "State that nothing touched for this long is forgotten. 0: never.",
        ),
        &["0 ms"],
    ),
    server(
        "batch.memory.bytes",
        Kind::Bytes,
        "1 gb",
        "Memory that SELECT statements may use together, before sorts, joins and groups go to temporary files or fail.",
    ),
    server(
        "state.memory.bytes",
        Kind::Bytes,
        "256 mb",
        "Memory for the block caches and write buffers of all keyed state.",
    ),
];
