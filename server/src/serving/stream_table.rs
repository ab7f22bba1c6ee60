//! A bounded stream as a DataFusion table: `SELECT … FROM stream` reads it through once, from its beginning.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, Result as DfResult};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use parking_lot::Mutex;
use weir_planner::{ErrorKind, Relation, SqlError};
use weir_runtime::RuntimeError;
use weir_runtime::graph::{OperatorSpec, SourceSpec};
use weir_runtime::source::{Source, SourceEvent, SplitState};

use crate::engine::{Engine, is_connector};
use crate::rejects::UnownedRows;

/// Batches that may wait for the query to take them.
const BATCHES_AHEAD: usize = 2;

/// A stream whose input ends.
pub(super) struct StreamTable {
    engine: Arc<Engine>,
    relation: Arc<Relation>,
    spec: SourceSpec,
    schema: SchemaRef,
}

impl fmt::Debug for StreamTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamTable").field("relation", &self.relation.name).finish()
    }
}

impl StreamTable {
    /// Refuses a stream without end.
    pub(super) fn open(engine: &Arc<Engine>, relation: &Arc<Relation>) -> Result<Self, SqlError> {
        if is_connector(relation) && !engine.is_bounded(relation) {
            return Err(SqlError::new(
                ErrorKind::NOT_STREAMABLE,
                format!("stream \"{}\" has no end, so a SELECT over it would have none", relation.name),
            )
            .hint(format!(
                "write SELECT … FROM {} EMIT CHANGES to follow it, or create a materialized view and SELECT from that",
                relation.name
            )));
        }
        let quoted = relation.name.replace('"', "\"\"");
        let planned = engine.plan_reader(&format!("SELECT * FROM \"{quoted}\""), &engine.config.options)?;
        let node = planned.graph.nodes.into_iter().find_map(|node| match node.spec {
            OperatorSpec::Source(spec) => Some((spec, node.schema)),
            _ => None,
        });
        let (spec, schema) = node.ok_or_else(|| {
            SqlError::new(ErrorKind::INTERNAL, format!("stream \"{}\" was planned without a source", relation.name))
        })?;
        Ok(Self { engine: Arc::clone(engine), relation: Arc::clone(relation), spec, schema })
    }

    /// The source, ending where it ends now.
    async fn source(&self) -> Result<Arc<dyn Source>, RuntimeError> {
        if !is_connector(&self.relation) {
            return self.engine.log_until_now(&self.relation, &self.spec.request).await;
        }
        self.engine.open_connector(&self.relation.connector, &self.spec.request)
    }
}

#[async_trait]
impl TableProvider for StreamTable {
    fn schema(&self) -> SchemaRef {
        self.relation.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let source = self.source().await.map_err(external)?;
        let splits = source.discover(&[], self.engine.config.parallelism).await.map_err(external)?;
        let projected = match projection {
            Some(columns) => Arc::new(self.schema().project(columns)?),
            None => self.schema(),
        };
        // All splits share one queue; each partition takes the next when it has finished one.
        let queue = Arc::new(Mutex::new(VecDeque::from(splits)));
        let partitions: Vec<Arc<dyn PartitionStream>> = (0..self.engine.config.parallelism)
            .map(|_| {
                Arc::new(SplitScan {
                    source: Arc::clone(&source),
                    queue: Arc::clone(&queue),
                    spec: self.spec.clone(),
                    full: Arc::clone(&self.schema),
                    projection: projection.cloned(),
                    projected: Arc::clone(&projected),
                    rejects: Arc::clone(self.engine.rejects()),
                }) as Arc<dyn PartitionStream>
            })
            .collect();
        Ok(Arc::new(StreamingTableExec::try_new(projected, partitions, None, Vec::new(), false, limit)?))
    }
}

/// One partition: reads splits from the queue until none is left.
struct SplitScan {
    source: Arc<dyn Source>,
    queue: Arc<Mutex<VecDeque<SplitState>>>,
    spec: SourceSpec,
    full: SchemaRef,
    projection: Option<Vec<usize>>,
    projected: SchemaRef,
    rejects: Arc<UnownedRows>,
}

impl fmt::Debug for SplitScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitScan").field("relation", &self.spec.request.relation).finish()
    }
}

impl PartitionStream for SplitScan {
    fn schema(&self) -> &SchemaRef {
        &self.projected
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.projected), BATCHES_AHEAD);
        let sender = builder.tx();
        let (source, queue, spec) = (Arc::clone(&self.source), Arc::clone(&self.queue), self.spec.clone());
        let (full, projection, rejects) = (Arc::clone(&self.full), self.projection.clone(), Arc::clone(&self.rejects));
        builder.spawn(async move {
            loop {
                let Some(split) = queue.lock().pop_front() else { return Ok(()) };
                let mut reader = source.reader(vec![split]).await.map_err(external)?;
                loop {
                    match reader.next().await.map_err(external)? {
                        SourceEvent::Rows { batch, bad, .. } => {
                            if !bad.is_empty() {
                                rejects.add(&spec.request.relation, bad);
                            }
                            let rows = output_columns(&spec, &full, &batch, projection.as_deref())?;
                            if rows.num_rows() > 0 && sender.send(Ok(rows)).await.is_err() {
                                return Ok(());
                            }
                        }
                        SourceEvent::SplitFinished { .. } | SourceEvent::End => break,
                        SourceEvent::Watermark { .. } => {}
                        SourceEvent::Idle(pause) => tokio::time::sleep(pause).await,
                    }
                }
            }
        });
        builder.build()
    }
}

/// The relation's columns out of what the source read: references, casts, generated columns.
fn output_columns(
    spec: &SourceSpec,
    schema: &SchemaRef,
    batch: &RecordBatch,
    projection: Option<&[usize]>,
) -> DfResult<RecordBatch> {
    let wanted: Vec<usize> = projection.map_or_else(|| (0..spec.columns.len()).collect(), <[usize]>::to_vec);
    let columns = wanted
        .iter()
        .map(|&i| spec.columns[i].evaluate(batch)?.into_array(batch.num_rows()))
        .collect::<DfResult<Vec<_>>>()?;
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::new(schema.project(&wanted)?), columns, &options)?)
}

fn external(error: RuntimeError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
