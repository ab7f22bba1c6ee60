//! Plans as EXPLAIN draws them.

use insta::assert_snapshot;
use weir_runtime::graph::{Exchange, OperatorSpec};

use super::{Fixture, PARALLELISM};
use crate::plan::Target;

const DEPARTURES: &str =
    "SELECT origin, window_start, count(*) AS scheduled, count(dep_delay) AS departed, avg(dep_delay) AS mean_delay
   FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day')
   GROUP BY origin, window_start, window_end EMIT ON WINDOW CLOSE";

fn all(queries: &[&str]) -> String {
    let fixture = Fixture::new();
    queries.iter().map(|q| format!("{q}\n{}\n", fixture.view(q))).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_first_tour() {
    let fixture = Fixture::new();
    let sink =
        "CREATE SINK late AS SELECT carrier, flight, tailnum, time_hour, dep_delay FROM flights WHERE dep_delay > 60
  WITH (connector = 'file', path = '/data/late', format = 'json')";
    let stream = "CREATE STREAM short AS SELECT carrier, distance FROM flights WHERE distance < 200";
    let plans = [
        fixture.view(DEPARTURES),
        fixture.view("SELECT carrier, count(*) AS n FROM flights GROUP BY carrier"),
        fixture.drawn(sink),
        fixture.drawn(stream),
        fixture.drawn("CREATE SINK s FROM flights WITH (connector = 'print')"),
    ];
    snapshot!(plans.join("\n\n"));
}

#[test]
fn projections_and_filters() {
    snapshot!(all(&[
        "SELECT * FROM planes",
        "SELECT upper(carrier) AS c, distance / air_time * 60 AS mph FROM flights WHERE air_time IS NOT NULL AND dest IN ('SFO', 'LAX')",
        "SELECT day, id, tags[1] AS tag, body FROM clicks WHERE ts > TIMESTAMP '2026-01-01 00:00:00'",
        "SELECT CASE WHEN dep_delay > 15 THEN 'late' ELSE 'on time' END AS state, 1.5 AS factor, NULL AS nothing FROM flights",
        "SELECT carrier FROM flights WHERE false",
        "SELECT date_trunc('hour', time_hour) AS h, CAST(dep_delay AS NUMERIC(10,2)) AS d, time_hour::date AS day FROM flights",
        "SELECT f.* FROM (SELECT carrier, flight FROM flights) AS f(c, n) WHERE n > 10",
    ]));
}

#[test]
fn aggregates() {
    snapshot!(all(&[
        "SELECT count(*) FROM flights",
        "SELECT DISTINCT origin, dest FROM flights",
        "SELECT max(n) AS m FROM (SELECT carrier, count(*) AS n FROM flights GROUP BY carrier)",
        "SELECT n, count(*) AS carriers FROM by_carrier GROUP BY n",
        "SELECT origin || '-' || dest AS route, sum(distance) FILTER (WHERE air_time > 0) AS d, count(DISTINCT carrier) AS c FROM flights GROUP BY origin || '-' || dest",
        "SELECT carrier, count(*) AS n FROM flights GROUP BY carrier HAVING count(*) > 1000",
        "SELECT carrier, array_agg(flight ORDER BY flight) AS flights, min(dep_delay), max(dep_delay), stddev(dep_delay) AS s FROM flights GROUP BY 1",
    ]));
}

#[test]
fn joins() {
    snapshot!(all(&[
        "SELECT f.flight, f.dep_delay, w.temp FROM flights f LEFT JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour",
        "SELECT p.manufacturer, avg(f.dep_delay) AS delay, count(*) AS n FROM flights f JOIN planes p USING (tailnum) GROUP BY p.manufacturer",
        "SELECT a.carrier, b.carrier AS other FROM by_carrier a JOIN by_carrier b ON a.n = b.n AND a.carrier < b.carrier",
        "SELECT p.tailnum, p.seats, c.n FROM planes p JOIN by_carrier c ON p.seats = c.n",
        "SELECT f.carrier, p.year FROM flights f FULL JOIN planes p ON lower(f.tailnum) = p.tailnum",
        "SELECT f.carrier, p.year FROM flights f, planes p WHERE f.tailnum = p.tailnum AND f.year > p.year",
        "SELECT f.flight, p.seats FROM flights f JOIN planes p ON f.distance = p.seats",
    ]));
}

#[test]
fn subqueries() {
    snapshot!(all(&[
        "SELECT flight FROM flights WHERE tailnum IN (SELECT tailnum FROM planes WHERE seats > 200)",
        "SELECT flight FROM flights f WHERE NOT EXISTS (SELECT 1 FROM planes p WHERE p.tailnum = f.tailnum)",
        "SELECT carrier, n FROM by_carrier WHERE n > (SELECT avg(n) FROM by_carrier)",
        "SELECT manufacturer FROM planes WHERE manufacturer NOT IN (SELECT manufacturer FROM planes WHERE seats < 10)",
        "SELECT tailnum, (SELECT count(*) FROM flights f WHERE f.tailnum = p.tailnum) AS n FROM planes p",
    ]));
}

#[test]
fn unions() {
    snapshot!(all(&[
        "SELECT carrier FROM flights UNION ALL SELECT manufacturer FROM planes",
        "SELECT carrier FROM flights UNION SELECT manufacturer FROM planes",
        "SELECT origin AS airport, count(*) AS n FROM (SELECT origin FROM flights UNION ALL SELECT dest FROM flights) GROUP BY origin",
        "SELECT flight, dep_delay FROM flights UNION ALL SELECT year, seats FROM planes",
        "SELECT carrier FROM flights EXCEPT SELECT manufacturer FROM planes",
        "SELECT carrier FROM flights INTERSECT SELECT manufacturer FROM planes",
        "SELECT window_end, count(*) AS n FROM (SELECT window_end FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 hour') WHERE origin = 'JFK' UNION ALL SELECT window_end FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 hour') WHERE dest = 'LAX') GROUP BY window_end EMIT ON WINDOW CLOSE",
    ]));
}

#[test]
fn a_forwarding_view_writes_its_log() {
    let fixture = Fixture::new();
    let target = Target::View { name: "v".into(), forward: true };
    let planned =
        fixture.planner.plan_sql(&fixture.catalog, "SELECT carrier FROM flights", &target, PARALLELISM).unwrap();
    let last = planned.graph.nodes.last().unwrap();
    assert!(matches!(&last.spec, OperatorSpec::Sink(sink) if sink.log && sink.relation == "v" && !sink.changelog));
    assert!(planned.graph.nodes.iter().any(|n| matches!(&n.spec, OperatorSpec::Materialize(m) if m.forward)));
}

#[test]
fn a_table_keeps_its_rows_by_primary_key() {
    let fixture = Fixture::new();
    let planes = fixture.catalog.get("planes").unwrap();
    assert_snapshot!(crate::explain(&fixture.planner.plan_table(planes, true, PARALLELISM).unwrap()), @r"
    log planes  [changelog; ×2]
    └─ materialize planes  [key tailnum; changelog; the result: one row per tailnum; ×2]
       └─ hash(tailnum) ← source planes  [changelog; ×2]
    ");
    assert!(fixture.planner.plan_table(fixture.catalog.get("flights").unwrap(), false, PARALLELISM).is_err());
}

#[test]
fn only_needed_columns_are_read() {
    let fixture = Fixture::new();
    let read = |query: &str| {
        let planned = fixture.plan(&format!("CREATE MATERIALIZED VIEW v AS {query}")).unwrap();
        let requests = planned.graph.nodes.iter().filter_map(|n| match &n.spec {
            OperatorSpec::Source(source) => Some(source.request.projected().unwrap()),
            _ => None,
        });
        requests.flat_map(|s| s.fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert_eq!(read("SELECT carrier, count(*) AS n FROM flights GROUP BY carrier"), ["carrier"]);
    assert_eq!(read(DEPARTURES), ["dep_delay", "origin", "time_hour"]);
    assert_eq!(read("SELECT count(*) FROM flights"), ["year"]);
    assert_eq!(read("SELECT day FROM clicks"), ["ts"]);
    assert_eq!(
        read("SELECT f.flight FROM flights f JOIN planes p ON f.tailnum = p.tailnum"),
        ["flight", "tailnum", "tailnum"]
    );
}

#[test]
fn a_grouped_view_is_one_task_behind_the_exchange() {
    let fixture = Fixture::new();
    let planned = fixture
        .plan("CREATE MATERIALIZED VIEW v AS SELECT carrier, count(*) AS n FROM flights GROUP BY carrier")
        .unwrap();
    let exchanges: Vec<&Exchange> =
        planned.graph.nodes.iter().flat_map(|n| n.inputs.iter().map(|e| &e.exchange)).collect();
    assert_eq!(exchanges, [&Exchange::Hash(vec![0]), &Exchange::Forward, &Exchange::Forward]);
    assert_eq!(planned.key, [0]);
    assert_eq!(planned.reads, ["flights"]);
    assert!(!planned.append_only);
    assert_eq!(planned.warnings.len(), 1, "{:?}", planned.warnings);
}

#[test]
fn uids_follow_from_the_meaning_and_not_from_names_or_the_rest_of_the_catalog() {
    let mut fixture = Fixture::new();
    let uids = |fixture: &Fixture, query: &str| {
        let planned = fixture.plan(&format!("CREATE MATERIALIZED VIEW v AS {query}")).unwrap();
        planned.graph.nodes.iter().map(|n| n.uid.0.clone()).collect::<Vec<_>>()
    };
    let query = "SELECT carrier, count(*) AS n FROM flights WHERE distance > 100 GROUP BY carrier";
    let before = uids(&fixture, query);
    fixture.run("CREATE STREAM unrelated (x INT)").unwrap();
    assert_eq!(uids(&fixture, query), before);
    assert_eq!(
        uids(&fixture, "SELECT carrier, count(*) AS m FROM flights WHERE distance > 100 GROUP BY carrier"),
        before
    );
    let other = uids(&fixture, "SELECT carrier, count(*) AS n FROM flights WHERE distance > 101 GROUP BY carrier");
    assert_eq!(other[0], before[0], "the source is the same");
    assert_ne!(other[1], before[1], "the filter is not");
    assert_ne!(other[2], before[2], "nor what comes behind it");
    let twice = uids(&fixture, "SELECT a.n FROM by_carrier a JOIN by_carrier b ON a.n = b.n");
    assert_eq!(twice.iter().collect::<std::collections::BTreeSet<_>>().len(), twice.len(), "{twice:?}");
}
