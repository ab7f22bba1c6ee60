//! Small tables, column by column.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Int16Array, Int32Array, ListBuilder, StringArray, StringBuilder,
};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::catalog::MemTable;
use datafusion::error::Result;
use datafusion_pg_catalog::pg_catalog::oid_field::{kind, oid_field};

/// A table of a known number of rows that columns are added to.
pub(super) struct Table {
    rows: usize,
    fields: Vec<Field>,
    columns: Vec<ArrayRef>,
}

impl Table {
    pub(super) fn new(rows: usize) -> Self {
        Self { rows, fields: Vec::new(), columns: Vec::new() }
    }

    fn column(mut self, field: Field, column: ArrayRef) -> Self {
        self.fields.push(field);
        self.columns.push(column);
        self
    }

    /// Object identifiers.
    pub(super) fn oid(self, name: &str, values: impl IntoIterator<Item = i32>) -> Self {
        self.column(oid_field(name, kind::OID, true), Arc::new(Int32Array::from_iter_values(values)))
    }

    /// The same object identifier in each row.
    pub(super) fn same_oid(self, name: &str, value: i32) -> Self {
        let rows = self.rows;
        self.oid(name, std::iter::repeat_n(value, rows))
    }

    pub(super) fn text<T: Into<String>>(self, name: &str, values: impl IntoIterator<Item = T>) -> Self {
        let values = StringArray::from_iter_values(values.into_iter().map(Into::into));
        self.column(Field::new(name, DataType::Utf8, true), Arc::new(values))
    }

    pub(super) fn optional_text<T: Into<String>>(
        self,
        name: &str,
        values: impl IntoIterator<Item = Option<T>>,
    ) -> Self {
        let values: StringArray = values.into_iter().map(|value| value.map(Into::into)).collect();
        self.column(Field::new(name, DataType::Utf8, true), Arc::new(values))
    }

    pub(super) fn same_text(self, name: &str, value: &str) -> Self {
        let rows = self.rows;
        self.text(name, std::iter::repeat_n(value, rows))
    }

    pub(super) fn null_text(self, name: &str) -> Self {
        let rows = self.rows;
        self.optional_text(name, std::iter::repeat_n(None::<String>, rows))
    }

    pub(super) fn texts(self, name: &str, values: impl IntoIterator<Item = Option<Vec<String>>>) -> Self {
        let mut builder = ListBuilder::new(StringBuilder::new());
        for value in values {
            match value {
                Some(value) => builder.append_value(value.into_iter().map(Some)),
                None => builder.append_null(),
            }
        }
        let array = builder.finish();
        let field = Field::new(name, arrow::array::Array::data_type(&array).clone(), true);
        self.column(field, Arc::new(array))
    }

    pub(super) fn null_texts(self, name: &str) -> Self {
        let rows = self.rows;
        self.texts(name, std::iter::repeat_n(None, rows))
    }

    pub(super) fn int2s(self, name: &str, values: impl IntoIterator<Item = Option<Vec<i16>>>) -> Self {
        let mut builder = ListBuilder::new(arrow::array::Int16Builder::new());
        for value in values {
            match value {
                Some(value) => builder.append_value(value.into_iter().map(Some)),
                None => builder.append_null(),
            }
        }
        let array = builder.finish();
        let field = Field::new(name, arrow::array::Array::data_type(&array).clone(), true);
        self.column(field, Arc::new(array))
    }

    pub(super) fn bool(self, name: &str, values: impl IntoIterator<Item = bool>) -> Self {
        let values: BooleanArray = values.into_iter().map(Some).collect();
        self.column(Field::new(name, DataType::Boolean, true), Arc::new(values))
    }

    pub(super) fn same_bool(self, name: &str, value: bool) -> Self {
        let rows = self.rows;
        self.bool(name, std::iter::repeat_n(value, rows))
    }

    pub(super) fn int2(self, name: &str, values: impl IntoIterator<Item = i16>) -> Self {
        let values = Int16Array::from_iter_values(values);
        self.column(Field::new(name, DataType::Int16, true), Arc::new(values))
    }

    pub(super) fn same_int2(self, name: &str, value: i16) -> Self {
        let rows = self.rows;
        self.int2(name, std::iter::repeat_n(value, rows))
    }

    pub(super) fn int4(self, name: &str, values: impl IntoIterator<Item = i32>) -> Self {
        let values = Int32Array::from_iter_values(values);
        self.column(Field::new(name, DataType::Int32, true), Arc::new(values))
    }

    pub(super) fn optional_int4(self, name: &str, values: impl IntoIterator<Item = Option<i32>>) -> Self {
        let values: Int32Array = values.into_iter().collect();
        self.column(Field::new(name, DataType::Int32, true), Arc::new(values))
    }

    pub(super) fn same_int4(self, name: &str, value: i32) -> Self {
        let rows = self.rows;
        self.int4(name, std::iter::repeat_n(value, rows))
    }

    pub(super) fn same_float4(self, name: &str, value: f32) -> Self {
        let values = Float32Array::from(vec![value; self.rows]);
        self.column(Field::new(name, DataType::Float32, true), Arc::new(values))
    }

    /// The finished table.
    pub(super) fn finish(self) -> Result<Arc<MemTable>> {
        let schema = Arc::new(Schema::new(self.fields));
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), self.columns, &options)?;
        Ok(Arc::new(MemTable::try_new(schema, vec![vec![batch]])?))
    }
}
