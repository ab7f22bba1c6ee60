//! CREATE and DROP, and what is done to running queries.

use std::time::Duration;

use weir_connectors::Role;
use weir_planner::statement::{CreateQuery, CreateRelation, Drop, ObjectKind, QueryAction};
use weir_planner::{ErrorKind, Parsed, RelationKind, SqlError, Statement, Target};
use weir_runtime::source::SourceRequest;

use super::{Outcome, Session};
use crate::engine::is_connector;
use crate::error::from_runtime;

/// How long CREATE STREAM waits for the first rows of its input, which show whether it can be read.
const FIRST_ROWS_PATIENCE: Duration = Duration::from_secs(2);

impl Session {
    /// `CREATE STREAM` and `CREATE TABLE` with columns.
    pub(super) async fn create_relation(
        &mut self,
        parsed: &Parsed,
        create: &CreateRelation,
        table: bool,
    ) -> Result<Outcome, SqlError> {
        let kind = if table { RelationKind::Table } else { RelationKind::Stream };
        let relation = self.engine.planner().define(kind, create, &self.options, &parsed.sql)?;
        let mut notices = Vec::new();
        if let Some(connector) = relation.connector_name() {
            if table {
                return Err(SqlError::unsupported(format!("a table cannot read from connector '{connector}'"))
                    .hint("CREATE STREAM reads from a connector; a materialized view over it keeps rows by key"));
            }
            if is_connector(&relation) {
                let context = self.engine.connector_context();
                let schema = relation.physical_schema();
                weir_connectors::validate(Role::Source, connector, &relation.connector, &schema, &context)
                    .map_err(from_runtime)?;
                // What is wrong with the input (no such file, a column missing in its header) is told now rather than
                // by the first query.
                let declared = relation.physical_schema();
                let projection = (0..declared.fields().len()).collect();
                let request = SourceRequest { relation: relation.name.clone(), declared, projection };
                let source = self.engine.open_connector(&relation.connector, &request).map_err(from_runtime)?;
                let mut splits = source.discover(&[], 1).await.map_err(from_runtime)?;
                splits.truncate(1);
                let mut reader = source.reader(splits).await.map_err(from_runtime)?;
                // A source that has nothing yet has nothing to complain of either.
                if let Ok(first) = tokio::time::timeout(FIRST_ROWS_PATIENCE, reader.next()).await {
                    first.map_err(from_runtime)?;
                }
            }
        }
        if table && relation.key.is_empty() {
            return Err(SqlError::new(
                ErrorKind::INVALID_DEFINITION,
                format!("table \"{}\" has no primary key", create.name),
            )
            .hint("add PRIMARY KEY (columns); rows without a key belong into a STREAM"));
        }
        let tag = parsed.statement.tag();
        if !self.engine.create(relation, create.if_not_exists).await? {
            notices.push(format!("relation \"{}\" exists already, nothing was done", create.name));
        }
        Ok(Outcome::Command { tag: tag.to_owned(), notices })
    }

    /// `CREATE MATERIALIZED VIEW`, `CREATE STREAM … AS`, `CREATE SINK`.
    pub(super) async fn create_query(&mut self, parsed: &Parsed) -> Result<Outcome, SqlError> {
        let (create, kind) = match &parsed.statement {
            Statement::CreateMaterializedView(create) => (create, RelationKind::View),
            Statement::CreateStreamAs(create) => (create, RelationKind::Stream),
            Statement::CreateSink(create) => (create, RelationKind::Sink),
            _ => return Err(SqlError::syntax("not a statement that creates a query")),
        };
        let target = self.target(create, kind)?;
        let (query_options, _) = self.options.split(&create.options)?;
        let parallelism = self.engine.parallelism(&query_options)?;
        let planned = self.engine.planner().plan_create(&self.engine.catalog(), create, &target, parallelism)?;
        let relation = planned.relation(kind, create, &self.options, &parsed.sql)?;
        let mut notices = planned.warnings;
        if kind == RelationKind::Sink {
            let connector = relation.connector_name().unwrap_or_default();
            let context = self.engine.connector_context();
            weir_connectors::validate(Role::Sink, connector, &relation.connector, &relation.schema(), &context)
                .map_err(from_runtime)?;
        } else if let Some(connector) = relation.connector_name() {
            return Err(SqlError::new(
                ErrorKind::INVALID_DEFINITION,
                format!("{} \"{}\" cannot write to connector '{connector}'", kind.name(), relation.name),
            )
            .hint("CREATE SINK … WITH (connector = …) writes to a connector"));
        }
        if !self.engine.create(relation, create.if_not_exists).await? {
            notices = vec![format!("relation \"{}\" exists already, nothing was done", create.name)];
        }
        Ok(Outcome::Command { tag: parsed.statement.tag().to_owned(), notices })
    }

    pub(super) fn target(&self, create: &CreateQuery, kind: RelationKind) -> Result<Target, SqlError> {
        Ok(match kind {
            RelationKind::View => Target::View { name: create.name.clone(), forward: false },
            RelationKind::Sink => {
                if !create.options.contains_key("connector") {
                    let message = format!("sink \"{}\" has no connector", create.name);
                    return Err(SqlError::new(ErrorKind::INVALID_DEFINITION, message)
                        .hint("add WITH (connector = 'file', path = '…', format = 'json') at the statement's end"));
                }
                Target::Sink { name: create.name.clone(), retractions: true }
            }
            _ => Target::Stream { name: create.name.clone() },
        })
    }

    /// `DROP …`.
    pub(super) async fn drop_relations(&mut self, drop: &Drop) -> Result<Outcome, SqlError> {
        let catalog = self.engine.catalog();
        let mut notices = Vec::new();
        let mut names = Vec::new();
        for name in &drop.names {
            match catalog.find(name) {
                Ok(relation) => {
                    let kind = ObjectKind::from(relation.kind);
                    let matches = kind == drop.kind || (drop.kind == ObjectKind::Query && relation.is_query());
                    if !matches {
                        return Err(SqlError::new(
                            ErrorKind::WRONG_KIND,
                            format!("\"{name}\" is a {}, not a {}", kind.name(), drop.kind.name()),
                        )
                        .hint(format!("write DROP {} {name}", kind.name().to_uppercase())));
                    }
                    names.push(name.clone());
                }
                Err(_) if drop.if_exists => notices.push(format!("\"{name}\" does not exist, nothing was dropped")),
                Err(error) => return Err(error),
            }
        }
        if !names.is_empty() {
            let dropped = self.engine.drop_relations(&names, drop.cascade).await?;
            let others: Vec<&str> = dropped.names.iter().filter(|n| !names.contains(n)).map(String::as_str).collect();
            if !others.is_empty() {
                notices.push(format!("also dropped: {}", others.join(", ")));
            }
            notices.extend(dropped.notices);
        }
        let tag = match drop.kind {
            ObjectKind::View => "DROP MATERIALIZED VIEW".to_owned(),
            kind => format!("DROP {}", kind.name().to_uppercase()),
        };
        Ok(Outcome::Command { tag, notices })
    }

    /// `ALTER QUERY q PAUSE | RESUME | STOP WITH SAVEPOINT …`.
    pub(super) async fn alter_query(&mut self, name: &str, action: &QueryAction) -> Result<Outcome, SqlError> {
        if let QueryAction::StopWithSavepoint { target, drain } = action {
            return self.stop_with_savepoint(name, target, *drain).await;
        }
        self.engine.set_paused(name, *action == QueryAction::Pause).await?;
        Ok(Outcome::command("ALTER QUERY"))
    }

    /// `CHECKPOINT q`.
    pub(super) async fn checkpoint(&mut self, query: &str) -> Result<Outcome, SqlError> {
        let info = self.engine.checkpoint_now(query).await?;
        let notices = vec![format!("checkpoint {} is at {}", info.id, info.url)];
        Ok(Outcome::Command { tag: "CHECKPOINT".to_owned(), notices })
    }
}
