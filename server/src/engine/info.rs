//! What the engine tells about itself: to SHOW, to REST, to the dashboard.

use serde::Serialize;
use weir_runtime::metrics::OperatorMetricsSnapshot;

/// A query as listed: `SHOW QUERIES`, `/v1/queries`, the dashboard.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct QueryInfo {
    /// Name of the query, which is the name of its view, sink, stream or table.
    pub name: String,
    /// Stable id of the job: `name-<unique>`.
    pub id: String,
    /// `view`, `sink`, `stream` or `table`.
    pub kind: String,
    /// `CREATED`, `RESTORING`, `RUNNING`, `PAUSED`, `RESTARTING`, `FINISHED`, `FAILED`, `STOPPED`.
    pub state: String,
    /// Why it is restarting or failed.
    pub reason: Option<String>,
    /// The statement that created it.
    pub sql: String,
    /// Rows read by its sources.
    pub rows_in: u64,
    /// Rows that reached its end (view or sink).
    pub rows_out: u64,
    /// Rows that came after their window had closed.
    pub late_rows: u64,
    /// Rows that could not be read.
    pub bad_rows: u64,
    /// How far event time is behind the wall clock, milliseconds; `None` without a watermark or when it has ended.
    pub event_time_lag_ms: Option<i64>,
    /// Share of the last second that the most held-back task waited for room downstream, 0 to 1.
    pub back_pressure: f64,
    /// Number of the last completed checkpoint.
    pub last_checkpoint: Option<u64>,
    /// When it was created, milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// One operator of a query's dataflow.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct OperatorInfo {
    /// Stable name.
    pub uid: String,
    /// What it does, for people.
    pub name: String,
    /// `source`, `filter`, `aggregate`, …
    pub kind: String,
    /// Number of parallel instances.
    pub parallelism: u32,
    /// Whether it may emit retractions.
    pub changelog: bool,
    /// What bounds its state.
    pub state_bound: String,
    /// Indices of its inputs in the list of operators, with how rows are exchanged.
    pub inputs: Vec<InputInfo>,
    /// Columns it emits, `name type`.
    pub columns: Vec<String>,
    /// Counters, one a subtask.
    #[schema(value_type = Vec<Object>)]
    pub subtasks: Vec<OperatorMetricsSnapshot>,
}

/// An edge of the dataflow.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct InputInfo {
    /// Index of the operator that emits.
    pub from: usize,
    /// `forward`, `hash[0, 1]`, `rebalance`.
    pub exchange: String,
}

/// A checkpoint as listed: `SHOW CHECKPOINTS`, `/v1/queries/NAME/checkpoints`, the dashboard.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct CheckpointRow {
    /// The query.
    pub query: String,
    /// Number of the checkpoint.
    pub id: u64,
    /// `IN_PROGRESS`, `COMPLETED` or `FAILED`.
    pub state: String,
    /// Absolute URL of the manifest.
    pub url: Option<String>,
    /// When it was triggered, milliseconds since the Unix epoch.
    pub triggered_at_ms: i64,
    /// When it was complete.
    pub completed_at_ms: Option<i64>,
    /// Longest alignment of a task, milliseconds.
    pub alignment_ms: Option<u64>,
    /// Longest synchronous snapshot of a task, milliseconds.
    pub snapshot_ms: Option<u64>,
    /// Upload, milliseconds.
    pub upload_ms: Option<u64>,
    /// Writing the manifest and committing sinks, milliseconds.
    pub commit_ms: Option<u64>,
    /// Bytes inside the manifest.
    pub inline_bytes: Option<u64>,
    /// Bytes uploaded for this checkpoint.
    pub new_bytes: Option<u64>,
    /// Bytes shared with earlier checkpoints.
    pub shared_bytes: Option<u64>,
    /// All bytes of state.
    pub total_bytes: Option<u64>,
    /// Data objects that it refers to.
    pub objects: Option<u64>,
    /// A sentence: where the bytes are when there is no data object, or why the checkpoint failed.
    pub note: Option<String>,
}

/// What an ingest request was acknowledged with.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct IngestReceipt {
    /// Rows made durable.
    pub rows: u64,
    /// Rows that could not be read; they are in `weir.bad_rows`.
    pub bad_rows: u64,
    /// Whether the client key had been seen before, so that nothing was written again.
    pub duplicate: bool,
    /// Position in the stream's log.
    pub position: u64,
}
