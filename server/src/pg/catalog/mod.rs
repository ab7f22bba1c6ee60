//! `pg_catalog` and `information_schema`, so that psql's `\d`, drivers and SQLAlchemy find their way.
//!
//! A query over the system catalogs runs in a context of its own: the catalogs are small tables made from the
//! engine's relations at that moment, and the text goes through the rewrites that make PostgreSQL's idioms fit
//! DataFusion. Everything that does not depend on relations (types, operators, …) comes from `datafusion-pg-catalog`.

mod calls;
mod functions;
mod names;
mod provider;
mod rewrite;
mod schema_tables;
mod table;
mod tables;

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::catalog::{CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList};
use datafusion::common::ParamValues;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{SendableRecordBatchStream, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::Visit;
use datafusion_pg_catalog::pg_catalog::PgCatalogStaticTables;
use datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_pg_catalog::setup_pg_catalog;
use weir_planner::{ErrorKind, Relation, SqlError};

use crate::engine::Engine;
use crate::error::from_datafusion;
use crate::session::{Description, with_schema};
use functions::CatalogFunctions;
use names::Oids;
use provider::{PgCatalog, RelationSchemas, SystemSchema};

pub use calls::unqualify as unqualify_functions;
pub use names::is_catalog_query;

/// What does not change while the server runs: the fixed catalogs and a state with all functions.
struct Fixed {
    tables: Arc<PgCatalogStaticTables>,
    state: SessionState,
}

static FIXED: LazyLock<Result<Fixed, String>> = LazyLock::new(|| fixed().map_err(|e| e.to_string()));

fn fixed() -> Result<Fixed, DataFusionError> {
    let config = SessionConfig::new()
        .with_default_catalog_and_schema(super::DATABASE, "public")
        .with_target_partitions(1)
        .with_information_schema(false);
    let context = SessionContext::new_with_config(config);
    setup_pg_catalog(&context, super::DATABASE, EmptyContextProvider).map_err(|e| *e)?;
    Ok(Fixed { tables: Arc::new(PgCatalogStaticTables::try_new()?), state: context.state() })
}

/// The catalogs at one moment.
#[derive(Debug)]
struct Snapshot {
    relations: Vec<Arc<Relation>>,
    oids: Oids,
    user: String,
}

impl Snapshot {
    fn new(mut relations: Vec<Arc<Relation>>, user: &str) -> Arc<Self> {
        relations.sort_by(|a, b| a.name.cmp(&b.name));
        let oids = Oids::new(relations.iter().map(|r| r.name.as_str()));
        Arc::new(Self { relations, oids, user: user.to_owned() })
    }

    fn relation(&self, oid: i32) -> Option<&Arc<Relation>> {
        self.relations.iter().find(|r| self.oids.relation(&r.name) == oid)
    }
}

/// Gives a context those functions about the server (`version()`, `current_schema()`, `format_type()`, …) that a
/// statement calls, so that they also work in queries over Weir's own relations. A statement that calls none costs a
/// walk through its text tree.
pub fn add_functions<T: Visit>(context: &SessionContext, statement: &T, engine: &Engine, user: &str) {
    let called = calls::called(statement);
    if called.is_empty() {
        return;
    }
    let snapshot = Snapshot::new(engine.relations(), user);
    // Ours last: they stand for what `datafusion-pg-catalog` knows less of.
    if let Ok(fixed) = FIXED.as_ref() {
        for name in &called {
            if let Some(function) = fixed.state.scalar_functions().get(name) {
                context.register_udf(function.as_ref().clone());
            }
        }
    }
    for function in CatalogFunctions::new(&snapshot).all() {
        if called.contains(function.name()) {
            context.register_udf(function);
        }
    }
}

/// The query as DataFusion can plan it.
pub fn rewrite(sql: &str) -> Result<datafusion::sql::sqlparser::ast::Statement, SqlError> {
    rewrite::rewrite(sql)
}

/// Runs a query over the system catalogs.
pub async fn execute_catalog_query(
    engine: &Arc<Engine>,
    user: &str,
    sql: &str,
    parameters: &[ScalarValue],
) -> Result<(SchemaRef, SendableRecordBatchStream), SqlError> {
    run(Snapshot::new(engine.relations(), user), sql, parameters).await
}

/// Tells what a query over the system catalogs will answer.
pub async fn describe_catalog_query(engine: &Arc<Engine>, user: &str, sql: &str) -> Result<Description, SqlError> {
    let (_, plan) = plan(&Snapshot::new(engine.relations(), user), sql).await?;
    Ok(Description { parameters: parameter_types(&plan)?, columns: Some(columns(&plan)) })
}

async fn run(
    snapshot: Arc<Snapshot>,
    sql: &str,
    parameters: &[ScalarValue],
) -> Result<(SchemaRef, SendableRecordBatchStream), SqlError> {
    let (state, plan) = plan(&snapshot, sql).await?;
    let announced = columns(&plan);
    let wanted = parameter_types(&plan)?.len();
    if wanted > parameters.len() {
        return Err(SqlError::new(
            ErrorKind::INVALID_VALUE,
            format!("the statement has {wanted} parameters, but {} values were given", parameters.len()),
        ));
    }
    let plan = if wanted == 0 {
        plan
    } else {
        plan.with_param_values(ParamValues::from(parameters.to_vec())).map_err(from_datafusion)?
    };
    let physical = state.create_physical_plan(&plan).await.map_err(from_datafusion)?;
    let rows = execute_stream(physical, state.task_ctx()).map_err(from_datafusion)?;
    // The columns as they were described, with the metadata that tells an oid from an integer.
    let same = |(a, b): (&Arc<Field>, &Arc<Field>)| a.data_type() == b.data_type();
    let agree = announced.fields().len() == rows.schema().fields().len()
        && announced.fields().iter().zip(rows.schema().fields()).all(same);
    Ok(if agree { (Arc::clone(&announced), with_schema(rows, announced)) } else { (rows.schema(), rows) })
}

async fn plan(snapshot: &Arc<Snapshot>, sql: &str) -> Result<(SessionState, LogicalPlan), SqlError> {
    let state = state(snapshot)?;
    let statement = rewrite::rewrite(sql)?;
    let plan = state.statement_to_plan(DfStatement::Statement(Box::new(statement))).await.map_err(from_datafusion)?;
    Ok((state, plan))
}

/// A state whose only catalogs are the snapshot's.
fn state(snapshot: &Arc<Snapshot>) -> Result<SessionState, SqlError> {
    let fixed = FIXED
        .as_ref()
        .map_err(|e| SqlError::new(ErrorKind::INTERNAL, format!("the system catalogs cannot be read: {e}")))?;
    let database = MemoryCatalogProvider::new();
    let system = PgCatalog::new(Arc::clone(snapshot), Arc::clone(&fixed.tables)).map_err(from_datafusion)?;
    let register = |name: &str, schema| database.register_schema(name, schema).map_err(from_datafusion);
    register("pg_catalog", Arc::new(system) as _)?;
    register("information_schema", Arc::new(SystemSchema::information_schema(snapshot)) as _)?;
    register("public", Arc::new(RelationSchemas::new(Arc::clone(snapshot))) as _)?;
    let catalogs = MemoryCatalogProviderList::new();
    catalogs.register_catalog(super::DATABASE.to_owned(), Arc::new(database));
    let state =
        SessionStateBuilder::new_from_existing(fixed.state.clone()).with_catalog_list(Arc::new(catalogs)).build();
    let context = SessionContext::new_with_state(state);
    for function in CatalogFunctions::new(snapshot).all() {
        context.register_udf(function);
    }
    Ok(context.state())
}

fn columns(plan: &LogicalPlan) -> SchemaRef {
    let schema = plan.schema().as_arrow();
    let fields: Vec<_> = schema
        .fields()
        .iter()
        .map(|field| field.as_ref().clone().with_name(rewrite::shown_name(field.name())).with_nullable(true))
        .collect();
    Arc::new(arrow::datatypes::Schema::new(fields))
}

fn parameter_types(plan: &LogicalPlan) -> Result<Vec<DataType>, SqlError> {
    let types = plan.get_parameter_types().map_err(from_datafusion)?;
    let count = types.keys().filter_map(|name| name.trim_start_matches('$').parse::<usize>().ok()).max().unwrap_or(0);
    Ok((1..=count).map(|i| types.get(&format!("${i}")).cloned().flatten().unwrap_or(DataType::Null)).collect())
}

#[cfg(test)]
mod tests;
