//! Refusals: one JSON shape and the HTTP status that fits the SQLSTATE.

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use weir_planner::SqlError;
use weir_planner::error::nearest;

/// What went wrong, and what to do next.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Problem {
    #[serde(skip)]
    status: StatusCode,
    /// Weir's own code, `WEIR-1001`, for searching the documentation.
    #[schema(example = "WEIR-1101")]
    code: &'static str,
    /// PostgreSQL's five-letter state.
    #[schema(example = "42P01")]
    sqlstate: &'static str,
    /// One sentence that names what was given.
    message: String,
    /// What to write instead.
    hint: Option<String>,
    /// More about the cause.
    detail: Option<String>,
    /// Where in the statements, in characters from 1.
    #[schema(value_type = Option<usize>)]
    position: Option<u32>,
    /// Which of several statements failed, from 1. Those before it were run.
    #[schema(value_type = Option<usize>)]
    statement: Option<u16>,
}

/// The body of every answer that is not a success.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ProblemBody {
    /// The error.
    pub error: Problem,
}

/// What goes wrong before a statement is reached: `SQLSTATE`, code and HTTP status.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    /// The body is not what the content type promises.
    Malformed,
    /// No such path.
    UnknownRoute,
    /// The path has other methods.
    WrongMethod,
    /// The content type is not one that is understood.
    ContentType,
    /// The body is too large.
    TooLarge,
    /// A browser asks on behalf of another site.
    ForeignOrigin,
    /// The request names another host.
    WrongHost,
    /// The rows cannot be sent in the format that was asked for.
    Format,
    /// The server stops.
    ShuttingDown,
    /// A fault of the server.
    Internal,
}

impl Refusal {
    fn parts(self) -> (&'static str, &'static str, StatusCode) {
        match self {
            Self::Malformed => ("08P01", "WEIR-4001", StatusCode::BAD_REQUEST),
            Self::UnknownRoute => ("08P01", "WEIR-4002", StatusCode::NOT_FOUND),
            Self::WrongMethod => ("08P01", "WEIR-4003", StatusCode::METHOD_NOT_ALLOWED),
            Self::ContentType => ("08P01", "WEIR-4004", StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::TooLarge => ("54000", "WEIR-4005", StatusCode::PAYLOAD_TOO_LARGE),
            Self::ForeignOrigin => ("42501", "WEIR-4006", StatusCode::FORBIDDEN),
            Self::WrongHost => ("42501", "WEIR-4007", StatusCode::MISDIRECTED_REQUEST),
            Self::Format => ("0A000", "WEIR-4008", StatusCode::NOT_ACCEPTABLE),
            Self::ShuttingDown => ("57P01", "WEIR-4009", StatusCode::SERVICE_UNAVAILABLE),
            Self::Internal => ("XX000", "WEIR-4900", StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

impl Problem {
    pub(super) fn new(refusal: Refusal, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (sqlstate, code, status) = refusal.parts();
        Self {
            status,
            code,
            sqlstate,
            message: message.into(),
            hint: Some(hint.into()).filter(|hint: &String| !hint.is_empty()),
            detail: None,
            position: None,
            statement: None,
        }
    }

    pub(super) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Names which of `all` statements failed; one statement alone needs no number.
    pub(super) fn in_statement(mut self, index: usize, all: usize) -> Self {
        self.statement = (all > 1).then(|| u16::try_from(index + 1).unwrap_or(u16::MAX));
        self
    }

    pub(super) fn unknown_route(path: &str, known: &[String]) -> Self {
        let hint = match nearest_route(path, known) {
            Some(near) => format!("did you mean {near}? /openapi.json describes all paths"),
            None => "/openapi.json describes all paths; the dashboard is at /".to_owned(),
        };
        Self::new(Refusal::UnknownRoute, format!("there is nothing at {path}"), hint)
    }

    pub(super) fn wrong_method(method: &Method, path: &str) -> Self {
        Self::new(
            Refusal::WrongMethod,
            format!("{path} does not answer {method}"),
            "the header Allow names the methods it answers",
        )
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }
}

/// The known route nearest to `path`: parts in braces match anything.
fn nearest_route<'a>(path: &str, known: &'a [String]) -> Option<&'a str> {
    let given: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    let fill = |route: &str| -> String {
        let parts = route.split('/').enumerate().map(|(i, part)| match given.get(i) {
            Some(value) if part.starts_with('{') => *value,
            _ => part,
        });
        parts.collect::<Vec<_>>().join("/")
    };
    let filled: Vec<String> = known.iter().map(|route| fill(route)).collect();
    let near = nearest(path.trim_end_matches('/'), filled.iter().map(String::as_str))?;
    filled.iter().position(|route| route == near).and_then(|at| known.get(at)).map(String::as_str)
}

/// The HTTP status of a SQLSTATE: by class, with the few states apart that HTTP has a status of its own for.
fn status_of(sqlstate: &str) -> StatusCode {
    match sqlstate {
        "42P01" | "42704" => return StatusCode::NOT_FOUND,
        "42P07" | "42710" => return StatusCode::CONFLICT,
        "42501" => return StatusCode::FORBIDDEN,
        "53100" => return StatusCode::INSUFFICIENT_STORAGE,
        "57014" => return StatusCode::REQUEST_TIMEOUT,
        _ => {}
    }
    match sqlstate.get(..2).unwrap_or_default() {
        "0A" | "21" | "22" | "26" | "34" | "42" => StatusCode::BAD_REQUEST,
        "23" | "25" | "2B" | "40" | "55" => StatusCode::CONFLICT,
        "28" => StatusCode::UNAUTHORIZED,
        "3D" => StatusCode::NOT_FOUND,
        "54" => StatusCode::PAYLOAD_TOO_LARGE,
        "08" | "53" | "57" | "58" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<SqlError> for Problem {
    fn from(error: SqlError) -> Self {
        Self {
            status: status_of(error.sqlstate),
            code: error.code,
            sqlstate: error.sqlstate,
            message: error.message,
            hint: error.hint,
            detail: error.detail,
            position: error.position.and_then(|position| u32::try_from(position).ok()),
            statement: None,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(ProblemBody { error: self })).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sqlstate_has_a_status() {
        for (sqlstate, status) in [
            ("42601", 400),
            ("0A000", 400),
            ("22P04", 400),
            ("42P01", 404),
            ("42P07", 409),
            ("2BP01", 409),
            ("23505", 409),
            ("55000", 409),
            ("42501", 403),
            ("57P01", 503),
            ("58030", 503),
            ("53100", 507),
            ("XX000", 500),
            ("?", 500),
        ] {
            assert_eq!(status_of(sqlstate).as_u16(), status, "{sqlstate}");
        }
    }

    #[test]
    fn the_nearest_route_is_named_through_its_parameters() {
        let known = ["/v1/sql", "/v1/queries/{name}/operators", "/v1/queries/{name}", "/metrics"].map(str::to_owned);
        assert_eq!(nearest_route("/v1/sqll", &known), Some("/v1/sql"));
        assert_eq!(nearest_route("/v1/queries/by_carrier/operator", &known), Some("/v1/queries/{name}/operators"));
        assert_eq!(nearest_route("/metric/", &known), Some("/metrics"));
        assert_eq!(nearest_route("/wp-login.php", &known), None);
    }
}
