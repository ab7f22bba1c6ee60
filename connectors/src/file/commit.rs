//! From hidden staged parts to visible files.
//!
//! ```text
//!   <path>/.weir-<job>/<part>        written, made durable; no name that *.json would match
//!        │ commit, after the checkpoint's manifest is durable
//!        ▼
//!   <path>/part-<lineage>-<subtask>-<checkpoint>-<n>.<format>
//! ```
//!
//! Commit is a rename (object stores: copy, then delete). Repeating it finds the file in place and is content. The
//! lineage, the end of the job's id, keeps the files of a dropped and re-created sink apart from the old ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use weir_runtime::sink::SinkCommitter;
use weir_runtime::{Result, RuntimeError};
use weir_storage::{CheckpointId, JobId};

use super::{fault, io_reason, join_fault};

/// Where a sink writes.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A directory of this machine.
    Local(PathBuf),
    /// A prefix of an object store.
    Object {
        /// The store.
        store: Arc<dyn ObjectStore>,
        /// Key prefix.
        prefix: ObjectPath,
        /// For errors.
        url: String,
    },
}

/// One file to be made visible: what a writer hands over at a barrier. Names are relative to the sink's path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Committable {
    /// Name of the staged part.
    pub(crate) staged: String,
    /// Name of the file to be.
    #[serde(rename = "final")]
    pub(crate) name: String,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// CRC-32 of its bytes.
    pub(crate) crc32: u32,
}

/// The hidden directory of a job's staged parts.
pub(crate) fn staging(job: &JobId) -> String {
    format!(".weir-{job}")
}

/// What tells the files of one job from those of another of the same name.
pub(crate) fn lineage(job: &JobId) -> String {
    let tail: Vec<char> = job.0.chars().rev().filter(char::is_ascii_alphanumeric).take(8).collect();
    tail.into_iter().rev().collect()
}

/// Commits a sink's files.
#[derive(Debug)]
pub(crate) struct FileCommitter {
    target: Target,
    job: JobId,
}

impl FileCommitter {
    pub(crate) fn new(target: Target, job: JobId) -> Self {
        Self { target, job }
    }
}

#[async_trait]
impl SinkCommitter for FileCommitter {
    async fn commit(&mut self, checkpoint: CheckpointId, committables: Vec<Vec<u8>>) -> Result<()> {
        let parts = committables
            .iter()
            .map(|bytes| serde_json::from_slice(bytes))
            .collect::<Result<Vec<Committable>, _>>()
            .map_err(|error| RuntimeError::Internal {
                place: "file sink",
                reason: format!("a committable of checkpoint {checkpoint} is unreadable: {error}"),
            })?;
        match &self.target {
            Target::Local(path) => {
                let (path, staging) = (path.clone(), staging(&self.job));
                let task = tokio::task::spawn_blocking(move || commit_local(&path, &staging, &parts));
                task.await.map_err(|error| join_fault(&error))?
            }
            Target::Object { store, prefix, url } => {
                for part in parts {
                    commit_object(store.as_ref(), prefix, url, &part).await?;
                }
                Ok(())
            }
        }
    }

    async fn clean_up(&mut self) -> Result<()> {
        let staging = staging(&self.job);
        match &self.target {
            Target::Local(path) => {
                let path = path.join(staging);
                let task = tokio::task::spawn_blocking(move || match std::fs::remove_dir_all(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(fault(path.display().to_string(), io_reason(&error, "remove")))
                    }
                    _ => Ok(()),
                });
                task.await.map_err(|error| join_fault(&error))?
            }
            Target::Object { store, prefix, url } => {
                let prefix = prefix.clone().join(staging);
                let failed = |error: object_store::Error| fault(url.as_str(), format!("cannot clean up: {error}"));
                let leftovers: Vec<_> = store.list(Some(&prefix)).try_collect().await.map_err(failed)?;
                for meta in leftovers {
                    ignore_missing(store.delete(&meta.location).await).map_err(failed)?;
                }
                Ok(())
            }
        }
    }
}

fn ignore_missing(result: object_store::Result<()>) -> object_store::Result<()> {
    match result {
        Err(object_store::Error::NotFound { .. }) => Ok(()),
        other => other,
    }
}

/// Make a directory's entries durable.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    std::fs::File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| fault(path.display().to_string(), io_reason(&error, "write")))
}

fn commit_local(path: &Path, staging: &str, parts: &[Committable]) -> Result<()> {
    for part in parts {
        let (staged, end) = (path.join(&part.staged), path.join(&part.name));
        let shown = end.display().to_string();
        match std::fs::metadata(&end) {
            Ok(metadata) if metadata.len() == part.length => {
                // Committed before the crash.
                let _ = std::fs::remove_file(&staged);
                continue;
            }
            Ok(metadata) => return Err(wrong_length(&shown, metadata.len(), part)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(fault(shown, io_reason(&error, "read"))),
        }
        let metadata = std::fs::metadata(&staged).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => gone(&shown, part),
            _ => fault(staged.display().to_string(), io_reason(&error, "read")),
        })?;
        if metadata.len() != part.length {
            return Err(wrong_length(&staged.display().to_string(), metadata.len(), part));
        }
        std::fs::rename(&staged, &end).map_err(|error| fault(shown, io_reason(&error, "write")))?;
    }
    if !parts.is_empty() {
        sync_directory(path)?;
    }
    // Only succeeds when no part is being written; a writer makes the directory again when it needs it.
    let _ = std::fs::remove_dir(path.join(staging));
    Ok(())
}

fn wrong_length(shown: &str, length: u64, part: &Committable) -> RuntimeError {
    fault(
        shown,
        format!("has {length} bytes where {} were written; something else has changed it. Move it away", part.length),
    )
}

fn gone(shown: &str, part: &Committable) -> RuntimeError {
    fault(
        shown,
        format!(
            "is missing, and so is its staged part {} of {} bytes (CRC-32 {:08x}); put either back",
            part.staged, part.length, part.crc32
        ),
    )
}

async fn commit_object(store: &dyn ObjectStore, prefix: &ObjectPath, url: &str, part: &Committable) -> Result<()> {
    let key = |name: &str| name.split('/').fold(prefix.clone(), |path, segment| path.join(segment));
    let (staged, end) = (key(&part.staged), key(&part.name));
    let shown = format!("{}/{}", url.trim_end_matches('/'), part.name);
    let failed = |error: object_store::Error| fault(shown.as_str(), format!("cannot be committed: {error}"));
    match store.head(&end).await {
        Ok(meta) if meta.size == part.length => {}
        Ok(meta) => return Err(wrong_length(&shown, meta.size, part)),
        Err(object_store::Error::NotFound { .. }) => match store.copy(&staged, &end).await {
            Err(object_store::Error::NotFound { .. }) => return Err(gone(&shown, part)),
            copied => copied.map_err(failed)?,
        },
        Err(error) => return Err(failed(error)),
    }
    ignore_missing(store.delete(&staged).await).map_err(failed)
}
