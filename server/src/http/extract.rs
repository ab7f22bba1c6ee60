//! Parts of the address, refused in the one shape of errors when they cannot be read.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query};

use super::problem::{Problem, Refusal};

/// A part of the path.
#[derive(FromRequestParts)]
#[from_request(via(Path), rejection(Problem))]
pub(super) struct Named<T>(pub(super) T);

/// What follows the question mark.
#[derive(FromRequestParts)]
#[from_request(via(Query), rejection(Problem))]
pub(super) struct Asked<T>(pub(super) T);

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::new(Refusal::Malformed, "the path cannot be read", "percent-encode names as UTF-8")
            .detail(rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(Refusal::Malformed, "the query string cannot be read", "/openapi.json describes what each path takes")
            .detail(rejection.body_text())
    }
}
