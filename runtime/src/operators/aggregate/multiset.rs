//! Aggregates that must be able to forget a row, or that look at each distinct value once: the values of a group are
//! kept in a table, each with how often it is there.
//!
//! Key of the table: the group's encoded key followed by the encoded value (arguments, then ordering expressions).
//! Both are self-delimiting, so a group's values are one prefix, in order of value.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt32Array};
use arrow::compute::{SortColumn, lexsort_to_indices, take};
use arrow::datatypes::{DataType, Field};
use arrow::row::SortField;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::scalar::ScalarValue;
use hashbrown::HashMap;
use weir_storage::{KeyEncoder, KeyGroup, StateTable};

use super::call::{Kernel, Rows, column, state_column};
use super::extreme::End;
use super::keys::KeyArena;
use crate::error::{Result, RuntimeError};
use crate::operators::TableChange;

/// A value of a group whose count changed: what it was and what it is.
struct Change {
    group: usize,
    value: Box<[u8]>,
    before: i64,
    after: i64,
}

/// The values of all groups.
pub(super) struct Values {
    table: StateTable,
    encoder: KeyEncoder,
    /// Changes of counts since the last settling.
    gathered: HashMap<(usize, Box<[u8]>), i64>,
}

impl Values {
    /// Values of these types and orders.
    pub(super) fn new(table: StateTable, fields: Vec<SortField>) -> Result<Self> {
        Ok(Self { table, encoder: KeyEncoder::sorted(fields, 1)?, gathered: HashMap::new() })
    }

    fn gather(&mut self, rows: &Rows<'_>, skip_null: bool) -> Result<()> {
        let encoded = self.encoder.encode(rows.args)?;
        let argument = rows.args.first().filter(|_| skip_null).map(AsRef::as_ref);
        let gathered = &mut self.gathered;
        rows.each(argument, |row, group, weight| {
            *gathered.entry((group, encoded.key(row).into())).or_default() += weight;
        });
        Ok(())
    }

    /// Brings the table up to date and returns what changed, by group.
    fn apply(&mut self, keys: &KeyArena) -> Result<Vec<Change>> {
        let mut changes: Vec<Change> = self
            .gathered
            .drain()
            .filter(|(_, delta)| *delta != 0)
            .map(|((group, value), delta)| Change { group, value, before: 0, after: delta })
            .collect();
        changes.sort_unstable_by(|a, b| (a.group, &a.value).cmp(&(b.group, &b.value)));
        let places: Vec<(KeyGroup, Vec<u8>)> = changes
            .iter()
            .map(|change| {
                let (group, key) = keys.place(change.group);
                (group, [key, &change.value].concat())
            })
            .collect();
        let wanted: Vec<(KeyGroup, &[u8])> = places.iter().map(|(group, key)| (*group, key.as_slice())).collect();
        for (change, stored) in changes.iter_mut().zip(self.table.get_many(&wanted)?) {
            change.before = stored.as_deref().map(count).transpose()?.unwrap_or(0);
            change.after += change.before;
        }
        let counts: Vec<[u8; 8]> = changes.iter().map(|change| change.after.to_be_bytes()).collect();
        let writes: Vec<TableChange<'_>> = wanted
            .iter()
            .zip(changes.iter().zip(&counts))
            .map(|((group, key), (change, count))| (*group, *key, (change.after != 0).then_some(&count[..])))
            .collect();
        self.table.write(&writes)?;
        Ok(changes)
    }

    /// Visits the values of a group that are there, in order.
    fn visit(&self, group: usize, keys: &KeyArena, mut each: impl FnMut(&[u8], i64) -> ControlFlow<()>) -> Result<()> {
        let (key_group, key) = keys.place(group);
        let mut damaged = None;
        self.table.scan_prefix(key_group, key, &mut |entry, stored| match count(stored) {
            Ok(count) if count > 0 => each(&entry[key.len()..], count),
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                damaged = Some(error);
                ControlFlow::Break(())
            }
        })?;
        damaged.map_or(Ok(()), Err)
    }

    fn delete(&mut self, groups: &[usize], keys: &KeyArena) -> Result<()> {
        for group in groups {
            let (key_group, key) = keys.place(*group);
            let mut gone: Vec<Vec<u8>> = Vec::new();
            self.table.scan_prefix(key_group, key, &mut |entry, _| {
                gone.push(entry.to_vec());
                ControlFlow::Continue(())
            })?;
            let writes: Vec<_> = gone.iter().map(|entry| (key_group, entry.as_slice(), None)).collect();
            self.table.write(&writes)?;
        }
        Ok(())
    }

    fn decode<'a>(&self, values: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        Ok(self.encoder.decode(values)?)
    }
}

fn count(stored: &[u8]) -> Result<i64> {
    stored.try_into().map(i64::from_be_bytes).map_err(|_| RuntimeError::Internal {
        place: "aggregate values",
        reason: format!("a count of {} bytes", stored.len()),
    })
}

/// `count(DISTINCT x)`: how many values are there at all.
pub(super) struct CountDistinct {
    values: Values,
}

impl CountDistinct {
    pub(super) fn new(values: Values) -> Self {
        Self { values }
    }
}

impl Kernel for CountDistinct {
    type State = i64;

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("count", DataType::Int64, false)]
    }

    fn update(&mut self, _states: &mut [i64], rows: &Rows<'_>) -> Result<()> {
        self.values.gather(rows, true)
    }

    fn settle(&mut self, states: &mut [i64], _touched: &[usize], keys: &KeyArena) -> Result<()> {
        for change in self.values.apply(keys)? {
            states[change.group] += i64::from(change.after > 0) - i64::from(change.before > 0);
        }
        Ok(())
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a i64>) -> Result<ArrayRef> {
        Ok(column(Int64Array::from_iter_values(states.copied())))
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a i64>) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.results(states)?])
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<i64>> {
        Ok(state_column::<Int64Array>(columns, 0)?.values().to_vec())
    }

    fn delete(&mut self, groups: &[usize], keys: &KeyArena) -> Result<()> {
        self.values.delete(groups, keys)
    }
}

/// `min(x)` and `max(x)` of rows that may be retracted: the first of the group's values, which for `max` are in
/// descending order.
pub(super) struct First {
    values: Values,
    data_type: DataType,
}

impl First {
    /// The order of the values that puts the wanted one first, nulls last.
    pub(super) fn order(end: End, data_type: &DataType) -> SortField {
        let options = arrow::compute::SortOptions { descending: end == End::Max, nulls_first: false };
        SortField::new_with_options(data_type.clone(), options)
    }

    /// `values` must be ordered by [`First::order`].
    pub(super) fn new(values: Values, data_type: DataType) -> Self {
        Self { values, data_type }
    }
}

impl Kernel for First {
    /// The value, encoded.
    type State = Option<Arc<[u8]>>;

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("value", self.data_type.clone(), true)]
    }

    fn update(&mut self, _states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        self.values.gather(rows, true)
    }

    fn settle(&mut self, states: &mut [Self::State], _touched: &[usize], keys: &KeyArena) -> Result<()> {
        let changes = self.values.apply(keys)?;
        for group in changes.chunk_by(|a, b| a.group == b.group) {
            let state = &mut states[group[0].group];
            let lost = group.iter().any(|change| change.after <= 0 && state.as_deref() == Some(&change.value));
            if lost {
                *state = None;
                self.values.visit(group[0].group, keys, |value, _| {
                    *state = Some(value.into());
                    ControlFlow::Break(())
                })?;
            } else if let Some(best) = group.iter().find(|change| change.after > 0)
                && state.as_deref().is_none_or(|held| *best.value < *held)
            {
                // Changes are in order of value: the first that is there is the best of them.
                *state = Some((*best.value).into());
            }
        }
        Ok(())
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef> {
        let mut held: Vec<&[u8]> = Vec::with_capacity(states.len());
        let mut places: Vec<Option<u32>> = Vec::with_capacity(states.len());
        for state in states {
            places.push(state.as_deref().map(|value| {
                held.push(value);
                held.len() as u32 - 1
            }));
        }
        if held.is_empty() {
            return Ok(arrow::array::new_null_array(&self.data_type, places.len()));
        }
        let values = self.values.decode(held.into_iter())?;
        let Some(values) = values.first() else {
            return Err(RuntimeError::Internal { place: "min/max state", reason: "a value without a column".into() });
        };
        Ok(take(values, &UInt32Array::from(places), None)?)
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.results(states)?])
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        let Some(values) = columns.first() else { return Ok(Vec::new()) };
        let encoded = self.values.encoder.encode(columns)?;
        Ok(encoded.iter().enumerate().map(|(i, value)| values.is_valid(i).then(|| value.into())).collect())
    }

    fn delete(&mut self, groups: &[usize], keys: &KeyArena) -> Result<()> {
        self.values.delete(groups, keys)
    }

    fn heap(&self, state: &Self::State) -> usize {
        state.as_ref().map_or(0, |value| value.len() + 32)
    }
}

/// Any aggregate of DataFusion's, computed anew from all values of each touched group.
pub(super) struct Recompute {
    function: Arc<AggregateFunctionExpr>,
    values: Values,
    empty: ScalarValue,
}

impl Recompute {
    pub(super) fn new(function: Arc<AggregateFunctionExpr>, values: Values) -> Result<Self> {
        let empty = function.create_accumulator()?.evaluate()?;
        Ok(Self { function, values, empty })
    }

    fn compute(&self, group: usize, keys: &KeyArena) -> Result<ScalarValue> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut ends: Vec<usize> = Vec::new();
        let mut repeated: Vec<u32> = Vec::new();
        let distinct = self.function.is_distinct();
        self.values.visit(group, keys, |value, count| {
            let place = ends.len() as u32;
            bytes.extend_from_slice(value);
            ends.push(bytes.len());
            let count = if distinct { 1 } else { count };
            repeated.extend((0..count).map(|_| place));
            ControlFlow::Continue(())
        })?;
        if ends.is_empty() {
            return Ok(self.empty.clone());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let mut columns = self.values.decode(starts.zip(&ends).map(|(start, end)| &bytes[start..*end]))?;
        if repeated.len() > ends.len() {
            let repeated = UInt32Array::from(repeated);
            columns = columns.iter().map(|column| Ok(take(column, &repeated, None)?)).collect::<Result<_>>()?;
        }
        let columns = self.ordered(columns)?;
        let mut accumulator = self.function.create_accumulator()?;
        accumulator.update_batch(&columns)?;
        Ok(accumulator.evaluate()?)
    }

    /// The columns in the order that the call asks for (`array_agg(x ORDER BY y)`); accumulators want them sorted.
    fn ordered(&self, columns: Vec<ArrayRef>) -> Result<Vec<ArrayRef>> {
        let orders = self.function.order_bys();
        if orders.is_empty() {
            return Ok(columns);
        }
        let arguments = columns.len() - orders.len();
        let sort: Vec<SortColumn> = columns[arguments..]
            .iter()
            .zip(orders)
            .map(|(values, order)| SortColumn { values: Arc::clone(values), options: Some(order.options) })
            .collect();
        let indices = lexsort_to_indices(&sort, None)?;
        columns.iter().map(|column| Ok(take(column, &indices, None)?)).collect()
    }
}

impl Kernel for Recompute {
    /// The result; `None` is that of no values.
    type State = Option<ScalarValue>;

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::new("computed", DataType::Boolean, false),
            Field::new("result", self.function.field().data_type().clone(), true),
        ]
    }

    fn update(&mut self, _states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        self.values.gather(rows, false)
    }

    fn settle(&mut self, states: &mut [Self::State], _touched: &[usize], keys: &KeyArena) -> Result<()> {
        let changes = self.values.apply(keys)?;
        for group in changes.chunk_by(|a, b| a.group == b.group) {
            states[group[0].group] = Some(self.compute(group[0].group, keys)?);
        }
        Ok(())
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef> {
        if states.len() == 0 {
            return Ok(arrow::array::new_empty_array(self.function.field().data_type()));
        }
        Ok(ScalarValue::iter_to_array(states.map(|state| state.as_ref().unwrap_or(&self.empty).clone()))?)
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>> {
        let states: Vec<&Self::State> = states.collect();
        let computed: Vec<bool> = states.iter().map(|state| state.is_some()).collect();
        Ok(vec![column(arrow::array::BooleanArray::from(computed)), self.results(states.into_iter())?])
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        let [computed, results] = columns else {
            return Err(RuntimeError::Internal { place: "aggregate state", reason: "two columns expected".into() });
        };
        let computed = computed.as_boolean();
        (0..results.len())
            .map(|i| Ok(if computed.value(i) { Some(ScalarValue::try_from_array(results, i)?) } else { None }))
            .collect()
    }

    fn delete(&mut self, groups: &[usize], keys: &KeyArena) -> Result<()> {
        self.values.delete(groups, keys)
    }

    fn heap(&self, state: &Self::State) -> usize {
        state.as_ref().map_or(0, ScalarValue::size)
    }
}
