//! PostgreSQL's idioms in queries over the catalogs, as DataFusion can plan them.
//!
//! First come rewrites that know Weir's catalogs (names in casts, options of foreign tables, catalogs that are always
//! empty), then the general ones of `datafusion-pg-catalog`.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr, Statement, TableFactor,
    Value, Visit, VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use weir_planner::SqlError;
use weir_planner::output::{self, column_name, marked_name};

static GENERAL: LazyLock<PostgresCompatibilityParser> = LazyLock::new(PostgresCompatibilityParser::new);

/// Catalogs of what Weir does not have. A query that needs a row of one of them has no answer, and many of psql's
/// (policies, publications, inheritance) use what DataFusion cannot plan.
const ALWAYS_EMPTY: &[&str] = &[
    "pg_policy",
    "pg_statistic_ext",
    "pg_statistic_ext_data",
    "pg_publication",
    "pg_publication_rel",
    "pg_publication_namespace",
    "pg_publication_tables",
    "pg_trigger",
    "pg_rewrite",
    "pg_inherits",
    "pg_event_trigger",
    "pg_subscription",
    "pg_subscription_rel",
    "pg_largeobject",
    "pg_largeobject_metadata",
    "pg_seclabel",
    "pg_partitioned_table",
    "pg_enum",
    "pg_user_mapping",
    "pg_default_acl",
    "pg_views",
    "pg_extension",
    "pg_seclabels",
    "pg_sequence",
];

/// Functions whose answer is a row even of nothing.
const AGGREGATES: &[&str] = &["count", "max", "min", "sum", "bool_or", "bool_and", "array_agg", "string_agg"];

/// Reads one statement.
pub(super) fn parse(sql: &str) -> Result<Statement, SqlError> {
    let refused = |message: String| SqlError::syntax(message);
    let mut statements = Parser::parse_sql(&PostgreSqlDialect {}, sql).map_err(|e| refused(e.to_string()))?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) => Ok(statement),
        _ => Err(refused("a query over the system catalogs must be one statement".to_owned())),
    }
}

/// Reads and rewrites one statement.
pub(super) fn rewrite(sql: &str) -> Result<Statement, SqlError> {
    let mut statement = parse(sql)?;
    if let Statement::Query(query) = &mut statement
        && let Some(names) = empty_columns(&query.body)
    {
        **query = nothing(&names);
        return Ok(statement);
    }
    let names = match &statement {
        Statement::Query(query) => select_of(query).and_then(result_names),
        _ => None,
    };
    let _ = VisitMut::visit(&mut statement, &mut Idioms);
    let mut statement = GENERAL.rewrite(statement);
    // The general rules clone parts of the tree; what they bring in is ours again.
    let _ = VisitMut::visit(&mut statement, &mut Cleared);
    if let (Some(names), Statement::Query(query)) = (names, &mut statement) {
        name_columns(query, &names);
    }
    Ok(statement)
}

fn select_of(query: &Query) -> Option<&Select> {
    match query.body.as_ref() {
        SetExpr::Select(select) => Some(select),
        _ => None,
    }
}

/// Gives expressions the names that they had before they were rewritten. DataFusion wants each name once; a repeated
/// one is marked, and shown without the mark.
fn name_columns(query: &mut Query, names: &[String]) {
    let SetExpr::Select(select) = query.body.as_mut() else { return };
    if select.projection.len() != names.len() {
        return;
    }
    for (index, (item, name)) in select.projection.iter_mut().zip(names).enumerate() {
        if let SelectItem::UnnamedExpr(expr) = item
            && !matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
        {
            let alias = if names[..index].contains(name) { marked_name(name, index) } else { name.clone() };
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', alias) };
        }
    }
}

/// The name of a result column: a function's own name, and no trace of a rewrite.
pub(super) fn shown_name(name: &str) -> String {
    let name = output::shown_name(name.strip_prefix("__alias_").unwrap_or(name));
    match name.split_once('(') {
        Some((function, rest))
            if rest.ends_with(')')
                && !function.is_empty()
                && function.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') =>
        {
            function.trim_start_matches("weir_").to_lowercase()
        }
        _ => name.to_owned(),
    }
}

/// The result columns of a query that certainly has no rows.
fn empty_columns(body: &SetExpr) -> Option<Vec<String>> {
    match body {
        SetExpr::Select(select) => {
            let empty = select.from.iter().any(|from| {
                is_empty(&from.relation)
                    || from.joins.iter().any(|join| is_inner(&join.join_operator) && is_empty(&join.relation))
            });
            let grouped = matches!(&select.group_by, ast::GroupByExpr::Expressions(by, _) if !by.is_empty());
            (empty && (grouped || !has_aggregate(select))).then(|| result_names(select))?
        }
        SetExpr::SetOperation { left, right, .. } => empty_columns(right).and_then(|_| empty_columns(left)),
        SetExpr::Query(query) => empty_columns(&query.body),
        _ => None,
    }
}

fn is_inner(operator: &ast::JoinOperator) -> bool {
    matches!(operator, ast::JoinOperator::Join(_) | ast::JoinOperator::Inner(_) | ast::JoinOperator::CrossJoin(_))
}

fn is_empty(relation: &TableFactor) -> bool {
    match relation {
        TableFactor::Table { name, args: None, .. } => {
            let parts: Vec<String> = name.0.iter().filter_map(identifier).collect();
            match parts.as_slice() {
                [name] => ALWAYS_EMPTY.contains(&name.as_str()),
                [.., schema, name] => schema == "pg_catalog" && ALWAYS_EMPTY.contains(&name.as_str()),
                [] => false,
            }
        }
        _ => false,
    }
}

fn has_aggregate(select: &Select) -> bool {
    /// What it has found, and how many queries it is inside of.
    struct Aggregates(bool, usize);
    impl Visitor for Aggregates {
        type Break = ();
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.1 += 1;
            ControlFlow::Continue(())
        }
        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.1 -= 1;
            ControlFlow::Continue(())
        }
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Function(function) = expr {
                self.0 |= self.1 == 0 && AGGREGATES.contains(&function_name(function).as_str());
            }
            ControlFlow::Continue(())
        }
    }
    let mut aggregates = Aggregates(false, 0);
    for item in &select.projection {
        if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
            let _ = expr.visit(&mut aggregates);
        }
    }
    aggregates.0
}

/// The names of a SELECT's columns; `None` when a wildcard hides them.
fn result_names(select: &Select) -> Option<Vec<String>> {
    select
        .projection
        .iter()
        .map(|item| match item {
            SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.clone()),
            SelectItem::UnnamedExpr(expr) => Some(column_name(expr)),
            _ => None,
        })
        .collect()
}

/// No rows of text columns. Names may occur twice, which only an alias of its own for each can plan.
fn nothing(names: &[String]) -> Query {
    let quote = |text: &str| text.replace('"', "\"\"");
    let mut seen = Vec::new();
    let columns: Vec<String> = names
        .iter()
        .map(|name| {
            let times = seen.iter().filter(|n| *n == name).count();
            seen.push(name.clone());
            let alias = if times > 0 { marked_name(name, times) } else { name.clone() };
            format!("NULL::TEXT AS \"{}\"", quote(&alias))
        })
        .collect();
    let sql = format!("SELECT {} WHERE false", columns.join(", "));
    match Parser::parse_sql(&PostgreSqlDialect {}, &sql).map(|mut s| s.pop()) {
        Ok(Some(Statement::Query(query))) => *query,
        // The text above is made of quoted names; were it ever unreadable, an empty VALUES is as empty.
        _ => Query {
            with: None,
            body: Box::new(SetExpr::Values(ast::Values {
                explicit_row: false,
                value_keyword: false,
                rows: Vec::new(),
            })),
            order_by: None,
            limit_clause: None,
            fetch: None,
            locks: Vec::new(),
            for_clause: None,
            settings: None,
            format_clause: None,
            pipe_operators: Vec::new(),
        },
    }
}

fn identifier(part: &ObjectNamePart) -> Option<String> {
    part.as_ident().map(|ident| ident.value.to_lowercase())
}

fn function_name(function: &Function) -> String {
    function.name.0.last().and_then(identifier).unwrap_or_default()
}

/// The arguments of a plain call.
fn arguments(function: &Function) -> Vec<&Expr> {
    match &function.args {
        FunctionArguments::List(list) => list
            .args
            .iter()
            .filter_map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn call(name: &str, args: Vec<Expr>) -> Expr {
    let args = args.into_iter().map(|expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))).collect();
    Expr::Function(Function {
        name: ObjectName(vec![ObjectNamePart::Identifier(Ident::new(name))]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn number(value: &str) -> Expr {
    Expr::Value(Value::Number(value.to_owned(), false).into())
}

fn text(value: &str) -> Expr {
    Expr::Value(Value::SingleQuotedString(value.to_owned()).into())
}

fn null_text() -> Expr {
    Expr::Cast {
        kind: CastKind::DoubleColon,
        expr: Box::new(Expr::Value(Value::Null.into())),
        data_type: ast::DataType::Text,
        array: false,
        format: None,
    }
}

/// Rewrites that come first.
struct Idioms;

impl VisitorMut for Idioms {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Some(better) = idiom(expr) {
            *expr = better;
        }
        ControlFlow::Continue(())
    }
}

fn idiom(expr: &Expr) -> Option<Expr> {
    match expr {
        Expr::Cast { kind: CastKind::DoubleColon | CastKind::Cast, expr: operand, data_type, .. } => {
            cast(operand, &data_type.to_string())
        }
        Expr::Function(function) => function_idiom(function),
        Expr::Subquery(query) => column_default(query).or_else(|| scalar(query)),
        // DataFusion's LIKE escapes with a backslash only.
        Expr::Like { negated, any, expr, pattern, escape_char: Some(escape) } => {
            let Value::SingleQuotedString(escape) = &escape.value else { return None };
            if escape == "\\" {
                return None;
            }
            let plain = call("replace", vec![pattern.as_ref().clone(), text("\\"), text("\\\\")]);
            let pattern = Box::new(call("replace", vec![plain, text(escape), text("\\")]));
            Some(Expr::Like { negated: *negated, any: *any, expr: expr.clone(), pattern, escape_char: None })
        }
        // `x OPERATOR(pg_catalog.=) ANY (…)` and the like compare as their plain forms do.
        Expr::BinaryOp { left, op: BinaryOperator::PGCustomBinaryOperator(name), right } => {
            let op = match name.last().map(String::as_str)? {
                "=" => BinaryOperator::Eq,
                "<>" | "!=" => BinaryOperator::NotEq,
                "~~" => BinaryOperator::PGLikeMatch,
                "!~~" => BinaryOperator::PGNotLikeMatch,
                _ => return None,
            };
            Some(Expr::BinaryOp { left: left.clone(), op, right: right.clone() })
        }
        _ => None,
    }
}

/// Casts to and between the types that name objects.
fn cast(operand: &Expr, data_type: &str) -> Option<Expr> {
    let target = data_type.to_lowercase();
    let target = target.trim_start_matches("pg_catalog.");
    let operand = match operand {
        Expr::Nested(inner) => inner.as_ref(),
        other => other,
    };
    match target {
        "oid" | "int4" | "integer" | "int8" | "bigint" => match operand {
            // A name, looked up, is a number already; a number shown as a name and taken back is the number.
            Expr::Cast { expr: inner, data_type, .. } => {
                let through = data_type.to_string().to_lowercase();
                match through.trim_start_matches("pg_catalog.") {
                    "regclass" if is_name(inner) => Some(call("weir_regclass", vec![inner.as_ref().clone()])),
                    "regclass" | "regtype" | "regnamespace" | "regproc" | "regrole" if !is_name(inner) => {
                        Some(inner.as_ref().clone())
                    }
                    _ => None,
                }
            }
            _ => None,
        },
        "regclass" if is_name(operand) => Some(call("weir_regclass", vec![operand.clone()])),
        "regclass" => Some(call("weir_regclass_name", vec![operand.clone()])),
        "regnamespace" if !is_name(operand) => Some(call("weir_namespace_name", vec![operand.clone()])),
        "regtype" if is_name(operand) => Some(call("to_regtype", vec![operand.clone()])),
        "regtype" => Some(call("format_type", vec![operand.clone(), number("-1")])),
        "regrole" if !is_name(operand) => Some(call("pg_get_userbyid", vec![operand.clone()])),
        // A one-byte "char" is text here.
        "\"char\"" | "name" => Some(Expr::Cast {
            kind: CastKind::DoubleColon,
            expr: Box::new(operand.clone()),
            data_type: ast::DataType::Text,
            array: false,
            format: None,
        }),
        _ => None,
    }
}

fn is_name(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(ast::ValueWithSpan { value: Value::SingleQuotedString(_) | Value::Placeholder(_), .. }))
}

fn function_idiom(function: &Function) -> Option<Expr> {
    let args = arguments(function);
    match function_name(function).as_str() {
        // `ARRAY(SELECT quote_ident(option_name) || … FROM pg_options_to_table(options))`: the options are kept as psql
        // prints them. The other arrays of rows that clients ask for (role memberships, storage options) are of what
        // Weir does not have.
        "array" => match &function.args {
            FunctionArguments::Subquery(query) => {
                let nothing = || call("string_to_array", vec![null_text(), text(",")]);
                Some(options_argument(query).unwrap_or_else(nothing))
            }
            _ => None,
        },
        // Subscripts of an array from 1.
        "generate_subscripts" => {
            let length = call("coalesce", vec![call("array_length", vec![(*args.first()?).clone()]), number("0")]);
            let length = Expr::Cast {
                kind: CastKind::DoubleColon,
                expr: Box::new(length),
                data_type: ast::DataType::BigInt(None),
                array: false,
                format: None,
            };
            Some(call("unnest", vec![call("generate_series", vec![number("1"), length])]))
        }
        _ => None,
    }
}

/// What `pg_options_to_table(x)` in a FROM is given.
fn options_argument(query: &Query) -> Option<Expr> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    select.from.iter().find_map(|from| match &from.relation {
        TableFactor::Table { name, args: Some(args), .. }
            if name.0.last().and_then(identifier).as_deref() == Some("pg_options_to_table") =>
        {
            args.args.iter().find_map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
                _ => None,
            })
        }
        _ => None,
    })
}

/// `(SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = outer AND adnum = outer)`: a correlated
/// look-up of a column's default, which becomes a function of the two outer values.
fn column_default(query: &Query) -> Option<Expr> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    let [from] = select.from.as_slice() else { return None };
    let TableFactor::Table { name, .. } = &from.relation else { return None };
    if name.0.last().and_then(identifier).as_deref() != Some("pg_attrdef") || !from.joins.is_empty() {
        return None;
    }
    let condition = select.selection.as_ref()?;
    let relation = compared_with("adrelid", condition)?;
    let column = compared_with("adnum", condition)?;
    Some(call("weir_column_default", vec![relation, column]))
}

/// A look-up of one value. Correlated ones must be aggregates for DataFusion, and the greatest of at most one value is
/// the value itself; of catalogs without rows, and of collations (every column has the default one), it is null.
fn scalar(query: &Query) -> Option<Expr> {
    if empty_columns(&query.body).is_some() {
        return Some(null_text());
    }
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    let of_collations = select.from.iter().any(|from| match &from.relation {
        TableFactor::Table { name, .. } => name.0.last().and_then(identifier).as_deref() == Some("pg_collation"),
        _ => false,
    });
    if of_collations {
        return Some(null_text());
    }
    let grouped = !matches!(&select.group_by, ast::GroupByExpr::Expressions(by, _) if by.is_empty());
    let [SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. }] = select.projection.as_slice()
    else {
        return None;
    };
    if grouped || select.from.is_empty() || query.limit_clause.is_some() || has_aggregate(select) {
        return None;
    }
    let mut select = select.clone();
    select.projection = vec![SelectItem::UnnamedExpr(call("max", vec![value.clone()]))];
    let mut query = query.clone();
    query.order_by = None;
    query.body = Box::new(SetExpr::Select(select));
    Some(Expr::Subquery(Box::new(query)))
}

/// The other side of `column = other` somewhere in a conjunction.
fn compared_with(column: &str, condition: &Expr) -> Option<Expr> {
    match condition {
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            compared_with(column, left).or_else(|| compared_with(column, right))
        }
        Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => match (last_name(left), last_name(right)) {
            (Some(name), _) if name == column => Some(right.as_ref().clone()),
            (_, Some(name)) if name == column => Some(left.as_ref().clone()),
            _ => None,
        },
        Expr::Nested(inner) => compared_with(column, inner),
        _ => None,
    }
}

fn last_name(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(ident) => Some(ident.value.to_lowercase()),
        Expr::CompoundIdentifier(parts) => parts.last().map(|ident| ident.value.to_lowercase()),
        _ => None,
    }
}

/// What the general rules leave behind: names of functions that have another one here.
struct Cleared;

impl VisitorMut for Cleared {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && matches!(function.args, FunctionArguments::None)
            && matches!(function_name(function).as_str(), "session_user" | "current_user" | "current_role" | "user")
        {
            *expr = call("session_user", Vec::new());
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(sql: &str) -> String {
        rewrite(sql).unwrap().to_string()
    }

    #[test]
    fn names_become_look_ups() {
        assert_eq!(rewritten("SELECT 'flights'::regclass::oid"), "SELECT weir_regclass('flights') AS \"oid\"");
        assert_eq!(rewritten("SELECT c.oid::pg_catalog.regclass FROM pg_class c"), {
            "SELECT weir_regclass_name(c.oid) AS \"oid\" FROM pg_catalog.pg_class c"
        });
    }

    #[test]
    fn queries_without_an_answer_are_cut_short() {
        assert_eq!(
            rewritten(
                "SELECT pol.polname, array(SELECT 1) FROM pg_catalog.pg_policy pol WHERE pol.polrelid = '1' ORDER BY 1"
            ),
            "SELECT NULL::TEXT AS \"polname\", NULL::TEXT AS \"array\" WHERE false"
        );
        assert_eq!(
            rewritten(
                "SELECT pubname, NULL, NULL FROM pg_publication UNION SELECT pubname, NULL, NULL FROM pg_publication_rel"
            ),
            "SELECT NULL::TEXT AS \"pubname\", NULL::TEXT AS \"?column?\", NULL::TEXT AS \"?column?\u{1f}1\" WHERE false"
        );
        // A count of nothing is a row.
        assert!(rewritten("SELECT count(*) FROM pg_trigger").contains("count(*)"));
        // An outer join keeps the other side's rows.
        assert!(
            !rewritten("SELECT c.oid FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid").contains("NULL")
        );
    }

    #[test]
    fn a_default_is_looked_up_by_function() {
        let sql = "SELECT a.attname, (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid, true) FROM pg_catalog.pg_attrdef d \
                   WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.atthasdef) FROM pg_catalog.pg_attribute a";
        assert!(rewritten(sql).contains("weir_column_default(a.attrelid, a.attnum)"), "{}", rewritten(sql));
    }

    #[test]
    fn column_names_are_postgres_names() {
        assert_eq!(shown_name("current_schema()"), "current_schema");
        assert_eq!(shown_name("__alias_oid"), "oid");
        assert_eq!(shown_name("Owner (of it)"), "Owner (of it)");
    }
}
