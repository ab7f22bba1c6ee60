//! A materialized view or table as a DataFusion table: one consistent snapshot, keys looked up in the state.

use std::fmt;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, Result as DfResult, ScalarValue};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use weir_runtime::operators::ViewCodec;
use weir_runtime::view::ViewSnapshot;
use weir_storage::TableSnapshot;

use crate::engine::ReadableView;

/// Decoded batches that may wait for the query to take them.
const BATCHES_AHEAD: usize = 2;
/// Most combinations of key values that are looked up one by one rather than found by a scan.
const MOST_LOOK_UPS: usize = 10_000;

/// A view or table at one epoch.
#[derive(Debug)]
pub struct ViewTable {
    codec: Arc<ViewCodec>,
    key: Vec<usize>,
    snapshot: ViewSnapshot,
}

impl ViewTable {
    /// The rows that `snapshot` of `view` holds.
    pub fn new(view: &ReadableView, snapshot: ViewSnapshot) -> Self {
        Self { codec: Arc::clone(&view.codec), key: view.handle.key().to_vec(), snapshot }
    }

    /// The keys that the filters allow, one array a key column, when they name finitely many.
    fn look_ups(&self, filters: &[Expr]) -> DfResult<Option<Vec<ArrayRef>>> {
        let schema = self.codec.schema();
        let key = &self.key;
        if key.is_empty() {
            return Ok(None);
        }
        let mut candidates: Vec<Vec<ScalarValue>> = Vec::with_capacity(key.len());
        for &column in key {
            let name = schema.field(column).name();
            match filters.iter().find_map(|filter| equal_values(filter, name)) {
                Some(values) => candidates.push(values),
                None => return Ok(None),
            }
        }
        let combinations = candidates.iter().map(Vec::len).try_fold(1usize, usize::checked_mul);
        if combinations.is_none_or(|n| n > MOST_LOOK_UPS) {
            return Ok(None);
        }
        let mut rows: Vec<Vec<ScalarValue>> = vec![Vec::new()];
        for values in &candidates {
            rows = rows
                .into_iter()
                .flat_map(|row| {
                    values.iter().map(move |value| {
                        let mut row = row.clone();
                        row.push(value.clone());
                        row
                    })
                })
                .collect();
        }
        let mut columns = Vec::with_capacity(key.len());
        for (i, &column) in key.iter().enumerate() {
            let data_type = schema.field(column).data_type();
            let values: Vec<ScalarValue> = rows.iter().map(|row| row[i].clone()).collect();
            if values.is_empty() {
                columns.push(arrow::array::new_empty_array(data_type));
                continue;
            }
            let array = ScalarValue::iter_to_array(values)?;
            if array.data_type() == data_type {
                columns.push(array);
            } else {
                // A literal that the column's type cannot hold finds nothing by key; the scan decides what it means.
                let converted = cast(&array, data_type)?;
                let back = cast(&converted, array.data_type())?;
                if back.as_ref() != array.as_ref() {
                    return Ok(None);
                }
                columns.push(converted);
            }
        }
        Ok(Some(columns))
    }
}

/// The values that `filter` allows for column `name`, when it is `name = literal` or `name IN (literals)`.
fn equal_values(filter: &Expr, name: &str) -> Option<Vec<ScalarValue>> {
    let is_column = |expr: &Expr| matches!(expr, Expr::Column(column) if column.name == name);
    let literal = |expr: &Expr| match expr {
        Expr::Literal(value, _) if !value.is_null() => Some(value.clone()),
        _ => None,
    };
    match filter {
        Expr::BinaryExpr(binary) if binary.op == Operator::Eq => {
            if is_column(&binary.left) {
                literal(&binary.right).map(|value| vec![value])
            } else if is_column(&binary.right) {
                literal(&binary.left).map(|value| vec![value])
            } else {
                None
            }
        }
        Expr::BinaryExpr(binary) if binary.op == Operator::And => {
            equal_values(&binary.left, name).or_else(|| equal_values(&binary.right, name))
        }
        Expr::BinaryExpr(binary) if binary.op == Operator::Or => {
            let mut values = equal_values(&binary.left, name)?;
            for value in equal_values(&binary.right, name)? {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            Some(values)
        }
        Expr::InList(list) if !list.negated && is_column(&list.expr) => {
            let mut values = Vec::with_capacity(list.list.len());
            for expr in &list.list {
                let value = literal(expr)?;
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            Some(values)
        }
        _ => None,
    }
}

#[async_trait]
impl TableProvider for ViewTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.codec.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DfResult<Vec<TableProviderFilterPushDown>> {
        // Inexact: the filter is evaluated again above, the look-up only narrows what is read.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        if let Some(keys) = self.look_ups(filters)? {
            let found = self.codec.lookup(&self.snapshot.parts, &keys).map_err(external)?;
            let source = MemorySourceConfig::try_new(&[vec![found]], self.schema(), projection.cloned())?;
            return Ok(DataSourceExec::from_data_source(source));
        }
        let projected = match projection {
            Some(columns) => Arc::new(self.schema().project(columns)?),
            None => self.schema(),
        };
        let partitions: Vec<Arc<dyn PartitionStream>> = self
            .snapshot
            .parts
            .iter()
            .map(|part| {
                Arc::new(PartScan {
                    codec: Arc::clone(&self.codec),
                    part: Arc::clone(part),
                    projection: projection.cloned(),
                    schema: Arc::clone(&projected),
                    limit,
                }) as Arc<dyn PartitionStream>
            })
            .collect();
        Ok(Arc::new(StreamingTableExec::try_new(projected, partitions, None, Vec::new(), false, limit)?))
    }
}

/// Scan of one subtask's part of the view.
struct PartScan {
    codec: Arc<ViewCodec>,
    part: Arc<TableSnapshot>,
    projection: Option<Vec<usize>>,
    schema: SchemaRef,
    limit: Option<usize>,
}

impl fmt::Debug for PartScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartScan").field("projection", &self.projection).field("limit", &self.limit).finish()
    }
}

impl PartitionStream for PartScan {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), BATCHES_AHEAD);
        let sender = builder.tx();
        let (codec, part) = (Arc::clone(&self.codec), Arc::clone(&self.part));
        let (projection, limit) = (self.projection.clone(), self.limit.unwrap_or(usize::MAX));
        builder.spawn_blocking(move || {
            let mut sent = 0usize;
            for batch in codec.scan(vec![part], projection).map_err(external)? {
                let batch = batch.map_err(external)?;
                sent += batch.num_rows();
                // A closed channel means that the query has what it needs.
                if sender.blocking_send(Ok(batch)).is_err() || sent >= limit {
                    break;
                }
            }
            Ok(())
        });
        builder.build()
    }
}

fn external<E: std::error::Error + Send + Sync + 'static>(error: E) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};

    use super::*;

    #[test]
    fn equalities_on_the_key_become_look_ups() {
        assert_eq!(equal_values(&col("carrier").eq(lit("UA")), "carrier"), Some(vec![ScalarValue::from("UA")]));
        assert_eq!(equal_values(&lit("UA").eq(col("carrier")), "carrier"), Some(vec![ScalarValue::from("UA")]));
        assert_eq!(
            equal_values(&col("carrier").in_list(vec![lit("UA"), lit("AA"), lit("UA")], false), "carrier"),
            Some(vec![ScalarValue::from("UA"), ScalarValue::from("AA")])
        );
        let either = col("carrier").eq(lit("UA")).or(col("carrier").eq(lit("AA")));
        assert_eq!(equal_values(&either, "carrier").map(|v| v.len()), Some(2));
        assert_eq!(equal_values(&col("carrier").gt(lit("UA")), "carrier"), None);
        assert_eq!(equal_values(&col("carrier").in_list(vec![lit("UA")], true), "carrier"), None);
        assert_eq!(equal_values(&col("origin").eq(lit("JFK")), "carrier"), None);
    }
}
