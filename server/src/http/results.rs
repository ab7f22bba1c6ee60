//! Runs statements in a task of their own and hands on what they answer, piece by piece.
//!
//! The task, not the request, owns the session: a client that goes away in the middle of a CREATE or INSERT does not
//! leave half of one behind, while rows that no one reads any more are cancelled at once.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::SendableRecordBatchStream;
use futures::StreamExt;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_planner::Parsed;

use super::backend::{Backend, Connection};
use super::problem::{Problem, Refusal};
use super::rows::{ResultColumn, RowWriter};
use crate::error::from_datafusion;
use crate::session::Outcome;

/// Pieces of an answer that wait for a slow client; then the statement waits.
const WAITING: usize = 4;

/// A piece of an answer.
#[derive(Debug)]
pub(super) enum Event {
    /// A statement answers with rows of these columns.
    Columns {
        /// The columns.
        columns: Vec<ResultColumn>,
        /// Whether the rows never end.
        endless: bool,
    },
    /// Rows, one JSON object a line.
    Rows(Vec<u8>),
    /// A statement answers with a command tag.
    Command {
        /// The tag.
        tag: String,
        /// What the user should know.
        notices: Vec<String>,
    },
    /// A statement failed; nothing follows.
    Failed(Box<Problem>),
    /// All statements were run.
    End,
}

/// Runs `statements` one after the other. Dropping the receiver cancels rows that are under way and what comes after.
pub(super) fn start(
    backend: &Arc<dyn Backend>,
    statements: Vec<Parsed>,
    parameters: Vec<Value>,
    shutdown: CancellationToken,
) -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let mut connection = backend.connect();
    tokio::spawn(async move {
        let all = statements.len();
        for (index, statement) in statements.iter().enumerate() {
            if let Err(stop) = run(connection.as_mut(), statement, &parameters, &sender, &shutdown).await {
                if let Stop::Failed(problem) = stop {
                    let _ = sender.send(Event::Failed(Box::new(problem.in_statement(index, all)))).await;
                }
                return;
            }
        }
        let _ = sender.send(Event::End).await;
    });
    receiver
}

/// Why no further statement is run.
enum Stop {
    Failed(Problem),
    ClientGone,
}

impl From<mpsc::error::SendError<Event>> for Stop {
    fn from(_: mpsc::error::SendError<Event>) -> Self {
        Self::ClientGone
    }
}

async fn run(
    connection: &mut dyn Connection,
    statement: &Parsed,
    parameters: &[Value],
    sender: &mpsc::Sender<Event>,
    shutdown: &CancellationToken,
) -> Result<(), Stop> {
    if sender.is_closed() {
        return Err(Stop::ClientGone);
    }
    match connection.run(statement, parameters).await.map_err(|error| Stop::Failed(error.into()))? {
        Outcome::Command { tag, notices } => Ok(sender.send(Event::Command { tag, notices }).await?),
        Outcome::Rows { schema, rows, endless, .. } => send_rows(&schema, rows, endless, sender, shutdown).await,
        Outcome::CopyOut { schema, rows } => send_rows(&schema, rows, true, sender, shutdown).await,
    }
}

async fn send_rows(
    schema: &SchemaRef,
    mut rows: SendableRecordBatchStream,
    endless: bool,
    sender: &mpsc::Sender<Event>,
    shutdown: &CancellationToken,
) -> Result<(), Stop> {
    let writer = RowWriter::new(schema);
    let head = || Event::Columns { columns: writer.columns().to_vec(), endless };
    // What ends is announced with its first rows, so that an error before them can still be the answer's status.
    let mut announced = endless;
    if endless {
        sender.send(head()).await?;
    }
    loop {
        let batch = tokio::select! {
            biased;
            () = sender.closed() => return Err(Stop::ClientGone),
            () = shutdown.cancelled() => return Err(Stop::Failed(shutting_down())),
            batch = rows.next() => batch,
        };
        let batch = match batch {
            Some(Ok(batch)) => Some(batch),
            Some(Err(error)) => return Err(Stop::Failed(from_datafusion(error).into())),
            None => None,
        };
        if !announced {
            sender.send(head()).await?;
            announced = true;
        }
        let Some(batch) = batch else { return Ok(()) };
        if batch.num_rows() > 0 {
            let lines = writer.lines(&batch).map_err(|error| Stop::Failed(unwritable(&error)))?;
            sender.send(Event::Rows(lines)).await?;
        }
    }
}

fn shutting_down() -> Problem {
    Problem::new(Refusal::ShuttingDown, "the server is shutting down", "subscribe again when it is back")
}

fn unwritable(error: &arrow::error::ArrowError) -> Problem {
    Problem::new(Refusal::Format, "the rows have a type that JSON cannot hold", "cast that column to TEXT")
        .detail(error.to_string())
}
