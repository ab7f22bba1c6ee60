//! A relation's own log as a source and a sink: how queries stack, and how INSERT and HTTP feed them.
//!
//! ```text
//!   query A ─► LogSink ─stage─► (manifest of A) ─publish─► log ─► LogSource ─► query B
//!   INSERT, HTTP ──────────────────append────────────────► log
//! ```
//!
//! A reader sees only what its writer has committed, so each query checkpoints, fails and restarts alone. Event time
//! crosses a log with the rows: an entry carries the watermark that its writer had come to with it.

mod sink;
mod source;
mod time;

pub use sink::LogSink;
pub use source::{LogSource, RetainedPositions};

use weir_storage::{Fence, Log, LogEntry, LogSeq, StorageError};

/// Client key of the entry that ends a log.
const END_KEY: &str = "\u{0}end";

/// Writes the mark that no entry will follow: the writer's input has ended. Idempotent.
pub async fn end_log(log: &Log, fence: &Fence) -> Result<LogSeq, StorageError> {
    log.append(fence, LogEntry { batches: Vec::new(), client_key: Some(END_KEY.to_owned()) }).await
}
