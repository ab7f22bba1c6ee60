//! From the places of fields in a block to Arrow columns.
//!
//! A text format's scanner notes *where* each wanted field lies ([`Fields`]); the columns are then made one after
//! the other, each in a loop that knows its type. A value that does not fit marks its row as bad and leaves a null
//! behind; bad rows are filtered out of the batch at the end, so that none harms its neighbours.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::builder::{BinaryBuilder, BooleanBufferBuilder, NullBufferBuilder, StringBuilder};
use arrow::array::{ArrayRef, BooleanArray, PrimitiveArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::ScalarBuffer;
use arrow::compute::filter_record_batch;
use arrow::compute::kernels::cast_utils::{IntervalParseConfig, IntervalUnit, parse_interval_month_day_nano_config};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Field, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, IntervalMonthDayNanoType, IntervalUnit as ArrowIntervalUnit, SchemaRef,
    Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use weir_runtime::{Result, RuntimeError};

use super::given::*;
use super::types::{check_type, is_json, sql_type};
use super::value::{self, DateCache};

/// What lies at a noted place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// No value.
    Null,
    /// An untyped field (CSV): whatever the column's type reads it as.
    Plain,
    /// The same, with its quoting undone, in the scratch text.
    Scratch,
    /// A JSON string without escapes; its quotes lie just outside.
    String,
    /// A JSON string with escapes; its quotes lie just outside.
    Escaped,
    /// What begins like a JSON number.
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// A JSON object or array.
    Nested,
}

const KINDS: [Kind; 9] = [
    Kind::Null,
    Kind::Plain,
    Kind::Scratch,
    Kind::String,
    Kind::Escaped,
    Kind::Number,
    Kind::True,
    Kind::False,
    Kind::Nested,
];

/// Length and kind share a word.
const LENGTH_BITS: u32 = 28;

/// The longest row that the places can describe.
pub(crate) const MAX_ROW_BYTES: usize = (1 << LENGTH_BITS) - 1;

/// Where a field lies in the block (or in the scratch text).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    start: u32,
    length_and_kind: u32,
}

impl Place {
    /// No value.
    pub(crate) const NULL: Place = Place { start: 0, length_and_kind: 0 };

    /// The field at `start..end`.
    #[inline]
    pub(crate) fn new(kind: Kind, start: usize, end: usize) -> Self {
        Self { start: start as u32, length_and_kind: (kind as u32) << LENGTH_BITS | (end - start) as u32 }
    }

    /// Whether there is no value.
    #[inline]
    pub(crate) fn is_null(self) -> bool {
        self.length_and_kind >> LENGTH_BITS == Kind::Null as u32
    }

    /// What lies there.
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        KINDS[(self.length_and_kind >> LENGTH_BITS) as usize]
    }

    /// Where it lies.
    #[inline]
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + (self.length_and_kind & ((1 << LENGTH_BITS) - 1)) as usize
    }
}

/// Where a row lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPlace {
    /// Offset of its first byte in the block.
    pub(crate) start: usize,
    /// One past its last byte, line end left out.
    pub(crate) end: usize,
    /// Lines of the block before it.
    pub(crate) line: u64,
}

/// The places of all fields of some rows, row after row.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    /// `rows.len() * columns` places.
    pub(crate) places: Vec<Place>,
    /// The rows.
    pub(crate) rows: Vec<RowPlace>,
    /// Text of fields whose quoting had to be undone.
    pub(crate) scratch: Vec<u8>,
}

impl Fields {
    /// Forget all rows.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.rows.clear();
        self.scratch.clear();
    }
}

/// Options of the conversion.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conversion {
    /// How numbers stand for timestamps.
    pub(crate) epoch: Epoch,
}

/// Rows that turned out bad, with the first reason of each.
#[derive(Debug, Default)]
pub(crate) struct BadValues(BTreeMap<usize, String>);

impl BadValues {
    /// Row `row` is bad.
    pub(crate) fn add(&mut self, row: usize, reason: impl FnOnce() -> String) {
        self.0.entry(row).or_insert_with(reason);
    }

    /// Rows and reasons, in order.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (usize, String)> {
        self.0.into_iter()
    }
}

/// The texts that places point into.
#[derive(Clone, Copy)]
pub(crate) struct Texts<'a> {
    /// The block.
    pub(crate) block: &'a str,
    /// [`Fields::scratch`].
    pub(crate) scratch: &'a str,
    /// Whether the block holds control characters, which JSON forbids inside strings.
    pub(crate) controls: bool,
}

/// Makes the columns of `schema` from noted places.
pub(crate) fn convert(
    schema: &SchemaRef,
    conversion: Conversion,
    fields: &Fields,
    texts: Texts<'_>,
    mut bad: BadValues,
) -> Result<(RecordBatch, BadValues)> {
    let rows = fields.rows.len();
    let width = schema.fields().len();
    let mut columns = Vec::with_capacity(width);
    for (index, field) in schema.fields().iter().enumerate() {
        let mut cursor = Cursor { places: &fields.places, index, width, rows, texts, field, bad: &mut bad };
        columns.push(cursor.column(conversion)?);
    }
    let keep =
        (!bad.0.is_empty()).then(|| BooleanArray::from_iter((0..rows).map(|row| Some(!bad.0.contains_key(&row)))));
    let Some(keep) = keep else { return Ok((batch(schema, columns, rows)?, bad)) };
    // A bad row may have left a null in a NOT NULL column: filter under a nullable schema first.
    let loose: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    let loose = Arc::new(arrow::datatypes::Schema::new(loose));
    let good = filter_record_batch(&batch(&loose, columns, rows)?, &keep)?;
    let count = good.num_rows();
    Ok((batch(schema, good.columns().to_vec(), count)?, bad))
}

/// A batch that knows its number of rows even without columns.
pub(crate) fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// One column being made.
struct Cursor<'a> {
    places: &'a [Place],
    index: usize,
    width: usize,
    rows: usize,
    texts: Texts<'a>,
    field: &'a Field,
    bad: &'a mut BadValues,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn given(&self, row: usize) -> Given<'a> {
        let place = self.places[row * self.width + self.index];
        let block = self.texts.block;
        match place.kind() {
            Kind::Null => Given::Null,
            Kind::Plain => Given::Plain(&block[place.range()]),
            Kind::Scratch => Given::Plain(&self.texts.scratch[place.range()]),
            Kind::String => Given::String(&block[place.range()]),
            Kind::Escaped => Given::Escaped(&block[place.range()]),
            Kind::Number => Given::Number(&block[place.range()]),
            Kind::True => Given::Bool(true),
            Kind::False => Given::Bool(false),
            Kind::Nested => Given::Nested(&block[place.range()]),
        }
    }

    #[cold]
    fn reject(&mut self, row: usize, what: &str) {
        let (field, given) = (self.field, self.given(row));
        self.bad.add(row, || match given {
            Given::Null => {
                format!("column \"{}\" ({}): the value is null or missing, {what}", field.name(), sql_type(field))
            }
            given => format!("column \"{}\" ({}): {} {what}", field.name(), sql_type(field), given.describe()),
        });
    }

    fn column(&mut self, conversion: Conversion) -> Result<ArrayRef> {
        Ok(match self.field.data_type() {
            DataType::Boolean => self.booleans(),
            DataType::Int8 => Arc::new(self.integers::<Int8Type>()),
            DataType::Int16 => Arc::new(self.integers::<Int16Type>()),
            DataType::Int32 => Arc::new(self.integers::<Int32Type>()),
            DataType::Int64 => Arc::new(self.integers::<Int64Type>()),
            DataType::Float32 => Arc::new(self.primitives::<Float32Type>(|given| {
                let value = float(given)? as f32;
                if value.is_infinite() && matches!(given, Given::Number(_)) { Err(OUT_OF_RANGE) } else { Ok(value) }
            })),
            DataType::Float64 => Arc::new(self.primitives::<Float64Type>(float)),
            DataType::Decimal128(precision, scale) => {
                let (precision, scale) = (*precision, *scale);
                let array = self.primitives::<Decimal128Type>(|given| decimal(given, precision, scale));
                Arc::new(array.with_precision_and_scale(precision, scale)?)
            }
            DataType::Utf8 if is_json(self.field) => self.json_text(),
            DataType::Utf8 => self.strings(),
            DataType::Binary => self.bytes(),
            DataType::Date32 => {
                let mut cache = DateCache::default();
                Arc::new(
                    self.primitives::<Date32Type>(|given| text(given, NOT_DATE, |text| value::date(text, &mut cache))),
                )
            }
            DataType::Time64(TimeUnit::Microsecond) => {
                Arc::new(self.primitives::<Time64MicrosecondType>(|given| text(given, NOT_TIME, value::time)))
            }
            DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                let zone = zone.clone();
                let mut cache = DateCache::default();
                let array =
                    self.primitives::<TimestampMicrosecondType>(|given| timestamp(given, conversion.epoch, &mut cache));
                Arc::new(array.with_timezone_opt(zone))
            }
            DataType::Interval(ArrowIntervalUnit::MonthDayNano) => {
                Arc::new(self.primitives::<IntervalMonthDayNanoType>(|given| {
                    let config = IntervalParseConfig::new(IntervalUnit::Second);
                    match given {
                        Given::Plain(text) | Given::String(text) => {
                            parse_interval_month_day_nano_config(text, config).map_err(|_| NOT_INTERVAL)
                        }
                        Given::Escaped(text) => unescape(text)
                            .and_then(|text| parse_interval_month_day_nano_config(&text, config).ok())
                            .ok_or(NOT_INTERVAL),
                        _ => Err(NOT_INTERVAL),
                    }
                }))
            }
            DataType::List(_) | DataType::Struct(_) => self.nested()?,
            _ => {
                return Err(RuntimeError::Internal {
                    place: "text format",
                    reason: check_type(self.field).err().unwrap_or_default(),
                });
            }
        })
    }

    /// A null where the column is NOT NULL makes the row bad.
    #[inline]
    fn null(&mut self, row: usize) {
        if !self.field.is_nullable() {
            self.reject(row, NOT_NULL);
        }
    }

    #[inline]
    fn primitives<T: ArrowPrimitiveType>(
        &mut self,
        mut parse: impl FnMut(Given<'a>) -> Result<T::Native, &'static str>,
    ) -> PrimitiveArray<T> {
        let mut values: Vec<T::Native> = Vec::with_capacity(self.rows);
        let mut nulls = NullBufferBuilder::new(self.rows);
        for row in 0..self.rows {
            let given = self.given(row);
            if matches!(given, Given::Null) {
                self.null(row);
                nulls.append_null();
                values.push(T::default_value());
                continue;
            }
            match parse(given) {
                Ok(value) => {
                    values.push(value);
                    nulls.append_non_null();
                }
                Err(what) => {
                    self.reject(row, what);
                    values.push(T::default_value());
                    nulls.append_null();
                }
            }
        }
        PrimitiveArray::new(ScalarBuffer::from(values), nulls.finish())
    }

    fn integers<T: ArrowPrimitiveType>(&mut self) -> PrimitiveArray<T>
    where
        T::Native: TryFrom<i64>,
    {
        self.primitives::<T>(|given| T::Native::try_from(integer(given)?).map_err(|_| OUT_OF_RANGE))
    }

    fn booleans(&mut self) -> ArrayRef {
        let mut values = BooleanBufferBuilder::new(self.rows);
        let mut nulls = NullBufferBuilder::new(self.rows);
        for row in 0..self.rows {
            let value = match self.given(row) {
                Given::Bool(value) => Some(value),
                Given::Plain(text) => value::boolean(text.trim().as_bytes()),
                _ => None,
            };
            match (value, self.given(row)) {
                (Some(_), _) => nulls.append_non_null(),
                (None, Given::Null) => {
                    self.null(row);
                    nulls.append_null();
                }
                (None, _) => {
                    self.reject(row, NOT_BOOLEAN);
                    nulls.append_null();
                }
            }
            values.append(value.unwrap_or(false));
        }
        Arc::new(BooleanArray::new(values.finish(), nulls.finish()))
    }

    /// Bytes that all rows of the column take, at most.
    fn total_length(&self) -> usize {
        (0..self.rows).map(|row| self.places[row * self.width + self.index].range().len()).sum()
    }

    fn strings(&mut self) -> ArrayRef {
        let mut builder = StringBuilder::with_capacity(self.rows, self.total_length());
        let controls = self.texts.controls;
        for row in 0..self.rows {
            match self.given(row) {
                Given::Null => {
                    self.null(row);
                    builder.append_null();
                }
                Given::Plain(text) => builder.append_value(text),
                Given::String(text) if !controls || !text.bytes().any(|byte| byte < 0x20) => builder.append_value(text),
                Given::Escaped(_) => match self.unescape(row) {
                    Some(text) => builder.append_value(text),
                    None => {
                        self.reject(row, BAD_STRING);
                        builder.append_null();
                    }
                },
                other => {
                    self.reject(row, if matches!(other, Given::String(_)) { BAD_STRING } else { NOT_TEXT });
                    builder.append_null();
                }
            }
        }
        Arc::new(builder.finish())
    }

    /// The JSON text of a string value, quotes included.
    fn with_quotes(&self, row: usize) -> &'a str {
        let range = self.places[row * self.width + self.index].range();
        &self.texts.block[range.start - 1..range.end + 1]
    }

    fn unescape(&self, row: usize) -> Option<String> {
        serde_json::from_str(self.with_quotes(row)).ok()
    }

    fn bytes(&mut self) -> ArrayRef {
        let mut builder = BinaryBuilder::with_capacity(self.rows, self.total_length() / 2);
        for row in 0..self.rows {
            let bytes = match self.given(row) {
                Given::Null => {
                    self.null(row);
                    builder.append_null();
                    continue;
                }
                Given::Plain(text) | Given::String(text) => value::hex(text.as_bytes()),
                Given::Escaped(_) => self.unescape(row).and_then(|text| value::hex(text.as_bytes())),
                _ => None,
            };
            match bytes {
                Some(bytes) => builder.append_value(bytes),
                None => {
                    self.reject(row, NOT_HEX);
                    builder.append_null();
                }
            }
        }
        Arc::new(builder.finish())
    }

    /// The value's own JSON text; CSV fields hold JSON.
    fn json_value(&self, row: usize) -> Option<&'a str> {
        match self.given(row) {
            Given::Null => None,
            Given::Plain(text) | Given::Number(text) | Given::Nested(text) => Some(text),
            Given::String(_) | Given::Escaped(_) => Some(self.with_quotes(row)),
            Given::Bool(value) => Some(if value { "true" } else { "false" }),
        }
    }

    fn json_text(&mut self) -> ArrayRef {
        let mut builder = StringBuilder::with_capacity(self.rows, self.total_length());
        for row in 0..self.rows {
            match self.json_value(row) {
                None => {
                    self.null(row);
                    builder.append_null();
                }
                Some(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => builder.append_value(text),
                Some(_) => {
                    self.reject(row, NOT_JSON);
                    builder.append_null();
                }
            }
        }
        Arc::new(builder.finish())
    }

    /// Arrays and structs go through Arrow's JSON decoder: all rows at once, and one by one when that fails.
    fn nested(&mut self) -> Result<ArrayRef> {
        let field = self.field.clone().with_nullable(true);
        let rows: Vec<String> = (0..self.rows).map(|row| self.json_value(row).unwrap_or("null").to_owned()).collect();
        if !self.field.is_nullable() {
            for row in 0..self.rows {
                if matches!(self.given(row), Given::Null) {
                    self.reject(row, NOT_NULL);
                }
            }
        }
        if let Ok(array) = decode_nested(&field, &rows) {
            return Ok(array);
        }
        let mut cleaned = Vec::with_capacity(rows.len());
        for (row, text) in rows.into_iter().enumerate() {
            match decode_nested(&field, std::slice::from_ref(&text)) {
                Ok(_) => cleaned.push(text),
                Err(reason) => {
                    self.reject(row, &format!("does not fit: {reason}"));
                    cleaned.push("null".to_owned());
                }
            }
        }
        Ok(decode_nested(&field, &cleaned)?)
    }
}

/// One nested column from the JSON text of each row.
fn decode_nested(field: &Field, rows: &[String]) -> Result<ArrayRef, arrow::error::ArrowError> {
    let wrapped = Field::new("v", field.data_type().clone(), true);
    let schema = Arc::new(arrow::datatypes::Schema::new(vec![wrapped]));
    let mut decoder = arrow::json::ReaderBuilder::new(schema).with_batch_size(rows.len().max(1)).build_decoder()?;
    let mut text = String::with_capacity(rows.iter().map(|row| row.len() + 8).sum());
    for row in rows {
        // Arrow's decoder passes over newlines between tokens, and its rows must be apart.
        text.push_str("{\"v\":");
        text.push_str(row);
        text.push_str("}\n");
    }
    let mut bytes = text.as_bytes();
    while !bytes.is_empty() {
        let read = decoder.decode(bytes)?;
        if read == 0 {
            break;
        }
        bytes = &bytes[read..];
    }
    let broken = || arrow::error::ArrowError::JsonError("the value is not one complete JSON value".to_owned());
    if !bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(broken());
    }
    match decoder.flush()? {
        Some(batch) if batch.num_rows() == rows.len() => Ok(Arc::clone(batch.column(0))),
        None if rows.is_empty() => Ok(arrow::array::new_empty_array(field.data_type())),
        _ => Err(broken()),
    }
}
