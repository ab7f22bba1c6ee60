//! DataFusion's batch answer over the same files, read by DataFusion's own readers.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::prelude::{CsvReadOptions, SessionConfig, SessionContext};

use crate::Row;

/// A context in which `flights`, `weather`, `planes` and `airlines` are the given files.
pub async fn flights(flights: &Path, weather: &Path, planes: &Path, airlines: &Path) -> SessionContext {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    let files = [
        ("flights", flights, flights_schema()),
        ("weather", weather, weather_schema()),
        ("planes", planes, planes_schema()),
        ("airlines", airlines, columns(&[("carrier", DataType::Utf8), ("name", DataType::Utf8)])),
    ];
    for (name, path, schema) in files {
        // DataFusion 55 heeds `null_regex` when it infers a schema, and not when it reads: NA is told by hand.
        let texts =
            Schema::new(schema.fields().iter().map(|f| Field::new(f.name(), DataType::Utf8, true)).collect::<Vec<_>>());
        let raw = format!("{name}_as_read");
        let options = CsvReadOptions::new().schema(&texts).has_header(true);
        context.register_csv(raw.as_str(), path.to_str().unwrap(), options).await.unwrap();
        let column = |f: &Arc<Field>| format!("arrow_cast(nullif({0}, 'NA'), '{1}') AS {0}", f.name(), f.data_type());
        let columns: Vec<String> = schema.fields().iter().map(column).collect();
        let view = format!("CREATE VIEW {name} AS SELECT {} FROM {raw}", columns.join(", "));
        context.sql(&view).await.unwrap_or_else(|e| panic!("{view}\n{e}")).collect().await.unwrap();
    }
    context
}

/// The answer to `sql`, cells as text.
pub async fn answer(context: &SessionContext, sql: &str) -> Vec<Row> {
    let frame = context.sql(sql).await.unwrap_or_else(|e| panic!("{sql}\n{e}"));
    let batches = frame.collect().await.unwrap_or_else(|e| panic!("{sql}\n{e}"));
    batches.iter().flat_map(rows_of).collect()
}

/// The rows of a batch, cells as text.
pub fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let options = FormatOptions::default();
    let formatters: Vec<ArrayFormatter<'_>> =
        batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
    (0..batch.num_rows())
        .map(|i| {
            let cell = |(formatter, column): (&ArrayFormatter<'_>, &Arc<dyn Array>)| {
                column.is_valid(i).then(|| formatter.value(i).to_string())
            };
            formatters.iter().zip(batch.columns()).map(cell).collect()
        })
        .collect()
}

fn columns(columns: &[(&str, DataType)]) -> Schema {
    Schema::new(columns.iter().map(|(name, t)| Field::new(*name, t.clone(), true)).collect::<Vec<_>>())
}

fn utc() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

fn flights_schema() -> Schema {
    use DataType::{Float64, Int32, Utf8};
    columns(&[
        ("year", Int32),
        ("month", Int32),
        ("day", Int32),
        ("dep_time", Int32),
        ("sched_dep_time", Int32),
        ("dep_delay", Float64),
        ("arr_time", Int32),
        ("sched_arr_time", Int32),
        ("arr_delay", Float64),
        ("carrier", Utf8),
        ("flight", Int32),
        ("tailnum", Utf8),
        ("origin", Utf8),
        ("dest", Utf8),
        ("air_time", Float64),
        ("distance", Float64),
        ("hour", Int32),
        ("minute", Int32),
        ("time_hour", utc()),
    ])
}

fn weather_schema() -> Schema {
    use DataType::{Float64, Int32, Utf8};
    columns(&[
        ("origin", Utf8),
        ("year", Int32),
        ("month", Int32),
        ("day", Int32),
        ("hour", Int32),
        ("temp", Float64),
        ("dewp", Float64),
        ("humid", Float64),
        ("wind_dir", Float64),
        ("wind_speed", Float64),
        ("wind_gust", Float64),
        ("precip", Float64),
        ("pressure", Float64),
        ("visib", Float64),
        ("time_hour", utc()),
    ])
}

fn planes_schema() -> Schema {
    use DataType::{Float64, Int32, Utf8};
    columns(&[
        ("tailnum", Utf8),
        ("year", Int32),
        ("type", Utf8),
        ("manufacturer", Utf8),
        ("model", Utf8),
        ("engines", Int32),
        ("seats", Int32),
        ("speed", Float64),
        ("engine", Utf8),
    ])
}
