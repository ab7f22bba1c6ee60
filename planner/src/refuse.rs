//! What cannot run as a stream: the clause, why, and what to write instead.

use std::collections::BTreeSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::{AggregateFunction, ScalarFunction};
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan, Volatility};

use sqlparser::ast;

use crate::error::{ErrorKind, Result, SqlError};
use crate::from_datafusion;
use crate::types::fold;

fn refused(message: impl Into<String>, hint: impl Into<String>) -> SqlError {
    SqlError::new(ErrorKind::NOT_STREAMABLE, message).hint(hint)
}

/// `WITH RECURSIVE`.
pub(crate) fn recursive() -> SqlError {
    refused(
        "WITH RECURSIVE cannot run as a stream: an iteration would have to end before its input has",
        "write the levels out as joins, or run the recursive query as a SELECT over a view",
    )
}

/// SESSION and CUMULATE.
pub(crate) fn window_function(name: &str) -> SqlError {
    refused(
        format!("{} windows are not available in this version", name.to_uppercase()),
        "TUMBLE(TABLE t, DESCRIPTOR(ts), size) and HOP(TABLE t, DESCRIPTOR(ts), slide, size) are",
    )
}

/// Refuses a plan that cannot stream. Called before the optimizer, so that clauses are still as they were written.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    let mut refusal = None;
    plan.apply_with_subqueries(|node| {
        if let Err(error) = check_node(node).and_then(|()| check_expressions(node)) {
            refusal = Some(error);
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(from_datafusion)?;
    refusal.map_or(Ok(()), Err)
}

fn check_node(plan: &LogicalPlan) -> Result<()> {
    Err(match plan {
        LogicalPlan::Sort(_) => refused(
            "ORDER BY cannot run as a stream: the rows of a continuous query never end, so they cannot be sorted",
            "put ORDER BY in the SELECT that reads the view",
        ),
        LogicalPlan::Limit(_) => refused(
            "LIMIT and OFFSET cannot run as a stream: which rows are first changes with every row",
            "put LIMIT in the SELECT that reads the view",
        ),
        LogicalPlan::Window(_) => refused(
            "OVER (…) is not available in continuous queries in this version",
            "aggregate in TUMBLE or HOP windows with GROUP BY, or use OVER in the SELECT that reads the view",
        ),
        LogicalPlan::RecursiveQuery(_) => recursive(),
        LogicalPlan::Distinct(Distinct::On(_)) => refused(
            "DISTINCT ON cannot run as a stream: which row comes first is not known before all have come",
            "GROUP BY the columns and take first_value, min or max of the others",
        ),
        LogicalPlan::Unnest(_) => refused(
            "UNNEST is not available in continuous queries in this version",
            "keep the array in the view and UNNEST it in the SELECT that reads the view",
        ),
        LogicalPlan::Values(_) => refused(
            "VALUES is not available in continuous queries: they read streams, tables and views",
            "CREATE TABLE for the values, INSERT them, and read the table",
        ),
        LogicalPlan::EmptyRelation(empty) if empty.produce_one_row => refused(
            "a continuous query needs a FROM clause: it reads streams, tables and views",
            "run the SELECT by itself",
        ),
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.iter().any(|e| matches!(e, Expr::GroupingSet(_))) => {
            refused(
                "GROUPING SETS, CUBE and ROLLUP are not available in continuous queries in this version",
                "write one query for each grouping, and UNION ALL them",
            )
        }
        LogicalPlan::Statement(_)
        | LogicalPlan::Dml(_)
        | LogicalPlan::Ddl(_)
        | LogicalPlan::Copy(_)
        | LogicalPlan::Explain(_)
        | LogicalPlan::Analyze(_)
        | LogicalPlan::DescribeTable(_) => refused("only a SELECT can be a continuous query", "write AS SELECT …"),
        _ => return Ok(()),
    })
}

fn check_expressions(plan: &LogicalPlan) -> Result<()> {
    let mut refusal = None;
    for expr in plan.expressions() {
        expr.apply(|e| {
            refusal = check_expr(e).err();
            Ok(if refusal.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
        .map_err(from_datafusion)?;
        if refusal.is_some() {
            break;
        }
    }
    refusal.map_or(Ok(()), Err)
}

fn check_expr(expr: &Expr) -> Result<()> {
    match expr {
        Expr::ScalarFunction(ScalarFunction { func, .. }) => match func.signature().volatility {
            Volatility::Immutable => Ok(()),
            Volatility::Stable => Err(refused(
                format!(
                    "{}() cannot run as a stream: its answer changes with the time at which a row is read, so a recovery would give another",
                    func.name()
                ),
                "take the time from a column of the rows, or call it in the SELECT that reads the view",
            )),
            Volatility::Volatile => Err(refused(
                format!(
                    "{}() cannot run as a stream: it answers differently each time, so a recovery would give other rows",
                    func.name()
                ),
                "compute it before INSERT, or call it in the SELECT that reads the view",
            )),
        },
        Expr::AggregateFunction(AggregateFunction { func, .. })
            if func.signature().volatility == Volatility::Volatile =>
        {
            Err(refused(
                format!("{}() cannot run as a stream: it answers differently each time", func.name()),
                "use another aggregate",
            ))
        }
        Expr::Placeholder(placeholder) => Err(refused(
            format!(
                "parameter {} cannot stand in a continuous query: the query outlives the statement",
                placeholder.id
            ),
            "write the value out",
        )),
        Expr::GroupingSet(_) => Err(refused(
            "GROUPING SETS, CUBE and ROLLUP are not available in continuous queries in this version",
            "write one query for each grouping, and UNION ALL them",
        )),
        _ => Ok(()),
    }
}

/// A subquery that the optimizer could not turn into a join.
pub(crate) fn subquery(text: &str) -> SqlError {
    refused(
        format!("the subquery in {text} cannot be turned into a join, which is how it would run as a stream"),
        "write it as a JOIN",
    )
}

/// A join without equal keys.
pub(crate) fn no_equal_keys() -> SqlError {
    refused(
        "a join without an equality between the two sides cannot run as a stream: every row would meet every other",
        "join ON a.key = b.key; further conditions may stand beside it",
    )
}

/// `NOT IN` over a column that can be null.
pub(crate) fn not_in() -> SqlError {
    refused(
        "NOT IN (SELECT …) over columns that can be null cannot run as a stream: one null would take back every row",
        "write WHERE NOT EXISTS (SELECT 1 FROM … WHERE … = …)",
    )
}

/// EMIT ON WINDOW CLOSE without a window to close.
pub(crate) fn no_window(what: &str) -> SqlError {
    refused(
        format!("EMIT ON WINDOW CLOSE needs a window that closes: {what}"),
        "read FROM TUMBLE(TABLE t, DESCRIPTOR(ts), size) of a stream with WATERMARK FOR ts, and GROUP BY window_start, window_end",
    )
}

/// A query that changes rows where only additions can go.
pub(crate) fn retractions(target: &str, hint: &str) -> SqlError {
    refused(format!("{target} takes added rows only, and this query changes rows that it has given out"), hint)
}

/// A lateral subquery that could not be turned into a join.
pub(crate) fn lateral() -> SqlError {
    refused(
        "this LATERAL subquery cannot be turned into a join, which is how it would run as a stream",
        "write it as a JOIN",
    )
}

/// `WHERE a OR b IN (SELECT …)`.
pub(crate) fn subquery_under_or() -> SqlError {
    refused(
        "IN and EXISTS under OR, or as a value, are not available in continuous queries in this version",
        "write a LEFT JOIN and test the joined column for NULL",
    )
}

/// Two columns of the result that are written with the same name. DataFusion would call the name ambiguous, as if it
/// had been read.
pub(crate) fn repeated_names(query: &ast::Query) -> Result<()> {
    let ast::SetExpr::Select(select) = query.body.as_ref() else { return Ok(()) };
    let mut names = BTreeSet::new();
    for item in &select.projection {
        let ident = match item {
            ast::SelectItem::ExprWithAlias { alias, .. } => Some(alias),
            ast::SelectItem::UnnamedExpr(ast::Expr::Identifier(ident)) => Some(ident),
            ast::SelectItem::UnnamedExpr(ast::Expr::CompoundIdentifier(idents)) => idents.last(),
            _ => None,
        };
        if let Some(name) = ident.map(fold)
            && !names.insert(name.clone())
        {
            return Err(SqlError::new(
                ErrorKind::DUPLICATE_COLUMN,
                format!("column \"{name}\" is in the result twice"),
            )
            .hint("leave one of them out, or give it another name with AS"));
        }
    }
    Ok(())
}
