//! Which group a row belongs to: DataFusion's vectorised index over the groups in memory, with what is known of each.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;
use weir_storage::{KeyEncoder, KeyGroup};

use super::keys::KeyArena;
use crate::error::{Result, RuntimeError};
use crate::keys::normalised;

/// No place among the touched groups.
const UNTOUCHED: u32 = u32::MAX;

/// What is known of a group besides its key and its calls' state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// Rows in it: insertions less retractions.
    pub(super) weight: i64,
    /// Place among the touched groups of the epoch.
    position: u32,
    /// Whether readers downstream have its row.
    pub(super) emitted: bool,
    /// Whether its state differs from what the table holds.
    pub(super) unwritten: bool,
    /// Whether the table holds a row of it.
    pub(super) stored: bool,
}

impl Group {
    const NEW: Group = Group { weight: 0, position: UNTOUCHED, emitted: false, unwritten: false, stored: false };

    /// Whether the current epoch has touched it. A weight of 0 is then not final.
    pub(super) fn is_touched(&self) -> bool {
        self.position != UNTOUCHED
    }
}

/// The groups in memory, numbered without gaps.
pub(super) struct Groups {
    /// `None` when grouping by nothing: there is one group, 0.
    index: Option<Box<dyn GroupValues>>,
    schema: SchemaRef,
    encoder: KeyEncoder,
    pub(super) keys: KeyArena,
    pub(super) known: Vec<Group>,
    /// Group of each row of the current batch.
    pub(super) ids: Vec<usize>,
    /// Groups touched in the current epoch, in order of their first touch.
    pub(super) touched: Vec<usize>,
    /// Whether the touched group's row had been emitted before the epoch.
    pub(super) was_emitted: Vec<bool>,
}

impl Groups {
    pub(super) fn new(types: &[DataType], max_parallelism: u16) -> Result<Self> {
        let fields: Vec<Field> = types
            .iter()
            .enumerate()
            .map(|(i, data_type)| Field::new(format!("{i}"), data_type.clone(), true))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        Ok(Self {
            index: Self::index(&schema)?,
            schema,
            encoder: KeyEncoder::new(types, max_parallelism)?,
            keys: KeyArena::new(max_parallelism),
            known: Vec::new(),
            ids: Vec::new(),
            touched: Vec::new(),
            was_emitted: Vec::new(),
        })
    }

    fn index(schema: &SchemaRef) -> Result<Option<Box<dyn GroupValues>>> {
        if schema.fields().is_empty() {
            return Ok(None);
        }
        Ok(Some(new_group_values(Arc::clone(schema), &GroupOrdering::None)?))
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Finds the group of each of `rows` rows, numbering new ones: fills `ids`. Returns the new groups, and for each
    /// the row that it came with.
    pub(super) fn assign(&mut self, columns: &[ArrayRef], rows: usize) -> Result<(Range<usize>, UInt32Array)> {
        let before = self.known.len();
        let nothing = (before..before, UInt32Array::from(Vec::<u32>::new()));
        if rows == 0 {
            self.ids.clear();
            return Ok(nothing);
        }
        let after = match &mut self.index {
            None => {
                self.ids.clear();
                self.ids.resize(rows, 0);
                1
            }
            Some(index) => {
                index.intern(columns, &mut self.ids)?;
                index.len()
            }
        };
        if after == before {
            return Ok(nothing);
        }
        let mut first = vec![u32::MAX; after - before];
        for (row, group) in self.ids.iter().enumerate() {
            if *group >= before && first[group - before] == u32::MAX {
                first[group - before] = row as u32;
            }
        }
        let first = UInt32Array::from(first);
        let columns =
            columns.iter().map(|column| Ok(normalised(&take(column, &first, None)?))).collect::<Result<Vec<_>>>()?;
        let encoded = self.encoder.encode_rows(&columns, after - before)?;
        for key in encoded.iter() {
            self.keys.push(key);
        }
        self.known.resize(after, Group::NEW);
        Ok((before..after, first))
    }

    /// The key group of each of `rows` rows with these keys.
    pub(super) fn key_groups(&self, columns: &[ArrayRef], rows: usize) -> Result<Vec<KeyGroup>> {
        let columns: Vec<ArrayRef> = columns.iter().map(normalised).collect();
        let keys = self.encoder.encode_rows(&columns, rows)?;
        Ok((0..rows).map(|row| keys.group(row)).collect())
    }

    /// Notes that the rows of the current batch change their groups: weights, touched groups, and (if wanted) the
    /// place of each row's group among the touched. Returns how many groups had been touched before.
    pub(super) fn touch(&mut self, weights: Option<&[i8]>, positions: Option<&mut Vec<usize>>) -> usize {
        let before = self.touched.len();
        let mut touch = |group: usize, weight: i64| {
            let known = &mut self.known[group];
            known.weight += weight;
            if known.position == UNTOUCHED {
                known.position = self.touched.len() as u32;
                known.unwritten = true;
                self.touched.push(group);
                self.was_emitted.push(known.emitted);
            }
        };
        match weights {
            None => self.ids.iter().for_each(|group| touch(*group, 1)),
            Some(weights) => {
                self.ids.iter().zip(weights).for_each(|(group, weight)| touch(*group, i64::from(*weight)));
            }
        }
        if let Some(positions) = positions {
            positions.clear();
            positions.extend(self.ids.iter().map(|group| self.known[*group].position as usize));
        }
        before
    }

    /// Touches one group without a row. Its state must be remembered, too, if this returns true.
    pub(super) fn touch_group(&mut self, group: usize) -> bool {
        let known = &mut self.known[group];
        if known.position != UNTOUCHED {
            return false;
        }
        known.position = self.touched.len() as u32;
        known.unwritten = true;
        self.touched.push(group);
        self.was_emitted.push(known.emitted);
        true
    }

    /// The table has the group's state. One touched in this epoch will have to be written again.
    pub(super) fn settle_written(&mut self, group: usize) {
        let known = &mut self.known[group];
        known.unwritten = known.is_touched();
    }

    /// The epoch is over: nothing is touched.
    pub(super) fn forget(&mut self) {
        for group in &self.touched {
            self.known[*group].position = UNTOUCHED;
        }
        self.touched.clear();
        self.was_emitted.clear();
    }

    /// The key columns of `groups`.
    pub(super) fn columns(&self, groups: &[usize]) -> Result<Vec<ArrayRef>> {
        Ok(self.encoder.decode(groups.iter().map(|group| self.keys.key(*group)))?)
    }

    /// Columns of encoded keys.
    pub(super) fn decode(&self, keys: &[Box<[u8]>]) -> Result<Vec<ArrayRef>> {
        Ok(self.encoder.decode(keys.iter().map(AsRef::as_ref))?)
    }

    /// Keep only `groups`, which get the numbers 0, 1, … in this order. Touched ones must be among them.
    pub(super) fn retain(&mut self, groups: &[usize]) -> Result<()> {
        let columns = self.columns(groups)?;
        self.index = Self::index(&self.schema)?;
        if let Some(index) = &mut self.index
            && !groups.is_empty()
        {
            index.intern(&columns, &mut self.ids)?;
            // Distinct keys that are interned at once may be numbered in another order where their hashes collide.
            if self.ids.iter().enumerate().any(|(place, id)| place != *id) {
                self.index = Self::index(&self.schema)?;
                self.intern_one_by_one(&columns, groups.len())?;
            }
        }
        self.keys.retain(groups);
        self.known = groups.iter().map(|group| self.known[*group]).collect();
        for (group, known) in self.known.iter().enumerate() {
            if known.is_touched() {
                self.touched[known.position as usize] = group;
            }
        }
        Ok(())
    }

    fn intern_one_by_one(&mut self, columns: &[ArrayRef], rows: usize) -> Result<()> {
        let Some(index) = &mut self.index else { return Ok(()) };
        for row in 0..rows {
            let columns: Vec<ArrayRef> = columns.iter().map(|column| column.slice(row, 1)).collect();
            index.intern(&columns, &mut self.ids)?;
            if self.ids.first() != Some(&row) {
                return Err(RuntimeError::Internal { place: "group index", reason: "a key is there twice".to_owned() });
            }
        }
        Ok(())
    }

    /// Memory held, roughly.
    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes()
            + self.known.capacity() * size_of::<Group>()
            + self.touched.capacity() * size_of::<usize>()
            + self.index.as_ref().map_or(0, |index| index.size())
    }
}
