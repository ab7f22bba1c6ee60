//! What is defined: streams, tables, views, sinks; and the server itself.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use weir_planner::error::nearest;
use weir_planner::{ErrorKind, Relation, RelationKind, SqlError};

use super::App;
use super::backend::ServerInfo;
use super::extract::Named;
use super::problem::{Problem, ProblemBody};

/// All relations.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct Relations {
    relations: Vec<RelationInfo>,
}

/// A stream, table, view or sink.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RelationInfo {
    /// Its name.
    pub name: String,
    /// `stream`, `table`, `view` or `sink`.
    pub kind: String,
    /// Its columns in order.
    pub columns: Vec<ColumnInfo>,
    /// Names of the columns that identify a row: the primary key of a table, the inferred key of a view. Empty when rows
    /// have no key.
    pub primary_key: Vec<String>,
    /// Its event time.
    pub watermark: Option<WatermarkInfo>,
    /// Name of its connector; null when the relation is Weir's own log.
    pub connector: Option<String>,
    /// Options of the connector.
    pub options: BTreeMap<String, String>,
    /// Whether rows are only ever added.
    pub append_only: bool,
    /// Names of the relations that its query reads.
    pub reads: Vec<String>,
    /// The statement that created it.
    pub sql: String,
}

/// A column.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// PostgreSQL's name of its type.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Whether it may be null.
    pub nullable: bool,
    /// The expression that computes it.
    pub generated: Option<String>,
    /// The expression that INSERT puts where no value is given.
    pub default: Option<String>,
}

/// A relation's event time.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WatermarkInfo {
    /// The event-time column.
    pub column: String,
    /// The expression whose maximum so far is the watermark.
    pub expression: String,
}

/// Options whose values are nobody's to read.
fn is_secret(option: &str) -> bool {
    let option = option.to_ascii_lowercase();
    ["password", "secret", "token", "credential", "private"].iter().any(|word| option.contains(word))
}

impl From<&Relation> for RelationInfo {
    fn from(relation: &Relation) -> Self {
        let name_of = |index: &usize| relation.columns.get(*index).map(|column| column.name.clone());
        Self {
            name: relation.name.clone(),
            kind: match relation.kind {
                RelationKind::Stream => "stream",
                RelationKind::Table => "table",
                RelationKind::View => "view",
                RelationKind::Sink => "sink",
            }
            .to_owned(),
            columns: relation
                .columns
                .iter()
                .map(|column| ColumnInfo {
                    name: column.name.clone(),
                    data_type: column.pg_type(),
                    nullable: column.nullable,
                    generated: column.generated.clone(),
                    default: column.default.clone(),
                })
                .collect(),
            primary_key: relation.key.iter().filter_map(name_of).collect(),
            watermark: relation.event_time().map(|(column, expression)| WatermarkInfo {
                column: name_of(&column).unwrap_or_default(),
                expression: expression.to_owned(),
            }),
            connector: relation.connector_name().map(str::to_owned),
            options: relation
                .connector
                .iter()
                .map(|(key, value)| (key.clone(), if is_secret(key) { "****".to_owned() } else { value.clone() }))
                .collect(),
            append_only: relation.append_only,
            reads: relation.reads.clone(),
            sql: relation.definition_sql.clone(),
        }
    }
}

/// A name that is not there: what is, and the nearest.
pub(super) fn undefined<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> Problem {
    let hint = match nearest(name, known) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "GET /v1/relations and /v1/queries list what there is".to_owned(),
    };
    SqlError::new(ErrorKind::UNDEFINED_RELATION, format!("{what} \"{name}\" does not exist")).hint(hint).into()
}

/// List all streams, tables, views and sinks.
#[utoipa::path(
    get, operation_id = "list_relations",
    path = "/v1/relations", tag = "catalog",
    responses((status = 200, description = "All relations, by name", body = Relations))
)]
pub(super) async fn list(State(app): State<App>) -> Json<Relations> {
    Json(Relations {
        relations: app.backend.relations().iter().map(|relation| RelationInfo::from(relation.as_ref())).collect(),
    })
}

/// Describe one relation.
#[utoipa::path(
    get, operation_id = "describe_relation",
    path = "/v1/relations/{name}", tag = "catalog",
    params(("name" = String, Path, description = "The relation")),
    responses(
        (status = 200, description = "The relation", body = RelationInfo),
        (status = 404, description = "There is none of this name", body = ProblemBody),
    )
)]
pub(super) async fn one(State(app): State<App>, Named(name): Named<String>) -> Result<Json<RelationInfo>, Problem> {
    let relations = app.backend.relations();
    match relations.iter().find(|relation| relation.name == name) {
        Some(relation) => Ok(Json(relation.as_ref().into())),
        None => Err(undefined("relation", &name, relations.iter().map(|relation| relation.name.as_str()))),
    }
}

/// Tell version, store and addresses of the server.
#[utoipa::path(
    get, operation_id = "describe_server",
    path = "/v1/server", tag = "server",
    responses((status = 200, description = "The server", body = ServerInfo))
)]
pub(super) async fn server(State(app): State<App>) -> Json<ServerInfo> {
    Json(app.backend.server())
}
