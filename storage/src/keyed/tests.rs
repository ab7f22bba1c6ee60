//! Tests of the keyed state as a whole, against a store in memory.

mod model;
mod recovery;
mod snapshots;
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::PathBuf,
};

use crate::{
    CheckpointId, JobId, JobStore, KeyGroup, KeyGroupRange, KeyedSnapshot, KeyedState, MergeOptions, StateResources,
    StateTable, Store, TableId,
};

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 8 };

/// A local disk and a job's store.
struct World {
    dir: tempfile::TempDir,
    resources: StateResources,
    store: Store,
    job: JobStore,
    options: MergeOptions,
    last: CheckpointId,
}

impl World {
    fn new() -> Self {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let job = JobStore::read_only(&store, &JobId("test".to_owned()));
        Self {
            dir: tempfile::tempdir().unwrap(),
            resources: StateResources::new(8 << 20),
            store,
            job,
            options: MergeOptions { inline_threshold: 0, ..MergeOptions::default() },
            last: CheckpointId(0),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn create(&self, range: KeyGroupRange) -> KeyedState {
        KeyedState::create(&self.path("state"), &self.resources, range).unwrap()
    }

    async fn restore(&self, range: KeyGroupRange, parts: &[KeyedSnapshot]) -> KeyedState {
        KeyedState::restore(&self.path("state"), &self.resources, range, parts, &self.job).await.unwrap()
    }

    /// Uploads a snapshot that nobody confirms.
    async fn upload(&mut self, state: &KeyedState) -> KeyedSnapshot {
        self.last = self.last.next();
        let pending = state.snapshot(&self.path("staging")).unwrap();
        let writer = self.job.begin(self.last, self.options.clone(), 1);
        let uploaded = pending.upload(&writer);
        writer.contributor_done().await;
        let snapshot = uploaded.await.unwrap();
        assert!(!self.path("staging").exists());
        snapshot
    }

    /// Takes a checkpoint of `state`.
    async fn checkpoint(&mut self, state: &KeyedState) -> KeyedSnapshot {
        let snapshot = self.upload(state).await;
        state.confirm(self.last);
        snapshot
    }

    /// Deletes every object that `snapshot` does not need, as clean-up would.
    async fn keep_only(&self, snapshot: &KeyedSnapshot) {
        self.keep_only_all(std::slice::from_ref(snapshot)).await;
    }

    /// The same for the snapshots of several subtasks.
    async fn keep_only_all(&self, snapshots: &[KeyedSnapshot]) {
        let needed: BTreeSet<_> = snapshots
            .iter()
            .flat_map(KeyedSnapshot::segments)
            .filter_map(|segment| segment.object())
            .map(|path| format!("jobs/test/{path}"))
            .collect();
        let objects = self.store.list("jobs/test").await.unwrap().into_iter().map(|object| object.path);
        self.store.delete_many(objects.filter(|path| !needed.contains(path)).collect()).await.unwrap();
    }
}

/// Everything that `state` holds in `table`.
fn contents(table: &StateTable) -> BTreeMap<(u16, Vec<u8>), Vec<u8>> {
    let mut all = BTreeMap::new();
    for group in table.range().groups() {
        let mut visit = |key: &[u8], value: &[u8]| {
            all.insert((group.0, key.to_vec()), value.to_vec());
            ControlFlow::Continue(())
        };
        table.scan(group, b"", None, &mut visit).unwrap();
    }
    all
}

/// Bytes that do not compress, different for each seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8) as u64)
        .flat_map(|word| xxhash_rust::xxh3::xxh3_64_with_seed(&word.to_le_bytes(), seed).to_le_bytes())
        .take(length)
        .collect()
}

/// Writes `count` keys `first..`, spread over all key groups of `table`.
fn fill(table: &StateTable, first: u64, count: u64, seed: u64) {
    let groups: Vec<KeyGroup> = table.range().groups().collect();
    let rows: Vec<_> = (first..first + count)
        .map(|key| (groups[key as usize % groups.len()], key.to_be_bytes(), noise(seed + key, 100)))
        .collect();
    let changes: Vec<_> = rows.iter().map(|(group, key, value)| (*group, &key[..], Some(&value[..]))).collect();
    table.write(&changes).unwrap();
}

fn table(state: &KeyedState) -> StateTable {
    state.table(TableId(1))
}

fn sst_names(snapshot: &KeyedSnapshot) -> Vec<&str> {
    snapshot.files.iter().map(|file| file.name.as_str()).filter(|name| name.ends_with(".sst")).collect()
}
