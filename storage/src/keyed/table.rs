//! Tables of a keyed state, and consistent views of them.

use std::{fmt, sync::Arc};

use self_cell::self_cell;

use super::database::{Change, Database, Visit};
use crate::{KeyGroup, KeyGroupRange, Result, TableId};

/// One table of a keyed state: a sorted map from (key group, key) to value. Cloning shares it.
#[derive(Debug, Clone)]
pub struct StateTable {
    database: Arc<Database>,
    id: TableId,
}

impl StateTable {
    pub(crate) fn new(database: Arc<Database>, id: TableId) -> Self {
        Self { database, id }
    }

    /// The value of each key, in the order of `keys`.
    pub fn get_many(&self, keys: &[(KeyGroup, &[u8])]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = vec![None; keys.len()];
        self.visit_many(keys, &mut |index, value| values[index] = value.map(<[u8]>::to_vec))?;
        Ok(values)
    }

    /// Visits index and value of each key without copying values. The order of the visits is not that of `keys`.
    pub fn visit_many(&self, keys: &[(KeyGroup, &[u8])], visit: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.database.get_many(self.id, None, keys, visit)
    }

    /// The value of one key.
    pub fn get(&self, group: KeyGroup, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.database.get(self.id, None, group, key)
    }

    /// Applies `changes` at once: a value replaces the former one, none deletes the key. Of several changes of one key
    /// the last one holds.
    pub fn write(&self, changes: &[Change<'_>]) -> Result<()> {
        self.database.write(self.id, changes)
    }

    /// Visits the keys of one key group from `from` up to and without `to`, in key order, until told to stop. Changes
    /// made meanwhile are not seen.
    pub fn scan(&self, group: KeyGroup, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<()> {
        self.database.scan(self.id, None, group, from, to, visit)
    }

    /// Visits the keys of one key group that start with `prefix`, in key order, until told to stop.
    pub fn scan_prefix(&self, group: KeyGroup, prefix: &[u8], visit: Visit<'_>) -> Result<()> {
        self.database.scan_prefix(self.id, None, group, prefix, visit)
    }

    /// A view of the table as it is now. Cheap; old values are kept on disk while it lives.
    pub fn snapshot(&self) -> Result<TableSnapshot> {
        let cut = Cut::new(Arc::clone(&self.database), |database| database.db().snapshot());
        Ok(TableSnapshot { cut: Arc::new(cut), id: self.id })
    }

    /// The key groups that the state owns.
    #[must_use]
    pub fn range(&self) -> KeyGroupRange {
        self.database.range()
    }
}

type Snapshot<'a> = rocksdb::Snapshot<'a>;

self_cell!(
    struct Cut {
        owner: Arc<Database>,
        #[covariant]
        dependent: Snapshot,
    }
);

/// A table as it was at one moment. Cloning shares it; it keeps the database open.
#[derive(Clone)]
pub struct TableSnapshot {
    cut: Arc<Cut>,
    id: TableId,
}

impl TableSnapshot {
    /// The value of each key, in the order of `keys`.
    pub fn get_many(&self, keys: &[(KeyGroup, &[u8])]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = vec![None; keys.len()];
        self.visit_many(keys, &mut |index, value| values[index] = value.map(<[u8]>::to_vec))?;
        Ok(values)
    }

    /// Visits index and value of each key without copying values. The order of the visits is not that of `keys`.
    pub fn visit_many(&self, keys: &[(KeyGroup, &[u8])], visit: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.database().get_many(self.id, Some(self.cut.borrow_dependent()), keys, visit)
    }

    /// The value of one key.
    pub fn get(&self, group: KeyGroup, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.database().get(self.id, Some(self.cut.borrow_dependent()), group, key)
    }

    /// Visits the keys of one key group from `from` up to and without `to`, in key order, until told to stop.
    pub fn scan(&self, group: KeyGroup, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> Result<()> {
        self.database().scan(self.id, Some(self.cut.borrow_dependent()), group, from, to, visit)
    }

    /// Visits the keys of one key group that start with `prefix`, in key order, until told to stop.
    pub fn scan_prefix(&self, group: KeyGroup, prefix: &[u8], visit: Visit<'_>) -> Result<()> {
        self.database().scan_prefix(self.id, Some(self.cut.borrow_dependent()), group, prefix, visit)
    }

    /// The key groups that the state owns.
    #[must_use]
    pub fn range(&self) -> KeyGroupRange {
        self.database().range()
    }

    fn database(&self) -> &Database {
        self.cut.borrow_owner()
    }
}

impl fmt::Debug for TableSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableSnapshot")
            .field("table", &self.id)
            .field("sequence", &self.cut.borrow_dependent().sequence_number())
            .field("database", self.database())
            .finish()
    }
}
