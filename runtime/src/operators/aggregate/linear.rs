//! Aggregates whose state adds up: `count`, `sum`, `avg`. A retraction is a subtraction.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, Decimal128Array, Float64Array, Int64Array, PrimitiveArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Decimal256Type, Field, Float64Type, i256};
use datafusion::error::DataFusionError;
use datafusion::physical_expr::aggregate::utils::DecimalAverager;

use super::call::{Kernel, Rows, column, state_column};
use crate::error::{Result, RuntimeError};

/// `count(x)`, and `count(*)` when it has no argument.
pub(super) struct Count;

impl Kernel for Count {
    type State = i64;

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("count", DataType::Int64, false)]
    }

    fn update(&mut self, states: &mut [i64], rows: &Rows<'_>) -> Result<()> {
        rows.each(rows.args.first().map(AsRef::as_ref), |_, group, weight| states[group] += weight);
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
}

/// A sum with the number of values in it: when none is left the sum is null again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SumState<N> {
    sum: N,
    count: i64,
}

impl<N: ArrowNativeTypeOp> SumState<N> {
    #[inline]
    fn add(&mut self, value: N, weight: i64) {
        self.count += weight;
        // Overflow wraps, as in DataFusion.
        self.sum = if weight > 0 { self.sum.add_wrapping(value) } else { self.sum.sub_wrapping(value) };
    }
}

/// Sets sums of no values to 0, so that no rounding error of a floating-point sum outlives its values. Only at an
/// epoch's end: before, the count may be 0 because a retraction came before its insertion.
fn drop_rounding_errors<N: ArrowNativeTypeOp>(states: &mut [SumState<N>], groups: &[usize]) {
    for group in groups {
        if states[*group].count == 0 {
            states[*group].sum = N::ZERO;
        }
    }
}

fn export_sums<'a, T: ArrowPrimitiveType>(
    states: impl ExactSizeIterator<Item = &'a SumState<T::Native>>,
    data_type: &DataType,
) -> Vec<ArrayRef>
where
    T::Native: ArrowNativeTypeOp,
{
    let (sums, counts): (Vec<_>, Vec<_>) = states.map(|state| (state.sum, state.count)).unzip();
    let sums = PrimitiveArray::<T>::new(sums.into(), None).with_data_type(data_type.clone());
    vec![column(sums), column(Int64Array::from(counts))]
}

fn import_sums<T: ArrowPrimitiveType>(columns: &[ArrayRef]) -> Result<Vec<SumState<T::Native>>> {
    let sums = state_column::<PrimitiveArray<T>>(columns, 0)?;
    let counts = state_column::<Int64Array>(columns, 1)?;
    Ok(sums.values().iter().zip(counts.values()).map(|(sum, count)| SumState { sum: *sum, count: *count }).collect())
}

fn sum_fields(data_type: &DataType) -> Vec<Field> {
    vec![Field::new("sum", data_type.clone(), false), Field::new("count", DataType::Int64, false)]
}

/// The argument as an array of `T`.
fn argument<'a, T: ArrowPrimitiveType>(rows: &Rows<'a>) -> Result<&'a PrimitiveArray<T>> {
    rows.args.first().and_then(|array| array.as_primitive_opt::<T>()).ok_or_else(|| RuntimeError::Internal {
        place: "aggregate argument",
        reason: format!("expected one argument of type {}", T::DATA_TYPE),
    })
}

/// `sum(x)`.
pub(super) struct Sum<T> {
    data_type: DataType,
    value: std::marker::PhantomData<fn() -> T>,
}

impl<T> Sum<T> {
    /// `data_type` is that of the result.
    pub(super) fn new(data_type: DataType) -> Self {
        Self { data_type, value: std::marker::PhantomData }
    }
}

impl<T: ArrowPrimitiveType> Kernel for Sum<T>
where
    T::Native: ArrowNativeTypeOp,
{
    type State = SumState<T::Native>;

    fn fields(&self) -> Vec<Field> {
        sum_fields(&self.data_type)
    }

    fn update(&mut self, states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        let array = argument::<T>(rows)?;
        let values = array.values();
        rows.each(Some(array), |row, group, weight| states[group].add(values[row], weight));
        Ok(())
    }

    fn end_epoch(&mut self, states: &mut [Self::State], touched: &[usize]) {
        drop_rounding_errors(states, touched);
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef>
    where
        Self::State: 'a,
    {
        let (sums, valid): (Vec<_>, Vec<_>) = states.map(|state| (state.sum, state.count != 0)).unzip();
        let array = PrimitiveArray::<T>::new(sums.into(), nulls(valid));
        Ok(column(array.with_data_type(self.data_type.clone())))
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>>
    where
        Self::State: 'a,
    {
        Ok(export_sums::<T>(states, &self.data_type))
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        import_sums::<T>(columns)
    }
}

fn nulls(valid: Vec<bool>) -> Option<NullBuffer> {
    Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0)
}

/// `avg(x)` of floating-point numbers (DataFusion coerces integers to them).
pub(super) struct FloatAverage;

impl Kernel for FloatAverage {
    type State = SumState<f64>;

    fn fields(&self) -> Vec<Field> {
        sum_fields(&DataType::Float64)
    }

    fn update(&mut self, states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        let array = argument::<Float64Type>(rows)?;
        let values = array.values();
        rows.each(Some(array), |row, group, weight| states[group].add(values[row], weight));
        Ok(())
    }

    fn end_epoch(&mut self, states: &mut [Self::State], touched: &[usize]) {
        drop_rounding_errors(states, touched);
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef> {
        Ok(column(Float64Array::from_iter(
            states.map(|state| (state.count != 0).then(|| state.sum / state.count as f64)),
        )))
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>> {
        Ok(export_sums::<Float64Type>(states, &DataType::Float64))
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        import_sums::<Float64Type>(columns)
    }
}

/// `avg(x)` of decimals. The sum is kept in 256 bits, so that it cannot overflow before the average does.
pub(super) struct DecimalAverage {
    sum_type: DataType,
    result_type: DataType,
    averager: DecimalAverager<Decimal256Type>,
}

impl DecimalAverage {
    /// The average of `Decimal128(_, scale)` as `result_type`, a `Decimal128`.
    pub(super) fn new(scale: i8, result_type: DataType) -> Result<Self, DataFusionError> {
        let (precision, result_scale) = match result_type {
            DataType::Decimal128(precision, scale) => (precision, scale),
            _ => (DECIMAL128_MAX_PRECISION, scale),
        };
        let averager = DecimalAverager::try_new(scale, precision, result_scale)?;
        Ok(Self { sum_type: DataType::Decimal256(76, scale), result_type, averager })
    }
}

impl Kernel for DecimalAverage {
    type State = SumState<i256>;

    fn fields(&self) -> Vec<Field> {
        sum_fields(&self.sum_type)
    }

    fn update(&mut self, states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        let array = argument::<Decimal128Type>(rows)?;
        let values = array.values();
        rows.each(Some(array), |row, group, weight| states[group].add(i256::from_i128(values[row]), weight));
        Ok(())
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef> {
        let averages = states
            .map(|state| {
                if state.count == 0 {
                    return Ok(None);
                }
                let average = self.averager.avg(state.sum, i256::from_i128(i128::from(state.count)))?;
                average.to_i128().map(Some).ok_or_else(|| {
                    DataFusionError::Execution(format!("the average does not fit {}", self.result_type)).into()
                })
            })
            .collect::<Result<Vec<Option<i128>>>>()?;
        Ok(Arc::new(Decimal128Array::from(averages).with_data_type(self.result_type.clone())))
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>> {
        Ok(export_sums::<Decimal256Type>(states, &self.sum_type))
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        import_sums::<Decimal256Type>(columns)
    }
}
