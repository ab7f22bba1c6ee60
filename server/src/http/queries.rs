//! What runs: queries, their dataflows and checkpoints. What changes a query is the SQL statement of the same meaning.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use weir_planner::types::quote_ident;
use weir_planner::{ErrorKind, SqlError};

use super::App;
use super::catalog::undefined;
use super::extract::{Asked, Named};
use super::problem::{Problem, ProblemBody};
use super::sql::run_one;
use crate::engine::{CheckpointRow, OperatorInfo, QueryInfo};

/// All queries.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct Queries {
    queries: Vec<QueryInfo>,
}

/// The dataflow of a query.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct Operators {
    /// The operators, inputs before those that read them. Empty while the query does not run.
    operators: Vec<OperatorInfo>,
}

/// Checkpoints of a query.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct Checkpoints {
    /// The checkpoints, newest first.
    checkpoints: Vec<CheckpointRow>,
}

/// What a statement answered.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct Done {
    /// The command tag: `DROP MATERIALIZED VIEW`.
    command: String,
    /// What the user should know.
    notices: Vec<String>,
}

/// How to drop a query.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveOptions {
    /// Also drop everything that reads its relation.
    #[serde(default)]
    cascade: bool,
}

fn find(app: &App, name: &str) -> Result<QueryInfo, Problem> {
    let queries = app.backend.queries();
    match queries.iter().find(|query| query.name == name) {
        Some(query) => Ok(query.clone()),
        None => Err(undefined("query", name, queries.iter().map(|query| query.name.as_str()))),
    }
}

/// List all queries.
#[utoipa::path(
    get, operation_id = "list_queries",
    path = "/v1/queries", tag = "queries",
    responses((status = 200, description = "All queries, by name", body = Queries))
)]
pub(super) async fn list(State(app): State<App>) -> Json<Queries> {
    Json(Queries { queries: app.backend.queries() })
}

/// Describe one query.
#[utoipa::path(
    get, operation_id = "describe_query",
    path = "/v1/queries/{name}", tag = "queries",
    params(("name" = String, Path, description = "The query")),
    responses(
        (status = 200, description = "The query", body = QueryInfo),
        (status = 404, description = "There is none of this name", body = ProblemBody),
    )
)]
pub(super) async fn one(State(app): State<App>, Named(name): Named<String>) -> Result<Json<QueryInfo>, Problem> {
    find(&app, &name).map(Json)
}

/// Show a query's dataflow graph with the counters of each subtask.
#[utoipa::path(
    get, operation_id = "list_operators",
    path = "/v1/queries/{name}/operators", tag = "queries",
    params(("name" = String, Path, description = "The query")),
    responses(
        (status = 200, description = "The operators", body = Operators),
        (status = 404, description = "There is no query of this name", body = ProblemBody),
    )
)]
pub(super) async fn operators(State(app): State<App>, Named(name): Named<String>) -> Result<Json<Operators>, Problem> {
    find(&app, &name)?;
    Ok(Json(Operators { operators: app.backend.operators(&name).unwrap_or_default() }))
}

/// List a query's checkpoints, newest first.
#[utoipa::path(
    get, operation_id = "list_checkpoints",
    path = "/v1/queries/{name}/checkpoints", tag = "queries",
    params(("name" = String, Path, description = "The query")),
    responses(
        (status = 200, description = "The checkpoints", body = Checkpoints),
        (status = 404, description = "There is no query of this name", body = ProblemBody),
    )
)]
pub(super) async fn checkpoints(
    State(app): State<App>,
    Named(name): Named<String>,
) -> Result<Json<Checkpoints>, Problem> {
    find(&app, &name)?;
    Ok(Json(Checkpoints { checkpoints: app.backend.checkpoints(Some(&name))? }))
}

/// Pause a query: ALTER QUERY … PAUSE.
#[utoipa::path(
    post, operation_id = "pause_query",
    path = "/v1/queries/{name}/pause", tag = "queries",
    params(("name" = String, Path, description = "The query")),
    responses(
        (status = 200, description = "The query, which stands still", body = QueryInfo),
        (status = 404, description = "There is no query of this name", body = ProblemBody),
        (status = 409, description = "It is in no state to be paused", body = ProblemBody),
    )
)]
pub(super) async fn pause(State(app): State<App>, Named(name): Named<String>) -> Result<Json<QueryInfo>, Problem> {
    find(&app, &name)?;
    run_one(&app, &format!("ALTER QUERY {} PAUSE", quote_ident(&name))).await?;
    find(&app, &name).map(Json)
}

/// Let a paused query go on: ALTER QUERY … RESUME.
#[utoipa::path(
    post, operation_id = "resume_query",
    path = "/v1/queries/{name}/resume", tag = "queries",
    params(("name" = String, Path, description = "The query")),
    responses(
        (status = 200, description = "The query, which goes on", body = QueryInfo),
        (status = 404, description = "There is no query of this name", body = ProblemBody),
        (status = 409, description = "It is not paused", body = ProblemBody),
    )
)]
pub(super) async fn resume(State(app): State<App>, Named(name): Named<String>) -> Result<Json<QueryInfo>, Problem> {
    find(&app, &name)?;
    run_one(&app, &format!("ALTER QUERY {} RESUME", quote_ident(&name))).await?;
    find(&app, &name).map(Json)
}

/// Take a checkpoint now and wait until it is complete: CHECKPOINT ….
#[utoipa::path(
    post, operation_id = "take_checkpoint",
    path = "/v1/queries/{name}/checkpoint", tag = "queries",
    params(("name" = String, Path, description = "The query")),
    responses(
        (status = 200, description = "The newest complete checkpoint", body = CheckpointRow),
        (status = 404, description = "There is no query of this name", body = ProblemBody),
        (status = 409, description = "It is in no state to take one", body = ProblemBody),
    )
)]
pub(super) async fn checkpoint(
    State(app): State<App>,
    Named(name): Named<String>,
) -> Result<Json<CheckpointRow>, Problem> {
    find(&app, &name)?;
    run_one(&app, &format!("CHECKPOINT {}", quote_ident(&name))).await?;
    let newest = app.backend.checkpoints(Some(&name))?.into_iter().find(|row| row.state == "COMPLETED");
    let missing = || SqlError::new(ErrorKind::NOT_READY, format!("query \"{name}\" has no complete checkpoint"));
    newest.map(Json).ok_or_else(|| missing().into())
}

/// Drop a query with its view, sink, stream or table: DROP ….
#[utoipa::path(
    delete, operation_id = "drop_query",
    path = "/v1/queries/{name}", tag = "queries",
    params(("name" = String, Path, description = "The query"), RemoveOptions),
    responses(
        (status = 200, description = "It is gone", body = Done),
        (status = 404, description = "There is no query of this name", body = ProblemBody),
        (status = 409, description = "Other relations read it; cascade=true drops them too", body = ProblemBody),
    )
)]
pub(super) async fn remove(
    State(app): State<App>,
    Named(name): Named<String>,
    Asked(options): Asked<RemoveOptions>,
) -> Result<Json<Done>, Problem> {
    let kind = match find(&app, &name)?.kind.as_str() {
        "sink" => "SINK",
        "stream" => "STREAM",
        "table" => "TABLE",
        _ => "MATERIALIZED VIEW",
    };
    let cascade = if options.cascade { " CASCADE" } else { "" };
    let (command, notices) = run_one(&app, &format!("DROP {kind} {}{cascade}", quote_ident(&name))).await?;
    Ok(Json(Done { command, notices }))
}
