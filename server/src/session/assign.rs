//! Values assigned to columns, as PostgreSQL assigns them: a row by position, everything else by a cast that fails
//! rather than loses something.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StructArray, new_null_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Fields};
use arrow::error::ArrowError;

/// `values` as a column of type `to` takes them.
///
/// # Errors
///
/// When a value has no counterpart in `to`, or a row has another number of fields.
pub(super) fn assign(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    match (values.data_type(), to) {
        (from, to) if from == to => Ok(Arc::clone(values)),
        (DataType::Null, to) => Ok(new_null_array(to, values.len())),
        (DataType::Struct(from), DataType::Struct(to)) => assign_row(values.as_struct(), from, to),
        (DataType::List(_), DataType::List(item)) if has_rows(item.data_type()) => {
            let list = values.as_list::<i32>();
            let items = assign(list.values(), item.data_type())?;
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), list.offsets().clone(), items, list.nulls().cloned())?))
        }
        (_, to) => cast_with_options(values, to, &CastOptions { safe: false, ..Default::default() }),
    }
}

/// Whether values of the type are, or contain, rows; only [`assign`] reads those by position.
pub(super) fn has_rows(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(_) => true,
        DataType::List(item) => has_rows(item.data_type()),
        _ => false,
    }
}

fn assign_row(row: &StructArray, from: &Fields, to: &Fields) -> Result<ArrayRef, ArrowError> {
    if from.len() != to.len() {
        let names: Vec<&str> = to.iter().map(|f| f.name().as_str()).collect();
        return Err(ArrowError::CastError(format!(
            "a row of {} fields does not fit one of {}: {}",
            from.len(),
            to.len(),
            names.join(", ")
        )));
    }
    // Fields that a person named are found by their names, in whatever order; those of ROW (…) have none.
    let named = to.iter().all(|field| from.find(field.name()).is_some());
    let source = |(position, field): (usize, &FieldRef)| match from.find(field.name()) {
        Some((found, _)) if named => found,
        _ => position,
    };
    let children = to.iter().enumerate().map(|field| assign(row.column(source(field)), field.1.data_type()));
    let children = children.collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(StructArray::try_new(to.clone(), children, row.nulls().cloned())?))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, Int64Array, StringArray};
    use arrow::datatypes::Field;

    use super::*;

    fn row(names: [&str; 2]) -> ArrayRef {
        let fields =
            Fields::from(vec![Field::new(names[0], DataType::Int64, true), Field::new(names[1], DataType::Utf8, true)]);
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(vec![1, 2])), Arc::new(StringArray::from(vec!["7", "x"]))];
        Arc::new(StructArray::new(fields, columns, None))
    }

    fn target(second: DataType) -> DataType {
        DataType::Struct(Fields::from(vec![Field::new("a", DataType::Int32, true), Field::new("b", second, true)]))
    }

    #[test]
    fn rows_are_assigned_by_position_unless_their_fields_are_named() {
        let by_position = assign(&row(["c0", "c1"]), &target(DataType::Utf8)).unwrap();
        assert_eq!(by_position.as_struct().column(0).as_ref(), &Int32Array::from(vec![1, 2]));
        let swapped = DataType::Struct(Fields::from(vec![
            Field::new("y", DataType::Utf8, true),
            Field::new("x", DataType::Int32, true),
        ]));
        let by_name = assign(&row(["x", "y"]), &swapped).unwrap();
        assert_eq!(by_name.as_struct().column(1).as_ref(), &Int32Array::from(vec![1, 2]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(assign(&row(["c0", "c1"]), &target(DataType::Int32)).is_err());
        let one = DataType::Struct(Fields::from(vec![Field::new("a", DataType::Int32, true)]));
        let error = assign(&row(["c0", "c1"]), &one).unwrap_err().to_string();
        assert!(error.contains("a row of 2 fields does not fit one of 1: a"), "{error}");
    }
}
