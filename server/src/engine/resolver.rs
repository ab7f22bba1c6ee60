//! Opens what a graph names: a connector, or the log of one of Weir's own relations.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use weir_connectors::ConnectorContext;
use weir_connectors::log::{LogSink, LogSource};
use weir_planner::{Relation, RelationKind};
use weir_runtime::graph::{ConnectorOptions, Resolver, SinkSpec};
use weir_runtime::sink::Sink;
use weir_runtime::source::{Source, SourceRequest};
use weir_runtime::{Result, RuntimeError};
use weir_storage::{JobId, Log, StorageError};

use super::Engine;

/// Resolves names of one query against the engine's catalog.
pub(super) struct EngineResolver {
    engine: Weak<Engine>,
    query: String,
}

impl EngineResolver {
    pub(super) fn new(engine: &Arc<Engine>, query: &str) -> Self {
        Self { engine: Arc::downgrade(engine), query: query.to_owned() }
    }

    fn engine(&self) -> Result<Arc<Engine>> {
        self.engine.upgrade().ok_or_else(|| internal(format!("query \"{}\" outlived the engine", self.query)))
    }
}

#[async_trait]
impl Resolver for EngineResolver {
    async fn source(&self, request: &SourceRequest) -> Result<Arc<dyn Source>> {
        let engine = self.engine()?;
        let relation = engine.relation(&request.relation)?;
        if is_connector(&relation) {
            return engine.open_connector(&relation.connector, request);
        }
        let job = engine.job_of(&request.relation)?;
        if relation.kind == RelationKind::Table && self.query == relation.name {
            // The table's own upkeep reads what INSERT, UPDATE and DELETE wrote; everybody else reads what it made of that.
            let delivered = engine.ingest.delivered(&relation.name);
            let retained = engine.logs.read_by(&engine.input_log(&job), &self.query);
            let source = LogSource::new(engine.input_log(&job), request.clone());
            return Ok(Arc::new(source.telling(delivered).keeping(retained)));
        }
        let log = engine.log_of(&job);
        let retained = engine.logs.read_by(&log, &self.query);
        Ok(Arc::new(LogSource::new(log, request.clone()).keeping(retained)))
    }

    async fn sink(&self, spec: &SinkSpec) -> Result<Arc<dyn Sink>> {
        let engine = self.engine()?;
        let relation = engine.relation(&spec.relation)?;
        if spec.log {
            let job = engine.job_of(&spec.relation)?;
            let sink = LogSink::new(engine.log_of(&job), Arc::clone(&engine.fence));
            return Ok(Arc::new(sink.with_event_time(spec.event_time)));
        }
        let name = relation.connector_name().unwrap_or_default();
        weir_connectors::sink(name, &relation.connector, spec, &engine.connector_context())
    }
}

impl Engine {
    fn relation(&self, name: &str) -> Result<Arc<Relation>> {
        self.catalog.current().get(name).cloned().ok_or_else(|| internal(format!("relation \"{name}\" is gone")))
    }

    /// The lineage of a relation: names its job and its logs.
    pub(super) fn job_of(&self, name: &str) -> Result<JobId> {
        let catalog = self.catalog.current();
        let job = catalog.entry(name).and_then(|entry| entry.job.clone());
        job.map(JobId).ok_or_else(|| internal(format!("relation \"{name}\" has no lineage in the catalog")))
    }

    /// The log that others read: of a stream its rows, of a view or table its changes.
    pub(super) fn log_of(&self, job: &JobId) -> Log {
        Log::new(&self.store, &job.0)
    }

    /// The log of what was written to a table.
    pub(super) fn input_log(&self, job: &JobId) -> Log {
        Log::new(&self.store, &format!("{}.input", job.0))
    }

    /// Opens a source connector.
    pub(crate) fn open_connector(
        &self,
        options: &ConnectorOptions,
        request: &SourceRequest,
    ) -> Result<Arc<dyn Source>> {
        let name = options.get("connector").map(String::as_str).unwrap_or_default();
        weir_connectors::source(name, options, request, &self.connector_context())
    }

    pub(crate) fn connector_context(&self) -> ConnectorContext {
        ConnectorContext { base_dir: PathBuf::new(), store_options: self.config.store_options.clone() }
    }

    /// Whether what feeds a stream ends some day. A stream without a connector is written to for ever.
    pub(super) fn has_bounded_input(&self, relation: &Relation) -> bool {
        let request = SourceRequest {
            relation: relation.name.clone(),
            declared: relation.physical_schema(),
            projection: Vec::new(),
        };
        is_connector(relation) && self.open_connector(&relation.connector, &request).is_ok_and(|s| s.is_bounded())
    }

    /// The log of a stream up to what it holds now.
    pub(crate) async fn log_until_now(&self, relation: &Relation, request: &SourceRequest) -> Result<Arc<dyn Source>> {
        let log = self.log_of(&self.job_of(&relation.name)?);
        let head = log.head().await?;
        Ok(Arc::new(LogSource::new(log, request.clone()).until(head)))
    }

    /// Removes the logs of a dropped relation.
    pub(super) async fn delete_logs(&self, job: &JobId) -> Result<(), StorageError> {
        for log in [self.log_of(job), self.input_log(job)] {
            self.logs.forget(&log);
            log.delete_all(&self.fence).await?;
        }
        Ok(())
    }
}

/// Whether rows come from a connector, and not from Weir's own log that INSERT and HTTP append to.
pub(crate) fn is_connector(relation: &Relation) -> bool {
    relation.connector_name().is_some_and(|connector| connector != "http")
}

fn internal(reason: String) -> RuntimeError {
    RuntimeError::Internal { place: "resolver", reason }
}
