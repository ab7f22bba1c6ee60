//! One aggregate call: its state for every group in memory.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int8Array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::Field;

use super::keys::KeyArena;
use crate::error::Result;

/// What a call sees of a batch.
pub(super) struct Rows<'a> {
    /// The evaluated arguments (then ordering expressions, if the call wants them).
    pub(super) args: &'a [ArrayRef],
    /// `FILTER (WHERE …)`, without nulls.
    pub(super) mask: Option<&'a BooleanArray>,
    /// Weights; absent means all +1.
    pub(super) ops: Option<&'a Int8Array>,
    /// The group of each row.
    pub(super) groups: &'a [usize],
    /// The place of each row's group among the epoch's touched groups.
    pub(super) positions: &'a [usize],
    /// How many groups the epoch has touched.
    pub(super) touched: usize,
}

impl Rows<'_> {
    /// Calls `each(row, group, weight)` for the rows that pass the filter and whose argument is not null.
    #[inline]
    pub(super) fn each(&self, argument: Option<&dyn Array>, mut each: impl FnMut(usize, usize, i64)) {
        let chosen = self.chosen(argument);
        match (chosen, self.ops) {
            (None, None) => self.groups.iter().enumerate().for_each(|(row, group)| each(row, *group, 1)),
            (None, Some(ops)) => {
                for (row, (group, op)) in self.groups.iter().zip(ops.values()).enumerate() {
                    each(row, *group, i64::from(*op));
                }
            }
            (Some(chosen), ops) => {
                for row in chosen.set_indices() {
                    each(row, self.groups[row], ops.map_or(1, |ops| i64::from(ops.value(row))));
                }
            }
        }
    }

    /// The rows that pass the filter and whose argument is not null; `None` means all.
    fn chosen(&self, argument: Option<&dyn Array>) -> Option<BooleanBuffer> {
        let valid = argument.and_then(Array::logical_nulls).filter(|nulls| nulls.null_count() > 0);
        match (valid, self.mask) {
            (None, None) => None,
            (Some(valid), None) => Some(valid.inner().clone()),
            (None, Some(mask)) => Some(mask.values().clone()),
            (Some(valid), Some(mask)) => Some(valid.inner() & mask.values()),
        }
    }
}

/// The state of one call over all groups in memory. Groups are numbered without gaps.
///
/// ```text
///   remember ──► update* ──► settle ──► results, remembered ──► forget
///   (at the first touch      (what was only gathered     (the difference between the
///    of an epoch)             becomes state)              two is what is emitted)
/// ```
pub(super) trait CallState: Send {
    /// Columns of the state of a group.
    fn fields(&self) -> Vec<Field>;
    /// Make room for `groups` groups; new ones are empty.
    fn resize(&mut self, groups: usize);
    /// Take in a batch.
    fn update(&mut self, rows: &Rows<'_>) -> Result<()>;
    /// Keep a copy of the state of `groups`, which the epoch is about to touch for the first time.
    fn remember(&mut self, groups: &[usize]);
    /// Make gathered changes part of the state; `touched` are all groups remembered since [`CallState::forget`].
    fn settle(&mut self, touched: &[usize], keys: &KeyArena) -> Result<()>;
    /// An epoch ends, and with it any state that only lasts within one: a retraction that came before its insertion.
    fn end_epoch(&mut self, touched: &[usize]);
    /// Results of `groups`.
    fn results(&self, groups: &[usize]) -> Result<ArrayRef>;
    /// Results of the remembered states, in the order in which they were remembered.
    fn remembered(&self) -> Result<ArrayRef>;
    /// The epoch is over.
    fn forget(&mut self);
    /// State of `groups` as columns.
    fn export(&self, groups: &[usize]) -> Result<Vec<ArrayRef>>;
    /// Set the state of `groups`.
    fn import(&mut self, groups: &[usize], columns: &[ArrayRef]) -> Result<()>;
    /// The remembered states as columns.
    fn export_remembered(&self) -> Result<Vec<ArrayRef>>;
    /// Add remembered states, those of groups touched before a restart.
    fn import_remembered(&mut self, columns: &[ArrayRef]) -> Result<()>;
    /// Back to the empty state.
    fn clear(&mut self, groups: &[usize]);
    /// Delete what the call keeps in tables of its own for `groups`, which are gone.
    fn delete(&mut self, groups: &[usize], keys: &KeyArena) -> Result<()>;
    /// Keep only these groups, which get the numbers 0, 1, … in this order. Nothing is remembered.
    fn retain(&mut self, groups: &[usize]);
    /// Memory held, roughly.
    fn bytes(&self) -> usize;
}

/// How one kind of aggregate works on the states that [`Cells`] holds.
pub(super) trait Kernel: Send {
    /// State of one group; the default is that of no rows.
    type State: Default + Clone + Send;

    fn fields(&self) -> Vec<Field>;
    fn update(&mut self, states: &mut [Self::State], rows: &Rows<'_>) -> Result<()>;
    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef>
    where
        Self::State: 'a;
    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>>
    where
        Self::State: 'a;
    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>>;
    fn settle(&mut self, states: &mut [Self::State], touched: &[usize], keys: &KeyArena) -> Result<()> {
        let _ = (states, touched, keys);
        Ok(())
    }
    fn end_epoch(&mut self, states: &mut [Self::State], touched: &[usize]) {
        let _ = (states, touched);
    }
    fn delete(&mut self, groups: &[usize], keys: &KeyArena) -> Result<()> {
        let _ = (groups, keys);
        Ok(())
    }
    /// Bytes outside of the state's own size.
    fn heap(&self, state: &Self::State) -> usize {
        let _ = state;
        0
    }
}

/// States of all groups, and of the touched ones as they were when last emitted.
pub(super) struct Cells<K: Kernel> {
    kernel: K,
    states: Vec<K::State>,
    remembered: Vec<K::State>,
    /// Bytes of the states' heap, counted when states are set and estimated in between.
    heap: usize,
}

impl<K: Kernel> Cells<K> {
    pub(super) fn new(kernel: K) -> Self {
        Self { kernel, states: Vec::new(), remembered: Vec::new(), heap: 0 }
    }

    fn count_heap(&mut self, groups: &[usize]) {
        self.heap += groups.iter().map(|group| self.kernel.heap(&self.states[*group])).sum::<usize>();
    }
}

impl<K: Kernel> CallState for Cells<K> {
    fn fields(&self) -> Vec<Field> {
        self.kernel.fields()
    }

    fn resize(&mut self, groups: usize) {
        self.states.resize_with(groups, K::State::default);
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<()> {
        self.kernel.update(&mut self.states, rows)
    }

    fn remember(&mut self, groups: &[usize]) {
        let states = &self.states;
        self.remembered.extend(groups.iter().map(|group| states[*group].clone()));
    }

    fn settle(&mut self, touched: &[usize], keys: &KeyArena) -> Result<()> {
        self.kernel.settle(&mut self.states, touched, keys)
    }

    fn end_epoch(&mut self, touched: &[usize]) {
        self.kernel.end_epoch(&mut self.states, touched);
    }

    fn results(&self, groups: &[usize]) -> Result<ArrayRef> {
        self.kernel.results(groups.iter().map(|group| &self.states[*group]))
    }

    fn remembered(&self) -> Result<ArrayRef> {
        self.kernel.results(self.remembered.iter())
    }

    fn forget(&mut self) {
        // States that have grown since are counted again at their next rebuild.
        self.remembered.clear();
    }

    fn export(&self, groups: &[usize]) -> Result<Vec<ArrayRef>> {
        self.kernel.export(groups.iter().map(|group| &self.states[*group]))
    }

    fn import(&mut self, groups: &[usize], columns: &[ArrayRef]) -> Result<()> {
        let states = self.kernel.import(columns)?;
        for (group, state) in groups.iter().zip(states) {
            self.states[*group] = state;
        }
        self.count_heap(groups);
        Ok(())
    }

    fn export_remembered(&self) -> Result<Vec<ArrayRef>> {
        self.kernel.export(self.remembered.iter())
    }

    fn import_remembered(&mut self, columns: &[ArrayRef]) -> Result<()> {
        self.remembered.extend(self.kernel.import(columns)?);
        Ok(())
    }

    fn clear(&mut self, groups: &[usize]) {
        for group in groups {
            self.heap = self.heap.saturating_sub(self.kernel.heap(&self.states[*group]));
            self.states[*group] = K::State::default();
        }
    }

    fn delete(&mut self, groups: &[usize], keys: &KeyArena) -> Result<()> {
        self.kernel.delete(groups, keys)
    }

    fn retain(&mut self, groups: &[usize]) {
        self.states = groups.iter().map(|group| std::mem::take(&mut self.states[*group])).collect();
        self.heap = self.states.iter().map(|state| self.kernel.heap(state)).sum();
    }

    fn bytes(&self) -> usize {
        (self.states.len() + self.remembered.len()) * size_of::<K::State>() + self.heap
    }
}

/// A boxed [`CallState`] of `kernel`.
pub(super) fn cells<K: Kernel + 'static>(kernel: K) -> Box<dyn CallState> {
    Box::new(Cells::new(kernel))
}

/// The column of a state's fields that an import expects, checked.
pub(super) fn state_column<A: Array + 'static>(columns: &[ArrayRef], index: usize) -> Result<&A> {
    columns.get(index).and_then(|column| column.as_any().downcast_ref::<A>()).ok_or_else(|| {
        crate::error::RuntimeError::Internal {
            place: "aggregate state",
            reason: format!("column {index} of the stored state is not of the expected type"),
        }
    })
}

/// Shorthand for a column.
pub(super) fn column<A: Array + 'static>(array: A) -> ArrayRef {
    Arc::new(array)
}
