//! The `print` sink: each row as a line on standard output, `+ {…}` for an insertion, `- {…}` for a retraction.

use std::io::Write;

use async_trait::async_trait;
use weir_runtime::message::Chunk;
use weir_runtime::sink::{Prepared, Sink, SinkCommitter, SinkWriter};
use weir_runtime::{Result, RuntimeError};
use weir_storage::{CheckpointId, JobId, Subtask};

use crate::format::encode::json_lines;
use crate::options::OptionSpec;

/// The connector's name.
pub(crate) const NAME: &str = "print";

/// It has no options.
pub(crate) const OPTIONS: &[OptionSpec] = &[];

/// The print sink. What is printed cannot be taken back: after a crash, rows since the last checkpoint are printed
/// again.
#[derive(Debug)]
pub(crate) struct PrintSink;

#[async_trait]
impl Sink for PrintSink {
    async fn writer(&self, _job: &JobId, _subtask: Subtask, _restored: Vec<Vec<u8>>) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(PrintWriter))
    }

    async fn committer(&self, _job: &JobId) -> Result<Option<Box<dyn SinkCommitter>>> {
        Ok(None)
    }
}

struct PrintWriter;

#[async_trait]
impl SinkWriter for PrintWriter {
    async fn write(&mut self, chunk: Chunk) -> Result<()> {
        let lines = lines(&chunk)?;
        let mut out = std::io::stdout().lock();
        out.write_all(&lines).and_then(|()| out.flush()).map_err(|error| RuntimeError::Connector {
            connector: NAME.to_owned(),
            subject: "standard output".to_owned(),
            reason: error.to_string(),
        })
    }

    async fn prepare(&mut self, _checkpoint: CheckpointId) -> Result<Prepared> {
        Ok(Prepared::default())
    }
}

/// The chunk's rows as lines.
fn lines(chunk: &Chunk) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    json_lines(chunk.batch(), &mut json)?;
    let mut out = Vec::with_capacity(json.len() + 2 * chunk.num_rows());
    for (row, line) in json.split_inclusive(|byte| *byte == b'\n').enumerate() {
        out.extend_from_slice(if row < chunk.num_rows() && chunk.op(row) < 0 { b"- " } else { b"+ " });
        out.extend_from_slice(line);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int8Array, Int32Array, RecordBatch};

    use super::*;

    #[test]
    fn rows_are_lines_with_their_sign() {
        let column: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let chunk = Chunk::new(batch, Int8Array::from(vec![-1, 1]));
        assert_eq!(String::from_utf8(lines(&chunk).unwrap()).unwrap(), "- {\"a\":1}\n+ {\"a\":null}\n");
    }
}
