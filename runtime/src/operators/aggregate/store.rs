//! The aggregate's tables.
//!
//! | table     | key                              | value                                          |
//! |-----------|----------------------------------|------------------------------------------------|
//! | `groups`  | encoded group key                | row of (weight, state of each call)            |
//! | `timers`  | window end, then encoded key     | nothing; only if groups are closed by event time |
//! | `pending` | encoded group key                | row of (was emitted, remembered state of each call): only between an unaligned snapshot and the next |
//! | `values.N`| see `multiset.rs`                |                                                |

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use weir_storage::{KeyGroup, RowCodec, StateTable};

use super::groups::Groups;
use super::plan::Call;
use crate::error::Result;
use crate::operator::StateAccess;
use crate::operators::{OwnedChange, TableChange};

/// Groups written or read at a time.
const BLOCK: usize = 4096;

/// Groups that had been touched when an unaligned snapshot was taken.
pub(super) struct Pending {
    pub(super) keys: Vec<Box<[u8]>>,
    /// Whether the group's row had been emitted.
    pub(super) emitted: Vec<bool>,
    /// The remembered columns of each call.
    pub(super) remembered: Vec<Vec<ArrayRef>>,
}

/// The tables, and how rows of them are encoded.
pub(super) struct Store {
    groups: StateTable,
    timers: Option<StateTable>,
    pending: StateTable,
    codec: RowCodec,
    pending_codec: RowCodec,
    /// Keys in `pending`.
    pending_keys: Vec<(KeyGroup, Vec<u8>)>,
    /// Number of state columns of each call.
    widths: Vec<usize>,
}

impl Store {
    pub(super) fn open(state: &mut dyn StateAccess, calls: &[Call], timers: bool) -> Result<Self> {
        let fields: Vec<Vec<DataType>> = calls
            .iter()
            .map(|call| call.state.fields().iter().map(|field| field.data_type().clone()).collect())
            .collect();
        let row = |first: DataType| std::iter::once(first).chain(fields.iter().flatten().cloned()).collect::<Vec<_>>();
        Ok(Self {
            groups: state.table("groups")?,
            timers: if timers { Some(state.table("timers")?) } else { None },
            pending: state.table("pending")?,
            codec: RowCodec::new(&row(DataType::Int64))?,
            pending_codec: RowCodec::new(&row(DataType::Boolean))?,
            pending_keys: Vec::new(),
            widths: fields.iter().map(Vec::len).collect(),
        })
    }

    /// Columns of each call, out of those of a row after its first.
    fn split<'a>(&self, mut columns: &'a [ArrayRef]) -> Vec<&'a [ArrayRef]> {
        self.widths
            .iter()
            .map(|width| {
                let (call, rest) = columns.split_at(*width);
                columns = rest;
                call
            })
            .collect()
    }

    /// Brings in what the table holds of `range`, groups that are new in memory.
    pub(super) fn load(
        &self,
        groups: &mut Groups,
        calls: &mut [Call],
        range: std::ops::Range<usize>,
        global: bool,
    ) -> Result<()> {
        let wanted: Vec<(KeyGroup, &[u8])> = range.clone().map(|group| groups.keys.place(group)).collect();
        let mut found: Vec<usize> = Vec::new();
        let mut rows: Vec<Vec<u8>> = Vec::new();
        for (group, row) in range.zip(self.groups.get_many(&wanted)?) {
            if let Some(row) = row {
                found.push(group);
                rows.push(row);
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        let columns = self.codec.decode(rows.iter().map(Vec::as_slice))?;
        let weights = columns[0].as_primitive::<Int64Type>();
        for (group, weight) in found.iter().zip(weights.values()) {
            let known = &mut groups.known[*group];
            known.weight = *weight;
            known.stored = true;
            known.emitted = *weight > 0 || global;
        }
        for (call, columns) in calls.iter_mut().zip(self.split(&columns[1..])) {
            call.state.import(&found, columns)?;
        }
        Ok(())
    }

    /// Writes every group whose state the table does not have. `ends` are their window ends.
    pub(super) fn write_back(
        &self,
        groups: &mut Groups,
        calls: &[Call],
        ends: Option<&[i64]>,
        global: bool,
    ) -> Result<()> {
        let unwritten: Vec<usize> = (0..groups.len()).filter(|group| groups.known[*group].unwritten).collect();
        for block in unwritten.chunks(BLOCK) {
            let (kept, gone): (Vec<usize>, Vec<usize>) = block.iter().partition(|group| {
                let known = &groups.known[**group];
                known.weight != 0 || global || known.is_touched()
            });
            let gone: Vec<usize> = gone.into_iter().filter(|group| groups.known[*group].stored).collect();
            let mut columns: Vec<ArrayRef> =
                vec![Arc::new(Int64Array::from_iter_values(kept.iter().map(|group| groups.known[*group].weight)))];
            for call in calls {
                columns.extend(call.state.export(&kept)?);
            }
            let rows = self.codec.encode_rows(&columns, kept.len())?;
            let mut writes: Vec<TableChange<'_>> = Vec::with_capacity(block.len());
            for (group, row) in kept.iter().zip(rows.iter()) {
                let (key_group, key) = groups.keys.place(*group);
                writes.push((key_group, key, Some(row)));
            }
            writes.extend(gone.iter().map(|group| {
                let (key_group, key) = groups.keys.place(*group);
                (key_group, key, None)
            }));
            self.groups.write(&writes)?;
            if let (Some(timers), Some(ends)) = (&self.timers, ends) {
                let set = kept.iter().filter(|group| !groups.known[**group].stored).map(|group| (*group, true));
                let changes: Vec<OwnedChange> = set
                    .chain(gone.iter().map(|group| (*group, false)))
                    .map(|(group, set)| timer(groups, ends, group, set))
                    .collect();
                write(timers, &changes)?;
            }
            for group in &kept {
                groups.known[*group].stored = true;
            }
            for group in &gone {
                groups.known[*group].stored = false;
            }
            for group in block {
                groups.settle_written(*group);
            }
        }
        Ok(())
    }

    /// Deletes groups whose window has closed.
    pub(super) fn delete(&self, groups: &Groups, closed: &[usize], ends: &[i64]) -> Result<()> {
        let stored: Vec<usize> = closed.iter().copied().filter(|group| groups.known[*group].stored).collect();
        let writes: Vec<TableChange<'_>> = stored
            .iter()
            .map(|group| {
                let (key_group, key) = groups.keys.place(*group);
                (key_group, key, None)
            })
            .collect();
        self.groups.write(&writes)?;
        if let Some(timers) = &self.timers {
            let changes: Vec<OwnedChange> = stored.iter().map(|group| timer(groups, ends, *group, false)).collect();
            write(timers, &changes)?;
        }
        Ok(())
    }

    /// Keys of stored groups whose window ends at or before `watermark`, and the earliest later end.
    pub(super) fn due(&self, watermark: i64) -> Result<(Vec<Box<[u8]>>, i64)> {
        let (mut keys, mut next) = (Vec::new(), i64::MAX);
        if let Some(timers) = &self.timers {
            for key_group in timers.range().groups() {
                timers.scan(key_group, &[], None, &mut |timer, _| match timer_parts(timer) {
                    Some((end, key)) if end <= watermark => {
                        keys.push(key.into());
                        ControlFlow::Continue(())
                    }
                    Some((end, _)) => {
                        next = next.min(end);
                        ControlFlow::Break(())
                    }
                    None => ControlFlow::Continue(()),
                })?;
            }
        }
        Ok((keys, next))
    }

    /// Replaces what `pending` holds by the touched groups as they were when last emitted.
    pub(super) fn write_pending(&mut self, groups: &Groups, calls: &[Call]) -> Result<()> {
        let gone: Vec<TableChange<'_>> =
            self.pending_keys.iter().map(|(group, key)| (*group, key.as_slice(), None)).collect();
        self.pending.write(&gone)?;
        self.pending_keys.clear();
        if groups.touched.is_empty() {
            return Ok(());
        }
        let mut columns: Vec<ArrayRef> = vec![Arc::new(BooleanArray::from(groups.was_emitted.clone()))];
        for call in calls {
            columns.extend(call.state.export_remembered()?);
        }
        let rows = self.pending_codec.encode(&columns)?;
        let places: Vec<(KeyGroup, &[u8])> = groups.touched.iter().map(|group| groups.keys.place(*group)).collect();
        let writes: Vec<TableChange<'_>> =
            places.iter().zip(rows.iter()).map(|((group, key), row)| (*group, *key, Some(row))).collect();
        self.pending.write(&writes)?;
        self.pending_keys = places.iter().map(|(group, key)| (*group, key.to_vec())).collect();
        Ok(())
    }

    /// What `pending` holds after a restore.
    pub(super) fn read_pending(&mut self) -> Result<Option<Pending>> {
        let (mut keys, mut rows): (Vec<Box<[u8]>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
        for key_group in self.pending.range().groups() {
            let pending_keys = &mut self.pending_keys;
            self.pending.scan(key_group, &[], None, &mut |key, row| {
                keys.push(key.into());
                rows.push(row.to_vec());
                pending_keys.push((key_group, key.to_vec()));
                ControlFlow::Continue(())
            })?;
        }
        if keys.is_empty() {
            return Ok(None);
        }
        let columns = self.pending_codec.decode(rows.iter().map(Vec::as_slice))?;
        let emitted = columns[0].as_boolean();
        let emitted = (0..emitted.len()).map(|i| emitted.value(i)).collect();
        let remembered = self.split(&columns[1..]).into_iter().map(<[ArrayRef]>::to_vec).collect();
        Ok(Some(Pending { keys, emitted, remembered }))
    }
}

/// The entry of `timers` for a group: its window end, so encoded that earlier ends sort first, and its key.
fn timer(groups: &Groups, ends: &[i64], group: usize, set: bool) -> OwnedChange {
    let (key_group, key) = groups.keys.place(group);
    let end = (ends[group] as u64 ^ (1 << 63)).to_be_bytes();
    (key_group, [&end[..], key].concat(), set.then(Vec::new))
}

fn timer_parts(timer: &[u8]) -> Option<(i64, &[u8])> {
    let (end, key) = timer.split_first_chunk::<8>()?;
    Some(((u64::from_be_bytes(*end) ^ (1 << 63)) as i64, key))
}

fn write(table: &StateTable, changes: &[OwnedChange]) -> Result<()> {
    let changes: Vec<TableChange<'_>> =
        changes.iter().map(|(group, key, value)| (*group, key.as_slice(), value.as_deref())).collect();
    Ok(table.write(&changes)?)
}
