//! Rows from outside: INSERT, UPDATE, DELETE and HTTP requests, appended to a relation's log in groups and acknowledged
//! when they are durable.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use weir_connectors::{CsvOptions, Epoch, Format};
use weir_planner::{ErrorKind, Relation, RelationKind, SqlError};
use weir_runtime::job::JobStatus;
use weir_runtime::message::Chunk;
use weir_storage::{JobId, LogAppender, LogEntry, LogSeq};

use super::{Engine, IngestReceipt, is_connector};
use crate::error::{from_runtime, from_storage};

/// How long a statement waits until what it wrote can be read.
const VISIBLE_PATIENCE: Duration = Duration::from_secs(10);

/// What the engine keeps for each relation that is written to.
#[derive(Default)]
pub(super) struct Ingest {
    relations: Mutex<HashMap<String, Input>>,
}

struct Input {
    appender: Option<LogAppender>,
    /// Statements that read before they write (UPDATE, DELETE, INSERT into a table) take turns.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The entry that the table's upkeep has last been given.
    delivered: watch::Sender<LogSeq>,
    /// Entries up to here were acknowledged by a process before this one; readers wait for them.
    inherited: Option<LogSeq>,
}

impl Default for Input {
    fn default() -> Self {
        Self { appender: None, turn: Arc::default(), delivered: watch::Sender::new(LogSeq(0)), inherited: None }
    }
}

impl Ingest {
    pub(super) fn delivered(&self, relation: &str) -> watch::Sender<LogSeq> {
        self.relations.lock().entry(relation.to_owned()).or_default().delivered.clone()
    }

    pub(super) fn forget(&self, relation: &str) {
        self.relations.lock().remove(relation);
    }
}

impl Engine {
    /// Remembers what was acknowledged before this process started: its last checkpoint may be older, and a reader must
    /// not see less than a writer was told.
    pub(super) async fn inherit_rows(&self, table: &str, job: &JobId) -> Result<(), SqlError> {
        let head = self.input_log(job).head().await.map_err(from_storage)?;
        if head > LogSeq(0) {
            self.ingest.relations.lock().entry(table.to_owned()).or_default().inherited = Some(head);
        }
        Ok(())
    }

    /// Waits until rows that were acknowledged before this process started can be read.
    pub(super) async fn wait_for_inherited_rows(&self, table: &str) {
        let inherited = self.ingest.relations.lock().get(table).and_then(|input| input.inherited);
        let Some(seq) = inherited else { return };
        for notice in self.wait_until_visible(table, seq).await {
            tracing::warn!(table, notice, "reading what there is");
        }
        if let Some(input) = self.ingest.relations.lock().get_mut(table) {
            input.inherited = None;
        }
    }

    /// The lock under which a table is read and written by one statement.
    pub(crate) fn writer(&self, relation: &str) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.ingest.relations.lock().entry(relation.to_owned()).or_default().turn)
    }

    fn appender(&self, relation: &Relation) -> Result<LogAppender, SqlError> {
        let job = self.job_of(&relation.name).map_err(from_runtime)?;
        let mut relations = self.ingest.relations.lock();
        let input = relations.entry(relation.name.clone()).or_default();
        Ok(input
            .appender
            .get_or_insert_with(|| {
                let log = match relation.kind {
                    RelationKind::Table => self.input_log(&job),
                    _ => self.log_of(&job),
                };
                LogAppender::new(log, Arc::clone(&self.fence))
            })
            .clone())
    }

    /// Appends changes to a relation's log. Returns when they are durable and, for a table, can be read; notices tell
    /// when they cannot be read yet.
    pub(crate) async fn write(&self, relation: &Relation, chunks: Vec<Chunk>) -> Result<Vec<String>, SqlError> {
        self.health()?;
        let batches = chunks
            .into_iter()
            .map(|chunk| {
                let (batch, ops) = chunk.into_parts();
                (batch, ops.map(|ops| ops.as_ref().clone()))
            })
            .collect();
        let seq = self.appender(relation)?.append(LogEntry::new(batches)).await.map_err(from_storage)?;
        if relation.kind == RelationKind::Table {
            return Ok(self.wait_until_visible(&relation.name, seq).await);
        }
        Ok(Vec::new())
    }

    /// Waits until the table's upkeep has taken up entry `seq` and shown it to readers.
    async fn wait_until_visible(&self, table: &str, seq: LogSeq) -> Vec<String> {
        let Some(query) = self.queries.get(table) else {
            return vec![format!("the rows are durable; they can be read once the query of \"{table}\" runs")];
        };
        if matches!(&*query.handle.status().borrow(), JobStatus::Paused) {
            return vec![format!("the rows are durable; they can be read after ALTER QUERY {table} RESUME")];
        }
        let mut delivered = self.ingest.delivered(table).subscribe();
        let visible = async {
            if delivered.wait_for(|at| *at >= seq).await.is_err() {
                return false;
            }
            query.handle.flush().await.is_ok()
        };
        match tokio::time::timeout(VISIBLE_PATIENCE, visible).await {
            Ok(true) => Vec::new(),
            _ => vec![format!(
                "the rows are durable, but \"{table}\" has not shown them within {} s; SHOW QUERIES tells its state",
                VISIBLE_PATIENCE.as_secs()
            )],
        }
    }

    /// Make rows of a stream durable. `content_type`: `application/x-ndjson` (default), `application/json` (an array or
    /// one object), `text/csv` (with a header line). A `client_key` that was seen before writes nothing again.
    pub async fn ingest(
        &self,
        stream: &str,
        content_type: &str,
        client_key: Option<&str>,
        body: Bytes,
    ) -> Result<IngestReceipt, SqlError> {
        self.health()?;
        let catalog = self.catalog.current();
        let relation = catalog.find(stream)?;
        let takes_rows = relation.kind == RelationKind::Stream && relation.query.is_none() && !is_connector(relation);
        if !takes_rows {
            return Err(SqlError::new(
                ErrorKind::WRONG_KIND,
                format!("{} \"{stream}\" takes no rows over HTTP", relation.kind.name()),
            )
            .hint("declare a stream WITH (connector = 'http'), or one without a connector, and post to that"));
        }
        let appender = self.appender(relation)?;
        let log = self.log_of(&self.job_of(stream).map_err(from_runtime)?);
        if let Some(key) = client_key
            && let Some(seq) = log.known_client_key(key).await.map_err(from_storage)?
        {
            return Ok(IngestReceipt { rows: 0, bad_rows: 0, duplicate: true, position: seq.0 });
        }
        let schema = relation.physical_schema();
        let (format, body) = body_format(content_type, body)?;
        let (batch, bad) = weir_connectors::decode_body(&format, stream, &schema, &body).map_err(from_runtime)?;
        let (rows, bad_rows) = (batch.num_rows() as u64, bad.len() as u64);
        if !bad.is_empty() {
            self.rejects.add(stream, bad);
        }
        let batches = if rows > 0 { vec![(batch, None)] } else { Vec::new() };
        let entry = LogEntry { batches, client_key: client_key.map(str::to_owned) };
        let seq = appender.append(entry).await.map_err(from_storage)?;
        Ok(IngestReceipt { rows, bad_rows, duplicate: false, position: seq.0 })
    }
}

/// The format of a request's body, and the body in that format: a JSON array or a JSON object over several lines becomes
/// one object a line.
fn body_format(content_type: &str, body: Bytes) -> Result<(Format, Bytes), SqlError> {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let json = Format::Json { epoch: Epoch::Text };
    match kind.as_str() {
        "" | "application/x-ndjson" | "application/jsonl" | "text/plain" => Ok((json, body)),
        "application/json" => {
            // More than one object, each on its line, is accepted under this name too: many clients send it so.
            let lines = match serde_json::from_slice(&body) {
                Ok(serde_json::Value::Array(rows)) => {
                    rows.iter().map(|row| format!("{row}\n")).collect::<String>().into()
                }
                Ok(row) => format!("{row}\n").into(),
                Err(_) => body,
            };
            Ok((json, lines))
        }
        "text/csv" => Ok((Format::Csv(CsvOptions { header: true, ..CsvOptions::default() }), body)),
        _ => Err(SqlError::new(ErrorKind::BAD_DATA, format!("rows of content type \"{content_type}\" cannot be read"))
            .hint("send application/x-ndjson, application/json or text/csv with a header line")),
    }
}
