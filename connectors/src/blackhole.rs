//! The `blackhole` sink: counts rows and forgets them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use weir_runtime::Result;
use weir_runtime::message::Chunk;
use weir_runtime::sink::{Prepared, Sink, SinkCommitter, SinkWriter};
use weir_storage::{CheckpointId, JobId, Subtask};

use crate::options::OptionSpec;

/// The connector's name.
pub(crate) const NAME: &str = "blackhole";

/// It has no options.
pub(crate) const OPTIONS: &[OptionSpec] = &[];

/// The blackhole sink. Rows are counted by its operator's metrics; here they are counted once more for the log.
#[derive(Debug, Default)]
pub(crate) struct BlackholeSink {
    rows: Arc<AtomicU64>,
}

#[async_trait]
impl Sink for BlackholeSink {
    async fn writer(&self, _job: &JobId, _subtask: Subtask, _restored: Vec<Vec<u8>>) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(BlackholeWriter { rows: Arc::clone(&self.rows) }))
    }

    async fn committer(&self, _job: &JobId) -> Result<Option<Box<dyn SinkCommitter>>> {
        Ok(None)
    }
}

struct BlackholeWriter {
    rows: Arc<AtomicU64>,
}

#[async_trait]
impl SinkWriter for BlackholeWriter {
    async fn write(&mut self, chunk: Chunk) -> Result<()> {
        self.rows.fetch_add(chunk.num_rows() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn prepare(&mut self, checkpoint: CheckpointId) -> Result<Prepared> {
        tracing::debug!(rows = self.rows.load(Ordering::Relaxed), %checkpoint, "blackhole");
        Ok(Prepared::default())
    }
}
