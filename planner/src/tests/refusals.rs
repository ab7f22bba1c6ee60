//! What cannot stream is refused with a sentence and what to write instead.

use super::Fixture;

#[test]
fn queries_that_cannot_stream() {
    let fixture = Fixture::new();
    let refusals: Vec<String> = [
        "SELECT carrier FROM flights ORDER BY carrier",
        "SELECT carrier FROM (SELECT carrier FROM flights ORDER BY carrier)",
        "SELECT carrier FROM flights LIMIT 10",
        "SELECT carrier FROM flights OFFSET 10",
        "SELECT carrier, row_number() OVER (PARTITION BY carrier) AS r FROM flights",
        "SELECT DISTINCT ON (carrier) carrier, flight FROM flights",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 10) SELECT n FROM r",
        "SELECT unnest(tags) AS tag FROM clicks",
        "SELECT * FROM (VALUES (1), (2)) AS t(x)",
        "SELECT 1",
        "SELECT origin, dest, count(*) AS n FROM flights GROUP BY ROLLUP (origin, dest)",
        "SELECT origin, dest, count(*) AS n FROM flights GROUP BY GROUPING SETS ((origin), (dest))",
        "SELECT now() AS t, carrier FROM flights",
        "SELECT carrier FROM flights WHERE time_hour > current_timestamp - INTERVAL '1 day'",
        "SELECT carrier, random() AS r FROM flights",
        "SELECT uuid() AS id FROM flights",
        "SELECT carrier FROM flights WHERE carrier = $1",
        "SELECT f.carrier, p.seats FROM flights f CROSS JOIN planes p",
        "SELECT f.carrier, p.seats FROM flights f JOIN planes p ON f.distance > p.seats",
        "SELECT flight FROM flights f WHERE tailnum NOT IN (SELECT tailnum FROM planes)",
        "SELECT flight FROM flights WHERE dep_delay > 10 OR tailnum IN (SELECT tailnum FROM planes)",
        "SELECT carrier, lag(flight) OVER (ORDER BY time_hour) AS x FROM flights",
    ]
    .iter()
    .map(|q| format!("{q}\n{}\n", fixture.refused(q)))
    .collect();
    snapshot!(refusals.join("\n"));
}

#[test]
fn windows_that_never_close() {
    let fixture = Fixture::new();
    let refusals: Vec<String> = [
        "SELECT carrier FROM flights EMIT ON WINDOW CLOSE",
        "SELECT carrier, count(*) AS n FROM flights GROUP BY carrier EMIT ON WINDOW CLOSE",
        "SELECT count(*) AS n FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day') EMIT ON WINDOW CLOSE",
        "SELECT window_start, count(*) AS n FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day') GROUP BY window_start EMIT ON WINDOW CLOSE",
        "SELECT window_end, count(*) AS n FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '1 day') GROUP BY window_end EMIT ON WINDOW CLOSE",
        "SELECT window_end, count(*) AS n FROM TUMBLE(TABLE weather, DESCRIPTOR(time_hour), INTERVAL '1 day') GROUP BY window_end EMIT ON WINDOW CLOSE",
        "SELECT max(n) AS n FROM (SELECT window_end, count(*) AS n FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day') GROUP BY window_end) EMIT ON WINDOW CLOSE",
    ]
    .iter()
    .map(|q| format!("{q}\n{}\n", fixture.refused(q)))
    .collect();
    snapshot!(refusals.join("\n"));
}

#[test]
fn names_and_types_that_do_not_fit() {
    let fixture = Fixture::new();
    let refusals: Vec<String> = [
        "SELECT carier FROM flights",
        "SELECT carrier FROM flight",
        "SELECT x.carrier FROM flights f",
        "SELECT year FROM flights JOIN planes ON flights.tailnum = planes.tailnum",
        "SELECT carrier, dest FROM flights GROUP BY carrier",
        "SELECT cuont(*) FROM flights",
        "SELECT carrier, carrier FROM flights",
        "SELECT sum(distance), sum(air_time) FROM flights",
        "SELECT carrier + 1 FROM flights",
        "SELECT sqrt(carrier) FROM flights",
        "SELECT carrier FROM other.flights",
        "SELECT carrier FROM flights UNION ALL SELECT tailnum, seats FROM planes",
        "SELECT dep_delay::wibble FROM flights",
    ]
    .iter()
    .map(|q| format!("{q}\n{}\n", fixture.refused(q)))
    .collect();
    snapshot!(refusals.join("\n"));
}

#[test]
fn targets_that_take_added_rows_only() {
    let fixture = Fixture::new();
    let grouped = "AS SELECT carrier, count(*) AS n FROM flights GROUP BY carrier";
    let stream = fixture.drawn(&format!("CREATE STREAM s {grouped}"));
    let sink = fixture.drawn(&format!("CREATE SINK s {grouped} WITH (connector = 'file')"));
    snapshot!(format!("{stream}\n{sink}"));
}

#[test]
fn a_sink_cannot_be_read() {
    let mut fixture = Fixture::new();
    fixture.run("CREATE SINK out FROM flights WITH (connector = 'print')").unwrap();
    assert!(fixture.refused("SELECT * FROM out").starts_with("42809 WEIR-1103: \"out\" is a sink and cannot be read"));
}
