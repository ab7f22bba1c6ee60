//! Statements from text.

use super::{FLIGHTS, said};
use crate::statement::{CreateQuery, Parsed, Query, Statement, Subscribe, SubscribeTarget, parse};

/// A statement in a line or two.
fn brief(statement: &Statement) -> String {
    let query = |q: &Query| format!("Query {{ ast: {}, emit: {:?} }}", q.ast, q.emit);
    let create = |c: &CreateQuery| {
        format!(
            "{}{} as {} watermark {:?} with {:?}",
            c.name,
            if c.if_not_exists { " if not exists" } else { "" },
            query(&c.query),
            c.watermark,
            c.options
        )
    };
    let subscribe = |s: &Subscribe| match &s.target {
        SubscribeTarget::Relation(name) => format!("{name} snapshot {} with {:?}", s.snapshot, s.options),
        SubscribeTarget::Query(q) => format!("{} snapshot {} with {:?}", query(q), s.snapshot, s.options),
    };
    match statement {
        Statement::CreateStreamAs(c) => format!("CreateStreamAs {}", create(c)),
        Statement::CreateMaterializedView(c) => format!("CreateMaterializedView {}", create(c)),
        Statement::CreateSink(c) => format!("CreateSink {}", create(c)),
        Statement::Query(q) => query(q),
        Statement::CopyQuery(q) => format!("Copy{}", query(q)),
        Statement::Subscribe(s) => format!("Subscribe {}", subscribe(s)),
        Statement::CopySubscribe(s) => format!("CopySubscribe {}", subscribe(s)),
        Statement::Insert(i) => format!("Insert {} {:?} {}", i.table, i.columns, i.source_sql),
        Statement::Update(u) => {
            let set: Vec<String> = u.assignments.iter().map(|(c, e)| format!("{c} = {e}")).collect();
            format!("Update {} {set:?} where {:?}", u.table, u.selection.as_ref().map(ToString::to_string))
        }
        Statement::Delete(d) => format!("Delete {} where {:?}", d.table, d.selection.as_ref().map(ToString::to_string)),
        Statement::Explain { analyze, statement } => {
            format!("Explain analyze {analyze}: {}", brief(&statement.statement))
        }
        Statement::DeclareCursor { name, statement } => {
            format!("DeclareCursor {name}: {}", brief(&statement.statement))
        }
        other => format!("{other:?}"),
    }
}

fn all(statements: &[&str]) -> String {
    let one = |sql: &&str| match parse(sql) {
        Ok(parsed) => {
            let lines: Vec<String> = parsed.iter().map(|p| brief(&p.statement)).collect();
            format!("{sql}\n  {}", lines.join("\n  "))
        }
        Err(error) => format!("{sql}\n  {}", said(&error)),
    };
    statements.iter().map(one).collect::<Vec<_>>().join("\n")
}

#[test]
fn definitions_are_read() {
    snapshot!(all(&[
        FLIGHTS,
        "CREATE STREAM IF NOT EXISTS \"My Stream\" (\"Id\" BIGINT NOT NULL, b NUMERIC(10, 2) DEFAULT 1 + 2, c TEXT[] NULL)",
        "create table public.t (a int primary key, b struct<x int, y array<text>> not null, c double precision generated always as (a * 2) stored)",
        "CREATE TABLE t (a INT, b TIMESTAMP WITH TIME ZONE, CONSTRAINT pk PRIMARY KEY (a, b)) WITH (parallelism.default = 2, 'x' = 'y')",
        "CREATE STREAM s (ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH ()",
    ]));
}

#[test]
fn queries_are_read_with_what_stands_behind_them() {
    snapshot!(all(&[
        "CREATE MATERIALIZED VIEW v AS SELECT carrier, count(*) AS n FROM flights GROUP BY carrier",
        "CREATE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT * FROM t WITH (execution.checkpointing.interval = '300ms')",
        "CREATE MATERIALIZED VIEW v AS WITH x AS (SELECT 1) SELECT * FROM x EMIT CHANGES",
        "CREATE MATERIALIZED VIEW v AS SELECT a FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 day') GROUP BY a EMIT ON WINDOW CLOSE WITH (x = 1)",
        "CREATE SINK late AS SELECT carrier FROM flights WHERE dep_delay > 60 WITH (connector = 'file', path = '/data/late', format = 'json')",
        "CREATE SINK s FROM v WITH (connector = print)",
        "CREATE SINK s FROM \"V\" EMIT CHANGES",
        "CREATE STREAM s AS SELECT a FROM t",
        "CREATE STREAM s (WATERMARK FOR a AS a - INTERVAL '1 s') AS SELECT a FROM t WITH (idle_timeout = '5s')",
        "CREATE MATERIALIZED VIEW v AS (SELECT a FROM t) WITH (x = -1.5, y = true, Z = $$it's$$)",
        "CREATE MATERIALIZED VIEW v AS SELECT a FROM t WHERE b IN (SELECT c FROM d)",
        "SELECT * FROM departures ORDER BY mean_delay DESC LIMIT 5",
        "SELECT * FROM v WHERE id = $1 EMIT CHANGES",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "VALUES (1, 'a'), (2, 'b')",
        "TABLE v",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
        "SELECT * FROM HOP(TABLE (SELECT * FROM t), DESCRIPTOR(ts), INTERVAL '1 m', INTERVAL '5 m')",
        "SELECT 'a;b', E'\\n', $tag$;$tag$, \"c;d\" -- ; not the end\n FROM t /* ; */",
    ]));
}

#[test]
fn statements_about_objects_are_read() {
    snapshot!(all(&[
        "SHOW STREAMS",
        "show tables",
        "SHOW VIEWS",
        "SHOW MATERIALIZED VIEWS",
        "SHOW SINKS",
        "SHOW QUERIES",
        "SHOW CHECKPOINTS",
        "SHOW CHECKPOINTS FOR QUERY by_carrier",
        "SHOW CREATE MATERIALIZED VIEW v",
        "SHOW CREATE STREAM \"My Stream\"",
        "SHOW COLUMNS FROM v",
        "DESCRIBE public.flights",
        "DROP STREAM a",
        "DROP MATERIALIZED VIEW IF EXISTS a, b CASCADE",
        "DROP TABLE weir.public.t RESTRICT",
        "DROP SINK s",
        "DROP QUERY q",
        "ALTER QUERY q PAUSE",
        "alter query q resume",
        "CHECKPOINT by_carrier",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE CREATE MATERIALIZED VIEW v AS SELECT a FROM t EMIT CHANGES",
        "EXPLAIN (ANALYZE, VERBOSE) SELECT 1",
    ]));
}

#[test]
fn rows_are_written_and_followed() {
    snapshot!(all(&[
        "INSERT INTO t VALUES (1, 'a'), (2, NULL)",
        "INSERT INTO public.t (a, \"B\") SELECT x, y FROM u WHERE x > 1",
        "INSERT INTO t DEFAULT VALUES",
        "UPDATE t SET a = a + 1, b = 'x' WHERE c = $1",
        "UPDATE t SET a = 1",
        "DELETE FROM t WHERE a IN (SELECT b FROM u)",
        "DELETE FROM t",
        "SUBSCRIBE TO v",
        "SUBSCRIBE TO v WITH (snapshot = false)",
        "SUBSCRIBE TO v WITHOUT SNAPSHOT",
        "SUBSCRIBE TO (SELECT a FROM t WHERE a > 1) WITH (snapshot = true, x = 1)",
        "COPY (SUBSCRIBE TO v) TO STDOUT",
        "COPY (SELECT * FROM v) TO STDOUT WITH (FORMAT csv)",
        "DECLARE c CURSOR FOR SELECT * FROM v",
        "DECLARE c NO SCROLL CURSOR WITH HOLD FOR (SUBSCRIBE TO v)",
        "FETCH 10 FROM c",
        "FETCH FORWARD ALL FROM c",
        "FETCH NEXT FROM c",
        "FETCH c",
        "CLOSE c",
        "CLOSE ALL",
    ]));
}

#[test]
fn sessions_are_set() {
    snapshot!(all(&[
        "SET 'execution.checkpointing.interval' = '300ms'",
        "SET execution.checkpointing.min-pause TO 500",
        "SET SESSION datestyle = ISO, MDY",
        "SET LOCAL statement_timeout = 0",
        "SET application_name = 'psql'",
        "SET extra_float_digits = -1",
        "SET client_encoding TO DEFAULT",
        "SET TIME ZONE 'UTC'",
        "SET NAMES 'utf8'",
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "RESET execution.checkpointing.interval",
        "RESET ALL",
        "SHOW ALL",
        "SHOW execution.checkpointing.interval",
        "SHOW TimeZone",
        "SHOW TRANSACTION ISOLATION LEVEL",
        "BEGIN",
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "START TRANSACTION READ ONLY",
        "COMMIT",
        "END TRANSACTION",
        "ROLLBACK",
        "ABORT",
        "DISCARD ALL",
        "DEALLOCATE ALL",
        "DEALLOCATE PREPARE s1",
    ]));
}

#[test]
fn mistakes_are_answered_with_a_place_and_a_hint() {
    snapshot!(all(&[
        "SELCT 1",
        "SHOW",
        "FROB x",
        "TRUNCATE t",
        "42",
        "SELECT a FROM t WHERE",
        "SELECT 'unterminated",
        "SELECT (1",
        "SELECT 1 FROM t EMIT OFTEN",
        "SELECT 1 FROM t EMIT ON WINDOW CLOSE",
        "SELECT 1 FROM t WITH (x = 1)",
        "CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT 1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE INDEX i ON t (a)",
        "CREATE TEMPORARY TABLE t (a INT)",
        "CREATE STREAM",
        "CREATE STREAM s",
        "CREATE STREAM s ()",
        "CREATE STREAM s (a)",
        "CREATE STREAM s (a INT",
        "CREATE STREAM s (a INT b INT)",
        "CREATE STREAM s (a INT UNIQUE)",
        "CREATE STREAM s (a INT, CHECK (a > 1))",
        "CREATE STREAM s (a INT GENERATED BY DEFAULT AS IDENTITY)",
        "CREATE STREAM s (a INT) WITH (x)",
        "CREATE STREAM s (a INT) WITH (x = 1, x = 2)",
        "CREATE STREAM s (a INT) EMIT CHANGES",
        "CREATE STREAM s (a INT) AS SELECT 1",
        "CREATE STREAM other.s (a INT)",
        "CREATE STREAM s (a INT, WATERMARK FOR a)",
        "CREATE STREAM s (a INT, WATERMARK FOR a AS a, WATERMARK FOR a AS a)",
        "CREATE TABLE t AS SELECT 1",
        "CREATE MATERIALIZED VIEW v (a) AS SELECT 1",
        "CREATE MATERIALIZED VIEW v",
        "CREATE MATERIALIZED VIEW v AS WITH (x = 1)",
        "CREATE SINK s WITH (connector = 'print')",
        "ALTER TABLE t ADD COLUMN b INT",
        "ALTER QUERY q STOP",
        "DROP INDEX i",
        "DROP STREAM a b",
        "DROP STREAM a, a",
        "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (1) RETURNING a",
        "UPDATE t SET a = 1 FROM u",
        "UPDATE t x SET a = 1",
        "DELETE FROM t USING u",
        "SUBSCRIBE v",
        "COPY t FROM STDIN",
        "COPY (SELECT 1) TO '/tmp/x'",
        "FETCH PRIOR FROM c",
        "DECLARE c CURSOR FOR INSERT INTO t VALUES (1)",
        "SET x",
        "SET x =",
        "EXPLAIN",
        "SELECT 1; SELCT 2",
    ]));
}

#[test]
fn a_script_is_read_statement_by_statement() {
    let script = "-- tour\nCREATE STREAM ü (a INT); ; \n\n  SELECT 'é;' FROM ü -- done\n;\nSHOW QUERIES";
    let parsed: Vec<Parsed> = parse(script).unwrap();
    let texts: Vec<(&str, usize)> = parsed.iter().map(|p| (p.sql.as_str(), p.offset)).collect();
    assert_eq!(texts, [("CREATE STREAM ü (a INT)", 8), ("SELECT 'é;' FROM ü", 39), ("SHOW QUERIES", 68)]);
    assert_eq!(parse("").unwrap(), []);
    assert_eq!(parse(" ; -- nothing\n ;").unwrap(), []);
}

#[test]
fn places_count_characters_of_the_whole_text() {
    let error = parse("SELECT 'äöü';\nSELECT a FROM t WHERE").unwrap_err();
    assert_eq!(error.position, Some(36));
}

#[test]
fn every_statement_has_a_tag() {
    let tags: Vec<&str> = parse(
        "SELECT 1; CREATE SINK s FROM v; DROP TABLE t; SHOW ALL; BEGIN; FETCH 1 FROM c; COPY (SELECT 1) TO STDOUT",
    )
    .unwrap()
    .iter()
    .map(|p| p.statement.tag())
    .collect();
    assert_eq!(tags, ["SELECT", "CREATE SINK", "DROP TABLE", "SHOW", "BEGIN", "FETCH", "COPY"]);
}

#[test]
fn deep_nesting_is_refused_and_does_not_end_the_process() {
    let deep = format!("SELECT {}1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(parse(&deep).unwrap_err().message.contains("nested too deeply"));
}

#[test]
fn a_query_is_read_back_from_what_is_kept_of_it() {
    for emit in ["", " EMIT CHANGES", " EMIT ON WINDOW CLOSE"] {
        let text = format!("SELECT a FROM t{emit}");
        assert_eq!(Query::from_sql(&text).unwrap().full_sql(), text);
    }
}

#[test]
fn savepoints_are_read() {
    snapshot!(all(&[
        "CREATE SAVEPOINT FOR QUERY by_carrier",
        "create savepoint Before_Change for query public.by_carrier to 's3://bucket/savepoints/one'",
        "CREATE SAVEPOINT one",
        "CREATE SAVEPOINT one FOR by_carrier",
        "CREATE SAVEPOINT one FOR QUERY by_carrier TO here",
        "DROP SAVEPOINT one FOR QUERY by_carrier",
        "DROP SAVEPOINT IF EXISTS 'file:///savepoints/one'",
        "DROP SAVEPOINT one",
        "SHOW SAVEPOINTS",
        "SHOW SAVEPOINTS FOR QUERY by_carrier",
        "ALTER QUERY by_carrier STOP WITH SAVEPOINT",
        "ALTER QUERY by_carrier STOP WITH SAVEPOINT one TO '/savepoints/one' DRAIN",
        "ALTER QUERY by_carrier STOP WITH SAVEPOINT \"drain\" DRAIN",
        "ALTER QUERY by_carrier STOP",
        "ALTER QUERY by_carrier START",
        "RESTORE QUERY by_carrier FROM '/savepoints/one'",
        "RESTORE QUERY by_carrier FROM '/savepoints/one' CLAIM",
        "RESTORE QUERY by_carrier FROM '/savepoints/one' NO CLAIM",
        "RESTORE QUERY by_carrier FROM one",
        "RESTORE by_carrier FROM '/savepoints/one'",
    ]));
}
