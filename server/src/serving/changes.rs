//! Changes pushed to a reader: `SUBSCRIBE TO v`, and `SELECT … EMIT CHANGES` as a dataflow of its own.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int16Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::common::{DataFusionError, Result as DfResult};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use weir_planner::{ErrorKind, Options, Planned, SqlError};
use weir_runtime::RuntimeError;
use weir_runtime::graph::{Resolver, SinkSpec};
use weir_runtime::job::{self, JobStatus, StopMode};
use weir_runtime::message::Chunk;
use weir_runtime::options::{CheckpointOptions, RestartPolicy};
use weir_runtime::sink::{Prepared, Sink, SinkCommitter, SinkWriter};
use weir_runtime::source::{Source, SourceRequest};
use weir_storage::{CheckpointId, Epoch, Fence, JobId, OwnerInfo, Store, Subtask};

use crate::engine::{Engine, ReadableView};
use crate::error::from_storage;

/// Batches that may wait for a slow reader before it is cut off (subscriptions) or holds back its dataflow.
const BATCHES_AHEAD: usize = 16;

/// Columns that every subscription starts with.
const EPOCH: &str = "weir_epoch";
const DIFF: &str = "weir_diff";

/// `weir_epoch`, `weir_diff` (+1 insert, -1 delete; an update is a -1 and a +1 of one epoch), then the rows' columns.
pub(crate) fn subscription_schema(rows: &Schema) -> SchemaRef {
    let mut fields =
        vec![Arc::new(Field::new(EPOCH, DataType::Int64, false)), Arc::new(Field::new(DIFF, DataType::Int16, false))];
    fields.extend(rows.fields().iter().cloned());
    Arc::new(Schema::new(fields))
}

/// The changes of a view, after its rows at this moment if `snapshot`. Never ends by itself.
pub(crate) fn view_changes(view: &ReadableView, snapshot: bool) -> SendableRecordBatchStream {
    let schema = subscription_schema(view.handle.schema());
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let task = push_view_changes(view.clone(), snapshot, Arc::clone(&schema), sender);
    tokio::spawn(task);
    Box::pin(RecordBatchStreamAdapter::new(schema, ReceiverStream::new(receiver)))
}

async fn push_view_changes(
    view: ReadableView,
    with_snapshot: bool,
    schema: SchemaRef,
    sender: mpsc::Sender<DfResult<RecordBatch>>,
) {
    let (cut, mut changes) = view.handle.subscribe();
    if let Some(cut) = cut.filter(|_| with_snapshot) {
        let (codec, schema, rows) = (Arc::clone(&view.codec), Arc::clone(&schema), sender.clone());
        let scanned = tokio::task::spawn_blocking(move || {
            for batch in codec.scan(cut.parts, None)? {
                let batch = with_change_columns(&schema, cut.epoch, &Chunk::insert(batch?));
                if rows.blocking_send(batch).is_err() {
                    break;
                }
            }
            Ok::<(), RuntimeError>(())
        });
        if let Ok(Err(error)) = scanned.await {
            let _ = sender.send(Err(DataFusionError::External(Box::new(error)))).await;
            return;
        }
    }
    loop {
        let next = tokio::select! {
            () = sender.closed() => return,
            next = changes.recv() => next,
        };
        match next {
            Ok(epoch) => {
                for chunk in &epoch.chunks {
                    if chunk.is_empty() {
                        continue;
                    }
                    if sender.send(with_change_columns(&schema, epoch.epoch, chunk)).await.is_err() {
                        return;
                    }
                }
            }
            Err(RecvError::Lagged(missed)) => {
                let lost = SqlError::new(
                    ErrorKind::SUBSCRIPTION_LOST,
                    format!("the client reads too slowly: {missed} epochs of changes had to be dropped"),
                )
                .hint("subscribe again; the snapshot that comes first is the rows as they are now");
                let _ = sender.send(Err(DataFusionError::External(Box::new(lost)))).await;
                return;
            }
            Err(RecvError::Closed) => {
                let lost = SqlError::new(
                    ErrorKind::SUBSCRIPTION_LOST,
                    "the query was dropped, or restarted from a checkpoint: some changes would be sent a second time",
                )
                .hint("subscribe again; the snapshot that comes first is the rows as they are now");
                let _ = sender.send(Err(DataFusionError::External(Box::new(lost)))).await;
                return;
            }
        }
    }
}

fn with_change_columns(schema: &SchemaRef, epoch: Epoch, chunk: &Chunk) -> DfResult<RecordBatch> {
    let rows = chunk.num_rows();
    let epoch = i64::try_from(epoch.0).unwrap_or(i64::MAX);
    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_value(epoch, rows)), diffs(chunk)];
    columns.extend(chunk.batch().columns().iter().cloned());
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

fn diffs(chunk: &Chunk) -> ArrayRef {
    Arc::new(Int16Array::from_iter_values((0..chunk.num_rows()).map(|i| i16::from(chunk.op(i)))))
}

/// Runs a planned query for one reader: in memory, without checkpoints, until the reader goes or the input ends.
pub(crate) async fn follow_graph(
    engine: &Arc<Engine>,
    planned: Planned,
    sql: &str,
    options: &Options,
) -> Result<SendableRecordBatchStream, SqlError> {
    let rows = Arc::new(Schema::new(planned.columns.iter().map(|c| c.field()).collect::<Vec<_>>()));
    let schema = if planned.append_only {
        rows
    } else {
        let mut fields = vec![Arc::new(Field::new(DIFF, DataType::Int16, false))];
        fields.extend(rows.fields().iter().cloned());
        Arc::new(Schema::new(fields))
    };
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let name = "reader";
    let id = JobId::create(name);
    let store = Store::open("memory:", &Default::default()).map_err(from_storage)?;
    let fence = Arc::new(Fence::acquire(&store, OwnerInfo::current()).await.map_err(from_storage)?);
    let mut services = engine.job_services(name);
    services.store = store;
    services.fence = fence;
    services.resolver = Arc::new(ReaderResolver {
        inner: Arc::clone(&services.resolver),
        sink: Arc::new(ReaderSink { schema: Arc::clone(&schema), diff: !planned.append_only, sender: sender.clone() }),
    });
    let spec = job::JobSpec {
        id,
        name: name.to_owned(),
        sql: sql.to_owned(),
        graph: planned.graph,
        checkpointing: CheckpointOptions { interval: None, ..CheckpointOptions::default() },
        epoch_interval: crate::engine::epoch_interval(options)?,
        channel_bytes: crate::engine::channel_bytes(options)?,
        // A reader that failed is told so; starting over would send rows twice.
        restart: RestartPolicy { max_attempts: Some(0), ..RestartPolicy::default() },
        paused: false,
    };
    let handle = job::spawn(spec, services);
    tokio::spawn(async move {
        let status = tokio::select! {
            () = sender.closed() => JobStatus::Stopped,
            status = handle.finished() => status,
        };
        match status {
            JobStatus::Failed { reason } => {
                let failed = SqlError::new(ErrorKind::QUERY_STATE, format!("the query failed: {reason}"));
                let _ = sender.send(Err(DataFusionError::External(Box::new(failed)))).await;
            }
            JobStatus::Finished => {}
            _ => {
                if let Err(error) = handle.stop(StopMode::Now).await {
                    tracing::debug!(%error, "a reader's dataflow stopped with an error");
                }
            }
        }
    });
    let rows = ReceiverStream::new(receiver).fuse();
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// The engine's resolver, but the sink is the reader.
struct ReaderResolver {
    inner: Arc<dyn Resolver>,
    sink: Arc<ReaderSink>,
}

#[async_trait]
impl Resolver for ReaderResolver {
    async fn source(&self, request: &SourceRequest) -> Result<Arc<dyn Source>, RuntimeError> {
        self.inner.source(request).await
    }

    async fn sink(&self, _spec: &SinkSpec) -> Result<Arc<dyn Sink>, RuntimeError> {
        Ok(Arc::clone(&self.sink) as _)
    }
}

/// Hands rows to a waiting reader.
struct ReaderSink {
    schema: SchemaRef,
    diff: bool,
    sender: mpsc::Sender<DfResult<RecordBatch>>,
}

#[async_trait]
impl Sink for ReaderSink {
    async fn writer(&self, _: &JobId, _: Subtask, _: Vec<Vec<u8>>) -> Result<Box<dyn SinkWriter>, RuntimeError> {
        let (schema, diff, sender) = (Arc::clone(&self.schema), self.diff, self.sender.clone());
        Ok(Box::new(ReaderWriter { schema, diff, sender }))
    }

    async fn committer(&self, _: &JobId) -> Result<Option<Box<dyn SinkCommitter>>, RuntimeError> {
        Ok(None)
    }
}

struct ReaderWriter {
    schema: SchemaRef,
    diff: bool,
    sender: mpsc::Sender<DfResult<RecordBatch>>,
}

#[async_trait]
impl SinkWriter for ReaderWriter {
    async fn write(&mut self, chunk: Chunk) -> Result<(), RuntimeError> {
        let mut columns = if self.diff { vec![diffs(&chunk)] } else { Vec::new() };
        columns.extend(chunk.batch().columns().iter().cloned());
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        // A reader that is gone stops the job; until then its rows go nowhere.
        let _ = self.sender.send(Ok(rows)).await;
        Ok(())
    }

    async fn prepare(&mut self, _: CheckpointId) -> Result<Prepared, RuntimeError> {
        Ok(Prepared::default())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int8Array, StringArray};

    use super::*;

    #[test]
    fn a_change_names_its_epoch_and_direction() {
        let batch =
            RecordBatch::try_from_iter([("carrier", Arc::new(StringArray::from(vec!["UA", "AA"])) as ArrayRef)])
                .unwrap();
        let chunk = Chunk::new(batch, Int8Array::from(vec![-1, 1]));
        let schema = subscription_schema(&chunk.schema());
        let rows = with_change_columns(&schema, Epoch(7), &chunk).unwrap();
        let text = arrow::util::pretty::pretty_format_batches(&[rows]).unwrap().to_string();
        assert!(text.contains("| 7          | -1        | UA      |"), "{text}");
        assert!(text.contains("| 7          | 1         | AA      |"), "{text}");
    }
}
