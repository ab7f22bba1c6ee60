//! The encoded keys of the groups in memory, in one buffer.

use weir_storage::{KeyGroup, key_group_of};

/// Encoded keys by group number.
#[derive(Debug)]
pub(super) struct KeyArena {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    max_parallelism: u16,
}

impl KeyArena {
    pub(super) fn new(max_parallelism: u16) -> Self {
        Self { bytes: Vec::new(), ends: Vec::new(), max_parallelism }
    }

    pub(super) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    /// The key of `group`.
    pub(super) fn key(&self, group: usize) -> &[u8] {
        let start = if group == 0 { 0 } else { self.ends[group - 1] };
        &self.bytes[start..self.ends[group]]
    }

    /// The key of `group` and the key group that it belongs to: where its rows are in a state table.
    pub(super) fn place(&self, group: usize) -> (KeyGroup, &[u8]) {
        let key = self.key(group);
        (key_group_of(key, self.max_parallelism), key)
    }

    /// Only the keys of `groups`, in this order.
    pub(super) fn retain(&mut self, groups: &[usize]) {
        let mut kept = Self::new(self.max_parallelism);
        for group in groups {
            kept.push(self.key(*group));
        }
        *self = kept;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }
}
