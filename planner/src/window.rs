//! TUMBLE and HOP as relations that append `window_start` and `window_end`.
//!
//! In a continuous query they become a node of the plan ([`WindowNode`]); in a batch query, projections with
//! `date_bin`. Both read the same arguments.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalMonthDayNano, TimeUnit};
use datafusion::common::{
    Column, DFSchema, DFSchemaRef, DataFusionError, ExprSchema, Result, ScalarValue, TableReference,
};
use datafusion::functions::datetime::expr_fn::date_bin;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore, cast, lit,
};
use sqlparser::ast::{self, FunctionArg, FunctionArgExpr, TableFactor};

use crate::context::interval_micros;
use crate::error::{ErrorKind, SqlError};
use crate::refuse;

/// First of the appended columns.
pub(crate) const WINDOW_START: &str = "window_start";
/// Second of the appended columns.
pub(crate) const WINDOW_END: &str = "window_end";

/// The most windows that a row of a hopping window may be in when it is planned as a batch.
const BATCH_WINDOWS: i64 = 1_000;

/// Windows over a plan. Output: the input's columns, then `window_start` and `window_end` in the time column's type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WindowNode {
    pub(crate) input: LogicalPlan,
    pub(crate) time: Expr,
    pub(crate) size: i64,
    pub(crate) slide: i64,
    pub(crate) offset: i64,
    schema: DFSchemaRef,
}

impl WindowNode {
    fn new(input: LogicalPlan, time: Expr, size: i64, slide: i64, offset: i64) -> Result<Self> {
        let schema = Self::schema_over(input.schema(), &time)?;
        Ok(Self { input, time, size, slide, offset, schema })
    }

    /// The output's columns over those of an input.
    pub(crate) fn schema_over(input: &DFSchema, time: &Expr) -> Result<DFSchemaRef> {
        let (qualifier, field) = match time {
            Expr::Column(column) => input.qualified_field_from_column(column)?,
            other => return Err(DataFusionError::Plan(format!("{other} is not a column"))),
        };
        let mut fields: Vec<(Option<TableReference>, Arc<Field>)> =
            input.iter().map(|(q, f)| (q.cloned(), Arc::clone(f))).collect();
        for name in [WINDOW_START, WINDOW_END] {
            fields.push((qualifier.cloned(), Arc::new(Field::new(name, field.data_type().clone(), true))));
        }
        Ok(Arc::new(DFSchema::new_with_metadata(fields, input.metadata().clone())?))
    }
}

impl PartialOrd for WindowNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self.size, self.slide, self.offset, &self.time, &self.input).partial_cmp(&(
            other.size,
            other.slide,
            other.offset,
            &other.time,
            &other.input,
        ))
    }
}

impl UserDefinedLogicalNodeCore for WindowNode {
    fn name(&self) -> &str {
        "Window"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![self.time.clone()]
    }

    /// A filter on other columns may go below: it sees the same rows, before they are repeated.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        HashSet::from([WINDOW_START.to_owned(), WINDOW_END.to_owned()])
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window: time={} size={} slide={} offset={}", self.time, self.size, self.slide, self.offset)
    }

    fn with_exprs_and_inputs(&self, mut exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (exprs.pop(), inputs.pop()) {
            (Some(time), Some(input)) => Self::new(input, time, self.size, self.slide, self.offset),
            _ => Err(DataFusionError::Internal("a window has one expression and one input".into())),
        }
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let inputs = self.input.schema().fields().len();
        let time = match &self.time {
            Expr::Column(column) => self.input.schema().maybe_index_of_column(column)?,
            _ => return None,
        };
        let mut needed: Vec<usize> = output_columns.iter().copied().filter(|i| *i < inputs).chain([time]).collect();
        needed.sort_unstable();
        needed.dedup();
        Some(vec![needed])
    }
}

/// The call as written: TUMBLE has slide = size.
struct Call {
    input: LogicalPlan,
    time: Expr,
    size: i64,
    slide: i64,
    offset: i64,
}

/// TUMBLE and HOP in continuous queries.
#[derive(Debug)]
pub(crate) struct StreamWindows;

impl RelationPlanner for StreamWindows {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        planned(relation, context, |call| {
            let node = WindowNode::new(call.input, call.time, call.size, call.slide, call.offset)?;
            Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }))
        })
    }
}

/// TUMBLE and HOP in batch queries.
#[derive(Debug)]
pub(crate) struct BatchWindows;

impl RelationPlanner for BatchWindows {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        planned(relation, context, batch_plan)
    }
}

fn planned(
    relation: TableFactor,
    context: &mut dyn RelationPlannerContext,
    make: impl FnOnce(Call) -> Result<LogicalPlan>,
) -> Result<RelationPlanning> {
    let TableFactor::Table { name, alias, args: Some(args), .. } = &relation else {
        return Ok(RelationPlanning::Original(Box::new(relation)));
    };
    let function = name.to_string().to_lowercase();
    let (alias, arguments) = (alias.clone(), args.args.clone());
    match function.as_str() {
        "tumble" | "hop" => {}
        "session" | "cumulate" => return Err(external(refuse::window_function(&function))),
        _ => return Ok(RelationPlanning::Original(Box::new(relation))),
    }
    let call = read_call(&function, arguments, context)?;
    Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(make(call)?, alias))))
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn usage(function: &str, problem: impl fmt::Display) -> DataFusionError {
    let call = if function == "hop" {
        "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL 'slide', INTERVAL 'size' [, INTERVAL 'offset'])"
    } else {
        "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL 'size' [, INTERVAL 'offset'])"
    };
    let message = format!("{}: {problem}", function.to_uppercase());
    external(SqlError::new(ErrorKind::INVALID_DEFINITION, message).hint(format!("write {call}")))
}

fn read_call(function: &str, args: Vec<FunctionArg>, context: &mut dyn RelationPlannerContext) -> Result<Call> {
    let names: &[&str] = if function == "hop" {
        &["data", "timecol", "slide", "size", "offset"]
    } else {
        &["data", "timecol", "size", "offset"]
    };
    let mut given: Vec<Option<ast::Expr>> = vec![None; names.len()];
    for (i, arg) in args.into_iter().enumerate() {
        let (place, expr) = match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => (i, expr),
            FunctionArg::ExprNamed { name, arg: FunctionArgExpr::Expr(expr), .. } => {
                match names.iter().position(|n| name.to_string().eq_ignore_ascii_case(n)) {
                    Some(place) => (place, expr),
                    None => return Err(usage(function, format!("there is no argument {name}"))),
                }
            }
            other => return Err(usage(function, format!("\"{other}\" is no argument of it"))),
        };
        match given.get_mut(place) {
            Some(slot) => *slot = Some(expr),
            None => return Err(usage(function, "too many arguments")),
        }
    }
    let mut given = given.into_iter();
    let mut next = |what: &str| given.next().flatten().ok_or_else(|| usage(function, format!("{what} is missing")));
    let table = next("the table")?;
    let time = next("DESCRIPTOR(time column)")?;
    let first = next(if function == "hop" { "the slide" } else { "the size" })?;
    let second = if function == "hop" { Some(next("the size")?) } else { None };
    let offset = given.next().flatten();

    let input = context.plan(table_factor(function, table)?)?;
    let name = context.normalize_ident(descriptor(function, time)?);
    let (input, time) = time_column(function, input, &name)?;
    let first = interval(function, first, context)?;
    let (slide, size) = match second {
        Some(size) => (first, interval(function, size, context)?),
        None => (first, first),
    };
    let offset = offset.map(|o| interval(function, o, context)).transpose()?.unwrap_or(0);
    if size <= 0 || slide <= 0 {
        return Err(usage(function, "size and slide must be above zero"));
    }
    if slide > size {
        return Err(usage(
            function,
            "the slide is greater than the size, so that rows between two windows would be lost",
        ));
    }
    Ok(Call { input, time, size, slide, offset })
}

/// The relation named or written as the first argument.
fn table_factor(function: &str, expr: ast::Expr) -> Result<TableFactor> {
    let name = match expr {
        ast::Expr::Identifier(ident) => vec![ident],
        ast::Expr::CompoundIdentifier(idents) => idents,
        ast::Expr::Subquery(subquery) => {
            return Ok(plain_relation(&subquery).unwrap_or(TableFactor::Derived {
                lateral: false,
                subquery,
                alias: None,
                sample: None,
            }));
        }
        other => return Err(usage(function, format!("\"{other}\" is not a relation"))),
    };
    Ok(TableFactor::Table {
        name: ast::ObjectName::from(name),
        alias: None,
        args: None,
        with_hints: vec![],
        version: None,
        with_ordinality: false,
        partitions: vec![],
        json_path: None,
        sample: None,
        index_hints: vec![],
    })
}

/// The relation of `SELECT * FROM relation`, whose columns can then be written with its name.
fn plain_relation(query: &ast::Query) -> Option<TableFactor> {
    let ast::SetExpr::Select(select) = query.body.as_ref() else { return None };
    match select.from.as_slice() {
        [from] if from.joins.is_empty() && query.to_string() == format!("SELECT * FROM {}", from.relation) => {
            matches!(from.relation, TableFactor::Table { .. }).then(|| from.relation.clone())
        }
        _ => None,
    }
}

/// `DESCRIPTOR(ts)` or `ts`.
fn descriptor(function: &str, expr: ast::Expr) -> Result<ast::Ident> {
    let wrong = |given: &dyn fmt::Display| usage(function, format!("\"{given}\" is not DESCRIPTOR(time column)"));
    match &expr {
        ast::Expr::Identifier(ident) => Ok(ident.clone()),
        ast::Expr::Function(call) if call.name.to_string().eq_ignore_ascii_case("descriptor") => match &call.args {
            ast::FunctionArguments::List(list) => match list.args.as_slice() {
                [FunctionArg::Unnamed(FunctionArgExpr::Expr(ast::Expr::Identifier(ident)))] => Ok(ident.clone()),
                _ => Err(wrong(&expr)),
            },
            _ => Err(wrong(&expr)),
        },
        _ => Err(wrong(&expr)),
    }
}

/// The time column in the input, cast to microseconds if it is finer or coarser.
fn time_column(function: &str, input: LogicalPlan, name: &str) -> Result<(LogicalPlan, Expr)> {
    let matching: Vec<Column> = input.schema().columns().into_iter().filter(|column| column.name == name).collect();
    let [column] = matching.as_slice() else {
        let problem = if matching.is_empty() { "does not exist" } else { "is ambiguous" };
        let known: Vec<String> = input.schema().columns().into_iter().map(|c| c.name).collect();
        let near = crate::error::nearest(name, known.iter().map(String::as_str));
        let error = SqlError::new(ErrorKind::UNDEFINED_COLUMN, format!("column \"{name}\" {problem}"));
        return Err(external(error.maybe_hint(near.map(|near| format!("did you mean \"{near}\"?")))));
    };
    let data_type = input.schema().data_type(column)?.clone();
    let time = Expr::Column(column.clone());
    match data_type {
        DataType::Timestamp(TimeUnit::Microsecond, _) => Ok((input, time)),
        DataType::Timestamp(_, zone) => {
            let exprs: Vec<Expr> = input
                .schema()
                .columns()
                .into_iter()
                .map(|c| {
                    if c == *column {
                        let micros = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
                        cast(Expr::Column(c.clone()), micros).alias_qualified(c.relation.clone(), c.name)
                    } else {
                        Expr::Column(c)
                    }
                })
                .collect();
            let input = LogicalPlanBuilder::from(input).project(exprs)?.build()?;
            Ok((input, time))
        }
        other => {
            let given = crate::SqlType::of(&other).map_or_else(|| other.to_string(), |t| t.to_string());
            Err(usage(
                function,
                format!("column \"{name}\" is of type {given}, but event time is a TIMESTAMP or TIMESTAMPTZ"),
            ))
        }
    }
}

fn interval(function: &str, expr: ast::Expr, context: &mut dyn RelationPlannerContext) -> Result<i64> {
    let text = expr.to_string();
    match context.sql_to_expr(expr, &DFSchema::empty())? {
        Expr::Literal(value, _) => interval_micros(&value).map_err(external),
        _ => Err(usage(function, format!("\"{text}\" is not a constant interval"))),
    }
}

fn micros(value: i64) -> Expr {
    lit(ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano::new(0, 0, value * 1_000))))
}

/// A projection for each window that a row can be in.
fn batch_plan(call: Call) -> Result<LogicalPlan> {
    let Call { input, time, size, slide, offset } = call;
    let windows = (size + slide - 1) / slide;
    if windows > BATCH_WINDOWS {
        return Err(usage(
            "hop",
            format!("a row would be in {windows} windows; {BATCH_WINDOWS} are the most in a SELECT"),
        ));
    }
    let data_type = match &time {
        Expr::Column(column) => input.schema().data_type(column)?.clone(),
        other => return Err(DataFusionError::Plan(format!("{other} is not a column"))),
    };
    let zone = match &data_type {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    let qualifier = match &time {
        Expr::Column(column) => column.relation.clone(),
        _ => None,
    };
    let origin = lit(ScalarValue::TimestampMicrosecond(Some(offset), zone));
    let last = cast(date_bin(micros(slide), time.clone(), origin), data_type);
    let mut plan: Option<LogicalPlan> = None;
    for i in 0..windows {
        let start = last.clone() - micros(i * slide);
        let end = start.clone() + micros(size);
        let mut exprs: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
        exprs.push(start.alias_qualified(qualifier.clone(), WINDOW_START));
        exprs.push(end.clone().alias_qualified(qualifier.clone(), WINDOW_END));
        let part = LogicalPlanBuilder::from(input.clone())
            .filter(time.clone().is_not_null().and(time.clone().lt(end)))?
            .project(exprs)?
            .build()?;
        plan = Some(match plan {
            None => part,
            Some(plan) => {
                let alias = plan.schema().iter().map(|(q, f)| (q.cloned(), Arc::clone(f))).collect::<Vec<_>>();
                let union = LogicalPlanBuilder::from(plan).union(part)?.build()?;
                let names = union.schema().columns().into_iter().zip(alias);
                let exprs: Vec<Expr> = names.map(|(c, (q, f))| Expr::Column(c).alias_qualified(q, f.name())).collect();
                LogicalPlanBuilder::from(union).project(exprs)?.build()?
            }
        });
    }
    plan.ok_or_else(|| DataFusionError::Internal("a window without a size".into()))
}
