//! The catalog as plain data: what relations there are, and changes to that. Where it is kept is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};
use weir_runtime::graph::ConnectorOptions;

use crate::error::{ErrorKind, Result, SqlError, nearest};
use crate::statement::ObjectKind;
use crate::types::SqlType;

/// What a relation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelationKind {
    /// Append-only, without end.
    Stream,
    /// Keyed rows that INSERT, UPDATE and DELETE change.
    Table,
    /// A query kept up to date.
    View,
    /// A query written out.
    Sink,
}

/// A column. Persisted by its SQL type, from which the Arrow type follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type, as in `\d`: `timestamp with time zone`.
    #[serde(rename = "type")]
    pub sql_type: SqlType,
    /// Whether it may be null.
    pub nullable: bool,
    /// `GENERATED ALWAYS AS (expr)`: computed when read, not stored by the connector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<String>,
    /// `DEFAULT expr`, for INSERT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// A relation's event time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// Index of the event-time column.
    pub column: usize,
    /// The expression whose maximum so far is the watermark, as written.
    pub expr: String,
    /// A split without rows for this long no longer holds back event time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Duration>,
}

/// A relation: all that its readers, its query and SHOW CREATE need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relation {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: RelationKind,
    /// All columns in order, generated ones included.
    pub columns: Vec<Column>,
    /// Indices of the columns that identify a row: the primary key of a table, the inferred key of a view. Empty:
    /// rows have no key.
    #[serde(default)]
    pub key: Vec<usize>,
    /// Event time, if declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<Watermark>,
    /// Index of the column that is event time because it is so in the query that feeds the relation; its log brings the
    /// watermark. None if the relation declares one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<usize>,
    /// The connector's options from `WITH (…)` (`connector`, `path`, …), without query options. Empty: the relation
    /// is Weir's own log, written by INSERT, HTTP or its query.
    #[serde(default)]
    pub connector: ConnectorOptions,
    /// The query that feeds it, with its EMIT clause, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Names of the relations that the query reads.
    #[serde(default)]
    pub reads: Vec<String>,
    /// Whether rows are only ever added.
    pub append_only: bool,
    /// The options of the query in force at creation (`execution.checkpointing.interval`, …): only those that
    /// differ from the defaults.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The statement that created it, as written.
    pub definition_sql: String,
}

impl Column {
    /// A column without default or generation.
    pub fn new(name: impl Into<String>, sql_type: SqlType, nullable: bool) -> Self {
        Self { name: name.into(), sql_type, nullable, generated: None, default: None }
    }

    /// The Arrow type.
    pub fn data_type(&self) -> DataType {
        self.sql_type.data_type()
    }

    /// The PostgreSQL name of the type.
    pub fn pg_type(&self) -> String {
        self.sql_type.to_string()
    }

    /// The Arrow field.
    pub fn field(&self) -> Field {
        let field = Field::new(&self.name, self.data_type(), self.nullable);
        field.with_metadata(self.sql_type.metadata())
    }
}

impl Relation {
    /// Schema of the rows that readers see.
    pub fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.columns.iter().map(Column::field).collect::<Vec<_>>()))
    }

    /// Schema of the physical columns: what the connector or the log holds.
    pub fn physical_schema(&self) -> SchemaRef {
        let fields = self.columns.iter().filter(|c| c.generated.is_none()).map(Column::field);
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// The name of the connector, lower-cased; `None` for Weir's own log.
    pub fn connector_name(&self) -> Option<&str> {
        self.connector.get("connector").map(String::as_str)
    }

    /// Index of a column.
    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }

    /// The event-time column with what its watermark is, for people.
    pub fn event_time(&self) -> Option<(usize, &str)> {
        let declared = self.watermark.as_ref().map(|watermark| (watermark.column, watermark.expr.as_str()));
        declared.or(self.event_time.map(|column| (column, "of its query")))
    }

    /// Whether SELECT can read it at any moment.
    pub fn is_readable(&self) -> bool {
        matches!(self.kind, RelationKind::Table | RelationKind::View)
    }

    /// Whether it is fed by a query of its own (its name is the query's).
    pub fn is_query(&self) -> bool {
        self.query.is_some()
    }
}

impl RelationKind {
    /// As in sentences: `materialized view`.
    pub fn name(self) -> &'static str {
        ObjectKind::from(self).name()
    }
}

impl From<RelationKind> for ObjectKind {
    fn from(kind: RelationKind) -> Self {
        match kind {
            RelationKind::Stream => Self::Stream,
            RelationKind::Table => Self::Table,
            RelationKind::View => Self::View,
            RelationKind::Sink => Self::Sink,
        }
    }
}

/// A change to the catalog; its JSON is what the store keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum CatalogChange {
    /// A new relation. `job` is the lineage of its query, if it has one.
    Create {
        /// The relation.
        relation: Box<Relation>,
        /// The directory of its query under `jobs/`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<String>,
    },
    /// Relations gone, in the order in which they were dropped (dependents first).
    Drop {
        /// Their names.
        names: Vec<String>,
    },
    /// A query paused or resumed.
    Pause {
        /// The query.
        query: String,
        /// Whether it stands still.
        paused: bool,
    },
    /// A savepoint was taken.
    Savepoint {
        /// It.
        savepoint: Box<Savepoint>,
    },
    /// A savepoint is gone, or belongs to a query that claimed it.
    DropSavepoint {
        /// The URL of its directory.
        url: String,
    },
    /// Another query reads this view or table for the first time: from now on its changes go to its log.
    Forward {
        /// The view or table.
        relation: String,
    },
}

/// A savepoint that was taken here: a copy of a query's checkpoint that stays until it is dropped, even when the query is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Savepoint {
    /// The query that it was taken of.
    pub query: String,
    /// The name that it was given, if it was; no other of the query has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Absolute URL of its directory.
    pub url: String,
    /// The checkpoint that it is a copy of.
    pub checkpoint: u64,
    /// The query's lineage at that time.
    pub job: String,
    /// When it was asked for, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// Bytes of state.
    pub bytes: u64,
    /// Objects besides its manifest.
    pub objects: u64,
}

/// An entry of the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The relation.
    pub relation: Arc<Relation>,
    /// Its query's lineage.
    pub job: Option<String>,
    /// Whether the query is paused.
    pub paused: bool,
    /// Whether the changes of the view or table go to its log, because another query reads them.
    #[serde(default)]
    pub forward: bool,
}

/// All relations. A clone is cheap and is what a statement is planned against.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    entries: Arc<BTreeMap<String, Entry>>,
    savepoints: Arc<BTreeMap<String, Savepoint>>,
}

impl Catalog {
    /// Without relations.
    pub fn new() -> Self {
        Self::default()
    }

    /// The relation of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Relation>> {
        self.entries.get(name).map(|e| &e.relation)
    }

    /// The relation with what the server keeps about it.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// The relation of that name, or an error that names the nearest.
    pub fn find(&self, name: &str) -> Result<&Arc<Relation>> {
        self.get(name).ok_or_else(|| {
            let error = SqlError::new(ErrorKind::UNDEFINED_RELATION, format!("relation \"{name}\" does not exist"));
            match nearest(name, self.entries.keys().map(String::as_str)) {
                Some(near) => error.hint(format!("did you mean \"{near}\"?")),
                None => error.hint("SHOW STREAMS, SHOW TABLES and SHOW VIEWS list what there is"),
            }
        })
    }

    /// All relations by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Relation>> {
        self.entries.values().map(|e| &e.relation)
    }

    /// All entries by name.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// All savepoints, by query and then by age.
    pub fn savepoints(&self) -> Vec<&Savepoint> {
        let mut savepoints: Vec<_> = self.savepoints.values().collect();
        savepoints.sort_by_key(|savepoint| (&savepoint.query, savepoint.created_at_ms, &savepoint.url));
        savepoints
    }

    /// The savepoint at that URL.
    pub fn savepoint_at(&self, url: &str) -> Option<&Savepoint> {
        self.savepoints.get(url)
    }

    /// The savepoint of a query by its name, or an error that names the nearest.
    pub fn find_savepoint(&self, query: &str, name: &str) -> Result<&Savepoint> {
        let of_query = || self.savepoints.values().filter(|savepoint| savepoint.query == query);
        let names = || of_query().filter_map(|savepoint| savepoint.name.as_deref());
        of_query().find(|savepoint| savepoint.name.as_deref() == Some(name)).ok_or_else(|| {
            let message = format!("query \"{query}\" has no savepoint called \"{name}\"");
            SqlError::new(ErrorKind::UNDEFINED_SAVEPOINT, message).hint(match nearest(name, names()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "SHOW SAVEPOINTS lists them; one without a name is dropped by its URL".to_owned(),
            })
        })
    }

    /// Adds or replaces a relation.
    pub fn insert(&mut self, relation: Relation, job: Option<String>) {
        let entry = Entry { relation: Arc::new(relation), job, paused: false, forward: false };
        Arc::make_mut(&mut self.entries).insert(entry.relation.name.clone(), entry);
    }

    /// Takes a relation out.
    pub fn remove(&mut self, name: &str) -> Option<Entry> {
        Arc::make_mut(&mut self.entries).remove(name)
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &CatalogChange) {
        match change {
            CatalogChange::Create { relation, job } => self.insert((**relation).clone(), job.clone()),
            CatalogChange::Drop { names } => {
                for name in names {
                    self.remove(name);
                }
            }
            CatalogChange::Pause { query, paused } => {
                if let Some(entry) = Arc::make_mut(&mut self.entries).get_mut(query) {
                    entry.paused = *paused;
                }
            }
            CatalogChange::Savepoint { savepoint } => {
                Arc::make_mut(&mut self.savepoints).insert(savepoint.url.clone(), (**savepoint).clone());
            }
            CatalogChange::DropSavepoint { url } => {
                Arc::make_mut(&mut self.savepoints).remove(url);
            }
            CatalogChange::Forward { relation } => {
                if let Some(entry) = Arc::make_mut(&mut self.entries).get_mut(relation) {
                    entry.forward = true;
                }
            }
        }
    }

    /// Names of the relations whose queries read `name`.
    pub fn dependents_of(&self, name: &str) -> Vec<String> {
        self.iter().filter(|r| r.reads.iter().any(|read| read == name)).map(|r| r.name.clone()).collect()
    }

    /// `names` and everything that depends on them, dependents first: the order in which DROP … CASCADE drops.
    pub fn cascade(&self, names: &[String]) -> Vec<String> {
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        for name in names {
            self.visit_dependents(name, &mut seen, &mut order);
        }
        order
    }

    fn visit_dependents(&self, name: &str, seen: &mut BTreeSet<String>, order: &mut Vec<String>) {
        if !seen.insert(name.to_owned()) {
            return;
        }
        for dependent in self.dependents_of(name) {
            self.visit_dependents(&dependent, seen, order);
        }
        order.push(name.to_owned());
    }

    /// All relations, each after those that it reads: the order in which queries are started.
    pub fn in_dependency_order(&self) -> Vec<Arc<Relation>> {
        let names: Vec<String> = self.entries.keys().cloned().collect();
        let mut order = self.cascade(&names);
        order.reverse();
        order.iter().filter_map(|name| self.get(name).cloned()).collect()
    }
}
