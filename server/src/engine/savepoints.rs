//! Savepoints: taken, listed, dropped; and queries that stop with one.

use std::collections::BTreeMap;
use std::io::ErrorKind as IoErrorKind;
use std::sync::Arc;

use weir_planner::statement::{DropSavepoint, SavepointTarget};
use weir_planner::{Catalog, CatalogChange, ErrorKind, Options, Relation, RelationKind, Savepoint, SqlError};
use weir_runtime::fail_point;
use weir_runtime::graph::{Graph, OperatorSpec};
use weir_runtime::job::{JobStatus, StopMode};
use weir_storage::{CheckpointId, JobId, JobStore, SavepointAbout, SavepointPlace, StorageError, locate};

use super::queries::RunningQuery;
use super::status::status_name;
use super::{Engine, is_connector};
use crate::error::{from_runtime, from_storage};

/// Where savepoints go.
const SAVEPOINT_DIR: &str = "execution.checkpointing.savepoint-dir";

/// What is to become a savepoint.
struct Wanted {
    place: SavepointPlace,
    about: SavepointAbout,
}

impl Engine {
    /// All savepoints, or those of one query, which may be gone.
    pub(crate) fn savepoints(&self, query: Option<&str>) -> Vec<Savepoint> {
        let catalog = self.catalog.current();
        let savepoints = catalog.savepoints().into_iter();
        savepoints.filter(|savepoint| query.is_none_or(|query| savepoint.query == query)).cloned().collect()
    }

    /// `CREATE SAVEPOINT`: takes a checkpoint and copies it. Durable and listed when this returns.
    pub(crate) async fn create_savepoint(
        self: &Arc<Self>,
        query: &str,
        target: &SavepointTarget,
        options: &Options,
    ) -> Result<Savepoint, SqlError> {
        self.health()?;
        let running = self.find_query(query)?;
        let wanted = self.wanted(&running, target, options)?;
        let (checkpoint, _pin) = match running.handle.pinned_checkpoint().await {
            Ok(pinned) => (pinned.info.id, pinned.pin),
            // It has read everything: its last checkpoint is all that there will ever be, and its output is committed.
            Err(error) => match (&*running.handle.status().borrow(), self.last_checkpoint(&running)) {
                (JobStatus::Finished, Some(last)) => (last, self.pins.pin(&running.job, last)),
                _ => return Err(from_runtime(error)),
            },
        };
        self.write_savepoint(&running.job, checkpoint, wanted).await
    }

    /// `ALTER QUERY … STOP WITH SAVEPOINT`: the query is paused at the savepoint, or with `drain` finished.
    pub(crate) async fn stop_with_savepoint(
        self: &Arc<Self>,
        query: &str,
        target: &SavepointTarget,
        drain: bool,
        options: &Options,
    ) -> Result<Savepoint, SqlError> {
        self.health()?;
        let _turn = self.queries.turn.lock().await;
        let running = self.find_query(query)?;
        let wanted = self.wanted(&running, target, options)?;
        let status = running.handle.status().borrow().clone();
        if !matches!(status, JobStatus::Running | JobStatus::Paused) {
            return Err(SqlError::new(
                ErrorKind::QUERY_STATE,
                format!("query \"{query}\" is {} and cannot be stopped with a savepoint", status_name(&status)),
            )
            .hint("CREATE SAVEPOINT takes one of a finished query; SHOW QUERIES tells why another is not RUNNING"));
        }
        let mode = if drain { StopMode::Drain } else { StopMode::WithCheckpoint };
        let stopped = running.handle.stop(mode).await.map_err(from_runtime)?;
        let mut catalog = self.catalog.current();
        if !drain && stopped.is_some() {
            let change = CatalogChange::Pause { query: query.to_owned(), paused: true };
            catalog = self.catalog.change(|_| Ok(change)).await?;
        }
        let written = match &stopped {
            Some(info) => self.write_savepoint(&running.job, info.id, wanted).await,
            None => Err(SqlError::new(
                ErrorKind::NOT_READY,
                format!("query \"{query}\" failed while it was to be stopped, and goes on from its last checkpoint"),
            )
            .hint("try again when SHOW QUERIES lists it as RUNNING")),
        };
        // It stands where it was stopped, readable, until it is resumed.
        let finished = matches!(*running.handle.status().borrow(), JobStatus::Finished);
        if !finished && let Some(entry) = catalog.entry(query) {
            self.start_query(&catalog, entry).await?;
        }
        written
    }

    /// `DROP SAVEPOINT`. Answers whether there was one.
    pub(crate) async fn drop_savepoint(&self, dropped: &DropSavepoint, if_exists: bool) -> Result<bool, SqlError> {
        self.health()?;
        let catalog = self.catalog.current();
        let (url, listed) = match dropped {
            DropSavepoint::Named { name, query } => match catalog.find_savepoint(query, name) {
                Ok(savepoint) => (savepoint.url.clone(), true),
                Err(_) if if_exists => return Ok(false),
                Err(error) => return Err(error),
            },
            DropSavepoint::Url(url) => (url.clone(), catalog.savepoint_at(url.trim_end_matches('/')).is_some()),
        };
        let directory = match locate(&url, &self.config.store_options).await {
            Ok(found) if !found.is_savepoint() => {
                return Err(SqlError::new(
                    ErrorKind::WRONG_KIND,
                    format!("{} is a checkpoint, which only its query removes", found.url()),
                )
                .hint("SHOW SAVEPOINTS lists the savepoints"));
            }
            Ok(found) => {
                found.delete().await.map_err(from_storage)?;
                found.directory_url()
            }
            // Somebody removed it by hand: what is left is to forget it.
            Err(error) if is_gone(&error) && listed => url.trim_end_matches('/').to_owned(),
            Err(error) if is_gone(&error) && if_exists => return Ok(false),
            Err(error) if is_gone(&error) => {
                return Err(SqlError::new(ErrorKind::UNDEFINED_SAVEPOINT, format!("there is no savepoint at {url}"))
                    .hint("SHOW SAVEPOINTS lists them with their URLs"));
            }
            Err(error) => return Err(from_storage(error)),
        };
        self.forget_savepoint(&directory).await?;
        Ok(true)
    }

    /// Takes a savepoint that is gone out of the list, if it is there.
    pub(super) async fn forget_savepoint(&self, directory: &str) -> Result<(), SqlError> {
        if self.catalog.current().savepoint_at(directory).is_some() {
            let url = directory.to_owned();
            self.catalog.change(|_| Ok(CatalogChange::DropSavepoint { url })).await?;
        }
        Ok(())
    }

    fn wanted(&self, running: &RunningQuery, target: &SavepointTarget, session: &Options) -> Result<Wanted, SqlError> {
        let (catalog, relation) = (self.catalog.current(), &running.relation);
        if relation.kind == RelationKind::Table {
            return Err(SqlError::new(
                ErrorKind::WRONG_KIND,
                format!("\"{}\" is a table: its rows stand in its log, which no savepoint takes back", relation.name),
            )
            .hint("take savepoints of the queries that read it"));
        }
        if let Some(name) = &target.name {
            check_name(&catalog, &relation.name, name)?;
        }
        let about = SavepointAbout {
            query: relation.name.clone(),
            name: target.name.clone(),
            created_at_ms: chrono::Utc::now().timestamp_millis(),
            inputs: logs_read(&catalog, running.handle.graph()),
        };
        Ok(Wanted { place: self.place(relation, target, session)?, about })
    }

    fn place(
        &self,
        relation: &Relation,
        target: &SavepointTarget,
        session: &Options,
    ) -> Result<SavepointPlace, SqlError> {
        let (query, options) = (relation.name.as_str(), &self.config.store_options);
        if let Some(url) = &target.url {
            return SavepointPlace::at(url, &self.store, options).map_err(from_storage);
        }
        let name = target.name.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
        let own = Options::from_changed(&relation.options)?;
        let directory = if session.is_set(SAVEPOINT_DIR) { session } else { &own }.get(SAVEPOINT_DIR)?;
        match directory {
            "" => Ok(SavepointPlace::within(&self.store, query, &name)),
            url => SavepointPlace::below(url, query, &name, &self.store, options).map_err(from_storage),
        }
    }

    fn last_checkpoint(&self, running: &RunningQuery) -> Option<CheckpointId> {
        use weir_runtime::job::CheckpointState::Completed;
        let records = running.handle.checkpoints();
        records.iter().filter(|record| matches!(record.state, Completed(_))).map(|record| record.id).max()
    }

    async fn write_savepoint(
        &self,
        job: &JobId,
        checkpoint: CheckpointId,
        wanted: Wanted,
    ) -> Result<Savepoint, SqlError> {
        let Wanted { place, about } = wanted;
        let store = JobStore::read_only(&self.store, job);
        let manifest = store.read(checkpoint).await.map_err(from_storage)?;
        fail_point::hit("before-savepoint");
        let info = place.write(&store, &manifest, about.clone()).await.map_err(|error| match error {
            StorageError::Conflict { .. } => SqlError::new(
                ErrorKind::DUPLICATE_SAVEPOINT,
                format!("there is a savepoint at {} already", place.url()),
            )
            .hint("name another place, or drop that one"),
            error => from_storage(error),
        })?;
        fail_point::hit("after-savepoint");
        let savepoint = Savepoint {
            query: about.query,
            name: about.name,
            url: place.url(),
            checkpoint: checkpoint.0,
            job: job.0.clone(),
            created_at_ms: about.created_at_ms,
            bytes: info.total_bytes,
            objects: info.objects as u64,
        };
        tracing::info!(query = savepoint.query, url = savepoint.url, %checkpoint, bytes = savepoint.bytes, "savepoint complete");
        let listed = self.catalog.change(|catalog| {
            if let Some(name) = &savepoint.name {
                check_name(catalog, &savepoint.query, name)?;
            }
            Ok(CatalogChange::Savepoint { savepoint: Box::new(savepoint.clone()) })
        });
        if let Err(error) = listed.await {
            // Another of the same name was faster: this one would be known to nobody.
            if let Ok(found) = locate(&place.url(), &self.config.store_options).await
                && let Err(error) = found.delete().await
            {
                tracing::warn!(url = place.url(), %error, "a savepoint that is not listed stays there");
            }
            return Err(error);
        }
        Ok(savepoint)
    }
}

fn check_name(catalog: &Catalog, query: &str, name: &str) -> Result<(), SqlError> {
    match catalog.find_savepoint(query, name) {
        Err(_) => Ok(()),
        Ok(other) => Err(SqlError::new(
            ErrorKind::DUPLICATE_SAVEPOINT,
            format!("query \"{query}\" has a savepoint called \"{name}\" already, at {}", other.url),
        )
        .hint("give another name, or drop that one")),
    }
}

/// The logs that a dataflow reads: lineage by relation.
pub(super) fn logs_read(catalog: &Catalog, graph: &Graph) -> BTreeMap<String, JobId> {
    let sources = graph.nodes.iter().filter_map(|node| match &node.spec {
        OperatorSpec::Source(source) => catalog.entry(&source.request.relation),
        _ => None,
    });
    let logs = sources.filter(|entry| !is_connector(&entry.relation));
    logs.filter_map(|entry| Some((entry.relation.name.clone(), JobId(entry.job.clone()?)))).collect()
}

/// Whether nothing is there, as opposed to something that cannot be read.
pub(super) fn is_gone(error: &StorageError) -> bool {
    matches!(error, StorageError::Io { source, .. } if source.kind() == IoErrorKind::NotFound) || error.is_not_found()
}
