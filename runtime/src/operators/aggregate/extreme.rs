//! `min` and `max` over rows that are never retracted: one value a group is enough.

use arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, BinaryArray, BooleanArray, GenericByteArray,
    PrimitiveArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{ByteArrayType, DataType, Field};

use super::call::{Kernel, Rows, column, state_column};
use crate::error::{Result, RuntimeError};

/// Which end is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// `min`
    Min,
    /// `max`
    Max,
}

fn wrong_argument(data_type: &DataType) -> RuntimeError {
    RuntimeError::Internal { place: "min/max argument", reason: format!("expected one argument of type {data_type}") }
}

/// `min(x)` and `max(x)` of fixed-width values. Floating-point numbers compare in total order (NaN is greatest).
pub(super) struct Extreme<T> {
    end: End,
    data_type: DataType,
    value: std::marker::PhantomData<fn() -> T>,
}

impl<T> Extreme<T> {
    pub(super) fn new(end: End, data_type: DataType) -> Self {
        Self { end, data_type, value: std::marker::PhantomData }
    }
}

impl<T: ArrowPrimitiveType> Kernel for Extreme<T>
where
    T::Native: ArrowNativeTypeOp,
{
    type State = Option<T::Native>;

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("value", self.data_type.clone(), true)]
    }

    fn update(&mut self, states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        let array = rows
            .args
            .first()
            .and_then(|array| array.as_primitive_opt::<T>())
            .ok_or_else(|| wrong_argument(&self.data_type))?;
        let values = array.values();
        match self.end {
            End::Min => rows.each(Some(array), |row, group, _| {
                let (state, value) = (&mut states[group], values[row]);
                if state.is_none_or(|least| value.is_lt(least)) {
                    *state = Some(value);
                }
            }),
            End::Max => rows.each(Some(array), |row, group, _| {
                let (state, value) = (&mut states[group], values[row]);
                if state.is_none_or(|greatest| value.is_gt(greatest)) {
                    *state = Some(value);
                }
            }),
        }
        Ok(())
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef>
    where
        Self::State: 'a,
    {
        let (values, valid): (Vec<_>, Vec<_>) =
            states.map(|state| (state.unwrap_or_default(), state.is_some())).unzip();
        let nulls = Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0);
        Ok(column(PrimitiveArray::<T>::new(values.into(), nulls).with_data_type(self.data_type.clone())))
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>>
    where
        Self::State: 'a,
    {
        Ok(vec![self.results(states)?])
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        Ok(state_column::<PrimitiveArray<T>>(columns, 0)?.iter().collect())
    }
}

/// `min(x)` and `max(x)` of text and bytes, compared byte by byte.
pub(super) struct BytesExtreme<T> {
    end: End,
    value: std::marker::PhantomData<fn() -> T>,
}

impl<T> BytesExtreme<T> {
    pub(super) fn new(end: End) -> Self {
        Self { end, value: std::marker::PhantomData }
    }
}

impl<T: ByteArrayType<Offset = i32>> Kernel for BytesExtreme<T> {
    type State = Option<Box<[u8]>>;

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("value", T::DATA_TYPE, true)]
    }

    fn update(&mut self, states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        let array = rows
            .args
            .first()
            .and_then(|array| array.as_any().downcast_ref::<GenericByteArray<T>>())
            .ok_or_else(|| wrong_argument(&T::DATA_TYPE))?;
        let end = self.end;
        rows.each(Some(array), |row, group, _| {
            let value: &[u8] = array.value(row).as_ref();
            let state = &mut states[group];
            let better = match (&state, end) {
                (None, _) => true,
                (Some(held), End::Min) => value < held.as_ref(),
                (Some(held), End::Max) => value > held.as_ref(),
            };
            if better {
                *state = Some(value.into());
            }
        });
        Ok(())
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef> {
        let bytes = BinaryArray::from_iter(states.map(Option::as_deref));
        let (offsets, values, nulls) = bytes.into_parts();
        Ok(column(GenericByteArray::<T>::try_new(offsets, values, nulls)?))
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.results(states)?])
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        let array = state_column::<GenericByteArray<T>>(columns, 0)?;
        Ok(array
            .iter()
            .map(|value| {
                value.map(|value| {
                    let bytes: &[u8] = value.as_ref();
                    Box::from(bytes)
                })
            })
            .collect())
    }

    fn heap(&self, state: &Self::State) -> usize {
        state.as_ref().map_or(0, |bytes| bytes.len() + 16)
    }
}

/// `min(x)` and `max(x)` of booleans: false is less than true.
pub(super) struct BoolExtreme {
    end: End,
}

impl BoolExtreme {
    pub(super) fn new(end: End) -> Self {
        Self { end }
    }
}

impl Kernel for BoolExtreme {
    type State = Option<bool>;

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("value", DataType::Boolean, true)]
    }

    fn update(&mut self, states: &mut [Self::State], rows: &Rows<'_>) -> Result<()> {
        let array = rows
            .args
            .first()
            .and_then(|array| array.as_boolean_opt())
            .ok_or_else(|| wrong_argument(&DataType::Boolean))?;
        let end = self.end;
        rows.each(Some(array), |row, group, _| {
            let value = array.value(row);
            let state = &mut states[group];
            *state = Some(match (*state, end) {
                (None, _) => value,
                (Some(held), End::Min) => held && value,
                (Some(held), End::Max) => held || value,
            });
        });
        Ok(())
    }

    fn results<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<ArrayRef> {
        Ok(column(BooleanArray::from_iter(states.copied())))
    }

    fn export<'a>(&self, states: impl ExactSizeIterator<Item = &'a Self::State>) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.results(states)?])
    }

    fn import(&self, columns: &[ArrayRef]) -> Result<Vec<Self::State>> {
        Ok(state_column::<BooleanArray>(columns, 0)?.iter().collect())
    }
}
