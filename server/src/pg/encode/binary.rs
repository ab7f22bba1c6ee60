//! Values in binary format.

use arrow::array::AsArray;
use bytes::{BufMut, BytesMut};
use pgwire::api::results::FieldFormat;
use uuid::Uuid;
use weir_planner::{ErrorKind, SqlError};

use super::format::put_decimal;
use super::{Cells, has_binary_arrays, printed, put_value};

/// Days from 1970 to 2000, where PostgreSQL's clock starts.
const EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

impl Cells {
    /// Writes a value that is not null.
    pub(super) fn put_binary(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        match self {
            Self::Null => {}
            Self::Bool(a) => out.put_u8(u8::from(a.value(row))),
            Self::Int2(a) => out.put_i16(a.value(row)),
            Self::Int4(a) | Self::Oid(a) => out.put_i32(a.value(row)),
            Self::Int8(a) => out.put_i64(a.value(row)),
            Self::Unsigned(a) => put_numeric(&a.value(row).to_string(), 0, out)?,
            Self::Float4(a) => out.put_f32(a.value(row)),
            Self::Float8(a) => out.put_f64(a.value(row)),
            Self::Numeric(a, scale) => put_numeric(&a.value(row).to_string(), *scale, out)?,
            Self::BigNumeric(a, scale) => put_numeric(&a.value(row).to_string(), *scale, out)?,
            Self::Text(_)
            | Self::TextView(_)
            | Self::LargeText(_)
            | Self::Bytes(_)
            | Self::BytesView(_)
            | Self::LargeBytes(_)
            | Self::FixedBytes(_) => out.put_slice(self.raw(row).unwrap_or_default()),
            Self::Jsonb(a) => {
                out.put_u8(1);
                out.put_slice(a.as_string::<i32>().value(row).as_bytes());
            }
            Self::Uuid(a) => {
                let text = a.as_string::<i32>().value(row);
                let uuid = Uuid::parse_str(text).map_err(|e| {
                    SqlError::new(ErrorKind::EVALUATION, format!("\"{text}\" is not a UUID")).detail(e.to_string())
                })?;
                out.put_slice(uuid.as_bytes());
            }
            Self::Date(a) => out.put_i32(a.value(row).saturating_sub(EPOCH_DAYS)),
            Self::Time(a) => out.put_i64(a.value(row)),
            Self::Timestamp(a, _) => out.put_i64(match a.value(row) {
                // PostgreSQL's infinities are the same numbers.
                infinity @ (i64::MAX | i64::MIN) => infinity,
                micros => micros.saturating_sub(EPOCH_MICROS),
            }),
            Self::Interval(a) => {
                let value = a.value(row);
                out.put_i64(value.nanoseconds / 1000);
                out.put_i32(value.days);
                out.put_i32(value.months);
            }
            // Announced as text.
            Self::List { nested: true, .. } => self.put_text(row, out)?,
            Self::List { element, .. } if !has_binary_arrays(element) => self.put_text(row, out)?,
            Self::List { offsets, values, element, .. } => {
                let (from, to) = (offsets[row] as usize, offsets[row + 1] as usize);
                out.put_i32(i32::from(to > from));
                out.put_i32(i32::from((from..to).any(|element| values.is_null(element))));
                out.put_u32(element.oid());
                if to > from {
                    out.put_i32(length(to - from)?);
                    out.put_i32(1);
                }
                for element in from..to {
                    put_value(values, element, FieldFormat::Binary, out)?;
                }
            }
            Self::Struct { fields, .. } => {
                out.put_i32(length(fields.len())?);
                for (field, ty) in fields {
                    out.put_u32(ty.oid());
                    put_value(field, row, FieldFormat::Binary, out)?;
                }
            }
            Self::Other(array) => out.put_slice(printed(array, row)?.as_bytes()),
        }
        Ok(())
    }
}

fn length(count: usize) -> Result<i32, SqlError> {
    i32::try_from(count)
        .map_err(|_| SqlError::new(ErrorKind::EVALUATION, "an array has more elements than the protocol can carry"))
}

/// `numeric`: groups of four decimal digits around the point.
fn put_numeric(unscaled: &str, scale: i8, out: &mut BytesMut) -> Result<(), SqlError> {
    let mut text = BytesMut::new();
    put_decimal(unscaled, scale, &mut text);
    let text = std::str::from_utf8(&text).unwrap_or_default();
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = whole.trim_start_matches('0');
    let mut groups: Vec<i16> = Vec::new();
    let lead = whole.len().div_ceil(4);
    let padded: String = format!("{whole:0>width$}", width = lead * 4);
    let padded_fraction = format!("{fraction:0<width$}", width = fraction.len().div_ceil(4) * 4);
    for chunk in padded.as_bytes().chunks(4).chain(padded_fraction.as_bytes().chunks(4)) {
        groups.push(chunk.iter().fold(0, |value, digit| value * 10 + i16::from(digit - b'0')));
    }
    // Leading and trailing zero groups are not sent.
    let mut weight = lead as i16 - 1;
    while groups.last() == Some(&0) {
        groups.pop();
    }
    let zeros = groups.iter().take_while(|group| **group == 0).count();
    groups.drain(..zeros);
    weight -= zeros as i16;
    if groups.is_empty() {
        weight = 0;
    }
    out.put_i16(length(groups.len())? as i16);
    out.put_i16(weight);
    out.put_u16(if negative { 0x4000 } else { 0 });
    out.put_i16(fraction.len() as i16);
    for group in groups {
        out.put_i16(group);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Date32Array, Int32Builder, ListBuilder, TimestampMicrosecondArray};
    use arrow::datatypes::Field;
    use chrono::{DateTime, NaiveDate, Utc};
    use tokio_postgres::types::{FromSql, Type};

    use super::*;

    fn binary(array: ArrayRef) -> Vec<u8> {
        let field = Field::new("c", array.data_type().clone(), true);
        let mut out = BytesMut::new();
        Cells::new(&array, &field).unwrap().put_binary(0, &mut out).unwrap();
        out.to_vec()
    }

    #[test]
    fn numeric_groups() {
        let numeric = |unscaled: &str, scale| {
            let mut out = BytesMut::new();
            put_numeric(unscaled, scale, &mut out).unwrap();
            out.to_vec()
        };
        // 12345.678: groups 1, 2345, 6780, weight 1, three digits behind the point.
        assert_eq!(numeric("12345678", 3), [0, 3, 0, 1, 0, 0, 0, 3, 0, 1, 0x09, 0x29, 0x1a, 0x7c]);
        assert_eq!(numeric("0", 2), [0, 0, 0, 0, 0, 0, 0, 2]);
        // -0.0001: one group of 1, weight -1.
        assert_eq!(numeric("-1", 4), [0, 1, 0xff, 0xff, 0x40, 0, 0, 4, 0, 1]);
        // 10000 is one group at weight 1.
        assert_eq!(numeric("10000", 0), [0, 1, 0, 1, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_client_reads_what_is_written() {
        let micros = 1_357_016_400_123_456;
        let bytes = binary(Arc::new(TimestampMicrosecondArray::from(vec![micros]).with_timezone("UTC")));
        let read = i64::from_be_bytes(bytes.as_slice().try_into().unwrap());
        let expected = DateTime::<Utc>::from_timestamp_micros(micros).unwrap();
        let start = DateTime::<Utc>::from_timestamp_micros(EPOCH_MICROS).unwrap();
        assert_eq!(start + chrono::TimeDelta::microseconds(read), expected);

        let bytes = binary(Arc::new(Date32Array::from(vec![15_706])));
        let days = i32::from_be_bytes(bytes.as_slice().try_into().unwrap());
        let date = NaiveDate::from_ymd_opt(2000, 1, 1).unwrap() + chrono::TimeDelta::days(days.into());
        assert_eq!(date, NaiveDate::from_ymd_opt(2013, 1, 1).unwrap());

        let mut list = ListBuilder::new(Int32Builder::new());
        list.append_value([Some(1), None, Some(3)]);
        let bytes = binary(Arc::new(list.finish()));
        let read = Vec::<Option<i32>>::from_sql(&Type::INT4_ARRAY, &bytes).unwrap();
        assert_eq!(read, [Some(1), None, Some(3)]);
    }
}
