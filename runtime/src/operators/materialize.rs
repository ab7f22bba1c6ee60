//! Keeps a result as a table that can be read while it changes.
//!
//! ```text
//!  changes ──► gathered by key ──epoch──► table ──► snapshot + net changes to the view's readers
//!                                           └─────► net changes downstream (a log that other queries read)
//! ```

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Int8Array, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use indexmap::IndexMap;
use smallvec::{SmallVec, smallvec};
use weir_storage::{Epoch, KeyGroup, StateTable, Subtask, TableSnapshot};

use super::view_codec::{ViewCodec, split_value, value};
use super::{OwnedChange, TableChange};
use crate::error::{Result, RuntimeError};
use crate::graph::MaterializeSpec;
use crate::message::Chunk;
use crate::operator::{Operator, OperatorContext, Output};
use crate::view::ViewHandle;

/// Rows in a chunk of changes.
const CHUNK: usize = 8192;

/// Rows that only grow are put into one key group this many at a time, so that scans find them together.
const ROWS_PER_GROUP: u64 = 1024;

/// First byte of the operator's small state.
const STATE_FORMAT: u8 = 1;

/// How changes become rows of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// By key; the last change of a key holds.
    Upsert,
    /// By key; an update comes as retraction of the old and insertion of the new row, so nothing needs to be read.
    Changelog,
    /// No key; equal rows are counted.
    Bag,
    /// No key, no retractions; rows are only added.
    Append,
}

/// Rows with the weights that an epoch adds to them. Nearly always an old and a new row.
type Rows = SmallVec<[(Box<[u8]>, i64); 2]>;

/// See the module.
pub(super) struct Materialize {
    mode: Mode,
    forward: bool,
    /// Whether everything that the table holds has been forwarded.
    forwarded: bool,
    codec: Arc<ViewCodec>,
    table: StateTable,
    /// What an unaligned snapshot found gathered.
    pending: StateTable,
    pending_keys: Vec<(KeyGroup, Vec<u8>)>,
    view: Option<Arc<ViewHandle>>,
    subtask: Subtask,
    /// Changes of the epoch by key.
    gathered: IndexMap<Box<[u8]>, Rows>,
    /// The table as last published, as long as it has not changed.
    published: Option<Arc<TableSnapshot>>,
    epoch: Epoch,
    /// Makes row keys unique: of this run of this subtask, and of the row in it.
    run: [u8; 16],
    appended: u64,
}

impl Materialize {
    pub(super) fn new(
        spec: &MaterializeSpec,
        input_changelog: bool,
        schema: SchemaRef,
        ctx: OperatorContext<'_>,
        view: Option<Arc<ViewHandle>>,
    ) -> Result<Self> {
        let mode = match (spec.key.is_empty(), spec.upsert, input_changelog) {
            (false, true, _) => Mode::Upsert,
            (false, false, _) => Mode::Changelog,
            (true, _, true) => Mode::Bag,
            (true, _, false) => Mode::Append,
        };
        Ok(Self {
            mode,
            forward: spec.forward,
            forwarded: false,
            codec: Arc::new(ViewCodec::new(&schema, &spec.key, ctx.max_parallelism)?),
            table: ctx.state.table("rows")?,
            pending: ctx.state.table("pending")?,
            pending_keys: Vec::new(),
            view,
            subtask: ctx.subtask,
            gathered: IndexMap::new(),
            published: None,
            epoch: Epoch(0),
            run: uuid::Uuid::now_v7().into_bytes(),
            appended: 0,
        })
    }

    /// The key of the next row of a result that only grows, and its place.
    fn next_key(&mut self) -> (KeyGroup, Box<[u8]>) {
        let range = self.table.range();
        let groups = u64::from(range.end.saturating_sub(range.start)).max(1);
        let group = KeyGroup(range.start + (self.appended / ROWS_PER_GROUP % groups) as u16);
        let key = [&self.run[..], &self.appended.to_be_bytes()].concat();
        self.appended += 1;
        (group, key.into())
    }

    fn append(&mut self, chunk: &Chunk) -> Result<()> {
        if chunk.ops().is_some() {
            return Err(RuntimeError::Internal {
                place: "materialization",
                reason: "a retraction came where the plan promised none".to_owned(),
            });
        }
        let rows = self.codec.encode_rows(chunk.batch())?;
        for row in rows.iter() {
            let (group, key) = self.next_key();
            // The key group cannot be told from such a key: it stands before it.
            let key = [&group.0.to_be_bytes()[..], &key].concat();
            self.gathered.insert(key.into(), smallvec![(row.into(), 1)]);
        }
        Ok(())
    }

    fn gather(&mut self, chunk: &Chunk) -> Result<()> {
        let keys = self.codec.encode_keys(chunk.batch())?;
        let rows = self.codec.encode_rows(chunk.batch())?;
        for (index, (key, row)) in keys.iter().zip(rows.iter()).enumerate() {
            let weight = i64::from(chunk.op(index));
            if let Some(held) = self.gathered.get_mut(key) {
                match self.mode {
                    Mode::Upsert => *held = smallvec![(row.into(), weight)],
                    _ => add(held, row, weight),
                }
            } else {
                self.gathered.insert(key.into(), smallvec![(row.into(), weight)]);
            }
        }
        Ok(())
    }

    /// Where the row of a gathered key lies.
    fn place<'k>(&self, key: &'k [u8]) -> (KeyGroup, &'k [u8]) {
        match (self.mode, key.split_first_chunk::<2>()) {
            (Mode::Append, Some((group, key))) => (KeyGroup(u16::from_be_bytes(*group)), key),
            _ => (self.codec.group_of(key), key),
        }
    }

    /// Brings the table up to date and returns the net changes: rows with weights.
    fn apply(&mut self) -> Result<Vec<(Box<[u8]>, i64)>> {
        let gathered = std::mem::take(&mut self.gathered);
        let places: Vec<(KeyGroup, &[u8])> = gathered.keys().map(|key| self.place(key)).collect();
        let stored = match self.mode {
            Mode::Upsert | Mode::Bag => self.table.get_many(&places)?,
            Mode::Changelog | Mode::Append => Vec::new(),
        };
        let mut values: Vec<Option<Vec<u8>>> = Vec::with_capacity(places.len());
        let mut changed: Vec<(KeyGroup, &[u8])> = Vec::with_capacity(places.len());
        let mut changes: Vec<(Box<[u8]>, i64)> = Vec::with_capacity(places.len());
        for (index, ((group, key), rows)) in places.iter().zip(gathered.values()).enumerate() {
            let stored = stored.get(index).and_then(|value| value.as_deref()).map(split_value).transpose()?;
            let value = match (self.mode, rows.as_slice()) {
                (Mode::Upsert, [(row, weight)]) => {
                    let old = stored.map(|(_, old)| old);
                    if *weight > 0 && old == Some(row) {
                        continue;
                    }
                    changes.extend(old.map(|old| (old.into(), -1)));
                    if *weight > 0 {
                        changes.push((row.clone(), 1));
                    }
                    (*weight > 0).then(|| value(1, row))
                }
                (Mode::Bag, [(row, weight)]) => {
                    if *weight == 0 {
                        continue;
                    }
                    changes.push((row.clone(), *weight));
                    let count = stored.map_or(0, |(count, _)| count) + weight;
                    (count != 0).then(|| value(count, row))
                }
                (_, rows) => {
                    if rows.iter().all(|(_, weight)| *weight == 0) {
                        continue;
                    }
                    let (old, new): (Vec<_>, Vec<_>) =
                        rows.iter().filter(|(_, weight)| *weight != 0).cloned().partition(|(_, weight)| *weight < 0);
                    let value = new.last().map(|(row, _)| value(1, row));
                    changes.extend(old.into_iter().chain(new));
                    value
                }
            };
            changed.push((*group, key));
            values.push(value);
        }
        let writes: Vec<TableChange<'_>> =
            changed.iter().zip(&values).map(|((group, key), value)| (*group, *key, value.as_deref())).collect();
        self.table.write(&writes)?;
        Ok(changes)
    }

    /// Rows with weights as chunks.
    fn chunks(&self, changes: &[(Box<[u8]>, i64)]) -> Result<Vec<Chunk>> {
        changes
            .chunks(CHUNK)
            .map(|changes| {
                let rows: Vec<&[u8]> = changes.iter().map(|(row, _)| row.as_ref()).collect();
                let mut batch = self.codec.decode_rows(&rows)?;
                let mut ops: Vec<i8> = changes.iter().map(|(_, weight)| weight.signum() as i8).collect();
                if changes.iter().any(|(_, weight)| weight.abs() > 1) {
                    let copies = |index: usize| (0..changes[index].1.unsigned_abs()).map(move |_| index as u32);
                    let places: Vec<u32> = (0..changes.len()).flat_map(copies).collect();
                    ops = places.iter().map(|place| ops[*place as usize]).collect();
                    batch = take_record_batch(&batch, &UInt32Array::from(places))?;
                }
                Ok(Chunk::new(batch, Int8Array::from(ops)))
            })
            .collect()
    }

    fn table_snapshot(&mut self) -> Result<Arc<TableSnapshot>> {
        if let Some(published) = &self.published {
            return Ok(Arc::clone(published));
        }
        let snapshot = Arc::new(self.table.snapshot()?);
        self.published = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    fn publish(&mut self, changes: Vec<Chunk>) -> Result<()> {
        let Some(view) = self.view.clone() else { return Ok(()) };
        let snapshot = self.table_snapshot()?;
        view.publish(self.subtask, self.epoch, snapshot, changes);
        Ok(())
    }

    /// Emits every row that the table holds.
    fn emit_all(&mut self, out: &mut Output) -> Result<()> {
        let snapshot = self.table_snapshot()?;
        for batch in self.codec.scan(vec![snapshot], None)? {
            out.push(Chunk::insert(batch?));
        }
        Ok(())
    }

    fn write_pending(&mut self) -> Result<()> {
        let mut writes: Vec<OwnedChange> = self.pending_keys.drain(..).map(|(group, key)| (group, key, None)).collect();
        let mut pending_keys = Vec::with_capacity(self.gathered.len());
        for (key, rows) in &self.gathered {
            let (group, _) = self.place(key);
            pending_keys.push((group, key.to_vec()));
            writes.push((group, key.to_vec(), Some(pending_value(rows))));
        }
        self.pending_keys = pending_keys;
        let writes: Vec<TableChange<'_>> =
            writes.iter().map(|(group, key, value)| (*group, key.as_slice(), value.as_deref())).collect();
        Ok(self.pending.write(&writes)?)
    }

    fn read_pending(&mut self) -> Result<()> {
        for group in self.pending.range().groups() {
            let (gathered, pending_keys) = (&mut self.gathered, &mut self.pending_keys);
            let mut damaged = false;
            self.pending.scan(group, &[], None, &mut |key, value| {
                match pending_rows(value) {
                    Some(rows) => {
                        gathered.insert(key.into(), rows);
                    }
                    None => damaged = true,
                }
                pending_keys.push((group, key.to_vec()));
                ControlFlow::Continue(())
            })?;
            if damaged {
                return Err(state_error("a pending change"));
            }
        }
        Ok(())
    }
}

/// Adds a weight to a row among others of the same key.
fn add(rows: &mut Rows, row: &[u8], weight: i64) {
    match rows.iter().position(|(held, _)| held.as_ref() == row) {
        Some(index) => {
            let (row, held) = rows.remove(index);
            // Moved to the end: the row that was inserted last is the one to keep.
            rows.push((row, held + weight));
        }
        None => rows.push((row.into(), weight)),
    }
}

fn pending_value(rows: &Rows) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (row, weight) in rows {
        bytes.extend_from_slice(&weight.to_be_bytes());
        bytes.extend_from_slice(&(row.len() as u64).to_be_bytes());
        bytes.extend_from_slice(row);
    }
    bytes
}

fn pending_rows(mut bytes: &[u8]) -> Option<Rows> {
    let mut rows = Rows::new();
    while !bytes.is_empty() {
        let (weight, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (row, rest) = rest.split_at_checked(u64::from_be_bytes(*length) as usize)?;
        rows.push((row.into(), i64::from_be_bytes(*weight)));
        bytes = rest;
    }
    Some(rows)
}

fn state_error(what: &str) -> RuntimeError {
    RuntimeError::Internal { place: "materialization state", reason: format!("{what} cannot be read") }
}

impl Operator for Materialize {
    fn batch(&mut self, _input: usize, chunk: Chunk, _out: &mut Output) -> Result<()> {
        match self.mode {
            Mode::Append => self.append(&chunk),
            _ => self.gather(&chunk),
        }
    }

    fn epoch(&mut self, epoch: Epoch, out: &mut Output) -> Result<()> {
        self.epoch = epoch;
        let changes = if self.gathered.is_empty() { Vec::new() } else { self.apply()? };
        if !changes.is_empty() {
            self.published = None;
        }
        let changes = self.chunks(&changes)?;
        if self.forward && !self.forwarded {
            self.emit_all(out)?;
            self.forwarded = true;
        } else if self.forward {
            changes.iter().for_each(|chunk| out.push(chunk.clone()));
        }
        self.publish(changes)
    }

    fn snapshot(&mut self) -> Result<Vec<u8>> {
        self.write_pending()?;
        Ok([&[STATE_FORMAT, u8::from(self.forwarded)][..], &self.epoch.0.to_le_bytes()].concat())
    }

    fn restore(&mut self, states: &[Vec<u8>]) -> Result<()> {
        // A query that was started from another's checkpoint does not write a log because the other did.
        self.forwarded = self.forward && !states.is_empty();
        for state in states {
            let [STATE_FORMAT, forwarded, epoch @ ..] = state.as_slice() else {
                return Err(state_error("the operator's state"));
            };
            let epoch = epoch.try_into().map(u64::from_le_bytes).map_err(|_| state_error("the epoch"))?;
            self.forwarded &= *forwarded == 1;
            self.epoch = self.epoch.max(Epoch(epoch));
        }
        self.read_pending()?;
        // A view whose input is idle is readable at once.
        if self.epoch > Epoch(0) { self.publish(Vec::new()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
