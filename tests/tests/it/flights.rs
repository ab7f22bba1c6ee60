//! The flights: the README's statements, run by a real server and compared with DataFusion's batch answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use weir_tests::{Row, Weir, all_flights, assert_same_rows, oracle, root, sample};

/// A query as Weir keeps it up to date and as DataFusion answers it once.
pub struct Pair {
    pub view: &'static str,
    pub continuous: &'static str,
    pub batch: &'static str,
}

/// Every continuous query of these tests.
pub const PAIRS: &[Pair] = &[
    Pair {
        view: "departures",
        continuous: "SELECT origin, window_start, count(*) AS scheduled, count(dep_delay) AS departed, avg(dep_delay) AS mean_delay
            FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day')
            GROUP BY origin, window_start, window_end EMIT ON WINDOW CLOSE",
        batch: "SELECT origin, date_bin(INTERVAL '1 day', time_hour) AS window_start, count(*), count(dep_delay), avg(dep_delay)
            FROM flights WHERE IN_TIME GROUP BY 1, 2",
    },
    Pair {
        view: "by_carrier",
        continuous: "SELECT carrier, count(*) AS n FROM flights GROUP BY carrier",
        batch: "SELECT carrier, count(*) FROM flights GROUP BY carrier",
    },
    Pair {
        view: "routes",
        continuous: "SELECT origin, dest, count(*) AS n, min(distance) AS distance, max(dep_delay) AS worst FROM flights GROUP BY origin, dest",
        batch: "SELECT origin, dest, count(*), min(distance), max(dep_delay) FROM flights GROUP BY origin, dest",
    },
    Pair {
        view: "weather_delays",
        continuous: "SELECT f.carrier, f.flight, f.tailnum, f.time_hour, f.dep_delay, w.temp, w.wind_speed
            FROM flights f JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour WHERE f.dep_delay > 120",
        batch: "SELECT f.carrier, f.flight, f.tailnum, f.time_hour, f.dep_delay, w.temp, w.wind_speed
            FROM flights f JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour WHERE f.dep_delay > 120",
    },
    Pair {
        view: "manufacturers",
        continuous: "SELECT p.manufacturer, count(*) AS n, avg(f.arr_delay) AS mean_delay
            FROM flights f LEFT JOIN planes p ON f.tailnum = p.tailnum GROUP BY p.manufacturer",
        batch: "SELECT p.manufacturer, count(*), avg(f.arr_delay)
            FROM flights f LEFT JOIN planes p ON f.tailnum = p.tailnum GROUP BY p.manufacturer",
    },
    Pair {
        view: "busy_routes",
        continuous: "SELECT n, count(*) AS routes FROM routes GROUP BY n",
        batch: "SELECT n, count(*) FROM (SELECT count(*) AS n FROM flights GROUP BY origin, dest) GROUP BY n",
    },
    Pair {
        view: "carriers",
        continuous: "SELECT DISTINCT carrier FROM flights",
        batch: "SELECT DISTINCT carrier FROM flights",
    },
];

/// The streams over the given files.
pub fn streams(flights: &Path, weather: &Path, planes: &Path) -> String {
    format!(
        "CREATE STREAM flights (
           year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE PRECISION,
           arr_time INT, sched_arr_time INT, arr_delay DOUBLE PRECISION, carrier TEXT, flight INT, tailnum TEXT,
           origin TEXT, dest TEXT, air_time DOUBLE PRECISION, distance DOUBLE PRECISION, hour INT, minute INT,
           time_hour TIMESTAMPTZ,
           WATERMARK FOR time_hour AS time_hour - INTERVAL '1 day'
         ) WITH (connector = 'file', path = '{}', format = 'csv', header = 'true', null = 'NA');
         CREATE STREAM weather (
           origin TEXT, temp DOUBLE PRECISION, wind_speed DOUBLE PRECISION, time_hour TIMESTAMPTZ
         ) WITH (connector = 'file', path = '{}', format = 'csv', header = 'true', null = 'NA');
         CREATE STREAM planes (
           tailnum TEXT, year INT, type TEXT, manufacturer TEXT, model TEXT
         ) WITH (connector = 'file', path = '{}', format = 'csv', header = 'true', null = 'NA');",
        flights.display(),
        weather.display(),
        planes.display()
    )
}

/// Every view and the sink of late flights.
pub fn queries(late: &Path, interval: &str) -> String {
    let mut script = format!("SET 'execution.checkpointing.interval' = '{interval}';");
    for pair in PAIRS {
        script.push_str(&format!("CREATE MATERIALIZED VIEW {} AS {};", pair.view, pair.continuous));
    }
    script.push_str(&format!(
        "CREATE SINK late AS SELECT carrier, flight, tailnum, time_hour, dep_delay FROM flights WHERE dep_delay > 60
           WITH (connector = 'file', path = '{}', format = 'json');",
        late.display()
    ));
    script
}

/// DataFusion's answers, by view; `late` is the sink's.
/// `in_time` tells the rows that come before their day's window is closed.
pub async fn expected(
    flights: &Path,
    weather: &Path,
    planes: &Path,
    in_time: &str,
) -> BTreeMap<&'static str, Vec<Row>> {
    let context = oracle::flights(flights, weather, planes, &sample("airlines.csv")).await;
    let mut answers = BTreeMap::new();
    for pair in PAIRS {
        let batch = pair.batch.replace("IN_TIME", in_time);
        answers.insert(pair.view, oracle::answer(&context, &batch).await);
    }
    let late = "SELECT carrier, flight, tailnum, time_hour, dep_delay FROM flights WHERE dep_delay > 60";
    answers.insert("late", oracle::answer(&context, late).await);
    answers
}

/// Compares every view and the sink's files.
pub async fn check(weir: &Weir, late: &Path, expected: &BTreeMap<&'static str, Vec<Row>>) {
    for pair in PAIRS {
        let rows = weir.sql(&format!("SELECT * FROM {}", pair.view)).await;
        assert_same_rows(pair.view, rows, expected[pair.view].clone());
    }
    assert_same_rows("late", json_rows(late), expected["late"].clone());
}

/// The rows of all committed JSON files under a directory; fails if a file that a reader would match is not complete.
pub fn json_rows(directory: &Path) -> Vec<Row> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory).map(|d| d.map(|e| e.unwrap().path()).collect()).unwrap_or_default();
    files.retain(|file| file.extension().is_some_and(|e| e == "json"));
    files.sort();
    let text: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    text.lines()
        .map(|line| {
            let row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
            row.values()
                .map(|value| match value {
                    serde_json::Value::Null => None,
                    serde_json::Value::String(text) => Some(text.clone()),
                    other => Some(other.to_string()),
                })
                .collect()
        })
        .collect()
}

async fn tour(flights: &Path, weather: &Path, planes: &Path, parallelism: &str, in_time: &str, late_rows: u64) {
    let directory = tempfile::tempdir().unwrap();
    let late = directory.path().join("late");
    let mut weir = Weir::new(&directory.path().join("data")).args(&["--parallelism", parallelism]);
    weir.run();
    weir.sql(&streams(flights, weather, planes)).await;
    weir.sql(&queries(&late, "300ms")).await;
    weir.wait_finished().await;
    let expected = expected(flights, weather, planes, in_time).await;
    check(&weir, &late, &expected).await;
    let rejected = weir.sql("SELECT late_rows FROM weir.queries WHERE name = 'departures'").await;
    assert_eq!(rejected, vec![vec![Some(late_rows.to_string())]]);
    if late_rows > 0 {
        // The latest ones can be read, whole.
        let one = weir.sql("SELECT row FROM weir.late_rows WHERE query = 'departures' LIMIT 1").await;
        assert!(one[0][0].as_deref().unwrap().contains("window_end"), "{one:?}");
    }

    // A finished query answers after a restart too, and commits nothing a second time.
    assert!(weir.terminate().success(), "{}", weir.log());
    weir.run();
    weir.wait_finished().await;
    check(&weir, &late, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn january_equals_the_batch_answer() {
    let (flights, weather) = (sample("flights-2013-01.csv"), sample("weather-2013-01.csv"));
    tour(&flights, &weather, &sample("planes.csv"), "1", "true", 0).await;
    tour(&flights, &weather, &sample("planes.csv"), "2", "true", 0).await;
}

/// The file has the months in the order 1, 10, 11, 12, 2, …, 9: when December has come, the windows of February to
/// September are long closed, and their 225,480 rows are late.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_year_equals_the_batch_answer() {
    let Some(flights) = all_flights() else { return };
    let weather = root().parent().unwrap().join("shared/data/nycflights13/weather.csv");
    tour(&flights, &weather, &sample("planes.csv"), "2", "month IN (1, 10, 11, 12)", 225_480).await;
}
