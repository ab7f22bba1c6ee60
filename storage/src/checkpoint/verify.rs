//! Looking at checkpoints from outside: list them, show one, verify that everything it names is there and unharmed.
//!
//! The URL may be that of a store, of a job's directory, of one checkpoint (`…/chk-13` or its `_metadata`), or of a
//! savepoint.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use super::job_store::{CheckpointInfo, JobStore, SAVEPOINT_MANIFEST};
use super::manifest::Manifest;
use super::merged_file::{MergedFileIndex, TRAILER};
use super::savepoint::{SAVEPOINTS, locate};
use super::segment::Segment;
use crate::error::{Result, StorageError};
use crate::store::Store;
use crate::{CheckpointId, JobId};

/// Objects that are read at the same time.
const CONCURRENCY: usize = 8;

/// What [`verify`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Manifest URLs of the checkpoints that were looked at.
    pub checkpoints: Vec<String>,
    /// Number of distinct objects that they name.
    pub objects: usize,
    /// Bytes that were read and whose checksum was compared.
    pub bytes: u64,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
}

impl VerifyReport {
    /// Whether every checkpoint can be restored.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Something that is missing or damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Absolute URL of the object.
    pub url: String,
    /// Manifests that need it.
    pub needed_by: Vec<String>,
    /// What is wrong with it.
    pub reason: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.url, self.reason)?;
        if !self.needed_by.is_empty() {
            write!(f, " (needed by {})", self.needed_by.join(", "))?;
        }
        Ok(())
    }
}

/// What a URL points at.
pub(super) struct Target {
    pub(super) jobs: Vec<JobStore>,
    pub(super) only: Option<CheckpointId>,
    /// Whether there is data, but nothing that says what it is.
    unfinished: bool,
}

pub(super) async fn resolve(url: &str, options: &BTreeMap<String, String>) -> Result<Target> {
    let trimmed = url.trim_end_matches('/');
    let trimmed = trimmed.strip_suffix("/_metadata").unwrap_or(trimmed);
    let (base, only) = match trimmed.rsplit_once('/') {
        Some((base, name)) => match name.strip_prefix("chk-").and_then(|n| n.parse().ok()) {
            Some(id) => (base, Some(CheckpointId(id))),
            None => (trimmed, None),
        },
        None => (trimmed, None),
    };
    let store = Store::open_existing(base, options)?;
    let names = store.list_directories("").await?;
    let name = || store.url().rsplit('/').next().unwrap_or_default().to_owned();
    if only.is_none() && store.exists(SAVEPOINT_MANIFEST).await? {
        let savepoint = JobStore::of_savepoint(&store, JobId(name()), String::new());
        return Ok(Target { jobs: vec![savepoint], only, unfinished: false });
    }
    let is_job = only.is_some() || names.iter().any(|name| name.starts_with("chk-") || name == "data");
    let jobs = if is_job {
        vec![JobStore::in_directory(&store, JobId(name()), String::new())]
    } else if names.iter().any(|name| name == "jobs" || name == SAVEPOINTS) {
        let jobs = store.list_directories("jobs").await?;
        let open = |job: String| JobStore::in_directory(&store, JobId(job.clone()), format!("jobs/{job}/"));
        let mut jobs: Vec<_> = jobs.into_iter().map(open).collect();
        for name in store.list_directories(SAVEPOINTS).await? {
            let directory = format!("{SAVEPOINTS}/{name}/");
            // What a crash left of a savepoint that was never complete is none.
            if store.exists(&format!("{directory}{SAVEPOINT_MANIFEST}")).await? {
                jobs.push(JobStore::of_savepoint(&store, JobId(name), directory));
            }
        }
        jobs
    } else if names.is_empty() || names.iter().any(|name| name == "fence" || name == "catalog") {
        Vec::new()
    } else {
        return Err(StorageError::BadUrl {
            url: url.to_owned(),
            reason: "it is neither a store of Weir, nor a job's directory, a checkpoint or a savepoint".to_owned(),
        });
    };
    let unfinished = is_job && only.is_none() && !names.iter().any(|name| name.starts_with("chk-"));
    Ok(Target { jobs, only, unfinished })
}

/// All completed checkpoints below a URL, by job and number. Unreadable manifests are an error; [`verify`] tells more.
pub async fn list(url: &str, options: &BTreeMap<String, String>) -> Result<Vec<(JobId, CheckpointInfo)>> {
    let target = resolve(url, options).await?;
    let mut infos = Vec::new();
    for job in &target.jobs {
        for id in ids(job, target.only).await? {
            let manifest = job.read(id).await?;
            infos.push((manifest.job.clone(), CheckpointInfo::of(&manifest, job.manifest_url(id))));
        }
    }
    Ok(infos)
}

/// The manifest at a URL: that of a checkpoint, or the newest one of a job's directory.
pub async fn show(url: &str, options: &BTreeMap<String, String>) -> Result<Manifest> {
    Ok(locate(url, options).await?.manifest)
}

async fn ids(job: &JobStore, only: Option<CheckpointId>) -> Result<Vec<CheckpointId>> {
    match only {
        Some(id) => Ok(vec![id]),
        None => job.list().await,
    }
}

/// Read everything that the checkpoints below a URL name, and report what is missing or damaged.
pub async fn verify(url: &str, options: &BTreeMap<String, String>) -> Result<VerifyReport> {
    let target = resolve(url, options).await?;
    let mut report = VerifyReport::default();
    if target.unfinished {
        let reason = "it holds data, but no manifest: what was to be written there was never complete".to_owned();
        report.problems.push(Problem { url: url.to_owned(), needed_by: Vec::new(), reason });
    }
    for job in &target.jobs {
        let mut needed: BTreeMap<String, Needed> = BTreeMap::new();
        let ids = match ids(job, target.only).await {
            Ok(ids) => ids,
            // Only its manifest tells a savepoint's number.
            Err(error @ StorageError::Corrupt { .. }) => {
                let url = job.absolute(SAVEPOINT_MANIFEST);
                report.problems.push(Problem { url: url.clone(), needed_by: vec![], reason: reason(error)? });
                report.checkpoints.push(url);
                continue;
            }
            Err(error) => return Err(error),
        };
        for id in ids {
            let url = job.manifest_url(id);
            match job.read(id).await {
                Ok(manifest) => collect(&manifest, &url, &mut needed),
                Err(error) => {
                    report.problems.push(Problem { url: url.clone(), needed_by: vec![], reason: reason(error)? })
                }
            }
            report.checkpoints.push(url);
        }
        report.objects += needed.len();
        let results: Vec<(u64, Vec<Problem>)> = futures::stream::iter(needed)
            .map(|(path, needed)| verify_object(job, path, needed))
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        for (bytes, problems) in results {
            report.bytes += bytes;
            report.problems.extend(problems);
        }
    }
    Ok(report)
}

#[derive(Default)]
struct Needed {
    by: BTreeSet<String>,
    segments: HashMap<(u64, u64, u32), Segment>,
}

fn collect(manifest: &Manifest, url: &str, needed: &mut BTreeMap<String, Needed>) {
    for segment in manifest.segments() {
        if let Segment::Object { path, offset, length, crc32 } = segment {
            let entry = needed.entry(path.clone()).or_default();
            entry.by.insert(url.to_owned());
            entry.segments.insert((*offset, *length, *crc32), segment.clone());
        }
    }
}

async fn verify_object(job: &JobStore, path: String, needed: Needed) -> Result<(u64, Vec<Problem>)> {
    let mut problems = Vec::new();
    let mut bytes = 0;
    let mut add = |reason: String| {
        let needed_by = needed.by.iter().cloned().collect();
        problems.push(Problem { url: job.absolute(&path), needed_by, reason });
    };
    match job.store().size(&job.path(&path)).await? {
        None => add("it does not exist".to_owned()),
        Some(size) => {
            let mut segments: Vec<_> = needed.segments.values().collect();
            segments.sort_by_key(|segment| match segment {
                Segment::Object { offset, .. } => *offset,
                Segment::Inline { .. } => 0,
            });
            for segment in segments {
                let Segment::Object { offset, length, .. } = segment else { continue };
                if offset + length > size {
                    add(format!("it has {size} bytes, and a segment of {length} bytes was written at {offset}"));
                    continue;
                }
                match job.read_segment(segment).await {
                    Ok(read) => bytes += read.len() as u64,
                    Err(error) => add(reason(error)?),
                }
            }
            if let Err(error) = read_index(job, &path, size).await {
                add(reason(error)?);
            }
        }
    }
    Ok((bytes, problems))
}

/// The index in a merged file's footer.
async fn read_index(job: &JobStore, path: &str, size: u64) -> Result<MergedFileIndex> {
    let (url, full) = (job.absolute(path), job.path(path));
    let trailer = job.store().get_range(&full, size.saturating_sub(TRAILER)..size).await?;
    let length = MergedFileIndex::footer_length(&trailer, &url)?.min(size);
    let tail = job.store().get_range(&full, size - length..size).await?;
    MergedFileIndex::from_tail(&tail, &url)
}

/// Damage is a finding; a store that cannot be reached is not.
fn reason(error: StorageError) -> Result<String> {
    match error {
        StorageError::Corrupt { reason, .. } => Ok(reason),
        StorageError::Missing { .. } => Ok("it does not exist".to_owned()),
        other => Err(other),
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
