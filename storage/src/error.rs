//! What can go wrong with durable data, told so that a person can act on it.

/// An error of the checkpoint store, a log or the keyed state.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The store URL cannot be understood.
    #[error("cannot use \"{url}\" as a store: {reason}; give a URL such as file:///var/lib/weir or s3://bucket/prefix")]
    BadUrl {
        /// What was given.
        url: String,
        /// Why it does not do.
        reason: String,
    },
    /// Start-up found that the store lacks something Weir needs.
    #[error("the store at {url} cannot {operation}: {source}")]
    Probe {
        /// Absolute URL of the object that was tried.
        url: String,
        /// What was tried: write, read, list, delete, create conditionally.
        operation: &'static str,
        /// The store's own answer.
        source: object_store::Error,
    },
    /// A request to the store failed.
    #[error("{operation} {url}: {source}")]
    Store {
        /// Absolute URL of the object.
        url: String,
        /// What was tried.
        operation: &'static str,
        /// The store's own answer.
        source: object_store::Error,
    },
    /// Something persisted is not what its checksum or format says.
    #[error("{url} is damaged: {reason}")]
    Corrupt {
        /// Absolute URL (or local path) of the object.
        url: String,
        /// What does not hold.
        reason: String,
    },
    /// Something persisted is gone.
    #[error("{url} does not exist, but {needed_by} needs it")]
    Missing {
        /// Absolute URL of the object.
        url: String,
        /// Who refers to it.
        needed_by: String,
    },
    /// Another process took the store over.
    #[error("this process (generation {ours}) no longer owns the store at {url}: generation {theirs} took it over")]
    Fenced {
        /// The store.
        url: String,
        /// Our generation.
        ours: crate::Generation,
        /// The owner's generation.
        theirs: crate::Generation,
    },
    /// Another living process owns the store.
    #[error(
        "the store at {url} is in use by {owner}; stop that process first, or give this one another --data-dir and --store"
    )]
    InUse {
        /// The store.
        url: String,
        /// Host, process id and since when.
        owner: String,
    },
    /// Something that only one process may write was written by another, or twice with different content.
    #[error("{url} exists already and holds something else: {reason}")]
    Conflict {
        /// Absolute URL of the object.
        url: String,
        /// What this process wanted to write there.
        reason: String,
    },
    /// A checkpoint was given up while its data was being written.
    #[error("checkpoint {checkpoint} was aborted: {reason}")]
    Aborted {
        /// Which checkpoint.
        checkpoint: crate::CheckpointId,
        /// Why it was given up.
        reason: String,
    },
    /// A merged file could not be written; every segment that it would have held fails with it.
    #[error("checkpoint {checkpoint} could not write {url}: {reason}")]
    Upload {
        /// Which checkpoint.
        checkpoint: crate::CheckpointId,
        /// Absolute URL of the object.
        url: String,
        /// The store's own answer.
        reason: String,
    },
    /// Rows that were to be appended together with others could not be.
    #[error("appending to {url}: {reason}")]
    Append {
        /// The log.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// RocksDB failed.
    #[error("local state in {path}: {source}")]
    Rocks {
        /// Directory of the database.
        path: String,
        /// RocksDB's own answer.
        source: rocksdb::Error,
    },
    /// The local disk failed.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: String,
        /// The system's own answer.
        source: std::io::Error,
    },
    /// Rows could not be encoded or decoded.
    #[error("cannot encode or decode state rows: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

impl StorageError {
    /// Whether the store answered that the object is not there (and not that something else went wrong).
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::Store { source, .. } => matches!(source, object_store::Error::NotFound { .. }),
            _ => false,
        }
    }
}

/// Result of this crate.
pub type Result<T, E = StorageError> = std::result::Result<T, E>;
