//! One split of a Parquet file: batches read ahead, position = number of rows of the split that have been read.

use std::sync::Arc;

use arrow::array::RecordBatch;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use weir_runtime::rejects::BadRow;
use weir_runtime::source::{SourceEvent, SplitId};
use weir_runtime::{Result, RuntimeError};

use super::input::Input;
use super::source::Shared;
use super::split::{Part, Split};
use super::text::Step;
use super::{fault, join_fault};
use crate::bad_rows::BadLine;
use crate::format::parquet::ParquetRows;

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
struct Position {
    row: u64,
}

type Batch = Option<(RecordBatch, Vec<BadLine>, u64)>;
type Reading = JoinHandle<(Option<ParquetRows>, Result<Batch, String>)>;

/// A split being read.
pub(crate) struct RowSplit {
    id: SplitId,
    split: Split,
    shared: Arc<Shared>,
    position: Position,
    rows: Option<ParquetRows>,
    reading: Option<Reading>,
    finished: bool,
}

impl RowSplit {
    pub(crate) fn new(shared: Arc<Shared>, id: SplitId, position: serde_json::Value) -> Result<Self> {
        let split = Split::parse(&id);
        let position = match position {
            serde_json::Value::Null => Position::default(),
            value => serde_json::from_value(value)
                .map_err(|error| fault(&split.url, format!("the saved position is unreadable: {error}")))?,
        };
        Ok(Self { id, split, shared, position, rows: None, reading: None, finished: false })
    }

    /// The next rows. Cancel-safe: what is being read is kept here.
    pub(crate) async fn next(&mut self) -> Result<Step> {
        if self.finished {
            return Ok(Step::Finished);
        }
        let reading = match &mut self.reading {
            Some(reading) => reading,
            None => {
                let reading = self.read();
                self.reading.insert(reading)
            }
        };
        let (rows, batch) = reading.await.map_err(|error| join_fault(&error))?;
        self.rows = rows;
        self.reading = None;
        let Some((batch, bad, count)) = batch.map_err(|reason| fault(&self.split.url, reason))? else {
            self.finished = true;
            self.rows = None;
            return Ok(Step::Finished);
        };
        let first = self.position.row;
        self.position.row += count;
        self.reading = Some(self.read());
        let bad = bad.into_iter().map(|line| self.bad_row(line, first)).collect();
        let position = serde_json::to_value(self.position)
            .map_err(|error| RuntimeError::Internal { place: "file source", reason: error.to_string() })?;
        Ok(Step::Rows(SourceEvent::Rows { split: self.id.clone(), batch, ops: None, position, bad }))
    }

    fn bad_row(&self, line: BadLine, first: u64) -> BadRow {
        let position = format!("row {}", first + line.line + 1);
        let relation = self.shared.request.relation.clone();
        BadRow { relation, split: self.id.0.clone(), position, reason: line.reason, raw: line.raw }
    }

    fn read(&mut self) -> Reading {
        let open = self.rows.take();
        let (shared, split, skip) = (Arc::clone(&self.shared), self.split.clone(), self.position.row);
        let handle = Handle::current();
        tokio::task::spawn_blocking(move || {
            let opened = match open {
                Some(rows) => Ok(rows),
                None => Input::open(&shared.location, &split.url, &handle).map_err(|error| error.to_string()).and_then(
                    |input| {
                        let groups = match &split.part {
                            Part::Groups(groups) => Some(groups.clone()),
                            Part::Whole | Part::Bytes(..) => None,
                        };
                        ParquetRows::open(input, Arc::clone(&shared.schema), groups, skip)
                    },
                ),
            };
            match opened {
                Ok(mut rows) => {
                    let batch = rows.next_rows();
                    (Some(rows), batch)
                }
                Err(reason) => (None, Err(reason)),
            }
        })
    }
}
