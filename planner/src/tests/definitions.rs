//! CREATE STREAM and CREATE TABLE: columns and expressions checked, and what is kept of them.

use super::{FLIGHTS, Fixture, said};
use crate::catalog::{Catalog, CatalogChange};
use crate::types::SqlType;

#[test]
fn every_type_is_known_by_its_postgresql_names() {
    let types = [
        "BOOL",
        "BOOLEAN",
        "SMALLINT",
        "INT2",
        "INT",
        "INTEGER",
        "INT4",
        "BIGINT",
        "INT8",
        "REAL",
        "FLOAT4",
        "FLOAT(24)",
        "FLOAT",
        "FLOAT8",
        "DOUBLE PRECISION",
        "NUMERIC",
        "NUMERIC(10)",
        "NUMERIC(10, 2)",
        "DECIMAL(5,1)",
        "TEXT",
        "VARCHAR",
        "VARCHAR(20)",
        "CHARACTER VARYING(3)",
        "CHAR",
        "CHAR(3)",
        "DATE",
        "TIME",
        "TIME WITHOUT TIME ZONE",
        "TIMESTAMP",
        "TIMESTAMP(6)",
        "TIMESTAMPTZ",
        "TIMESTAMP WITH TIME ZONE",
        "TIMESTAMP WITHOUT TIME ZONE",
        "INTERVAL",
        "BYTEA",
        "JSON",
        "JSONB",
        "UUID",
        "INT[]",
        "TEXT[][]",
        "ARRAY<DOUBLE PRECISION>",
        "STRUCT<a INT, b TEXT>",
        "STRUCT<a STRUCT<b INT[]>, c ARRAY<STRUCT<d DATE>>>",
        "NUMERIC(40)",
        "NUMERIC(5,6)",
        "SERIAL",
        "INTEGR",
        "MONEY",
    ];
    let mut lines = Vec::new();
    for name in types {
        lines.push(match SqlType::parse(name) {
            Ok(t) => {
                assert_eq!(SqlType::parse(&t.to_string()).as_ref(), Ok(&t), "{t} is read back");
                format!("{name} = {t} = {}", t.data_type())
            }
            Err(error) => format!("{name}: {}", said(&error)),
        });
    }
    snapshot!(lines.join("\n"));
}

#[test]
fn what_is_kept_of_a_relation() {
    let fixture = Fixture::new();
    let change = |name: &str| {
        let relation = Box::new(fixture.catalog.get(name).unwrap().as_ref().clone());
        serde_json::to_string_pretty(&CatalogChange::Create { relation, job: None }).unwrap()
    };
    snapshot!(format!("{}\n{}\n{}", change("clicks"), change("weather"), change("by_carrier")));
}

#[test]
fn a_catalog_is_rebuilt_from_its_changes() {
    let fixture = Fixture::new();
    let mut rebuilt = Catalog::new();
    for relation in fixture.catalog.iter() {
        let change = CatalogChange::Create { relation: Box::new(relation.as_ref().clone()), job: None };
        let text = serde_json::to_string(&change).unwrap();
        rebuilt.apply(&serde_json::from_str(&text).unwrap());
    }
    assert_eq!(rebuilt, fixture.catalog);
    rebuilt.apply(&CatalogChange::Pause { query: "by_carrier".into(), paused: true });
    rebuilt.apply(&CatalogChange::Forward { relation: "by_carrier".into() });
    assert!(rebuilt.entry("by_carrier").is_some_and(|e| e.paused && e.forward));
    rebuilt.apply(&CatalogChange::Drop { names: vec!["by_carrier".into()] });
    assert!(rebuilt.get("by_carrier").is_none());
}

#[test]
fn dependents_come_first_when_dropped_and_last_when_started() {
    let mut fixture = Fixture::new();
    fixture.run("CREATE MATERIALIZED VIEW a_top AS SELECT max(n) AS n FROM by_carrier").unwrap();
    assert_eq!(fixture.catalog.dependents_of("by_carrier"), ["a_top"]);
    assert_eq!(fixture.catalog.cascade(&["flights".into()]), ["a_top", "by_carrier", "flights"]);
    let order: Vec<String> = fixture.catalog.in_dependency_order().iter().map(|r| r.name.clone()).collect();
    let place = |name: &str| order.iter().position(|n| n == name).unwrap();
    assert!(place("flights") < place("by_carrier") && place("by_carrier") < place("a_top"), "{order:?}");
}

#[test]
fn definitions_that_do_not_fit() {
    let refusals: Vec<String> = [
        "CREATE STREAM s (a INT, a TEXT)",
        "CREATE STREAM s (a INTEGR)",
        "CREATE STREAM s (a INT PRIMARY KEY)",
        "CREATE TABLE t (a INT)",
        "CREATE TABLE t (a INT, PRIMARY KEY (b))",
        "CREATE TABLE t (a INT, PRIMARY KEY (a, a))",
        "CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)",
        "CREATE TABLE t (a INT PRIMARY KEY, ts TIMESTAMP, WATERMARK FOR ts AS ts)",
        "CREATE TABLE t (a INT, b INT GENERATED ALWAYS AS (a + 1) PRIMARY KEY)",
        "CREATE STREAM s (a INT, WATERMARK FOR ts AS ts)",
        "CREATE STREAM s (a INT, WATERMARK FOR a AS a - 5)",
        "CREATE STREAM s (ts TIMESTAMP, WATERMARK FOR ts AS 5)",
        "CREATE STREAM s (ts TIMESTAMP, WATERMARK FOR ts AS tz - INTERVAL '1 s')",
        "CREATE STREAM s (a INT, b INT GENERATED ALWAYS AS (c + 1))",
        "CREATE STREAM s (a INT, b INT GENERATED ALWAYS AS (a + 1), c INT GENERATED ALWAYS AS (b + 1))",
        "CREATE STREAM s (a INT, b DOUBLE PRECISION GENERATED ALWAYS AS (random()))",
        "CREATE STREAM s (a INT, b DATE DEFAULT true)",
        "CREATE STREAM s (a INT) WITH (\"execution.checkpointing.intervall\" = '1s')",
        "CREATE STREAM s (a INT) WITH (execution.checkpointing.interval = 'soon')",
    ]
    .iter()
    .map(|sql| match Fixture::new().run(sql) {
        Ok(()) => panic!("not refused: {sql}"),
        Err(error) => format!("{sql}\n{}\n", said(&error)),
    })
    .collect();
    snapshot!(refusals.join("\n"));
}

#[test]
fn options_of_a_query_are_told_from_those_of_its_connector() {
    let mut fixture = Fixture::new();
    let sql = "CREATE SINK out FROM flights WITH (connector = 'file', path = '/x', execution.checkpointing.interval = '300ms')";
    fixture.run(sql).unwrap();
    let out = fixture.catalog.get("out").unwrap();
    assert_eq!(out.connector.keys().collect::<Vec<_>>(), ["connector", "path"]);
    assert_eq!(out.options["execution.checkpointing.interval"], "300 ms");
    assert_eq!(out.definition_sql, sql);
    assert_eq!(out.query.as_deref(), Some("SELECT * FROM flights"));
}

#[test]
fn a_derived_stream_may_have_event_time() {
    let mut fixture = Fixture::new();
    fixture
        .run("CREATE STREAM s (WATERMARK FOR t AS t - INTERVAL '1 h') AS SELECT time_hour AS t, carrier FROM flights WITH (idle_timeout = '5s')")
        .unwrap();
    let watermark = fixture.catalog.get("s").unwrap().watermark.clone().unwrap();
    assert_eq!((watermark.column, watermark.idle_timeout.map(|d| d.as_secs())), (0, Some(5)));
    let query = "SELECT window_end, count(*) AS n FROM TUMBLE(TABLE s, DESCRIPTOR(t), INTERVAL '1 day') GROUP BY window_end EMIT ON WINDOW CLOSE";
    assert!(fixture.view(query).contains("emits when the window closes"));
    assert!(FLIGHTS.contains("WATERMARK"));
}

#[test]
fn a_derived_relation_has_the_event_time_of_its_query() {
    let mut fixture = Fixture::new();
    let hourly = "FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 hour')
                  GROUP BY origin, window_start, window_end";
    for (sql, expected) in [
        ("CREATE STREAM s AS SELECT carrier, time_hour AS at FROM flights WHERE dep_delay > 60", Some("at")),
        ("CREATE STREAM chained AS SELECT at, carrier FROM s", Some("at")),
        ("CREATE STREAM both AS SELECT at FROM s UNION ALL SELECT time_hour FROM flights", Some("at")),
        ("CREATE STREAM without AS SELECT carrier FROM s", None),
        ("CREATE STREAM computed AS SELECT at + INTERVAL '1 h' AS later FROM s", None),
        ("CREATE STREAM own (WATERMARK FOR at AS at - INTERVAL '1 s') AS SELECT at FROM s", None),
        ("CREATE STREAM timeless AS SELECT ts FROM clicks", None),
        (
            &format!(
                "CREATE MATERIALIZED VIEW closed AS SELECT origin, window_end AS ended, count(*) AS n {hourly} EMIT ON WINDOW CLOSE"
            ),
            Some("ended"),
        ),
        (
            &format!("CREATE MATERIALIZED VIEW changing AS SELECT origin, window_end AS ended, count(*) AS n {hourly}"),
            None,
        ),
        (
            &format!(
                "CREATE MATERIALIZED VIEW starts AS SELECT origin, window_start, count(*) AS n {hourly} EMIT ON WINDOW CLOSE"
            ),
            None,
        ),
        (
            "CREATE MATERIALIZED VIEW joined AS SELECT f.time_hour FROM flights f JOIN planes p ON f.tailnum = p.tailnum",
            None,
        ),
    ] {
        fixture.run(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let name = sql.split_whitespace().skip_while(|w| *w != "STREAM" && *w != "VIEW").nth(1).unwrap();
        let relation = fixture.catalog.get(name).unwrap();
        let column = relation.event_time.map(|i| relation.columns[i].name.as_str());
        assert_eq!(column, expected, "{sql}");
        let json = serde_json::to_value(relation.as_ref()).unwrap();
        assert_eq!(serde_json::from_value::<crate::Relation>(json).unwrap(), **relation);
    }
    let windows = |relation: &str, time: &str| {
        format!(
            "SELECT window_end, count(*) AS n FROM TUMBLE(TABLE {relation}, DESCRIPTOR({time}), INTERVAL '1 day')
             GROUP BY window_end EMIT ON WINDOW CLOSE"
        )
    };
    for (relation, time) in [("s", "at"), ("chained", "at"), ("both", "at"), ("own", "at"), ("closed", "ended")] {
        let plan = fixture.view(&windows(relation, time).replace("SELECT window_end", "SELECT window_end AS e"));
        let told = format!("watermark on {time}{}", if relation == "own" { ";" } else { " from its log" });
        assert!(plan.contains(&told), "{plan}");
    }
    let refused = fixture.refused(&windows("changing", "ended"));
    assert!(refused.contains("taken back and changed"), "{refused}");
    let refused = fixture.refused(&windows("timeless", "ts"));
    assert!(refused.contains("no watermark"), "{refused}");
}

#[test]
fn retention_is_for_streams_that_weir_keeps() {
    let mut fixture = Fixture::new();
    fixture.run("CREATE STREAM kept AS SELECT carrier FROM flights WITH (retention = '7 d')").unwrap();
    let kept = fixture.catalog.get("kept").unwrap();
    assert_eq!(kept.options.get("retention").map(String::as_str), Some("7 d"));
    assert!(kept.connector.is_empty());
    fixture.run("CREATE STREAM posted (id INT) WITH (connector = 'http', retention = '1 gb')").unwrap();
    for (sql, what) in [
        ("CREATE MATERIALIZED VIEW v AS SELECT carrier FROM flights WITH (retention = '7 d')", "a materialized view"),
        ("CREATE TABLE t (id INT PRIMARY KEY) WITH (retention = '7 d')", "a table"),
        (
            "CREATE STREAM f (id INT) WITH (connector = 'file', path = 'x', retention = '7 d')",
            "a stream over a connector",
        ),
    ] {
        let error = fixture.run(sql).unwrap_err();
        assert!(error.message.ends_with(what), "{}", error.message);
    }
}
