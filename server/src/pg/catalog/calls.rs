//! Calls of functions about the server in queries over Weir's own relations.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::execution::SessionStateDefaults;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArgumentList, FunctionArguments, Ident, ObjectNamePart, Visit, VisitMut, Visitor,
    VisitorMut,
};

use super::functions::CatalogFunctions;
use super::{FIXED, Snapshot};

/// Functions that only the system catalogs have.
static KNOWN: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let everywhere: BTreeSet<String> =
        SessionStateDefaults::default_scalar_functions().iter().map(|f| f.name().to_owned()).collect();
    let own = CatalogFunctions::new(&Snapshot::new(Vec::new(), "")).all();
    let fixed = FIXED.as_ref().map(|fixed| fixed.state.scalar_functions().keys().cloned().collect::<Vec<_>>());
    own.iter()
        .map(|function| function.name().to_owned())
        .chain(fixed.unwrap_or_default().into_iter().filter(|name| !everywhere.contains(name)))
        .collect()
});

/// The functions about the server that a statement calls.
pub(super) fn called<T: Visit>(statement: &T) -> BTreeSet<String> {
    struct Calls(BTreeSet<String>);
    impl Visitor for Calls {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Function(function) = expr
                && let Some(name) = last_name(function)
                && KNOWN.contains(&plain(&name))
            {
                self.0.insert(plain(&name));
            }
            ControlFlow::Continue(())
        }
    }
    let mut calls = Calls(BTreeSet::new());
    let _ = statement.visit(&mut calls);
    calls.0
}

/// Makes calls such as `pg_catalog.version()` and `current_user` ones that DataFusion finds: without a schema, with
/// parentheses.
pub fn unqualify<T: VisitMut>(statement: &mut T) {
    struct Plain;
    impl VisitorMut for Plain {
        type Break = ();

        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            if let Expr::Function(function) = expr {
                make_plain(function);
            }
            ControlFlow::Continue(())
        }
    }
    let _ = statement.visit(&mut Plain);
}

fn make_plain(function: &mut Function) {
    if let [ObjectNamePart::Identifier(schema), ObjectNamePart::Identifier(_)] = function.name.0.as_slice()
        && schema.value.eq_ignore_ascii_case("pg_catalog")
    {
        function.name.0.remove(0);
    }
    if matches!(function.args, FunctionArguments::None)
        && let Some(name) = last_name(function)
        && KNOWN.contains(&plain(&name))
    {
        function.name.0 = vec![ObjectNamePart::Identifier(Ident::new(plain(&name)))];
        let none = FunctionArgumentList { duplicate_treatment: None, args: Vec::new(), clauses: Vec::new() };
        function.args = FunctionArguments::List(none);
    }
}

fn last_name(function: &Function) -> Option<String> {
    function.name.0.last().and_then(ObjectNamePart::as_ident).map(|ident| ident.value.to_lowercase())
}

/// `user` is short for `current_user`, and `current_catalog` the standard's word for `current_database`.
fn plain(name: &str) -> String {
    match name {
        "user" => "current_user".to_owned(),
        "current_catalog" => "current_database".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    #[test]
    fn calls_are_found_and_made_plain() {
        let sql = "SELECT pg_catalog.version(), current_user, count(*), lower(x) FROM t \
                   WHERE s = current_schema() AND pg_catalog.format_type(23, NULL) <> ''";
        let mut query = *Parser::new(&PostgreSqlDialect {}).try_with_sql(sql).unwrap().parse_query().unwrap();
        let names: Vec<_> = called(&query).into_iter().collect();
        assert_eq!(names, ["current_schema", "current_user", "format_type", "version"]);
        unqualify(&mut query);
        assert_eq!(
            query.to_string(),
            "SELECT version(), current_user(), count(*), lower(x) FROM t \
             WHERE s = current_schema() AND format_type(23, NULL) <> ''"
        );
        assert!(
            called(&Parser::new(&PostgreSqlDialect {}).try_with_sql("SELECT 1").unwrap().parse_query().unwrap())
                .is_empty()
        );
    }
}
