//! The HTTP door: REST under `/v1`, metrics, health, the OpenAPI document and the dashboard.
//!
//! ```text
//!   request ─► guard.rs (who may ask) ─► a handler ─► backend.rs ─► Session, Engine
//!                                        │  sql.rs       run statements, rows as JSON, NDJSON or SSE
//!                                        │  ingest.rs    rows into a stream
//!                                        │  catalog.rs   relations, the server
//!                                        │  queries.rs   queries, dataflows, checkpoints
//!                                        │  metrics.rs   Prometheus, health
//!                                        └  assets.rs    the dashboard
//!   every refusal ─► problem.rs ─► {"error": {code, sqlstate, message, hint, detail, position}}
//! ```

mod assets;
mod backend;
mod body;
mod catalog;
mod extract;
mod guard;
mod ingest;
mod metrics;
mod problem;
mod queries;
mod results;
mod rows;
mod sql;
#[cfg(test)]
mod tests;

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::{Json, Router, middleware};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{DefaultPredicate, NotForContentType, Predicate};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::engine::Engine;
use backend::Backend;
use guard::Guard;
use problem::Problem;

/// How long connections may go on after a shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(5);

/// What handlers share.
#[derive(Clone)]
struct App {
    backend: Arc<dyn Backend>,
    shutdown: CancellationToken,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Weir",
        description = "Streaming SQL over HTTP. Every statement that psql can run runs under `POST /v1/sql`; the other \
                       paths are the same things in the shape of resources. Errors are always \
                       `{\"error\": {…}}` with PostgreSQL's SQLSTATE, Weir's own code, a sentence and a hint.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "sql", description = "Run statements"),
        (name = "streams", description = "Put rows into streams"),
        (name = "catalog", description = "What is defined"),
        (name = "queries", description = "What runs"),
        (name = "server", description = "The server itself"),
    )
)]
struct Document;

fn documented() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sql::run))
        .routes(routes!(ingest::ingest))
        .routes(routes!(catalog::list))
        .routes(routes!(catalog::one))
        .routes(routes!(queries::list))
        .routes(routes!(queries::one, queries::remove))
        .routes(routes!(queries::operators))
        .routes(routes!(queries::checkpoints))
        .routes(routes!(queries::pause))
        .routes(routes!(queries::resume))
        .routes(routes!(queries::checkpoint))
        .routes(routes!(catalog::server))
        .routes(routes!(metrics::metrics))
        .routes(routes!(metrics::health))
}

/// The OpenAPI document of the REST interface, as `/openapi.json` and `docs/openapi.json` have it.
pub fn openapi() -> utoipa::openapi::OpenApi {
    documented().split_for_parts().1
}

fn router(app: App, guard: Guard) -> Router {
    let (documented, document) = documented().split_for_parts();
    let known: Arc<[String]> =
        document.paths.paths.keys().cloned().chain(["/openapi.json".to_owned(), "/".to_owned()]).collect();
    let compressed = DefaultPredicate::new().and(NotForContentType::const_new(sql::NDJSON));
    documented
        .route("/openapi.json", axum::routing::get(move || async move { Json(document) }))
        .merge(assets::router())
        .method_not_allowed_fallback(wrong_method)
        .fallback(move |uri: Uri| async move { Problem::unknown_route(uri.path(), &known) })
        .layer(middleware::from_fn(assets::head))
        .layer(CompressionLayer::new().compress_when(compressed))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .with_state(app)
}

async fn wrong_method(method: Method, uri: Uri, _request: Request) -> Problem {
    Problem::wrong_method(&method, uri.path())
}

/// Serves HTTP on `listener` until `shutdown`; answers that are under way then have a few seconds to end.
pub async fn serve(
    engine: Arc<Engine>,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> Result<(), std::io::Error> {
    let backend = backend::EngineBackend::new(engine, listener.local_addr()?);
    serve_backend(Arc::new(backend), listener, shutdown).await
}

async fn serve_backend(
    backend: Arc<dyn Backend>,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> Result<(), std::io::Error> {
    let guard = Guard::for_address(listener.local_addr()?);
    let router = router(App { backend, shutdown: shutdown.clone() }, guard);
    let served = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let drained = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        result = served.into_future() => result,
        () = drained => Ok(()),
    }
}
