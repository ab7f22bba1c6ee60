//! Opening a keyed state from the snapshots of a completed checkpoint.
//!
//! ```text
//!   the same range        adopt its files
//!   one subtask of more   adopt the files, drop those without a key group of the range, delete the others' keys by range
//!   one subtask of fewer  the same with the part that has most of the range; copy what the other parts have, and ingest it
//! ```
//!
//! An adopted file is durable already, so the next snapshot uploads what was copied and little else. See the project's
//! design note on rescaling for what else was open.

use std::path::{Path, PathBuf};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use rocksdb::{IngestExternalFileOptions, Options, SstFileWriter};

use super::{KeyedSnapshot, StateResources, database::Database, directory::InstanceDir, key, uploads::Uploads};
use crate::{KeyGroupRange, Result, StorageError, checkpoint::JobStore};

/// Files downloaded at a time.
const DOWNLOADS: usize = 4;
/// Size at which a copied file is closed and the next one begun.
const COPY_BYTES: u64 = 32 << 20;

/// See [`super::KeyedState::restore`].
pub(crate) async fn restore(
    dir: &Path,
    resources: &StateResources,
    range: KeyGroupRange,
    parts: &[KeyedSnapshot],
    job: &JobStore,
) -> Result<(Database, Uploads)> {
    check_covered(range, parts, job)?;
    let mut parts: Vec<_> = overlapping(range, parts).into_iter().filter(|part| !part.files.is_empty()).collect();
    let base = parts.iter().enumerate().max_by_key(|(_, part)| overlap_bytes(range, part)).map(|(at, _)| at);
    let Some(base) = base.map(|at| parts.remove(at)) else {
        return Ok((open(InstanceDir::create(dir, resources)?, resources, range).await?, Uploads::default()));
    };
    let home = download(dir, resources, base, job).await?;
    let mut others = Vec::new();
    for part in parts {
        let home = download(dir, resources, part, job).await?;
        others.push(open(home, resources, part.range).await?);
    }
    let (of_base, files) = (range.intersection(base.range), base.files.clone());
    let narrower = of_base != base.range;
    let resources = resources.clone();
    let database = blocking(move || {
        let database = Database::open(home, &resources, range)?;
        // What lies outside of the base's own range was removed when it was given that.
        if narrower {
            database.keep_only(of_base)?;
        }
        copy(&database, &resources, &others)?;
        Ok(database)
    });
    Ok((database.await?, Uploads::adopted(&files)))
}

/// About how many bytes of `part` are of key groups in `range`.
fn overlap_bytes(range: KeyGroupRange, part: &KeyedSnapshot) -> u64 {
    let (shared, all) = (range.intersection(part.range).count(), part.range.count());
    part.bytes().saturating_mul(u64::from(shared)) / u64::from(all).max(1)
}

/// The parts that hold key groups of `range`, in the order of their key groups.
fn overlapping(range: KeyGroupRange, parts: &[KeyedSnapshot]) -> Vec<&KeyedSnapshot> {
    let mut parts: Vec<_> = parts.iter().filter(|part| range.intersection(part.range).count() > 0).collect();
    parts.sort_by_key(|part| part.range.start);
    parts
}

/// Refuses parts that leave out a key group of `range` or hold one twice: state would be lost or mixed silently.
fn check_covered(range: KeyGroupRange, parts: &[KeyedSnapshot], job: &JobStore) -> Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let broken = |reason| Err(StorageError::Corrupt { url: job.url(), reason });
    let mut next = range.start;
    for part in overlapping(range, parts) {
        let KeyGroupRange { start, end } = range.intersection(part.range);
        if start > next {
            return broken(format!("no snapshot of the keyed state holds key groups {next}..{start}"));
        }
        if start < next {
            return broken(format!("two snapshots of the keyed state hold key groups {start}..{next}"));
        }
        next = end;
    }
    if next < range.end {
        return broken(format!("no snapshot of the keyed state holds key groups {next}..{}", range.end));
    }
    Ok(())
}

/// Fetches the files of `part`, each checked against its checksum, into a new directory.
async fn download(dir: &Path, resources: &StateResources, part: &KeyedSnapshot, job: &JobStore) -> Result<InstanceDir> {
    let home = InstanceDir::create(dir, resources)?;
    // Collected first: a stream over the borrowing iterator would make this future one that cannot move to another thread.
    let downloads: Vec<_> = part
        .files
        .iter()
        .map(|file| {
            let path = home.path().join(&file.name);
            async move { job.download_segment(&file.segment, &path).await }
        })
        .collect();
    stream::iter(downloads).buffer_unordered(DOWNLOADS).try_collect::<()>().await?;
    Ok(home)
}

async fn open(home: InstanceDir, resources: &StateResources, range: KeyGroupRange) -> Result<Database> {
    let resources = resources.clone();
    blocking(move || Database::open(home, &resources, range)).await
}

/// Copies the key groups that `target` owns out of `sources`, which are in the order of their key groups.
fn copy(target: &Database, resources: &StateResources, sources: &[Database]) -> Result<()> {
    let range = target.range();
    let options = resources.options().map_err(|source| target.failed(source))?;
    let mut output = Output { target, options: &options, writer: None, files: Vec::new() };
    for source in sources {
        let moved = range.intersection(source.range());
        let (start, end) = (key::group_start(moved.start), key::group_start(moved.end));
        let mut failure = None;
        source.scan_keys(None, start.to_vec(), Some(end.to_vec()), &mut |key, value| match output.put(key, value) {
            Ok(()) => std::ops::ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                std::ops::ControlFlow::Break(())
            }
        })?;
        if let Some(error) = failure {
            return Err(target.failed(error));
        }
    }
    output.ingest().map_err(|source| target.failed(source))
}

/// Sorted files of a copy, which the target database takes over as they are.
struct Output<'a> {
    target: &'a Database,
    options: &'a Options,
    writer: Option<SstFileWriter<'a>>,
    files: Vec<PathBuf>,
}

impl Output<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), rocksdb::Error> {
        if self.writer.as_ref().is_some_and(|writer| writer.file_size() >= COPY_BYTES) {
            self.close()?;
        }
        if self.writer.is_none() {
            let path = self.target.home().path().join(format!("copy-{}.sst", self.files.len()));
            let writer = SstFileWriter::create(self.options);
            writer.open(&path)?;
            self.files.push(path);
            self.writer = Some(writer);
        }
        self.writer.as_mut().map_or(Ok(()), |writer| writer.put(key, value))
    }

    fn close(&mut self) -> Result<(), rocksdb::Error> {
        self.writer.take().map_or(Ok(()), |mut writer| writer.finish())
    }

    fn ingest(mut self) -> Result<(), rocksdb::Error> {
        self.close()?;
        if self.files.is_empty() {
            return Ok(());
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        self.target.db().ingest_external_file_opts(&options, self.files)
    }
}

/// Runs work that blocks on the local disk away from the tasks of other queries.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(stopped) => match stopped.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being shut down; nobody reads this.
            Err(cancelled) => Err(StorageError::Io {
                path: "restore of keyed state".to_owned(),
                source: std::io::Error::other(cancelled),
            }),
        },
    }
}
