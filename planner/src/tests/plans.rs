use super::Fixture;

#[test]
fn x() {
    let f = Fixture::new();
    for q in [
        "SELECT origin, window_start, count(*) AS scheduled, count(dep_delay) AS departed, avg(dep_delay) AS mean_delay
   FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day')
   GROUP BY origin, window_start, window_end EMIT ON WINDOW CLOSE",
        "SELECT carrier, count(*) AS n FROM flights GROUP BY carrier",
        "SELECT carrier, flight FROM flights WHERE dep_delay > 60",
        "SELECT count(*) FROM flights",
        "SELECT DISTINCT origin, dest FROM flights",
        "SELECT carrier FROM flights UNION ALL SELECT manufacturer FROM planes",
        "SELECT carrier FROM flights UNION SELECT manufacturer FROM planes",
        "SELECT f.flight, f.dep_delay, w.temp FROM flights f LEFT JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour",
        "SELECT p.manufacturer, avg(f.dep_delay) AS delay, count(*) AS n FROM flights f JOIN planes p ON f.tailnum = p.tailnum GROUP BY p.manufacturer",
        "SELECT flight FROM flights WHERE tailnum IN (SELECT tailnum FROM planes WHERE seats > 200)",
        "SELECT flight FROM flights f WHERE NOT EXISTS (SELECT 1 FROM planes p WHERE p.tailnum = f.tailnum)",
        "SELECT flight FROM flights f WHERE tailnum NOT IN (SELECT tailnum FROM planes)",
        "SELECT carrier, n FROM by_carrier WHERE n > (SELECT avg(n) FROM by_carrier)",
        "SELECT max(n) AS m FROM (SELECT carrier, count(*) AS n FROM flights GROUP BY carrier)",
        "SELECT origin || '-' || dest AS route, sum(distance) FILTER (WHERE air_time > 0) AS d, count(DISTINCT carrier) AS c FROM flights GROUP BY origin || '-' || dest",
        "SELECT window_start, window_end, count(*) AS n FROM HOP(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '5 minutes', INTERVAL '1 hour') GROUP BY window_start, window_end",
        "SELECT a.carrier FROM by_carrier a JOIN by_carrier b ON a.n = b.n AND a.carrier < b.carrier",
        "SELECT day, id FROM clicks",
        "WITH w AS (SELECT * FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 hour')) SELECT max(n) AS n, window_end FROM (SELECT carrier, window_start, window_end, count(*) AS n FROM w WHERE carrier <> 'AA' GROUP BY 1, 2, 3) GROUP BY window_end EMIT ON WINDOW CLOSE",
    ] {
        println!("{q}\n{}\n", f.view(q));
    }
}
