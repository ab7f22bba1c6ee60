//! Key columns as they are encoded: SQL equality made byte equality.
//!
//! Two rows that SQL calls equal must have one key, one key group and one owner. Floating-point numbers are the only type
//! with several encodings of equal values: `-0.0 = 0.0`, and every NaN equals every other in a grouping.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float32Type, Float64Type};

/// The columns of `batch` at `indices`, ready to be encoded as a key. Exchanges and keyed operators both use it.
#[must_use]
pub fn key_columns(batch: &RecordBatch, indices: &[usize]) -> Vec<ArrayRef> {
    indices.iter().map(|index| normalised(batch.column(*index))).collect()
}

/// `column` with one encoding for equal values.
#[must_use]
pub fn normalised(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float64 => {
            let needs = |value: f64| value.is_nan() || value == 0.0;
            float::<Float64Type>(column, needs, |value| if value.is_nan() { f64::NAN } else { 0.0 })
        }
        DataType::Float32 => {
            let needs = |value: f32| value.is_nan() || value == 0.0;
            float::<Float32Type>(column, needs, |value| if value.is_nan() { f32::NAN } else { 0.0 })
        }
        _ => Arc::clone(column),
    }
}

fn float<T: ArrowPrimitiveType>(
    column: &ArrayRef,
    needs: impl Fn(T::Native) -> bool,
    canonical: impl Fn(T::Native) -> T::Native,
) -> ArrayRef {
    let values = column.as_primitive::<T>();
    if !values.values().iter().any(|value| needs(*value)) {
        return Arc::clone(column);
    }
    let mapped: PrimitiveArray<T> = values.unary(|value| if needs(value) { canonical(value) } else { value });
    Arc::new(mapped)
}

#[cfg(test)]
mod tests {
    use arrow::array::Float64Array;
    use weir_storage::KeyEncoder;

    use super::*;

    #[test]
    fn equal_floats_have_one_encoding() {
        let other_nan = f64::from_bits(f64::NAN.to_bits() | 1 | 1 << 63);
        let column: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, other_nan, 1.5]));
        let encoder = KeyEncoder::new(&[DataType::Float64], 128).unwrap();
        let keys = encoder.encode(&[normalised(&column)]).unwrap();
        assert_eq!(keys.key(0), keys.key(1));
        assert_eq!(keys.key(2), keys.key(3));
        assert_ne!(keys.key(0), keys.key(4));
    }
}
