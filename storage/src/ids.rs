//! The identities that cross boundaries. None of them is a bare integer, so a checkpoint id can never be
//! passed where an epoch is meant.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// Number of a checkpoint within its job, counted from 1, never reused.
    CheckpointId(u64)
);
number!(
    /// An aligned in-band mark: what a reader sees between two marks is one consistent cut.
    Epoch(u64)
);
number!(
    /// Number of the process that owns a store. A higher one fences every lower one.
    Generation(u64)
);
number!(
    /// Bucket of keys, the unit in which keyed state moves when parallelism changes.
    KeyGroup(u16)
);
number!(
    /// Index of one parallel instance of an operator, counted from 0.
    Subtask(u32)
);
number!(
    /// Number of a state table inside one task's keyed state.
    TableId(u16)
);

impl CheckpointId {
    /// The id after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Stable name of an operator, derived from what it does in the plan and not from the order in which it was
/// planned, so that state finds its operator again after a restart or a changed query.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperatorUid(pub String);

impl fmt::Display for OperatorUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A job's directory name under `jobs/`: the query's name and a unique suffix, `by_carrier-0197…`. The suffix
/// makes a dropped and re-created query a different lineage, so that nothing of the old one is ever taken for the new.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub String);

impl JobId {
    /// A new lineage for the query `name`.
    pub fn create(name: &str) -> Self {
        let unique = uuid::Uuid::now_v7().simple().to_string();
        Self(format!("{name}-{unique}"))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A contiguous, half-open range of key groups: what one subtask owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyGroupRange {
    /// First key group.
    pub start: u16,
    /// One past the last key group.
    pub end: u16,
}

impl KeyGroupRange {
    /// The range that subtask `index` of `parallelism` owns out of `max_parallelism` key groups
    /// (Flink's rule: `KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex`).
    pub fn of(index: u32, parallelism: u32, max_parallelism: u16) -> Self {
        let (index, parallelism, max) = (u64::from(index), u64::from(parallelism), u64::from(max_parallelism));
        let start = (index * max).div_ceil(parallelism);
        let end = ((index + 1) * max).div_ceil(parallelism);
        Self { start: start as u16, end: end as u16 }
    }

    /// Whether `group` lies in the range.
    pub fn contains(&self, group: KeyGroup) -> bool {
        (self.start..self.end).contains(&group.0)
    }

    /// The key groups that both ranges have; empty, at the later start, if there is none.
    #[must_use]
    pub fn intersection(&self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// How many key groups there are.
    pub fn count(&self) -> u16 {
        self.end.saturating_sub(self.start)
    }

    /// The key groups of the range in order.
    pub fn groups(&self) -> impl Iterator<Item = KeyGroup> + use<> {
        (self.start..self.end).map(KeyGroup)
    }
}

/// The subtask of `parallelism` that owns `group` (inverse of [`KeyGroupRange::of`]).
pub fn owner_of(group: KeyGroup, parallelism: u32, max_parallelism: u16) -> Subtask {
    Subtask((u64::from(group.0) * u64::from(parallelism) / u64::from(max_parallelism)) as u32)
}

/// The key group of an encoded key: xxh3-64 of its bytes modulo `max_parallelism`. Part of the persisted format,
/// fixed for good.
pub fn key_group_of(encoded_key: &[u8], max_parallelism: u16) -> KeyGroup {
    KeyGroup((xxhash_rust::xxh3::xxh3_64(encoded_key) % u64::from(max_parallelism)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_group_has_one_owner_at_any_parallelism() {
        for parallelism in 1..=130u32 {
            let max = 128u16.max(parallelism as u16);
            for group in (0..max).map(KeyGroup) {
                let owner = owner_of(group, parallelism, max);
                let owners: Vec<u32> =
                    (0..parallelism).filter(|i| KeyGroupRange::of(*i, parallelism, max).contains(group)).collect();
                assert_eq!(owners, vec![owner.0], "group {group} parallelism {parallelism}");
            }
        }
    }

    #[test]
    fn key_groups_are_fixed_for_good() {
        assert_eq!(key_group_of(b"", 128), KeyGroup((0x2d06_8005_38d3_94c2_u64 % 128) as u16));
        assert_eq!(key_group_of(b"weir", 128), key_group_of(b"weir", 128));
    }
}
