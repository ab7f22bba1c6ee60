//! The running queries: a view, sink, derived stream or table each has one, with its own checkpoints, and fails alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::RwLock;
use weir_planner::{
    Catalog, CatalogChange, Entry, ErrorKind, Options, Planned, Relation, RelationKind, SqlError, Target,
};
use weir_runtime::graph::Graph;
use weir_runtime::job::{self, JobHandle, JobServices, JobSpec, JobStatus, StopMode};
use weir_runtime::options::Retention;
use weir_storage::{CheckpointId, CheckpointInfo, JobId, JobStore, StorageError};

use super::resolver::EngineResolver;
use super::status::status_name;
use super::{Engine, job_options};
use crate::error::{from_runtime, from_storage};

/// How long a statement waits for a query that it made restart.
const CHANGE_OVER_PATIENCE: Duration = Duration::from_secs(10);

/// All running queries by name.
#[derive(Default)]
pub(super) struct Queries {
    running: RwLock<BTreeMap<String, Arc<RunningQuery>>>,
    /// Starting, restarting and dropping take turns: two statements never restart one query at once.
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// A query with its running job.
pub(super) struct RunningQuery {
    pub(super) relation: Arc<Relation>,
    pub(super) job: JobId,
    pub(super) handle: JobHandle,
    pub(super) created_at_ms: i64,
}

impl Queries {
    pub(super) fn get(&self, name: &str) -> Option<Arc<RunningQuery>> {
        self.running.read().get(name).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<RunningQuery>> {
        self.running.read().values().cloned().collect()
    }
}

impl Engine {
    /// Starts every query of the catalog, each after those that it reads.
    pub(super) async fn recover_queries(self: &Arc<Self>) -> Result<(), SqlError> {
        let catalog = self.catalog.current();
        for relation in catalog.in_dependency_order() {
            let Some(entry) = catalog.entry(&relation.name) else { continue };
            if !has_job(&relation) {
                continue;
            }
            if let (RelationKind::Table, Some(job)) = (relation.kind, &entry.job) {
                self.inherit_rows(&relation.name, &JobId(job.clone())).await?;
            }
            if let Err(error) = self.start_query(&catalog, entry).await {
                // One query that cannot be planned (a connector that is gone, a function of another version) must not
                // keep the others from running.
                tracing::error!(query = %relation.name, %error, "query not started");
                self.queries.running.write().remove(&relation.name);
            }
        }
        Ok(())
    }

    /// Plans and starts the query of a catalog entry.
    pub(super) async fn start_query(
        self: &Arc<Self>,
        catalog: &Catalog,
        entry: &Entry,
    ) -> Result<Arc<RunningQuery>, SqlError> {
        let relation = Arc::clone(&entry.relation);
        let job = entry.job.clone().map(JobId).ok_or_else(|| {
            SqlError::new(ErrorKind::INTERNAL, format!("\"{}\" has no job in the catalog", relation.name))
        })?;
        let options = Options::from_changed(&relation.options)?;
        let mut graph = self.graph_of(catalog, entry, &options)?;
        if relation.is_readable() {
            self.views.open(&relation, graph.max_parallelism)?;
        }
        self.recover_state(catalog, entry, &graph).await?;
        // One that cannot be read is for the job to report, when it restores from it.
        if let Ok(Some(newest)) = JobStore::read_only(&self.store, &job).latest().await {
            graph.keep_names_of(&newest);
        }
        let spec = JobSpec {
            id: job.clone(),
            name: relation.name.clone(),
            sql: relation.definition_sql.clone(),
            graph,
            checkpointing: job_options::checkpointing(&options)?,
            epoch_interval: job_options::epoch_interval(&options)?,
            channel_bytes: job_options::channel_bytes(&options)?,
            restart: job_options::restart_policy(&options)?,
            paused: entry.paused,
        };
        let handle = job::spawn(spec, self.job_services(&relation.name));
        let created_at_ms = created_at(&job);
        let query = Arc::new(RunningQuery { relation, job, handle, created_at_ms });
        self.queries.running.write().insert(query.relation.name.clone(), Arc::clone(&query));
        let logs = entry.forward || query.relation.kind == RelationKind::Stream;
        self.follow_to_the_end(&query, logs);
        Ok(query)
    }

    pub(crate) fn job_services(self: &Arc<Self>, query: &str) -> JobServices {
        JobServices {
            store: self.store.clone(),
            fence: Arc::clone(&self.fence),
            state: self.state.clone(),
            state_dir: self.config.data_dir.join("state"),
            resolver: Arc::new(EngineResolver::new(self, query)),
            views: Arc::clone(&self.views) as _,
            pins: self.pins.clone(),
            cpu: self.cpu.clone(),
        }
    }

    /// When a bounded query has finished, its log ends too, and whoever reads the log finishes in turn.
    /// `logs`: whether this run writes the log; one that was started without, and finishes while it is being replaced,
    /// must not end what its successor has yet to write.
    fn follow_to_the_end(self: &Arc<Self>, query: &Arc<RunningQuery>, logs: bool) {
        if !logs {
            return;
        }
        let mut status = query.handle.status();
        let (engine, job, name) = (Arc::downgrade(self), query.job.clone(), query.relation.name.clone());
        tokio::spawn(async move {
            if status.wait_for(|s| matches!(s, JobStatus::Finished)).await.is_err() {
                return;
            }
            let Some(engine) = engine.upgrade() else { return };
            if let Err(error) = engine.end_log(&job).await {
                tracing::error!(query = %name, %error, "the end of the log could not be written; readers will wait");
            }
        });
    }

    /// The dataflow of a query: its SQL planned against the catalog, or for a table the upkeep of its rows.
    pub(super) fn graph_of(&self, catalog: &Catalog, entry: &Entry, options: &Options) -> Result<Graph, SqlError> {
        let relation = &entry.relation;
        let parallelism = self.parallelism(options)?;
        match &relation.query {
            Some(sql) => {
                let target = match relation.kind {
                    RelationKind::View => Target::View { name: relation.name.clone(), forward: entry.forward },
                    RelationKind::Sink => Target::Sink { name: relation.name.clone(), retractions: true },
                    _ => Target::Stream { name: relation.name.clone() },
                };
                Ok(self.planner.plan_sql(catalog, sql, &target, parallelism)?.graph)
            }
            None => self.planner.plan_table(relation, entry.forward, parallelism),
        }
    }

    /// Creates a relation that may have a query: durable first, then running.
    pub(crate) async fn create(self: &Arc<Self>, relation: Relation, if_not_exists: bool) -> Result<bool, SqlError> {
        self.health()?;
        let _turn = self.queries.turn.lock().await;
        let name = relation.name.clone();
        if self.catalog.current().get(&name).is_some() && if_not_exists {
            return Ok(false);
        }
        // Views that this query is the first to read must write their log from now on.
        for read in &relation.reads {
            self.forward(read).await?;
        }
        let with_job = has_job(&relation);
        let job = JobId::create(&name);
        let unborn = Entry { relation: Arc::new(relation), job: Some(job.0.clone()), paused: false, forward: false };
        self.check_recovery(&self.catalog.current(), &unborn).await?;
        let relation = Arc::unwrap_or_clone(unborn.relation);
        let catalog = self
            .catalog
            .change(|catalog| {
                if let Some(other) = catalog.get(&name) {
                    return Err(SqlError::new(
                        ErrorKind::DUPLICATE_RELATION,
                        format!("{} \"{name}\" exists already", other.kind.name()),
                    )
                    .hint("give another name, or drop the old one, or write IF NOT EXISTS"));
                }
                for read in &relation.reads {
                    catalog.find(read)?;
                }
                Ok(CatalogChange::Create { relation: Box::new(relation), job: Some(job.0.clone()) })
            })
            .await?;
        if with_job {
            let entry = catalog.entry(&name).ok_or_else(|| {
                SqlError::new(ErrorKind::INTERNAL, format!("\"{name}\" is not in the catalog it was added to"))
            })?;
            let entry = entry.clone();
            if let Err(error) = self.start_query(&catalog, &entry).await {
                // What cannot start from the state that it was to start from does not come into being.
                if self.check_recovery(&catalog, &entry).await.is_err() {
                    let names = vec![name.clone()];
                    self.catalog.change(|_| Ok(CatalogChange::Drop { names })).await?;
                    self.forget(&name, Some(&entry)).await;
                }
                return Err(error);
            }
        }
        Ok(true)
    }

    /// From now on the changes of `name`, if it is a view or table, go to its log. Its query restarts with the longer
    /// dataflow from a checkpoint, and first writes all rows that it holds.
    async fn forward(self: &Arc<Self>, name: &str) -> Result<(), SqlError> {
        let catalog = self.catalog.current();
        let Some(entry) = catalog.entry(name) else { return Ok(()) };
        if entry.forward || !entry.relation.is_readable() {
            return Ok(());
        }
        let relation = name.to_owned();
        let catalog = self.catalog.change(|_| Ok(CatalogChange::Forward { relation })).await?;
        if let Some(query) = self.queries.get(name)
            && let Err(error) = query.handle.stop(StopMode::WithCheckpoint).await
            && !query.handle.status().borrow().is_over()
        {
            return Err(from_runtime(error));
        }
        let Some(entry) = catalog.entry(name) else { return Ok(()) };
        let before = self.views.get(name).and_then(|view| view.handle.snapshot()).map(|cut| cut.epoch);
        self.start_query(&catalog, entry).await?;
        // Readers change over to the new run before the statement answers, so that a subscription made after it lasts.
        if let Some(view) = self.views.get(name) {
            let mut epochs = view.handle.epochs();
            let changed_over = epochs.wait_for(|epoch| epoch.is_some() && *epoch != before);
            if tokio::time::timeout(CHANGE_OVER_PATIENCE, changed_over).await.is_err() {
                tracing::warn!(query = name, "its restart takes long; it goes on in the background");
            }
        }
        Ok(())
    }

    /// The same for a reader that is no query of the catalog.
    pub(crate) async fn forward_for_reader(self: &Arc<Self>, name: &str) -> Result<(), SqlError> {
        let _turn = self.queries.turn.lock().await;
        self.forward(name).await
    }

    /// Drops relations and, with `cascade`, all that read them.
    pub(crate) async fn drop_relations(self: &Arc<Self>, names: &[String], cascade: bool) -> Result<Dropped, SqlError> {
        self.health()?;
        let _turn = self.queries.turn.lock().await;
        let mut entries: HashMap<String, Entry> = HashMap::new();
        let mut dropped = Vec::new();
        self.catalog
            .change(|catalog| {
                let order = catalog.cascade(names);
                let others: Vec<&String> = order.iter().filter(|n| !names.contains(n)).collect();
                if !others.is_empty() && !cascade {
                    let list = others.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ");
                    return Err(SqlError::new(
                        ErrorKind::DEPENDENT,
                        format!("cannot drop \"{}\" because others read it: {list}", names.join("\", \"")),
                    )
                    .hint("drop those first, or write DROP … CASCADE to drop them all"));
                }
                for name in &order {
                    if let Some(entry) = catalog.entry(name) {
                        entries.insert(name.clone(), entry.clone());
                    }
                }
                dropped.clone_from(&order);
                Ok(CatalogChange::Drop { names: order })
            })
            .await?;
        let mut notices = Vec::new();
        for name in &dropped {
            notices.extend(self.forget(name, entries.get(name)).await);
        }
        Ok(Dropped { names: dropped, notices })
    }

    /// Stops a dropped query and removes what it left, but for the checkpoints that are to stay; tells where those are.
    /// The catalog no longer names it, so what fails here costs only space.
    async fn forget(&self, name: &str, entry: Option<&Entry>) -> Vec<String> {
        let query = self.queries.running.write().remove(name);
        if let Some(query) = query
            && let Err(error) = query.handle.stop(StopMode::Now).await
        {
            tracing::warn!(query = name, %error, "stopped with an error while it was dropped");
        }
        self.views.close(name);
        self.rejects.forget(name);
        self.ingest.forget(name);
        let Some((entry, job)) = entry.and_then(|entry| Some((entry, JobId(entry.job.clone()?)))) else {
            return Vec::new();
        };
        let store = JobStore::new(&self.store, &job, Arc::clone(&self.fence));
        let removed = async {
            let kept = if keeps_checkpoints(&entry.relation.options) {
                keep_checkpoints(&store).await?
            } else {
                store.delete_all().await?;
                Vec::new()
            };
            self.delete_logs(&job).await?;
            Ok::<_, StorageError>(kept)
        };
        match removed.await {
            Ok(kept) => kept
                .into_iter()
                .map(|(checkpoint, url)| {
                    tracing::info!(query = name, %checkpoint, url, "checkpoint kept after DROP");
                    format!("checkpoint {checkpoint} of \"{name}\" is kept at {url}")
                })
                .collect(),
            Err(error) => {
                tracing::warn!(query = name, %error, "its objects in the store were not all removed");
                Vec::new()
            }
        }
    }

    /// The query of that name.
    pub(super) fn find_query(&self, name: &str) -> Result<Arc<RunningQuery>, SqlError> {
        if let Some(query) = self.queries.get(name) {
            return Ok(query);
        }
        let catalog = self.catalog.current();
        let relation = catalog.find(name)?;
        let message = if has_job(relation) {
            format!("query \"{name}\" could not be started; the server's log says why")
        } else {
            format!("{} \"{name}\" has no query of its own", relation.kind.name())
        };
        Err(SqlError::new(ErrorKind::QUERY_STATE, message).hint("SHOW QUERIES lists the queries"))
    }

    /// Pause or resume a query, durably.
    pub(crate) async fn set_paused(&self, name: &str, paused: bool) -> Result<(), SqlError> {
        self.health()?;
        let query = self.find_query(name)?;
        let change = CatalogChange::Pause { query: name.to_owned(), paused };
        self.catalog
            .change(|catalog| {
                catalog.find(name)?;
                Ok(change)
            })
            .await?;
        if paused {
            query.handle.pause().await;
        } else {
            query.handle.resume().await;
        }
        Ok(())
    }

    /// Take a checkpoint of a query now.
    pub(crate) async fn checkpoint_now(&self, name: &str) -> Result<CheckpointInfo, SqlError> {
        self.health()?;
        self.find_query(name)?.handle.checkpoint().await.map_err(from_runtime)
    }

    /// Wait until every query whose input is bounded has read all of it.
    pub async fn drain(&self) -> Result<(), SqlError> {
        loop {
            let waiting: Vec<Arc<RunningQuery>> = self
                .queries
                .all()
                .into_iter()
                .filter(|q| self.is_bounded(&q.relation) && !q.handle.status().borrow().is_over())
                .collect();
            if waiting.is_empty() {
                return Ok(());
            }
            for query in waiting {
                if let JobStatus::Failed { reason } = query.handle.finished().await {
                    return Err(SqlError::new(
                        ErrorKind::QUERY_STATE,
                        format!("query \"{}\" failed: {reason}", query.relation.name),
                    ));
                }
            }
        }
    }

    /// Whether all that a relation reads ends some day.
    pub(crate) fn is_bounded(&self, relation: &Relation) -> bool {
        if relation.query.is_none() {
            return self.has_bounded_input(relation);
        }
        let catalog = self.catalog.current();
        relation.reads.iter().all(|read| catalog.get(read).is_some_and(|r| self.is_bounded(r)))
    }

    /// Plans a query that no relation is created for.
    pub(crate) fn plan_reader(&self, sql: &str, options: &Options) -> Result<Planned, SqlError> {
        let target = Target::Reader { name: "reader".to_owned() };
        self.planner.plan_sql(&self.catalog.current(), sql, &target, self.parallelism(options)?)
    }

    /// Take a last checkpoint of every query and stop it.
    pub(super) async fn stop_queries(&self) {
        let stops = self.queries.all().into_iter().map(|query| async move {
            if let Err(error) = query.handle.stop(StopMode::WithCheckpoint).await {
                tracing::warn!(query = %query.relation.name, %error, "no last checkpoint; it will go on from the one before");
            }
        });
        join_all(stops).await;
    }

    /// Stop every query at once, writing nothing: the store belongs to another process.
    pub(super) async fn abandon_queries(&self) {
        join_all(self.queries.all().into_iter().map(|query| async move {
            let _ = query.handle.stop(StopMode::Now).await;
        }))
        .await;
    }

    /// State of a query for people; `None` when there is none of that name.
    pub(super) fn query_state(&self, name: &str) -> Option<String> {
        self.queries.get(name).map(|q| status_name(&q.handle.status().borrow()).to_owned())
    }

    async fn end_log(&self, job: &JobId) -> Result<(), SqlError> {
        weir_connectors::log::end_log(&self.log_of(job), &self.fence).await.map(|_| ()).map_err(from_storage)
    }
}

/// What DROP did.
pub(crate) struct Dropped {
    /// The relations that are gone.
    pub(crate) names: Vec<String>,
    /// What stays of them, for people.
    pub(crate) notices: Vec<String>,
}

/// Whether the checkpoints of a query stay when it is dropped. Options that cannot be read any more delete nothing.
fn keeps_checkpoints(options: &BTreeMap<String, String>) -> bool {
    let options = Options::from_changed(options).and_then(|options| job_options::checkpointing(&options));
    options.map_or(true, |options| options.retention == Retention::Retain)
}

/// Removes of a job that has ended all that none of its complete checkpoints needs. Answers those, with their URLs.
async fn keep_checkpoints(store: &JobStore) -> Result<Vec<(CheckpointId, String)>, StorageError> {
    let mut manifests = Vec::new();
    for id in store.list().await? {
        manifests.push(store.read(id).await?);
    }
    if manifests.is_empty() {
        store.delete_all().await?;
        return Ok(Vec::new());
    }
    store.clean_up(&manifests, None, Duration::ZERO).await?;
    Ok(manifests.iter().map(|manifest| (manifest.checkpoint, store.manifest_url(manifest.checkpoint))).collect())
}

/// Whether a relation is kept up by a running job: every query, and every table.
pub(super) fn has_job(relation: &Relation) -> bool {
    relation.query.is_some() || relation.kind == RelationKind::Table
}

/// When a job was created, from its id (UUID version 7 carries the time).
pub(super) fn created_at(job: &JobId) -> i64 {
    let unique = job.0.rsplit('-').next().unwrap_or_default();
    uuid::Uuid::try_parse(unique)
        .ok()
        .and_then(|id| id.get_timestamp())
        .map(|t| {
            let (seconds, nanos) = t.to_unix();
            i64::try_from(seconds * 1000).unwrap_or(0) + i64::from(nanos / 1_000_000)
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_id_tells_when_it_was_created() {
        let before = chrono::Utc::now().timestamp_millis();
        let created = created_at(&JobId::create("by_carrier"));
        assert!((before..=chrono::Utc::now().timestamp_millis()).contains(&created));
        assert_eq!(created_at(&JobId("odd".into())), 0);
    }

    #[test]
    fn checkpoints_stay_when_the_query_was_told_so() {
        let keeps = |retention: Option<&str>| {
            let name = "execution.checkpointing.externalized-checkpoint-retention".to_owned();
            keeps_checkpoints(&retention.map(|value| (name, value.to_owned())).into_iter().collect())
        };
        assert!(!keeps(None));
        assert!(!keeps(Some("DELETE_ON_CANCELLATION")));
        assert!(!keeps(Some("NO_EXTERNALIZED_CHECKPOINTS")));
        assert!(keeps(Some("RETAIN_ON_CANCELLATION")));
        assert!(keeps(Some("A_WORD_OF_ANOTHER_VERSION")), "what is not understood deletes nothing");
    }
}
