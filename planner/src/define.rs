//! `CREATE STREAM` and `CREATE TABLE` with columns: names, types and expressions checked, into a relation.

use std::time::Duration;

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, ExprSchemable};

use crate::catalog::{Column, Relation, RelationKind, Watermark};
use crate::context::Context;
use crate::error::{ErrorKind, Result, SqlError, nearest};
use crate::from_datafusion;
use crate::options::{Options, RETENTION, parse_duration};
use crate::statement::{CreateRelation, WatermarkClause};
use crate::types::SqlType;

/// Connector option that names a watermark's idle policy; it belongs to the relation rather than the connector.
const IDLE_TIMEOUT: &str = "idle_timeout";

pub(crate) fn define(
    context: &Context,
    kind: RelationKind,
    create: &CreateRelation,
    options: &Options,
    sql: &str,
) -> Result<Relation> {
    let columns: Vec<Column> = create
        .columns
        .iter()
        .map(|clause| {
            let sql_type = SqlType::parse(&clause.type_name).map_err(|e| e.at(clause.position))?;
            let key = create.primary_key.contains(&clause.name);
            Ok(Column {
                nullable: !(clause.not_null || key),
                generated: clause.generated.clone(),
                default: clause.default.clone(),
                ..Column::new(&clause.name, sql_type, true)
            })
        })
        .collect::<Result<_>>()?;
    let (query_options, mut connector) = options.split(&create.options)?;
    let idle = connector.remove(IDLE_TIMEOUT).map(|text| parse_duration(&text)).transpose()?;
    let idle = idle.or(query_options.duration("table.exec.source.idle-timeout")?).filter(|d| !d.is_zero());
    let own_log =
        kind == RelationKind::Stream && matches!(connector.get("connector").map(String::as_str), None | Some("http"));
    if !own_log && create.options.contains_key(RETENTION) {
        let what = if kind == RelationKind::Stream { "stream over a connector" } else { kind.name() };
        return Err(retention_elsewhere(&create.name, what));
    }
    let mut relation = Relation {
        name: create.name.clone(),
        kind,
        columns,
        key: Vec::new(),
        watermark: None,
        event_time: None,
        connector,
        query: None,
        reads: Vec::new(),
        append_only: kind == RelationKind::Stream,
        options: query_options.changed(),
        definition_sql: sql.to_owned(),
    };
    for name in &create.primary_key {
        let index = relation.column_index(name).ok_or_else(|| undefined(&relation, name))?;
        if relation.key.contains(&index) {
            return Err(SqlError::new(
                ErrorKind::DUPLICATE_COLUMN,
                format!("column \"{name}\" is twice in the primary key"),
            ));
        }
        if relation.columns.get(index).is_some_and(|c| c.generated.is_some()) {
            return Err(SqlError::new(
                ErrorKind::INVALID_DEFINITION,
                format!("column \"{name}\" is generated and cannot be in the primary key"),
            ));
        }
        relation.key.push(index);
    }
    check_expressions(context, &relation, create)?;
    if let Some(clause) = &create.watermark {
        relation.watermark = Some(watermark(context, &relation, clause, idle).map_err(|e| at(e, clause.position))?);
    }
    Ok(relation)
}

/// `retention` where there is no history to keep.
pub(crate) fn retention_elsewhere(name: &str, what: &str) -> SqlError {
    SqlError::new(
        ErrorKind::INVALID_DEFINITION,
        format!("option \"{RETENTION}\" is for streams that Weir itself keeps, and \"{name}\" is a {what}"),
    )
    .hint("leave it out")
}

fn at(error: SqlError, position: usize) -> SqlError {
    SqlError { position: Some(position), ..error }
}

fn undefined(relation: &Relation, name: &str) -> SqlError {
    let near = nearest(name, relation.columns.iter().map(|c| c.name.as_str()));
    SqlError::new(ErrorKind::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"))
        .maybe_hint(near.map(|near| format!("did you mean \"{near}\"?")))
}

/// The schema that a relation's own expressions are written against.
pub(crate) fn own_schema(relation: &Relation, physical_only: bool) -> Result<DFSchema> {
    let schema = if physical_only { relation.physical_schema() } else { relation.schema() };
    DFSchema::try_from_qualified_schema(relation.name.as_str(), &schema).map_err(from_datafusion)
}

fn check_expressions(context: &Context, relation: &Relation, create: &CreateRelation) -> Result<()> {
    let physical = own_schema(relation, true)?;
    for (column, clause) in relation.columns.iter().zip(&create.columns) {
        if let Some(sql) = &column.generated {
            let expr = context.expr(sql, &physical).map_err(|e| {
                let others = relation.columns.iter().any(|c| c.generated.is_some() && sql.contains(&c.name));
                let hint =
                    others.then(|| "a generated column is computed from columns that are not generated".to_owned());
                at(e.maybe_hint(hint), clause.position)
            })?;
            check_deterministic(&expr, "a generated column").map_err(|e| at(e, clause.position))?;
            check_type(&expr, &physical, column).map_err(|e| at(e, clause.position))?;
        }
        if let Some(sql) = &column.default {
            let expr = context.expr(sql, &DFSchema::empty()).map_err(|e| at(e, clause.position))?;
            check_type(&expr, &DFSchema::empty(), column).map_err(|e| at(e, clause.position))?;
        }
    }
    Ok(())
}

fn check_deterministic(expr: &Expr, what: &str) -> Result<()> {
    if expr.is_volatile() {
        let message = format!("{what} must give the same answer each time it is computed");
        return Err(SqlError::new(ErrorKind::INVALID_DEFINITION, message));
    }
    Ok(())
}

fn check_type(expr: &Expr, schema: &DFSchema, column: &Column) -> Result<()> {
    let given = expr.get_type(schema).map_err(from_datafusion)?;
    let wanted = column.data_type();
    if arrow::compute::can_cast_types(&given, &wanted) {
        return Ok(());
    }
    let given = SqlType::of(&given).map_or_else(|| given.to_string(), |t| t.to_string());
    let message = format!("column \"{}\" is of type {}, its expression of type {given}", column.name, column.pg_type());
    Err(SqlError::new(ErrorKind::TYPE_MISMATCH, message).hint("cast the expression"))
}

/// Checks `WATERMARK FOR column AS expr` against a relation's columns.
pub(crate) fn watermark(
    context: &Context,
    relation: &Relation,
    clause: &WatermarkClause,
    idle_timeout: Option<Duration>,
) -> Result<Watermark> {
    let index = relation.column_index(&clause.column).ok_or_else(|| undefined(relation, &clause.column))?;
    let column = relation.columns.get(index).ok_or_else(|| undefined(relation, &clause.column))?;
    if !column.sql_type.is_event_time() {
        return Err(SqlError::new(
            ErrorKind::TYPE_MISMATCH,
            format!(
                "event time is a TIMESTAMP or TIMESTAMPTZ, but column \"{}\" is of type {}",
                column.name, column.sql_type
            ),
        )
        .hint("add a generated column: ts TIMESTAMPTZ GENERATED ALWAYS AS (to_timestamp(…))"));
    }
    let schema = own_schema(relation, false)?;
    let expr = context.expr(&clause.expr, &schema)?;
    check_deterministic(&expr, "a watermark")?;
    let given = expr.get_type(&schema).map_err(from_datafusion)?;
    if !matches!(given, DataType::Timestamp(..)) {
        let given = SqlType::of(&given).map_or_else(|| given.to_string(), |t| t.to_string());
        return Err(SqlError::new(
            ErrorKind::TYPE_MISMATCH,
            format!("a watermark is a timestamp, but the expression is of type {given}"),
        )
        .hint(format!("write {} - INTERVAL '5 seconds'", clause.column)));
    }
    Ok(Watermark { column: index, expr: clause.expr.clone(), idle_timeout })
}
