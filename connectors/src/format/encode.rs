//! Rows to bytes: CSV, JSON lines, Parquet, for files that are written piece by piece.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::writer::{EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder};
use arrow::json::{Encoder as JsonValueEncoder, WriterBuilder as JsonWriterBuilder};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression as ParquetCompression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use weir_runtime::message::Chunk;
use weir_runtime::{Result, RuntimeError};

use super::{CsvOptions, Format, is_json};

/// Compression of a whole file (Parquet compresses its own pages).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// gzip, `.gz`
    Gzip,
    /// Zstandard, `.zst`
    Zstd,
}

/// The column in front that tells an insertion (`+I`) from a retraction (`-D`).
pub(crate) const OP_COLUMN: &str = "op";

/// The schema of what is written: with the `op` column in front when rows may be retracted.
pub(crate) fn written_schema(schema: &SchemaRef, changelog: bool) -> SchemaRef {
    if !changelog {
        return Arc::clone(schema);
    }
    let op = Arc::new(Field::new(OP_COLUMN, DataType::Utf8, false));
    Arc::new(Schema::new(std::iter::once(op).chain(schema.fields().iter().cloned()).collect::<Vec<FieldRef>>()))
}

/// The chunk's rows as they are written.
pub(crate) fn written_batch(schema: &SchemaRef, chunk: &Chunk, changelog: bool) -> Result<RecordBatch> {
    let mut columns = chunk.batch().columns().to_vec();
    if changelog {
        let ops = (0..chunk.num_rows()).map(|row| Some(if chunk.op(row) > 0 { "+I" } else { "-D" }));
        columns.insert(0, Arc::new(ops.collect::<StringArray>()));
    }
    super::batch(schema, columns, chunk.num_rows())
}

/// Rows as JSON lines: nulls written out, timestamps as RFC 3339, JSON columns as they are.
pub(crate) fn json_lines(batch: &RecordBatch, out: &mut Vec<u8>) -> Result<()> {
    let mut writer = JsonWriterBuilder::new()
        .with_explicit_nulls(true)
        .with_encoder_factory(Arc::new(RawJson))
        .build::<_, LineDelimited>(out);
    writer.write(batch)?;
    writer.finish()?;
    Ok(())
}

/// Writes columns that hold JSON as JSON rather than as strings.
#[derive(Debug)]
struct RawJson;

struct RawJsonEncoder<'a>(&'a StringArray);

impl JsonValueEncoder for RawJsonEncoder<'_> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        // A newline between tokens would break the line in two.
        out.extend(self.0.value(index).bytes().filter(|byte| !matches!(byte, b'\n' | b'\r')));
    }
}

impl EncoderFactory for RawJson {
    fn make_default_encoder<'a>(
        &self,
        field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let text = array.as_any().downcast_ref::<StringArray>().filter(|_| is_json(field));
        Ok(text.map(|text| NullableEncoder::new(Box::new(RawJsonEncoder(text)), text.nulls().cloned())))
    }
}

/// Encodes the rows of one file.
pub(crate) struct FileEncoder {
    inner: Inner,
}

enum Inner {
    Csv { options: CsvOptions, header_due: bool, out: Compressor },
    Json { out: Compressor },
    Parquet(Box<ArrowWriter<Vec<u8>>>),
}

impl FileEncoder {
    /// For rows of `schema`.
    pub(crate) fn new(format: &Format, compression: Compression, schema: &SchemaRef) -> Result<Self> {
        let inner = match format {
            Format::Csv(options) => {
                Inner::Csv { options: options.clone(), header_due: options.header, out: Compressor::new(compression)? }
            }
            Format::Json { .. } => Inner::Json { out: Compressor::new(compression)? },
            Format::Parquet => {
                let level = ZstdLevel::try_new(1).map_err(parquet_fault)?;
                let properties = WriterProperties::builder().set_compression(ParquetCompression::ZSTD(level)).build();
                let writer = ArrowWriter::try_new(Vec::new(), Arc::clone(schema), Some(properties));
                Inner::Parquet(Box::new(writer.map_err(parquet_fault)?))
            }
        };
        Ok(Self { inner })
    }

    /// Encode rows; what is ready to be written is appended to `out`.
    pub(crate) fn write(&mut self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<()> {
        match &mut self.inner {
            Inner::Csv { options, header_due, out: compressor } => {
                let mut text = Vec::new();
                let mut builder = arrow::csv::WriterBuilder::new()
                    .with_header(std::mem::take(header_due))
                    .with_delimiter(options.delimiter)
                    .with_null(options.null.clone());
                if let Some(quote) = options.quote {
                    builder = builder.with_quote(quote);
                }
                let mut writer = builder.build(&mut text);
                writer.write(batch)?;
                drop(writer);
                compressor.write(&text, out)
            }
            Inner::Json { out: compressor } => {
                let mut text = Vec::new();
                json_lines(batch, &mut text)?;
                compressor.write(&text, out)
            }
            Inner::Parquet(writer) => {
                writer.write(batch).map_err(parquet_fault)?;
                out.append(writer.inner_mut());
                Ok(())
            }
        }
    }

    /// Bytes that are held back at present (Parquet's open row group).
    pub(crate) fn pending(&self) -> usize {
        match &self.inner {
            Inner::Csv { .. } | Inner::Json { .. } => 0,
            Inner::Parquet(writer) => writer.in_progress_size(),
        }
    }

    /// End the file; nothing may be written afterwards.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<()> {
        match &mut self.inner {
            Inner::Csv { out: compressor, .. } | Inner::Json { out: compressor } => compressor.finish(out),
            Inner::Parquet(writer) => {
                writer.finish().map_err(parquet_fault)?;
                out.append(writer.inner_mut());
                Ok(())
            }
        }
    }
}

fn parquet_fault(error: parquet::errors::ParquetError) -> RuntimeError {
    RuntimeError::Arrow(ArrowError::from(error))
}

/// Compresses a stream of bytes.
enum Compressor {
    None,
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Compressor {
    fn new(compression: Compression) -> Result<Self> {
        Ok(match compression {
            Compression::None => Self::None,
            Compression::Gzip => Self::Gzip(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast())),
            Compression::Zstd => Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), 1).map_err(io_fault)?),
        })
    }

    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::None => out.extend_from_slice(bytes),
            Self::Gzip(encoder) => {
                encoder.write_all(bytes).map_err(io_fault)?;
                out.append(encoder.get_mut());
            }
            Self::Zstd(encoder) => {
                encoder.write_all(bytes).map_err(io_fault)?;
                out.append(encoder.get_mut());
            }
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<()> {
        match std::mem::replace(self, Self::None) {
            Self::None => {}
            Self::Gzip(encoder) => out.append(&mut encoder.finish().map_err(io_fault)?),
            Self::Zstd(encoder) => out.append(&mut encoder.finish().map_err(io_fault)?),
        }
        Ok(())
    }
}

fn io_fault(error: std::io::Error) -> RuntimeError {
    RuntimeError::Internal { place: "compression", reason: error.to_string() }
}
