//! The `blackhole` sink: counts rows and forgets them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use weir_runtime::Result;
use weir_runtime::graph::ConnectorOptions;
use weir_runtime::message::Chunk;
use weir_runtime::sink::{Prepared, Sink, SinkCommitter, SinkWriter};
use weir_storage::{CheckpointId, JobId, Subtask};

use crate::options::{OptionSpec, Reader, option};

/// The connector's name.
pub(crate) const NAME: &str = "blackhole";

const ROW_DELAY: &str = "row.delay";

/// What it takes.
pub(crate) const OPTIONS: &[OptionSpec] = &[option(
    ROW_DELAY,
    "",
    "how long each subtask takes for a row, such as 1ms: shows how a query fares with a slow consumer",
)];

/// The blackhole sink. Rows are counted by its operator's metrics; here they are counted once more for the log.
#[derive(Debug, Default)]
pub(crate) struct BlackholeSink {
    rows: Arc<AtomicU64>,
    row_delay: Option<Duration>,
}

impl BlackholeSink {
    /// Reads the options.
    pub(crate) fn open(options: &ConnectorOptions) -> Result<Self> {
        Ok(Self { rows: Arc::default(), row_delay: Reader::new(NAME, options).duration(ROW_DELAY)? })
    }
}

#[async_trait]
impl Sink for BlackholeSink {
    async fn writer(&self, _job: &JobId, _subtask: Subtask, _restored: Vec<Vec<u8>>) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(BlackholeWriter { rows: Arc::clone(&self.rows), row_delay: self.row_delay }))
    }

    async fn committer(&self, _job: &JobId) -> Result<Option<Box<dyn SinkCommitter>>> {
        Ok(None)
    }
}

struct BlackholeWriter {
    rows: Arc<AtomicU64>,
    row_delay: Option<Duration>,
}

#[async_trait]
impl SinkWriter for BlackholeWriter {
    async fn write(&mut self, chunk: Chunk) -> Result<()> {
        if let Some(delay) = self.row_delay {
            tokio::time::sleep(delay.saturating_mul(u32::try_from(chunk.num_rows()).unwrap_or(u32::MAX))).await;
        }
        self.rows.fetch_add(chunk.num_rows() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn prepare(&mut self, checkpoint: CheckpointId) -> Result<Prepared> {
        tracing::debug!(rows = self.rows.load(Ordering::Relaxed), %checkpoint, "blackhole");
        Ok(Prepared::default())
    }
}
