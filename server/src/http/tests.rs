//! The door over a real socket, with a backend that needs no store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_planner::{Column, ErrorKind, Parsed, Relation, RelationKind, SqlError, SqlType, Watermark};

use super::backend::{Backend, Connection, ServerInfo};
use crate::engine::{CheckpointRow, IngestReceipt, InputInfo, OperatorInfo, QueryInfo};
use crate::session::Outcome;

/// A server with one view, one stream and one query, that notes what it is asked.
#[derive(Default)]
struct Fake {
    statements: Arc<Mutex<Vec<String>>>,
    ingested: Mutex<Vec<Ingested>>,
    ill: AtomicBool,
    /// Cancelled when the rows of an endless statement are dropped.
    dropped: CancellationToken,
}

#[derive(Clone)]
struct Ingested {
    content_type: String,
    client_key: Option<String>,
    body: Bytes,
}

struct FakeConnection {
    statements: Arc<Mutex<Vec<String>>>,
    dropped: CancellationToken,
}

fn batch(from: i64, rows: usize) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("name", DataType::Utf8, true)]);
    let n: Int64Array = (from..from + rows as i64).map(|n| (n % 2 == 0).then_some(n)).collect();
    let name: StringArray = (0..rows).map(|i| Some(format!("row\n{i}"))).collect();
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(n), Arc::new(name)]).unwrap()
}

fn rows(batches: impl Stream<Item = Result<RecordBatch, DataFusionError>> + Send + 'static, endless: bool) -> Outcome {
    let schema = batch(0, 0).schema();
    let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), batches));
    Outcome::Rows { schema, rows, tag: "SELECT", endless }
}

#[async_trait]
impl Connection for FakeConnection {
    async fn run(&mut self, statement: &Parsed, parameters: &[Value]) -> Result<Outcome, SqlError> {
        let sql = statement.sql.clone();
        self.statements.lock().push(if parameters.is_empty() { sql.clone() } else { format!("{sql} {parameters:?}") });
        let failure = || SqlError::new(ErrorKind::EVALUATION, "division by zero").hint("divide by something else");
        if sql.starts_with("SUBSCRIBE") {
            let held: DropGuard = self.dropped.clone().drop_guard();
            let endless = stream::iter([Ok(batch(0, 1))]).chain(stream::pending());
            let endless = endless.map(move |batch| {
                let _ = &held;
                batch
            });
            return Ok(rows(endless, true));
        }
        if sql.contains("missing") {
            return Err(SqlError::new(ErrorKind::UNDEFINED_RELATION, "relation \"missing\" does not exist").at(15));
        }
        if sql.contains("fails_at_once") {
            return Ok(rows(stream::iter([Err(DataFusionError::External(Box::new(failure())))]), false));
        }
        if sql.contains("fails_later") {
            let batches = [Ok(batch(0, 1)), Err(DataFusionError::External(Box::new(failure())))];
            return Ok(rows(stream::iter(batches), false));
        }
        if sql.starts_with("SELECT") {
            return Ok(rows(stream::iter([Ok(batch(0, 2)), Ok(batch(2, 1))]), false));
        }
        Ok(Outcome::Command { tag: "DONE".into(), notices: vec!["the state of v has no bound".into()] })
    }
}

fn relation(name: &str, kind: RelationKind) -> Arc<Relation> {
    Arc::new(Relation {
        name: name.into(),
        kind,
        columns: vec![
            Column::new("id", SqlType::BigInt, false),
            Column::new("at", SqlType::parse("timestamptz").unwrap(), true),
        ],
        key: vec![0],
        watermark: Some(Watermark { column: 1, expr: "at - INTERVAL '1 day'".into(), idle_timeout: None }),
        event_time: None,
        connector: [("connector", "file"), ("secret_access_key", "hush")].map(|(k, v)| (k.into(), v.into())).into(),
        query: None,
        reads: Vec::new(),
        append_only: true,
        options: Default::default(),
        definition_sql: format!("CREATE … {name}"),
    })
}

#[async_trait]
impl Backend for Fake {
    fn server(&self) -> ServerInfo {
        ServerInfo {
            version: "0.1.0".into(),
            store: "memory:".into(),
            listen_sql: None,
            listen_http: "127.0.0.1:1".into(),
        }
    }

    fn connect(&self) -> Box<dyn Connection> {
        Box::new(FakeConnection { statements: Arc::clone(&self.statements), dropped: self.dropped.clone() })
    }

    fn relations(&self) -> Vec<Arc<Relation>> {
        vec![relation("flights", RelationKind::Stream), relation("by_carrier", RelationKind::View)]
    }

    fn queries(&self) -> Vec<QueryInfo> {
        vec![QueryInfo {
            name: "by_carrier".into(),
            id: "by_carrier-1".into(),
            kind: "view".into(),
            state: "RUNNING".into(),
            reason: None,
            sql: "CREATE …".into(),
            rows_in: 27_004,
            rows_out: 16,
            late_rows: 2,
            bad_rows: 1,
            event_time_lag_ms: Some(1500),
            back_pressure: 0.25,
            last_checkpoint: Some(3),
            created_at_ms: 1,
        }]
    }

    fn operators(&self, query: &str) -> Option<Vec<OperatorInfo>> {
        (query == "by_carrier").then(|| {
            let metrics = weir_runtime::metrics::OperatorMetrics::default();
            metrics.rows_out.store(27_004, Ordering::Relaxed);
            metrics.busy_ns.store(1_500_000_000, Ordering::Relaxed);
            vec![OperatorInfo {
                uid: "source-\"1\"".into(),
                name: "Read flights".into(),
                kind: "source".into(),
                parallelism: 1,
                changelog: false,
                state_bound: "none".into(),
                inputs: vec![InputInfo { from: 0, exchange: "forward".into() }],
                columns: vec!["id bigint".into()],
                subtasks: vec![metrics.snapshot("source-\"1\"", "Read flights", 0)],
            }]
        })
    }

    fn checkpoints(&self, _query: Option<&str>) -> Result<Vec<CheckpointRow>, SqlError> {
        let row = |id, state: &str, took: i64| CheckpointRow {
            query: "by_carrier".into(),
            id,
            state: state.into(),
            url: Some(format!("file:///w/chk-{id}/_metadata")),
            triggered_at_ms: 1000,
            completed_at_ms: (state == "COMPLETED").then_some(1000 + took),
            alignment_ms: None,
            snapshot_ms: None,
            upload_ms: None,
            commit_ms: None,
            inline_bytes: Some(412),
            new_bytes: Some(0),
            shared_bytes: Some(0),
            total_bytes: Some(412),
            objects: Some(0),
            note: None,
        };
        Ok(vec![row(4, "IN_PROGRESS", 0), row(3, "COMPLETED", 250), row(2, "COMPLETED", 10), row(1, "FAILED", 0)])
    }

    fn health(&self) -> Result<(), SqlError> {
        match self.ill.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(SqlError::new(ErrorKind::FENCED, "another server owns the store")),
        }
    }

    async fn ingest(
        &self,
        stream: &str,
        content_type: &str,
        client_key: Option<&str>,
        body: Bytes,
    ) -> Result<IngestReceipt, SqlError> {
        if stream != "flights" {
            return Err(SqlError::new(ErrorKind::UNDEFINED_RELATION, format!("relation \"{stream}\" does not exist")));
        }
        let rows = body.split(|b| *b == b'\n').filter(|line| !line.is_empty()).count() as u64;
        let client_key = client_key.map(str::to_owned);
        self.ingested.lock().push(Ingested { content_type: content_type.into(), client_key, body });
        Ok(IngestReceipt { rows, bad_rows: 0, duplicate: false, position: 1 })
    }
}

/// A server on a port of its own, stopped when dropped.
struct Server {
    backend: Arc<Fake>,
    address: std::net::SocketAddr,
    _stop: DropGuard,
}

impl Server {
    async fn start() -> Self {
        let backend = Arc::new(Fake::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(super::serve_backend(backend.clone(), listener, stop.clone()));
        Self { backend, address, _stop: stop.drop_guard() }
    }

    /// Sends a request as it stands, reads the whole answer: status, head, body.
    async fn raw(&self, head: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let head = format!("{head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let split = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..split].to_vec()).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer[split + 4..].to_vec();
        let body = if head.contains("transfer-encoding: chunked") { unchunk(&body) } else { body };
        (status, head, body)
    }

    async fn ask(&self, method_path: &str, headers: &str, body: &str) -> (u16, Value) {
        let host = if headers.contains("host:") { String::new() } else { format!("\r\nhost: {}", self.address) };
        let (status, _, body) = self.raw(&format!("{method_path} HTTP/1.1{host}{headers}"), body.as_bytes()).await;
        let text = String::from_utf8(body).unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(&format!("GET {path}"), "", "").await
    }

    async fn sql(&self, body: Value, accept: &str) -> (u16, Value) {
        let headers = format!("\r\ncontent-type: application/json; charset=utf-8\r\naccept: {accept}");
        self.ask("POST /v1/sql", &headers, &body.to_string()).await
    }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
    }
    whole
}

#[tokio::test]
async fn sql_answers_one_document_for_all_statements() {
    let server = Server::start().await;
    let (status, answer) = server.sql(json!({"sql": "SELECT 1; SHOW QUERIES"}), "*/*").await;
    assert_eq!(status, 200);
    let columns = json!([{"name": "n", "type": "bigint"}, {"name": "name", "type": "text"}]);
    let rows = json!([{"n": 0, "name": "row\n0"}, {"n": null, "name": "row\n1"}, {"n": 2, "name": "row\n0"}]);
    let command = json!({"command": "DONE", "notices": ["the state of v has no bound"]});
    assert_eq!(answer, json!({"results": [{"columns": columns, "rows": rows}, command]}));
    let statements = server.backend.statements.lock().clone();
    assert_eq!(statements, ["SELECT 1", "SHOW QUERIES"]);
}

#[tokio::test]
async fn parameters_go_with_one_statement() {
    let server = Server::start().await;
    let (status, _) = server.sql(json!({"sql": "SELECT $1", "parameters": [7]}), "*/*").await;
    assert_eq!(status, 200);
    assert_eq!(server.backend.statements.lock().clone(), ["SELECT $1 [Number(7)]"]);
    let (status, answer) = server.sql(json!({"sql": "SELECT $1; SELECT 2", "parameters": [7]}), "*/*").await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("WEIR-4001")));
}

#[tokio::test]
async fn ndjson_and_sse_send_each_row() {
    let server = Server::start().await;
    let body = json!({"sql": "SELECT 1; SELECT fails_later"});
    let (status, text) = server.sql(body.clone(), "application/x-ndjson").await;
    let lines: Vec<Value> = text.as_str().unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(status, 200);
    let keys: Vec<&str> = lines.iter().map(|line| line.as_object().unwrap().keys().next().unwrap().as_str()).collect();
    assert_eq!(keys, ["columns", "row", "row", "row", "columns", "row", "error"]);
    assert_eq!(lines[2], json!({"row": {"n": null, "name": "row\n1"}}));
    assert_eq!(lines[6]["error"]["hint"], "divide by something else");
    assert_eq!(lines[6]["error"]["statement"], 2);

    let (_, text) = server.sql(json!({"sql": "SELECT 1; SHOW QUERIES", "format": "sse"}), "*/*").await;
    let events = text.as_str().unwrap().lines().filter_map(|line| line.strip_prefix("event: ")).collect::<Vec<_>>();
    assert_eq!(events, ["columns", "row", "row", "row", "command", "end"]);
    assert!(text.as_str().unwrap().contains("data: {\"n\":0,\"name\":\"row\\n0\"}"));
}

#[tokio::test]
async fn a_failed_statement_sets_the_status_while_it_still_can() {
    let server = Server::start().await;
    for accept in ["application/json", "application/x-ndjson", "text/event-stream"] {
        let (status, answer) = server.sql(json!({"sql": "SELECT * FROM missing"}), accept).await;
        assert_eq!(status, 404, "{accept}");
        assert_eq!(answer["error"]["code"], "WEIR-1101");
        assert_eq!(answer["error"]["position"], 15);
        let (status, answer) = server.sql(json!({"sql": "SELECT fails_at_once"}), accept).await;
        assert_eq!((status, &answer["error"]["sqlstate"]), (400, &json!("22000")), "{accept}");
    }
    let (status, answer) = server.sql(json!({"sql": "SELECT fails_later"}), "*/*").await;
    assert_eq!((status, &answer["error"]["message"]), (400, &json!("division by zero")));
    let (status, answer) = server.sql(json!({"sql": "SELEKT 1"}), "*/*").await;
    assert_eq!((status, &answer["error"]["sqlstate"]), (400, &json!("42601")));
}

#[tokio::test]
async fn an_endless_statement_streams_and_ends_with_its_client() {
    let server = Server::start().await;
    let (status, answer) = server.sql(json!({"sql": "SUBSCRIBE TO by_carrier"}), "application/json").await;
    assert_eq!((status, &answer["error"]["code"]), (406, &json!("WEIR-4008")));
    tokio::time::timeout(Duration::from_secs(10), server.backend.dropped.cancelled()).await.unwrap();

    let server = Server::start().await;
    let mut stream = BufReader::new(TcpStream::connect(server.address).await.unwrap());
    let body = json!({"sql": "SUBSCRIBE TO by_carrier"}).to_string();
    let head = format!(
        "POST /v1/sql HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: application/x-ndjson, */*\r\n\
         accept-encoding: gzip\r\ncontent-length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = String::new();
    while !seen.contains("\"row\"") {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_line(&mut seen)).await.unwrap().unwrap();
        assert!(read > 0, "the answer ended: {seen}");
    }
    assert!(!server.backend.dropped.is_cancelled());
    drop(stream);
    tokio::time::timeout(Duration::from_secs(10), server.backend.dropped.cancelled()).await.unwrap();
}

#[tokio::test]
async fn a_shutdown_tells_those_who_follow() {
    let backend = Arc::new(Fake::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let served = tokio::spawn(super::serve_backend(backend.clone(), listener, stop.clone()));
    let server = Server { backend, address, _stop: CancellationToken::new().drop_guard() };
    let following = async { server.sql(json!({"sql": "SUBSCRIBE TO by_carrier"}), "application/x-ndjson").await };
    let stopping = async {
        while server.backend.statements.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    let ((_, text), ()) = tokio::join!(following, stopping);
    assert!(text.as_str().unwrap().contains("the server is shutting down"), "{text}");
    tokio::time::timeout(Duration::from_secs(10), served).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_in_the_one_shape() {
    let server = Server::start().await;
    let json = "\r\ncontent-type: application/json";
    for (request, headers, body, status, code) in [
        ("POST /v1/sql", json, "{\"sql\": ", 400, "WEIR-4001"),
        ("POST /v1/sql", json, "{\"query\": \"SELECT 1\"}", 400, "WEIR-4001"),
        ("POST /v1/sql", json, "{\"sql\": \"  ;\"}", 400, "WEIR-4001"),
        ("POST /v1/sql", "\r\ncontent-type: text/plain", "SELECT 1", 415, "WEIR-4004"),
        ("POST /v1/sql", "", "{}", 415, "WEIR-4004"),
        ("GET /v1/sql", "", "", 405, "WEIR-4003"),
        ("GET /v1/quries", "", "", 404, "WEIR-4002"),
        ("DELETE /metrics", "", "", 405, "WEIR-4003"),
        ("POST /v1/sql", "\r\ncontent-type: application/json\r\norigin: https://evil.example", "{}", 403, "WEIR-4006"),
        ("GET /v1/queries", "\r\nhost: evil.example", "", 421, "WEIR-4007"),
        ("POST /v1/streams/flights", "\r\ncontent-type: application/x-www-form-urlencoded", "a=1", 415, "WEIR-4004"),
        ("POST /v1/streams/flights", "\r\ncontent-encoding: gzip", "x", 415, "WEIR-4004"),
        ("POST /v1/streams/flights", "\r\nidempotency-key: ", "{}", 400, "WEIR-4001"),
        ("POST /v1/streams/nothing", "", "{}", 404, "WEIR-1101"),
        ("GET /v1/relations/flihgts", "", "", 404, "WEIR-1101"),
        ("GET /v1/queries/by_carier/checkpoints", "", "", 404, "WEIR-1101"),
        ("DELETE /v1/queries/by_carrier?cascades=true", "", "", 400, "WEIR-4001"),
    ] {
        let (got, answer) = server.ask(request, headers, body).await;
        assert_eq!((got, &answer["error"]["code"]), (status, &json!(code)), "{request} {body}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    let (_, answer) = server.get("/v1/quries").await;
    assert_eq!(answer["error"]["hint"], "did you mean /v1/queries? /openapi.json describes all paths");
    let (_, answer) = server.get("/v1/relations/flihgts").await;
    assert_eq!(answer["error"]["hint"], "did you mean \"flights\"?");
    let (_, head, _) = server.raw(&format!("GET /v1/sql HTTP/1.1\r\nhost: {}", server.address), b"").await;
    assert!(head.contains("allow: post"), "{head}");
}

#[tokio::test]
async fn rows_are_taken_with_their_format_and_key() {
    let server = Server::start().await;
    let body = "{\"id\": 1}\n{\"id\": 2}\n";
    let (status, receipt) = server.ask("POST /v1/streams/flights", "\r\nidempotency-key: k-1", body).await;
    assert_eq!(status, 200);
    assert_eq!(receipt, json!({"rows": 2, "bad_rows": 0, "duplicate": false, "position": 1}));
    server.ask("POST /v1/streams/flights", "\r\ncontent-type: text/csv; header=present", "id\n1\n").await;
    let ingested = server.backend.ingested.lock().clone();
    let seen: Vec<_> = ingested.iter().map(|one| (one.content_type.as_str(), one.client_key.as_deref())).collect();
    assert_eq!(seen, [("application/x-ndjson", Some("k-1")), ("text/csv", None)]);
    assert_eq!(ingested[0].body, body.as_bytes());
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let server = Server::start().await;
    let length = super::body::LIMIT + 1;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head =
        format!("POST /v1/streams/flights HTTP/1.1\r\nhost: {}\r\ncontent-length: {length}\r\n\r\n", server.address);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 64];
    stream.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn resources_show_what_there_is() {
    let server = Server::start().await;
    let (_, relations) = server.get("/v1/relations").await;
    let flights = &relations["relations"][0];
    assert_eq!(flights["kind"], "stream");
    assert_eq!(flights["primary_key"], json!(["id"]));
    assert_eq!(flights["columns"][1]["type"], "timestamp with time zone");
    assert_eq!(flights["watermark"], json!({"column": "at", "expression": "at - INTERVAL '1 day'"}));
    assert_eq!(flights["options"], json!({"connector": "file", "secret_access_key": "****"}));
    let (_, query) = server.get("/v1/queries/by_carrier").await;
    assert_eq!(query["rows_in"], 27_004);
    let (_, graph) = server.get("/v1/queries/by_carrier/operators").await;
    assert_eq!(graph["operators"][0]["subtasks"][0]["rows_out"], 27_004);
    let (_, rows) = server.get("/v1/queries/by_carrier/checkpoints").await;
    assert_eq!(rows["checkpoints"][1]["url"], "file:///w/chk-3/_metadata");
    assert_eq!(server.get("/v1/server").await.1["store"], "memory:");
}

#[tokio::test]
async fn a_query_is_changed_by_its_statement() {
    let server = Server::start().await;
    assert_eq!(server.ask("POST /v1/queries/by_carrier/pause", "", "").await.1["name"], "by_carrier");
    assert_eq!(server.ask("POST /v1/queries/by_carrier/resume", "", "").await.0, 200);
    assert_eq!(server.ask("POST /v1/queries/by_carrier/checkpoint", "", "").await.1["id"], 3);
    let (_, done) = server.ask("DELETE /v1/queries/by_carrier?cascade=true", "", "").await;
    assert_eq!(done["command"], "DONE");
    let statements = server.backend.statements.lock().clone();
    assert_eq!(
        statements,
        [
            "ALTER QUERY by_carrier PAUSE",
            "ALTER QUERY by_carrier RESUME",
            "CHECKPOINT by_carrier",
            "DROP MATERIALIZED VIEW by_carrier CASCADE"
        ]
    );
}

#[tokio::test]
async fn health_is_told() {
    let server = Server::start().await;
    assert_eq!(server.get("/healthz").await, (200, json!({"status": "ok"})));
    server.backend.ill.store(true, Ordering::Relaxed);
    let (status, answer) = server.get("/healthz").await;
    assert_eq!((status, &answer["error"]["message"]), (503, &json!("another server owns the store")));
}

#[tokio::test]
async fn metrics_have_units_help_and_every_label() {
    let server = Server::start().await;
    let (status, text) = server.get("/metrics").await;
    let text = text.as_str().unwrap();
    assert_eq!(status, 200);
    for line in [
        "weir_queries{state=\"RUNNING\"} 1.0",
        "weir_query_state{query=\"by_carrier\",kind=\"view\",state=\"RUNNING\"} 1.0",
        "weir_query_rows_in_total{query=\"by_carrier\",kind=\"view\"} 27004",
        "weir_query_late_rows_total{query=\"by_carrier\",kind=\"view\"} 2",
        "weir_query_event_time_lag_seconds{query=\"by_carrier\",kind=\"view\"} 1.5",
        "weir_query_back_pressure_ratio{query=\"by_carrier\",kind=\"view\"} 0.25",
        "weir_operator_busy_seconds_total{query=\"by_carrier\",operator=\"source-\\\"1\\\"\",name=\"Read flights\",\
         subtask=\"0\"} 1.5",
        "weir_checkpoints_triggered_total{query=\"by_carrier\"} 4",
        "weir_checkpoint_last_id{query=\"by_carrier\"} 3.0",
        "weir_checkpoint_last_duration_seconds{query=\"by_carrier\"} 0.25",
        "weir_checkpoint_last_size_bytes{query=\"by_carrier\"} 412.0",
        "weir_healthy{} 1.0",
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
        let name = line.split(' ').nth(2).unwrap();
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no HELP");
    }
}

#[tokio::test]
async fn the_dashboard_is_embedded_and_cached_by_its_tag() {
    let server = Server::start().await;
    let host = format!("\r\nhost: {}", server.address);
    let (status, head, body) = server.raw(&format!("GET / HTTP/1.1{host}"), b"").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-security-policy: default-src 'self'"), "{head}");
    let html = String::from_utf8(body).unwrap();
    for path in ["/assets/app.js", "/assets/style.css", "/assets/icon.svg"] {
        assert!(html.contains(path), "{html}");
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let (status, _, body) =
        server.raw(&format!("GET /assets/app.js HTTP/1.1{host}\r\nif-none-match: {tag}"), b"").await;
    assert_eq!((status, body.len()), (304, 0));
}

#[test]
fn the_committed_openapi_document_is_current() {
    let document = serde_json::to_value(super::openapi()).unwrap();
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let ids: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    let distinct: std::collections::HashSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), distinct.len(), "generated clients name their functions by these: {ids:?}");
    let package = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let path = std::path::Path::new(&package).join("../docs/openapi.json");
    let current = serde_json::to_string_pretty(&super::openapi()).unwrap() + "\n";
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == current, "docs/openapi.json is not current: WEIR_BLESS=1 cargo test -p weir-server openapi");
}
