//! `GROUP BY`, aggregates and `DISTINCT`.
//!
//! ```text
//!            rows                                    epoch end
//!             │ index (groups.rs): row -> group          │ settle: what gathered becomes state
//!             ▼                                          ▼
//!   first touch: load from the table,         results now ≠ results remembered?  ──► -old +new
//!   remember the state as last emitted        group empty?                       ──► -old
//!             │                                          │
//!             ▼                                          ▼ snapshot, or too much memory
//!   update the calls' states in memory        write_back (store.rs): what the table does not have yet
//! ```
//!
//! A group stays in memory across epochs; memory is bounded by writing all groups back and starting anew. As long as
//! that never happened since an empty start, memory is known to hold every group, and a new one is not looked up.

mod call;
mod closed;
mod extreme;
mod groups;
mod keys;
mod linear;
mod multiset;
mod partial;
mod plan;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int8Array, RecordBatch, UInt32Array};
use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{filter_record_batch, interleave, take};
use arrow::datatypes::{SchemaRef, TimestampMicrosecondType};
use weir_storage::{Epoch, KeyGroupRange, key_group_of};

use self::call::Rows;
use self::closed::Closed;
use self::groups::Groups;
use self::plan::Call;
use self::store::{Pending, Store};
use super::Site;
use super::filter::keep;
use crate::error::{Result, RuntimeError};
use crate::graph::{AggregateSpec, Emit};
use crate::message::{Chunk, EventTime};
use crate::operator::{Operator, OperatorContext, Output};

/// Rows emitted in one chunk.
const CHUNK: usize = 8192;

/// Dead groups in memory before the index is rebuilt without them.
const DEAD: usize = 8192;

/// See the module.
pub(super) struct Aggregate {
    site: Site,
    schema: SchemaRef,
    group_columns: Vec<usize>,
    emit: Emit,
    /// Index into the group columns of the one that closes a group.
    window_end: Option<usize>,
    calls: Vec<Call>,
    groups: Groups,
    store: Store,
    /// Grouping by nothing: whether the one group there is belongs to this subtask.
    global: Option<bool>,
    closed: Closed,
    /// The key groups of this subtask, and how many there are.
    key_groups: (KeyGroupRange, u16),
    /// Whether every group that exists is in memory.
    complete: bool,
    /// Window end of each group in memory, and the groups by it.
    ends: Vec<i64>,
    closing: BTreeMap<i64, Vec<usize>>,
    /// No stored group that may be missing in memory closes before this.
    next_stored_end: i64,
    cache_bytes: usize,
    positions: Vec<usize>,
    dead: usize,
}

impl Aggregate {
    pub(super) fn new(
        site: Site,
        spec: &AggregateSpec,
        schema: SchemaRef,
        input: SchemaRef,
        ctx: OperatorContext<'_>,
        cache_bytes: usize,
    ) -> Result<Self> {
        let types: Vec<_> = spec.group.iter().map(|column| input.field(*column).data_type().clone()).collect();
        let calls = spec
            .calls
            .iter()
            .enumerate()
            .map(|(index, call)| {
                plan::call(call, &input, spec.input_changelog, &mut || ctx.state.table(&format!("values.{index}")))
            })
            .collect::<Result<Vec<_>>>()?;
        let store = Store::open(ctx.state, &calls, spec.window_end.is_some())?;
        let groups = Groups::new(&types, ctx.max_parallelism)?;
        let global = if types.is_empty() {
            let key = weir_storage::KeyEncoder::new(&[], ctx.max_parallelism)?.encode_rows(&[], 1)?;
            Some(ctx.key_groups.contains(key_group_of(key.key(0), ctx.max_parallelism)))
        } else {
            None
        };
        Ok(Self {
            site,
            schema,
            group_columns: spec.group.clone(),
            emit: spec.emit,
            window_end: spec.window_end,
            calls,
            groups,
            store,
            global,
            closed: Closed::new(),
            key_groups: (ctx.key_groups, ctx.max_parallelism),
            complete: true,
            ends: Vec::new(),
            closing: BTreeMap::new(),
            next_stored_end: i64::MAX,
            cache_bytes,
            positions: Vec::new(),
            dead: 0,
        })
    }

    /// The rows whose group is still open. Others are late: counted and kept readable.
    fn in_time(&self, chunk: Chunk) -> Result<Chunk> {
        let begun = self.closed.watermark() > i64::MIN || self.closed.differs();
        let Some(window_end) = self.window_end.filter(|_| begun) else { return Ok(chunk) };
        let key_groups = if self.closed.differs() {
            let keys: Vec<ArrayRef> =
                self.group_columns.iter().map(|column| Arc::clone(chunk.batch().column(*column))).collect();
            self.groups.key_groups(&keys, chunk.num_rows())?
        } else {
            Vec::new()
        };
        let closed = |row: usize| key_groups.get(row).map_or(self.closed.watermark(), |group| self.closed.of(*group));
        let ends = chunk.batch().column(self.group_columns[window_end]);
        let ends = window_ends(ends)?;
        let in_time: BooleanArray =
            (0..ends.len()).map(|row| Some(ends.is_null(row) || ends.value(row) > closed(row))).collect();
        if in_time.true_count() == in_time.len() {
            return Ok(chunk);
        }
        let late = arrow::compute::not(&in_time)?;
        self.site.metrics.late_rows.fetch_add(late.true_count() as u64, Ordering::Relaxed);
        let rows = filter_record_batch(chunk.batch(), &late)?;
        self.site.rejects.late(EventTime(self.closed.watermark()), &rows);
        keep(chunk, &in_time)
    }

    /// Finds the groups of rows with these keys, bringing in what is stored of those that are new in memory.
    fn assign(&mut self, keys: &[ArrayRef], rows: usize) -> Result<()> {
        let (new, first) = self.groups.assign(keys, rows)?;
        if new.is_empty() {
            return Ok(());
        }
        for call in &mut self.calls {
            call.state.resize(new.end);
        }
        if let Some(window_end) = self.window_end {
            let ends = take(&keys[window_end], &first, None)?;
            let ends = window_ends(&ends)?;
            for (group, end) in new.clone().zip(ends.iter()) {
                // A group without an end never closes.
                let end = end.unwrap_or(i64::MAX);
                self.ends.push(end);
                self.closing.entry(end).or_default().push(group);
            }
        }
        if !self.complete {
            self.store.load(&mut self.groups, &mut self.calls, new, self.global.is_some())?;
        }
        Ok(())
    }

    /// Without GROUP BY there is one row from the start: `count` is 0 before any row came.
    fn ensure_global(&mut self) -> Result<()> {
        if self.global == Some(true) && self.groups.len() == 0 {
            self.assign(&[], 1)?;
            if !self.groups.known[0].stored && self.groups.touch_group(0) {
                self.remember(0);
            }
        }
        Ok(())
    }

    /// Remembers the states of the groups touched from `from` on.
    fn remember(&mut self, from: usize) {
        if self.emit == Emit::Changes {
            for call in &mut self.calls {
                call.state.remember(&self.groups.touched[from..]);
            }
        }
    }

    fn settle(&mut self) -> Result<()> {
        for call in &mut self.calls {
            call.state.settle(&self.groups.touched, &self.groups.keys).map_err(|error| self.site.named(error))?;
        }
        Ok(())
    }

    fn forget(&mut self) {
        for call in &mut self.calls {
            call.state.forget();
        }
        self.groups.forget();
    }

    /// Whether the group has a row in the result.
    fn exists(&self, group: usize) -> bool {
        self.groups.known[group].weight > 0 || self.global.is_some()
    }

    /// Emits how the touched groups' rows changed. Within an epoch, as memory or a watermark may ask for it, groups of
    /// weight 0 stay touched: a retraction may have come before its insertion.
    fn flush_changes(&mut self, epoch_ends: bool, out: &mut Output) -> Result<()> {
        if self.groups.touched.is_empty() {
            return Ok(());
        }
        self.settle()?;
        if epoch_ends {
            for call in &mut self.calls {
                call.state.end_epoch(&self.groups.touched);
            }
        }
        if self.emit == Emit::Changes {
            self.emit_changes(out)?;
        }
        let mut empty = Vec::new();
        for place in 0..self.groups.touched.len() {
            let group = self.groups.touched[place];
            let exists = self.exists(group);
            let known = &mut self.groups.known[group];
            known.emitted = exists;
            if known.weight == 0 && !exists {
                empty.push(group);
            }
        }
        self.forget();
        if epoch_ends {
            self.dead += empty.len();
            for call in &mut self.calls {
                call.state.clear(&empty);
            }
        } else {
            for group in empty {
                self.groups.touch_group(group);
            }
            self.remember(0);
        }
        Ok(())
    }

    fn emit_changes(&self, out: &mut Output) -> Result<()> {
        let touched = &self.groups.touched;
        let mut changed = vec![false; touched.len()];
        let mut results: Vec<(ArrayRef, ArrayRef)> = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let old = call.state.remembered().map_err(|error| self.site.named(error))?;
            let new = call.state.results(touched).map_err(|error| self.site.named(error))?;
            mark_changed(&old, &new, &mut changed)?;
            results.push((old, new));
        }
        // (0 = old, 1 = new; place among the touched), in the order in which they are emitted.
        let mut rows: Vec<(usize, usize)> = Vec::new();
        for (place, group) in touched.iter().enumerate() {
            match (self.groups.was_emitted[place], self.exists(*group)) {
                (true, true) if changed[place] => rows.extend([(0, place), (1, place)]),
                (true, false) => rows.push((0, place)),
                (false, true) => rows.push((1, place)),
                _ => {}
            }
        }
        for rows in rows.chunks(CHUNK) {
            let mut groups: Vec<usize> = Vec::with_capacity(rows.len());
            let mut key_places: Vec<u32> = Vec::with_capacity(rows.len());
            for (_, place) in rows {
                let group = touched[*place];
                if groups.last() != Some(&group) {
                    groups.push(group);
                }
                key_places.push(groups.len() as u32 - 1);
            }
            let mut columns = self.groups.columns(&groups)?;
            if groups.len() < rows.len() {
                let key_places = UInt32Array::from(key_places);
                columns =
                    columns.iter().map(|column| Ok(take(column, &key_places, None)?)).collect::<Result<Vec<_>>>()?;
            }
            for (old, new) in &results {
                columns.push(interleave(&[old.as_ref(), new.as_ref()], rows)?);
            }
            let ops = Int8Array::from_iter_values(rows.iter().map(|(new, _)| if *new == 1 { 1 } else { -1 }));
            out.push(Chunk::new(RecordBatch::try_new(Arc::clone(&self.schema), columns)?, ops));
        }
        Ok(())
    }

    /// Closes every group whose window has ended.
    fn close(&mut self, out: &mut Output) -> Result<()> {
        let watermark = self.closed.watermark();
        if !self.complete && self.next_stored_end <= watermark {
            let (keys, next) = self.store.due(watermark)?;
            self.next_stored_end = next;
            if !keys.is_empty() {
                let columns = self.groups.decode(&keys)?;
                self.assign(&columns, keys.len())?;
            }
        }
        if self.closing.first_key_value().is_none_or(|(end, _)| *end > watermark) {
            return Ok(());
        }
        self.flush_changes(false, out)?;
        let mut closed: Vec<usize> = Vec::new();
        while let Some(entry) = self.closing.first_entry()
            && *entry.key() <= watermark
        {
            closed.extend(entry.remove());
        }
        if self.emit == Emit::OnWindowClose {
            let rows: Vec<usize> = closed.iter().copied().filter(|group| self.exists(*group)).collect();
            for groups in rows.chunks(CHUNK) {
                let mut columns = self.groups.columns(groups)?;
                for call in &self.calls {
                    columns.push(call.state.results(groups).map_err(|error| self.site.named(error))?);
                }
                out.push(Chunk::insert(RecordBatch::try_new(Arc::clone(&self.schema), columns)?));
            }
        }
        self.store.delete(&self.groups, &closed, &self.ends)?;
        for call in &mut self.calls {
            call.state.delete(&closed, &self.groups.keys)?;
            call.state.clear(&closed);
        }
        for group in &closed {
            let known = &mut self.groups.known[*group];
            (known.weight, known.emitted, known.unwritten, known.stored) = (0, false, false, false);
        }
        self.dead += closed.len();
        self.tidy()
    }

    /// Bounds memory.
    fn tidy(&mut self) -> Result<()> {
        if self.global.is_some() {
            return Ok(());
        }
        let bytes = self.bytes();
        if bytes > self.cache_bytes {
            self.write_back()?;
            self.next_stored_end =
                self.closing.first_key_value().map_or(i64::MAX, |(end, _)| *end).min(self.next_stored_end);
            self.complete = false;
            self.retain(&self.groups.touched.clone())?;
        } else if self.dead > DEAD && self.dead * 2 > self.groups.len() {
            let alive: Vec<usize> = (0..self.groups.len())
                .filter(|group| {
                    let known = &self.groups.known[*group];
                    known.weight != 0 || known.stored || known.is_touched()
                })
                .collect();
            self.retain(&alive)?;
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.groups.bytes() + self.calls.iter().map(|call| call.state.bytes()).sum::<usize>() + self.ends.len() * 16
    }

    fn write_back(&mut self) -> Result<()> {
        let ends = self.window_end.map(|_| self.ends.as_slice());
        self.store.write_back(&mut self.groups, &self.calls, ends, self.global.is_some())
    }

    fn retain(&mut self, groups: &[usize]) -> Result<()> {
        self.groups.retain(groups)?;
        for call in &mut self.calls {
            call.state.retain(groups);
        }
        self.dead = 0;
        if self.window_end.is_some() {
            self.ends = groups.iter().map(|group| self.ends[*group]).collect();
            self.closing.clear();
            for (group, end) in self.ends.iter().enumerate() {
                self.closing.entry(*end).or_default().push(group);
            }
        }
        Ok(())
    }
}

fn window_ends(column: &ArrayRef) -> Result<&arrow::array::TimestampMicrosecondArray> {
    column.as_primitive_opt::<TimestampMicrosecondType>().ok_or_else(|| RuntimeError::Internal {
        place: "window aggregation",
        reason: format!("the window's end has type {}", column.data_type()),
    })
}

/// Sets `changed` where the two columns differ; null equals null.
fn mark_changed(old: &ArrayRef, new: &ArrayRef, changed: &mut [bool]) -> Result<()> {
    if old.data_type().is_nested() {
        for (row, changed) in changed.iter_mut().enumerate() {
            *changed = *changed || old.slice(row, 1) != new.slice(row, 1);
        }
        return Ok(());
    }
    for row in distinct(old, new)?.values().set_indices() {
        changed[row] = true;
    }
    Ok(())
}

impl Operator for Aggregate {
    fn batch(&mut self, _input: usize, chunk: Chunk, out: &mut Output) -> Result<()> {
        let chunk = self.in_time(chunk)?;
        if chunk.is_empty() {
            return Ok(());
        }
        self.ensure_global()?;
        let batch = chunk.batch();
        let keys: Vec<ArrayRef> = self.group_columns.iter().map(|column| Arc::clone(batch.column(*column))).collect();
        let before = self.groups.len();
        self.assign(&keys, batch.num_rows())?;
        let positions = self.calls.iter().any(|call| call.wants_positions).then_some(&mut self.positions);
        let first = self.groups.touch(chunk.ops().map(|ops| ops.values().as_ref()), positions);
        self.remember(first);
        for call in &mut self.calls {
            let args = call.args.iter().map(|arg| self.site.column(arg, batch)).collect::<Result<Vec<_>>>()?;
            let mask = call.filter.as_ref().map(|filter| self.site.mask(filter, batch)).transpose()?;
            let rows = Rows {
                args: &args,
                mask: mask.as_ref(),
                ops: chunk.ops(),
                groups: &self.groups.ids,
                positions: &self.positions,
                touched: self.groups.touched.len(),
            };
            call.state.update(&rows).map_err(|error| self.site.named(error))?;
        }
        if self.groups.len() > before && self.bytes() > self.cache_bytes {
            // The changes so far are emitted before the epoch's end: readers only see their sum.
            self.flush_changes(false, out)?;
            self.tidy()?;
        }
        Ok(())
    }

    fn watermark(&mut self, watermark: EventTime, out: &mut Output) -> Result<()> {
        self.closed.advance(watermark.0);
        if self.window_end.is_some() { self.close(out) } else { Ok(()) }
    }

    fn epoch(&mut self, _epoch: Epoch, out: &mut Output) -> Result<()> {
        self.ensure_global()?;
        self.flush_changes(true, out)?;
        self.tidy()
    }

    fn snapshot(&mut self) -> Result<Vec<u8>> {
        self.settle()?;
        self.write_back()?;
        if self.emit == Emit::Changes {
            self.store.write_pending(&self.groups, &self.calls)?;
        }
        Ok(self.closed.encode())
    }

    fn restore(&mut self, states: &[Vec<u8>]) -> Result<()> {
        let (own, max_parallelism) = self.key_groups;
        self.closed = Closed::restore(states, own, max_parallelism).ok_or_else(|| RuntimeError::Internal {
            place: "aggregate state",
            reason: format!("one of {} states cannot be read", states.len()),
        })?;
        self.complete = false;
        if self.window_end.is_some() {
            self.next_stored_end = self.store.due(i64::MIN)?.1;
        }
        if let Some(Pending { keys, emitted, remembered }) = self.store.read_pending()? {
            let columns = self.groups.decode(&keys)?;
            self.assign(&columns, keys.len())?;
            for place in 0..keys.len() {
                let group = self.groups.ids[place];
                self.groups.touch_group(group);
            }
            self.groups.was_emitted = emitted;
            for (call, columns) in self.calls.iter_mut().zip(&remembered) {
                call.state.import_remembered(columns)?;
            }
        }
        Ok(())
    }
}
