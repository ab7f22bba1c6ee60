//! Parquet: the wanted columns of a range of row groups, cast to the declared types.
//!
//! Columns are matched by name. A value that does not fit the declared type makes its row bad.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options, filter_record_batch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::reader::ChunkReader;
use weir_runtime::Result;

use super::{BATCH_ROWS, sql_type};
use crate::bad_rows::{BadLine, quoted};

/// A file's row groups: how many rows each has.
pub(crate) fn row_groups<R: ChunkReader>(file: &R) -> Result<Vec<u64>, String> {
    let metadata = ArrowReaderMetadata::load(file, ArrowReaderOptions::new()).map_err(|error| error.to_string())?;
    Ok(metadata.metadata().row_groups().iter().map(|group| group.num_rows().max(0) as u64).collect())
}

/// Reads the rows of some row groups.
pub(crate) struct ParquetRows {
    reader: ParquetRecordBatchReader,
    schema: SchemaRef,
    /// For each wanted column, where it lies in the batches read.
    sources: Vec<usize>,
}

impl ParquetRows {
    /// The columns of `schema` in the row groups `groups` (`None`: all), from the `skip`th row on. `Err`: a sentence.
    pub(crate) fn open<R: ChunkReader + 'static>(
        file: R,
        schema: SchemaRef,
        groups: Option<Range<usize>>,
        skip: u64,
    ) -> Result<Self, String> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| error.to_string())?;
        let names: Vec<String> = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
        let mut roots = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            match names.iter().position(|name| name == field.name()) {
                Some(root) => roots.push(root),
                None => return Err(format!("it has no column \"{}\"; it has: {}", field.name(), names.join(", "))),
            }
        }
        // The reader yields the chosen columns in the file's order.
        let mut sorted = roots.clone();
        sorted.sort_unstable();
        let sources = roots.iter().map(|root| sorted.partition_point(|other| other < root)).collect();
        let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
        let mut builder = builder.with_projection(mask).with_batch_size(BATCH_ROWS).with_offset(skip as usize);
        if let Some(groups) = groups {
            builder = builder.with_row_groups(groups.collect());
        }
        let reader = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { reader, schema, sources })
    }

    /// The next rows: the good ones, the bad ones (with their index in `offset`), and how many there were in all.
    pub(crate) fn next_rows(&mut self) -> Result<Option<(RecordBatch, Vec<BadLine>, u64)>, String> {
        let Some(batch) = self.reader.next().transpose().map_err(|error| error.to_string())? else { return Ok(None) };
        let rows = batch.num_rows();
        let mut reasons: std::collections::BTreeMap<usize, (String, String)> = std::collections::BTreeMap::new();
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.sources.len());
        for (field, source) in self.schema.fields().iter().zip(&self.sources) {
            let given = batch.column(*source);
            columns.push(fit(field, given, &mut reasons)?);
        }
        let fault = |error: weir_runtime::RuntimeError| error.to_string();
        if reasons.is_empty() {
            return Ok(Some((super::batch(&self.schema, columns, rows).map_err(fault)?, Vec::new(), rows as u64)));
        }
        let loose = self.schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let loose = Arc::new(Schema::new(loose.collect::<Vec<_>>()));
        let keep = BooleanArray::from_iter((0..rows).map(|row| Some(!reasons.contains_key(&row))));
        let good = super::batch(&loose, columns, rows).map_err(fault)?;
        let good = filter_record_batch(&good, &keep).map_err(|error| error.to_string())?;
        let count = good.num_rows();
        let good = super::batch(&self.schema, good.columns().to_vec(), count).map_err(fault)?;
        let bad = reasons
            .into_iter()
            .map(|(row, (reason, raw))| BadLine { offset: row, line: row as u64, reason, raw })
            .collect();
        Ok(Some((good, bad, rows as u64)))
    }
}

/// Cast a column to its declared type; rows whose value does not fit get a reason.
fn fit(
    field: &Field,
    given: &ArrayRef,
    reasons: &mut std::collections::BTreeMap<usize, (String, String)>,
) -> Result<ArrayRef, String> {
    let cast = if given.data_type() == field.data_type() {
        Arc::clone(given)
    } else {
        cast_with_options(given, field.data_type(), &CastOptions { safe: true, ..CastOptions::default() }).map_err(
            |error| {
                format!(
                    "column \"{}\" ({}) cannot be read from {}: {error}",
                    field.name(),
                    sql_type(field),
                    given.data_type()
                )
            },
        )?
    };
    if cast.null_count() > given.null_count() || (!field.is_nullable() && cast.null_count() > 0) {
        for row in (0..cast.len()).filter(|row| cast.is_null(*row)) {
            if given.is_valid(row) {
                let raw = arrow::util::display::array_value_to_string(given, row).unwrap_or_default();
                let reason = format!(
                    "column \"{}\" ({}): {} does not fit",
                    field.name(),
                    sql_type(field),
                    quoted(raw.as_bytes())
                );
                reasons.entry(row).or_insert((reason, raw));
            } else if !field.is_nullable() {
                let reason = format!(
                    "column \"{}\" ({}): the value is null, but the column is NOT NULL",
                    field.name(),
                    sql_type(field)
                );
                reasons.entry(row).or_insert((reason, "null".to_owned()));
            }
        }
    }
    Ok(cast)
}
