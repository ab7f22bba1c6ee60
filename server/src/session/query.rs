//! SELECT: a DataFusion batch query over one consistent snapshot of each relation that it reads.

use std::sync::Arc;

use datafusion::common::ParamValues;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::Statement as DfStatement;
use sqlparser::ast;
use weir_planner::error::nearest;
use weir_planner::statement::{Insert, Query};
use weir_planner::{ErrorKind, Parsed, SqlError};
use weir_runtime::graph::Emit;

use super::{Description, Outcome, Session};
use crate::error::from_datafusion;
use crate::serving::{DATABASE, statement_context};

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
        let context = statement_context(&self.engine);
        let plan = plan(&context, &query.ast).await?;
        let plan = with_parameters(plan, parameters)?;
        let (schema, rows) = run(&context, plan).await?;
        Ok(Outcome::Rows { schema, rows, tag: "SELECT", endless: false })
    }

    pub(super) async fn describe_select(&mut self, parsed: &Parsed, query: &Query) -> Result<Description, SqlError> {
        if crate::pg::catalog::is_catalog_query(&parsed.sql) {
            return crate::pg::catalog::describe_catalog_query(&self.engine, &self.user, &query.sql).await;
        }
        let context = statement_context(&self.engine);
        let plan = plan(&context, &query.ast).await?;
        let plan = context.state().optimize(&plan).unwrap_or(plan);
        Ok(Description {
            parameters: parameter_types(&plan)?,
            columns: Some(Arc::new(plan.schema().as_arrow().clone())),
        })
    }

    pub(super) async fn describe_insert(&mut self, insert: &Insert) -> Result<Description, SqlError> {
        let parameters = match &insert.source {
            Some(source) => {
                let relation = Arc::clone(self.engine.catalog().find(&insert.table)?);
                super::dml::insert_parameter_types(&relation, insert, source)
            }
            None => Vec::new(),
        };
        Ok(Description { parameters, columns: None })
    }
}

/// Plans a batch query.
pub(super) async fn plan(context: &SessionContext, query: &ast::Query) -> Result<LogicalPlan, SqlError> {
    let statement = ast::Statement::Query(Box::new(query.clone()));
    let planned = context.state().statement_to_plan(DfStatement::Statement(Box::new(statement))).await;
    planned.map_err(|error| named(context, from_datafusion(error)))
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

fn parameter_types(plan: &LogicalPlan) -> Result<Vec<arrow::datatypes::DataType>, SqlError> {
    let types = plan.get_parameter_types().map_err(from_datafusion)?;
    let count = types.keys().filter_map(|name| name.trim_start_matches('$').parse::<usize>().ok()).max().unwrap_or(0);
    Ok((1..=count)
        .map(|i| types.get(&format!("${i}")).cloned().flatten().unwrap_or(arrow::datatypes::DataType::Utf8))
        .collect())
}

/// Runs a plan; the rows come as they are computed.
pub(super) async fn run(
    context: &SessionContext,
    plan: LogicalPlan,
) -> Result<(arrow::datatypes::SchemaRef, SendableRecordBatchStream), SqlError> {
    let frame = DataFrame::new(context.state(), plan);
    let rows = frame.execute_stream().await.map_err(from_datafusion)?;
    Ok((rows.schema(), rows))
}
