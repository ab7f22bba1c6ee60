//! Formats: how rows are spelled in bytes.
//!
//! ```text
//!   block of bytes ──► Scanner (csv.rs, json.rs): where each wanted field lies
//!                        └─► rows.rs: UTF-8, bad rows in order
//!                              └─► column.rs: one typed loop a column ──► RecordBatch
//!   file ──► parquet.rs: row groups, wanted columns, casts ──► RecordBatch
//!   RecordBatch ──► encode.rs ──► bytes
//! ```

mod column;
mod csv;
pub(crate) mod encode;
mod given;
mod json;
pub(crate) mod parquet;
mod rows;
mod types;
mod value;

use std::sync::Arc;

use ::arrow::array::RecordBatch;
use ::arrow::compute::concat_batches;
use ::arrow::datatypes::{DataType, SchemaRef};
use weir_runtime::Result;
use weir_runtime::rejects::BadRow;

pub use self::csv::CsvOptions;
pub use self::given::Epoch;
pub use self::rows::Decoded;

pub(crate) use self::column::{MAX_ROW_BYTES, batch};
pub(crate) use self::types::{check_type, is_json, sql_type};
use crate::bad_rows::{BadLine, raw_text};
use crate::options::{OptionSpec, Reader, bad_option, nearest, option};

/// How many rows a batch has.
pub const BATCH_ROWS: usize = 8192;

/// A format with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values.
    Csv(CsvOptions),
    /// One JSON object a line.
    Json {
        /// How numbers stand for timestamps.
        epoch: Epoch,
    },
    /// Apache Parquet.
    Parquet,
}

/// The names of all formats.
pub(crate) const FORMATS: [&str; 3] = ["csv", "json", "parquet"];

/// Options of the formats when rows are read.
pub(crate) const READ_OPTIONS: &[OptionSpec] = &[
    option("header", "false", "csv: whether the first line names the columns (they are then matched by name)"),
    option("null", "", "csv: the unquoted text that stands for null"),
    option("delimiter", ",", "csv: the character between fields; '\\t' for the tabulator"),
    option("quote", "\"", "csv: the character around fields; empty for none"),
    option("escape", "", "csv: the character in front of a quote inside a quoted field, besides doubling it"),
    option("comment", "", "csv: lines that begin with this character are passed over"),
    option(
        "csv.multiline",
        "true",
        "csv: whether a quoted field may hold newlines; 'false' lets one large file be read in parallel",
    ),
    option("timestamp.format", "text", "text, seconds, millis or micros: how numbers in timestamp columns are read"),
];

/// Options of the formats when rows are written.
pub(crate) const WRITE_OPTIONS: &[OptionSpec] = &[
    option("header", "true", "csv: whether each file's first line names the columns"),
    option("null", "", "csv: the text written for null"),
    option("delimiter", ",", "csv: the character between fields; '\\t' for the tabulator"),
    option("quote", "\"", "csv: the character around fields that need it"),
];

impl Format {
    /// The format that the options ask for. Without `format`, the end of `path` tells it.
    pub(crate) fn read_options(reader: &Reader<'_>, path: Option<&str>) -> Result<Self> {
        let epoch = match reader.text("timestamp.format") {
            None => Epoch::Text,
            Some(text) => match text.to_ascii_lowercase().as_str() {
                "text" => Epoch::Text,
                "seconds" => Epoch::Seconds,
                "millis" => Epoch::Millis,
                "micros" => Epoch::Micros,
                _ => return Err(bad_option("timestamp.format", text, "give 'text', 'seconds', 'millis' or 'micros'")),
            },
        };
        Ok(match name(reader, path)? {
            "csv" => Self::Csv(CsvOptions { epoch, ..csv_options(reader, false)? }),
            "json" => Self::Json { epoch },
            _ => Self::Parquet,
        })
    }

    /// The format that a sink's options ask for.
    pub(crate) fn write_options(reader: &Reader<'_>, path: Option<&str>) -> Result<Self> {
        Ok(match name(reader, path)? {
            "csv" => Self::Csv(csv_options(reader, true)?),
            "json" => Self::Json { epoch: Epoch::Text },
            _ => Self::Parquet,
        })
    }

    /// Name, which is also the extension of files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Csv(_) => "csv",
            Self::Json { .. } => "json",
            Self::Parquet => "parquet",
        }
    }

    /// Whether every column can be carried; otherwise a sentence.
    pub(crate) fn check(&self, schema: &SchemaRef) -> Result<(), String> {
        match self {
            Self::Csv(_) | Self::Json { .. } => schema.fields().iter().try_for_each(|field| check_type(field)),
            Self::Parquet => {
                match schema.fields().iter().find(|field| matches!(field.data_type(), DataType::Interval(_))) {
                    Some(field) => {
                        Err(format!("column \"{}\" is an INTERVAL, which Parquet cannot carry", field.name()))
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

fn name(reader: &Reader<'_>, path: Option<&str>) -> Result<&'static str> {
    let Some(given) = reader.text("format") else {
        let path = path.unwrap_or_default().trim_end_matches(".gz").trim_end_matches(".zst");
        return match path.rsplit_once('.').map(|(_, extension)| extension) {
            Some("csv") => Ok("csv"),
            Some("json" | "jsonl" | "ndjson") => Ok("json"),
            Some("parquet") => Ok("parquet"),
            _ => reader.required("format", "json").map(|_| "json"),
        };
    };
    match given.to_ascii_lowercase().as_str() {
        "csv" => Ok("csv"),
        "json" | "jsonl" | "ndjson" => Ok("json"),
        "parquet" => Ok("parquet"),
        _ => {
            let near = nearest(given, FORMATS).map(|name| format!("did you mean '{name}'? ")).unwrap_or_default();
            Err(bad_option("format", given, format!("{near}the formats are {}", FORMATS.join(", "))))
        }
    }
}

fn csv_options(reader: &Reader<'_>, header: bool) -> Result<CsvOptions> {
    let options = CsvOptions {
        header: reader.boolean("header", header)?,
        null: reader.text("null").unwrap_or_default().to_owned(),
        delimiter: reader.ascii("delimiter", Some(b','))?.unwrap_or(b','),
        quote: reader.ascii("quote", Some(b'"'))?,
        escape: reader.ascii("escape", None)?,
        comment: reader.ascii("comment", None)?,
        multiline: reader.boolean("csv.multiline", true)?,
        epoch: Epoch::Text,
    };
    if options.quote == Some(options.delimiter) {
        let given = char::from(options.delimiter).to_string();
        return Err(bad_option("quote", &given, "give another character than the delimiter"));
    }
    Ok(options)
}

/// Decodes the rows of one file of a text format, block by block.
#[derive(Debug)]
pub struct RowDecoder(Inner);

#[derive(Debug)]
enum Inner {
    Csv(csv::CsvDecoder),
    Json(json::JsonDecoder),
}

impl RowDecoder {
    /// For the columns `projection` of `declared`. `header` is a CSV file's first line, if its columns are found by
    /// name. `Err`: a sentence on why the file cannot be read at all.
    pub fn new(
        format: &Format,
        declared: &SchemaRef,
        projection: &[usize],
        header: Option<&[u8]>,
    ) -> Result<Self, String> {
        let schema = Arc::new(declared.project(projection).map_err(|error| error.to_string())?);
        format.check(&schema)?;
        Ok(Self(match (format, header) {
            (Format::Csv(options), Some(header)) => {
                Inner::Csv(csv::CsvDecoder::named(header, schema, options.clone())?)
            }
            (Format::Csv(options), None) => {
                Inner::Csv(csv::CsvDecoder::positional(declared, projection, schema, options.clone()))
            }
            (Format::Json { epoch }, _) => Inner::Json(json::JsonDecoder::new(schema, *epoch)),
            (Format::Parquet, _) => return Err("Parquet is not read line by line".to_owned()),
        }))
    }

    /// Decode up to `max_rows` rows from the start of `block`. `last`: nothing follows the block, so that its last row
    /// needs no line end.
    pub fn decode(&mut self, block: &[u8], last: bool, max_rows: usize) -> Result<Decoded> {
        match &mut self.0 {
            Inner::Csv(decoder) => rows::decode(decoder, block, last, max_rows),
            Inner::Json(decoder) => rows::decode(decoder, block, last, max_rows),
        }
    }
}

/// Split a CSV text into its header line and the rest. Comment lines and a byte-order mark in front are passed over;
/// `None` when the header's line end is not there yet.
pub(crate) fn split_header<'a>(text: &'a [u8], options: &CsvOptions, last: bool) -> Option<(&'a [u8], usize)> {
    let mut from = if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    loop {
        let rest = &text[from..];
        let (end, next) = match memchr::memchr(b'\n', rest) {
            Some(length) => (from + length, from + length + 1),
            None if last => (text.len(), text.len()),
            None => return None,
        };
        let line = text[from..end].trim_ascii_end();
        let skipped = line.is_empty() || options.comment.is_some_and(|comment| line[0] == comment);
        if !skipped || next == text.len() {
            return Some((line, next));
        }
        from = next;
    }
}

/// What some editors put in front of UTF-8 text.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Decode a whole body (an HTTP request's) of a text format. Bad rows are told with their line numbers. An error
/// means that nothing of the body can be read.
pub fn decode_body(
    format: &Format,
    relation: &str,
    schema: &SchemaRef,
    body: &[u8],
) -> Result<(RecordBatch, Vec<BadRow>)> {
    let broken = |reason: String| weir_runtime::RuntimeError::Connector {
        connector: "http".to_owned(),
        subject: format!("rows for \"{relation}\""),
        reason,
    };
    let projection: Vec<usize> = (0..schema.fields().len()).collect();
    let mut position = 0;
    let mut lines = 0;
    let header = match format {
        Format::Csv(options) if options.header => match split_header(body, options, true) {
            Some((header, next)) => {
                position = next;
                lines = memchr::memchr_iter(b'\n', &body[..next]).count() as u64;
                Some(header)
            }
            None => None,
        },
        _ => {
            position = if body.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            None
        }
    };
    let mut batches = Vec::new();
    let mut bad = Vec::new();
    if position < body.len() {
        let mut decoder = RowDecoder::new(format, schema, &projection, header).map_err(broken)?;
        while position < body.len() {
            let decoded = decoder.decode(&body[position..], true, BATCH_ROWS)?;
            if decoded.consumed == 0 {
                return Err(broken(format!("byte {position} does not begin a row")));
            }
            batches.push(decoded.batch);
            let to_row = |line: BadLine| line.into_row(relation, "http", Some(lines + 1), position as u64);
            bad.extend(decoded.bad.into_iter().map(to_row));
            position += decoded.consumed;
            lines += decoded.lines;
        }
    }
    Ok((concat_batches(schema, &batches)?, bad))
}

/// The first line of a block that can hold no row because it is longer than allowed.
pub(crate) fn oversized(block: &[u8], limit: usize) -> BadLine {
    let reason =
        format!("the row is longer than {limit} bytes (option max_row_bytes), or a quoted field in it is never closed");
    let end = memchr::memchr(b'\n', block).unwrap_or(block.len());
    BadLine { offset: 0, line: 0, reason, raw: raw_text(&block[..end]) }
}

/// A timestamp as text formats spell it, in microseconds since the Unix epoch.
pub(crate) fn parse_timestamp(text: &str) -> Option<i64> {
    value::timestamp(text.trim().as_bytes(), &mut value::DateCache::default())
}
