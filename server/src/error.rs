//! Errors of the layers below as the one error that every door shows.

use datafusion::error::DataFusionError;
use weir_planner::{ErrorKind, SqlError};
use weir_runtime::RuntimeError;
use weir_storage::StorageError;

/// An error of a batch query.
pub fn from_datafusion(error: DataFusionError) -> SqlError {
    match error.find_root() {
        DataFusionError::External(inner) => {
            if let Some(error) = inner.downcast_ref::<SqlError>() {
                return error.clone();
            }
            if let Some(error) = inner.downcast_ref::<RuntimeError>() {
                return SqlError::new(runtime_kind(error), error.to_string());
            }
            if let Some(error) = inner.downcast_ref::<StorageError>() {
                return SqlError::new(storage_kind(error), error.to_string());
            }
            SqlError::new(ErrorKind::INTERNAL, inner.to_string())
        }
        DataFusionError::ArrowError(inner, _) => SqlError::new(ErrorKind::EVALUATION, inner.to_string()),
        DataFusionError::Execution(message) => SqlError::new(ErrorKind::EVALUATION, message.clone()),
        DataFusionError::ResourcesExhausted(message) => {
            SqlError::new(ErrorKind::OUT_OF_MEMORY, "the query needs more memory than is left for batch queries")
                .detail(message.clone())
                .hint("select fewer rows or columns, or raise batch.memory.bytes in the configuration file")
        }
        _ => weir_planner::from_datafusion(error),
    }
}

/// An error of durable data.
pub fn from_storage(error: StorageError) -> SqlError {
    SqlError::new(storage_kind(&error), error.to_string())
}

/// An error of a dataflow or connector.
pub fn from_runtime(error: RuntimeError) -> SqlError {
    match error {
        RuntimeError::Storage(error) => from_storage(error),
        RuntimeError::Evaluation(error) => from_datafusion(error),
        other => SqlError::new(runtime_kind(&other), other.to_string()),
    }
}

fn storage_kind(error: &StorageError) -> ErrorKind {
    match error {
        StorageError::Fenced { .. } | StorageError::InUse { .. } => ErrorKind::FENCED,
        StorageError::BadUrl { .. } => ErrorKind::INVALID_VALUE,
        _ => ErrorKind::STORAGE,
    }
}

fn runtime_kind(error: &RuntimeError) -> ErrorKind {
    match error {
        RuntimeError::Storage(error) => storage_kind(error),
        RuntimeError::Evaluation(_) | RuntimeError::Arrow(_) => ErrorKind::EVALUATION,
        RuntimeError::Connector { .. } => ErrorKind::CONNECTOR,
        RuntimeError::Option { .. } => ErrorKind::INVALID_VALUE,
        _ => ErrorKind::INTERNAL,
    }
}
