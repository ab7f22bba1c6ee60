//! A real `weir serve` process.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_postgres::SimpleQueryMessage;

use crate::{Row, sorted};

/// Longest that anything may take before a test gives up. Generous: no test's outcome depends on time.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The `weir` binary that was built with the tests.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/release/deps/<test> or target/release/<test>
    let path = test.ancestors().map(|dir| dir.join("weir")).find(|path| path.is_file());
    path.unwrap_or_else(|| panic!("no weir binary beside {}; run cargo build --release first", test.display()))
}

/// A server process with its data directory. Killed when dropped.
pub struct Weir {
    child: Option<Child>,
    /// `--data-dir`.
    pub data: PathBuf,
    /// Port of the SQL door.
    pub sql_port: u16,
    /// Port of the HTTP door.
    pub http_port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    started_in: Option<PathBuf>,
}

impl Weir {
    /// A server on `data` with free ports, not yet started.
    pub fn new(data: &Path) -> Self {
        Self {
            child: None,
            data: data.to_path_buf(),
            sql_port: free_port(),
            http_port: free_port(),
            arguments: Vec::new(),
            environment: Vec::new(),
            started_in: None,
        }
    }

    /// Adds command-line arguments.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|a| (*a).to_owned()));
        self
    }

    /// Starts in `directory`, from which relative paths count.
    #[must_use]
    pub fn started_in(mut self, directory: &Path) -> Self {
        self.started_in = Some(directory.to_path_buf());
        self
    }

    /// Changes an argument's value for later starts.
    pub fn set_argument(&mut self, name: &str, value: &str) {
        match self.arguments.iter().position(|argument| argument == name) {
            Some(at) if at + 1 < self.arguments.len() => value.clone_into(&mut self.arguments[at + 1]),
            _ => self.arguments.extend([name.to_owned(), value.to_owned()]),
        }
    }

    /// Sets an environment variable for later starts.
    pub fn env(&mut self, name: &str, value: &str) {
        self.environment.retain(|(n, _)| n != name);
        if !value.is_empty() {
            self.environment.push((name.to_owned(), value.to_owned()));
        }
    }

    /// Starts a server on `data` and waits until it accepts connections.
    pub fn start(data: &Path) -> Self {
        let mut weir = Self::new(data);
        weir.run();
        weir
    }

    /// Starts the process and waits until it accepts connections. Panics with its log when it ends instead.
    pub fn run(&mut self) {
        assert!(self.try_run(), "the server ended at its start:\n{}", self.log());
    }

    /// Starts the process; whether it came to accept connections (it may be killed on the way by a fail point).
    pub fn try_run(&mut self) -> bool {
        std::fs::create_dir_all(&self.data).unwrap();
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = Command::new(binary());
        if let Some(directory) = &self.started_in {
            command.current_dir(directory);
        }
        let child = command
            .arg("serve")
            .arg("--data-dir")
            .arg(&self.data)
            .args(["--listen-sql", &format!("127.0.0.1:{}", self.sql_port)])
            .args(["--listen-http", &format!("127.0.0.1:{}", self.http_port)])
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(n, v)| (n.as_str(), v.as_str())))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.has_ended() {
                return false;
            }
            if TcpStream::connect(("127.0.0.1", self.sql_port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not accept connections:\n{}", self.log());
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }

    /// Process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.as_ref().unwrap().id() as i32)
    }

    /// SIGKILL, and wait for the end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    /// SIGTERM, and the exit status.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the server runs");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        child.wait().unwrap()
    }

    /// Waits for the process to end by itself.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("the server runs");
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not end:\n{}", self.log());
    }

    fn log_file(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// Everything the process has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// A connection.
    pub async fn connect(&self) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let parameters = format!("host=127.0.0.1 port={} user=weir dbname=weir", self.sql_port);
        let (client, connection) = tokio_postgres::connect(&parameters, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Runs a script on a connection of its own; the rows of its last statement that answers any.
    pub async fn try_sql(&self, sql: &str) -> Result<Vec<Row>, tokio_postgres::Error> {
        let client = self.connect().await?;
        let messages = client.simple_query(sql).await?;
        let mut rows = Vec::new();
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(_) => rows.clear(),
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect());
                }
                _ => {}
            }
        }
        Ok(rows)
    }

    /// [`Weir::try_sql`], panicking on errors.
    pub async fn sql(&self, sql: &str) -> Vec<Row> {
        match self.try_sql(sql).await {
            Ok(rows) => rows,
            Err(error) => panic!("{sql}\n{}\n{}", describe(&error), self.log()),
        }
    }

    /// The error that `sql` must end with: SQLSTATE and the message with its hint.
    pub async fn sql_error(&self, sql: &str) -> (String, String) {
        match self.try_sql(sql).await {
            Ok(rows) => panic!("{sql}\nanswered {rows:?}, an error was expected"),
            Err(error) => (error.code().map_or(String::new(), |c| c.code().to_owned()), describe(&error)),
        }
    }

    /// Asks until the first cell of the answer is `expected`.
    pub async fn settled(&self, sql: &str, expected: &str) {
        self.until(sql, expected, |rows| rows.first().and_then(|row| row[0].as_deref()) == Some(expected)).await;
    }

    /// Asks until the answer is `expected`, in any order.
    pub async fn settled_rows(&self, sql: &str, expected: Vec<Row>) {
        let expected = sorted(expected);
        self.until(sql, &expected, |rows| sorted(rows.to_vec()) == expected).await;
    }

    async fn until(&self, sql: &str, expected: impl std::fmt::Debug, holds: impl Fn(&[Row]) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let rows = self.sql(sql).await;
            if holds(&rows) {
                return;
            }
            assert!(Instant::now() < until, "{sql}: {rows:?}, expected {expected:?}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until all queries have finished their input; `false` when the process ended meanwhile.
    pub async fn try_wait_finished(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.try_sql("SHOW QUERIES").await {
                Ok(rows) if rows.iter().all(|row| row[2].as_deref() == Some("FINISHED")) => return true,
                Ok(rows) if Instant::now() > until => panic!("queries do not finish: {rows:?}\n{}", self.log()),
                Err(error) if !self.has_ended() && Instant::now() > until => {
                    panic!("{}\n{}", describe(&error), self.log())
                }
                Err(_) if self.has_ended() => return false,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Waits until all queries have finished their input.
    pub async fn wait_finished(&mut self) {
        assert!(self.try_wait_finished().await, "the server ended:\n{}", self.log());
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        self.kill();
    }
}

/// SQLSTATE, message and hint of an error.
pub fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!(
            "{} {}{}{}",
            db.code().code(),
            db.message(),
            db.detail().map_or(String::new(), |d| format!("; {d}")),
            db.hint().map_or(String::new(), |h| format!("; hint: {h}")),
        ),
        None => error.to_string(),
    }
}

/// A port that nothing listens on at present, and that nothing else is likely to take: each is given out once, from below
/// the range that the system takes the ports of outgoing connections from. (A port of the system's choice may be the
/// local end of another test's connection by the time that the server wants it, or be chosen for two tests.)
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (first, count) = (12_000, 20_000);
    let start = std::process::id().wrapping_mul(997);
    loop {
        let n = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let port = (first + n) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
