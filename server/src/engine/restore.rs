//! Queries that go on from a savepoint or checkpoint: one that runs already, or a new one.
//!
//! ```text
//!   locate ─► does the dataflow have every operator, do the logs still hold the positions? ─► stop
//!          ─► JobStore::adopt: copied into the job's directory as its newest checkpoint (the manifest decides) ─► start
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use weir_planner::{Catalog, Entry, ErrorKind, Options, RelationKind, SqlError};
use weir_runtime::graph::Graph;
use weir_runtime::job::{JobStatus, StopMode};
use weir_storage::{CheckpointId, Epoch, JobId, JobStore, Located, OperatorUid, StorageError, locate};

use super::Engine;
use super::queries::created_at;
use super::savepoints::{is_gone, logs_read};
use crate::error::{from_runtime, from_storage};

/// Where a new query starts from.
const PATH: &str = "execution.state-recovery.path";
/// How long RESTORE waits for the query to run again.
const PATIENCE: Duration = Duration::from_secs(30);

/// What RESTORE did.
pub(crate) struct RestoredQuery {
    /// URL of the manifest that it goes on from.
    pub(crate) url: String,
    /// What the user should know.
    pub(crate) notices: Vec<String>,
}

impl Engine {
    /// `RESTORE QUERY`: the query goes on from there. What it had done since stands in its earlier checkpoints until
    /// those are no longer retained.
    pub(crate) async fn restore_query(
        self: &Arc<Self>,
        query: &str,
        url: &str,
        claim: bool,
    ) -> Result<RestoredQuery, SqlError> {
        self.health()?;
        let _turn = self.queries.turn.lock().await;
        let catalog = self.catalog.current();
        let relation = Arc::clone(catalog.find(query)?);
        let entry = catalog.entry(query).filter(|entry| entry.job.is_some() && relation.is_query());
        let Some((entry, job)) = entry.and_then(|entry| Some((entry, JobId(entry.job.clone()?)))) else {
            return Err(SqlError::new(
                ErrorKind::QUERY_STATE,
                format!("{} \"{query}\" has no query that could be restored", relation.kind.name()),
            )
            .hint("views, sinks and derived streams have; SHOW QUERIES lists them"));
        };
        if entry.forward || relation.kind == RelationKind::Stream {
            return Err(self.has_a_log(&catalog, query));
        }
        let options = Options::from_changed(&relation.options)?;
        let found = self.locate(url).await?;
        let graph = self.graph_of(&catalog, entry, &options)?;
        self.check_restorable(&catalog, query, &graph, &found, &options).await?;
        let store = JobStore::new(&self.store, &job, Arc::clone(&self.fence));
        let own = found.directory_url() == store.url();
        let claim = claim && !own;
        if claim {
            self.check_claimable(&catalog, &found)?;
        }
        if let Some(running) = self.queries.get(query) {
            running.handle.stop(StopMode::Now).await.map_err(from_runtime)?;
        }
        let adopted = self.adopt(&store, &found).await;
        // Whatever became of that, the query runs again: from there, or from where it was.
        let started = self.start_query(&catalog, entry).await;
        let url = adopted.map_err(from_storage)?;
        let running = started?;
        let mut notices = Vec::new();
        if claim {
            notices.push(self.claim(&found).await);
        }
        if relation.kind == RelationKind::Sink {
            notices.push(format!(
                "what sink \"{query}\" had committed since then stays, and is written a second time as the rows come again"
            ));
        }
        let mut status = running.handle.status();
        let begun = status.wait_for(|status| !matches!(status, JobStatus::Created | JobStatus::Restoring));
        match tokio::time::timeout(PATIENCE, begun).await {
            Err(_) => notices.push(format!("the restore of \"{query}\" takes long; it goes on in the background")),
            Ok(Err(_)) => {}
            Ok(Ok(status)) => {
                if let JobStatus::Restarting { reason, .. } | JobStatus::Failed { reason } = &*status {
                    return Err(SqlError::new(
                        ErrorKind::NOT_RESTORABLE,
                        format!("query \"{query}\" goes on from {url}, but does not start: {reason}"),
                    )
                    .hint("restore another checkpoint of SHOW CHECKPOINTS FOR QUERY, or drop the query"));
                }
            }
        }
        Ok(RestoredQuery { url, notices })
    }

    /// A new query that is to start from a savepoint: finds out whether it can, before it exists.
    pub(super) async fn check_recovery(&self, catalog: &Catalog, entry: &Entry) -> Result<(), SqlError> {
        let options = Options::from_changed(&entry.relation.options)?;
        if entry.relation.query.is_none() || options.get(PATH)?.is_empty() {
            return Ok(());
        }
        let found = self.locate(options.get(PATH)?).await?;
        if claims(&options)? {
            self.check_claimable(catalog, &found)?;
        }
        let graph = self.graph_of(catalog, entry, &options)?;
        self.check_restorable(catalog, &entry.relation.name, &graph, &found, &options).await
    }

    /// Gives a query that has no checkpoint yet the one that it is to start from, if it is to start from one. Done again
    /// when the process died on the way.
    pub(super) async fn recover_state(&self, catalog: &Catalog, entry: &Entry, graph: &Graph) -> Result<(), SqlError> {
        let options = Options::from_changed(&entry.relation.options)?;
        let path = options.get(PATH)?;
        let (Some(job), true) = (&entry.job, entry.relation.query.is_some() && !path.is_empty()) else { return Ok(()) };
        let store = JobStore::new(&self.store, &JobId(job.clone()), Arc::clone(&self.fence));
        if !store.list().await.map_err(from_storage)?.is_empty() {
            return Ok(());
        }
        let found = self.locate(path).await?;
        self.check_restorable(catalog, &entry.relation.name, graph, &found, &options).await?;
        let url = self.adopt(&store, &found).await.map_err(from_storage)?;
        tracing::info!(query = %entry.relation.name, from = found.url(), url, "starts from another's state");
        if claims(&options)? {
            self.claim(&found).await;
        }
        Ok(())
    }

    async fn locate(&self, url: &str) -> Result<Located, SqlError> {
        locate(url, &self.config.store_options).await.map_err(|error| match is_gone(&error) {
            true => SqlError::new(
                ErrorKind::UNDEFINED_SAVEPOINT,
                format!("there is no complete savepoint or checkpoint at {url}"),
            )
            .hint("SHOW SAVEPOINTS and SHOW CHECKPOINTS list them with their URLs"),
            false => from_storage(error),
        })
    }

    /// Makes it the job's newest checkpoint.
    async fn adopt(&self, store: &JobStore, found: &Located) -> Result<String, StorageError> {
        let newest = store.list().await?.last().copied();
        // The newest may be what cannot be read, and the reason to go back.
        let epoch = match newest {
            Some(id) => store.read(id).await.map_or(Epoch(0), |manifest| manifest.epoch),
            None => Epoch(0),
        };
        let is_newest = found.directory_url() == store.url() && newest == Some(found.manifest.checkpoint);
        let next = newest.unwrap_or(CheckpointId(0)).next();
        let info = store.adopt(found, next, epoch, self.fence.generation(), is_newest).await?;
        Ok(info.url)
    }

    /// Removes what the query has made its own. It has it already, so a failure costs only space.
    async fn claim(&self, found: &Located) -> String {
        let removed = async {
            found.delete().await.map_err(from_storage)?;
            self.forget_savepoint(&found.directory_url()).await
        };
        match removed.await {
            Ok(()) => format!("{} was claimed and is removed", found.url()),
            Err(error) => {
                tracing::warn!(url = found.url(), %error, "what was claimed could not be removed");
                format!("{} was claimed, but not removed: {error}", found.url())
            }
        }
    }

    fn check_claimable(&self, catalog: &Catalog, found: &Located) -> Result<(), SqlError> {
        let of = |entry: &&Entry| {
            let job = entry.job.clone().map(JobId);
            job.is_some_and(|job| JobStore::read_only(&self.store, &job).url() == found.directory_url())
        };
        match catalog.entries().find(of) {
            None => Ok(()),
            Some(owner) => Err(SqlError::new(
                ErrorKind::OPTION_CONFLICT,
                format!("{} belongs to query \"{}\", which may still need it", found.url(), owner.relation.name),
            )
            .hint("restore with NO CLAIM, or take a savepoint of that query and claim it")),
        }
    }

    fn has_a_log(&self, catalog: &Catalog, query: &str) -> SqlError {
        let readers = catalog.dependents_of(query);
        let (message, hint) = match readers.as_slice() {
            [] => (
                format!("\"{query}\" has written its changes to a log, which cannot be taken back"),
                format!("create it anew with WITH ('{PATH}' = 'url')"),
            ),
            readers => (
                format!("\"{query}\" cannot go back: {} read what it has written since", readers.join(", ")),
                format!("drop those, and create it and them anew with WITH ('{PATH}' = 'url')"),
            ),
        };
        SqlError::new(ErrorKind::DEPENDENT, message).hint(hint)
    }

    /// Whether a dataflow can go on from there.
    async fn check_restorable(
        &self,
        catalog: &Catalog,
        query: &str,
        graph: &Graph,
        found: &Located,
        options: &Options,
    ) -> Result<(), SqlError> {
        let (manifest, url) = (&found.manifest, found.url());
        let mut graph = graph.clone();
        graph.keep_names_of(manifest);
        let refuse = |message: String, hint: &str| Err(SqlError::new(ErrorKind::NOT_RESTORABLE, message).hint(hint));
        let known = |uid: &OperatorUid| graph.nodes.iter().any(|node| node.uid == *uid);
        let unclaimed: Vec<String> = manifest
            .operators
            .iter()
            .filter(|operator| !known(&operator.uid) && operator.has_state())
            .map(|operator| format!("\"{}\" ({})", operator.name, operator.uid))
            .collect();
        if !unclaimed.is_empty() && !options.is_on("execution.state-recovery.ignore-unclaimed-state")? {
            return refuse(
                format!(
                    "{url} holds state of operators that query \"{query}\" does not have: {}",
                    unclaimed.join(", ")
                ),
                "write the query as it was (weir checkpoint show prints it), or leave that state behind with \
                 execution.state-recovery.ignore-unclaimed-state = true",
            );
        }
        let groups = manifest.operators.iter().find(|o| known(&o.uid) && o.max_parallelism != graph.max_parallelism);
        if let Some(operator) = groups {
            let message = format!(
                "{url} has {} key groups and query \"{query}\" {}",
                operator.max_parallelism, graph.max_parallelism
            );
            let hint = format!("set pipeline.max-parallelism to {}", operator.max_parallelism);
            return refuse(message, &hint);
        }
        for (relation, job) in logs_read(catalog, &graph) {
            let is_now = match manifest.savepoint.as_ref().map(|about| about.inputs.get(&relation)) {
                Some(Some(then)) => *then == job,
                // It did not read that log: reading begins with what there is.
                Some(None) => continue,
                None => {
                    url.starts_with(&format!("{}/", self.store.url())) && created_at(&job) <= manifest.completed_at_ms
                }
            };
            if !is_now {
                return refuse(
                    format!("{url} stands in the log of another \"{relation}\", which was dropped or is elsewhere"),
                    "create the query without its state",
                );
            }
            let log = self.log_of(&job);
            let (first, head) = (log.first().await.map_err(from_storage)?, log.head().await.map_err(from_storage)?);
            let sources = graph.nodes.iter().filter(|node| {
                matches!(&node.spec, weir_runtime::graph::OperatorSpec::Source(s) if s.request.relation == relation)
            });
            for entry in sources.flat_map(|node| positions(found, &node.uid)) {
                if entry < first.0 || entry > head.0 + 1 {
                    return refuse(
                        format!(
                            "{url} stands at entry {entry} of the log of \"{relation}\", which holds {first} to {head}"
                        ),
                        "the option retention of a stream says how long its rows are kept; create the query without its \
                         state to begin with what is there",
                    );
                }
            }
        }
        Ok(())
    }
}

fn claims(options: &Options) -> Result<bool, SqlError> {
    Ok(options.get("execution.state-recovery.claim-mode")? == "CLAIM")
}

/// Where a source stands in a log.
fn positions(found: &Located, source: &OperatorUid) -> Vec<u64> {
    let operators = found.manifest.operators.iter().filter(|operator| operator.uid == *source);
    let tables = operators.flat_map(|operator| &operator.subtasks).map(|subtask| &subtask.source_splits);
    let splits = tables.filter_map(|table| table.get("splits").and_then(Value::as_array)).flatten();
    splits.filter_map(|split| split.pointer("/position/entry").and_then(Value::as_u64)).collect()
}
