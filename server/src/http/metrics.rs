//! `/metrics` for Prometheus (OpenMetrics text) and `/healthz`.
//!
//! The counters live in the tasks; a scrape reads them all into a registry of its own and writes that out.

use std::sync::atomic::AtomicU64;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;

use super::App;
use super::backend::Backend;
use super::problem::{Problem, ProblemBody, Refusal};
use crate::engine::{CheckpointRow, QueryInfo};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const STATES: [&str; 8] = ["CREATED", "RESTORING", "RUNNING", "PAUSED", "RESTARTING", "FINISHED", "FAILED", "STOPPED"];
/// Watermarks from here on are the end of time: all input has ended.
const END_OF_TIME_US: i64 = 253_402_300_800_000_000;

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;
type Counters = Family<Labels, Counter<u64, AtomicU64>>;
type Seconds = Family<Labels, Counter<f64, AtomicU64>>;

/// The server is well.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// Tell whether the server serves: its store answers and no other server has taken it over.
#[utoipa::path(
    get, operation_id = "health",
    path = "/healthz", tag = "server",
    responses(
        (status = 200, description = "It serves", body = Health),
        (status = 503, description = "It does not; the error says why", body = ProblemBody),
    )
)]
pub(super) async fn health(State(app): State<App>) -> Result<Json<Health>, Problem> {
    app.backend.health()?;
    Ok(Json(Health { status: "ok" }))
}

/// All counters for Prometheus.
#[utoipa::path(
    get, operation_id = "metrics",
    path = "/metrics", tag = "server",
    responses((status = 200, description = "OpenMetrics text", body = String, content_type = OPEN_METRICS))
)]
pub(super) async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let text = render(app.backend.as_ref()).map_err(|error| {
        Problem::new(Refusal::Internal, "the metrics cannot be written", "").detail(error.to_string())
    })?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

fn render(backend: &dyn Backend) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    let queries = backend.queries();
    server(&mut registry, backend, &queries);
    query(&mut registry, &queries);
    operators(&mut registry, backend, &queries);
    checkpoints(&mut registry, &backend.checkpoints(None).unwrap_or_default());
    process(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// A label's value as the text format wants it; the library writes values as they are.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn gauges(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>) -> Gauges {
    let family = Gauges::default();
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, family.clone()),
        None => registry.register(name, help, family.clone()),
    }
    family
}

fn counters(registry: &mut Registry, name: &str, help: &str) -> Counters {
    let family = Counters::default();
    registry.register(name, help, family.clone());
    family
}

fn seconds(registry: &mut Registry, name: &str, help: &str) -> Seconds {
    let family = Seconds::default();
    registry.register_with_unit(name, help, Unit::Seconds, family.clone());
    family
}

fn server(registry: &mut Registry, backend: &dyn Backend, queries: &[QueryInfo]) {
    let build = gauges(registry, "weir_build_info", "Version of the server, as a label", None);
    build.get_or_create(&vec![("version", label(&backend.server().version))]).set(1.0);
    let healthy =
        gauges(registry, "weir_healthy", "1 while the server serves, 0 when its store fails or is taken over", None);
    healthy.get_or_create(&Vec::new()).set(f64::from(u8::from(backend.health().is_ok())));
    let counted = gauges(registry, "weir_queries", "Number of queries in each state", None);
    for state in STATES {
        let number = queries.iter().filter(|query| query.state == state).count();
        counted.get_or_create(&vec![("state", state.to_owned())]).set(number as f64);
    }
}

fn query(registry: &mut Registry, queries: &[QueryInfo]) {
    let state = gauges(registry, "weir_query_state", "1 for the state that the query is in, 0 for the others", None);
    let rows_in = counters(registry, "weir_query_rows_in", "Rows read by the query's sources");
    let rows_out =
        counters(registry, "weir_query_rows_out", "Rows that reached the query's view, sink, stream or table");
    let late = counters(registry, "weir_query_late_rows", "Rows that came after their window had closed");
    let bad = counters(registry, "weir_query_bad_rows", "Rows that could not be read");
    let lag = gauges(
        registry,
        "weir_query_event_time_lag",
        "How far the query's event time is behind the wall clock",
        Some(Unit::Seconds),
    );
    let held = gauges(
        registry,
        "weir_query_back_pressure",
        "Share of the last second that the most held-back task waited for room downstream",
        Some(Unit::Other("ratio".to_owned())),
    );
    for one in queries {
        let labels = vec![("query", label(&one.name)), ("kind", label(&one.kind))];
        for name in STATES {
            let mut labels = labels.clone();
            labels.push(("state", name.to_owned()));
            state.get_or_create(&labels).set(f64::from(u8::from(one.state == name)));
        }
        rows_in.get_or_create(&labels).inc_by(one.rows_in);
        rows_out.get_or_create(&labels).inc_by(one.rows_out);
        late.get_or_create(&labels).inc_by(one.late_rows);
        bad.get_or_create(&labels).inc_by(one.bad_rows);
        if let Some(ms) = one.event_time_lag_ms {
            lag.get_or_create(&labels).set(ms as f64 / 1e3);
        }
        held.get_or_create(&labels).set(one.back_pressure);
    }
}

fn operators(registry: &mut Registry, backend: &dyn Backend, queries: &[QueryInfo]) {
    let rows_in = counters(registry, "weir_operator_rows_in", "Rows received by a subtask of an operator");
    let rows_out = counters(registry, "weir_operator_rows_out", "Rows emitted by a subtask of an operator");
    let late = counters(registry, "weir_operator_late_rows", "Rows that came after their window had closed");
    let bad = counters(registry, "weir_operator_bad_rows", "Rows that could not be read");
    let busy = seconds(registry, "weir_operator_busy", "Time that a subtask spent computing");
    let idle = seconds(registry, "weir_operator_idle", "Time that a subtask waited for input");
    let blocked = seconds(registry, "weir_operator_blocked", "Time that a subtask waited for room downstream");
    let watermark = gauges(
        registry,
        "weir_operator_watermark_timestamp",
        "Event time that a subtask has reached, since the Unix epoch; absent before the first and after the last",
        Some(Unit::Seconds),
    );
    for query in queries {
        for operator in backend.operators(&query.name).unwrap_or_default() {
            for subtask in &operator.subtasks {
                let labels = vec![
                    ("query", label(&query.name)),
                    ("operator", label(&operator.uid)),
                    ("name", label(&operator.name)),
                    ("subtask", subtask.subtask.to_string()),
                ];
                rows_in.get_or_create(&labels).inc_by(subtask.rows_in);
                rows_out.get_or_create(&labels).inc_by(subtask.rows_out);
                late.get_or_create(&labels).inc_by(subtask.late_rows);
                bad.get_or_create(&labels).inc_by(subtask.bad_rows);
                busy.get_or_create(&labels).inc_by(subtask.busy_ns as f64 / 1e9);
                idle.get_or_create(&labels).inc_by(subtask.idle_ns as f64 / 1e9);
                blocked.get_or_create(&labels).inc_by(subtask.blocked_ns as f64 / 1e9);
                if let Some(us) = subtask.watermark_us.filter(|us| *us < END_OF_TIME_US) {
                    watermark.get_or_create(&labels).set(us as f64 / 1e6);
                }
            }
        }
    }
}

fn checkpoints(registry: &mut Registry, rows: &[CheckpointRow]) {
    let triggered = counters(registry, "weir_checkpoints_triggered", "Checkpoints that were begun, ever");
    let listed = gauges(registry, "weir_checkpoints_listed", "Checkpoints in SHOW CHECKPOINTS by their state", None);
    let last_id = gauges(registry, "weir_checkpoint_last_id", "Number of the last complete checkpoint", None);
    let completed = gauges(
        registry,
        "weir_checkpoint_last_completed_timestamp",
        "When the last checkpoint was complete, since the Unix epoch",
        Some(Unit::Seconds),
    );
    let duration = gauges(
        registry,
        "weir_checkpoint_last_duration",
        "From the trigger to the completion of the last checkpoint",
        Some(Unit::Seconds),
    );
    let size = gauges(registry, "weir_checkpoint_last_size", "State of the last checkpoint", Some(Unit::Bytes));
    let new = gauges(registry, "weir_checkpoint_last_uploaded", "Uploaded for the last checkpoint", Some(Unit::Bytes));
    for row in rows {
        let query = vec![("query", label(&row.query))];
        let mut by_state = query.clone();
        by_state.push(("state", label(&row.state)));
        listed.get_or_create(&by_state).inc();
        // Numbers count from 1 and are never reused: the largest tells how many there were.
        let count = triggered.get_or_create(&query);
        count.inc_by(row.id.saturating_sub(count.get()));
        drop(count);
        let Some(at) = row.completed_at_ms.filter(|_| row.state == "COMPLETED") else { continue };
        if last_id.get_or_create(&query).get() >= row.id as f64 {
            continue;
        }
        last_id.get_or_create(&query).set(row.id as f64);
        completed.get_or_create(&query).set(at as f64 / 1e3);
        duration.get_or_create(&query).set((at - row.triggered_at_ms) as f64 / 1e3);
        size.get_or_create(&query).set(row.total_bytes.unwrap_or_default() as f64);
        new.get_or_create(&query).set(row.new_bytes.unwrap_or_default() as f64);
    }
}

/// The process, under the names that every Prometheus client uses.
fn process(registry: &mut Registry) {
    let none = Labels::new();
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let cpu = seconds(registry, "process_cpu", "Processor time that the process used");
        let time = |value: TimeVal| value.tv_sec() as f64 + value.tv_usec() as f64 / 1e6;
        cpu.get_or_create(&none).inc_by(time(usage.user_time()) + time(usage.system_time()));
    }
    // Linux tells the rest; elsewhere there is nothing to read.
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let memory = gauges(registry, "process_resident_memory", "Memory that the process holds", Some(Unit::Bytes));
        memory.get_or_create(&none).set(field(&status, "VmRSS").unwrap_or_default() * 1024.0);
        let threads = gauges(registry, "process_threads", "Threads of the process", None);
        threads.get_or_create(&none).set(field(&status, "Threads").unwrap_or_default());
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        let files = gauges(registry, "process_open_fds", "Open file descriptors", None);
        files.get_or_create(&none).set(open.count() as f64);
    }
}

/// A number of proc_pid_status(5): `VmRSS:\t 1234 kB`.
fn field(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_of_the_processs_status_are_found_by_their_whole_name() {
        let status = "Name:\tweir\nVmRSSx:\t 1 kB\nVmRSS:\t   1234 kB\nThreads:\t9\n";
        assert_eq!(field(status, "VmRSS"), Some(1234.0));
        assert_eq!(field(status, "Threads"), Some(9.0));
        assert_eq!(field(status, "VmHWM"), None);
    }
}
