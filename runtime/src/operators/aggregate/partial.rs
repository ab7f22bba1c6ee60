//! Any other aggregate of DataFusion's over rows that are never retracted.
//!
//! DataFusion's accumulators give their state away when asked for it, so a group's state lives here as encoded bytes.
//! An epoch's rows gather in one accumulator over the touched groups; at its end the stored states are merged with
//! what gathered, and written back.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, BooleanArray};
use arrow::compute::filter;
use arrow::datatypes::{DataType, Field};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::GroupsAccumulatorAdapter;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use weir_storage::RowCodec;

use super::call::{Kernel, Rows, column, state_column};
use super::keys::KeyArena;
use crate::error::Result;

/// Merges partial states.
pub(super) struct Partial {
    function: Arc<AggregateFunctionExpr>,
    codec: RowCodec,
    /// The encoded state of no rows.
    empty: Arc<[u8]>,
    /// What gathered since the last settling.
    gathered: Option<Gathered>,
}

/// An accumulator over the epoch's touched groups, by their place.
struct Gathered {
    accumulator: Box<dyn GroupsAccumulator>,
    /// Which of them it has rows of. What it says of the others is not to be relied on: DataFusion's accumulators take
    /// it that every group has a row.
    seen: Vec<bool>,
}

impl Partial {
    pub(super) fn new(function: Arc<AggregateFunctionExpr>) -> Result<Self> {
        let types: Vec<DataType> = function.state_fields()?.iter().map(|field| field.data_type().clone()).collect();
        let codec = RowCodec::new(&types)?;
        let state = function.create_accumulator()?.state()?;
        let state = state.iter().map(|value| Ok(value.to_array()?)).collect::<Result<Vec<_>>>()?;
        let empty = codec.encode_rows(&state, 1)?.row(0).into();
        Ok(Self { function, codec, empty, gathered: None })
    }

    fn accumulator(&self) -> Result<Box<dyn GroupsAccumulator>> {
        if self.function.groups_accumulator_supported() {
            return Ok(self.function.create_groups_accumulator()?);
        }
        let function = Arc::clone(&self.function);
        Ok(Box::new(GroupsAccumulatorAdapter::new(move || function.create_accumulator())))
    }

    /// An accumulator that holds `states`, one group each; there must be one.
    fn load<'a>(
        &self,
        states: impl ExactSizeIterator<Item = &'a Option<Arc<[u8]>>>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let places: Vec<usize> = (0..states.len()).collect();
        let columns = self.codec.decode(states.map(|state| state.as_deref().unwrap_or(&self.empty)))?;
        let mut accumulator = self.accumulator()?;
        accumulator.merge_batch(&columns, &places, places.len())?;
        Ok(accumulator)
    }
}

impl Kernel for Partial {
    type State = Option<Arc<[u8]>>;

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("state", DataType::Binary, true)]
    }

    fn update(&mut self, _states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        let mut gathered = match self.gathered.take() {
            Some(gathered) => gathered,
            None => Gathered { accumulator: self.accumulator()?, seen: Vec::new() },
        };
        gathered.accumulator.update_batch(rows.args, rows.positions, rows.mask, rows.touched)?;
        gathered.seen.resize(rows.touched, false);
        rows.positions.iter().for_each(|place| gathered.seen[*place] = true);
        self.gathered = Some(gathered);
        Ok(())
    }

    fn settle(&mut self, states: &mut [Self::State], touched: &[usize], _keys: &KeyArena) -> Result<()> {
        let Some(mut gathered) = self.gathered.take() else { return Ok(()) };
        let mut partial = gathered.accumulator.state(EmitTo::All)?;
        let places: Vec<usize> = (0..gathered.seen.len()).filter(|place| gathered.seen[*place]).collect();
        if places.len() < gathered.seen.len() {
            let seen = BooleanArray::from(gathered.seen);
            partial = partial.iter().map(|column| Ok(filter(column, &seen)?)).collect::<Result<_>>()?;
        }
        let groups: Vec<usize> = places.iter().map(|place| touched[*place]).collect();
        let mut whole = self.load(groups.iter().map(|group| &states[*group]))?;
        let places: Vec<usize> = (0..groups.len()).collect();
        whole.merge_batch(&partial, &places, groups.len())?;
        let rows = self.codec.encode_rows(&whole.state(EmitTo::All)?, groups.len())?;
        for (group, row) in groups.iter().zip(rows.iter()) {
            states[*group] = Some(row.into());
        }
        Ok(())
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef> {
        if states.len() == 0 {
            return Ok(arrow::array::new_empty_array(self.function.field().data_type()));
        }
        Ok(self.load(states)?.evaluate(EmitTo::All)?)
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>> {
        Ok(vec![column(BinaryArray::from_iter(states.map(Option::as_deref)))])
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        Ok(state_column::<BinaryArray>(columns, 0)?.iter().map(|state| state.map(Into::into)).collect())
    }

    fn heap(&self, state: &Self::State) -> usize {
        state.as_ref().map_or(0, |bytes| bytes.len() + 32)
    }
}
