//! What the planner is asked for and what it answers.

use weir_runtime::graph::Graph;

use crate::catalog::{Column, Relation, RelationKind, Watermark};
use crate::define::retention_elsewhere;
use crate::error::SqlError;
use crate::options::{Options, RETENTION};
use crate::statement::CreateQuery;

/// Where the rows of a continuous query go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A materialized view. `forward`: its changes also go to its log, because another query reads it.
    View {
        /// The view.
        name: String,
        /// Whether to write the log.
        forward: bool,
    },
    /// A sink's connector.
    Sink {
        /// The sink.
        name: String,
        /// Whether the connector can take retractions; if not, a query that changes rows is refused.
        retractions: bool,
    },
    /// A derived stream: its log. A query that changes rows is refused.
    Stream {
        /// The stream.
        name: String,
    },
    /// A reader that waits: `SELECT … EMIT CHANGES`. Ends in a sink that takes retractions.
    Reader {
        /// A name for the sink, for the resolver.
        name: String,
    },
}

/// How parallel a query runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parallelism {
    /// Number of subtasks of each operator.
    pub default: u32,
    /// Number of key groups.
    pub max: u16,
}

/// A planned query.
#[derive(Debug, Clone)]
pub struct Planned {
    /// What the runtime runs.
    pub graph: Graph,
    /// The columns of the result.
    pub columns: Vec<Column>,
    /// Indices of the columns that identify a row; empty when none do.
    pub key: Vec<usize>,
    /// Whether rows are only ever added.
    pub append_only: bool,
    /// What a person should know: state without bound, a watermark that is missing, …
    pub warnings: Vec<String>,
    /// Names of the relations that are read, each once, in the order of their names.
    pub reads: Vec<String>,
    /// Event time of a derived stream, if its statement declares it.
    pub watermark: Option<Watermark>,
    /// Index of the result's event-time column, of which the query's own watermark speaks.
    pub event_time: Option<usize>,
}

impl Planned {
    /// The catalog's relation for the result.
    pub fn relation(
        &self,
        kind: RelationKind,
        create: &CreateQuery,
        options: &Options,
        definition_sql: &str,
    ) -> Result<Relation, SqlError> {
        if kind != RelationKind::Stream && create.options.contains_key(RETENTION) {
            return Err(retention_elsewhere(&create.name, kind.name()));
        }
        let (query_options, connector) = options.split(&create.options)?;
        Ok(Relation {
            name: create.name.clone(),
            kind,
            columns: self.columns.clone(),
            key: self.key.clone(),
            watermark: self.watermark.clone(),
            event_time: self.event_time.filter(|_| self.watermark.is_none()),
            connector,
            query: Some(create.query.full_sql()),
            reads: self.reads.clone(),
            append_only: self.append_only,
            options: query_options.changed(),
            definition_sql: definition_sql.to_owned(),
        })
    }
}
