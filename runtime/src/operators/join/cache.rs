//! The rows of both sides by key: in memory, in front of the tables.
//!
//! Tables `left` and `right`: key is the encoded join key followed by the encoded row (both self-delimiting, so a join
//! key's rows are one prefix), value is weight and degree, each LEB128 of its zigzag form.

use std::ops::ControlFlow;

use indexmap::IndexMap;
use weir_storage::{KeyGroup, StateTable};

use super::rows::{Held, Rows};
use crate::error::Result;
use crate::operators::view_codec::{split_value, value};
use crate::operators::{OwnedChange, TableChange};

/// Bytes that a key takes besides its own.
const KEY_OVERHEAD: usize = 160;

/// Bytes that a row takes besides its own.
const ROW_OVERHEAD: usize = 64;

/// All rows of one join key.
#[derive(Debug, Default)]
struct KeyRows {
    sides: [Rows; 2],
    dirty: bool,
    /// The batch that last used it.
    generation: u64,
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
    /// Number of the current batch.
    generation: u64,
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
                    self.bytes += key.len() + KEY_OVERHEAD;
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
                    *bytes += row.len() + ROW_OVERHEAD;
                    side.push(row, Held { weight, degree, dirty: false, stored: true });
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
        self.keys[slot].sides[side].bytes(row)
    }

    pub(super) fn row_mut(&mut self, slot: usize, side: usize, row: usize) -> &mut Held {
        self.keys[slot].sides[side].held(row)
    }

    /// The row differs from what its table holds.
    pub(super) fn mark_dirty(&mut self, slot: usize, side: usize, row: usize) {
        let rows = &mut self.keys[slot];
        rows.sides[side].held(row).dirty = true;
        if !rows.dirty {
            rows.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Adds a weight to a row, whose degree is known.
    pub(super) fn add(&mut self, slot: usize, side: usize, row: &[u8], weight: i64, degree: i64) {
        let rows = &mut self.keys[slot].sides[side];
        let index = match rows.find(row) {
            Some(index) => index,
            None => {
                self.bytes += row.len() + ROW_OVERHEAD;
                rows.push(row, Held::default())
            }
        };
        let held = rows.held(index);
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
                for (row, held) in rows.sides[side].iter_mut() {
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
                rows.sides[side].forget_gone();
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

    /// Bounds memory: drops the half of the keys that was not used for longest. Slots are void afterwards.
    pub(super) fn tidy(&mut self, group_of: impl Fn(&[u8]) -> KeyGroup) -> Result<()> {
        self.generation += 1;
        if self.bytes <= self.limit {
            return Ok(());
        }
        self.write_back(group_of)?;
        self.complete = false;
        let mut ages: Vec<u64> = self.keys.values().map(|rows| rows.generation).collect();
        if ages.is_empty() {
            return Ok(());
        }
        let middle = ages.len() / 2;
        let newest_dropped = *ages.select_nth_unstable(middle).1;
        let mut bytes = 0;
        self.keys.retain(|key, rows| {
            let keep = rows.generation > newest_dropped;
            if keep {
                bytes += key.len() + KEY_OVERHEAD;
                bytes += rows.sides.iter().flat_map(Rows::iter).map(|row| row.len() + ROW_OVERHEAD).sum::<usize>();
            }
            keep
        });
        self.bytes = bytes;
        Ok(())
    }
}
