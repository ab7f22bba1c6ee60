//! What can go wrong while a dataflow runs.

/// An error of a running dataflow. It fails the query that it happened in, which then restarts from its last
/// checkpoint; other queries go on.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// Durable data failed.
    #[error(transparent)]
    Storage(#[from] weir_storage::StorageError),
    /// Evaluating an expression failed (division by zero, overflow, a cast).
    #[error("{0}")]
    Evaluation(#[from] datafusion::error::DataFusionError),
    /// Arrow failed.
    #[error("{0}")]
    Arrow(#[from] arrow::error::ArrowError),
    /// A connector failed: which, on what, and what to do.
    #[error("{connector} connector, {subject}: {reason}")]
    Connector {
        /// Connector name as in `WITH (connector = …)`.
        connector: String,
        /// The file, URL or option concerned.
        subject: String,
        /// What went wrong and what to do about it.
        reason: String,
    },
    /// An option's value is wrong; found when the connector is created.
    #[error("option \"{option}\" = '{given}': {expected}")]
    Option {
        /// Name of the option.
        option: String,
        /// What was given.
        given: String,
        /// What is allowed.
        expected: String,
    },
    /// State or a message is not what the code that wrote it must have written.
    #[error("internal error in {place}: {reason}; please report it")]
    Internal {
        /// Where.
        place: &'static str,
        /// What did not hold.
        reason: String,
    },
    /// A task panicked.
    #[error("task \"{task}\" panicked: {reason}; please report it")]
    Panicked {
        /// Name of the task.
        task: String,
        /// The panic's message.
        reason: String,
    },
    /// A checkpoint that somebody asked for did not complete.
    #[error("checkpoint of query \"{query}\" did not complete: {reason}")]
    Checkpoint {
        /// Name of the query.
        query: String,
        /// Why, and what to do about it.
        reason: String,
    },
    /// The graph, or the checkpoint to restore it from, does not fit what the runtime can do.
    #[error("query \"{query}\" cannot start: {reason}")]
    CannotStart {
        /// Name of the query.
        query: String,
        /// What does not fit, and what to do about it.
        reason: String,
    },
}

impl RuntimeError {
    /// Whether trying again cannot help: the process has lost the store, or the graph and the checkpoint do not fit.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Storage(weir_storage::StorageError::Fenced { .. }) | Self::CannotStart { .. })
    }
}

/// An error for what cannot happen unless this crate is wrong.
pub(crate) fn internal(place: &'static str, reason: impl Into<String>) -> RuntimeError {
    RuntimeError::Internal { place, reason: reason.into() }
}

/// Result of this crate.
pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;
