//! What batch queries share: settings and functions, a limit of memory, and threads of their own.
//!
//! A query that computes for seconds must hold up neither the doors (somebody may want to cancel it) nor the dataflows
//! (their barriers would wait), so it runs on neither's threads.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::{StreamExt, stream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{DATABASE, yielding};

/// Batches that wait for a client who reads slowly.
const AHEAD: usize = 2;
/// Consumers of memory that an error about its end names.
const NAMED_CONSUMERS: usize = 3;

/// The base of every statement's context.
pub(crate) struct Batch {
    state: SessionState,
    /// Taken when dropped: a runtime must not wait for its threads inside another.
    threads: Option<Runtime>,
}

impl Batch {
    /// Threads for `parallelism` partitions at a time, which may use `memory` bytes together before they spill to disk.
    ///
    /// # Errors
    ///
    /// When threads cannot be started or there is no directory for temporary files.
    pub(crate) fn new(parallelism: usize, memory: usize) -> Result<Self> {
        let threads = Builder::new_multi_thread()
            .worker_threads(parallelism)
            .thread_name("weir-batch")
            .enable_all()
            .build()
            .map_err(DataFusionError::IoError)?;
        let named = std::num::NonZeroUsize::new(NAMED_CONSUMERS).unwrap_or(std::num::NonZeroUsize::MIN);
        let pool = TrackConsumersPool::new(FairSpillPool::new(memory), named);
        let environment = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(pool)).build_arc()?;
        let config = SessionConfig::new()
            .with_default_catalog_and_schema(DATABASE, "public")
            .with_create_default_catalog_and_schema(false)
            .with_information_schema(false)
            .with_target_partitions(parallelism)
            .with_extension(Arc::new(Threads(threads.handle().clone())))
            .set_str("datafusion.sql_parser.dialect", "postgresql");
        let builder = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(environment)
            .with_default_features()
            .with_physical_optimizer_rule(Arc::new(yielding::YieldAfterMultipliers));
        Ok(Self { state: weir_planner::register_functions(builder).build(), threads: Some(threads) })
    }

    /// Functions, optimizer rules and settings common to all statements; made once, which keeps a point read cheap.
    pub(crate) fn state(&self) -> &SessionState {
        &self.state
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

/// Where the queries of a context compute; an extension of its configuration.
struct Threads(Handle);

/// Runs a plan on the threads of batch queries, for as long as somebody holds its rows.
///
/// # Errors
///
/// When the plan cannot be started; what fails later is in the rows.
pub(crate) fn compute(plan: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
    match context.session_config().get_extension::<Threads>() {
        Some(threads) => Ok(compute_on(&threads.0, plan, context)),
        None => execute_stream(plan, context),
    }
}

fn compute_on(threads: &Handle, plan: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>) -> SendableRecordBatchStream {
    let schema = plan.schema();
    let (filled, batches) = mpsc::channel(AHEAD);
    let task = AbortOnDropHandle::new(threads.spawn(async move {
        let mut rows = match execute_stream(plan, context) {
            Ok(rows) => rows,
            Err(error) => {
                let _ = filled.send(Err(error)).await;
                return;
            }
        };
        while let Some(batch) = rows.next().await {
            if filled.send(batch).await.is_err() {
                return;
            }
        }
    }));
    let rows = stream::unfold(Some((batches, task)), |state| async {
        let (mut batches, task) = state?;
        match batches.recv().await {
            Some(batch) => Some((batch, Some((batches, task)))),
            // The end, or a fault that would otherwise look like one.
            None => task.await.err().map(|fault| (Err(DataFusionError::ExecutionJoin(Box::new(fault))), None)),
        }
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;
    use futures::TryStreamExt;

    use super::*;

    async fn rows(batch: &Batch, sql: &str) -> SendableRecordBatchStream {
        let context = SessionContext::new_with_state(batch.state().clone());
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        compute(plan, context.task_ctx()).unwrap()
    }

    #[tokio::test]
    async fn rows_come_from_threads_of_their_own() {
        let batch = Batch::new(2, 64 << 20).unwrap();
        let rows: Vec<_> =
            rows(&batch, "SELECT value FROM generate_series(1, 100000)").await.try_collect().await.unwrap();
        assert_eq!(rows.iter().map(|b| b.num_rows()).sum::<usize>(), 100_000);
    }

    #[tokio::test]
    async fn an_error_on_the_way_is_told() {
        let batch = Batch::new(1, 64 << 20).unwrap();
        let sql = "SELECT 10 / (5000 - value) FROM generate_series(1, 100000)";
        let rows: Result<Vec<_>> = rows(&batch, sql).await.try_collect().await;
        assert!(rows.unwrap_err().to_string().to_lowercase().contains("zero"));
    }

    #[tokio::test]
    async fn memory_has_a_limit() {
        let batch = Batch::new(1, 1 << 20).unwrap();
        let sql = "SELECT array_agg(value) FROM generate_series(1, 3000000)";
        let rows: Result<Vec<_>> = rows(&batch, sql).await.try_collect().await;
        assert!(matches!(rows.unwrap_err().find_root(), DataFusionError::ResourcesExhausted(_)));
    }

    /// The doors' only thread stays free while a query computes.
    #[tokio::test(flavor = "current_thread")]
    async fn a_dropped_query_is_given_up() {
        let batch = Batch::new(1, 64 << 20).unwrap();
        let endless = "SELECT count(*) FROM generate_series(1, 1000000) a CROSS JOIN generate_series(1, 1000000) b";
        drop(rows(&batch, endless).await);
        let rows: Vec<_> = rows(&batch, "SELECT 1").await.try_collect().await.unwrap();
        assert_eq!(rows[0].num_rows(), 1);
    }
}
