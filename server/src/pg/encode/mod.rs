//! Arrow columns as PostgreSQL values, text and binary.
//!
//! A batch's columns are looked at once (`Cells`); then each row is written straight into the message. Timestamps
//! with a time zone are always shown in UTC, which is the time zone that the server announces.

mod binary;
mod format;
mod text;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, Decimal128Array, Decimal256Array,
    FixedSizeBinaryArray, Float32Array, Float64Array, Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray,
    LargeBinaryArray, LargeStringArray, StringArray, StringViewArray, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Decimal256Type, Field, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, IntervalMonthDayNanoType, IntervalUnit, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
    UInt64Type,
};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_pg::datatypes::PG_OID_ALIAS_KEY;
use bytes::{BufMut, BytesMut};
use pgwire::api::Type;
use pgwire::api::results::{FieldFormat, FieldInfo};
use pgwire::messages::data::DataRow;
use weir_planner::types::TYPE_KEY;
use weir_planner::{ErrorKind, SqlError};

use super::types::{element_type, pg_type};

/// A column whose values are ready to be written.
pub(super) enum Cells {
    Null,
    Bool(BooleanArray),
    Int2(Int16Array),
    Int4(Int32Array),
    Int8(Int64Array),
    /// 64-bit unsigned, which only `numeric` holds.
    Unsigned(UInt64Array),
    /// `oid` and its aliases, kept as 32-bit signed.
    Oid(Int32Array),
    Float4(Float32Array),
    Float8(Float64Array),
    Numeric(Decimal128Array, i8),
    BigNumeric(Decimal256Array, i8),
    Text(StringArray),
    TextView(StringViewArray),
    LargeText(LargeStringArray),
    /// `jsonb`, whose binary form starts with a version.
    Jsonb(ArrayRef),
    Uuid(ArrayRef),
    Bytes(BinaryArray),
    BytesView(BinaryViewArray),
    LargeBytes(LargeBinaryArray),
    FixedBytes(FixedSizeBinaryArray),
    /// Days since 1970.
    Date(arrow::array::Date32Array),
    /// Microseconds since midnight.
    Time(arrow::array::Time64MicrosecondArray),
    /// Microseconds since 1970, with whether it has a time zone.
    Timestamp(arrow::array::TimestampMicrosecondArray, bool),
    Interval(IntervalMonthDayNanoArray),
    /// Where each row's elements lie, the elements, their type, the nulls of the rows.
    List {
        offsets: OffsetBuffer<i64>,
        values: Box<Cells>,
        element: Type,
        nested: bool,
        rows: ArrayRef,
    },
    Struct {
        fields: Vec<(Cells, Type)>,
        rows: ArrayRef,
    },
    /// What PostgreSQL has no type for, as Arrow prints it.
    Other(ArrayRef),
}

impl Cells {
    /// Looks at a column.
    pub(super) fn new(array: &ArrayRef, field: &Field) -> Result<Self, SqlError> {
        let tagged = field.metadata().get(TYPE_KEY).map(String::as_str);
        let converted = |to: DataType| cast(array, &to).map_err(|e| unencodable(field, &e.to_string()));
        Ok(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Bool(array.as_boolean().clone()),
            DataType::Int8 | DataType::UInt8 => {
                Self::Int2(converted(DataType::Int16)?.as_primitive::<Int16Type>().clone())
            }
            DataType::Int16 => Self::Int2(array.as_primitive::<Int16Type>().clone()),
            DataType::UInt16 => Self::Int4(converted(DataType::Int32)?.as_primitive::<Int32Type>().clone()),
            DataType::Int32 if field.metadata().contains_key(PG_OID_ALIAS_KEY) => {
                Self::Oid(array.as_primitive::<Int32Type>().clone())
            }
            DataType::Int32 => Self::Int4(array.as_primitive::<Int32Type>().clone()),
            DataType::UInt32 => Self::Int8(converted(DataType::Int64)?.as_primitive::<Int64Type>().clone()),
            DataType::Int64 => Self::Int8(array.as_primitive::<Int64Type>().clone()),
            DataType::UInt64 => Self::Unsigned(array.as_primitive::<UInt64Type>().clone()),
            DataType::Float16 => Self::Float4(converted(DataType::Float32)?.as_primitive::<Float32Type>().clone()),
            DataType::Float32 => Self::Float4(array.as_primitive::<Float32Type>().clone()),
            DataType::Float64 => Self::Float8(array.as_primitive::<Float64Type>().clone()),
            DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) => Self::Numeric(
                converted(DataType::Decimal128(38, *scale))?.as_primitive::<Decimal128Type>().clone(),
                *scale,
            ),
            DataType::Decimal128(_, scale) => Self::Numeric(array.as_primitive::<Decimal128Type>().clone(), *scale),
            DataType::Decimal256(_, scale) => Self::BigNumeric(array.as_primitive::<Decimal256Type>().clone(), *scale),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View if tagged == Some("jsonb") => {
                Self::Jsonb(converted(DataType::Utf8)?)
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View if tagged == Some("uuid") => {
                Self::Uuid(converted(DataType::Utf8)?)
            }
            DataType::Utf8 => Self::Text(array.as_string::<i32>().clone()),
            DataType::LargeUtf8 => Self::LargeText(array.as_string::<i64>().clone()),
            DataType::Utf8View => Self::TextView(array.as_string_view().clone()),
            DataType::Binary => Self::Bytes(array.as_binary::<i32>().clone()),
            DataType::LargeBinary => Self::LargeBytes(array.as_binary::<i64>().clone()),
            DataType::BinaryView => Self::BytesView(array.as_binary_view().clone()),
            DataType::FixedSizeBinary(_) => Self::FixedBytes(array.as_fixed_size_binary().clone()),
            DataType::Date32 => Self::Date(array.as_primitive::<Date32Type>().clone()),
            DataType::Time32(_) | DataType::Time64(_) => {
                let to = DataType::Time64(TimeUnit::Microsecond);
                Self::Time(converted(to)?.as_primitive::<Time64MicrosecondType>().clone())
            }
            DataType::Date64 => Self::Timestamp(
                converted(DataType::Timestamp(TimeUnit::Microsecond, None))?
                    .as_primitive::<TimestampMicrosecondType>()
                    .clone(),
                false,
            ),
            DataType::Timestamp(_, zone) => {
                let to = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
                Self::Timestamp(converted(to)?.as_primitive::<TimestampMicrosecondType>().clone(), zone.is_some())
            }
            DataType::Interval(_) | DataType::Duration(_) => {
                let to = DataType::Interval(IntervalUnit::MonthDayNano);
                Self::Interval(converted(to)?.as_primitive::<IntervalMonthDayNanoType>().clone())
            }
            DataType::Dictionary(_, value) => {
                let plain =
                    Field::new(field.name(), value.as_ref().clone(), true).with_metadata(field.metadata().clone());
                Self::new(&converted(value.as_ref().clone())?, &plain)?
            }
            DataType::List(item) => {
                let list = array.as_list::<i32>();
                let offsets = OffsetBuffer::new(list.offsets().iter().map(|o| i64::from(*o)).collect());
                Self::list(array, offsets, list.values(), item)?
            }
            DataType::LargeList(item) => {
                let list = array.as_list::<i64>();
                Self::list(array, list.offsets().clone(), list.values(), item)?
            }
            DataType::FixedSizeList(item, size) => {
                let list = array.as_fixed_size_list();
                let (from, size) = (i64::from(list.value_offset(0)), i64::from(*size));
                let offsets = (0..=list.len() as i64).map(|row| from + row * size).collect();
                Self::list(array, OffsetBuffer::new(offsets), list.values(), item)?
            }
            DataType::Struct(fields) => {
                let columns = array.as_struct();
                let fields = fields
                    .iter()
                    .zip(columns.columns())
                    .map(|(field, column)| Ok((Self::new(column, field)?, pg_type(field))))
                    .collect::<Result<_, SqlError>>()?;
                Self::Struct { fields, rows: array.clone() }
            }
            _ => Self::Other(array.clone()),
        })
    }

    fn list(rows: &ArrayRef, offsets: OffsetBuffer<i64>, values: &ArrayRef, item: &Field) -> Result<Self, SqlError> {
        let element = pg_type(item);
        let values = Box::new(Self::new(values, item)?);
        let nested = matches!(*values, Self::List { .. });
        Ok(Self::List { offsets, values, element, nested, rows: rows.clone() })
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(a) => a.is_null(row),
            Self::Int2(a) => a.is_null(row),
            Self::Int4(a) | Self::Oid(a) => a.is_null(row),
            Self::Int8(a) => a.is_null(row),
            Self::Unsigned(a) => a.is_null(row),
            Self::Float4(a) => a.is_null(row),
            Self::Float8(a) => a.is_null(row),
            Self::Numeric(a, _) => a.is_null(row),
            Self::BigNumeric(a, _) => a.is_null(row),
            Self::Text(a) => a.is_null(row),
            Self::TextView(a) => a.is_null(row),
            Self::LargeText(a) => a.is_null(row),
            Self::Bytes(a) => a.is_null(row),
            Self::BytesView(a) => a.is_null(row),
            Self::LargeBytes(a) => a.is_null(row),
            Self::FixedBytes(a) => a.is_null(row),
            Self::Date(a) => a.is_null(row),
            Self::Time(a) => a.is_null(row),
            Self::Timestamp(a, _) => a.is_null(row),
            Self::Interval(a) => a.is_null(row),
            Self::Jsonb(a) | Self::Uuid(a) | Self::Other(a) => a.is_null(row),
            Self::List { rows, .. } | Self::Struct { rows, .. } => rows.is_null(row),
        }
    }

    /// The text or bytes of a value that is text or bytes.
    fn raw(&self, row: usize) -> Option<&[u8]> {
        Some(match self {
            Self::Text(a) => a.value(row).as_bytes(),
            Self::TextView(a) => a.value(row).as_bytes(),
            Self::LargeText(a) => a.value(row).as_bytes(),
            Self::Jsonb(a) | Self::Uuid(a) => a.as_string::<i32>().value(row).as_bytes(),
            Self::Bytes(a) => a.value(row),
            Self::BytesView(a) => a.value(row),
            Self::LargeBytes(a) => a.value(row),
            Self::FixedBytes(a) => a.value(row),
            _ => return None,
        })
    }
}

/// A value of a column that has no other form, as Arrow prints it.
fn printed(array: &ArrayRef, row: usize) -> Result<String, SqlError> {
    let formatter = ArrayFormatter::try_new(array.as_ref(), &FormatOptions::default())
        .map_err(|e| SqlError::new(ErrorKind::INTERNAL, format!("a value cannot be shown: {e}")))?;
    Ok(formatter.value(row).to_string())
}

fn unencodable(field: &Field, why: &str) -> SqlError {
    SqlError::new(
        ErrorKind::EVALUATION,
        format!("column \"{}\" of type {} cannot be sent: {why}", field.name(), field.data_type()),
    )
    .hint("cast the column to text in the SELECT")
}

/// Writes the rows of batches as DataRow messages.
pub(super) struct RowEncoder {
    formats: Vec<FieldFormat>,
}

impl RowEncoder {
    /// For columns as they were announced.
    pub(super) fn new(fields: &[FieldInfo]) -> Self {
        Self { formats: fields.iter().map(FieldInfo::format).collect() }
    }

    /// The rows of a batch.
    pub(super) fn rows<'a>(
        &'a self,
        batch: &RecordBatch,
    ) -> Result<impl Iterator<Item = Result<DataRow, SqlError>> + use<'a>, SqlError> {
        let columns = columns(batch)?;
        let mut buffer = BytesMut::new();
        Ok((0..batch.num_rows()).map(move |row| {
            for (cells, format) in columns.iter().zip(&self.formats) {
                put_value(cells, row, *format, &mut buffer)?;
            }
            // A result has at most 1664 columns in PostgreSQL and the count is 16 bits on the wire.
            Ok(DataRow::new(buffer.split(), columns.len() as i16))
        }))
    }
}

/// All columns of a batch.
fn columns(batch: &RecordBatch) -> Result<Vec<Cells>, SqlError> {
    let schema = batch.schema();
    batch.columns().iter().zip(schema.fields()).map(|(array, field)| Cells::new(array, field)).collect()
}

/// A value with its length in front, -1 for null.
fn put_value(cells: &Cells, row: usize, format: FieldFormat, out: &mut BytesMut) -> Result<(), SqlError> {
    if cells.is_null(row) {
        out.put_i32(-1);
        return Ok(());
    }
    let start = out.len();
    out.put_i32(0);
    match format {
        FieldFormat::Text => cells.put_text(row, out)?,
        FieldFormat::Binary => cells.put_binary(row, out)?,
    }
    let length = i32::try_from(out.len() - start - 4).map_err(|_| {
        SqlError::new(ErrorKind::EVALUATION, "a value is larger than 2 GiB, which the protocol cannot carry")
    })?;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// The rows of a batch in COPY's text format, one buffer a row, each with its line end.
pub(super) fn copy_rows(batch: &RecordBatch) -> Result<impl Iterator<Item = Result<BytesMut, SqlError>>, SqlError> {
    let columns = columns(batch)?;
    let mut value = BytesMut::new();
    Ok((0..batch.num_rows()).map(move |row| {
        let mut line = BytesMut::new();
        for (index, cells) in columns.iter().enumerate() {
            if index > 0 {
                line.put_u8(b'\t');
            }
            if cells.is_null(row) {
                line.put_slice(b"\\N");
                continue;
            }
            value.clear();
            cells.put_text(row, &mut value)?;
            for byte in &value {
                match byte {
                    b'\\' => line.put_slice(b"\\\\"),
                    b'\t' => line.put_slice(b"\\t"),
                    b'\n' => line.put_slice(b"\\n"),
                    b'\r' => line.put_slice(b"\\r"),
                    0x08 => line.put_slice(b"\\b"),
                    0x0b => line.put_slice(b"\\v"),
                    0x0c => line.put_slice(b"\\f"),
                    other => line.put_u8(*other),
                }
            }
        }
        line.put_u8(b'\n');
        Ok(line)
    }))
}

/// A batch in COPY's text format.
pub fn copy_text(batch: &RecordBatch) -> Result<Vec<u8>, SqlError> {
    let mut text = Vec::new();
    for line in copy_rows(batch)? {
        text.extend_from_slice(&line?);
    }
    Ok(text)
}

/// The rows of a batch as text, `None` for null: what `weir run` and other printers show, in psql's spelling.
pub fn text_rows(batch: &RecordBatch) -> Result<Vec<Vec<Option<String>>>, SqlError> {
    let columns = columns(batch)?;
    let mut value = BytesMut::new();
    (0..batch.num_rows())
        .map(|row| {
            columns
                .iter()
                .map(|cells| {
                    if cells.is_null(row) {
                        return Ok(None);
                    }
                    value.clear();
                    cells.put_text(row, &mut value)?;
                    Ok(Some(String::from_utf8_lossy(&value).into_owned()))
                })
                .collect()
        })
        .collect()
}

/// Whether arrays of this type can go in binary.
fn has_binary_arrays(element: &Type) -> bool {
    element_type(element).is_none()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int32Builder, ListBuilder, StringBuilder, StructArray, make_array};
    use arrow::datatypes::Schema;

    use super::*;
    use crate::pg::types::field_infos;

    pub(super) fn text_of(array: ArrayRef) -> Vec<Option<String>> {
        let field = Field::new("c", array.data_type().clone(), true);
        let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![array]).unwrap();
        text_rows(&batch).unwrap().into_iter().map(|mut row| row.remove(0)).collect()
    }

    #[test]
    fn rows_carry_lengths_and_nulls() {
        let schema =
            Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, true)]));
        let batch = RecordBatch::try_new(
            Arc::clone(&schema),
            vec![Arc::new(Int32Array::from(vec![Some(7), None])), Arc::new(StringArray::from(vec![None, Some("hé")]))],
        )
        .unwrap();
        let encoder = RowEncoder::new(&field_infos(&schema, &[1, 0]));
        let rows: Vec<DataRow> = encoder.rows(&batch).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(rows[0].data.as_ref(), [0, 0, 0, 4, 0, 0, 0, 7, 255, 255, 255, 255]);
        assert_eq!(rows[1].data.as_ref(), [255, 255, 255, 255, 0, 0, 0, 3, b'h', 0xc3, 0xa9]);
        assert_eq!(rows[1].field_count, 2);
    }

    #[test]
    fn arrays_and_structs_are_quoted_as_postgres_does() {
        let mut list = ListBuilder::new(StringBuilder::new());
        list.append_value([Some("a"), None, Some(""), Some("b,c"), Some("q\"\\"), Some("null")]);
        list.append_value(Vec::<Option<&str>>::new());
        assert_eq!(
            text_of(Arc::new(list.finish())),
            [Some(r#"{a,NULL,"","b,c","q\"\\","null"}"#.to_owned()), Some("{}".to_owned())]
        );
        let mut nested = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
        nested.values().append_value([Some(1), Some(2)]);
        nested.values().append_value([Some(3), None]);
        nested.append(true);
        assert_eq!(text_of(Arc::new(nested.finish())), [Some("{{1,2},{3,NULL}}".to_owned())]);
        let record = StructArray::from(vec![
            (
                Arc::new(Field::new("a", DataType::Int32, true)),
                Arc::new(Int32Array::from(vec![Some(1), None])) as ArrayRef,
            ),
            (
                Arc::new(Field::new("b", DataType::Utf8, true)),
                Arc::new(StringArray::from(vec!["x y", "p\"q"])) as ArrayRef,
            ),
        ]);
        assert_eq!(text_of(Arc::new(record)), [Some(r#"(1,"x y")"#.to_owned()), Some(r#"(,"p""q")"#.to_owned())]);
    }

    #[test]
    fn a_slice_starts_where_it_starts() {
        let mut list = ListBuilder::new(Int32Builder::new());
        for i in 0..4 {
            list.append_value([Some(i), Some(10 * i)]);
        }
        let array = make_array(list.finish().slice(2, 2).to_data());
        assert_eq!(text_of(array), [Some("{2,20}".to_owned()), Some("{3,30}".to_owned())]);
    }

    #[test]
    fn copy_escapes_what_would_break_a_line() {
        let schema =
            Arc::new(Schema::new(vec![Field::new("a", DataType::Utf8, true), Field::new("b", DataType::Int64, true)]));
        let batch = RecordBatch::try_new(
            schema,
            vec![
                Arc::new(StringArray::from(vec![Some("tab\there\\\n"), None])),
                Arc::new(Int64Array::from(vec![Some(-1), Some(2)])),
            ],
        )
        .unwrap();
        let lines: Vec<BytesMut> = copy_rows(&batch).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(lines[0].as_ref(), b"tab\\there\\\\\\n\t-1\n");
        assert_eq!(lines[1].as_ref(), b"\\N\t2\n");
    }

    #[test]
    fn what_postgres_has_no_type_for_is_printed() {
        let mut map = arrow::array::MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        map.keys().append_value("k");
        map.values().append_value(1);
        map.append(true).unwrap();
        assert_eq!(text_of(Arc::new(map.finish())), [Some("{k: 1}".to_owned())]);
    }
}
