//! Arrow values as PostgreSQL prints them: what a view's cell must look like, told by other code than the server's.

use arrow::array::cast::AsArray;
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Field, IntervalMonthDayNanoType, IntervalUnit, TimeUnit};
use arrow::temporal_conversions::{as_date, as_datetime, as_time};
use chrono::{NaiveDateTime, NaiveTime, Timelike};

use crate::Row;
use crate::cases::Kind;

/// The rows of a batch.
pub fn rows(batch: &RecordBatch) -> Vec<Row> {
    (0..batch.num_rows()).map(|i| batch.columns().iter().map(|column| cell(column, i)).collect()).collect()
}

/// What kind of column a type is.
pub fn kind(field: &Field) -> Kind {
    match field.data_type() {
        DataType::Boolean => Kind::Boolean,
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Kind::Integer,
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => Kind::Integer,
        // PostgreSQL has no integer that holds them all.
        DataType::UInt64 | DataType::Decimal128(..) | DataType::Decimal256(..) => Kind::Numeric,
        DataType::Decimal32(..) | DataType::Decimal64(..) => Kind::Numeric,
        DataType::Float16 | DataType::Float32 | DataType::Float64 => Kind::Float,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => Kind::Text,
        DataType::Date32 | DataType::Date64 => Kind::Date,
        DataType::Time32(_) | DataType::Time64(_) => Kind::Time,
        DataType::Timestamp(_, None) => Kind::Timestamp,
        DataType::Timestamp(_, Some(_)) => Kind::TimestampTz,
        DataType::Interval(_) | DataType::Duration(_) => Kind::Interval,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => Kind::Bytes,
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => Kind::Array,
        _ => Kind::Other,
    }
}

fn cell(column: &dyn Array, i: usize) -> Option<String> {
    use arrow::datatypes as t;
    // A column of type Null has no bits that say so.
    if column.is_null(i) || column.data_type() == &DataType::Null {
        return None;
    }
    Some(match column.data_type() {
        DataType::Boolean => if column.as_boolean().value(i) { "t" } else { "f" }.to_owned(),
        DataType::Float32 => float(f64::from(column.as_primitive::<t::Float32Type>().value(i)), |_| {
            column.as_primitive::<t::Float32Type>().value(i).to_string()
        }),
        DataType::Float64 => float(column.as_primitive::<t::Float64Type>().value(i), |v| v.to_string()),
        DataType::Binary => bytes(column.as_binary::<i32>().value(i)),
        DataType::BinaryView => bytes(column.as_binary_view().value(i)),
        DataType::LargeBinary => bytes(column.as_binary::<i64>().value(i)),
        DataType::Date32 => {
            let days = i64::from(column.as_primitive::<t::Date32Type>().value(i));
            as_date::<t::Date32Type>(days).unwrap().format("%Y-%m-%d").to_string()
        }
        DataType::Time64(TimeUnit::Microsecond) => time(
            as_time::<t::Time64MicrosecondType>(column.as_primitive::<t::Time64MicrosecondType>().value(i)).unwrap(),
        ),
        DataType::Time64(_) => {
            time(as_time::<t::Time64NanosecondType>(column.as_primitive::<t::Time64NanosecondType>().value(i)).unwrap())
        }
        DataType::Timestamp(unit, zone) => {
            let moment = match unit {
                TimeUnit::Second => {
                    as_datetime::<t::TimestampSecondType>(column.as_primitive::<t::TimestampSecondType>().value(i))
                }
                TimeUnit::Millisecond => as_datetime::<t::TimestampMillisecondType>(
                    column.as_primitive::<t::TimestampMillisecondType>().value(i),
                ),
                TimeUnit::Microsecond => as_datetime::<t::TimestampMicrosecondType>(
                    column.as_primitive::<t::TimestampMicrosecondType>().value(i),
                ),
                TimeUnit::Nanosecond => as_datetime::<t::TimestampNanosecondType>(
                    column.as_primitive::<t::TimestampNanosecondType>().value(i),
                ),
            };
            timestamp(moment.unwrap(), zone.is_some())
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let value = column.as_primitive::<IntervalMonthDayNanoType>().value(i);
            interval(value.months, value.days, value.nanoseconds)
        }
        DataType::Duration(unit) => {
            let value = arrow::compute::cast(&column.slice(i, 1), &DataType::Int64).unwrap();
            let value = value.as_primitive::<t::Int64Type>().value(0);
            interval(
                0,
                0,
                value
                    * match unit {
                        TimeUnit::Second => 1_000_000_000,
                        TimeUnit::Millisecond => 1_000_000,
                        TimeUnit::Microsecond => 1_000,
                        TimeUnit::Nanosecond => 1,
                    },
            )
        }
        DataType::List(_) => array(&column.as_list::<i32>().value(i)),
        DataType::LargeList(_) => array(&column.as_list::<i64>().value(i)),
        DataType::Struct(_) => {
            let cells: Vec<String> = column
                .as_struct()
                .columns()
                .iter()
                .map(|c| cell(c, i).map_or(String::new(), |v| quoted(&v, "(),")))
                .collect();
            format!("({})", cells.join(","))
        }
        _ => arrow::util::display::array_value_to_string(column, i).unwrap(),
    })
}

fn float(value: f64, text: impl Fn(f64) -> String) -> String {
    match value {
        v if v.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        v if v != 0.0 && (v.abs() >= 1e15 || v.abs() < 1e-4) => {
            let text = format!("{v:e}");
            if v.abs() >= 1.0 { text.replace('e', "e+") } else { text }
        }
        v => text(v),
    }
}

fn bytes(value: &[u8]) -> String {
    value.iter().fold("\\x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn time(value: NaiveTime) -> String {
    value.format("%H:%M:%S").to_string() + &fraction(value.nanosecond() / 1_000)
}

fn timestamp(value: NaiveDateTime, zone: bool) -> String {
    let fraction = fraction(value.and_utc().timestamp_subsec_micros());
    value.format("%Y-%m-%d %H:%M:%S").to_string() + &fraction + if zone { "+00" } else { "" }
}

/// `.5` of 500,000 microseconds; nothing of none.
fn fraction(micros: u32) -> String {
    if micros == 0 { String::new() } else { format!(".{micros:06}").trim_end_matches('0').to_owned() }
}

/// PostgreSQL's `intervalstyle = postgres`.
fn interval(months: i32, days: i32, nanos: i64) -> String {
    let mut parts = Vec::new();
    // Behind a negative part, PostgreSQL marks positive ones.
    let mut negative = false;
    let mut part = |n: i32, unit: &str| {
        if n != 0 {
            let plus = if negative && n > 0 { "+" } else { "" };
            parts.push(format!("{plus}{n} {unit}{}", if n == 1 { "" } else { "s" }));
            negative = n < 0;
        }
    };
    part(months / 12, "year");
    part(months % 12, "mon");
    part(days, "day");
    if nanos != 0 || parts.is_empty() {
        let micros = (nanos / 1_000).unsigned_abs();
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        let sign = if nanos < 0 {
            "-"
        } else if negative {
            "+"
        } else {
            ""
        };
        let clock = format!("{sign}{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
        parts.push(clock + &fraction(micros as u32));
    }
    parts.join(" ")
}

fn array(items: &dyn Array) -> String {
    let cells: Vec<String> = (0..items.len())
        .map(|i| match cell(items, i) {
            None => "NULL".to_owned(),
            // An array within an array stands as it is.
            Some(value) if matches!(items.data_type(), DataType::List(_)) => value,
            Some(value) if value.eq_ignore_ascii_case("null") => format!("\"{value}\""),
            Some(value) => quoted(&value, "{},"),
        })
        .collect();
    format!("{{{}}}", cells.join(","))
}

/// An element of an array or row, in quotes where it needs them.
fn quoted(value: &str, special: &str) -> String {
    let plain = !value.is_empty()
        && !value.chars().any(|c| special.contains(c) || c == '"' || c == '\\' || c.is_ascii_whitespace());
    if plain { value.to_owned() } else { format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_postgres() {
        assert_eq!(interval(0, 0, 0), "00:00:00");
        assert_eq!(interval(14, -1, 3_600_000_000_000), "1 year 2 mons -1 days +01:00:00");
        assert_eq!(interval(0, 1, -1_500_000_000), "1 day -00:00:01.5");
    }

    #[test]
    fn elements_are_quoted_where_they_must_be() {
        assert_eq!(quoted("plain", "{},"), "plain");
        assert_eq!(quoted("", "{},"), "\"\"");
        assert_eq!(quoted("a \"b\"\\", "{},"), "\"a \\\"b\\\"\\\\\"");
    }
}
