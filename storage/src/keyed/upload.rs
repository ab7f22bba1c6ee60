//! Snapshots of a keyed state: taken at the barrier, uploaded in the background.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::try_join_all;

use super::{
    KeyedSnapshot, StateFile,
    directory::{StagingDir, io_error},
    state::Inner,
};
use crate::{
    CheckpointId, Result, StorageError,
    checkpoint::{CheckpointWriter, SegmentBody},
};

/// A snapshot that exists on the local disk only. Dropping it, before or after the upload, removes it from there.
#[derive(Debug)]
pub struct PendingSnapshot {
    state: Arc<Inner>,
    /// Absent when the state is empty.
    staging: Option<StagingDir>,
    /// Tables of keys that are durable already.
    shared: Vec<StateFile>,
    /// Tables of keys that are not.
    tables: Vec<String>,
    /// The database's list of files and the pointer to it; they change with every snapshot.
    lists: Vec<String>,
}

impl PendingSnapshot {
    pub(crate) fn take(state: &Arc<Inner>, staging: &Path) -> Result<Self> {
        let mut pending =
            Self { state: Arc::clone(state), staging: None, shared: Vec::new(), tables: Vec::new(), lists: Vec::new() };
        state.database.flush()?;
        if state.database.has_no_files()? {
            return Ok(pending);
        }
        let staging = StagingDir::reserve(staging)?;
        state.database.link(&staging)?;
        let names = file_names(staging.path())?;
        let mut uploads = state.uploads.lock();
        uploads.keep_only(&names.iter().map(String::as_str).collect::<HashSet<_>>());
        for name in names {
            match kind(&name) {
                Kind::Table => match uploads.durable(&name) {
                    Some(segment) => pending.shared.push(StateFile { segment: segment.clone(), name }),
                    None => pending.tables.push(name),
                },
                Kind::List => pending.lists.push(name),
                Kind::NotNeeded => {}
            }
        }
        drop(uploads);
        pending.staging = Some(staging);
        Ok(pending)
    }

    /// Size of the files that an upload would write.
    pub fn new_bytes(&self) -> Result<u64> {
        self.new_files().try_fold(0, |sum, (_, path)| {
            let size = fs::metadata(&path).map_err(|source| io_error(&path, source))?.len();
            Ok(sum + size)
        })
    }

    /// Hands over all files that no confirmed snapshot of the state has. They are taken when this is *called*; the
    /// future only waits until they are durable, so call `contributor_done` between the two.
    pub fn upload(
        self,
        writer: &CheckpointWriter,
    ) -> impl Future<Output = Result<KeyedSnapshot>> + Send + 'static + use<> {
        let checkpoint = writer.checkpoint();
        let handed_over: Vec<_> = self
            .new_files()
            .map(|(name, path)| {
                let (name, segment) = (name.to_owned(), writer.segment(SegmentBody::File(path)));
                async move { Ok::<_, StorageError>(StateFile { name, segment: segment.await? }) }
            })
            .collect();
        async move { Ok(self.uploaded(checkpoint, try_join_all(handed_over).await?)) }
    }

    /// What the manifest says of the snapshot, now that `new` is durable.
    fn uploaded(self, checkpoint: CheckpointId, new: Vec<StateFile>) -> KeyedSnapshot {
        let bytes = |files: &[StateFile]| files.iter().map(|file| file.segment.length()).sum();
        let (new_bytes, shared_bytes) = (bytes(&new), bytes(&self.shared));
        let tables = new.iter().filter(|file| kind(&file.name) == Kind::Table).cloned().collect();
        self.state.uploads.lock().uploaded(checkpoint, tables);

        let mut files = self.shared;
        files.extend(new);
        files.sort_by(|left, right| left.name.cmp(&right.name));
        let database = &self.state.database;
        KeyedSnapshot { range: database.range(), instance: database.home().instance(), files, new_bytes, shared_bytes }
    }

    fn new_files(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.staging.iter().flat_map(|staging| {
            self.tables.iter().chain(&self.lists).map(|name| (name.as_str(), staging.path().join(name)))
        })
    }
}

/// What a file of a database is to a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Keys and values; never changes once it exists.
    Table,
    /// `MANIFEST-…`, the list of tables, and `CURRENT`, its name.
    List,
    /// Options, identity, logs: the database opens without them.
    NotNeeded,
}

fn kind(name: &str) -> Kind {
    if name.ends_with(".sst") {
        Kind::Table
    } else if name == "CURRENT" || name.starts_with("MANIFEST-") {
        Kind::List
    } else {
        Kind::NotNeeded
    }
}

fn file_names(dir: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(dir).and_then(|entries| {
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<std::io::Result<Vec<_>>>()
    });
    names.map_err(|source| io_error(dir, source))
}
