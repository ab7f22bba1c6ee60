//! `POST /v1/streams/{name}`: rows into a stream, durable when acknowledged.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};

use super::App;
use super::body;
use super::extract::Named;
use super::problem::{Problem, ProblemBody, Refusal};
use super::sql::NDJSON;
use crate::engine::IngestReceipt;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Longest Idempotency-Key: it is kept with the rows.
const KEY_LIMIT: usize = 255;

/// Put rows into a stream.
///
/// The body is NDJSON (also when no content type is given), a JSON array of objects or one object, or CSV with a header
/// line. Rows are durable when the answer arrives. A request that is repeated with the same Idempotency-Key writes
/// nothing twice.
#[utoipa::path(
    post, operation_id = "put_rows",
    path = "/v1/streams/{name}", tag = "streams",
    params(
        ("name" = String, Path, description = "The stream"),
        ("Idempotency-Key" = Option<String>, Header, description = "A name of this request, chosen by the client, at most 255 characters"),
    ),
    request_body(content(
        (String = "application/x-ndjson"), (Vec<Object> = "application/json"), (String = "text/csv")
    ), description = "The rows, at most 64 MiB"),
    responses(
        (status = 200, description = "The rows are durable", body = IngestReceipt),
        (status = 404, description = "There is no such stream", body = ProblemBody),
        (status = 413, description = "The body is larger than 64 MiB", body = ProblemBody),
        (status = 415, description = "The content type is not one of the three", body = ProblemBody),
        (status = "4XX", description = "The rows were refused", body = ProblemBody),
        (status = "5XX", description = "The server or its store failed; nothing is known to be written", body = ProblemBody),
    )
)]
pub(super) async fn ingest(
    State(app): State<App>,
    Named(name): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<IngestReceipt>, Problem> {
    let content_type = match body::media_type(&headers).as_deref() {
        None | Some(NDJSON | "application/ndjson" | "application/jsonl") => NDJSON,
        Some("application/json") => "application/json",
        Some("text/csv") => "text/csv",
        Some(other) => {
            return Err(Problem::new(
                Refusal::ContentType,
                format!("rows come as {NDJSON}, application/json or text/csv, not as {other}"),
                "curl -H 'content-type: application/x-ndjson' --data-binary @rows.ndjson …",
            ));
        }
    };
    let key = client_key(&headers)?;
    let body = body::read(&headers, body).await?;
    Ok(Json(app.backend.ingest(&name, content_type, key, body).await?))
}

fn client_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(&IDEMPOTENCY_KEY) else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= KEY_LIMIT => Ok(Some(key)),
        _ => Err(Problem::new(
            Refusal::Malformed,
            format!("the Idempotency-Key must be 1 to {KEY_LIMIT} visible ASCII characters"),
            "a UUID will do",
        )),
    }
}
