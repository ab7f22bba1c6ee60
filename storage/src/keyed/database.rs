//! One opened database: vectorised reads and writes over keys on disk.

use std::{fmt, ops::ControlFlow};

use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, ReadOptions, Snapshot,
    WriteBatch, WriteOptions, checkpoint::Checkpoint, properties,
};

use super::{
    StateResources,
    directory::{InstanceDir, StagingDir},
    key, order,
};
use crate::{KeyGroup, KeyGroupRange, Result, StorageError, TableId};

/// Keys looked up in one call of RocksDB: bounds the values pinned at a time.
const LOOKUP: usize = 1024;

/// A change of a state table: key group, key, and its new value or none to delete it.
pub type Change<'a> = (KeyGroup, &'a [u8], Option<&'a [u8]>);

/// Called with each key and value of a scan; says whether to go on.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// A RocksDB instance and its directory, which goes with it.
pub(crate) struct Database {
    // Closed before the directory is removed: fields are dropped in this order.
    db: DB,
    unlogged: WriteOptions,
    range: KeyGroupRange,
    home: InstanceDir,
}

impl Database {
    /// Opens what lies in `home`, or an empty database.
    pub(crate) fn open(home: InstanceDir, resources: &StateResources, range: KeyGroupRange) -> Result<Self> {
        let failed = |source| rocks_error(&home, source);
        let options = resources.options().map_err(failed)?;
        let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = DB::open_cf_descriptors(&options, home.path(), [family]).map_err(failed)?;
        let mut unlogged = WriteOptions::default();
        unlogged.disable_wal(true);
        unlogged.set_memtable_insert_hint_per_batch(true);
        Ok(Self { db, unlogged, range, home })
    }

    pub(crate) fn home(&self) -> &InstanceDir {
        &self.home
    }

    pub(crate) fn range(&self) -> KeyGroupRange {
        self.range
    }

    pub(crate) fn db(&self) -> &DB {
        &self.db
    }

    /// Looks all `keys` up, as of `at` or now, and visits them in an order of its own: index into `keys`, value.
    pub(crate) fn get_many(
        &self,
        table: TableId,
        at: Option<&Snapshot<'_>>,
        keys: &[(KeyGroup, &[u8])],
        visit: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        self.check_groups(keys.iter().map(|(group, _)| *group))?;
        let family = self.family()?;
        let options = read_options(at);
        // In key order, neighbours share blocks.
        let order = order::sorted(keys.len(), |index| keys[index]);
        let mut scratch = Vec::new();
        let mut ends = Vec::with_capacity(LOOKUP.min(keys.len()));
        for chunk in order.chunks(LOOKUP) {
            scratch.clear();
            ends.clear();
            for index in chunk {
                let (group, key) = keys[*index as usize];
                key::push(&mut scratch, group, table, key);
                ends.push(scratch.len());
            }
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let lookups = starts.zip(&ends).map(|(start, end)| &scratch[start..*end]);
            let found = self.db.batched_multi_get_cf_opt(family, lookups, true, &options);
            for (index, value) in chunk.iter().zip(found) {
                let value = value.map_err(|source| self.failed(source))?;
                visit(*index as usize, value.as_deref());
            }
        }
        Ok(())
    }

    pub(crate) fn get(
        &self,
        table: TableId,
        at: Option<&Snapshot<'_>>,
        group: KeyGroup,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        self.check_groups([group])?;
        let found = self.db.get_opt(key::full(group, table, key), &read_options(at));
        found.map_err(|source| self.failed(source))
    }

    /// Applies all `changes` at once; of several changes of one key the last one holds.
    pub(crate) fn write(&self, table: TableId, changes: &[Change<'_>]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.check_groups(changes.iter().map(|(group, _, _)| *group))?;
        let bytes: usize = changes.iter().map(|(_, key, value)| key.len() + value.map_or(0, <[u8]>::len) + 16).sum();
        let mut batch = WriteBatch::with_capacity_bytes(bytes);
        let mut scratch = Vec::new();
        // In key order, each insertion finds its place next to the one before.
        for index in order::sorted(changes.len(), |index| (changes[index].0, changes[index].1)) {
            let (group, key, value) = changes[index as usize];
            scratch.clear();
            key::push(&mut scratch, group, table, key);
            match value {
                Some(value) => batch.put(&scratch, value),
                None => batch.delete(&scratch),
            }
        }
        self.db.write_opt(batch, &self.unlogged).map_err(|source| self.failed(source))
    }

    /// Visits the keys of `table` in `group` from `from` up to and without `to`, in key order.
    pub(crate) fn scan(
        &self,
        table: TableId,
        at: Option<&Snapshot<'_>>,
        group: KeyGroup,
        from: &[u8],
        to: Option<&[u8]>,
        visit: Visit<'_>,
    ) -> Result<()> {
        self.check_groups([group])?;
        let end = match to {
            Some(to) => Some(key::full(group, table, to)),
            None => key::after(key::prefix(group, table).to_vec()),
        };
        self.scan_keys(at, key::full(group, table, from), end, &mut |key, value| visit(&key[key::PREFIX..], value))
    }

    /// Visits the keys of `table` in `group` that start with `prefix`, in key order.
    pub(crate) fn scan_prefix(
        &self,
        table: TableId,
        at: Option<&Snapshot<'_>>,
        group: KeyGroup,
        prefix: &[u8],
        visit: Visit<'_>,
    ) -> Result<()> {
        self.check_groups([group])?;
        let start = key::full(group, table, prefix);
        let end = key::after(start.clone());
        self.scan_keys(at, start, end, &mut |key, value| visit(&key[key::PREFIX..], value))
    }

    /// Visits keys on disk from `start` up to and without `end`.
    pub(crate) fn scan_keys(
        &self,
        at: Option<&Snapshot<'_>>,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
        visit: Visit<'_>,
    ) -> Result<()> {
        if end.as_ref().is_some_and(|end| *end <= start) {
            return Ok(());
        }
        let mut options = read_options(at);
        options.set_iterate_lower_bound(start.as_slice());
        if let Some(end) = end {
            options.set_iterate_upper_bound(end);
        }
        let mut rows = self.db.raw_iterator_opt(options);
        rows.seek(&start);
        while let Some((key, value)) = rows.item() {
            if visit(key, value).is_break() {
                return Ok(());
            }
            rows.next();
        }
        rows.status().map_err(|source| self.failed(source))
    }

    /// Removes all keys outside of the key groups `kept`, without reading them: files that hold no others are dropped, for
    /// the rest a deletion of the range is noted, which compaction carries out.
    pub(crate) fn keep_only(&self, kept: KeyGroupRange) -> Result<()> {
        let family = self.family()?;
        let below = (Vec::new(), key::group_start(kept.start).to_vec());
        let above = (key::group_start(kept.end).to_vec(), key::ABOVE_ALL.to_vec());
        for (from, to) in [below, above] {
            if from < to {
                self.db.delete_file_in_range(&from, &to).map_err(|source| self.failed(source))?;
                let deleted = self.db.delete_range_cf_opt(family, &from, &to, &self.unlogged);
                deleted.map_err(|source| self.failed(source))?;
            }
        }
        Ok(())
    }

    /// Writes what is in memory into a file; nothing happens if there is nothing.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        self.db.flush_opt(&options).map_err(|source| self.failed(source))
    }

    /// Whether no file holds any key, deleted ones included. Memory is not looked at.
    pub(crate) fn has_no_files(&self) -> Result<bool> {
        Ok(self.db.live_files().map_err(|source| self.failed(source))?.is_empty())
    }

    /// Makes `staging` a hard-linked copy of the database.
    pub(crate) fn link(&self, staging: &StagingDir) -> Result<()> {
        let link = || Checkpoint::new(&self.db)?.create_checkpoint(staging.path());
        link().map_err(|source: rocksdb::Error| StorageError::Rocks {
            path: staging.path().display().to_string(),
            source,
        })
    }

    /// Size of files and of what is in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let size = |property| self.db.property_int_value(property).ok().flatten().unwrap_or(0);
        size(properties::LIVE_SST_FILES_SIZE) + size(properties::CUR_SIZE_ALL_MEM_TABLES)
    }

    /// RocksDB's error with the directory it is about.
    pub(crate) fn failed(&self, source: rocksdb::Error) -> StorageError {
        rocks_error(&self.home, source)
    }

    fn family(&self) -> Result<&ColumnFamily> {
        self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or_else(|| StorageError::Corrupt {
            url: self.home.path().display().to_string(),
            reason: "the database has no default column family".to_owned(),
        })
    }

    /// A key group that belongs to another subtask would be lost at the next change of parallelism, and a lookup of it
    /// finds nothing although the key exists elsewhere: a wrong answer rather than a missing one.
    fn check_groups(&self, groups: impl IntoIterator<Item = KeyGroup>) -> Result<()> {
        match groups.into_iter().find(|group| !self.range.contains(*group)) {
            None => Ok(()),
            Some(group) => Err(StorageError::Corrupt {
                url: self.home.path().display().to_string(),
                reason: format!(
                    "key group {group} was used with a state that owns {}..{}; rows must be exchanged by the same key \
                     encoding as the state's",
                    self.range.start, self.range.end
                ),
            }),
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.home.path()).field("range", &self.range).finish_non_exhaustive()
    }
}

fn read_options(at: Option<&Snapshot<'_>>) -> ReadOptions {
    let mut options = ReadOptions::default();
    if let Some(at) = at {
        options.set_snapshot(at);
    }
    options
}

fn rocks_error(home: &InstanceDir, source: rocksdb::Error) -> StorageError {
    StorageError::Rocks { path: home.path().display().to_string(), source }
}
