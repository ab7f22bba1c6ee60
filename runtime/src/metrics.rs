//! Counters of a running dataflow. Written by tasks with relaxed atomics, read by whoever asks.
//!
//! Rows are counted from a query's creation on: what was counted stands in every checkpoint. Time is that of one run.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use weir_storage::RowCounts;

/// Counters of one subtask of one operator.
#[derive(Debug)]
pub struct OperatorMetrics {
    /// Rows received.
    pub rows_in: AtomicU64,
    /// Rows emitted.
    pub rows_out: AtomicU64,
    /// Rows that came after their window had closed.
    pub late_rows: AtomicU64,
    /// Rows that could not be read.
    pub bad_rows: AtomicU64,
    /// Nanoseconds spent computing.
    pub busy_ns: AtomicU64,
    /// Nanoseconds spent waiting for input.
    pub idle_ns: AtomicU64,
    /// Nanoseconds spent waiting for room in an output channel.
    pub blocked_ns: AtomicU64,
    /// Current watermark, microseconds since the Unix epoch; `i64::MIN` before the first.
    pub watermark: AtomicI64,
}

impl Default for OperatorMetrics {
    fn default() -> Self {
        Self {
            rows_in: AtomicU64::new(0),
            rows_out: AtomicU64::new(0),
            late_rows: AtomicU64::new(0),
            bad_rows: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            idle_ns: AtomicU64::new(0),
            blocked_ns: AtomicU64::new(0),
            watermark: AtomicI64::new(i64::MIN),
        }
    }
}

/// The counters of one subtask at one moment.
#[derive(Debug, Clone, serde::Serialize)]
pub struct OperatorMetricsSnapshot {
    /// Stable name of the operator.
    pub uid: String,
    /// Name for people.
    pub name: String,
    /// Which parallel instance.
    pub subtask: u32,
    /// Rows received.
    pub rows_in: u64,
    /// Rows emitted.
    pub rows_out: u64,
    /// Rows that came after their window had closed.
    pub late_rows: u64,
    /// Rows that could not be read.
    pub bad_rows: u64,
    /// Nanoseconds spent computing.
    pub busy_ns: u64,
    /// Nanoseconds spent waiting for input.
    pub idle_ns: u64,
    /// Nanoseconds spent waiting for room in an output channel.
    pub blocked_ns: u64,
    /// Current watermark, microseconds since the Unix epoch; `None` before the first.
    pub watermark_us: Option<i64>,
}

impl OperatorMetrics {
    /// Counters that go on from `counts`.
    pub(crate) fn restore(counts: RowCounts) -> Self {
        Self {
            rows_in: AtomicU64::new(counts.rows_in),
            rows_out: AtomicU64::new(counts.rows_out),
            late_rows: AtomicU64::new(counts.late_rows),
            bad_rows: AtomicU64::new(counts.bad_rows),
            ..Self::default()
        }
    }

    /// What belongs into a checkpoint.
    pub(crate) fn counts(&self) -> RowCounts {
        RowCounts {
            rows_in: self.rows_in.load(Ordering::Relaxed),
            rows_out: self.rows_out.load(Ordering::Relaxed),
            late_rows: self.late_rows.load(Ordering::Relaxed),
            bad_rows: self.bad_rows.load(Ordering::Relaxed),
        }
    }

    /// Read all counters.
    pub fn snapshot(&self, uid: &str, name: &str, subtask: u32) -> OperatorMetricsSnapshot {
        let watermark = self.watermark.load(Ordering::Relaxed);
        OperatorMetricsSnapshot {
            uid: uid.to_owned(),
            name: name.to_owned(),
            subtask,
            rows_in: self.rows_in.load(Ordering::Relaxed),
            rows_out: self.rows_out.load(Ordering::Relaxed),
            late_rows: self.late_rows.load(Ordering::Relaxed),
            bad_rows: self.bad_rows.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
            idle_ns: self.idle_ns.load(Ordering::Relaxed),
            blocked_ns: self.blocked_ns.load(Ordering::Relaxed),
            watermark_us: (watermark != i64::MIN).then_some(watermark),
        }
    }
}
