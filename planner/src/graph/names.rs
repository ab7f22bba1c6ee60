//! Operators in words: what EXPLAIN, the dashboard and the uids are made of.

use std::time::Duration;

use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::Expr;
use weir_runtime::graph::WindowSpec;

use crate::options::format_duration;
use crate::output::{UNNAMED, shown_name};

/// An expression without the qualifiers of its columns: `dep_delay > 60`.
pub(crate) fn sentence(expr: &Expr) -> String {
    if let Expr::Alias(alias) = expr {
        return sentence(&alias.expr);
    }
    let mut expr = expr.clone();
    let mut filter = String::new();
    if let Expr::AggregateFunction(call) = &mut expr
        && let Some(condition) = call.params.filter.take()
    {
        filter = format!(" FILTER (WHERE {})", sentence(&condition));
    }
    let bare = expr.clone().transform(|e| {
        Ok(match e {
            Expr::Column(column) => Transformed::yes(Expr::Column(Column::new_unqualified(column.name))),
            other => Transformed::no(other),
        })
    });
    let text = bare.map_or_else(|_| expr.to_string(), |bare| bare.data.human_display().to_string());
    // DataFusion counts a literal where a person wrote count(*).
    format!("{}{filter}", text.replace("count(Int64(1))", "count(*)").replace("count(1)", "count(*)"))
}

/// An expression as it counts for the uid: literals with their types, columns with their relations, no matter what the
/// result is called.
pub(crate) fn meaning(expr: &Expr) -> String {
    match expr {
        Expr::Alias(alias) => meaning(&alias.expr),
        other => other.to_string(),
    }
}

/// Several expressions as they count for the uid.
pub(crate) fn meanings(exprs: &[Expr]) -> String {
    exprs.iter().map(meaning).collect::<Vec<_>>().join(", ")
}

/// An expression by the name that it was given, if it was.
pub(crate) fn label(expr: &Expr) -> String {
    match expr {
        // What a person did not name says more by what it is.
        Expr::Alias(alias) if !is_derived(&alias.name, &alias.expr) => alias.name.clone(),
        other => sentence(other),
    }
}

/// Whether a name is the one that PostgreSQL gives to an expression without one.
fn is_derived(name: &str, expr: &Expr) -> bool {
    let name = shown_name(name);
    name == UNNAMED
        || match expr {
            Expr::ScalarFunction(call) => call.name() == name,
            Expr::AggregateFunction(call) => call.func.name() == name,
            Expr::Case(_) => name == "case",
            _ => false,
        }
}

/// `tumble 1 d on time_hour`.
pub(crate) fn window(spec: &WindowSpec, time: &str) -> String {
    let micros = |value: i64| format_duration(Duration::from_micros(value.unsigned_abs()));
    let mut name = if spec.slide == spec.size {
        format!("tumble {} on {time}", micros(spec.size))
    } else {
        format!("hop {} every {} on {time}", micros(spec.size), micros(spec.slide))
    };
    if spec.offset != 0 {
        let sign = if spec.offset < 0 { "-" } else { "" };
        name.push_str(&format!(" from {sign}{}", micros(spec.offset)));
    }
    name
}

/// A list that stays readable: the first few, and how many more.
pub(crate) fn list(items: &[String]) -> String {
    const SHOWN: usize = 8;
    if items.len() <= SHOWN {
        return items.join(", ");
    }
    format!("{}, … {} more", items.get(..SHOWN).unwrap_or_default().join(", "), items.len() - SHOWN)
}
