//! The oracle suite: every file of `tests/cases` planned, as a batch, as streams, as streams with crashes, and as streams
//! that are killed and go on with another parallelism each time, with barriers that overtake rows.
//!
//! `WEIR_UPDATE_CASES=1` writes the batch's answers into the files; `WEIR_CASES=joins` takes one file only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::StreamExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sqllogictest::runner::{AsyncDB, DBOutput, Runner, update_record_with_output};
use sqllogictest::{QueryExpect, Record, RecordOutput, StatementExpect, default_normalizer};
use tokio::sync::{Mutex, Semaphore};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::types::{Kind as PgKind, Type};
use weir_planner::{Catalog, Options, Parallelism, Planner, RelationKind, SqlError, Statement, Target};
use weir_tests::batch::Batch;
use weir_tests::cases::{CaseError, CaseFile, Kind, SEPARATOR, files, same_kinds, same_rows, substituted, written};
use weir_tests::process::PATIENCE;
use weir_tests::{Row, Weir, pg_text};

/// How many files run at once, of all tests here: they mostly wait, but beside six servers some would wait too long.
const AT_ONCE: usize = 3;
static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);

#[tokio::test(flavor = "multi_thread")]
async fn batch() {
    let files = files();
    if std::env::var_os("WEIR_UPDATE_CASES").is_some() {
        for file in &files {
            update(file).await;
        }
    }
    let queries: usize = files.iter().map(CaseFile::queries).sum();
    let all = std::env::var_os("WEIR_CASES").is_none();
    assert!(!all || queries >= 160, "there are {queries} queries only");
    // Read again: they may have been written.
    for_all(|file| run_batch(CaseFile::read(&file.path))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plan() {
    for_all(run_plans).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stream() {
    for_all(|file| run_streams(file, Mode::Stream)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crash() {
    for_all(|file| run_streams(file, Mode::Crash)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rescale() {
    for_all(|file| run_streams(file, Mode::Rescale)).await;
}

/// What happens to the server meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nothing.
    Stream,
    /// It is killed and started again.
    Crash,
    /// It is killed and started again with another parallelism; checkpoints are unaligned, and channels short, so that
    /// there are rows in flight to be dealt out anew.
    Rescale,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Crash => "crash",
            Self::Rescale => "rescale",
        }
    }

    fn settings(self) -> &'static str {
        match self {
            Self::Stream => "",
            Self::Crash => "SET 'execution.checkpointing.interval' = '20ms'",
            Self::Rescale => {
                "SET 'execution.checkpointing.interval' = '20ms';
                 SET 'execution.checkpointing.unaligned.enabled' = 'true';
                 SET 'execution.checkpointing.aligned-checkpoint-timeout' = '0 ms';
                 SET 'pipeline.channel-bytes' = '2kb'"
            }
        }
    }
}

/// Runs all files, and fails with everything that went wrong.
async fn for_all<F: Future<Output = Vec<String>>>(run: impl Fn(CaseFile) -> F) {
    let in_turn = async |file| {
        let _turn = TURNS.acquire().await.unwrap();
        run(file).await
    };
    let failures: Vec<Vec<String>> =
        futures::stream::iter(files().into_iter().map(in_turn)).buffer_unordered(AT_ONCE).collect().await;
    let failures: Vec<String> = failures.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{} cases failed\n\n{}", failures.len(), failures.join("\n\n"));
}

// Batch

struct BatchDb {
    batch: Batch,
    verbatim: bool,
}

#[async_trait]
impl AsyncDB for BatchDb {
    type Error = CaseError;
    type ColumnType = Kind;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Kind>, CaseError> {
        self.batch.execute(sql, self.verbatim).await
    }

    async fn shutdown(&mut self) {}
}

/// The record as the batch runs it, and whether its text is for DataFusion alone; `None` when it does not.
fn batch_record(item: &weir_tests::cases::Item) -> Option<(Record<Kind>, bool)> {
    let mut record = item.record.clone();
    match &mut record {
        // Refusals are Weir's: DataFusion answers many of them.
        Record::Statement { expected: StatementExpect::Error(_), .. } => return None,
        Record::Statement { sql, .. } | Record::Query { sql, .. } => match item.batch.as_deref() {
            Some("skip") => return None,
            Some(batch) => *sql = batch.to_owned(),
            None => return Some((record, false)),
        },
        _ => return None,
    }
    Some((record, true))
}

/// The items in the order in which the batch runs them: a query's answer is what its view shows in the end, so that all
/// statements come first.
fn in_batch_order(file: &CaseFile) -> impl Iterator<Item = (usize, &weir_tests::cases::Item)> {
    let query = |item: &weir_tests::cases::Item| matches!(item.record, Record::Query { .. });
    let items = || file.items.iter().enumerate();
    items().filter(move |(_, item)| !query(item)).chain(items().filter(move |(_, item)| query(item)))
}

async fn run_batch(file: CaseFile) -> Vec<String> {
    let db = Arc::new(Mutex::new(BatchDb { batch: Batch::default(), verbatim: false }));
    let mut runner = runner(&db);
    let mut failures = Vec::new();
    for (_, item) in in_batch_order(&file) {
        let Some((record, verbatim)) = batch_record(item) else { continue };
        db.lock().await.verbatim = verbatim;
        if let Err(error) = runner.run_async(record).await {
            failures.push(format!("batch: {}", error.display(false)));
        }
    }
    failures
}

async fn update(file: &CaseFile) {
    let db = Arc::new(Mutex::new(BatchDb { batch: Batch::default(), verbatim: false }));
    let mut runner = runner(&db);
    let mut records: Vec<Record<Kind>> = file.items.iter().map(|item| item.record.clone()).collect();
    for (i, item) in in_batch_order(file) {
        let Some((batch, verbatim)) = batch_record(item) else { continue };
        db.lock().await.verbatim = verbatim;
        let record = &item.record;
        let output = runner.apply_record(batch).await;
        match &output {
            RecordOutput::Query { error: Some(error), .. } | RecordOutput::Statement { error: Some(error), .. } => {
                panic!("{}: {record}\n{error}", file.path.display())
            }
            RecordOutput::Query { .. } => {
                let updated =
                    update_record_with_output(record, &output, SEPARATOR, same_rows, default_normalizer, same_kinds);
                records[i] = sorted(updated.unwrap_or_else(|| record.clone()));
            }
            _ => {}
        }
    }
    let text: String = records.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(&file.path, format!("{}\n", text.trim_end())).unwrap();
}

/// The answer in a fixed order, so that an update changes what has changed only.
fn sorted(mut record: Record<Kind>) -> Record<Kind> {
    if let Record::Query { expected: QueryExpect::Results { results, .. }, .. } = &mut record {
        results.sort();
    }
    record
}

// Planned only: in a second, and without a server

/// The view that a query becomes.
const QUERY: &str = "the_query";

struct Plans {
    planner: Planner,
    catalog: Catalog,
}

#[async_trait]
impl AsyncDB for Plans {
    type Error = CaseError;
    type ColumnType = Kind;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Kind>, CaseError> {
        let planned = self.plan(&substituted(sql));
        planned.map_err(|e| {
            let more =
                |label: &str, text: Option<String>| text.map_or(String::new(), |text| format!("; {label}{text}"));
            let text = format!("{} {}{}{}", e.sqlstate, e.message, more("", e.detail), more("hint: ", e.hint));
            CaseError { state: Some(e.sqlstate.to_owned()), text: text.into() }
        })
    }

    async fn shutdown(&mut self) {}

    fn error_sql_state(error: &CaseError) -> Option<String> {
        error.state.clone()
    }
}

impl Plans {
    fn plan(&mut self, sql: &str) -> Result<DBOutput<Kind>, SqlError> {
        let (options, parallelism) = (Options::new(), Parallelism { default: 2, max: 128 });
        for parsed in weir_planner::parse(sql)? {
            let name = |kind, name: &str| match kind {
                RelationKind::View => Target::View { name: name.to_owned(), forward: false },
                _ => Target::Stream { name: name.to_owned() },
            };
            let (kind, create) = match &parsed.statement {
                Statement::CreateStream(create) | Statement::CreateTable(create) => {
                    let table = matches!(parsed.statement, Statement::CreateTable(_));
                    let kind = if table { RelationKind::Table } else { RelationKind::Stream };
                    self.catalog.insert(self.planner.define(kind, create, &options, &parsed.sql)?, None);
                    continue;
                }
                Statement::CreateMaterializedView(create) => (RelationKind::View, create),
                Statement::CreateStreamAs(create) => (RelationKind::Stream, create),
                _ => continue,
            };
            let planned = self.planner.plan_create(&self.catalog, create, &name(kind, &create.name), parallelism)?;
            if create.name == QUERY {
                let types = planned.columns.iter().map(|column| pg_text::kind(&column.field())).collect();
                return Ok(DBOutput::Rows { types, rows: Vec::new() });
            }
            self.catalog.insert(planned.relation(kind, create, &options, &parsed.sql)?, None);
        }
        Ok(DBOutput::StatementComplete(0))
    }
}

/// The types of all answers, and the refusals, come from plans alone.
async fn run_plans(file: CaseFile) -> Vec<String> {
    let db = Arc::new(Mutex::new(Plans { planner: Planner::new(), catalog: Catalog::new() }));
    let mut runner = runner(&db);
    runner.with_validator(|_, _, _| true);
    let mut failures = Vec::new();
    for item in file.items {
        let record = match item.record {
            Record::Statement { ref sql, ref expected, .. } => {
                // What only a server knows: SELECT, INSERT, names that are taken.
                let refused = matches!(expected, StatementExpect::Error(_));
                if refused && !sql.starts_with("CREATE MATERIALIZED VIEW") {
                    continue;
                }
                match item.record {
                    Record::Statement {
                        loc,
                        conditions,
                        connection,
                        sql,
                        expected: StatementExpect::Count(_),
                        retry,
                    } => Record::Statement { loc, conditions, connection, sql, expected: StatementExpect::Ok, retry },
                    other => other,
                }
            }
            Record::Query { loc, conditions, connection, sql, expected, retry } => {
                let sql = format!("CREATE MATERIALIZED VIEW {QUERY} AS {sql}");
                Record::Query { loc, conditions, connection, sql, expected, retry }
            }
            other => other,
        };
        if let Err(error) = runner.run_async(record).await {
            failures.push(format!("plan: {}", error.display(false)));
        }
    }
    failures
}

// Streams

/// A server whose queries are views.
struct Streams {
    weir: Weir,
    /// `SET`s of the session that creates views.
    settings: String,
    /// Where a query's answer is read.
    answers: String,
}

#[async_trait]
impl AsyncDB for Streams {
    type Error = CaseError;
    type ColumnType = Kind;

    /// A statement is run as it is; a query's text is not needed: its view is read.
    async fn run(&mut self, sql: &str) -> Result<DBOutput<Kind>, CaseError> {
        let client = self.weir.connect().await?;
        if !self.settings.is_empty() {
            client.simple_query(&self.settings).await?;
        }
        if self.answers.is_empty() {
            let messages = client.simple_query(&substituted(sql)).await?;
            let count = messages.iter().rev().find_map(|m| match m {
                SimpleQueryMessage::CommandComplete(count) => Some(*count),
                _ => None,
            });
            return Ok(DBOutput::StatementComplete(count.unwrap_or(0)));
        }
        let select = format!("SELECT * FROM {}", self.answers);
        let types = client.prepare(&select).await?.columns().iter().map(|c| kind(c.type_())).collect();
        let messages = client.simple_query(&select).await?;
        let rows: Vec<Row> = messages
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect()),
                _ => None,
            })
            .collect();
        Ok(DBOutput::Rows { types, rows: written(&rows) })
    }

    async fn shutdown(&mut self) {}

    fn error_sql_state(error: &CaseError) -> Option<String> {
        error.state.clone()
    }
}

fn kind(pg: &Type) -> Kind {
    match *pg {
        Type::BOOL => Kind::Boolean,
        Type::INT2 | Type::INT4 | Type::INT8 => Kind::Integer,
        Type::FLOAT4 | Type::FLOAT8 => Kind::Float,
        Type::NUMERIC => Kind::Numeric,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::JSON | Type::JSONB | Type::UUID => Kind::Text,
        Type::DATE => Kind::Date,
        Type::TIME => Kind::Time,
        Type::TIMESTAMP => Kind::Timestamp,
        Type::TIMESTAMPTZ => Kind::TimestampTz,
        Type::INTERVAL => Kind::Interval,
        Type::BYTEA => Kind::Bytes,
        _ if matches!(pg.kind(), PgKind::Array(_)) => Kind::Array,
        _ => Kind::Other,
    }
}

async fn run_streams(file: CaseFile, kind: Mode) -> Vec<String> {
    let (mode, crash) = (kind.name(), kind != Mode::Stream);
    let began = Instant::now();
    let directory = tempfile::tempdir().unwrap();
    let seed =
        file.name().bytes().fold(u64::from(crash), |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut random = SmallRng::seed_from_u64(seed);
    // One task a query or two: what goes wrong with an exchange must not hide behind a crash, nor the other way round.
    let parallelism = if seed % 2 == 0 { "1" } else { "2" };
    let mut weir = Weir::new(&directory.path().join("data")).args(&["--parallelism", parallelism]);
    weir.run();
    let settings = kind.settings().to_owned();
    let db = Arc::new(Mutex::new(Streams { weir, settings, answers: String::new() }));
    let mut runner = runner(&db);
    let mut failures = Vec::new();

    // First everything is created, so that the queries run beside each other.
    let records = file.items.iter().map(|item| &item.record);
    let records: Vec<&Record<Kind>> =
        records.filter(|r| matches!(r, Record::Statement { .. } | Record::Query { .. })).collect();
    let every = (records.len() / 3).max(2);
    let mut created = Vec::new();
    for (i, record) in records.iter().enumerate() {
        let mut statement = (*record).clone();
        if let Record::Query { loc, conditions, connection, sql, .. } = (*record).clone() {
            let view = format!("q{}", created.len() + 1);
            let sql = format!("CREATE MATERIALIZED VIEW {view} AS {sql}");
            let expected = StatementExpect::Ok;
            statement = Record::Statement { loc, conditions, connection, sql, expected, retry: None };
            created.push((view, *record));
        }
        let failed = runner.run_async(statement).await.err();
        if let (Some(error), Record::Query { .. }) = (&failed, record) {
            failures.push(format!("{mode}: {}", error.display(false)));
            created.pop();
            created.push((String::new(), *record));
        } else if let Some(error) = failed {
            failures.push(format!("{mode}: {}", error.display(false)));
        }
        if crash && i % every == every - 1 {
            kill(&db, &mut random, kind).await;
        }
    }
    if crash {
        kill(&db, &mut random, kind).await;
    }

    // Then everything is compared.
    let unbounded = records.iter().any(|r| matches!(r, Record::Statement { sql, .. } if sql.contains("CREATE TABLE")));
    if !unbounded && let Err(reason) = finished(&db).await {
        failures.push(format!("{mode}: {}: {reason}", file.path.display()));
        return failures;
    }
    let until = Instant::now() + PATIENCE;
    for (view, record) in created.into_iter().filter(|(view, _)| !view.is_empty()) {
        db.lock().await.answers = view.clone();
        let mut failed = runner.run_async(record.clone()).await.err();
        while unbounded && failed.is_some() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
            failed = runner.run_async(record.clone()).await.err();
        }
        if let Some(error) = failed {
            failures.push(format!("{mode}: {view}: {}", error.display(false)));
        }
    }
    let rejected = db.lock().await.weir.try_sql("SELECT * FROM weir.bad_rows LIMIT 3").await;
    if !matches!(&rejected, Ok(rows) if rows.is_empty()) {
        failures.push(format!("{mode}: {}: rows were refused: {rejected:?}", file.path.display()));
    }
    if std::env::var_os("WEIR_CASES_TIME").is_some() {
        eprintln!("{mode} {}: {:?}", file.name(), began.elapsed());
    }
    if !failures.is_empty() && std::env::var_os("WEIR_CASES_LOG").is_some() {
        eprintln!("{}", db.lock().await.weir.log());
    }
    failures
}

/// SIGKILL after a moment, and a new start.
async fn kill(db: &Arc<Mutex<Streams>>, random: &mut SmallRng, mode: Mode) {
    tokio::time::sleep(Duration::from_millis(random.random_range(0..60))).await;
    let mut db = db.lock().await;
    db.weir.kill();
    if mode == Mode::Rescale {
        let parallelism: u32 = random.random_range(1..=5);
        db.weir.set_argument("--parallelism", &parallelism.to_string());
    }
    db.weir.run();
}

/// Waits until all queries have finished.
async fn finished(db: &Arc<Mutex<Streams>>) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let mut db = db.lock().await;
        if db.weir.has_ended() {
            return Err(format!("the server ended:\n{}", db.weir.log()));
        }
        let rows = db
            .weir
            .try_sql("SELECT name, state, reason FROM weir.queries")
            .await
            .map_err(|e| weir_tests::process::describe(&e))?;
        let state = |row: &Row| row[1].clone().unwrap_or_default();
        let open: Vec<&Row> = rows.iter().filter(|row| state(row) != "FINISHED").collect();
        if open.is_empty() {
            return Ok(());
        }
        if Instant::now() > until || open.iter().all(|row| state(row) == "FAILED") {
            return Err(format!("queries do not finish: {open:?}"));
        }
        drop(db);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// Both

/// The runner over a database that the test keeps a hand on.
struct Shared<D>(Arc<Mutex<D>>);

#[async_trait]
impl<D: AsyncDB + Send> AsyncDB for Shared<D>
where
    D::Error: Send,
{
    type Error = D::Error;
    type ColumnType = D::ColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<D::ColumnType>, D::Error> {
        self.0.lock().await.run(sql).await
    }

    async fn shutdown(&mut self) {}

    fn error_sql_state(error: &D::Error) -> Option<String> {
        D::error_sql_state(error)
    }
}

type Connect<D> = Box<dyn FnMut() -> futures::future::Ready<Result<Shared<D>, CaseError>> + Send>;

fn runner<D>(db: &Arc<Mutex<D>>) -> Runner<Shared<D>, Connect<D>>
where
    D: AsyncDB<Error = CaseError, ColumnType = Kind> + Send + 'static,
{
    let db = Arc::clone(db);
    let connect: Connect<D> = Box::new(move || futures::future::ready(Ok(Shared(Arc::clone(&db)))));
    let mut runner = Runner::new(connect);
    runner.with_validator(same_rows);
    runner.with_column_validator(same_kinds);
    runner
}

/// The files that hold cases and their data are all there is under `tests/cases`.
#[test]
fn every_file_of_cases_is_read() {
    let directory: PathBuf = weir_tests::root().join("tests/cases");
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.is_dir() || path.extension().is_some_and(|e| e == "slt"), "{} is no case", path.display());
    }
}
