//! Tests of the whole crate, from text to graph: one file a subject, plans as snapshots beside it.

/// A snapshot in a file, without the test's code in its head.
macro_rules! snapshot {
    ($text:expr) => {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!($text) })
    };
}

mod definitions;
mod option_values;
mod parsing;
mod plans;
mod refusals;
mod windows;

use crate::catalog::{Catalog, RelationKind};
use crate::plan::{Parallelism, Planned, Target};
use crate::statement::{CreateQuery, Statement, parse};
use crate::{Options, Planner, Result, SqlError, explain};

/// The stream over real data.
pub(super) const FLIGHTS: &str = "CREATE STREAM flights (
  year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE PRECISION,
  arr_time INT, sched_arr_time INT, arr_delay DOUBLE PRECISION, carrier TEXT, flight INT, tailnum TEXT,
  origin TEXT, dest TEXT, air_time DOUBLE PRECISION, distance DOUBLE PRECISION, hour INT, minute INT,
  time_hour TIMESTAMPTZ,
  WATERMARK FOR time_hour AS time_hour - INTERVAL '1 day'
) WITH (connector = 'file', path = '/data/flights.csv', format = 'csv', header = 'true', null = 'NA')";

/// Relations for tests, beside `flights`.
pub(super) const OTHERS: &[&str] = &[
    "CREATE TABLE planes (tailnum TEXT PRIMARY KEY, year INT, manufacturer TEXT NOT NULL, seats BIGINT)",
    "CREATE TABLE weather (origin TEXT, time_hour TIMESTAMPTZ, temp DOUBLE PRECISION, PRIMARY KEY (origin, time_hour))",
    "CREATE STREAM clicks (id BIGINT NOT NULL, ts TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(ts AS DATE)), tags TEXT[], body JSON)",
    "CREATE MATERIALIZED VIEW by_carrier AS SELECT carrier, count(*) AS n FROM flights GROUP BY carrier",
];

/// Planner and catalog of a test.
pub(super) struct Fixture {
    pub(super) planner: Planner,
    pub(super) catalog: Catalog,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let mut fixture = Self { planner: Planner::new(), catalog: Catalog::new() };
        for sql in std::iter::once(&FLIGHTS).chain(OTHERS) {
            fixture.run(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        }
        fixture
    }

    /// Runs CREATE statements against the catalog.
    pub(super) fn run(&mut self, sql: &str) -> Result<()> {
        for parsed in parse(sql)? {
            let options = Options::new();
            let relation = match &parsed.statement {
                Statement::CreateStream(c) => self.planner.define(RelationKind::Stream, c, &options, &parsed.sql)?,
                Statement::CreateTable(c) => self.planner.define(RelationKind::Table, c, &options, &parsed.sql)?,
                Statement::CreateMaterializedView(c) | Statement::CreateSink(c) | Statement::CreateStreamAs(c) => {
                    let (kind, target) = target(&parsed.statement, c);
                    let planned = self.planner.plan_create(&self.catalog, c, &target, PARALLELISM)?;
                    planned.relation(kind, c, &options, &parsed.sql)?
                }
                other => panic!("{other:?}"),
            };
            self.catalog.insert(relation, None);
        }
        Ok(())
    }

    /// Plans one CREATE … AS.
    pub(super) fn plan(&self, sql: &str) -> Result<Planned> {
        let parsed = parse(sql)?.remove(0);
        let (Statement::CreateMaterializedView(c) | Statement::CreateSink(c) | Statement::CreateStreamAs(c)) =
            &parsed.statement
        else {
            panic!("{:?}", parsed.statement)
        };
        self.planner.plan_create(&self.catalog, c, &target(&parsed.statement, c).1, PARALLELISM)
    }

    /// The plan of a materialized view's query, as EXPLAIN draws it, with the result's columns.
    pub(super) fn view(&self, query: &str) -> String {
        self.drawn(&format!("CREATE MATERIALIZED VIEW v AS {query}"))
    }

    pub(super) fn drawn(&self, sql: &str) -> String {
        match self.plan(sql) {
            Ok(planned) => {
                let column = |c: &crate::Column| {
                    format!("{} {}{}", c.name, c.sql_type, if c.nullable { "" } else { " not null" })
                };
                let columns: Vec<String> = planned.columns.iter().map(column).collect();
                format!("{}({})", explain(&planned.graph), columns.join(", "))
            }
            Err(error) => said(&error),
        }
    }

    /// What a refused view's query is answered with.
    pub(super) fn refused(&self, query: &str) -> String {
        match self.plan(&format!("CREATE MATERIALIZED VIEW v AS {query}")) {
            Ok(planned) => panic!("not refused:\n{}", explain(&planned.graph)),
            Err(error) => said(&error),
        }
    }
}

pub(super) const PARALLELISM: Parallelism = Parallelism { default: 2, max: 128 };

fn target(statement: &Statement, create: &CreateQuery) -> (RelationKind, Target) {
    let name = create.name.clone();
    match statement {
        Statement::CreateSink(_) => (RelationKind::Sink, Target::Sink { name, retractions: false }),
        Statement::CreateStreamAs(_) => (RelationKind::Stream, Target::Stream { name }),
        _ => (RelationKind::View, Target::View { name, forward: false }),
    }
}

/// An error as a test writes it down.
pub(super) fn said(error: &SqlError) -> String {
    let place = error.position.map_or_else(String::new, |p| format!(" @{p}"));
    let hint = error.hint.as_ref().map_or_else(String::new, |h| format!("\n  → {h}"));
    format!("{} {}{place}: {}{hint}", error.sqlstate, error.code, error.message)
}
