//! The log of a relation: what INSERT, HTTP and other queries write, in one order, readable from any position.
//!
//! ```text
//!   append(rows) ──────────────────────────────┐
//!   stage(rows) ─► LogPart ─(manifest durable)─► publish ─► logs/<relation>/00…42   created conditionally
//!                  small: inline, large: data/<job>/chk-13-0-…       │
//!                                                                   └─► watch: readers of this process wake
//! ```
//!
//! Entries are numbered from 1 without gaps. The newest one carries the last checkpoint that each job has published,
//! so that repeating a commit after a crash is recognised without reading back. An entry of a job also carries the
//! event time that the job had come to, so that readers close their windows by it.
//!
//! `retention.rs` decides which of the oldest entries may go, `trim.rs` removes them.

mod appender;
mod entry;
mod retention;
mod shared;
#[cfg(test)]
mod tests;
mod trim;

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::{MutexGuard, watch};

pub use appender::LogAppender;
pub use entry::{LogBatch, LogEntryKind, decode_rows, encode_rows};
pub use retention::{LogExtent, LogRetention, OldEntry, decide_trim};

use crate::checkpoint::base64_bytes;
use crate::error::{Result, StorageError};
use crate::fence::Fence;
use crate::store::{Store, path_part};
use crate::{CheckpointId, JobId, Subtask};
use entry::{Header, PartRef, Published, Writer};
use shared::{ClientKeys, ReadEntry, Shared, WriterState};

/// Staged rows up to this size travel in the manifest and then in the entry, larger ones become objects.
const INLINE_PART: usize = 16 << 10;
/// Client keys of this many entries are remembered.
const KEYED_ENTRIES: u64 = 10_000;
/// Every so many entries the head is written down, so that opening the log need not list it.
const HINT_EVERY: u64 = 64;
/// Bytes that nearly always hold an entry's header.
const HEADER_GUESS: u64 = 16 << 10;
/// Jobs whose last publication each entry carries on.
const PUBLISHERS: usize = 256;
/// Objects that are read at the same time.
const CONCURRENCY: usize = 16;

/// Position in a log: the number of an entry, counted from 1; 0 is before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogSeq(pub u64);

impl LogSeq {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for LogSeq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Rows to be appended.
#[derive(Debug, Clone, Default)]
pub struct LogEntry {
    /// The rows.
    pub batches: Vec<LogBatch>,
    /// A key by which the client will recognise a repetition; a known one is not written again.
    pub client_key: Option<String>,
}

impl LogEntry {
    /// Rows without a client key.
    pub fn new(batches: Vec<LogBatch>) -> Self {
        Self { batches, client_key: None }
    }

    fn bytes(&self) -> usize {
        self.batches.iter().map(|(batch, _)| batch.get_array_memory_size()).sum()
    }
}

/// What an entry says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntryMeta {
    /// Its position.
    pub seq: LogSeq,
    /// How it came to be.
    pub kind: LogEntryKind,
    /// The job and checkpoint that published it.
    pub writer: Option<(JobId, CheckpointId)>,
    /// Client keys of its appends.
    pub client_keys: Vec<String>,
    /// Number of rows.
    pub rows: u64,
    /// When it was written, in milliseconds since 1970.
    pub written_ms: i64,
    /// Event time that its writer had come to with its rows, in microseconds since 1970.
    pub watermark: Option<i64>,
}

impl LogEntryMeta {
    fn of(seq: LogSeq, header: &Header) -> Self {
        Self {
            seq,
            kind: header.kind,
            writer: header.writer.as_ref().map(|writer| (writer.job.clone(), writer.checkpoint)),
            client_keys: header.client_keys.clone(),
            rows: header.rows,
            written_ms: header.written_ms,
            watermark: header.watermark,
        }
    }
}

/// Rows that a job has made durable and will publish with its checkpoint; serialisable, as a sink's committable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogPart {
    /// The rows themselves (Arrow IPC).
    Inline {
        /// Number of rows.
        rows: u64,
        /// The stream; base64 in JSON.
        #[serde(with = "base64_bytes")]
        bytes: Bytes,
    },
    /// An object of their own.
    Object {
        /// Number of rows.
        rows: u64,
        /// Relative to the log's directory.
        path: String,
        /// Number of bytes.
        length: u64,
        /// CRC-32 of all bytes.
        crc32: u32,
    },
}

/// Where a log begins and ends, as far as was written down.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Hint {
    first: LogSeq,
    head: LogSeq,
}

/// A relation's log. Cloning it gives another handle; all handles of a process share what they know.
#[derive(Clone)]
pub struct Log {
    store: Store,
    /// With a slash at its end.
    directory: String,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Log").field(&self.url()).finish()
    }
}

impl Log {
    /// The log of `relation`. Nothing is read or written.
    pub fn new(store: &Store, relation: &str) -> Self {
        let directory = format!("logs/{}/", path_part(relation));
        Self { store: store.clone(), directory, shared: Shared::of(store.url(), relation) }
    }

    /// Absolute URL of the log.
    pub fn url(&self) -> String {
        self.store.absolute(self.directory.trim_end_matches('/'))
    }

    fn entry_path(&self, seq: LogSeq) -> String {
        format!("{}{:020}", self.directory, seq.0)
    }

    fn hint_path(&self) -> String {
        format!("{}HEAD", self.directory)
    }

    /// The newest entry's position; 0 if there is none.
    pub async fn head(&self) -> Result<LogSeq> {
        drop(self.loaded().await?);
        Ok(self.shared.head())
    }

    /// The oldest entry's position (of what was not trimmed); 1 if there is none.
    pub async fn first(&self) -> Result<LogSeq> {
        let mut state = self.loaded().await?;
        self.first_known(&mut state).await
    }

    /// Wakes when an entry is written by this process. Its first value is what is known so far; call [`Log::head`]
    /// once before relying on it.
    pub fn watch(&self) -> watch::Receiver<LogSeq> {
        self.shared.head.subscribe()
    }

    /// Append rows; durable when this returns.
    pub async fn append(&self, fence: &Fence, entry: LogEntry) -> Result<LogSeq> {
        let sequence = self.append_group(fence, vec![entry]).await?;
        Ok(sequence.first().copied().unwrap_or_default())
    }

    /// Append several clients' rows as one entry; the position that holds each one's. An entry whose client key is
    /// known is not written again.
    pub async fn append_group(&self, fence: &Fence, entries: Vec<LogEntry>) -> Result<Vec<LogSeq>> {
        let mut state = self.loaded().await?;
        let keyed = entries.iter().any(|entry| entry.client_key.is_some());
        loop {
            if keyed {
                self.load_keys(&mut state).await?;
            }
            let known = |key: &Option<String>| state.keys.as_ref()?.get(key.as_ref()?);
            let mut header = Header::new(LogEntryKind::Append);
            let mut batches: Vec<LogBatch> = Vec::new();
            let sequence: Vec<Option<LogSeq>> = entries.iter().map(|entry| known(&entry.client_key)).collect();
            for (entry, known) in entries.iter().zip(&sequence) {
                let repeated = entry.client_key.as_ref().is_some_and(|key| header.client_keys.contains(key));
                if known.is_some() || repeated {
                    continue;
                }
                header.client_keys.extend(entry.client_key.clone());
                batches.extend(entry.batches.iter().filter(|(batch, _)| batch.num_rows() > 0).cloned());
            }
            let resolve = |seq| sequence.iter().map(|known| known.unwrap_or(seq)).collect();
            if batches.is_empty() && header.client_keys.is_empty() {
                return Ok(resolve(self.shared.head()));
            }
            let mut body = Vec::new();
            for (bytes, rows) in encode_rows(&batches)? {
                header.parts.push(PartRef::Inline { length: bytes.len() as u64 });
                header.rows += rows;
                body.push(bytes);
            }
            if let Some(seq) = self.write(fence, &mut state, header, &body, Some(batches)).await? {
                return Ok(resolve(seq));
            }
        }
    }

    /// Make rows of a job durable without publishing them.
    pub async fn stage(
        &self,
        job: &JobId,
        checkpoint: CheckpointId,
        subtask: Subtask,
        batches: &[LogBatch],
    ) -> Result<Vec<LogPart>> {
        let mut parts = Vec::new();
        for (bytes, rows) in encode_rows(batches)? {
            if bytes.len() <= INLINE_PART {
                parts.push(LogPart::Inline { rows, bytes });
                continue;
            }
            let unique = uuid::Uuid::now_v7().simple();
            let path = format!("data/{}/chk-{checkpoint}-{subtask}-{unique}", path_part(&job.0));
            let (length, crc32) = (bytes.len() as u64, crc32fast::hash(&bytes));
            self.store.put(&format!("{}{path}", self.directory), bytes).await?;
            parts.push(LogPart::Object { rows, path, length, crc32 });
        }
        Ok(parts)
    }

    /// Publish what a job has staged for a checkpoint, as one entry. Idempotent: repeated for a checkpoint that this
    /// job has published already (or a later one), it returns that entry's position.
    ///
    /// `watermark` is the event time that the job has come to with these rows, in microseconds since 1970. When it
    /// has moved, an entry is written even without rows; it never goes back.
    pub async fn publish(
        &self,
        fence: &Fence,
        writer: (JobId, CheckpointId),
        parts: Vec<LogPart>,
        watermark: Option<i64>,
    ) -> Result<LogSeq> {
        let (job, checkpoint) = writer;
        let mut state = self.loaded().await?;
        loop {
            if let Some(last) = state.published.get(&job.0)
                && last.checkpoint >= checkpoint
            {
                return Ok(last.seq);
            }
            let before = state.published.get(&job.0).and_then(|last| last.watermark);
            if parts.is_empty() && watermark <= before {
                return Ok(self.shared.head());
            }
            let mut header = Header::new(LogEntryKind::Publish);
            header.watermark = watermark.max(before);
            header.writer = Some(Writer { job: job.clone(), checkpoint });
            let mut body = Vec::new();
            for part in &parts {
                match part {
                    LogPart::Inline { rows, bytes } => {
                        header.rows += rows;
                        header.parts.push(PartRef::Inline { length: bytes.len() as u64 });
                        body.push(bytes.clone());
                    }
                    LogPart::Object { rows, path, length, crc32 } => {
                        header.rows += rows;
                        let (path, length, crc32) = (path.clone(), *length, *crc32);
                        header.parts.push(PartRef::Object { path, length, crc32 });
                    }
                }
            }
            if let Some(seq) = self.write(fence, &mut state, header, &body, None).await? {
                return Ok(seq);
            }
        }
    }

    /// Remove what `job` staged for checkpoints after `last`: attempts that were never completed.
    pub async fn discard_staged(&self, job: &JobId, last: CheckpointId) -> Result<usize> {
        let objects = self.store.list(&format!("{}data/{}", self.directory, path_part(&job.0))).await?;
        let checkpoint = |path: &str| -> Option<u64> {
            path.rsplit('/').next()?.strip_prefix("chk-")?.split('-').next()?.parse().ok()
        };
        let left: Vec<String> = objects
            .into_iter()
            .map(|object| object.path)
            .filter(|path| checkpoint(path).is_some_and(|id| id > last.0))
            .collect();
        let count = left.len();
        self.store.delete_many(left).await?;
        Ok(count)
    }

    /// An entry with its rows; `None` after the head. An entry that was trimmed is an error.
    pub async fn read(&self, seq: LogSeq) -> Result<Option<(LogEntryMeta, Vec<LogBatch>)>> {
        if let Some(recent) = self.shared.recent(seq) {
            return Ok(Some(ReadEntry::clone(&recent)));
        }
        let path = self.entry_path(seq);
        let url = self.store.absolute(&path);
        let Some(bytes) = self.store.get_if_exists(&path).await? else {
            if seq <= self.head().await? {
                let needed_by =
                    format!("a reader that stands before entry {seq} of it (the log was trimmed after that)");
                return Err(StorageError::Missing { url, needed_by });
            }
            return Ok(None);
        };
        let (header, inline) = Header::decode_entry(&bytes, &url)?;
        let mut inline = inline.into_iter();
        let parts: Vec<(PartRef, Option<Bytes>)> = header
            .parts
            .iter()
            .map(|part| match part {
                PartRef::Inline { .. } => (part.clone(), inline.next()),
                PartRef::Object { .. } => (part.clone(), None),
            })
            .collect();
        let bodies: Vec<Bytes> =
            futures::stream::iter(parts).map(|part| self.part(part, seq)).buffered(4).try_collect().await?;
        let mut batches = Vec::new();
        for body in bodies {
            batches.extend(decode_rows(&body)?);
        }
        Ok(Some((LogEntryMeta::of(seq, &header), batches)))
    }

    async fn part(&self, part: (PartRef, Option<Bytes>), seq: LogSeq) -> Result<Bytes> {
        let (PartRef::Object { path, length, crc32 }, None) = part else { return Ok(part.1.unwrap_or_default()) };
        let full = format!("{}{path}", self.directory);
        let url = self.store.absolute(&full);
        let bytes = self.store.get_if_exists(&full).await?.ok_or_else(|| StorageError::Missing {
            url: url.clone(),
            needed_by: format!("entry {seq} of {}", self.url()),
        })?;
        if bytes.len() as u64 != length || crc32fast::hash(&bytes) != crc32 {
            let reason = format!("its {} bytes are not the {length} bytes with checksum {crc32:08x}", bytes.len());
            return Err(StorageError::Corrupt { url, reason });
        }
        Ok(bytes)
    }

    /// The position of the entry that a client key was written with, among the last 10,000 entries.
    pub async fn known_client_key(&self, key: &str) -> Result<Option<LogSeq>> {
        let mut state = self.loaded().await?;
        self.load_keys(&mut state).await?;
        Ok(state.keys.as_ref().and_then(|keys| keys.get(key)))
    }

    /// Remove the whole log: the relation was dropped.
    pub async fn delete_all(&self, fence: &Fence) -> Result<()> {
        let mut state = self.shared.writer.lock().await;
        fence.check().await?;
        let objects = self.store.list(self.directory.trim_end_matches('/')).await?;
        self.store.delete_many(objects.into_iter().map(|object| object.path).collect()).await?;
        *state = WriterState::default();
        self.shared.forget();
        self.shared.head.send_replace(LogSeq(0));
        Ok(())
    }

    /// Write an entry at the next position; `None` if somebody else has taken it: what is known is then up to date
    /// again, and the caller decides anew.
    async fn write(
        &self,
        fence: &Fence,
        state: &mut WriterState,
        mut header: Header,
        body: &[Bytes],
        rows: Option<Vec<LogBatch>>,
    ) -> Result<Option<LogSeq>> {
        fence.check_lease().await?;
        let seq = self.shared.head().next();
        let mut published = state.published.clone();
        if let Some(writer) = &header.writer {
            let watermark = header.watermark;
            published.insert(writer.job.0.clone(), Published { checkpoint: writer.checkpoint, seq, watermark });
            while published.len() > PUBLISHERS {
                let oldest = published.iter().min_by_key(|(_, last)| last.seq).map(|(job, _)| job.clone());
                oldest.and_then(|job| published.remove(&job));
            }
        }
        header.published = published;
        if !self.store.create(&self.entry_path(seq), header.encode(body)).await? {
            fence.check().await?;
            self.catch_up(state).await?;
            return Ok(None);
        }
        if let Some(rows) = rows {
            self.shared.remember((LogEntryMeta::of(seq, &header), rows));
        }
        state.published = header.published;
        if let Some(keys) = &mut state.keys {
            keys.add(seq, &header.client_keys, LogSeq(seq.0.saturating_sub(KEYED_ENTRIES)));
        }
        self.shared.advance(seq);
        if seq.0.is_multiple_of(HINT_EVERY) {
            let written = async {
                let first = self.first_known(state).await?;
                self.write_hint(Hint { first, head: seq }).await
            };
            if let Err(error) = written.await {
                tracing::debug!(%error, "the log's head could not be written down; opening it will take longer");
            }
        }
        Ok(Some(seq))
    }

    async fn loaded(&self) -> Result<MutexGuard<'_, WriterState>> {
        let mut state = self.shared.writer.lock().await;
        if !state.loaded {
            self.catch_up(&mut state).await?;
            state.loaded = true;
        }
        Ok(state)
    }

    /// Find the head, and read from its entry what has been published.
    async fn catch_up(&self, state: &mut WriterState) -> Result<()> {
        let known = self.shared.head();
        let head = self.find_head(known).await?;
        if head == LogSeq(0) {
            return Ok(());
        }
        let path = self.entry_path(head);
        let header = self.header(head).await?.ok_or_else(|| StorageError::Missing {
            url: self.store.absolute(&path),
            needed_by: format!("the log at {}", self.url()),
        })?;
        state.published = header.published;
        if state.loaded && state.keys.is_some() {
            // Entries of somebody else may hold keys; they are read again when next asked for.
            state.keys = None;
        }
        state.first = None;
        self.shared.advance(head);
        Ok(())
    }

    async fn find_head(&self, known: LogSeq) -> Result<LogSeq> {
        let exists = async |seq: u64| self.store.exists(&self.entry_path(LogSeq(seq))).await;
        let hinted = if known > LogSeq(0) { Some(known) } else { self.hint().await?.map(|hint| hint.head) };
        let Some(LogSeq(mut low)) = hinted else {
            let here = self.store.list_here(self.directory.trim_end_matches('/')).await?;
            let number = |path: &str| path.rsplit('/').next()?.parse().ok();
            return Ok(LogSeq(here.iter().filter_map(|object| number(&object.path)).max().unwrap_or(0)));
        };
        // Entries have no gaps, so the head is where existence ends: gallop past it, then halve.
        let mut step = 1;
        while exists(low + step).await? {
            low += step;
            step *= 2;
        }
        let mut high = low + step;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if exists(middle).await? { low = middle } else { high = middle }
        }
        Ok(LogSeq(low))
    }

    async fn hint(&self) -> Result<Option<Hint>> {
        let path = self.hint_path();
        match self.store.get_if_exists(&path).await? {
            // A store that does not sync what it writes may leave it empty after a power loss.
            Some(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            None => Ok(None),
        }
    }

    async fn write_hint(&self, hint: Hint) -> Result<()> {
        let json = serde_json::to_vec(&hint).unwrap_or_default();
        self.store.put(&self.hint_path(), json).await
    }

    async fn header(&self, seq: LogSeq) -> Result<Option<Header>> {
        let path = self.entry_path(seq);
        let url = self.store.absolute(&path);
        let Some(bytes) = self.store.get_prefix(&path, HEADER_GUESS).await? else { return Ok(None) };
        if let Ok((header, _)) = Header::decode(&bytes, &url)? {
            return Ok(Some(header));
        }
        let Some(bytes) = self.store.get_if_exists(&path).await? else { return Ok(None) };
        let decoded = Header::decode(&bytes, &url)?;
        decoded
            .map(|(header, _)| Some(header))
            .map_err(|_| StorageError::Corrupt { url, reason: "its header is cut off".to_owned() })
    }

    async fn load_keys(&self, state: &mut WriterState) -> Result<()> {
        if state.keys.is_some() {
            return Ok(());
        }
        let head = self.shared.head();
        let since = LogSeq(head.0.saturating_sub(KEYED_ENTRIES));
        let mut keys = ClientKeys::default();
        for (seq, key) in self.trimmed_keys().await? {
            keys.add(seq, &[key], since);
        }
        let from = self.first_known(state).await?.max(since.next());
        let headers: Vec<(LogSeq, Option<Header>)> = futures::stream::iter(from.0..=head.0)
            .map(|seq| async move { Ok::<_, StorageError>((LogSeq(seq), self.header(LogSeq(seq)).await?)) })
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        for (seq, header) in headers {
            if let Some(header) = header {
                keys.add(seq, &header.client_keys, since);
            }
        }
        state.keys = Some(keys);
        Ok(())
    }
}
