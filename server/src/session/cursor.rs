//! Cursors: DECLARE, FETCH, CLOSE. A cursor over a subscription waits for nothing: FETCH answers what has come.

use std::collections::VecDeque;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::scalar::ScalarValue;
use futures::StreamExt;
use parking_lot::Mutex;
use weir_planner::{ErrorKind, Parsed, SqlError};

use super::{Outcome, Session};
use crate::error::from_datafusion;

/// How long FETCH waits for the first row of a subscription before it answers that there is none yet.
const FETCH_PATIENCE: Duration = Duration::from_secs(1);

/// An open cursor.
pub(super) struct Cursor {
    schema: SchemaRef,
    /// In a mutex only so that a session can be shared between threads; it is never contended.
    rows: Mutex<SendableRecordBatchStream>,
    endless: bool,
    buffered: VecDeque<RecordBatch>,
    ended: bool,
}

impl Cursor {
    pub(super) fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    /// Up to `count` rows. Over a subscription only what is there: it never waits for a full `count`.
    async fn fetch(&mut self, count: usize) -> Result<RecordBatch, SqlError> {
        let mut taken = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let batch = match self.buffered.pop_front() {
                Some(batch) => batch,
                None if self.ended => break,
                None => match self.next(taken.is_empty()).await? {
                    Some(batch) => batch,
                    None => break,
                },
            };
            if batch.num_rows() > missing {
                self.buffered.push_front(batch.slice(missing, batch.num_rows() - missing));
                taken.push(batch.slice(0, missing));
                missing = 0;
            } else {
                missing -= batch.num_rows();
                taken.push(batch);
            }
        }
        concat_batches(&self.schema, &taken).map_err(|e| from_datafusion(e.into()))
    }

    async fn next(&mut self, wait: bool) -> Result<Option<RecordBatch>, SqlError> {
        let next = if self.endless {
            let patience = if wait { FETCH_PATIENCE } else { Duration::ZERO };
            match tokio::time::timeout(patience, self.rows.get_mut().next()).await {
                Ok(next) => next,
                Err(_) => return Ok(None),
            }
        } else {
            self.rows.get_mut().next().await
        };
        match next {
            Some(batch) => batch.map(Some).map_err(from_datafusion),
            None => {
                self.ended = true;
                Ok(None)
            }
        }
    }
}

impl Session {
    pub(super) async fn declare_cursor(
        &mut self,
        name: &str,
        statement: &Parsed,
        parameters: &[ScalarValue],
    ) -> Result<Outcome, SqlError> {
        if self.cursors.contains_key(name) {
            return Err(SqlError::new(ErrorKind::DUPLICATE_CURSOR, format!("cursor \"{name}\" is open already"))
                .hint(format!("CLOSE {name} first, or give the cursor another name")));
        }
        match Box::pin(self.execute(statement, parameters)).await? {
            Outcome::Rows { schema, rows, endless, .. } => {
                let cursor =
                    Cursor { schema, rows: Mutex::new(rows), endless, buffered: VecDeque::new(), ended: false };
                self.cursors.insert(name.to_owned(), cursor);
                Ok(Outcome::command("DECLARE CURSOR"))
            }
            _ => Err(SqlError::syntax("a cursor needs a statement that answers rows")
                .hint("DECLARE c CURSOR FOR SELECT … or DECLARE c CURSOR FOR SUBSCRIBE TO v")),
        }
    }

    pub(super) async fn fetch(&mut self, name: &str, count: Option<u64>) -> Result<Outcome, SqlError> {
        let cursor = self.cursors.get_mut(name).ok_or_else(|| unknown_cursor(name))?;
        let count = count.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        if count == usize::MAX && cursor.endless {
            return Err(SqlError::unsupported("FETCH ALL from a subscription would never end")
                .hint(format!("FETCH 100 FROM {name} answers what has come so far")));
        }
        Ok(Outcome::table("FETCH", cursor.fetch(count).await?))
    }

    pub(super) fn close_cursor(&mut self, name: Option<&str>) -> Result<Outcome, SqlError> {
        match name {
            None => self.cursors.clear(),
            Some(name) => {
                self.cursors.remove(name).ok_or_else(|| unknown_cursor(name))?;
            }
        }
        Ok(Outcome::command("CLOSE CURSOR"))
    }
}

fn unknown_cursor(name: &str) -> SqlError {
    SqlError::new(ErrorKind::UNDEFINED_CURSOR, format!("cursor \"{name}\" does not exist"))
        .hint(format!("DECLARE {name} CURSOR FOR SELECT … opens it; COMMIT closes all cursors"))
}
