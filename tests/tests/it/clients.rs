//! Real clients: psql, psycopg 3, SQLAlchemy.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weir_tests::process::PATIENCE;
use weir_tests::{Weir, root};

const SETUP: &str =
    "CREATE TABLE item (id INT PRIMARY KEY, name TEXT NOT NULL, price NUMERIC(8,2) DEFAULT 1.5, seen TIMESTAMPTZ);
    INSERT INTO item (id, name) VALUES (1, 'one'), (2, 'two'), (3, 'three');
    CREATE STREAM log (line TEXT, at TIMESTAMPTZ, WATERMARK FOR at AS at - INTERVAL '5 seconds');
    CREATE MATERIALIZED VIEW names AS SELECT name, count(*) AS n FROM item GROUP BY name;";

pub(super) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a service script prints.
fn service(script: &str) -> String {
    let output = Command::new(root().join("tests/services").join(script)).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{script}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// psql on a server, reading no start-up file.
pub(super) fn psql(weir: &Weir) -> Command {
    let mut command = Command::new(service("psql.sh"));
    let port = weir.sql_port.to_string();
    command.args(["-X", "-h", "127.0.0.1", "-p", &port, "-U", "weir", "-d", "weir", "-v", "ON_ERROR_STOP=1"]);
    command.env("PGCONNECT_TIMEOUT", "10").env("PAGER", "").env("TERM", "dumb");
    command
}

fn ok(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn one(weir: &Weir, statement: &str) -> String {
    let mut command = psql(weir);
    command.args(["-c", statement]);
    ok(command)
}

async fn start() -> (tempfile::TempDir, Weir) {
    let directory = tempfile::tempdir().unwrap();
    let weir = Weir::start(&directory.path().join("data"));
    weir.sql(SETUP).await;
    (directory, weir)
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_describes_relations() {
    let (_directory, weir) = start().await;
    let list = one(&weir, "\\d");
    for line in ["public | item ", "public | names ", "public | log "] {
        assert!(list.contains(line), "{line}: {list}");
    }
    let kind = |name: &str| list.lines().find(|l| l.contains(&format!(" {name} "))).unwrap().to_owned();
    assert!(kind("item").contains("| table "), "{list}");
    assert!(kind("names").contains("| materialized view "), "{list}");

    let tables = one(&weir, "\\dt");
    assert!(tables.contains(" item ") && !tables.contains(" names "), "{tables}");

    let item = one(&weir, "\\d item");
    let column = |name: &str| {
        item.lines()
            .find(|l| l.trim_start().starts_with(&format!("{name} ")))
            .unwrap_or_else(|| panic!("{name}: {item}"))
            .to_owned()
    };
    assert!(column("id").contains("| integer ") && column("id").contains("not null"), "{item}");
    assert!(column("name").contains("| text ") && column("name").contains("not null"), "{item}");
    assert!(column("price").contains("| numeric(8,2) ") && column("price").contains("1.5"), "{item}");
    assert!(column("seen").contains("| timestamp with time zone ") && !column("seen").contains("not null"), "{item}");
    assert!(item.contains("PRIMARY KEY") && item.contains("(id)"), "{item}");
    let view = one(&weir, "\\d names");
    assert!(view.contains("bigint") && view.contains("Materialized view"), "{view}");
    let missing = psql(&weir).args(["-c", "\\d nothing"]).output().unwrap();
    assert!(text(&missing).contains("Did not find any relation named \"nothing\""), "{}", text(&missing));
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_runs_statements_scripts_and_shows_errors() {
    let (_directory, weir) = start().await;
    let rows = one(&weir, "SELECT id, name, price, seen FROM item ORDER BY id");
    assert!(rows.contains(" id | name  | price | seen "), "{rows}");
    assert!(rows.contains("  1 | one   |  1.50 | "), "{rows}");
    assert!(rows.contains("(3 rows)"), "{rows}");
    let mut quiet = psql(&weir);
    quiet.args([
        "-A",
        "-t",
        "-q",
        "-c",
        "SELECT count(*) FROM item",
        "-c",
        "DELETE FROM item WHERE id = 3",
        "-c",
        "SELECT max(id) FROM item",
    ]);
    assert_eq!(ok(quiet), "3\n2\n");
    assert_eq!(one(&weir, "INSERT INTO item (id, name) VALUES (4, 'four'), (5, 'five')"), "INSERT 0 2\n");
    assert_eq!(one(&weir, "UPDATE item SET name = 'x' WHERE id > 3"), "UPDATE 2\n");
    assert!(one(&weir, "SHOW QUERIES").contains("names"));
    assert!(one(&weir, "\\conninfo").contains("\"weir\""));

    let failed = psql(&weir).args(["-c", "SELECT nme FROM item"]).output().unwrap();
    let message = text(&failed);
    assert!(!failed.status.success());
    assert!(message.contains("ERROR:") && message.contains("nme") && message.contains("HINT:"), "{message}");

    // A script, with errors that do not end it.
    let mut script = psql(&weir)
        .args(["-v", "ON_ERROR_STOP=0", "-A", "-t", "-q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    script.stdin.take().unwrap().write_all(b"SELECT 'a;b' AS x; -- a comment; here\nSELEC 1;\n\\set n 4\nSELECT name FROM item WHERE id = :n;\n/* more */ SELECT 2\n;\n").unwrap();
    let output = script.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a;b\nx\n2\n", "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("SELEC"), "{}", text(&output));
}

/// FETCH_COUNT makes psql declare a cursor in a transaction and fetch from it.
#[tokio::test(flavor = "multi_thread")]
async fn psql_fetches_in_portions() {
    let (_directory, weir) = start().await;
    let values: Vec<String> = (10..1_010).map(|i| format!("({i}, 'n{i}')")).collect();
    weir.sql(&format!("INSERT INTO item (id, name) VALUES {}", values.join(", "))).await;
    let mut command = psql(&weir);
    command.args(["-v", "FETCH_COUNT=7", "-A", "-t", "-c", "SELECT id FROM item ORDER BY id"]);
    let rows: Vec<i32> = ok(command).lines().map(|line| line.parse().unwrap()).collect();
    let expected: Vec<i32> = (1..4).chain(10..1_010).collect();
    assert_eq!(rows, expected);
}

/// Runs a statement that never ends, interrupts psql once what it printed is enough, and answers what it said.
///
/// psql collects what it writes to a pipe, and COPY does not make it write before its end: line by line comes what has
/// come.
fn interrupted(weir: &Weir, script: &str, enough: impl Fn(&str) -> bool) -> String {
    let psql = psql(weir);
    let mut child = Command::new("stdbuf")
        .arg("-oL")
        .arg(psql.get_program())
        .args(psql.get_args())
        .args(["-A", "-t"])
        .env("PAGER", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(script.as_bytes()).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut seen = String::new();
    let mut buffer = [0u8; 4096];
    while !enough(&seen) {
        let n = stdout.read(&mut buffer).unwrap();
        assert!(n > 0, "{seen}\n{}", text(&child.wait_with_output().unwrap()));
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    drop(stdin);
    // Were the cancel request not heard, psql would never end.
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "psql goes on after Ctrl-C");
        std::thread::sleep(Duration::from_millis(10));
    }
    text(&child.wait_with_output().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_watches_until_it_is_interrupted() {
    let (_directory, weir) = start().await;
    interrupted(&weir, "SELECT 'rou' || 'nd' \\watch 0.1\n", |seen| seen.matches("round").count() >= 3);
    assert!(one(&weir, "SELECT 1").contains("(1 row)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn control_c_ends_a_subscription() {
    let (_directory, weir) = start().await;
    let said = interrupted(&weir, "COPY (SUBSCRIBE TO item) TO STDOUT;\n", |seen| seen.lines().count() >= 3);
    assert!(said.contains("canceling statement due to user request"), "{said}");
    assert!(one(&weir, "SELECT 1").contains("(1 row)"));
}

/// Statements that never end, for computing or for waiting: each hears the cancel request of its connection, tells its
/// client, and the connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_request_ends_what_computes_and_what_waits() {
    let (_directory, weir) = start().await;
    let endless = "SELECT a.value FROM generate_series(1, 1000000) a JOIN generate_series(1, 1000000) b \
                   ON a.value % 3 = b.value % 3 ORDER BY a.value + b.value LIMIT 5";
    for statement in [endless, "SUBSCRIBE TO item", "SELECT name FROM item EMIT CHANGES"] {
        let client = weir.connect().await.unwrap();
        let token = client.cancel_token();
        let running = client.simple_query(statement);
        tokio::pin!(running);
        // A request that comes before the statement has begun cancels nothing: it is repeated.
        let error = loop {
            tokio::select! {
                result = &mut running => break result.unwrap_err(),
                () = tokio::time::sleep(Duration::from_millis(100)) => {
                    token.cancel_query(tokio_postgres::NoTls).await.unwrap();
                }
            }
        };
        assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{statement}: {error}");
        // A request that was late may have met this statement, which is then asked once more.
        let goes_on = match client.simple_query("SELECT 'goes on'").await {
            Err(late) if late.code().is_some_and(|code| code.code() == "57014") => {
                client.simple_query("SELECT 'goes on'").await
            }
            other => other,
        };
        assert!(goes_on.is_ok(), "{statement}");
    }
}

fn python(weir: &Weir, script: &str) {
    let python = format!("{}/python", service("python.sh"));
    let script = root().join("tests/clients").join(script);
    let output = Command::new(python).arg(script).arg(weir.sql_port.to_string()).output().unwrap();
    assert!(output.status.success(), "{}\n{}", text(&output), weir.log());
    assert!(text(&output).contains("all as it should be"), "{}", text(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn psycopg_does_what_it_does_with_postgres() {
    let directory = tempfile::tempdir().unwrap();
    let weir = Weir::start(&directory.path().join("data"));
    tokio::task::block_in_place(|| python(&weir, "psycopg_client.py"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlalchemy_connects_and_reflects() {
    let directory = tempfile::tempdir().unwrap();
    let weir = Weir::start(&directory.path().join("data"));
    tokio::task::block_in_place(|| python(&weir, "sqlalchemy_client.py"));
}
