//! Request bodies: read whole, within a limit, in a format that is understood.

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use super::problem::{Problem, Refusal};

/// Largest body of a request.
pub(super) const LIMIT: usize = 64 << 20;

/// The media type of a request, lower-cased, without its parameters; `None` when the client named none.
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().unwrap_or("?");
    Some(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// Reads a body of at most [`LIMIT`] bytes.
pub(super) async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    if let Some(encoding) = headers.get(CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        return Err(Problem::new(
            Refusal::ContentType,
            format!("bodies with Content-Encoding {} are not read", encoding.to_str().unwrap_or("?")),
            "send the body as it is; for compressed files use a stream with connector = 'file'",
        ));
    }
    let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > LIMIT as u64) {
        return Err(too_large());
    }
    let mut stream = body.into_data_stream();
    let mut bytes = BytesMut::with_capacity(declared.map_or(0, |length| length as usize));
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| {
            Problem::new(Refusal::Malformed, "the body broke off before its end", "send it again")
                .detail(error.to_string())
        })?;
        if bytes.len() + part.len() > LIMIT {
            return Err(too_large());
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.freeze())
}

fn too_large() -> Problem {
    Problem::new(
        Refusal::TooLarge,
        format!("the body is larger than {} MiB", LIMIT >> 20),
        "send it in several requests, each with an Idempotency-Key of its own",
    )
}
