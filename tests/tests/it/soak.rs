//! Soak: queries over input that keeps coming, checkpoints each 200 ms into S3, and everything that can happen to the
//! process and its store, again and again. In the end every answer is exact, and nothing has leaked.
//!
//! A minute by default; `make soak` takes half an hour (`WEIR_SOAK_SECONDS`). `WEIR_SEED` gives another course of events.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use nix::sys::signal::{Signal, kill};
use object_store::ObjectStore;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use weir_tests::process::{binary, describe};
use weir_tests::{Row, Weir, assert_same_rows};

use super::flights::json_rows;
use super::s3::{S3, STORE};

const KEYS: u64 = 23;
const ROWS_A_FILE: u64 = 40;

const QUERIES: [&str; 5] = ["totals", "sizes", "windows", "named", "written"];

/// What the network does between the server and its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    Well,
    /// No connection can be made; those that stand go on.
    Refusing,
    /// Connections end in the middle: whether a request was carried out is not known.
    Cut,
    /// Nothing gets through, and nothing ends.
    Stalled,
}

/// A proxy before the S3 server.
struct Proxy {
    endpoint: String,
    network: watch::Sender<Network>,
}

impl Proxy {
    async fn before(endpoint: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = format!("http://{}", listener.local_addr().unwrap());
        let server = endpoint.strip_prefix("http://").unwrap().to_owned();
        let network = watch::Sender::new(Network::Well);
        let state = network.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if matches!(*state.borrow(), Network::Refusing | Network::Cut) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(pump(from_client, to_server, state.clone()));
                tokio::spawn(pump(from_server, to_client, state.clone()));
            }
        });
        Self { endpoint: own, network }
    }

    async fn troubled(&self, network: Network, how_long: Duration) {
        self.network.send_replace(network);
        tokio::time::sleep(how_long).await;
        self.network.send_replace(Network::Well);
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut network: watch::Receiver<Network>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = network.wait_for(|state| *state == Network::Cut) => return,
        };
        let Ok(read @ 1..) = read else { return };
        let state = network.wait_for(|state| *state != Network::Stalled).await.map(|state| *state);
        if !matches!(state, Ok(Network::Well | Network::Refusing)) || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// What is written to the input, and what must come of it.
fn row(id: u64) -> (u64, u64, String) {
    (id % KEYS, id * 7 % 101, at(id / 20))
}

/// The start of the row's window.
fn window(id: u64) -> String {
    at(id / 20 / 10 * 10)
}

/// So many seconds into the year.
fn at(second: u64) -> String {
    let (day, hour, minute) = (1 + second / 86_400, second / 3_600 % 24, second / 60 % 60);
    format!("2026-01-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

/// Files that come one after the other, each complete before it is seen, until told to end. Answers how many rows there are.
async fn feed(directory: PathBuf, end: Arc<AtomicBool>) -> u64 {
    let mut rows = 0;
    while !end.load(Ordering::Relaxed) {
        let lines: Vec<String> = (rows..rows + ROWS_A_FILE)
            .map(|id| {
                let (key, amount, at) = row(id);
                format!("{id},{key},{amount},{at}\n")
            })
            .collect();
        let hidden = directory.join("hidden");
        std::fs::write(&hidden, lines.concat()).unwrap();
        std::fs::rename(hidden, directory.join(format!("in/{rows:09}.csv"))).unwrap();
        rows += ROWS_A_FILE;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    rows
}

/// Changes a row of the table again and again. A change that was not acknowledged is given again, so that the last number
/// is known.
async fn change(parameters: String, end: Arc<AtomicBool>, acknowledged: Arc<AtomicU64>) {
    let mut number = 1;
    while !end.load(Ordering::Relaxed) {
        let changed = async {
            let (client, connection) = tokio_postgres::connect(&parameters, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let id = number % KEYS;
            client.simple_query(&format!("UPDATE account SET name = 'name {number}' WHERE id = {id}")).await
        };
        if tokio::time::timeout(Duration::from_secs(20), changed).await.is_ok_and(|changed| changed.is_ok()) {
            acknowledged.store(number, Ordering::Relaxed);
            number += 1;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn script(directory: &Path) -> String {
    let accounts: Vec<String> = (0..KEYS).map(|id| format!("({id}, 'name 0')")).collect();
    format!(
        "CREATE STREAM events (id BIGINT, key BIGINT, amount BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '5 seconds')
           WITH (connector = 'file', path = '{0}/in/*.csv', format = 'csv', mode = 'watch', watch.interval = '50ms');
         SET 'execution.checkpointing.interval' = '200ms';
         SET 'execution.checkpointing.tolerable-failed-checkpoints' = '1000';
         CREATE TABLE account (id BIGINT PRIMARY KEY, name TEXT);
         INSERT INTO account VALUES {1};
         CREATE MATERIALIZED VIEW totals AS SELECT key, count(*) AS n, sum(amount) AS total FROM events GROUP BY key;
         CREATE SINK written AS SELECT id, key FROM events WITH (connector = 'file', path = '{0}/out', format = 'json');
         SET 'execution.checkpointing.unaligned.enabled' = 'true';
         SET 'pipeline.channel-bytes' = '4kb';
         SET 'execution.checkpointing.data-inline-threshold' = '0';
         CREATE MATERIALIZED VIEW sizes AS SELECT n, count(*) AS keys FROM totals GROUP BY n;
         CREATE MATERIALIZED VIEW windows AS SELECT key, window_start, count(*) AS n
           FROM TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '10 seconds')
           GROUP BY key, window_start, window_end EMIT ON WINDOW CLOSE;
         CREATE MATERIALIZED VIEW named AS SELECT a.id, a.name, t.n FROM account a JOIN totals t ON a.id = t.key",
        directory.display(),
        accounts.join(", ")
    )
}

/// Files and threads that a process has open.
fn open_files(weir: &Weir) -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{}/{what}", weir.pid())).map_or(0, Iterator::count);
    (count("fd"), count("task"))
}

fn size_of(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => size_of(&entry.path()),
            // A file may be gone by now.
            _ => entry.metadata().map_or(0, |metadata| metadata.len()),
        })
        .sum()
}

struct Scene {
    weir: Weir,
    proxy: Proxy,
    random: SmallRng,
    /// How often the process has ended by itself.
    ended: usize,
}

impl Scene {
    fn start_again(&mut self) {
        let parallelism: u32 = self.random.random_range(1..=4);
        self.weir.set_argument("--parallelism", &parallelism.to_string());
        for _ in 0..20 {
            if self.weir.try_run() {
                return;
            }
        }
        panic!("the server does not start:\n{}", self.weir.log());
    }

    fn some_query(&mut self) -> &'static str {
        QUERIES[self.random.random_range(0..QUERIES.len())]
    }

    /// One misfortune. What statements answer meanwhile does not matter; what they leave behind does.
    async fn misfortune(&mut self) -> String {
        let how_long = Duration::from_millis(self.random.random_range(0..2_000));
        let query = self.some_query();
        match self.random.random_range(0..9) {
            0 | 1 => {
                self.weir.kill();
                self.start_again();
                "killed".to_owned()
            }
            2 => {
                // It may find out that another has the store, and say so; there is none.
                let _ = self.weir.terminate();
                self.start_again();
                "stopped and started".to_owned()
            }
            3 => {
                kill(self.weir.pid(), Signal::SIGSTOP).unwrap();
                tokio::time::sleep(how_long).await;
                kill(self.weir.pid(), Signal::SIGCONT).unwrap();
                format!("paused for {how_long:?}")
            }
            4 => {
                self.proxy.troubled(Network::Refusing, how_long).await;
                format!("no connections for {how_long:?}")
            }
            5 => {
                self.proxy.troubled(Network::Cut, how_long / 4).await;
                format!("connections cut for {:?}", how_long / 4)
            }
            6 => {
                self.proxy.troubled(Network::Stalled, how_long).await;
                format!("network stalled for {how_long:?}")
            }
            7 => {
                let _ = self.weir.try_sql(&format!("ALTER QUERY {query} PAUSE")).await;
                tokio::time::sleep(how_long / 2).await;
                let _ = self.weir.try_sql(&format!("ALTER QUERY {query} RESUME")).await;
                format!("{query} paused and resumed")
            }
            _ => {
                let name = format!("s{}", self.random.random_range(0..1_000_000));
                let _ = self.weir.try_sql(&format!("CREATE SAVEPOINT {name} FOR QUERY {query}")).await;
                let _ = self.weir.try_sql(&format!("DROP SAVEPOINT IF EXISTS {name} FOR QUERY {query}")).await;
                format!("savepoint of {query}")
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_exact_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let how_long = Duration::from_secs(number("WEIR_SOAK_SECONDS").unwrap_or(60));
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("in")).unwrap();
    let s3 = S3::start().await;
    let proxy = Proxy::before(&s3.endpoint).await;
    let mut weir = s3.weir(&directory.path().join("data"));
    weir.env("AWS_ENDPOINT_URL", &proxy.endpoint);
    weir.run();
    weir.sql(&script(directory.path())).await;
    let parameters = format!("host=127.0.0.1 port={} user=weir dbname=weir connect_timeout=5", weir.sql_port);
    let random = SmallRng::seed_from_u64(number("WEIR_SEED").unwrap_or(200));
    let mut scene = Scene { weir, proxy, random, ended: 0 };

    let (end, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let fed = tokio::spawn(feed(directory.path().to_path_buf(), Arc::clone(&end)));
    let changed = tokio::spawn(change(parameters, Arc::clone(&end), Arc::clone(&acknowledged)));
    let until = Instant::now() + how_long;
    let mut course = Vec::new();
    while Instant::now() < until {
        let moment = Duration::from_millis(scene.random.random_range(0..1_500));
        tokio::time::sleep(moment).await;
        course.push(scene.misfortune().await);
        if scene.weir.has_ended() {
            scene.ended += 1;
            scene.start_again();
        }
    }
    end.store(true, Ordering::Relaxed);
    let rows = fed.await.unwrap();
    changed.await.unwrap();
    let weir = &mut scene.weir;
    if weir.has_ended() {
        weir.run();
    }
    eprintln!("soak: {} misfortunes, {rows} rows, {} changes", course.len(), acknowledged.load(Ordering::Relaxed));

    for query in QUERIES {
        let resumed = weir.try_sql(&format!("ALTER QUERY {query} RESUME")).await;
        assert!(resumed.is_ok(), "{query}: {}\n{course:#?}", describe(&resumed.unwrap_err()));
    }
    weir.settled("SELECT sum(n) FROM totals", &rows.to_string()).await;
    weir.settled("SELECT sum(n * keys) FROM sizes", &rows.to_string()).await;
    weir.settled("SELECT rows_in FROM weir.queries WHERE name = 'windows'", &rows.to_string()).await;
    weir.settled("SELECT rows_out FROM weir.queries WHERE name = 'written'", &rows.to_string()).await;
    weir.settled("SELECT sum(n) FROM named", &rows.to_string()).await;

    let (mut totals, mut windows) = (BTreeMap::<u64, (u64, u64)>::new(), BTreeMap::<(u64, String), u64>::new());
    let mut written = Vec::new();
    for id in 0..rows {
        let (key, amount, _) = row(id);
        let total = totals.entry(key).or_default();
        *total = (total.0 + 1, total.1 + amount);
        *windows.entry((key, window(id))).or_default() += 1;
        written.push(vec![Some(id.to_string()), Some(key.to_string())]);
    }
    let cells = |cells: &[String]| -> Row { cells.iter().cloned().map(Some).collect() };
    let expected = |view: &str| -> Vec<Row> {
        match view {
            "totals" => {
                totals.iter().map(|(k, (n, t))| cells(&[k.to_string(), n.to_string(), t.to_string()])).collect()
            }
            "windows" => windows.iter().map(|((k, w), n)| cells(&[k.to_string(), w.clone(), n.to_string()])).collect(),
            _ => {
                // The last acknowledged change of each row.
                let last = acknowledged.load(Ordering::Relaxed);
                let name = |key: u64| (1..=last).rev().find(|number| number % KEYS == key).unwrap_or(0);
                let row = |(k, (n, _)): (&u64, &(u64, u64))| {
                    cells(&[k.to_string(), format!("name {}", name(*k)), n.to_string()])
                };
                totals.iter().map(row).collect()
            }
        }
    };
    weir.sql("ALTER QUERY windows STOP WITH SAVEPOINT last DRAIN; DROP SAVEPOINT last FOR QUERY windows").await;
    weir.settled("SELECT state FROM weir.queries WHERE name = 'windows'", "FINISHED").await;
    for view in ["totals", "windows"] {
        assert_same_rows(view, weir.sql(&format!("SELECT * FROM {view}")).await, expected(view));
    }
    // One change may have been carried out without an acknowledgement.
    let named = weir.sql("SELECT * FROM named").await;
    let last = acknowledged.load(Ordering::Relaxed);
    if weir_tests::rows::difference(named.clone(), expected("named")).is_some() {
        acknowledged.store(last + 1, Ordering::Relaxed);
        assert_same_rows("named", named, expected("named"));
    }
    weir.sql("CHECKPOINT written").await;
    assert_same_rows("written", json_rows(&directory.path().join("out")), written);

    // Nothing has leaked.
    let (files, threads) = open_files(weir);
    assert!(files < 1_000 && threads < 100, "{files} files and {threads} threads are open");
    let disk = size_of(&directory.path().join("data/state"));
    assert!(disk < 64 << 20, "{disk} bytes of state on the local disk");
    assert!(!weir.log().contains("panicked"), "{}", weir.log());
    assert_eq!(scene.ended, 0, "the server ended by itself\n{course:#?}\n{}", weir.log());
    assert!(weir.terminate().success(), "{}", weir.log());
    let listed: Vec<_> = s3.objects().list(None).try_collect().await.unwrap();
    let of_jobs = listed.iter().filter(|object| object.location.as_ref().contains("/jobs/")).count();
    assert!(of_jobs < 300, "{of_jobs} objects of checkpoints");
    let verified =
        Command::new(binary()).args(["checkpoint", "verify", STORE]).envs(s3.environment()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&verified.stdout), String::from_utf8_lossy(&verified.stderr));
    assert!(verified.status.success(), "{text}");
}
