//! The keyed state of one task subtask.

use std::{path::Path, sync::Arc};

use parking_lot::Mutex;

use super::{
    KeyedSnapshot, PendingSnapshot, StateResources, StateTable, database::Database, directory::InstanceDir, restore,
    uploads::Uploads,
};
use crate::{
    CheckpointId, KeyGroupRange, Result, TableId,
    checkpoint::{JobStore, Segment},
};

/// The keyed state of one task subtask: tables of the keys in its key groups. Cloning shares it; its directory is
/// removed with the last handle, of tables and views as well.
#[derive(Debug, Clone)]
pub struct KeyedState {
    inner: Arc<Inner>,
}

/// What a state and its pending snapshots share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) database: Arc<Database>,
    pub(crate) uploads: Mutex<Uploads>,
}

impl KeyedState {
    /// An empty state in a new directory below `dir`. What a crashed process left there is removed; nothing else should
    /// use `dir`.
    pub fn create(dir: &Path, resources: &StateResources, range: KeyGroupRange) -> Result<Self> {
        let home = InstanceDir::create(dir, resources)?;
        Ok(Self::with(Database::open(home, resources, range)?, Uploads::default()))
    }

    /// The state of `range` out of the snapshots `parts` of a completed checkpoint, in a new directory below `dir`.
    ///
    /// One part of the same range is adopted file by file. Otherwise the part that has most of the range is, without the
    /// keys outside of the range; the key groups that other parts have are copied. The next snapshot uploads what was
    /// copied and what has changed.
    pub async fn restore(
        dir: &Path,
        resources: &StateResources,
        range: KeyGroupRange,
        parts: &[KeyedSnapshot],
        job: &JobStore,
    ) -> Result<Self> {
        let (database, uploads) = restore::restore(dir, resources, range, parts, job).await?;
        Ok(Self::with(database, uploads))
    }

    fn with(database: Database, uploads: Uploads) -> Self {
        Self { inner: Arc::new(Inner { database: Arc::new(database), uploads: Mutex::new(uploads) }) }
    }

    /// A table. It exists by being used.
    #[must_use]
    pub fn table(&self, id: TableId) -> StateTable {
        StateTable::new(Arc::clone(&self.inner.database), id)
    }

    /// The part of a snapshot that must happen at the barrier: all changes so far go to files, which are hard-linked
    /// into `staging`. `staging` must be on the disk of the state's directory; it is made here and removed with the
    /// result, whether or not that is uploaded.
    pub fn snapshot(&self, staging: &Path) -> Result<PendingSnapshot> {
        PendingSnapshot::take(&self.inner, staging)
    }

    /// `checkpoint` completed: later snapshots may refer to the files it uploaded. An unknown checkpoint is ignored.
    pub fn confirm(&self, checkpoint: CheckpointId) {
        self.inner.uploads.lock().confirm(checkpoint);
    }

    /// Makes the next snapshot upload anew the files whose durable copies `stale` names, such as those in a merged file
    /// of which little is still in use.
    pub fn upload_again(&self, stale: &dyn Fn(&Segment) -> bool) {
        self.inner.uploads.lock().forget(stale);
    }

    /// Puts all files in order, as compaction would in time.
    #[cfg(test)]
    pub(crate) fn compact(&self) -> Result<()> {
        self.inner.database.flush()?;
        self.inner.database.db().compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    /// Size on disk and in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.database.bytes()
    }

    /// The key groups that the state owns.
    #[must_use]
    pub fn range(&self) -> KeyGroupRange {
        self.inner.database.range()
    }
}
