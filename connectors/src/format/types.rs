//! Column types: which of them text formats carry, and how SQL spells them.

use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};

/// Whether text formats can carry the column; otherwise a sentence.
pub(crate) fn check_type(field: &Field) -> Result<(), String> {
    match field.data_type() {
        DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Decimal128(_, _)
        | DataType::Utf8
        | DataType::Binary
        | DataType::Date32
        | DataType::Time64(TimeUnit::Microsecond)
        | DataType::Timestamp(TimeUnit::Microsecond, _)
        | DataType::Interval(IntervalUnit::MonthDayNano) => Ok(()),
        DataType::List(inner) => check_type(inner),
        DataType::Struct(inner) => inner.iter().try_for_each(|field| check_type(field)),
        other => Err(format!("column \"{}\" has type {other}, which this format cannot carry", field.name())),
    }
}

/// Whether the column holds JSON (text with a mark in the metadata).
pub(crate) fn is_json(field: &Field) -> bool {
    field.data_type() == &DataType::Utf8 && field.metadata().get("weir.type").is_some_and(|kind| kind == "json")
}

/// The type as SQL spells it.
pub(crate) fn sql_type(field: &Field) -> String {
    if is_json(field) {
        return "JSON".to_owned();
    }
    match field.data_type() {
        DataType::Boolean => "BOOLEAN".to_owned(),
        DataType::Int8 => "TINYINT".to_owned(),
        DataType::Int16 => "SMALLINT".to_owned(),
        DataType::Int32 => "INT".to_owned(),
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::Float32 => "REAL".to_owned(),
        DataType::Float64 => "DOUBLE PRECISION".to_owned(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision},{scale})"),
        DataType::Utf8 => "TEXT".to_owned(),
        DataType::Binary => "BYTEA".to_owned(),
        DataType::Date32 => "DATE".to_owned(),
        DataType::Time64(_) => "TIME".to_owned(),
        DataType::Timestamp(_, None) => "TIMESTAMP".to_owned(),
        DataType::Timestamp(_, Some(_)) => "TIMESTAMPTZ".to_owned(),
        DataType::Interval(_) => "INTERVAL".to_owned(),
        DataType::List(inner) => format!("{}[]", sql_type(inner)),
        DataType::Struct(_) => "STRUCT".to_owned(),
        other => other.to_string(),
    }
}
