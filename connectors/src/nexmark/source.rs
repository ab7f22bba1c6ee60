//! Nexmark events as a source: only the wanted columns are made.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringBuilder, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};
use weir_runtime::graph::ConnectorOptions;
use weir_runtime::source::{Source, SourceRequest};
use weir_runtime::{Result, RuntimeError};

use super::generator::{Column, ColumnType, Kind, ROUND};
use super::{NAME, Options};
use crate::counted::{CountedSource, Generate};
use crate::format::{BATCH_ROWS, sql_type};
use crate::options::nearest;

/// Open the source.
pub(crate) fn open(options: &ConnectorOptions, request: &SourceRequest) -> Result<Arc<dyn Source>> {
    let options = Options::parse(options)?;
    let schema = request.projected()?;
    let columns = columns(options.kind, &schema)?;
    let name = format!("{NAME}-{}", options.kind.name());
    Ok(Arc::new(CountedSource(Arc::new(Nexmark { options, name, schema, columns }))))
}

/// Check options and columns.
pub(crate) fn validate(options: &ConnectorOptions, declared: &SchemaRef) -> Result<()> {
    let options = Options::parse(options)?;
    columns(options.kind, declared).map(|_| ())
}

/// The generator's columns behind those of the schema, by name.
fn columns(kind: Kind, schema: &SchemaRef) -> Result<Vec<Column>> {
    let known = kind.columns();
    let listing = || {
        let columns: Vec<String> = known
            .iter()
            .map(|column| {
                let name = match column.column_type() {
                    ColumnType::Number => "BIGINT",
                    ColumnType::Text => "TEXT",
                    ColumnType::Time => "TIMESTAMP",
                };
                format!("{} {name}", column.name())
            })
            .collect();
        columns.join(", ")
    };
    let fault = |field: &Field, reason: String| RuntimeError::Connector {
        connector: NAME.to_owned(),
        subject: format!("column \"{}\"", field.name()),
        reason: format!("{reason}; type '{}' has: {}", kind.name(), listing()),
    };
    schema
        .fields()
        .iter()
        .map(|field| {
            let Some(column) = known.iter().copied().find(|column| column.name() == field.name()) else {
                let near = nearest(field.name(), known.iter().map(|column| column.name()))
                    .map(|name| format!(" (did you mean \"{name}\"?)"))
                    .unwrap_or_default();
                return Err(fault(field, format!("is not made by the generator{near}")));
            };
            let fits = match column.column_type() {
                ColumnType::Number => field.data_type() == &DataType::Int64,
                ColumnType::Text => field.data_type() == &DataType::Utf8,
                ColumnType::Time => matches!(field.data_type(), DataType::Timestamp(TimeUnit::Microsecond, _)),
            };
            if fits { Ok(column) } else { Err(fault(field, format!("cannot be {}", sql_type(field)))) }
        })
        .collect()
}

struct Nexmark {
    options: Options,
    name: String,
    schema: SchemaRef,
    columns: Vec<Column>,
}

impl Nexmark {
    fn column(&self, column: Column, events: &[u64], data_type: &DataType) -> Result<ArrayRef> {
        let (kind, config) = (self.options.kind, &self.options.config);
        Ok(match column.column_type() {
            ColumnType::Number => {
                Arc::new(events.iter().map(|event| config.number(kind, column, *event)).collect::<Int64Array>())
            }
            ColumnType::Time => {
                let times = events.iter().map(|event| config.timestamp(column, *event));
                let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from_iter_values(times));
                cast(&times, data_type)?
            }
            ColumnType::Text => {
                let mut builder = StringBuilder::with_capacity(events.len(), events.len() * 32);
                let mut text = Vec::new();
                for event in events {
                    text.clear();
                    config.text(kind, column, *event, &mut text);
                    builder.append_value(std::str::from_utf8(&text).unwrap_or_default());
                }
                Arc::new(builder.finish())
            }
        })
    }
}

/// A counter is a round of 50 events.
impl Generate for Nexmark {
    fn name(&self) -> &str {
        &self.name
    }

    fn total(&self) -> Option<u64> {
        self.options.events.map(|events| events.div_ceil(ROUND))
    }

    fn per_second(&self) -> Option<f64> {
        self.options.events_per_second.map(|rate| rate / ROUND as f64)
    }

    fn per_batch(&self) -> u64 {
        let of_round = self.options.kind.of_round();
        BATCH_ROWS as u64 / (of_round.end - of_round.start)
    }

    fn batch(&self, first: u64, stride: u64, count: u64) -> Result<RecordBatch> {
        let end = self.options.events.unwrap_or(u64::MAX);
        let events: Vec<u64> = (0..count)
            .flat_map(|index| self.options.kind.of_round().map(move |offset| (first + index * stride) * ROUND + offset))
            .filter(|event| *event < end)
            .collect();
        let columns = self
            .columns
            .iter()
            .zip(self.schema.fields())
            .map(|(column, field)| self.column(*column, &events, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        crate::format::batch(&self.schema, columns, events.len())
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Schema;
    use weir_runtime::source::{SourceEvent, SplitState};

    use super::*;
    use crate::format::encode::json_lines;
    use crate::nexmark::{NexmarkConfig, write_files};
    use crate::{ConnectorContext, source};

    fn schema(kind: Kind) -> SchemaRef {
        let field = |column: &Column| {
            let data_type = match column.column_type() {
                ColumnType::Number => DataType::Int64,
                ColumnType::Text => DataType::Utf8,
                ColumnType::Time => DataType::Timestamp(TimeUnit::Microsecond, None),
            };
            Field::new(column.name(), data_type, true)
        };
        Arc::new(Schema::new(kind.columns().iter().map(field).collect::<Vec<_>>()))
    }

    /// All rows, from a new reader after each batch when `restart`.
    async fn rows(source: &dyn Source, parallelism: u32, restart: bool) -> Vec<String> {
        let mut splits = source.discover(&[], parallelism).await.unwrap();
        let mut reader = source.reader(splits.clone()).await.unwrap();
        let mut rows = Vec::new();
        loop {
            match reader.next().await.unwrap() {
                SourceEvent::Rows { split, batch, position, .. } => {
                    let mut text = Vec::new();
                    json_lines(&batch, &mut text).unwrap();
                    rows.extend(String::from_utf8(text).unwrap().lines().map(str::to_owned));
                    if restart {
                        let state = |state: SplitState| {
                            if state.id == split { SplitState { position: position.clone(), ..state } } else { state }
                        };
                        splits = splits.into_iter().map(state).collect();
                        reader = source.reader(splits.clone()).await.unwrap();
                    }
                }
                SourceEvent::End => break,
                _ => {}
            }
        }
        rows.sort();
        rows
    }

    #[tokio::test]
    async fn the_source_and_the_files_hold_the_same_events() {
        let dir = tempfile::tempdir().unwrap();
        let written = write_files(dir.path(), 20_030, 3, NexmarkConfig::default()).unwrap();
        assert_eq!(written.persons + written.auctions + written.bids, 20_030);
        for kind in [Kind::Person, Kind::Auction, Kind::Bid] {
            let schema = schema(kind);
            let projection = (0..schema.fields().len()).collect();
            let request = SourceRequest { relation: "n".to_owned(), declared: schema, projection };
            let open = |name: &str, pairs: &[(&str, &str)]| {
                let options = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
                source(name, &options, &request, &ConnectorContext::default()).unwrap()
            };
            let nexmark = open("nexmark", &[("type", kind.name()), ("events", "20030")]);
            let path = dir.path().join(format!("{}s-*.jsonl", kind.name()));
            let files = open("file", &[("path", path.to_str().unwrap())]);
            let wanted = rows(nexmark.as_ref(), 1, false).await;
            assert_eq!(rows(nexmark.as_ref(), 3, true).await, wanted);
            assert_eq!(rows(files.as_ref(), 2, false).await, wanted);
        }
    }
}
