//! `POST /v1/sql`: statements in, results out as one JSON document, as lines (NDJSON) or as events (SSE).

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::App;
use super::body;
use super::problem::{Problem, ProblemBody, Refusal};
use super::results::{self, Event};
use super::rows::ResultColumn;

/// Media type of one JSON document a line.
pub(super) const NDJSON: &str = "application/x-ndjson";
const SSE: &str = "text/event-stream";

/// Largest answer as one JSON document: it is held in memory until it is complete.
const DOCUMENT_LIMIT: usize = 64 << 20;

/// Statements to run.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SqlRequest {
    /// One or more statements, separated by semicolons. SET holds for those after it in the same request.
    #[schema(example = "SELECT * FROM departures ORDER BY mean_delay DESC LIMIT 5")]
    sql: String,
    /// Values of `$1`, `$2`, …; then `sql` is one statement. Numbers, booleans and null as JSON, every other type as a
    /// string in PostgreSQL's notation.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    parameters: Vec<Value>,
    /// Form of the answer. Without it the header Accept decides.
    #[serde(default)]
    format: Option<Format>,
}

/// Form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// One document with all results, when all are there.
    Json,
    /// One JSON document a line, each as soon as it is there.
    Ndjson,
    /// Server-sent events, each as soon as it is there.
    Sse,
}

/// The answer as one document.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct SqlAnswer {
    /// One a statement.
    results: Vec<StatementResult>,
}

/// What one statement answered: `columns` and `rows`, or `command` and `notices`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
enum StatementResult {
    /// Rows.
    Rows {
        /// The columns in order.
        columns: Vec<ResultColumn>,
        /// The rows: objects with a member a column. BIGINT and NUMERIC keep all their digits, so a parser whose
        /// numbers are doubles must read them as text; NaN and infinities are null.
        #[schema(value_type = Vec<Object>)]
        rows: Box<RawValue>,
    },
    /// A command.
    Command {
        /// The tag: `CREATE STREAM`, `INSERT 0 3`.
        command: String,
        /// What the user should know.
        notices: Vec<String>,
    },
}

/// A line of the NDJSON answer: one of the members. With SSE the member's name is the event's, and its value the data;
/// a last event `end` tells a complete answer from a broken connection.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase", untagged)]
pub(super) enum SqlLine {
    /// A statement answers with rows of these columns.
    Columns {
        /// The columns.
        columns: Vec<ResultColumn>,
    },
    /// A row of the statement whose columns came last.
    #[expect(dead_code, reason = "rows are put between these words as bytes; the OpenAPI document needs their shape")]
    Row {
        /// The row.
        #[schema(value_type = Object)]
        row: Box<RawValue>,
    },
    /// A statement answers with a command tag.
    Command {
        /// The tag.
        command: String,
        /// What the user should know.
        notices: Vec<String>,
    },
    /// A statement failed after the answer had begun; nothing follows.
    Failed(ProblemBody),
}

/// Run SQL statements.
///
/// The answer is one JSON document, or with `Accept: application/x-ndjson` a line for each row as it comes, or with
/// `Accept: text/event-stream` an event for each. SUBSCRIBE and SELECT … EMIT CHANGES never end and need one of the
/// latter two; closing the connection cancels them.
#[utoipa::path(
    post, operation_id = "run_sql",
    path = "/v1/sql", tag = "sql", request_body = SqlRequest,
    responses(
        (status = 200, description = "What the statements answered", content(
            (SqlAnswer = "application/json"), (SqlLine = "application/x-ndjson"), (String = "text/event-stream")
        )),
        (status = "4XX", description = "A statement was refused", body = ProblemBody),
        (status = "5XX", description = "The server or its store failed", body = ProblemBody),
    )
)]
pub(super) async fn run(State(app): State<App>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let request = parse(&headers, &body::read(&headers, body).await?)?;
    let format = request.format.unwrap_or_else(|| accepted(&headers));
    let statements = weir_planner::parse(&request.sql)?;
    if statements.is_empty() {
        return Err(malformed("\"sql\" holds no statement", "{\"sql\": \"SHOW QUERIES\"}"));
    }
    if statements.len() > 1 && !request.parameters.is_empty() {
        return Err(malformed(
            &format!("parameters were given with {} statements", statements.len()),
            "parameters go with one statement; send a request for each",
        ));
    }
    let mut events = results::start(&app.backend, statements, request.parameters, app.shutdown);
    if format == Format::Json {
        return document(events).await;
    }
    // An error of the first statement is still the answer's status.
    let first = match events.recv().await {
        Some(Event::Failed(problem)) => return Err(*problem),
        Some(first) => first,
        None => return Err(broken()),
    };
    let events = stream::iter([first]).chain(ReceiverStream::new(events));
    Ok(match format {
        Format::Sse => {
            Sse::new(server_sent(events)).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response()
        }
        _ => {
            let headers = [(CONTENT_TYPE, NDJSON), (CACHE_CONTROL, "no-cache")];
            (headers, Body::from_stream(events.map(|event| Ok::<_, Infallible>(lines(event))))).into_response()
        }
    })
}

fn parse(headers: &HeaderMap, body: &[u8]) -> Result<SqlRequest, Problem> {
    match body::media_type(headers).as_deref() {
        Some("application/json") => {}
        given => {
            return Err(Problem::new(
                Refusal::ContentType,
                match given {
                    Some(given) => format!("statements come as application/json, not as {given}"),
                    None => "statements come as application/json, and the request names no content type".to_owned(),
                },
                "curl -H 'content-type: application/json' -d '{\"sql\": \"SHOW QUERIES\"}' …/v1/sql",
            ));
        }
    }
    serde_json::from_slice(body).map_err(|error| {
        malformed(
            "the body is not a request to run SQL",
            "{\"sql\": \"SELECT …\", \"parameters\": [], \"format\": \"ndjson\"}",
        )
        .detail(error.to_string())
    })
}

fn malformed(message: &str, example: &str) -> Problem {
    Problem::new(Refusal::Malformed, message, example)
}

fn broken() -> Problem {
    Problem::new(Refusal::Internal, "the statement ended without an answer", "the server's log has the reason")
}

fn accepted(headers: &HeaderMap) -> Format {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",");
    // The first that is named wins; quality values are not needed to tell three forms apart.
    let named = accept.split(',').map(|part| part.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    for name in named {
        match name.as_str() {
            NDJSON | "application/ndjson" | "application/jsonl" => return Format::Ndjson,
            SSE => return Format::Sse,
            "application/json" => return Format::Json,
            _ => {}
        }
    }
    Format::Json
}

/// All results as one document.
async fn document(mut events: mpsc::Receiver<Event>) -> Result<Response, Problem> {
    let mut results: Vec<StatementResult> = Vec::new();
    let mut open: Option<(Vec<ResultColumn>, Vec<u8>)> = None;
    loop {
        let event = events.recv().await.ok_or_else(broken)?;
        if !matches!(event, Event::Rows(_))
            && let Some((columns, mut rows)) = open.take()
        {
            rows.push(b']');
            let rows = String::from_utf8(rows).ok().and_then(|rows| RawValue::from_string(rows).ok());
            results.push(StatementResult::Rows { columns, rows: rows.ok_or_else(broken)? });
        }
        match event {
            Event::Columns { endless: true, .. } => {
                return Err(Problem::new(
                    Refusal::Format,
                    "the rows of this statement never end, so they make no JSON document",
                    "ask with the header Accept: application/x-ndjson (or text/event-stream)",
                ));
            }
            Event::Columns { columns, .. } => open = Some((columns, vec![b'['])),
            Event::Rows(lines) => {
                let Some((_, rows)) = open.as_mut() else { return Err(broken()) };
                if rows.len() + lines.len() > DOCUMENT_LIMIT {
                    return Err(Problem::new(
                        Refusal::TooLarge,
                        format!("the answer is larger than {} MiB", DOCUMENT_LIMIT >> 20),
                        "ask with the header Accept: application/x-ndjson, or with a LIMIT",
                    ));
                }
                for line in each_line(&lines) {
                    if rows.len() > 1 {
                        rows.push(b',');
                    }
                    rows.extend_from_slice(line);
                }
            }
            Event::Command { tag, notices } => results.push(StatementResult::Command { command: tag, notices }),
            Event::Failed(problem) => return Err(*problem),
            Event::End => break,
        }
    }
    Ok(axum::Json(SqlAnswer { results }).into_response())
}

/// The lines of written rows; a line break inside of a value is escaped by JSON.
fn each_line(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// An event as lines of NDJSON.
fn lines(event: Event) -> Vec<u8> {
    let line = match event {
        Event::Columns { columns, .. } => SqlLine::Columns { columns },
        Event::Command { tag, notices } => SqlLine::Command { command: tag, notices },
        Event::Failed(problem) => SqlLine::Failed(ProblemBody { error: *problem }),
        Event::End => return Vec::new(),
        Event::Rows(rows) => {
            let mut out = Vec::with_capacity(rows.len() + rows.len() / 4);
            for row in each_line(&rows) {
                out.extend_from_slice(b"{\"row\":");
                out.extend_from_slice(row);
                out.extend_from_slice(b"}\n");
            }
            return out;
        }
    };
    let mut out = serde_json::to_vec(&line).unwrap_or_default();
    out.push(b'\n');
    out
}

/// Events as server-sent ones.
fn server_sent(events: impl Stream<Item = Event>) -> impl Stream<Item = Result<sse::Event, axum::Error>> {
    events.flat_map(|event| {
        let named = |name: &str| sse::Event::default().event(name);
        let sent = match event {
            Event::Columns { columns, .. } => vec![named("columns").json_data(columns)],
            Event::Command { tag, notices } => {
                vec![named("command").json_data(StatementResult::Command { command: tag, notices })]
            }
            Event::Failed(problem) => vec![named("error").json_data(*problem)],
            Event::End => vec![Ok(named("end").data("{}"))],
            Event::Rows(rows) => {
                each_line(&rows).map(|row| Ok(named("row").data(String::from_utf8_lossy(row)))).collect()
            }
        };
        stream::iter(sent)
    })
}

/// Runs one statement that a path stands for, and waits for its end.
pub(super) async fn run_one(app: &App, sql: &str) -> Result<(String, Vec<String>), Problem> {
    let statements = weir_planner::parse(sql)?;
    let mut events = results::start(&app.backend, statements, Vec::new(), app.shutdown.clone());
    let mut answer = (String::new(), Vec::new());
    loop {
        match events.recv().await.ok_or_else(broken)? {
            Event::Command { tag, notices } => answer = (tag, notices),
            Event::Columns { .. } | Event::Rows(_) => {}
            Event::Failed(problem) => return Err(*problem),
            Event::End => return Ok(answer),
        }
    }
}
