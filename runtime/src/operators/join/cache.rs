//! The rows of both sides by key: in memory, in front of the tables.
//!
//! Tables `left` and `right`: key is the encoded join key followed by the encoded row (both self-delimiting, so a join
//! key's rows are one prefix), value is weight and degree, each LEB128 of its zigzag form.

use std::ops::ControlFlow;

use indexmap::IndexMap;
use weir_storage::{KeyGroup, StateTable};

use crate::error::Result;
use crate::operators::view_codec::{split_value, value};
use crate::operators::{OwnedChange, TableChange};

/// Bytes that a row takes besides its own.
const OVERHEAD: usize = 96;

/// A row of one side.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    /// How often it is there. 0 only until the table has been told.
    pub(super) weight: i64,
    /// Sum of the weights of its partners; kept for preserved sides.
    pub(super) degree: i64,
    dirty: bool,
    stored: bool,
}

/// All rows of one join key.
#[derive(Debug, Default)]
struct KeyRows {
    sides: [IndexMap<Box<[u8]>, Held>; 2],
    dirty: bool,
    /// When it was last used.
    generation: u32,
}

/// See the module.
pub(super) struct Cache {
    tables: [StateTable; 2],
    keys: IndexMap<Box<[u8]>, KeyRows>,
    /// Slots with rows that the tables do not have as they are.
    dirty: Vec<usize>,
    /// Whether every row that exists is in memory.
    complete: bool,
    bytes: usize,
    limit: usize,
    generation: u32,
}

impl Cache {
    pub(super) fn new(tables: [StateTable; 2], limit: usize) -> Self {
        Self { tables, keys: IndexMap::new(), dirty: Vec::new(), complete: true, bytes: 0, limit, generation: 0 }
    }

    /// The tables hold rows that are not in memory.
    pub(super) fn restored(&mut self) {
        self.complete = false;
    }

    /// The slot of each key, its rows brought into memory. Slots hold until [`Cache::tidy`].
    pub(super) fn slots<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k [u8]>,
        group_of: impl Fn(&[u8]) -> KeyGroup,
    ) -> Result<Vec<usize>> {
        let mut slots = Vec::with_capacity(keys.size_hint().0);
        for key in keys {
            let slot = match self.keys.get_index_of(key) {
                Some(slot) => slot,
                None => {
                    let rows = if self.complete { KeyRows::default() } else { self.load(key, &group_of)? };
                    self.bytes += key.len() + OVERHEAD;
                    self.keys.insert_full(key.into(), rows).0
                }
            };
            self.keys[slot].generation = self.generation;
            slots.push(slot);
        }
        Ok(slots)
    }

    fn load(&mut self, key: &[u8], group_of: impl Fn(&[u8]) -> KeyGroup) -> Result<KeyRows> {
        let mut rows = KeyRows::default();
        for (table, side) in self.tables.iter().zip(&mut rows.sides) {
            let mut damaged = None;
            let bytes = &mut self.bytes;
            table.scan_prefix(group_of(key), key, &mut |entry, stored| match split_value(stored)
                .and_then(|(weight, rest)| Ok((weight, split_value(rest)?.0)))
            {
                Ok((weight, degree)) => {
                    let row = &entry[key.len()..];
                    *bytes += row.len() + OVERHEAD;
                    side.insert(row.into(), Held { weight, degree, dirty: false, stored: true });
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    damaged = Some(error);
                    ControlFlow::Break(())
                }
            })?;
            if let Some(error) = damaged {
                return Err(error);
            }
        }
        Ok(rows)
    }

    /// Number of rows of a side that have the slot's key, ones of weight 0 included.
    pub(super) fn count(&self, slot: usize, side: usize) -> usize {
        self.keys[slot].sides[side].len()
    }

    pub(super) fn row_bytes(&self, slot: usize, side: usize, row: usize) -> &[u8] {
        self.keys[slot].sides[side].get_index(row).map_or(&[], |(bytes, _)| bytes)
    }

    pub(super) fn row_mut(&mut self, slot: usize, side: usize, row: usize) -> &mut Held {
        &mut self.keys[slot].sides[side][row]
    }

    /// The row differs from what its table holds.
    pub(super) fn mark_dirty(&mut self, slot: usize, side: usize, row: usize) {
        let rows = &mut self.keys[slot];
        rows.sides[side][row].dirty = true;
        if !rows.dirty {
            rows.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Adds a weight to a row, whose degree is known.
    pub(super) fn add(&mut self, slot: usize, side: usize, row: &[u8], weight: i64, degree: i64) {
        let rows = &mut self.keys[slot].sides[side];
        let index = match rows.get_index_of(row) {
            Some(index) => index,
            None => {
                self.bytes += row.len() + OVERHEAD;
                rows.insert_full(row.into(), Held::default()).0
            }
        };
        let held = &mut rows[index];
        held.weight += weight;
        held.degree = degree;
        self.mark_dirty(slot, side, index);
    }

    /// Writes what the tables do not have, and forgets rows that are gone.
    pub(super) fn write_back(&mut self, group_of: impl Fn(&[u8]) -> KeyGroup) -> Result<()> {
        for (side, table) in self.tables.iter().enumerate() {
            let mut changes: Vec<OwnedChange> = Vec::new();
            for slot in &self.dirty {
                let Some((key, rows)) = self.keys.get_index_mut(*slot) else { continue };
                let group = group_of(key);
                for (row, held) in &mut rows.sides[side] {
                    if !std::mem::take(&mut held.dirty) {
                        continue;
                    }
                    let there = held.weight != 0;
                    if there || held.stored {
                        let stored = there.then(|| value(held.weight, &value(held.degree, b"")));
                        changes.push((group, [&key[..], row].concat(), stored));
                    }
                    held.stored = there;
                }
                let bytes = &mut self.bytes;
                rows.sides[side].retain(|row, held| {
                    if held.weight == 0 {
                        *bytes = bytes.saturating_sub(row.len() + OVERHEAD);
                    }
                    held.weight != 0
                });
            }
            let changes: Vec<TableChange<'_>> =
                changes.iter().map(|(group, key, value)| (*group, key.as_slice(), value.as_deref())).collect();
            table.write(&changes)?;
        }
        for slot in self.dirty.drain(..) {
            self.keys[slot].dirty = false;
        }
        Ok(())
    }

    /// Bounds memory: drops the keys that were not used since the last time, or all if that is not enough. Slots are
    /// void afterwards.
    pub(super) fn tidy(&mut self, group_of: impl Fn(&[u8]) -> KeyGroup) -> Result<()> {
        if self.bytes <= self.limit {
            return Ok(());
        }
        self.write_back(group_of)?;
        self.complete = false;
        let (generation, limit) = (self.generation, self.limit);
        let mut bytes = 0;
        self.keys.retain(|key, rows| {
            let keep = rows.generation == generation;
            if keep {
                bytes += key.len() + OVERHEAD;
                bytes += rows.sides.iter().flat_map(IndexMap::keys).map(|row| row.len() + OVERHEAD).sum::<usize>();
            }
            keep
        });
        if bytes > limit / 2 {
            self.keys.clear();
            bytes = 0;
        }
        self.bytes = bytes;
        self.generation += 1;
        Ok(())
    }
}
