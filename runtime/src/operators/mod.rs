//! The operators: what each does to the changes that pass through it. One file (or folder) an operator.
//!
//! ```text
//!   stateless                       stateful (tables of the task's keyed state)
//!   filter project union window     aggregate   groups in memory in front of their table
//!                                   join        rows of both sides by key
//!                                   materialize the result, published to readers each epoch
//! ```

mod aggregate;
mod filter;
mod join;
pub mod materialize;
mod project;
#[cfg(test)]
pub(crate) mod testing;
mod union;
mod view_codec;
mod window_assign;

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use weir_storage::KeyGroup;

use crate::error::{Result, RuntimeError};
use crate::graph::{Expr, Node, OperatorSpec};
use crate::metrics::OperatorMetrics;
use crate::operator::{Operator, OperatorContext};
use crate::rejects::Rejects;
use crate::view::ViewHandle;

pub use view_codec::ViewCodec;

/// A change of a state table: a value, or none to delete.
type TableChange<'a> = (KeyGroup, &'a [u8], Option<&'a [u8]>);

/// The same, owning what it says.
type OwnedChange = (KeyGroup, Vec<u8>, Option<Vec<u8>>);

/// Memory that operators may use for what their tables hold, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheSizes {
    /// Bytes of groups that one aggregate keeps in memory over all its subtasks.
    pub(crate) aggregate: usize,
    /// Bytes of rows that one join keeps in memory over all its subtasks.
    pub(crate) join: usize,
}

impl Default for CacheSizes {
    fn default() -> Self {
        Self { aggregate: 256 << 20, join: 256 << 20 }
    }
}

/// Makes the operator that `spec` describes (any but sources and sinks, which tasks run themselves). `view` is where a
/// materialization publishes.
pub fn create(
    spec: &OperatorSpec,
    node: &Node,
    input_schemas: &[SchemaRef],
    ctx: OperatorContext<'_>,
    view: Option<Arc<ViewHandle>>,
) -> Result<Box<dyn Operator>> {
    create_sized(spec, node, input_schemas, ctx, view, CacheSizes::default())
}

pub(crate) fn create_sized(
    spec: &OperatorSpec,
    node: &Node,
    input_schemas: &[SchemaRef],
    ctx: OperatorContext<'_>,
    view: Option<Arc<ViewHandle>>,
    sizes: CacheSizes,
) -> Result<Box<dyn Operator>> {
    let site = Site {
        query: ctx.query.to_owned(),
        name: node.name.clone(),
        metrics: Arc::clone(&ctx.metrics),
        rejects: Arc::clone(&ctx.rejects),
    };
    let schema = Arc::clone(&node.schema);
    let share = |bytes: usize| bytes / ctx.parallelism.max(1) as usize;
    Ok(match spec {
        OperatorSpec::Filter { predicate } => Box::new(filter::Filter::new(site, Arc::clone(predicate))),
        OperatorSpec::Project { exprs } => Box::new(project::Project::new(site, exprs.clone(), schema)),
        OperatorSpec::WindowAssign(spec) => Box::new(window_assign::WindowAssign::new(site, *spec, schema)),
        OperatorSpec::Union => Box::new(union::Union::new(schema)),
        OperatorSpec::Aggregate(spec) => {
            let [input] = inputs(input_schemas)?;
            let bytes = share(sizes.aggregate);
            Box::new(aggregate::Aggregate::new(site, spec, schema, input, ctx, bytes)?)
        }
        OperatorSpec::Join(spec) => {
            let [left, right] = inputs(input_schemas)?;
            let bytes = share(sizes.join);
            Box::new(join::Join::new(site, spec, schema, [left, right], ctx, bytes)?)
        }
        OperatorSpec::Materialize(spec) => {
            let [input] = inputs(input_schemas)?;
            Box::new(materialize::Materialize::new(spec, node.changelog, input, ctx, view)?)
        }
        OperatorSpec::Source(_) | OperatorSpec::Sink(_) => {
            return Err(RuntimeError::Internal {
                place: "operator creation",
                reason: format!("a {} is not an operator of a chain", spec.kind()),
            });
        }
    })
}

fn inputs<const N: usize>(schemas: &[SchemaRef]) -> Result<[SchemaRef; N]> {
    schemas.to_vec().try_into().map_err(|given: Vec<SchemaRef>| RuntimeError::Internal {
        place: "operator creation",
        reason: format!("{} inputs given, {N} expected", given.len()),
    })
}

/// Where an operator runs: for errors, counters and rejected rows.
struct Site {
    query: String,
    name: String,
    metrics: Arc<OperatorMetrics>,
    rejects: Arc<dyn Rejects>,
}

impl Site {
    /// The expression's value for each row.
    fn column(&self, expr: &Expr, batch: &RecordBatch) -> Result<ArrayRef> {
        expr.evaluate(batch).and_then(|value| value.into_array(batch.num_rows())).map_err(|error| self.failed(error))
    }

    /// A predicate's value for each row; null is false.
    fn mask(&self, predicate: &Expr, batch: &RecordBatch) -> Result<BooleanArray> {
        let column = self.column(predicate, batch)?;
        let mask = column.as_boolean_opt().ok_or_else(|| RuntimeError::Internal {
            place: "predicate",
            reason: format!("it has type {}", column.data_type()),
        })?;
        Ok(filter::definite(mask))
    }

    /// The error, saying which operator it happened in.
    fn failed(&self, error: DataFusionError) -> RuntimeError {
        error.context(format!("operator \"{}\" of query \"{}\"", self.name, self.query)).into()
    }

    /// The error of a kernel, saying which operator it happened in.
    fn named(&self, error: RuntimeError) -> RuntimeError {
        match error {
            RuntimeError::Evaluation(error) => self.failed(error),
            RuntimeError::Arrow(error) => self.failed(error.into()),
            other => other,
        }
    }
}

/// A row as text, for people.
fn row_text(batch: &RecordBatch, row: usize) -> Result<String> {
    let options = FormatOptions::default().with_null("null");
    let values = batch
        .columns()
        .iter()
        .map(|column| Ok(ArrayFormatter::try_new(column, &options)?.value(row).to_string()))
        .collect::<Result<Vec<_>>>()?;
    let mut text = values.join(", ");
    let mut end = text.len().min(4096);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    Ok(text)
}
