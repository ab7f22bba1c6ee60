//! What SHOW, REST, metrics and the dashboard tell about running queries.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use parking_lot::Mutex;
use weir_planner::{ErrorKind, SqlError};
use weir_runtime::graph::{Node, OperatorSpec};
use weir_runtime::job::{CheckpointRecord, CheckpointState, JobStatus};
use weir_runtime::metrics::OperatorMetricsSnapshot;

use super::queries::{RunningQuery, has_job};
use super::{CheckpointRow, Engine, InputInfo, OperatorInfo, QueryInfo};
use crate::rejects::{bad_batch, count_batch, late_batch};
use crate::session::show::query_kind;

/// Time between two readings of the counters from which shares are told.
const SAMPLE_PERIOD: std::time::Duration = std::time::Duration::from_millis(900);

/// Blocked time of each query's subtasks at the last reading, and the share found then.
#[derive(Debug, Default)]
pub(super) struct BackPressure {
    samples: Mutex<HashMap<String, Sample>>,
}

#[derive(Debug)]
struct Sample {
    at: Instant,
    blocked_ns: Vec<u64>,
    share: f64,
}

impl BackPressure {
    /// Share of the time since the last reading that the most held-back subtask waited for room downstream.
    fn share(&self, query: &str, metrics: &[OperatorMetricsSnapshot]) -> f64 {
        let blocked_ns: Vec<u64> = metrics.iter().map(|m| m.blocked_ns).collect();
        let mut samples = self.samples.lock();
        match samples.get_mut(query) {
            Some(sample) if sample.at.elapsed() < SAMPLE_PERIOD => sample.share,
            Some(sample) => {
                let elapsed = sample.at.elapsed().as_nanos() as f64;
                let most = blocked_ns
                    .iter()
                    .zip(sample.blocked_ns.iter().chain(std::iter::repeat(&0)))
                    .map(|(now, then)| now.saturating_sub(*then))
                    .max()
                    .unwrap_or(0);
                sample.share = (most as f64 / elapsed).min(1.0);
                sample.at = Instant::now();
                sample.blocked_ns = blocked_ns;
                sample.share
            }
            None => {
                samples.insert(query.to_owned(), Sample { at: Instant::now(), blocked_ns, share: 0.0 });
                0.0
            }
        }
    }
}

impl Engine {
    /// All queries, by name.
    pub fn queries(&self) -> Vec<QueryInfo> {
        let mut infos: Vec<QueryInfo> = self.queries.all().iter().map(|query| self.query_info(query)).collect();
        // A query that could not be started is listed too, or it would seem never to have been created.
        for relation in self.catalog.current().iter().filter(|r| has_job(r)) {
            if infos.iter().all(|info| info.name != relation.name) {
                infos.push(QueryInfo {
                    name: relation.name.clone(),
                    id: String::new(),
                    kind: query_kind(relation.kind).to_owned(),
                    state: "FAILED".to_owned(),
                    reason: Some("could not be started; the server's log says why".to_owned()),
                    sql: relation.definition_sql.clone(),
                    rows_in: 0,
                    rows_out: 0,
                    late_rows: 0,
                    bad_rows: 0,
                    event_time_lag_ms: None,
                    back_pressure: 0.0,
                    last_checkpoint: None,
                    created_at_ms: 0,
                });
            }
        }
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    fn query_info(&self, query: &RunningQuery) -> QueryInfo {
        let status = query.handle.status().borrow().clone();
        let metrics = query.handle.metrics();
        let graph = query.handle.graph();
        let sum = |wanted: fn(&Node) -> bool, count: fn(&OperatorMetricsSnapshot) -> u64| -> u64 {
            let uids: Vec<&str> = graph.nodes.iter().filter(|n| wanted(n)).map(|n| n.uid.0.as_str()).collect();
            metrics.iter().filter(|m| uids.contains(&m.uid.as_str())).map(count).sum()
        };
        let is_source = |n: &Node| matches!(n.spec, OperatorSpec::Source(_));
        let is_end = |n: &Node| match &n.spec {
            OperatorSpec::Materialize(_) => true,
            OperatorSpec::Sink(sink) => !(sink.log && sink.changelog),
            _ => false,
        };
        let (late_rows, bad_rows) = rejected(&metrics);
        let records = query.handle.checkpoints();
        let last_checkpoint =
            records.iter().filter(|r| matches!(r.state, CheckpointState::Completed(_))).map(|r| r.id.0).max();
        QueryInfo {
            name: query.relation.name.clone(),
            id: query.job.0.clone(),
            kind: query_kind(query.relation.kind).to_owned(),
            reason: reason(&status),
            state: status_name(&status).to_owned(),
            sql: query.relation.definition_sql.clone(),
            rows_in: sum(is_source, |m| m.rows_out),
            rows_out: sum(is_end, |m| m.rows_in),
            late_rows,
            bad_rows,
            event_time_lag_ms: event_time_lag_ms(&metrics, graph.nodes.iter().filter(|n| is_source(n))),
            back_pressure: self.back_pressure.share(&query.relation.name, &metrics),
            last_checkpoint,
            created_at_ms: query.created_at_ms,
        }
    }

    /// The newest late rows of all queries.
    pub(crate) fn late_rows(&self) -> Result<RecordBatch, ArrowError> {
        let of_query = |query: &Arc<RunningQuery>| {
            let name = query.relation.name.clone();
            query.handle.rejected().late.into_iter().map(move |(operator, row)| (name.clone(), operator, row))
        };
        late_batch(self.queries.all().iter().flat_map(of_query).collect())
    }

    /// The newest bad rows of all queries and of relations that were read for none.
    pub(crate) fn bad_rows(&self) -> Result<RecordBatch, ArrowError> {
        let of_query = |query: &Arc<RunningQuery>| {
            let name = query.relation.name.clone();
            query.handle.rejected().bad.into_iter().map(move |row| (name.clone(), row))
        };
        bad_batch(self.queries.all().iter().flat_map(of_query).chain(self.rejects.rows()).collect())
    }

    /// How many late and bad rows there were, by query or relation.
    pub(crate) fn rejected_counts(&self) -> Result<RecordBatch, ArrowError> {
        let of_query = |query: &Arc<RunningQuery>| {
            let (late, bad) = rejected(&query.handle.metrics());
            (query.relation.name.clone(), late, bad)
        };
        let unowned = self.rejects.counts().into_iter().map(|(relation, bad)| (relation, 0, bad));
        count_batch(self.queries.all().iter().map(of_query).chain(unowned).collect())
    }

    /// The dataflow of a query with its counters.
    pub fn operators(&self, query: &str) -> Option<Vec<OperatorInfo>> {
        let query = self.queries.get(query)?;
        let metrics = query.handle.metrics();
        let operators = query.handle.graph().nodes.iter().map(|node| OperatorInfo {
            uid: node.uid.0.clone(),
            name: node.name.clone(),
            kind: node.spec.kind().to_owned(),
            parallelism: node.parallelism,
            changelog: node.changelog,
            state_bound: node.state_bound.clone(),
            inputs: node
                .inputs
                .iter()
                .map(|edge| InputInfo { from: edge.from, exchange: edge.exchange.to_string() })
                .collect(),
            columns: node.schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect(),
            subtasks: metrics.iter().filter(|m| m.uid == node.uid.0).cloned().collect(),
        });
        Some(operators.collect())
    }

    /// Checkpoints of one query or of all, newest first.
    pub fn checkpoints(&self, query: Option<&str>) -> Result<Vec<CheckpointRow>, SqlError> {
        let queries = match query {
            Some(name) => vec![self.find_query(name)?],
            None => self.queries.all(),
        };
        let mut rows: Vec<CheckpointRow> = queries
            .iter()
            .flat_map(|q| q.handle.checkpoints().into_iter().map(|record| checkpoint_row(&q.relation.name, record)))
            .collect();
        rows.sort_by(|a, b| (&a.query, std::cmp::Reverse(a.id)).cmp(&(&b.query, std::cmp::Reverse(b.id))));
        Ok(rows)
    }

    /// Why a query or view cannot answer.
    pub(crate) fn not_running(&self, name: &str) -> SqlError {
        match self.find_query(name) {
            Err(error) => error,
            Ok(query) => SqlError::new(
                ErrorKind::NOT_READY,
                format!("query \"{name}\" is {}", status_name(&query.handle.status().borrow())),
            )
            .hint("SHOW QUERIES tells why; try again when it is RUNNING"),
        }
    }
}

/// Late and bad rows of a query's subtasks.
fn rejected(metrics: &[OperatorMetricsSnapshot]) -> (u64, u64) {
    (metrics.iter().map(|m| m.late_rows).sum(), metrics.iter().map(|m| m.bad_rows).sum())
}

/// `RUNNING`, `RESTARTING`, …
pub(super) fn status_name(status: &JobStatus) -> &'static str {
    match status {
        JobStatus::Created => "CREATED",
        JobStatus::Restoring => "RESTORING",
        JobStatus::Running => "RUNNING",
        JobStatus::Paused => "PAUSED",
        JobStatus::Restarting { .. } => "RESTARTING",
        JobStatus::Finished => "FINISHED",
        JobStatus::Failed { .. } => "FAILED",
        JobStatus::Stopped => "STOPPED",
    }
}

fn reason(status: &JobStatus) -> Option<String> {
    match status {
        JobStatus::Restarting { attempt, reason, .. } => Some(format!("attempt {attempt}: {reason}")),
        JobStatus::Failed { reason } => Some(reason.clone()),
        _ => None,
    }
}

/// How far the slowest source's watermark is behind the wall clock.
fn event_time_lag_ms<'a>(metrics: &[OperatorMetricsSnapshot], sources: impl Iterator<Item = &'a Node>) -> Option<i64> {
    let uids: Vec<&str> = sources.map(|n| n.uid.0.as_str()).collect();
    let watermark = metrics.iter().filter(|m| uids.contains(&m.uid.as_str())).filter_map(|m| m.watermark_us).min()?;
    (watermark != i64::MAX).then(|| chrono::Utc::now().timestamp_millis() - watermark / 1000)
}

fn checkpoint_row(query: &str, record: CheckpointRecord) -> CheckpointRow {
    let mut row = CheckpointRow {
        query: query.to_owned(),
        id: record.id.0,
        state: "IN_PROGRESS".to_owned(),
        url: None,
        triggered_at_ms: record.triggered_at_ms,
        completed_at_ms: None,
        alignment_ms: None,
        snapshot_ms: None,
        upload_ms: None,
        commit_ms: None,
        inline_bytes: None,
        new_bytes: None,
        shared_bytes: None,
        total_bytes: None,
        objects: None,
        note: None,
    };
    match record.state {
        CheckpointState::InProgress => {}
        CheckpointState::Completed(info) => {
            row.state = "COMPLETED".to_owned();
            row.url = Some(info.url);
            row.completed_at_ms = Some(info.completed_at_ms);
            row.alignment_ms = Some(info.alignment_ms);
            row.snapshot_ms = Some(info.snapshot_ms);
            row.upload_ms = Some(info.upload_ms);
            row.commit_ms = Some(info.commit_ms);
            row.inline_bytes = Some(info.inline_bytes);
            row.new_bytes = Some(info.new_bytes);
            row.shared_bytes = Some(info.shared_bytes);
            row.total_bytes = Some(info.total_bytes);
            row.objects = Some(info.objects as u64);
            row.note = info.note;
        }
        CheckpointState::Failed { reason } => {
            row.state = "FAILED".to_owned();
            row.note = Some(reason);
        }
    }
    row
}
