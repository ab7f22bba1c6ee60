//! Names of result columns as PostgreSQL gives them: `count(*)` is `count`, `x::int` is `x`, `1 + 1` is `?column?`.
//!
//! DataFusion names a column after its expression and wants each name once. Both are mended in the text tree before
//! planning: what has no name gets PostgreSQL's as an alias, and a name that is there already gets one with a mark,
//! which [`shown_name`] takes off again where rows leave.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{
    AccessExpr, DataType, Expr, Function, Ident, OrderBy, OrderByKind, Query, Select, SelectItem, SetExpr,
    TrimWhereField, VisitMut, VisitorMut,
};

use crate::types::{SqlType, fold};

/// What PostgreSQL calls a column without a name.
pub const UNNAMED: &str = "?column?";

/// Stands between a repeated name and its number. No keyboard makes it, so no name that a person chose has it.
const MARK: char = '\u{1f}';

/// Which names get a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Those that stand in the list already.
    Repeated,
    /// Beside a wildcard also all others: what it brings in is not known from the text.
    BesideWildcards,
}

/// Gives every column of every SELECT in a query the name that PostgreSQL would.
pub fn name_columns(query: &mut Query, marks: Marks) {
    struct Names(Marks);
    impl VisitorMut for Names {
        type Break = ();

        fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
            name_body(&mut query.body, query.order_by.as_mut(), self.0);
            ControlFlow::Continue(())
        }
    }
    let _ = VisitMut::visit(query, &mut Names(marks));
}

fn name_body(body: &mut SetExpr, order_by: Option<&mut OrderBy>, marks: Marks) {
    match body {
        SetExpr::Select(select) => {
            let marked = name_select(select, marks);
            if let Some(order_by) = order_by {
                follow(order_by, &marked);
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            name_body(left, None, marks);
            name_body(right, None, marks);
        }
        // A query in parentheses is one that the visitor has seen.
        _ => {}
    }
}

/// Names one list; answers which names stand there with a mark only, and how.
fn name_select(select: &mut Select, marks: Marks) -> Vec<(String, String)> {
    let is_wildcard = |item: &SelectItem| {
        matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) | SelectItem::ExprWithAliases { .. })
    };
    let everything = marks == Marks::BesideWildcards && select.projection.iter().any(is_wildcard);
    let (mut seen, mut moved) = (BTreeSet::new(), Vec::new());
    for (index, item) in select.projection.iter_mut().enumerate() {
        let (expr, name, plain) = match item {
            SelectItem::UnnamedExpr(expr) => {
                let plain = matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
                (expr, None, plain)
            }
            SelectItem::ExprWithAlias { expr, alias } => (expr, Some(fold(alias)), true),
            _ => continue,
        };
        let name = name.unwrap_or_else(|| column_name(expr));
        let repeated = !seen.insert(name.clone());
        if repeated || everything {
            let alias = marked_name(&name, index);
            if !repeated {
                moved.push((name, alias.clone()));
            }
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', alias) };
        } else if !plain {
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', name) };
        }
    }
    moved
}

/// ORDER BY a name that has got a mark.
fn follow(order_by: &mut OrderBy, moved: &[(String, String)]) {
    let OrderByKind::Expressions(exprs) = &mut order_by.kind else { return };
    for by in exprs {
        if let Expr::Identifier(ident) = &by.expr
            && let Some((_, alias)) = moved.iter().find(|(name, _)| *name == fold(ident))
        {
            by.expr = Expr::Identifier(Ident::with_quote('"', alias.clone()));
        }
    }
}

/// A name that can stand beside its like: `number` is its own in the list.
pub fn marked_name(name: &str, number: usize) -> String {
    format!("{name}{MARK}{number}")
}

/// The name without its mark.
pub fn shown_name(name: &str) -> &str {
    name.split_once(MARK).map_or(name, |(name, _)| name)
}

/// The name that PostgreSQL gives to the result of an expression.
pub fn column_name(expr: &Expr) -> String {
    figure(expr).map_or_else(|| UNNAMED.to_owned(), |(name, _)| name)
}

/// How much a name is worth: a type and `case` give way to what stands inside them.
#[derive(PartialEq, Eq)]
enum Worth {
    Own,
    Weak,
}

/// PostgreSQL's FigureColname.
fn figure(expr: &Expr) -> Option<(String, Worth)> {
    let own = |name: &str| Some((name.to_owned(), Worth::Own));
    match expr {
        Expr::Identifier(ident) => Some((fold(ident), Worth::Own)),
        Expr::CompoundIdentifier(parts) => parts.last().map(|ident| (fold(ident), Worth::Own)),
        Expr::CompoundFieldAccess { root, access_chain } => {
            let field = access_chain.iter().rev().find_map(|access| match access {
                AccessExpr::Dot(field) => figure(field),
                AccessExpr::Subscript(_) => None,
            });
            field.or_else(|| figure(root))
        }
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => figure(inner),
        Expr::Function(function) => function_name(function).map(|name| (name, Worth::Own)),
        Expr::Cast { expr, data_type, .. } => weak(figure(expr), || type_name(data_type)),
        Expr::TypedString(typed) => Some((type_name(&typed.data_type), Worth::Weak)),
        Expr::Interval(_) => Some(("interval".to_owned(), Worth::Weak)),
        Expr::Case { else_result, .. } => weak(else_result.as_deref().and_then(figure), || "case".to_owned()),
        Expr::Subquery(query) => first_name(&query.body).map(|name| (name, Worth::Own)),
        Expr::Exists { .. } => own("exists"),
        Expr::Array(_) => own("array"),
        Expr::Tuple(_) => own("row"),
        Expr::Struct { .. } => own("struct"),
        Expr::Extract { .. } => own("extract"),
        Expr::Ceil { .. } => own("ceil"),
        Expr::Floor { .. } => own("floor"),
        Expr::Position { .. } => own("position"),
        Expr::Substring { shorthand: true, .. } => own("substr"),
        Expr::Substring { .. } => own("substring"),
        Expr::Overlay { .. } => own("overlay"),
        Expr::AtTimeZone { .. } => own("timezone"),
        Expr::IsNormalized { .. } => own("is_normalized"),
        Expr::Trim { trim_where, .. } => own(match trim_where {
            Some(TrimWhereField::Leading) => "ltrim",
            Some(TrimWhereField::Trailing) => "rtrim",
            _ => "btrim",
        }),
        _ => None,
    }
}

fn weak(inner: Option<(String, Worth)>, otherwise: impl FnOnce() -> String) -> Option<(String, Worth)> {
    match inner {
        Some((name, Worth::Own)) => Some((name, Worth::Own)),
        _ => Some((otherwise(), Worth::Weak)),
    }
}

fn function_name(function: &Function) -> Option<String> {
    function.name.0.last().and_then(|part| part.as_ident()).map(fold)
}

/// The name of the first column of a query's body.
fn first_name(body: &SetExpr) -> Option<String> {
    match body {
        SetExpr::Select(select) => match select.projection.first()? {
            SelectItem::UnnamedExpr(expr) => Some(column_name(expr)),
            SelectItem::ExprWithAlias { alias, .. } => Some(shown_name(&fold(alias)).to_owned()),
            _ => None,
        },
        SetExpr::SetOperation { left, .. } => first_name(left),
        SetExpr::Query(query) => first_name(&query.body),
        SetExpr::Values(_) => Some("column1".to_owned()),
        _ => None,
    }
}

/// A type's name in PostgreSQL's catalog: `int` is `int4`; an array is named like its elements.
fn type_name(data_type: &DataType) -> String {
    match SqlType::from_ast(data_type) {
        Ok(known) => known.catalog_name().to_owned(),
        Err(_) => {
            let text = data_type.to_string().to_lowercase();
            text.rsplit('.').next().unwrap_or_default().trim_matches('"').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlparser::dialect::PostgreSqlDialect;
    use sqlparser::parser::Parser;

    use super::*;

    fn parsed(sql: &str) -> Query {
        *Parser::new(&PostgreSqlDialect {}).try_with_sql(sql).unwrap().parse_query().unwrap()
    }

    fn name(expr: &str) -> String {
        match parsed(&format!("SELECT {expr}")).body.as_ref() {
            SetExpr::Select(select) => match &select.projection[0] {
                SelectItem::UnnamedExpr(expr) => column_name(expr),
                other => panic!("{other}"),
            },
            other => panic!("{other}"),
        }
    }

    /// As PostgreSQL's FigureColname decides.
    #[test]
    fn names_are_those_of_postgres() {
        for (expr, expected) in [
            ("count(*)", "count"),
            ("COUNT(DISTINCT x)", "count"),
            ("sum(t.x) FILTER (WHERE y > 1)", "sum"),
            ("row_number() OVER (ORDER BY x)", "row_number"),
            ("pg_catalog.version()", "version"),
            ("1", "?column?"),
            ("-x", "?column?"),
            ("a + b", "?column?"),
            ("x IS NULL", "?column?"),
            ("x IN (1, 2)", "?column?"),
            ("'text'", "?column?"),
            ("true", "?column?"),
            ("NULL", "?column?"),
            ("Name", "name"),
            ("\"Name\"", "Name"),
            ("t.\"Name\"", "Name"),
            ("(x)", "x"),
            ("x::int", "x"),
            ("count(*)::int", "count"),
            ("1::bigint", "int8"),
            ("CAST('1' AS double precision)", "float8"),
            ("'{1,2}'::int[]", "int4"),
            ("'1'::varchar(3)", "varchar"),
            ("1::bigint::text", "text"),
            ("timestamptz '2024-01-01 00:00:00'", "timestamptz"),
            ("date '2024-01-01'", "date"),
            ("interval '1 day'", "interval"),
            ("CASE WHEN x THEN 1 END", "case"),
            ("CASE WHEN x THEN 1 ELSE y END", "y"),
            ("CASE WHEN x THEN 1 ELSE 2::int END", "case"),
            ("coalesce(a, b)", "coalesce"),
            ("nullif(a, b)", "nullif"),
            ("greatest(a, b)", "greatest"),
            ("extract(year FROM ts)", "extract"),
            ("substring(x FROM 2)", "substring"),
            ("trim(x)", "btrim"),
            ("ARRAY[1, 2]", "array"),
            ("(SELECT max(x) FROM t)", "max"),
            ("(SELECT 1 AS one)", "one"),
            ("EXISTS (SELECT 1)", "exists"),
            ("current_date", "current_date"),
            ("ts AT TIME ZONE 'UTC'", "timezone"),
        ] {
            assert_eq!(name(expr), expected, "{expr}");
        }
    }

    fn named(sql: &str, marks: Marks) -> String {
        let mut query = parsed(sql);
        name_columns(&mut query, marks);
        query.to_string().replace(MARK, "#")
    }

    #[test]
    fn what_has_a_name_keeps_it_and_a_repeated_one_is_marked() {
        assert_eq!(
            named("SELECT id, count(*), count(*), 1 AS x, id FROM t ORDER BY count", Marks::Repeated),
            "SELECT id, count(*) AS \"count\", count(*) AS \"count#2\", 1 AS x, id AS \"id#4\" FROM t ORDER BY count"
        );
        assert_eq!(
            named("WITH a AS (SELECT sum(x) FROM t) SELECT sum FROM (SELECT 1, 2) s, a", Marks::Repeated),
            "WITH a AS (SELECT sum(x) AS \"sum\" FROM t) SELECT sum FROM \
             (SELECT 1 AS \"?column?\", 2 AS \"?column?#1\") s, a"
        );
        assert_eq!(
            named("SELECT max(x) FROM t UNION SELECT 1 ORDER BY max", Marks::Repeated),
            "SELECT max(x) AS \"max\" FROM t UNION SELECT 1 AS \"?column?\" ORDER BY max"
        );
    }

    #[test]
    fn beside_a_wildcard_everything_can_be_marked() {
        let sql = "SELECT *, id, count(*) OVER () FROM t ORDER BY count, id DESC";
        assert_eq!(
            named(sql, Marks::Repeated),
            "SELECT *, id, count(*) OVER () AS \"count\" FROM t ORDER BY count, id DESC"
        );
        assert_eq!(
            named(sql, Marks::BesideWildcards),
            "SELECT *, id AS \"id#1\", count(*) OVER () AS \"count#2\" FROM t ORDER BY \"count#2\", \"id#1\" DESC"
        );
    }

    #[test]
    fn a_mark_does_not_show() {
        assert_eq!(shown_name(&marked_name("count", 2)), "count");
        assert_eq!(shown_name("a:1"), "a:1");
    }
}
