//! SELECT: a DataFusion batch query over one consistent snapshot of each relation that it reads.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::ParamValues;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::Statement as DfStatement;
use futures::StreamExt;
use sqlparser::ast::{self, Visit};
use weir_planner::arrays;
use weir_planner::error::nearest;
use weir_planner::output::{Marks, name_columns, shown_name};
use weir_planner::statement::Query;
use weir_planner::{ErrorKind, Parsed, SqlError};
use weir_runtime::graph::Emit;

use super::{Description, Outcome, Session};
use crate::error::from_datafusion;
use crate::serving::{DATABASE, compute, statement_context};

impl Session {
    pub(super) async fn select(
        &mut self,
        parsed: &Parsed,
        query: &Query,
        parameters: &[ScalarValue],
    ) -> Result<Outcome, SqlError> {
        match query.emit {
            Some(Emit::Changes) => return self.follow_query(query).await,
            Some(Emit::OnWindowClose) => {
                return Err(SqlError::unsupported("EMIT ON WINDOW CLOSE has no meaning in a SELECT that ends")
                    .hint("create a materialized view with it and SELECT from the view, or write EMIT CHANGES"));
            }
            None => {}
        }
        if crate::pg::catalog::is_catalog_query(&parsed.sql) {
            let answer =
                crate::pg::catalog::execute_catalog_query(&self.engine, &self.user, &query.sql, parameters).await?;
            let (schema, rows) = answer;
            return Ok(Outcome::Rows { schema, rows, tag: "SELECT", endless: false });
        }
        let context = self.context(&query.ast);
        let plan = plan(&context, &query.ast).await?;
        let plan = with_parameters(plan, parameters)?;
        let (schema, rows) = run(&context, plan).await?;
        Ok(Outcome::Rows { schema, rows, tag: "SELECT", endless: false })
    }

    pub(super) async fn describe_select(&mut self, parsed: &Parsed, query: &Query) -> Result<Description, SqlError> {
        if crate::pg::catalog::is_catalog_query(&parsed.sql) {
            return crate::pg::catalog::describe_catalog_query(&self.engine, &self.user, &query.sql).await;
        }
        let context = self.context(&query.ast);
        let plan = plan(&context, &query.ast).await?;
        let plan = context.state().optimize(&plan).unwrap_or(plan);
        let columns = shown(plan.schema().inner()).unwrap_or_else(|| Arc::clone(plan.schema().inner()));
        Ok(Description { parameters: parameter_types(&plan)?, columns: Some(columns) })
    }

    /// A context for one statement, with the functions about the server that its query calls.
    pub(super) fn context<T: Visit>(&self, statement: &T) -> SessionContext {
        let context = statement_context(&self.engine);
        crate::pg::catalog::add_functions(&context, statement, &self.engine, &self.user);
        context
    }
}

/// Plans a batch query. Names of columns may have marks, which [`run`] takes off.
pub(super) async fn plan(context: &SessionContext, query: &ast::Query) -> Result<LogicalPlan, SqlError> {
    let planned = match plan_marked(context, query, Marks::Repeated).await {
        // What a wildcard brings in may have the name of something beside it.
        Err(error) if error.is(ErrorKind::DUPLICATE_COLUMN) || error.is(ErrorKind::AMBIGUOUS_COLUMN) => {
            plan_marked(context, query, Marks::BesideWildcards).await.map_err(|_| error)
        }
        planned => planned,
    };
    planned.map_err(|error| named(context, error))
}

async fn plan_marked(context: &SessionContext, query: &ast::Query, marks: Marks) -> Result<LogicalPlan, SqlError> {
    let mut query = query.clone();
    name_columns(&mut query, marks);
    arrays::rewrite(&mut query);
    crate::pg::catalog::unqualify_functions(&mut query);
    let statement = ast::Statement::Query(Box::new(query));
    let plan = context.state().statement_to_plan(DfStatement::Statement(Box::new(statement))).await;
    plan.and_then(arrays::resolve).map_err(from_datafusion)
}

/// An unknown relation as the catalog tells it, with the nearest name, rather than as DataFusion does.
fn named(context: &SessionContext, error: SqlError) -> SqlError {
    let given = error.message.strip_prefix("table '").and_then(|rest| rest.split('\'').next());
    let Some(given) = given.filter(|_| error.is(ErrorKind::UNDEFINED_RELATION)) else { return error };
    let mut parts = given.rsplit('.');
    let (name, schema) = (parts.next().unwrap_or_default(), parts.next().unwrap_or("public"));
    let known = context.catalog(DATABASE).and_then(|c| c.schema(schema)).map(|s| s.table_names()).unwrap_or_default();
    let shown = if schema == "public" { name.to_owned() } else { format!("{schema}.{name}") };
    let hint = match nearest(name, known.iter().map(String::as_str)) {
        Some(near) if schema == "public" => format!("did you mean \"{near}\"?"),
        Some(near) => format!("did you mean {schema}.{near}?"),
        None => "SHOW STREAMS, SHOW TABLES and SHOW VIEWS list what there is".to_owned(),
    };
    SqlError::new(ErrorKind::UNDEFINED_RELATION, format!("relation \"{shown}\" does not exist")).hint(hint)
}

/// Puts values for `$1`, `$2`, ….
pub(super) fn with_parameters(plan: LogicalPlan, parameters: &[ScalarValue]) -> Result<LogicalPlan, SqlError> {
    let wanted = parameter_types(&plan)?.len();
    if wanted > parameters.len() {
        return Err(SqlError::new(
            ErrorKind::INVALID_VALUE,
            format!("the statement has {wanted} parameters, but {} values were given", parameters.len()),
        )
        .hint("bind a value to each of $1, $2, …"));
    }
    if wanted == 0 {
        return Ok(plan);
    }
    let values = parameters.iter().cloned().map(Into::into).collect();
    plan.with_param_values(ParamValues::List(values)).map_err(from_datafusion)
}

/// Types of `$1`, `$2`, …; `Null` where nothing tells.
pub(super) fn parameter_types(plan: &LogicalPlan) -> Result<Vec<DataType>, SqlError> {
    let types = plan.get_parameter_types().map_err(from_datafusion)?;
    let count = types.keys().filter_map(|name| name.trim_start_matches('$').parse::<usize>().ok()).max().unwrap_or(0);
    Ok((1..=count).map(|i| types.get(&format!("${i}")).cloned().flatten().unwrap_or(DataType::Null)).collect())
}

/// Runs a plan; the rows come as they are computed.
pub(super) async fn run(
    context: &SessionContext,
    plan: LogicalPlan,
) -> Result<(SchemaRef, SendableRecordBatchStream), SqlError> {
    let plan = context.state().create_physical_plan(&plan).await.map_err(from_datafusion)?;
    let rows = compute(plan, context.task_ctx()).map_err(from_datafusion)?;
    match shown(&rows.schema()) {
        Some(schema) => Ok((Arc::clone(&schema), with_schema(rows, schema))),
        None => Ok((rows.schema(), rows)),
    }
}

/// The columns by their names without marks; `None` when there are no marks.
fn shown(schema: &SchemaRef) -> Option<SchemaRef> {
    if schema.fields().iter().all(|field| shown_name(field.name()) == field.name()) {
        return None;
    }
    let rename = |field: &Arc<Field>| field.as_ref().clone().with_name(shown_name(field.name()));
    let fields: Vec<Field> = schema.fields().iter().map(rename).collect();
    Some(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}

/// The same rows under another schema.
pub(crate) fn with_schema(rows: SendableRecordBatchStream, schema: SchemaRef) -> SendableRecordBatchStream {
    let target = Arc::clone(&schema);
    let renamed = rows.map(move |batch| {
        let batch = batch?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&target), batch.columns().to_vec(), &options)?)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, renamed))
}
