//! Savepoints: a checkpoint copied with all of its objects to a directory of its own, and the way back into a job.
//!
//! ```text
//!   <savepoint>/_metadata       written last; its presence is the savepoint
//!   <savepoint>/data/<object>   every object that the checkpoint needs, whole
//! ```
//!
//! Nothing in it names its own place, so the directory can be copied anywhere. It belongs to whoever asked for it: no
//! clean-up looks at it. Restoring copies its objects once more, into the job's directory, so that a job never depends
//! on a savepoint after that.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};

use super::job_store::{CheckpointInfo, JobStore, Layout, SAVEPOINT_MANIFEST};
use super::manifest::{Manifest, SavepointAbout};
use super::verify::resolve;
use super::writer::object_path;
use crate::error::{Result, StorageError};
use crate::store::{Store, path_part};
use crate::{CheckpointId, Epoch, Generation};

/// Where savepoints are within a store when no other place is named.
pub(super) const SAVEPOINTS: &str = "savepoints";
/// Objects that are copied at the same time.
const CONCURRENCY: usize = 8;

/// A directory for one savepoint.
#[derive(Debug, Clone)]
pub struct SavepointPlace {
    store: Store,
    directory: String,
}

impl SavepointPlace {
    /// The usual place for a savepoint of `query` called `name`: below the store's own URL.
    pub fn within(store: &Store, query: &str, name: &str) -> Self {
        let directory = format!("{SAVEPOINTS}/{}/", path_part(&format!("{query}-{name}")));
        Self { store: store.clone(), directory }
    }

    /// The same below another URL.
    pub fn below(
        url: &str,
        query: &str,
        name: &str,
        store: &Store,
        options: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let url = format!("{}/{}", url.trim_end_matches('/'), path_part(&format!("{query}-{name}")));
        Self::at(&url, store, options)
    }

    /// Any URL. `store` is where the savepoint's data comes from: within it, the store does the copying.
    pub fn at(url: &str, store: &Store, options: &BTreeMap<String, String>) -> Result<Self> {
        let bad = |reason: &str| StorageError::BadUrl { url: url.to_owned(), reason: reason.to_owned() };
        if !url.contains(':') && !url.starts_with('/') {
            return Err(bad("it is relative, and a savepoint is to be found from anywhere"));
        }
        let last = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if last.strip_prefix("chk-").is_some_and(|number| number.parse::<u64>().is_ok()) {
            return Err(bad("the name of its directory is that of a checkpoint of a job"));
        }
        let opened = Store::open(url, options)?;
        Ok(match store.path_of(opened.url()) {
            Some(path) => Self { store: store.clone(), directory: format!("{path}/") },
            None => Self { store: opened, directory: String::new() },
        })
    }

    /// Absolute URL of the directory.
    pub fn url(&self) -> String {
        self.absolute("").trim_end_matches('/').to_owned()
    }

    fn absolute(&self, path: &str) -> String {
        self.store.absolute(&self.path(path))
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.directory)
    }

    /// Copies a completed checkpoint of `job`, whose output is committed, here. The checkpoint must stay until this
    /// returns. What was copied before a failure is removed again.
    pub async fn write(&self, job: &JobStore, checkpoint: &Manifest, about: SavepointAbout) -> Result<CheckpointInfo> {
        let taken = || StorageError::Conflict {
            url: self.absolute(SAVEPOINT_MANIFEST),
            reason: format!("a savepoint of \"{}\" was to be written there; name another place", about.query),
        };
        if self.store.exists(&self.path(SAVEPOINT_MANIFEST)).await? {
            return Err(taken());
        }
        let objects: Vec<&str> = checkpoint.objects().into_iter().collect();
        let places = objects.iter().map(|path| ((*path).to_owned(), self.path(path))).collect();
        let copied = copy_all(job.clone(), self.store.clone(), places, checkpoint.checkpoint).await;
        if let Err(error) = copied {
            let paths = objects.iter().map(|path| self.path(path)).collect();
            if let Err(error) = self.store.delete_many(paths).await {
                tracing::warn!(url = self.url(), %error, "what was copied of a savepoint that failed stays there");
            }
            return Err(error);
        }
        let mut manifest = Manifest { savepoint: Some(about.clone()), ..checkpoint.clone() };
        for subtask in manifest.operators.iter_mut().flat_map(|operator| &mut operator.subtasks) {
            // Committed by the query; whoever starts from here must not do so again.
            subtask.committables.clear();
        }
        if !self.store.create(&self.path(SAVEPOINT_MANIFEST), manifest.to_bytes()?).await? {
            return Err(taken());
        }
        Ok(CheckpointInfo::of(&manifest, self.absolute(SAVEPOINT_MANIFEST)))
    }
}

/// A checkpoint or savepoint at a URL.
#[derive(Debug, Clone)]
pub struct Located {
    job: JobStore,
    /// What it consists of.
    pub manifest: Manifest,
}

/// The savepoint or checkpoint at a URL; of a job's directory, its newest.
pub async fn locate(url: &str, options: &BTreeMap<String, String>) -> Result<Located> {
    let target = resolve(url, options).await?;
    if target.jobs.is_empty() {
        return Err(StorageError::Missing {
            url: url.to_owned(),
            needed_by: "whoever wants to go on from it".to_owned(),
        });
    }
    let [job] = target.jobs.as_slice() else {
        return Err(StorageError::BadUrl {
            url: url.to_owned(),
            reason: format!(
                "{} jobs and savepoints are below it; name one of them, or a checkpoint",
                target.jobs.len()
            ),
        });
    };
    let manifest = match target.only {
        Some(id) => job.read(id).await?,
        None => job.latest().await?.ok_or_else(|| StorageError::Missing {
            url: format!("{}/chk-…/_metadata", job.url()),
            needed_by: "reading its newest checkpoint".to_owned(),
        })?,
    };
    Ok(Located { job: job.clone(), manifest })
}

impl Located {
    /// Whether it is a savepoint, and not a checkpoint in a job's directory.
    pub fn is_savepoint(&self) -> bool {
        self.job.layout() == Layout::Savepoint
    }

    /// Absolute URL of its manifest.
    pub fn url(&self) -> String {
        self.job.manifest_url(self.manifest.checkpoint)
    }

    /// Absolute URL of the directory in which it and what it needs are.
    pub fn directory_url(&self) -> String {
        self.job.url()
    }

    /// Removes it: its manifest first, then the objects that no other checkpoint in its directory names.
    pub async fn delete(&self) -> Result<()> {
        let (store, manifest) = (self.job.store(), &self.manifest);
        let mut objects = manifest.objects();
        let mut others = Vec::new();
        if !self.is_savepoint() {
            for id in self.job.list().await?.into_iter().filter(|id| *id != manifest.checkpoint) {
                others.push(self.job.read(id).await?);
            }
        }
        for other in others.iter().flat_map(Manifest::objects) {
            objects.remove(other);
        }
        store.delete(&self.job.path(&self.job.manifest_path(manifest.checkpoint))).await?;
        let hint = if others.is_empty() && !self.is_savepoint() { Some("LATEST") } else { None };
        self.job.delete(objects.into_iter().chain(hint).map(|path| self.job.path(path)).collect()).await
    }
}

impl JobStore {
    /// Makes a savepoint or checkpoint this job's newest checkpoint, numbered `checkpoint`. All that it needs is copied
    /// here first, under new names, unless it is here already. When this returns, the job's next run starts from it.
    ///
    /// `generation` is the owner's. The job's epochs go on after `epoch`, or after its own if those are later. What
    /// sinks had prepared is kept only `with_output`: when nobody may have committed it.
    pub async fn adopt(
        &self,
        found: &Located,
        checkpoint: CheckpointId,
        epoch: Epoch,
        generation: Generation,
        with_output: bool,
    ) -> Result<CheckpointInfo> {
        self.check_fence().await?;
        let mut manifest = found.manifest.clone();
        if found.job.url() != self.url() {
            let unique = uuid::Uuid::now_v7().simple().to_string();
            let new_names: BTreeMap<String, String> = manifest
                .objects()
                .into_iter()
                .enumerate()
                .map(|(i, path)| (path.to_owned(), object_path(checkpoint, &format!("{unique}-{i}"))))
                .collect();
            let places = new_names.iter().map(|(path, new_name)| (path.clone(), self.path(new_name))).collect();
            copy_all(found.job.clone(), self.store().clone(), places, manifest.checkpoint).await?;
            manifest.relocate(&new_names);
        }
        let other_lineage = manifest.job != *self.job();
        for subtask in manifest.operators.iter_mut().flat_map(|operator| &mut operator.subtasks) {
            if !with_output {
                subtask.committables.clear();
            }
            // A sink's own state is about what it writes, which another query's sink has no part in.
            if other_lineage {
                subtask.sink_state = Bytes::new();
            }
        }
        manifest.job = self.job().clone();
        manifest.checkpoint = checkpoint;
        manifest.epoch = epoch.max(manifest.epoch);
        manifest.generation = generation;
        manifest.savepoint = None;
        self.complete(&manifest).await
    }
}

/// Copies objects of a job's directory, by their names there, to paths of a store.
fn copy_all(
    job: JobStore,
    to: Store,
    places: Vec<(String, String)>,
    checkpoint: CheckpointId,
) -> BoxFuture<'static, Result<()>> {
    let copies = futures::stream::iter(places).map(move |(object, place)| {
        let (job, to) = (job.clone(), to.clone());
        async move {
            job.store().copy(&job.path(&object), &to, &place).await.map_err(|error| match error.is_not_found() {
                true => StorageError::Missing {
                    url: job.absolute(&object),
                    needed_by: format!("checkpoint {checkpoint} of {}", job.job()),
                },
                false => error,
            })
        }
    });
    copies.buffer_unordered(CONCURRENCY).try_collect::<()>().boxed()
}

#[cfg(test)]
#[path = "savepoint_tests.rs"]
mod tests;
