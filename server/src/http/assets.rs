//! The dashboard, built from `web/` and embedded: a newcomer needs no Node.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::App;

struct Asset {
    path: &'static str,
    media_type: &'static str,
    content: &'static str,
}

static ASSETS: [Asset; 4] = [
    Asset { path: "/", media_type: "text/html; charset=utf-8", content: include_str!("../../../web/dist/index.html") },
    Asset {
        path: "/assets/app.js",
        media_type: "text/javascript; charset=utf-8",
        content: include_str!("../../../web/dist/app.js"),
    },
    Asset {
        path: "/assets/style.css",
        media_type: "text/css; charset=utf-8",
        content: include_str!("../../../web/dist/style.css"),
    },
    Asset {
        path: "/assets/icon.svg",
        media_type: "image/svg+xml",
        content: include_str!("../../../web/dist/icon.svg"),
    },
];

/// One tag for all: they come from one build.
static TAG: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    for asset in &ASSETS {
        asset.content.hash(&mut hasher);
    }
    format!("\"{:016x}\"", hasher.finish())
});

pub(super) fn router() -> Router<App> {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(move |headers: HeaderMap| async move { answer(asset, &headers) }))
    })
}

fn answer(asset: &'static Asset, headers: &HeaderMap) -> Response {
    let tag = TAG.as_str();
    // A new server may bring a new dashboard: ask each time, answer with 304.
    let cached = [(ETAG, tag), (CACHE_CONTROL, "no-cache")];
    if headers.get(IF_NONE_MATCH).is_some_and(|given| given.as_bytes().ends_with(tag.as_bytes())) {
        return (StatusCode::NOT_MODIFIED, cached).into_response();
    }
    (cached, [(CONTENT_TYPE, asset.media_type)], asset.content).into_response()
}

/// Puts the headers on every answer that keep a browser from being turned against the server.
pub(super) async fn head(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
