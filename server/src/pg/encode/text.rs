//! Values in text format.

use arrow::array::AsArray;
use bytes::{BufMut, BytesMut};
use weir_planner::SqlError;

use super::format::{put, put_date, put_decimal, put_f32, put_f64, put_interval, put_time, put_timestamp};
use super::{Cells, printed};

impl Cells {
    /// Writes a value that is not null.
    pub(super) fn put_text(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        match self {
            Self::Null => {}
            Self::Bool(a) => out.put_u8(if a.value(row) { b't' } else { b'f' }),
            Self::Int2(a) => put(out, format_args!("{}", a.value(row))),
            Self::Int4(a) => put(out, format_args!("{}", a.value(row))),
            Self::Int8(a) => put(out, format_args!("{}", a.value(row))),
            Self::Unsigned(a) => put(out, format_args!("{}", a.value(row))),
            Self::Oid(a) => put(out, format_args!("{}", a.value(row).cast_unsigned())),
            Self::Float4(a) => put_f32(a.value(row), out),
            Self::Float8(a) => put_f64(a.value(row), out),
            Self::Numeric(a, scale) => put_decimal(&a.value(row).to_string(), *scale, out),
            Self::BigNumeric(a, scale) => put_decimal(&a.value(row).to_string(), *scale, out),
            Self::Text(a) => out.put_slice(a.value(row).as_bytes()),
            Self::TextView(a) => out.put_slice(a.value(row).as_bytes()),
            Self::LargeText(a) => out.put_slice(a.value(row).as_bytes()),
            Self::Jsonb(a) | Self::Uuid(a) => out.put_slice(a.as_string::<i32>().value(row).as_bytes()),
            Self::Bytes(_) | Self::BytesView(_) | Self::LargeBytes(_) | Self::FixedBytes(_) => {
                out.put_slice(b"\\x");
                for byte in self.raw(row).unwrap_or_default() {
                    put(out, format_args!("{byte:02x}"));
                }
            }
            Self::Date(a) => put_date(a.value(row), out),
            Self::Time(a) => put_time(a.value(row), out),
            Self::Timestamp(a, zone) => put_timestamp(a.value(row), *zone, out),
            Self::Interval(a) => {
                let value = a.value(row);
                put_interval(value.months, value.days, value.nanoseconds, out);
            }
            Self::List { offsets, values, .. } => {
                out.put_u8(b'{');
                for (index, element) in (offsets[row]..offsets[row + 1]).enumerate() {
                    if index > 0 {
                        out.put_u8(b',');
                    }
                    values.put_element(element as usize, out)?;
                }
                out.put_u8(b'}');
            }
            Self::Struct { fields, .. } => {
                out.put_u8(b'(');
                for (index, (field, _)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.put_u8(b',');
                    }
                    if !field.is_null(row) {
                        field.put_quoted(row, needs_quotes_in_record, true, out)?;
                    }
                }
                out.put_u8(b')');
            }
            Self::Other(array) => out.put_slice(printed(array, row)?.as_bytes()),
        }
        Ok(())
    }

    /// An element of an array.
    fn put_element(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        if self.is_null(row) {
            out.put_slice(b"NULL");
            return Ok(());
        }
        if matches!(self, Self::List { .. }) {
            return self.put_text(row, out);
        }
        self.put_quoted(row, needs_quotes_in_array, false, out)
    }

    /// A value inside an array or record: in quotes when it would be misread, with quotes and backslashes doubled
    /// (records) or behind a backslash (arrays).
    fn put_quoted(
        &self,
        row: usize,
        needs_quotes: fn(&[u8]) -> bool,
        doubled: bool,
        out: &mut BytesMut,
    ) -> Result<(), SqlError> {
        let start = out.len();
        self.put_text(row, out)?;
        if !needs_quotes(&out[start..]) {
            return Ok(());
        }
        let plain = out.split_off(start);
        out.put_u8(b'"');
        for byte in &plain {
            if matches!(byte, b'"' | b'\\') {
                out.put_u8(if doubled { *byte } else { b'\\' });
            }
            out.put_u8(*byte);
        }
        out.put_u8(b'"');
        Ok(())
    }
}

fn needs_quotes_in_array(text: &[u8]) -> bool {
    text.is_empty()
        || text.eq_ignore_ascii_case(b"null")
        || text.iter().any(|c| matches!(c, b'{' | b'}' | b',' | b'"' | b'\\') || c.is_ascii_whitespace())
}

fn needs_quotes_in_record(text: &[u8]) -> bool {
    text.is_empty() || text.iter().any(|c| matches!(c, b'(' | b')' | b',' | b'"' | b'\\') || c.is_ascii_whitespace())
}
