//! One job's part of the store: its manifests and the data that they name.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use super::clean_up::{CleanUp, CleanUpReport, Listing, decide_clean_up};
use super::manifest::Manifest;
use super::segment::Segment;
use super::writer::{CheckpointWriter, MergeOptions, checkpoint_of};
use crate::error::{Result, StorageError};
use crate::fence::Fence;
use crate::store::{Store, path_part};
use crate::{CheckpointId, JobId};

/// Bytes asked for by one request when a segment is downloaded into a file.
const DOWNLOAD: u64 = 8 << 20;
/// The manifest of a savepoint, relative to its directory.
pub(super) const SAVEPOINT_MANIFEST: &str = "_metadata";
/// A local staging file this old belongs to no write any more.
const STALE_STAGING: Duration = Duration::from_secs(3600);

/// A job's directory in the store. Cloning it gives another handle.
#[derive(Debug, Clone)]
pub struct JobStore {
    store: Store,
    job: JobId,
    /// With a slash at its end; empty when the store itself is the job's directory.
    directory: String,
    fence: Option<Arc<Fence>>,
    parallel_deletes: bool,
    layout: Layout,
}

/// How a directory holds its checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// A job's: `chk-N/_metadata` for each.
    Job,
    /// A savepoint's: one, `_metadata`.
    Savepoint,
}

/// A completed checkpoint, as it is shown to people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Its number.
    pub id: CheckpointId,
    /// Absolute URL of its manifest.
    pub url: String,
    /// When it was triggered, in milliseconds since 1970.
    pub triggered_at_ms: i64,
    /// When its data was durable.
    pub completed_at_ms: i64,
    /// Whether it is the last one of a finished job.
    pub last: bool,
    /// Longest alignment of a subtask.
    pub alignment_ms: u64,
    /// Rows in flight, as they are stored: part of the state.
    #[serde(default)]
    pub in_flight_bytes: u64,
    /// Longest synchronous part of a subtask's snapshot.
    pub snapshot_ms: u64,
    /// Time spent on writing objects.
    pub upload_ms: u64,
    /// Time that the commit of sinks took; known to the coordinator only, 0 when read from the store.
    pub commit_ms: u64,
    /// State inside the manifest.
    pub inline_bytes: u64,
    /// State in objects that this checkpoint wrote.
    pub new_bytes: u64,
    /// State in objects of earlier checkpoints.
    pub shared_bytes: u64,
    /// All state.
    pub total_bytes: u64,
    /// Number of objects that it needs besides the manifest.
    pub objects: usize,
    /// Where its bytes are, when that may surprise.
    pub note: Option<String>,
}

impl CheckpointInfo {
    /// What a manifest says of itself; `url` is its own.
    pub fn of(manifest: &Manifest, url: String) -> Self {
        let (mut objects, mut ranges) = (HashSet::new(), HashSet::new());
        let (mut new_objects, mut new_bytes, mut shared_bytes) = (HashSet::new(), 0, 0);
        for segment in manifest.segments() {
            let Segment::Object { path, offset, length, .. } = segment else { continue };
            objects.insert(path);
            if !ranges.insert((path, offset)) {
                continue;
            }
            // A savepoint has all of its objects to itself.
            if manifest.savepoint.is_some() || checkpoint_of(path) == Some(manifest.checkpoint) {
                new_objects.insert(path);
                new_bytes += length;
            } else {
                shared_bytes += length;
            }
        }
        let inline_bytes = manifest.inline_bytes();
        let inline = bytes_for_people(inline_bytes);
        let note = match (objects.len(), new_objects.len()) {
            (0, _) => Some(format!("{inline} of state inside the manifest; no data file was needed")),
            (n, 0) => Some(format!(
                "{inline} of state inside the manifest; {n} data file{} of earlier checkpoints used again, none written",
                if n == 1 { "" } else { "s" }
            )),
            _ => None,
        };
        Self {
            id: manifest.checkpoint,
            url,
            triggered_at_ms: manifest.triggered_at_ms,
            completed_at_ms: manifest.completed_at_ms,
            last: manifest.last,
            alignment_ms: manifest.durations.alignment_ms,
            in_flight_bytes: manifest.in_flight_bytes(),
            snapshot_ms: manifest.durations.snapshot_ms,
            upload_ms: manifest.durations.upload_ms,
            commit_ms: 0,
            inline_bytes,
            new_bytes,
            shared_bytes,
            total_bytes: inline_bytes + new_bytes + shared_bytes,
            objects: objects.len(),
            note,
        }
    }
}

/// A number of bytes with a unit that fits.
fn bytes_for_people(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

impl JobStore {
    /// The directory of `job`, to be written by the owner of the store.
    pub fn new(store: &Store, job: &JobId, fence: Arc<Fence>) -> Self {
        Self { fence: Some(fence), ..Self::read_only(store, job) }
    }

    /// Whether objects are deleted side by side, as they are unless told otherwise, or one after the other.
    #[must_use]
    pub fn with_parallel_deletes(self, parallel_deletes: bool) -> Self {
        Self { parallel_deletes, ..self }
    }

    /// The directory of `job`, for looking at. Writing to it is not fenced.
    pub fn read_only(store: &Store, job: &JobId) -> Self {
        let directory = format!("jobs/{}/", path_part(&job.0));
        Self {
            store: store.clone(),
            job: job.clone(),
            directory,
            fence: None,
            parallel_deletes: true,
            layout: Layout::Job,
        }
    }

    /// A job's directory found by looking: `directory` ends with a slash, or is empty if `store` points at it.
    pub(super) fn in_directory(store: &Store, job: JobId, directory: String) -> Self {
        Self { store: store.clone(), job, directory, fence: None, parallel_deletes: true, layout: Layout::Job }
    }

    /// A savepoint's directory, named in the same way.
    pub(super) fn of_savepoint(store: &Store, job: JobId, directory: String) -> Self {
        Self { layout: Layout::Savepoint, ..Self::in_directory(store, job, directory) }
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Whose directory it is.
    pub fn job(&self) -> &JobId {
        &self.job
    }

    /// The directory's absolute URL.
    pub fn url(&self) -> String {
        self.absolute("").trim_end_matches('/').to_owned()
    }

    /// Absolute URL of something in the directory.
    pub fn absolute(&self, path: &str) -> String {
        self.store.absolute(&self.path(path))
    }

    /// Absolute URL of a checkpoint's manifest.
    pub fn manifest_url(&self, id: CheckpointId) -> String {
        self.absolute(&self.manifest_path(id))
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.directory)
    }

    /// Begin to write a checkpoint's data; `contributors` subtasks will hand over segments. Must be called within a
    /// Tokio runtime, which will do the uploads.
    pub fn begin(&self, id: CheckpointId, options: MergeOptions, contributors: usize) -> CheckpointWriter {
        CheckpointWriter::new(&self.store, &self.job, self.directory.clone(), id, options, contributors)
    }

    pub(super) async fn check_fence(&self) -> Result<()> {
        match &self.fence {
            Some(fence) => fence.check().await,
            None => Ok(()),
        }
    }

    /// Make the checkpoint exist: create its manifest. When this returns, the checkpoint is the job's recovery point.
    pub async fn complete(&self, manifest: &Manifest) -> Result<CheckpointInfo> {
        let bytes = manifest.to_bytes()?;
        self.check_fence().await?;
        let path = self.manifest_path(manifest.checkpoint);
        if !self.store.create(&self.path(&path), bytes).await? {
            return Err(StorageError::Conflict {
                url: self.absolute(&path),
                reason: format!("checkpoint {} was to be completed there", manifest.checkpoint),
            });
        }
        // A hint for people and tools; recovery lists the manifests.
        if let Err(error) = self.store.put_relaxed(&self.path("LATEST"), format!("{path}\n")).await {
            tracing::warn!(job = %self.job, %error, "the checkpoint is complete, but LATEST still names an earlier one");
        }
        Ok(CheckpointInfo::of(manifest, self.absolute(&path)))
    }

    /// All completed checkpoints in order.
    pub async fn list(&self) -> Result<Vec<CheckpointId>> {
        if self.layout == Layout::Savepoint {
            let found = self.store.get_if_exists(&self.path(SAVEPOINT_MANIFEST)).await?;
            let manifest = found.map(|bytes| Manifest::from_bytes(&bytes, &self.absolute(SAVEPOINT_MANIFEST)));
            return Ok(manifest.transpose()?.into_iter().map(|manifest| manifest.checkpoint).collect());
        }
        let directories = self.store.list_directories(self.directory.trim_end_matches('/')).await?;
        let mut ids: Vec<_> =
            directories.iter().filter_map(|name| name.strip_prefix("chk-")?.parse().ok().map(CheckpointId)).collect();
        ids.sort_unstable();
        let mut complete = Vec::with_capacity(ids.len());
        for id in ids {
            // A directory says nothing; on a local disk an interrupted write leaves one.
            if self.store.exists(&self.path(&self.manifest_path(id))).await? {
                complete.push(id);
            }
        }
        Ok(complete)
    }

    /// A checkpoint's manifest.
    pub async fn read(&self, id: CheckpointId) -> Result<Manifest> {
        let path = self.path(&self.manifest_path(id));
        let url = self.store.absolute(&path);
        let bytes = self.store.get(&path).await.map_err(|e| match e.is_not_found() {
            true => StorageError::Missing { url: url.clone(), needed_by: format!("checkpoint {id} of {}", self.job) },
            false => e,
        })?;
        Manifest::from_bytes(&bytes, &url)
    }

    /// The newest checkpoint's manifest. One that cannot be read is an error and never skipped: an older one would
    /// silently repeat or lose what was committed in between.
    pub async fn latest(&self) -> Result<Option<Manifest>> {
        match self.list().await?.last() {
            Some(id) => self.read(*id).await.map(Some),
            None => Ok(None),
        }
    }

    /// A segment's bytes, whose checksum is right.
    pub async fn read_segment(&self, segment: &Segment) -> Result<Bytes> {
        match segment {
            Segment::Inline { bytes } => Ok(bytes.clone()),
            Segment::Object { path, offset, length, crc32 } => {
                let bytes = self.read_range(path, *offset, *length).await?;
                self.check_crc(segment, crc32fast::hash(&bytes), *crc32)?;
                Ok(bytes)
            }
        }
    }

    /// Write a segment's bytes into a new local file, piece by piece. The file is removed again if the checksum is wrong.
    pub async fn download_segment(&self, segment: &Segment, file: &Path) -> Result<()> {
        let result = self.download(segment, file).await;
        if result.is_err() {
            let _ = tokio::fs::remove_file(file).await;
        }
        result
    }

    async fn download(&self, segment: &Segment, file: &Path) -> Result<()> {
        let io = |source| StorageError::Io { path: file.display().to_string(), source };
        let mut out = tokio::fs::File::create(file).await.map_err(io)?;
        match segment {
            Segment::Inline { bytes } => out.write_all(bytes).await.map_err(io)?,
            Segment::Object { path, offset, length, crc32 } => {
                let mut crc = crc32fast::Hasher::new();
                let mut done = 0;
                while done < *length {
                    let piece = DOWNLOAD.min(length - done);
                    let bytes = self.read_range(path, offset + done, piece).await?;
                    crc.update(&bytes);
                    out.write_all(&bytes).await.map_err(io)?;
                    done += piece;
                }
                self.check_crc(segment, crc.finalize(), *crc32)?;
            }
        }
        out.flush().await.map_err(io)
    }

    async fn read_range(&self, path: &str, offset: u64, length: u64) -> Result<Bytes> {
        let result = self.store.get_range(&self.path(path), offset..offset + length).await;
        result.map_err(|e| match e.is_not_found() {
            true => {
                StorageError::Missing { url: self.absolute(path), needed_by: format!("a checkpoint of {}", self.job) }
            }
            false => e,
        })
    }

    fn check_crc(&self, segment: &Segment, actual: u32, stored: u32) -> Result<()> {
        if actual == stored {
            return Ok(());
        }
        let (path, length) = (segment.object().unwrap_or_default(), segment.length());
        Err(StorageError::Corrupt {
            url: self.absolute(path),
            reason: format!("a segment of {length} bytes has checksum {actual:08x}, and {stored:08x} was written"),
        })
    }

    /// Remove what no retained checkpoint needs: manifests first, then objects.
    ///
    /// `retained` must hold every checkpoint that may still be restored; `in_progress` is the oldest checkpoint being
    /// taken, if any. A completed checkpoint that the caller does not know of (its manifest was written, but the
    /// answer got lost) is kept, with all that it needs.
    pub async fn clean_up(
        &self,
        retained: &[Manifest],
        in_progress: Option<CheckpointId>,
        grace: Duration,
    ) -> Result<CleanUpReport> {
        self.check_fence().await?;
        let newest = retained.iter().map(|manifest| manifest.checkpoint).max();
        let manifests = self.list().await?;
        let mut known = retained.to_vec();
        for id in manifests.iter().filter(|id| newest.is_none_or(|newest| **id > newest)) {
            known.push(self.read(*id).await?);
        }
        let prefix = self.path("data");
        let mut objects = self.store.list(&prefix).await?;
        for object in &mut objects {
            object.path = object.path[self.directory.len()..].to_owned();
        }
        let listing = Listing { manifests, objects, now_ms: chrono::Utc::now().timestamp_millis() };
        let CleanUp { manifests, objects, kept_orphans } = decide_clean_up(&known, &listing, in_progress, grace);
        let freed_bytes = listing.objects.iter().filter(|o| objects.contains(&o.path)).map(|o| o.size).sum();
        let report = CleanUpReport { manifests: manifests.clone(), objects: objects.len(), freed_bytes, kept_orphans };
        let paths = |relative: Vec<String>| relative.iter().map(|path| self.path(path)).collect();
        self.delete(paths(manifests.iter().map(|id| self.manifest_path(*id)).collect())).await?;
        self.delete(paths(objects)).await?;
        self.store.remove_stale_staging(&prefix, STALE_STAGING).await?;
        Ok(report)
    }

    /// Remove the job's directory: the query was dropped.
    pub async fn delete_all(&self) -> Result<()> {
        self.check_fence().await?;
        let manifests = self.list().await?.into_iter().map(|id| self.path(&self.manifest_path(id))).collect();
        self.delete(manifests).await?;
        let rest = self.store.list(self.directory.trim_end_matches('/')).await?;
        self.delete(rest.into_iter().map(|object| object.path).collect()).await
    }

    /// A checkpoint's manifest, relative to the directory.
    pub(super) fn manifest_path(&self, id: CheckpointId) -> String {
        match self.layout {
            Layout::Job => format!("chk-{id}/_metadata"),
            Layout::Savepoint => SAVEPOINT_MANIFEST.to_owned(),
        }
    }

    pub(super) async fn delete(&self, paths: Vec<String>) -> Result<()> {
        if self.parallel_deletes {
            return self.store.delete_many(paths).await;
        }
        for path in paths {
            self.store.delete(&path).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "job_store_tests.rs"]
pub(super) mod tests;
