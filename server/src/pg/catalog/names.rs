//! Names and numbers of what the system catalogs hold, and which queries are over them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, ObjectName, ObjectNamePart, Statement, Visit, Visitor};
use datafusion_pg_catalog::pg_catalog::PG_CATALOG_TABLES;
use weir_planner::RelationKind;

use super::functions;
use super::rewrite;

/// The namespaces' numbers: PostgreSQL's own.
pub(super) const PG_CATALOG: i32 = 11;
pub(super) const PUBLIC: i32 = 2200;
pub(super) const INFORMATION_SCHEMA: i32 = 13_000;
/// The database and the one role.
pub(super) const DATABASE_OID: i32 = 5;
pub(super) const OWNER: i32 = 10;
/// What every relation without a table access method of PostgreSQL's has.
pub(super) const HEAP: i32 = 2;
/// The foreign server that streams and sinks belong to.
pub(super) const SERVER: i32 = 16_000;

/// Where numbers of relations start.
const FIRST: u32 = 16_384;

/// Catalogs that Weir has beside those of `datafusion-pg-catalog`.
pub(super) const OWN_TABLES: &[&str] = &[
    "pg_cursors",
    "pg_prepared_statements",
    "pg_stat_activity",
    "pg_user",
    "pg_indexes",
    "pg_sequences",
    "pg_locks",
    "pg_available_extensions",
    "pg_timezone_names",
    "pg_stat_database",
];

/// Numbers of relations and of what belongs to them. A name keeps its number while the catalog changes around it,
/// because clients look it up in one query and use it in the next.
#[derive(Debug)]
pub(super) struct Oids(BTreeMap<String, i32>);

impl Oids {
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let (mut oids, mut taken) = (BTreeMap::new(), BTreeSet::new());
        for name in names {
            for key in [name.to_owned(), index_name(name)] {
                // Numbers fit 31 bits: some drivers read them as signed.
                let mut oid = FIRST + hash(&key) % (i32::MAX as u32 - FIRST);
                while !taken.insert(oid) {
                    oid = if oid == i32::MAX as u32 { FIRST } else { oid + 1 };
                }
                oids.insert(key, oid as i32);
            }
        }
        Self(oids)
    }

    /// The number of a relation; 0 for none.
    pub(super) fn relation(&self, name: &str) -> i32 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The number of a table's primary key, as an index and as a constraint.
    pub(super) fn index(&self, name: &str) -> i32 {
        self.0.get(&index_name(name)).copied().unwrap_or(0)
    }
}

/// FNV-1a: the same everywhere and always.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The name of a table's primary key.
pub(super) fn index_name(table: &str) -> String {
    format!("{table}_pkey")
}

/// `pg_class.relkind`: tables are tables, views are materialized; what lives outside (streams, sinks) is foreign.
pub(super) fn relkind(kind: RelationKind) -> &'static str {
    match kind {
        RelationKind::Table => "r",
        RelationKind::View => "m",
        RelationKind::Stream | RelationKind::Sink => "f",
    }
}

/// Whether a query is over the system catalogs, or asks the server about itself without reading any relation.
pub fn is_catalog_query(sql: &str) -> bool {
    let lower = sql.to_lowercase();
    let hints = ["pg_", "information_schema", "::reg", "version", "current_", "session_user", "to_reg", "_description"];
    if !hints.iter().any(|hint| lower.contains(hint)) && !functions::NAMES.iter().any(|name| lower.contains(name)) {
        return false;
    }
    match rewrite::parse(sql) {
        Ok(statement) => {
            let mut seen = Seen::default();
            let _ = statement.visit(&mut seen);
            matches!(statement, Statement::Query(_)) && (seen.catalog || (seen.function && !seen.relation))
        }
        // What cannot be read is for the planner to refuse, unless only the catalogs can be meant.
        Err(_) => lower.contains("pg_catalog.") || lower.contains("information_schema."),
    }
}

/// What a query names.
#[derive(Default)]
struct Seen {
    catalog: bool,
    relation: bool,
    function: bool,
}

impl Visitor for Seen {
    type Break = ();

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let parts: Vec<String> = relation.0.iter().filter_map(part).collect();
        match parts.as_slice() {
            [.., schema, name] if schema == "pg_catalog" => {
                self.catalog = true;
                let _ = name;
            }
            [.., schema, _] if schema == "information_schema" => self.catalog = true,
            [name] if is_system_table(name) => self.catalog = true,
            _ => self.relation = true,
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Function(function) => {
                let name = function.name.0.last().and_then(part).unwrap_or_default();
                self.function |= functions::NAMES.contains(&name.as_str());
            }
            Expr::Identifier(ident) if ident.quote_style.is_none() => {
                self.function |= ident.value.eq_ignore_ascii_case("current_schema");
            }
            Expr::Cast { data_type, .. } => {
                self.function |=
                    data_type.to_string().to_lowercase().trim_start_matches("pg_catalog.").starts_with("reg");
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn part(part: &ObjectNamePart) -> Option<String> {
    part.as_ident().map(|ident| ident.value.to_lowercase())
}

pub(super) fn is_system_table(name: &str) -> bool {
    PG_CATALOG_TABLES.contains(&name) || OWN_TABLES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_over_the_catalogs_are_told_from_others() {
        for yes in [
            "SELECT version()",
            "select pg_catalog.version()",
            "SELECT current_schema()",
            "SELECT current_schema",
            "SELECT current_database(), current_user",
            "SELECT relname FROM pg_class",
            "SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default",
            "SELECT table_name FROM information_schema.tables",
            "SELECT 'departures'::regclass",
            "WITH x AS (SELECT oid FROM pg_type) SELECT * FROM x",
            "SELECT set_config('search_path', '', false)",
        ] {
            assert!(is_catalog_query(yes), "{yes}");
        }
        for no in [
            "SELECT 1",
            "SELECT * FROM flights",
            "SELECT version FROM releases",
            "SELECT version(), count(*) FROM departures",
            "SELECT 'pg_class' AS x",
            "SELECT current_timestamp",
            "SELECT pg_class FROM t",
            "SELECT current_date, now()",
        ] {
            assert!(!is_catalog_query(no), "{no}");
        }
    }

    #[test]
    fn a_name_keeps_its_number() {
        let few = Oids::new(["flights"].into_iter());
        let many = Oids::new(["airports", "flights", "weather"].into_iter());
        assert_eq!(few.relation("flights"), many.relation("flights"));
        assert!(few.relation("flights") >= FIRST as i32);
        assert_ne!(many.index("flights"), many.relation("flights"));
        assert_eq!(many.relation("nothing"), 0);
    }
}
