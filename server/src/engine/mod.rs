//! The engine behind all doors: one store, one catalog, the running queries.
//!
//! ```text
//!   Engine::start ─► Store::open ─► probe ─► Fence::acquire ─► CatalogLog ─► start every query (dependencies first)
//!
//!   catalog.rs   what there is: durable changes, and a cheap copy for each statement
//!   queries.rs   the running queries: start, restart with another graph, pause, drop
//!   savepoints.rs, restore.rs   copies of checkpoints, and queries that go on from one
//!   resolver.rs  opens what a graph names: connectors and relations' logs
//!   views.rs     what can be read: the door between a materialization and its readers
//!   logs.rs      keeps relations' logs short
//!   ingest.rs    rows from outside: INSERT and HTTP
//!   status.rs    what SHOW, REST and the dashboard tell
//! ```

mod catalog;
mod info;
mod ingest;
mod job_options;
mod logs;
mod queries;
mod resolver;
mod restore;
mod savepoints;
mod status;
mod views;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use thread_priority::{ThreadPriority, ThreadPriorityValue, set_current_thread_priority};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_planner::{Catalog, ErrorKind, Planner, Relation, SqlError};
use weir_runtime::pins::Pins;
use weir_storage::{Fence, OwnerInfo, StateResources, Store};

pub use info::{CheckpointRow, IngestReceipt, InputInfo, OperatorInfo, QueryInfo};
pub(crate) use job_options::{channel_bytes, epoch_interval};
pub(crate) use resolver::is_connector;
pub use views::ReadableView;

use crate::config::Config;
use crate::error::{from_datafusion, from_storage};
use crate::rejects::UnownedRows;
use crate::serving::Batch;
use crate::session::Session;
use catalog::DurableCatalog;
use ingest::Ingest;
use logs::LogReaders;
use queries::Queries;
use status::BackPressure;
use views::ViewRegistry;

/// Priority of threads that run dataflows, of 0 to 99; others have the 50 that a process starts with. On Linux: nice 5.
const DATAFLOW_PRIORITY: u8 = 35;
/// How often the lease on the store is renewed; a third of what makes it expire.
const LEASE_RENEWAL: Duration = Duration::from_secs(3);

/// The engine. Shared by all doors; dropping it without [`Engine::shutdown`] is what a crash does.
pub struct Engine {
    /// How it was started.
    pub config: Config,
    store: Store,
    fence: Arc<Fence>,
    catalog: DurableCatalog,
    planner: Planner,
    queries: Queries,
    views: Arc<ViewRegistry>,
    ingest: Ingest,
    logs: LogReaders,
    rejects: Arc<UnownedRows>,
    back_pressure: BackPressure,
    state: StateResources,
    batch: Batch,
    pins: Pins,
    cpu: tokio::runtime::Handle,
    /// Owns the dataflow threads; taken at shutdown, because a runtime must not be dropped inside another.
    cpu_runtime: RwLock<Option<tokio::runtime::Runtime>>,
    fenced: RwLock<Option<String>>,
    stopping: CancellationToken,
    lease: RwLock<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Open (or create) the store, prove that it works, take it over from a dead predecessor, recover all queries.
    pub async fn start(config: Config) -> Result<Arc<Engine>, SqlError> {
        std::fs::create_dir_all(&config.data_dir).map_err(|e| {
            SqlError::new(ErrorKind::STORAGE, format!("cannot create the directory {}: {e}", config.data_dir.display()))
                .hint("give a directory that this user can write with --data-dir")
        })?;
        let store = Store::open(&config.store, &config.store_options).map_err(from_storage)?;
        store.probe().await.map_err(from_storage)?;
        let fence = Arc::new(Fence::acquire(&store, OwnerInfo::current()).await.map_err(from_storage)?);
        tracing::info!(store = store.url(), generation = %fence.generation(), "store opened");
        let catalog = DurableCatalog::open(&store, Arc::clone(&fence)).await?;
        let cpu_runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(crate::config::cores() as usize)
            .thread_name("weir-dataflow")
            // Whoever answers somebody comes first: a point read takes microseconds, a dataflow takes all it gets.
            .on_thread_start(give_way)
            .enable_all()
            .build()
            .map_err(|e| SqlError::new(ErrorKind::INTERNAL, format!("cannot start the dataflow threads: {e}")))?;
        let state_memory = usize::try_from(config.options.bytes("state.memory.bytes")?).unwrap_or(usize::MAX);
        let batch_memory = usize::try_from(config.options.bytes("batch.memory.bytes")?).unwrap_or(usize::MAX);
        let engine = Arc::new(Engine {
            planner: Planner::new(),
            queries: Queries::default(),
            views: Arc::default(),
            ingest: Ingest::default(),
            logs: LogReaders::default(),
            rejects: Arc::default(),
            back_pressure: BackPressure::default(),
            state: StateResources::new(state_memory),
            batch: Batch::new(crate::config::cores() as usize, batch_memory).map_err(from_datafusion)?,
            pins: Pins::default(),
            cpu: cpu_runtime.handle().clone(),
            cpu_runtime: RwLock::new(Some(cpu_runtime)),
            fenced: RwLock::new(None),
            stopping: CancellationToken::new(),
            lease: RwLock::new(None),
            config,
            store,
            fence,
            catalog,
        });
        *engine.lease.write() = Some(tokio::spawn(keep_lease(Arc::clone(&engine))));
        engine.recover_queries().await?;
        tokio::spawn(logs::keep_logs_short(Arc::downgrade(&engine)));
        Ok(engine)
    }

    /// A new session for `user`.
    pub fn session(self: &Arc<Self>, user: &str) -> Session {
        Session::new(Arc::clone(self), user)
    }

    /// The catalog at this moment.
    pub fn catalog(&self) -> Catalog {
        self.catalog.current()
    }

    /// All streams, tables, views and sinks, by name.
    pub fn relations(&self) -> Vec<Arc<Relation>> {
        self.catalog.current().iter().cloned().collect()
    }

    /// Bad rows that were read for no query.
    pub fn rejects(&self) -> &Arc<UnownedRows> {
        &self.rejects
    }

    /// Where everything durable is, as an absolute URL.
    pub fn store_url(&self) -> &str {
        self.store.url()
    }

    /// What batch queries share.
    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(crate) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Whether the engine serves: it has not lost its store to another process.
    pub fn health(&self) -> Result<(), SqlError> {
        match self.fenced.read().as_ref() {
            None => Ok(()),
            Some(reason) => Err(SqlError::new(ErrorKind::FENCED, reason.clone())
                .hint("connect to the process that owns the store now, and stop this one")),
        }
    }

    /// Take a last checkpoint of every query, stop them and release the store.
    pub async fn shutdown(&self) {
        if self.stopping.is_cancelled() {
            return;
        }
        self.stopping.cancel();
        self.stop_queries().await;
        if let Some(lease) = self.lease.write().take() {
            lease.abort();
        }
        if let Err(error) = self.fence.release().await {
            tracing::warn!(%error, "the lease on the store was not released; it expires by itself");
        }
        if let Some(runtime) = self.cpu_runtime.write().take() {
            runtime.shutdown_background();
        }
        tracing::info!("stopped");
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(runtime) = self.cpu_runtime.write().take() {
            runtime.shutdown_background();
        }
    }
}

/// Lets the other threads of the process go before this one when they have something to do. Where the system does not
/// allow it, all stay equal.
fn give_way() {
    if let Ok(priority) = ThreadPriorityValue::try_from(DATAFLOW_PRIORITY)
        && let Err(error) = set_current_thread_priority(ThreadPriority::Crossplatform(priority))
    {
        tracing::debug!(%error, "dataflow threads keep the priority of all others");
    }
}

/// Renews the lease on the store; when another process has taken it over, stops everything: two owners would write
/// the same checkpoints.
async fn keep_lease(engine: Arc<Engine>) {
    loop {
        tokio::select! {
            () = engine.stopping.cancelled() => return,
            () = tokio::time::sleep(LEASE_RENEWAL) => {}
        }
        match engine.fence.renew().await {
            Ok(()) => {}
            Err(error @ weir_storage::StorageError::Fenced { .. }) => {
                tracing::error!(%error, "stopping all queries");
                *engine.fenced.write() = Some(error.to_string());
                engine.abandon_queries().await;
                return;
            }
            Err(error) => tracing::warn!(%error, "the lease on the store could not be renewed; trying again"),
        }
    }
}
