//! DataFusion's SQL front and logical optimizer over a catalog, without a session and without I/O.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::datatype::DataTypeExt;
use datafusion::common::{DFSchema, DataFusionError, ScalarValue, TableReference};
use datafusion::execution::context::SessionState;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner, RelationPlanner, TypePlanner};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{AggregateUDF, Expr, HigherOrderUDF, LogicalPlan, ScalarUDF, TableSource, WindowUDF};
use datafusion::optimizer::analyzer::Analyzer;
use datafusion::optimizer::optimizer::{Optimizer, OptimizerContext, OptimizerRule};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::optimizer::{
    common_subexpr_eliminate::CommonSubexprEliminate, decorrelate_lateral_join::DecorrelateLateralJoin,
    decorrelate_predicate_subquery::DecorrelatePredicateSubquery, eliminate_cross_join::EliminateCrossJoin,
    eliminate_duplicated_expr::EliminateDuplicatedExpr, eliminate_group_by_constant::EliminateGroupByConstant,
    eliminate_outer_join::EliminateOuterJoin, extract_equijoin_predicate::ExtractEquijoinPredicate,
    optimize_projections::OptimizeProjections, optimize_unions::OptimizeUnions, push_down_filter::PushDownFilter,
    replace_distinct_aggregate::ReplaceDistinctWithAggregate, rewrite_set_comparison::RewriteSetComparison,
    scalar_subquery_to_join::ScalarSubqueryToJoin, simplify_expressions::SimplifyExpressions,
};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion::sql::planner::{ParserOptions, PlannerContext, SqlToRel};
use sqlparser::ast;

use crate::arrays;
use crate::catalog::{Catalog, Relation, RelationKind};
use crate::error::{ErrorKind, Result, SqlError};
use crate::from_datafusion;
use crate::output::{self, Marks};
use crate::types::SqlType;
use crate::window::StreamWindows;

/// Functions and settings, built once for a planner.
#[derive(Debug)]
pub(crate) struct Context {
    state: SessionState,
    options: Arc<ConfigOptions>,
    relation_planners: Vec<Arc<dyn RelationPlanner>>,
    props: ExecutionProps,
}

/// A relation as DataFusion's planner sees it.
#[derive(Debug)]
pub(crate) struct RelationSource {
    pub(crate) relation: Arc<Relation>,
    schema: SchemaRef,
}

impl TableSource for RelationSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl Context {
    pub(crate) fn new() -> Self {
        let state = crate::register_functions(SessionStateBuilder::new().with_default_features()).build();
        let mut options = state.config_options().as_ref().clone();
        options.sql_parser.map_string_types_to_utf8view = false;
        // An ORDER BY that has no effect is refused with a sentence rather than dropped in silence.
        options.sql_parser.enable_subquery_sort_elimination = false;
        // Scalar subqueries become joins: a physical expression has nothing to run a plan with.
        options.optimizer.enable_physical_uncorrelated_scalar_subquery = false;
        let options = Arc::new(options);
        let mut props = ExecutionProps::new();
        props.config_options = Some(Arc::clone(&options));
        Self { state, options, relation_planners: vec![Arc::new(StreamWindows)], props }
    }

    /// A query as a logical plan with coerced types, not yet optimised.
    pub(crate) fn plan(&self, catalog: &Catalog, query: &ast::Query) -> Result<LogicalPlan> {
        let provider = Provider { context: self, catalog };
        let mut query = query.clone();
        output::name_columns(&mut query, Marks::Repeated);
        arrays::rewrite(&mut query);
        let plan = SqlToRel::new_with_options(&provider, self.parser_options())
            .sql_statement_to_plan(ast::Statement::Query(Box::new(query)))
            .and_then(arrays::resolve)
            .map_err(from_datafusion)?;
        Analyzer::new().execute_and_check(plan, &self.options, |_, _| {}).map_err(from_datafusion)
    }

    /// Optimises with the rules that keep a plan streamable.
    ///
    /// Left out of DataFusion's list: what makes or moves Limit and Sort; what turns a plan into an empty relation
    /// (a stream that never has rows is still a stream); `SingleDistinctToGroupBy` (the aggregate operator counts
    /// distinct values itself, which saves an exchange); the rules that push struct accesses into scans; null filters
    /// before joins (they would be evaluated for every row to no end).
    pub(crate) fn optimize(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> = vec![
            Arc::new(RewriteSetComparison::new()),
            Arc::new(OptimizeUnions::new()),
            Arc::new(SimplifyExpressions::new()),
            Arc::new(ReplaceDistinctWithAggregate::new()),
            Arc::new(DecorrelatePredicateSubquery::new()),
            Arc::new(ScalarSubqueryToJoin::new()),
            Arc::new(DecorrelateLateralJoin::new()),
            Arc::new(ExtractEquijoinPredicate::new()),
            Arc::new(EliminateDuplicatedExpr::new()),
            Arc::new(EliminateCrossJoin::new()),
            Arc::new(EliminateOuterJoin::new()),
            Arc::new(PushDownFilter::new()),
            Arc::new(EliminateGroupByConstant::new()),
            Arc::new(CommonSubexprEliminate::new()),
            Arc::new(OptimizeProjections::new()),
        ];
        let context =
            OptimizerContext::new_with_config_options(Arc::clone(&self.options)).without_query_execution_start_time();
        Optimizer::with_rules(rules).optimize(plan, &context, |_, _| {}).map_err(from_datafusion)
    }

    /// An expression over a relation's columns, coerced and simplified.
    pub(crate) fn expr(&self, sql: &str, schema: &DFSchema) -> Result<Expr> {
        let mut parsed = crate::statement::parse_expr(sql)?;
        arrays::rewrite(&mut parsed);
        let catalog = Catalog::new();
        let provider = Provider { context: self, catalog: &catalog };
        let expr = SqlToRel::new_with_options(&provider, self.parser_options())
            .sql_to_expr(parsed, schema, &mut PlannerContext::new())
            .and_then(|expr| arrays::resolve_in(expr, schema))
            .map_err(from_datafusion)?;
        let simplify = SimplifyContext::builder()
            .with_schema(Arc::new(schema.clone()))
            .with_config_options(Arc::clone(&self.options))
            .build();
        let simplifier = ExprSimplifier::new(simplify);
        simplifier.coerce(expr, schema).and_then(|e| simplifier.simplify(e)).map_err(from_datafusion)
    }

    /// Compiles an expression against the columns that it is evaluated over.
    pub(crate) fn compile(&self, expr: &Expr, schema: &DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
        create_physical_expr(expr, schema, &self.props, &PhysicalPlanningContext::default()).map_err(from_datafusion)
    }

    pub(crate) fn props(&self) -> &ExecutionProps {
        &self.props
    }

    fn parser_options(&self) -> ParserOptions {
        ParserOptions { map_string_types_to_utf8view: false, ..ParserOptions::default() }
    }
}

/// The catalog and the functions, for one statement.
struct Provider<'a> {
    context: &'a Context,
    catalog: &'a Catalog,
}

impl ContextProvider for Provider<'_> {
    fn get_table_source(&self, name: TableReference) -> datafusion::common::Result<Arc<dyn TableSource>> {
        let external = |error: SqlError| DataFusionError::External(Box::new(error));
        if name.schema().is_some_and(|schema| schema != "public") {
            let error = SqlError::new(ErrorKind::UNDEFINED_RELATION, format!("relation \"{name}\" does not exist"))
                .hint("a continuous query reads streams, tables and views of the schema public");
            return Err(external(error));
        }
        let relation = Arc::clone(self.catalog.find(name.table()).map_err(external)?);
        if relation.kind == RelationKind::Sink {
            let error = SqlError::new(
                ErrorKind::WRONG_KIND,
                format!("\"{}\" is a sink and cannot be read", relation.name),
            )
            .hint("read the relation that it writes, or what it has written, through a stream with connector = 'file'");
            return Err(external(error));
        }
        Ok(Arc::new(RelationSource { schema: relation.schema(), relation }))
    }

    fn get_table_function_source(
        &self,
        name: &str,
        _args: Vec<Expr>,
    ) -> datafusion::common::Result<Arc<dyn TableSource>> {
        let error = SqlError::new(ErrorKind::UNDEFINED_FUNCTION, format!("there is no relation function {name}"))
            .hint("a continuous query has TUMBLE(TABLE t, DESCRIPTOR(ts), size) and HOP(TABLE t, DESCRIPTOR(ts), slide, size)");
        Err(DataFusionError::External(Box::new(error)))
    }

    fn create_cte_work_table(
        &self,
        _name: &str,
        _schema: SchemaRef,
    ) -> datafusion::common::Result<Arc<dyn TableSource>> {
        Err(DataFusionError::External(Box::new(crate::refuse::recursive())))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        self.context.state.expr_planners()
    }

    fn get_relation_planners(&self) -> &[Arc<dyn RelationPlanner>] {
        &self.context.relation_planners
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(Arc::new(Types))
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.context.state.scalar_functions().get(name).cloned()
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.context.state.higher_order_functions().get(name).cloned()
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.context.state.aggregate_functions().get(name).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.context.state.window_functions().get(name).cloned()
    }

    fn get_variable_type(&self, _variable_names: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.context.options
    }

    fn udf_names(&self) -> Vec<String> {
        names(self.context.state.scalar_functions())
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        names(self.context.state.higher_order_functions())
    }

    fn udaf_names(&self) -> Vec<String> {
        names(self.context.state.aggregate_functions())
    }

    fn udwf_names(&self) -> Vec<String> {
        names(self.context.state.window_functions())
    }
}

fn names<T>(functions: &HashMap<String, T>) -> Vec<String> {
    let mut names: Vec<String> = functions.keys().cloned().collect();
    names.sort();
    names
}

/// SQL types in CAST as Weir has them: timestamps in microseconds, text as Utf8.
#[derive(Debug)]
pub(crate) struct Types;

impl TypePlanner for Types {
    fn plan_type_field(&self, sql_type: &ast::DataType) -> datafusion::common::Result<Option<FieldRef>> {
        let Ok(known) = SqlType::from_ast(sql_type) else { return Ok(None) };
        let field = known.data_type().into_nullable_field().with_metadata(known.metadata());
        Ok(Some(Arc::new(field)))
    }
}

/// The value of a constant interval, in microseconds.
pub(crate) fn interval_micros(value: &ScalarValue) -> Result<i64> {
    let (months, days, nanos) = match value {
        ScalarValue::IntervalMonthDayNano(Some(v)) => (v.months, i64::from(v.days), v.nanoseconds),
        ScalarValue::IntervalDayTime(Some(v)) => (0, i64::from(v.days), i64::from(v.milliseconds) * 1_000_000),
        ScalarValue::IntervalYearMonth(Some(months)) => (*months, 0, 0),
        other => {
            return Err(SqlError::new(ErrorKind::INVALID_VALUE, format!("{other} is not an interval"))
                .hint("write INTERVAL '10 seconds'"));
        }
    };
    if months != 0 {
        return Err(SqlError::new(
            ErrorKind::INVALID_VALUE,
            "a window cannot be measured in months: they differ in length",
        )
        .hint("give the size in days, hours, minutes or seconds"));
    }
    let micros = days.checked_mul(86_400_000_000).and_then(|d| d.checked_add(nanos / 1_000));
    micros.filter(|_| nanos % 1_000 == 0).ok_or_else(|| {
        SqlError::new(ErrorKind::INVALID_VALUE, "the interval is out of range or finer than a microsecond")
    })
}
