//! TableScan to source: only the columns that are needed are decoded; generated ones are computed.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion::common::{DFSchema, TableReference};
use datafusion::logical_expr::{Expr, ExprSchemable, TableScan, cast};
use weir_runtime::graph::{OperatorSpec, SourceSpec, WatermarkSpec};
use weir_runtime::source::SourceRequest;

use super::{Builder, Built, NewNode, Props, arrow_schema};
use crate::bounds;
use crate::catalog::{Relation, RelationKind, Watermark};
use crate::context::RelationSource;
use crate::define::own_schema;
use crate::error::{ErrorKind, Result, SqlError};
use crate::from_datafusion;
use crate::options::Options;
use crate::time::Times;

impl Builder<'_> {
    pub(super) fn source(&mut self, scan: &TableScan) -> Result<Built> {
        let Some(source) = scan.source.downcast_ref::<RelationSource>() else {
            return Err(SqlError::new(ErrorKind::INTERNAL, format!("{} is not a relation", scan.table_name)));
        };
        let relation = Arc::clone(&source.relation);
        let all = || (0..relation.columns.len()).collect();
        let wanted = scan.projection.clone().unwrap_or_else(all);
        self.reads.insert(relation.name.clone());
        // A table's and a view's log holds all columns as they are read; a stream computes its generated ones.
        let computes = relation.kind == RelationKind::Stream;
        self.read(&relation, &scan.table_name, wanted, computes)
    }

    /// Reads `wanted` columns of a relation. `computes`: generated columns are not in what is read.
    pub(crate) fn read(
        &mut self,
        relation: &Relation,
        name: &TableReference,
        mut wanted: Vec<usize>,
        computes: bool,
    ) -> Result<Built> {
        if wanted.is_empty() {
            // Rows without columns would have to be counted some other way; the cheapest column does it.
            wanted.push(cheapest(relation));
        }
        let watermark = relation.watermark.as_ref().filter(|w| relation.append_only && wanted.contains(&w.column));
        let watermark = watermark.map(|w| self.watermark_expr(relation, w)).transpose()?;
        if let Some((_, expr)) = &watermark {
            let own = own_schema(relation, false)?;
            for column in expr.column_refs() {
                let index = own.index_of_column(column).map_err(from_datafusion)?;
                if !wanted.contains(&index) {
                    wanted.push(index);
                }
            }
        }

        let declared = if computes { relation.physical_schema() } else { relation.schema() };
        let declared_index =
            |name: &str| declared.index_of(name).map_err(|e| SqlError::new(ErrorKind::INTERNAL, e.to_string()));
        let physical = own_schema(relation, computes)?;
        let mut exprs = Vec::new();
        let mut needed = BTreeSet::new();
        for index in &wanted {
            let column = relation.columns.get(*index).ok_or_else(|| {
                SqlError::new(ErrorKind::INTERNAL, format!("{} has no column {index}", relation.name))
            })?;
            let expr = match &column.generated {
                Some(sql) if computes => {
                    let expr = self.context.expr(sql, &physical)?;
                    let same = expr.get_type(&physical).map_err(from_datafusion)? == column.data_type();
                    if same { expr } else { cast(expr, column.data_type()) }
                }
                _ => Expr::Column(datafusion::common::Column::new(Some(relation.name.as_str()), &column.name)),
            };
            for column in expr.column_refs() {
                needed.insert(declared_index(&column.name)?);
            }
            exprs.push((column, expr));
        }
        if needed.is_empty() {
            needed.insert(0);
        }
        let projection: Vec<usize> = needed.into_iter().collect();
        let read = declared.project(&projection).map_err(|e| SqlError::new(ErrorKind::INTERNAL, e.to_string()))?;
        let read = DFSchema::try_from_qualified_schema(relation.name.as_str(), &read).map_err(from_datafusion)?;
        let columns = exprs.iter().map(|(_, e)| self.compile(e, &read)).collect::<Result<Vec<_>>>()?;
        let fields: Vec<(Option<TableReference>, Arc<Field>)> =
            exprs.iter().map(|(c, _)| (Some(name.clone()), Arc::new(c.field()))).collect();
        let schema = DFSchema::new_with_metadata(fields, Default::default()).map_err(from_datafusion)?;

        let place = |column: usize| wanted.iter().position(|w| *w == column);
        let declared_time = watermark.and_then(|(w, expr)| Some((w, place(w.column)?, expr)));
        let watermark = match declared_time {
            Some((w, column, expr)) => {
                let unqualified = DFSchema::try_from_qualified_schema(relation.name.as_str(), schema.as_arrow());
                let expr = self.compile(&expr, &unqualified.map_err(from_datafusion)?)?;
                Some(WatermarkSpec { expr: Some(expr), column, idle_timeout: w.idle_timeout })
            }
            None => self.told_watermark(relation, place)?,
        };
        let times = Times {
            watermark: watermark.is_some(),
            event_time: watermark.as_ref().map(|watermark| watermark.column),
            ..Times::default()
        };
        let key: Option<Vec<usize>> =
            if relation.key.is_empty() { None } else { relation.key.iter().map(|k| place(*k)).collect() };
        let props = Props {
            changelog: !relation.append_only,
            key,
            partition: None,
            parallelism: self.parallelism.default,
            time: times,
            single_row: false,
        };
        let node = self.add(NewNode {
            name: format!("source {}", relation.name),
            // Not its columns: positions in the input stay good when a query comes to need another column.
            meaning: relation.name.clone(),
            spec: OperatorSpec::Source(SourceSpec {
                request: SourceRequest { relation: relation.name.clone(), declared, projection },
                columns,
                watermark,
            }),
            inputs: Vec::new(),
            schema: arrow_schema(&schema),
            changelog: props.changelog,
            parallelism: props.parallelism,
            state_bound: bounds::STATELESS.to_owned(),
        });
        Ok(Built { node, schema: Arc::new(schema), props })
    }

    /// Event time of a relation whose query has one: the log brings it.
    fn told_watermark(
        &self,
        relation: &Relation,
        place: impl Fn(usize) -> Option<usize>,
    ) -> Result<Option<WatermarkSpec>> {
        let told = relation.event_time.filter(|_| relation.append_only && relation.watermark.is_none());
        let Some(column) = told.and_then(place) else { return Ok(None) };
        let idle_timeout = Options::from_changed(&relation.options)?.duration("table.exec.source.idle-timeout")?;
        Ok(Some(WatermarkSpec { expr: None, column, idle_timeout }))
    }

    /// The watermark's expression in microseconds.
    fn watermark_expr<'r>(&self, relation: &Relation, watermark: &'r Watermark) -> Result<(&'r Watermark, Expr)> {
        let own = own_schema(relation, false)?;
        let expr = self.context.expr(&watermark.expr, &own)?;
        let expr = match expr.get_type(&own).map_err(from_datafusion)? {
            DataType::Timestamp(TimeUnit::Microsecond, _) => expr,
            DataType::Timestamp(_, zone) => cast(expr, DataType::Timestamp(TimeUnit::Microsecond, zone)),
            other => {
                return Err(SqlError::new(
                    ErrorKind::TYPE_MISMATCH,
                    format!("the watermark of \"{}\" is of type {other}, not a timestamp", relation.name),
                ));
            }
        };
        Ok((watermark, expr))
    }
}

/// A column that costs little to decode.
fn cheapest(relation: &Relation) -> usize {
    let cost = |i: usize| match relation.columns.get(i) {
        Some(column) if column.generated.is_none() => match column.data_type() {
            DataType::Utf8 | DataType::Binary => 2,
            t if t.is_nested() => 3,
            _ => 1,
        },
        _ => 4,
    };
    (0..relation.columns.len()).min_by_key(|i| cost(*i)).unwrap_or(0)
}
