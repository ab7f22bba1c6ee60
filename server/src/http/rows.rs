//! Rows as JSON.
//!
//! Every column is always there, NULL as `null`. BIGINT and NUMERIC keep all their digits: a client whose numbers are
//! doubles (JavaScript beyond 2^53) must parse them as text. NaN and infinities, which JSON cannot write, are `null`;
//! BYTEA is hexadecimal; times are ISO 8601; INTERVAL is text.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;
use serde::Serialize;
use weir_planner::SqlType;

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ResultColumn {
    /// Its name in each row. A name that a SELECT gives twice gets a number: `id`, `id_2`.
    pub name: String,
    /// PostgreSQL's name of the type.
    #[serde(rename = "type")]
    #[schema(example = "timestamp with time zone")]
    pub data_type: String,
}

/// Writes batches of one result.
pub(super) struct RowWriter {
    names: Vec<String>,
    columns: Vec<ResultColumn>,
}

impl RowWriter {
    pub(super) fn new(schema: &SchemaRef) -> Self {
        let names = distinct_names(schema);
        let columns = schema.fields().iter().zip(&names).map(|(field, name)| ResultColumn {
            name: name.clone(),
            data_type: SqlType::of_field(field).map_or_else(|| field.data_type().to_string(), |t| t.to_string()),
        });
        Self { columns: columns.collect(), names }
    }

    pub(super) fn columns(&self) -> &[ResultColumn] {
        &self.columns
    }

    /// One JSON object a line.
    pub(super) fn lines(&self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        // The types are the batch's own: a stream may be laxer about nullability than the schema it announced.
        let fields = batch.schema_ref().fields().iter().zip(&self.names);
        let fields = fields.map(|(field, name)| Field::new(name, field.data_type().clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let named = RecordBatch::try_new_with_options(schema, batch.columns().to_vec(), &options)?;
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
        writer.write(&named)?;
        writer.finish()?;
        Ok(writer.into_inner())
    }
}

fn distinct_names(schema: &Schema) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::new();
    let given: HashSet<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let mut names = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let mut name = field.name().clone();
        let mut number = 1;
        while !taken.insert(name.clone()) {
            number += 1;
            name = format!("{}_{number}", field.name());
            while given.contains(name.as_str()) {
                number += 1;
                name = format!("{}_{number}", field.name());
            }
        }
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{
        ArrayRef, BinaryArray, Decimal128Array, Float64Array, Int64Array, IntervalMonthDayNanoArray, ListArray,
        StringArray, TimestampMicrosecondArray,
    };
    use arrow::datatypes::{DataType, Int32Type, IntervalMonthDayNano};

    fn lines(columns: Vec<(&str, ArrayRef)>) -> String {
        let fields: Vec<_> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), false)).collect();
        let schema = Arc::new(Schema::new(fields));
        let lax = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect::<Vec<_>>();
        let arrays = columns.into_iter().map(|(_, array)| array).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(lax)), arrays).unwrap();
        String::from_utf8(RowWriter::new(&schema).lines(&batch).unwrap()).unwrap()
    }

    #[test]
    fn cells_keep_their_digits_and_their_nulls() {
        let decimals = Decimal128Array::from(vec![Some(12_345_678_901_234_567_890_123_400_i128), None])
            .with_precision_and_scale(38, 10)
            .unwrap();
        let text = lines(vec![
            ("big", Arc::new(Int64Array::from(vec![Some(9_007_199_254_740_993), None]))),
            ("exact", Arc::new(decimals)),
            ("real", Arc::new(Float64Array::from(vec![0.1, f64::NAN]))),
            ("text", Arc::new(StringArray::from(vec!["a\n\"b\" ü", "\u{2028}"]))),
            ("at", Arc::new(TimestampMicrosecondArray::from(vec![1_357_000_000_500_000, 0]).with_timezone("UTC"))),
        ]);
        assert_eq!(
            text,
            "{\"big\":9007199254740993,\"exact\":1234567890123456.7890123400,\"real\":0.1,\"text\":\"a\\n\\\"b\\\" ü\",\
             \"at\":\"2013-01-01T00:26:40.500Z\"}\n\
             {\"big\":null,\"exact\":null,\"real\":null,\"text\":\"\u{2028}\",\"at\":\"1970-01-01T00:00:00Z\"}\n"
        );
    }

    #[test]
    fn nested_and_rare_types_are_written() {
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None])]);
        let interval = IntervalMonthDayNanoArray::from(vec![IntervalMonthDayNano::new(1, 2, 3_000_000_000)]);
        let text = lines(vec![
            ("list", Arc::new(list)),
            ("bytes", Arc::new(BinaryArray::from(vec![b"\x00\xffA".as_slice()]))),
            ("span", Arc::new(interval)),
        ]);
        assert_eq!(text, "{\"list\":[1,null],\"bytes\":\"00ff41\",\"span\":\"1 mons 2 days 3.000000000 secs\"}\n");
    }

    #[test]
    fn a_name_given_twice_is_numbered() {
        let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let columns = ["id", "id", "id_2", "id"].map(|name| (name, Arc::clone(&one))).to_vec();
        assert_eq!(lines(columns), "{\"id\":1,\"id_3\":1,\"id_2\":1,\"id_4\":1}\n");
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let columns = RowWriter::new(&schema).columns().to_vec();
        assert_eq!(columns, [ResultColumn { name: "n".into(), data_type: "bigint".into() }]);
    }
}
