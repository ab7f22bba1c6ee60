//! Group commit: appends that come at the same time share one entry, and one write to the store.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::{Log, LogEntry, LogSeq};
use crate::error::{Result, StorageError};
use crate::fence::Fence;

/// How long the first append of a group waits for others.
const LINGER: Duration = Duration::from_millis(2);
/// A group is written at once when it has as many bytes or appends.
const GROUP_BYTES: usize = 4 << 20;
const GROUP_APPENDS: usize = 1024;

/// Appends to one relation's log in groups. Cloning it gives another handle. Appends of a caller who awaits each one
/// keep their order; those that are under way at the same time come in any.
#[derive(Debug, Clone)]
pub struct LogAppender {
    requests: mpsc::Sender<Request>,
    url: Arc<str>,
}

struct Request {
    entry: LogEntry,
    reply: oneshot::Sender<Result<LogSeq>>,
}

impl LogAppender {
    /// An appender for `log`. It ends with its last handle. Must be called within a Tokio runtime.
    pub fn new(log: Log, fence: Arc<Fence>) -> Self {
        let (requests, incoming) = mpsc::channel(GROUP_APPENDS);
        let url = log.url().into();
        tokio::spawn(run(log, fence, incoming));
        Self { requests, url }
    }

    /// Append an entry; the sequence number of what holds it. Durable when this returns. If the entry's client key is
    /// known already, nothing is written and the earlier entry's number is returned.
    pub async fn append(&self, entry: LogEntry) -> Result<LogSeq> {
        let stopped = || StorageError::Append {
            url: self.url.to_string(),
            reason: "the process is shutting down; it is unknown whether the rows were written".to_owned(),
        };
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request { entry, reply }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

async fn run(log: Log, fence: Arc<Fence>, mut incoming: mpsc::Receiver<Request>) {
    while let Some(first) = incoming.recv().await {
        let mut bytes = first.entry.bytes();
        let mut group = vec![first];
        let until = tokio::time::Instant::now() + LINGER;
        while bytes < GROUP_BYTES && group.len() < GROUP_APPENDS {
            match tokio::time::timeout_at(until, incoming.recv()).await {
                Ok(Some(request)) => {
                    bytes += request.entry.bytes();
                    group.push(request);
                }
                Ok(None) | Err(_) => break,
            }
        }
        let (entries, replies): (Vec<_>, Vec<_>) = group.into_iter().map(|r| (r.entry, r.reply)).unzip();
        match log.append_group(&fence, entries).await {
            Ok(sequence) => {
                for (seq, reply) in sequence.into_iter().zip(replies) {
                    let _ = reply.send(Ok(seq));
                }
            }
            Err(error) => {
                let reason = error.to_string();
                for reply in replies {
                    let _ = reply.send(Err(StorageError::Append { url: log.url(), reason: reason.clone() }));
                }
            }
        }
    }
}
