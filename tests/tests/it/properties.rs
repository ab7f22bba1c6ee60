//! Properties: tables, changes, disorder and queries made at random; a view's rows are in the end what DataFusion answers
//! over the final contents.
//!
//! `PROPTEST_RNG_SEED` and `PROPTEST_CASES` choose others than the fixed ones.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use weir_tests::batch::Batch;
use weir_tests::process::PATIENCE;
use weir_tests::rows::difference;
use weir_tests::{Row, Weir};

fn runner(cases: u32) -> TestRunner {
    let mut config = Config { failure_persistence: None, max_shrink_iters: 40, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let seed: u64 = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(4577);
    let seed: Vec<u8> = seed.to_le_bytes().iter().copied().cycle().take(32).collect();
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

fn run<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    match runner(cases).run(&strategy, test) {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => panic!("{reason}\nleast case: {value:#?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

// Tables

/// A row: the literals of its columns but the key.
type Cells = Vec<String>;

const COLUMNS: &str = "id INT PRIMARY KEY, k INT, s TEXT, n NUMERIC(8,2), d DOUBLE PRECISION, b BOOLEAN";

fn cells() -> impl Strategy<Value = Cells> {
    let null = |literals: &'static [&'static str]| select(literals).prop_map(str::to_owned);
    (
        null(&["NULL", "0", "1", "1", "2", "3"]),
        null(&["NULL", "'x'", "'x'", "'y'", "''", "'ü''s'"]),
        null(&["NULL", "0.00", "1.25", "1.25", "-7.50", "999.99"]),
        // Multiples of a power of two: sums do not depend on the order.
        null(&["NULL", "0", "0.25", "0.25", "-3.5", "1024"]),
        null(&["NULL", "TRUE", "FALSE"]),
    )
        .prop_map(|(k, s, n, d, b)| vec![k, s, n, d, b])
}

#[derive(Debug, Clone)]
enum Change {
    Insert(usize, Cells),
    /// The row of that rank among those that stand.
    Update(usize, usize, Cells),
    Delete(usize, usize),
    /// All rows of a group at once.
    Move(usize, i32, i32),
    Kill,
}

fn change() -> impl Strategy<Value = Change> {
    let table = 0..2usize;
    prop_oneof![
        4 => (table.clone(), cells()).prop_map(|(t, row)| Change::Insert(t, row)),
        3 => (table.clone(), 0..64usize, cells()).prop_map(|(t, at, row)| Change::Update(t, at, row)),
        3 => (table.clone(), 0..64usize).prop_map(|(t, at)| Change::Delete(t, at)),
        2 => (table, 0..4i32, 0..4i32).prop_map(|(t, from, to)| Change::Move(t, from, to)),
        1 => Just(Change::Kill),
    ]
}

// Queries

fn predicate(alias: &'static str) -> impl Strategy<Value = String> {
    select(vec![
        "@.k > 0",
        "@.k IS NOT NULL",
        "@.s = 'x'",
        "@.s <> 'x'",
        "@.s IS NULL OR @.k = 1",
        "@.n > 1",
        "@.d BETWEEN 0 AND 1",
        "@.b",
        "NOT @.b",
        "@.b IS NOT TRUE",
        "@.id % 2 = 0",
        "@.k IN (1, 3)",
    ])
    .prop_map(move |text| text.replace('@', alias))
}

fn aggregates() -> impl Strategy<Value = String> {
    let calls = vec![
        "count(*)",
        "count(n)",
        "sum(id)",
        "sum(n)",
        "sum(d)",
        "avg(n)",
        "avg(d)",
        "min(n)",
        "max(n)",
        "min(s)",
        "max(s)",
        "min(d)",
        "max(id)",
        "bool_and(b)",
        "bool_or(b)",
        "count(DISTINCT s)",
        "count(DISTINCT n)",
        "sum(DISTINCT id % 3)",
        "sum(d) FILTER (WHERE b)",
        "count(*) FILTER (WHERE s = 'x')",
        "median(d)",
        "stddev(id)",
        "string_agg(s, ',' ORDER BY id)",
        "array_agg(id ORDER BY id)",
        "first_value(s ORDER BY id)",
    ];
    proptest::sample::subsequence(calls, 1..5).prop_map(|calls| {
        let named: Vec<String> = calls.iter().enumerate().map(|(i, call)| format!("{call} AS a{i}")).collect();
        named.join(", ")
    })
}

/// A query over the tables `$A` and `$B`.
fn query() -> impl Strategy<Value = String> {
    let table = || select(vec!["$A", "$B"]);
    let join = || select(vec!["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
    let on = || {
        select(vec![
            "x.k = y.k",
            "x.s = y.s",
            "x.id = y.id",
            "x.k = y.k AND x.s = y.s",
            "x.k = y.k AND x.n < y.n",
            "x.k = y.k AND x.d > 0",
            "(x.k IS NOT DISTINCT FROM y.k) AND x.b",
        ])
    };
    let keys = || select(vec!["k", "s", "b", "k, s", "n", "d", "k, b, s"]);
    prop_oneof![
        (table(), predicate("t")).prop_map(|(t, p)| format!("SELECT t.id, t.k, t.s, t.n * 2 AS n, t.d, t.b FROM {t} AS t WHERE {p}")),
        (table(), predicate("t"), keys(), aggregates())
            .prop_map(|(t, p, keys, calls)| format!("SELECT {keys}, {calls} FROM {t} AS t WHERE {p} GROUP BY {keys}")),
        (table(), keys(), aggregates()).prop_map(|(t, keys, calls)| format!("SELECT {keys}, {calls} FROM {t} GROUP BY {keys}")),
        (table(), aggregates()).prop_map(|(t, calls)| format!("SELECT {calls} FROM {t}")),
        (table(), keys()).prop_map(|(t, keys)| format!("SELECT DISTINCT {keys} FROM {t}")),
        (table(), keys()).prop_map(|(t, keys)| {
            format!("SELECT c, count(*) AS n FROM (SELECT {keys}, count(*) AS c FROM {t} GROUP BY {keys}) AS g GROUP BY c")
        }),
        (table(), keys()).prop_map(|(t, keys)| {
            format!("SELECT max(c) AS hi, min(c) AS lo, sum(m) AS m FROM (SELECT {keys}, count(*) AS c, max(id) AS m FROM {t} GROUP BY {keys}) AS g")
        }),
        (predicate("x"), predicate("y")).prop_map(|(p, q)| {
            format!("SELECT x.k, x.s FROM $A AS x WHERE {p} UNION ALL SELECT y.k, y.s FROM $B AS y WHERE {q}")
        }),
        (join(), on()).prop_map(|(join, on)| {
            format!("SELECT x.id AS a, y.id AS b, x.s, y.n FROM $A AS x {join} $B AS y ON {on}")
        }),
        (join(), on(), predicate("x"))
            .prop_map(|(join, on, p)| format!("SELECT x.id AS a, y.id AS b FROM $A AS x {join} $B AS y ON {on} WHERE {p}")),
        (join(), on()).prop_map(|(join, on)| {
            format!("SELECT x.k, count(y.id) AS n, sum(y.d) AS d, max(y.s) AS s FROM $A AS x {join} $B AS y ON {on} GROUP BY x.k")
        }),
        (join(), keys()).prop_map(|(join, keys)| {
            format!(
                "SELECT x.id, g.c, g.m FROM $B AS x {join} (SELECT {keys}, count(*) AS c, min(id) AS m FROM $A GROUP BY {keys}) AS g ON x.id = g.m"
            )
        }),
        (select(vec!["", "NOT "]), on(), predicate("y")).prop_map(|(not, on, p)| {
            format!("SELECT x.id, x.s FROM $A AS x WHERE {not}EXISTS (SELECT 1 FROM $B AS y WHERE {on} AND ({p}))")
        }),
        predicate("y").prop_map(|p| format!("SELECT x.id, x.k FROM $A AS x WHERE x.k IN (SELECT y.k FROM $B AS y WHERE {p})")),
    ]
}

#[derive(Debug, Clone)]
struct Scenario {
    initial: Vec<Vec<Cells>>,
    changes: Vec<Change>,
    queries: Vec<String>,
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let table = || prop::collection::vec(cells(), 0..12);
    (table(), table(), prop::collection::vec(change(), 1..16), prop::collection::vec(query(), 5))
        .prop_map(|(a, b, changes, queries)| Scenario { initial: vec![a, b], changes, queries })
}

/// A table as it must be.
#[derive(Default)]
struct Model {
    rows: BTreeMap<i32, Cells>,
    next: i32,
}

impl Model {
    fn insert(&mut self, cells: &Cells) -> String {
        self.next += 1;
        self.rows.insert(self.next, cells.clone());
        format!("({}, {})", self.next, cells.join(", "))
    }

    fn pick(&self, at: usize) -> Option<i32> {
        self.rows.keys().copied().nth(at % self.rows.len().max(1))
    }

    fn values(&self) -> String {
        let rows: Vec<String> = self.rows.iter().map(|(id, cells)| format!("({id}, {})", cells.join(", "))).collect();
        rows.join(", ")
    }
}

/// What all scenarios of a test share.
struct Scene {
    weir: Weir,
    count: usize,
    _directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut weir = Weir::new(&directory.path().join("data")).args(&["--parallelism", "2"]);
        weir.run();
        Self { weir, count: 0, _directory: directory }
    }

    async fn changes(&mut self, scenario: &Scenario) -> Result<(), String> {
        self.count += 1;
        let names = [format!("a{}", self.count), format!("b{}", self.count)];
        let fill = |text: &str| text.replace("$A", &names[0]).replace("$B", &names[1]);
        let mut models = [Model::default(), Model::default()];
        let mut script = String::from("SET 'execution.checkpointing.interval' = '100ms';");
        for name in &names {
            write!(script, "CREATE TABLE {name} ({COLUMNS});").unwrap();
        }
        for (model, (name, rows)) in models.iter_mut().zip(names.iter().zip(&scenario.initial)) {
            if !rows.is_empty() {
                let rows: Vec<String> = rows.iter().map(|cells| model.insert(cells)).collect();
                write!(script, "INSERT INTO {name} VALUES {};", rows.join(", ")).unwrap();
            }
        }
        let view = |i: usize| format!("{}_q{i}", names[0]);
        for (i, query) in scenario.queries.iter().enumerate() {
            write!(script, "CREATE MATERIALIZED VIEW {} AS {};", view(i), fill(query)).unwrap();
        }
        self.sql(&script).await?;
        for change in &scenario.changes {
            let sql = match change {
                Change::Insert(t, cells) => {
                    Some(format!("INSERT INTO {} VALUES {}", names[*t], models[*t].insert(cells)))
                }
                Change::Update(t, at, cells) => models[*t].pick(*at).map(|id| {
                    models[*t].rows.insert(id, cells.clone());
                    let set: Vec<String> =
                        ["k", "s", "n", "d", "b"].iter().zip(cells).map(|(c, v)| format!("{c} = {v}")).collect();
                    format!("UPDATE {} SET {} WHERE id = {id}", names[*t], set.join(", "))
                }),
                Change::Delete(t, at) => models[*t].pick(*at).map(|id| {
                    models[*t].rows.remove(&id);
                    format!("DELETE FROM {} WHERE id = {id}", names[*t])
                }),
                Change::Move(t, from, to) => {
                    for cells in models[*t].rows.values_mut().filter(|cells| cells[0] == from.to_string()) {
                        cells[0] = to.to_string();
                    }
                    Some(format!("UPDATE {} SET k = {to} WHERE k = {from}", names[*t]))
                }
                Change::Kill => {
                    self.weir.kill();
                    self.weir.run();
                    None
                }
            };
            if let Some(sql) = sql {
                self.sql(&sql).await?;
            }
        }

        let batch = Batch::default();
        for (name, model) in names.iter().zip(&models) {
            batch.execute(&format!("CREATE TABLE {name} ({COLUMNS})"), false).await.map_err(|e| e.to_string())?;
            if !model.rows.is_empty() {
                let insert = format!("INSERT INTO {name} VALUES {}", model.values());
                batch.execute(&insert, true).await.map_err(|e| format!("{insert}: {e}"))?;
            }
        }
        for (i, query) in scenario.queries.iter().enumerate() {
            let (_, expected) = batch.query(&fill(query)).await.map_err(|e| format!("{query}: {e}"))?;
            self.settled(&view(i), query, &expected).await?;
        }
        // Nothing moves any more once it is right.
        for (i, query) in scenario.queries.iter().enumerate() {
            let (_, expected) = batch.query(&fill(query)).await.map_err(|e| format!("{query}: {e}"))?;
            let rows = self.sql(&format!("SELECT * FROM {}", view(i))).await?;
            if let Some(difference) = difference(rows, expected) {
                return Err(format!("after it was right: {query}\n{difference}"));
            }
        }
        self.sql(&format!("DROP TABLE {} CASCADE; DROP TABLE IF EXISTS {} CASCADE", names[0], names[1])).await?;
        Ok(())
    }

    async fn settled(&self, view: &str, query: &str, expected: &[Row]) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let rows = self.sql(&format!("SELECT * FROM {view}")).await?;
            match difference(rows, expected.to_vec()) {
                None => return Ok(()),
                Some(difference) if Instant::now() > until => return Err(format!("{query}\n{difference}")),
                Some(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn sql(&self, sql: &str) -> Result<Vec<Row>, String> {
        self.weir.try_sql(sql).await.map_err(|e| format!("{sql}\n{}", weir_tests::process::describe(&e)))
    }
}

#[test]
fn views_over_changing_tables_equal_the_batch_answer() {
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let scene = std::cell::RefCell::new(tokio.block_on(async { Scene::new() }));
    run(12, scenario(), |scenario| {
        let mut scene = scene.borrow_mut();
        tokio.block_on(scene.changes(&scenario)).map_err(TestCaseError::fail)
    });
}

// Disorder

/// Rows of a file: seconds by which each is behind the file's clock, its key and value.
type Lines = Vec<(u32, u8, i32)>;

#[derive(Debug, Clone)]
struct Disorder {
    files: Vec<Lines>,
    size: u32,
    slides: u32,
    changes: bool,
}

fn disorder() -> impl Strategy<Value = Disorder> {
    let line = (0..30u32, 0..3u8, -5..100i32);
    let file = prop::collection::vec(line, 0..60);
    (prop::collection::vec(file, 1..4), select(vec![10u32, 20, 60, 90]), 1..4u32, any::<bool>())
        .prop_map(|(files, size, slides, changes)| Disorder { files, size, slides, changes })
}

impl Scene {
    async fn windows(&mut self, disorder: &Disorder) -> Result<(), String> {
        self.count += 1;
        let name = format!("w{}", self.count);
        let directory = tempfile::tempdir().unwrap();
        for (f, lines) in disorder.files.iter().enumerate() {
            let mut text = String::from("k,v,at\n");
            for (i, (behind, k, v)) in lines.iter().enumerate() {
                // The clock goes on by 7 s a row; no row is further behind it than the watermark allows.
                let second = 1_000 + i as u32 * 7 - behind;
                let key = if *k == 0 { String::new() } else { format!("k{k}") };
                writeln!(
                    text,
                    "{key},{v},2024-01-01 {:02}:{:02}:{:02}+00",
                    second / 3600,
                    second / 60 % 60,
                    second % 60
                )
                .unwrap();
            }
            std::fs::write(directory.path().join(format!("{f}.csv")), text).unwrap();
        }
        let columns = "k TEXT, v INT, at TIMESTAMPTZ, WATERMARK FOR at AS at - INTERVAL '30 seconds'";
        let create = |path: &str| {
            format!(
                "CREATE STREAM {name} ({columns}) WITH (connector = 'file', path = '{path}', format = 'csv', header = 'true')"
            )
        };
        let path = directory.path().display();
        let (size, slide) = (disorder.size * disorder.slides, disorder.size);
        let emit = if disorder.changes { "EMIT CHANGES" } else { "EMIT ON WINDOW CLOSE" };
        self.sql(&format!(
            "SET 'execution.checkpointing.interval' = '20ms'; {};
             CREATE MATERIALIZED VIEW {name}_v AS SELECT k, window_start, count(*) AS n, sum(v) AS v, max(v) AS hi
               FROM HOP(TABLE {name}, DESCRIPTOR(at), INTERVAL '{slide} seconds', INTERVAL '{size} seconds')
               GROUP BY k, window_start, window_end {emit}",
            create(&format!("{path}/*.csv"))
        ))
        .await?;
        let batch = Batch::default();
        batch.execute(&create(&format!("{path}/")), false).await.map_err(|e| e.to_string())?;
        let shifts: Vec<String> = (0..disorder.slides).map(|i| format!("(INTERVAL '{} seconds')", i * slide)).collect();
        let query = format!(
            "SELECT k, date_bin(INTERVAL '{slide} seconds', at) - shift AS window_start, count(*), sum(v), max(v)
             FROM {name} CROSS JOIN (VALUES {}) AS s(shift) GROUP BY 1, 2",
            shifts.join(", ")
        );
        let (_, expected) = batch.query(&query).await.map_err(|e| e.to_string())?;
        self.settled(&format!("{name}_v"), &query, &expected).await?;
        let late = self.sql(&format!("SELECT count(*) FROM weir.late_rows WHERE query = '{name}_v'")).await?;
        if late != vec![vec![Some("0".to_owned())]] {
            return Err(format!("rows are late: {late:?}"));
        }
        self.sql(&format!("DROP STREAM {name} CASCADE")).await?;
        Ok(())
    }
}

#[test]
fn windows_of_disordered_rows_equal_the_batch_answer() {
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let scene = std::cell::RefCell::new(tokio.block_on(async { Scene::new() }));
    run(20, disorder(), |disorder| {
        let mut scene = scene.borrow_mut();
        tokio.block_on(scene.windows(&disorder)).map_err(TestCaseError::fail)
    });
}
