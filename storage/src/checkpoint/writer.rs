//! Writing a checkpoint's data: the segments of all subtasks of a worker go into one merged object.
//!
//! ```text
//!   subtask 0 ── segment(a) ─┐                     ┌─ smallest bodies, up to inline_threshold in all ─► Inline
//!   subtask 1 ── segment(b) ─┼─► open batch ─ seal ┤
//!   subtask 1 ── segment(c) ─┘     ▲               └─ the rest ─► one object ─ durable ─► Object{range, crc}
//!                                  └ the last contributor is done · max_file_size is reached · nothing came for `linger`
//! ```
//!
//! **For callers:** [`CheckpointWriter::segment`] takes the body when it is *called*; the future that it returns only
//! waits for durability. So hand over everything first, call [`CheckpointWriter::contributor_done`], and await the
//! futures then. A contributor that awaits a segment before it says that it is done holds the merged file open until
//! `linger` has passed: correct, but slow and with more objects.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};

use super::merged_file::{MAGIC, MergedFileIndex};
use super::segment::{Segment, SegmentBody};
use crate::error::{Result, StorageError};
use crate::store::Store;
use crate::{CheckpointId, JobId};

/// Objects up to this size are written by one request from memory, larger ones streamed in parts.
const WHOLE: u64 = 8 << 20;
/// Size of a part, unless the object would have too many.
const PART: u64 = 8 << 20;
/// S3 allows 10,000 parts.
const MAX_PARTS: u64 = 9_000;
/// Bytes read from a local file at once.
const READ: usize = 1 << 20;
/// Objects that are written at the same time.
const UPLOADS: usize = 4;

/// How segments become objects.
#[derive(Debug, Clone)]
pub struct MergeOptions {
    /// Whether segments share objects at all; without it each one has its own.
    pub merging: bool,
    /// Bytes of state that one worker may leave in one manifest.
    pub inline_threshold: u64,
    /// An object is sealed before it would exceed this; only a single larger segment does.
    pub max_file_size: u64,
    /// Without merging, how many subtasks share an object of rows in flight: each has few of them, and seldom.
    pub in_flight_sharers: usize,
    /// How long an open object waits for further segments while contributors are still at work.
    pub linger: Duration,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self {
            merging: true,
            inline_threshold: 20 << 10,
            max_file_size: 256 << 20,
            in_flight_sharers: 5,
            linger: Duration::from_millis(250),
        }
    }
}

/// What a writer has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Objects written.
    pub objects: u64,
    /// Bytes of segments in them.
    pub new_bytes: u64,
    /// Bytes of segments that stay in the manifest.
    pub inline_bytes: u64,
    /// From the first upload's begin to the last one's end.
    pub upload_ms: u64,
}

/// Collects the segments of one checkpoint. Cloning it gives another handle to the same one.
#[derive(Clone)]
pub struct CheckpointWriter {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    job: JobId,
    /// The job's directory, with a slash at its end unless it is the store itself.
    directory: String,
    checkpoint: CheckpointId,
    options: MergeOptions,
    runtime: Handle,
    uploads: Semaphore,
    aborted: watch::Sender<Option<Arc<str>>>,
    state: Mutex<State>,
}

struct State {
    open: Vec<Pending>,
    open_bytes: u64,
    /// Rows in flight that wait for the next subtask's, when segments are not merged.
    in_flight: Vec<Pending>,
    contributors: usize,
    inline_left: u64,
    /// Counts segments, so that the linger notices that some came.
    arrivals: u64,
    lingering: bool,
    stats: WriterStats,
    upload_span: Option<(Instant, Instant)>,
}

struct Pending {
    name: String,
    body: SegmentBody,
    length: u64,
    reply: oneshot::Sender<Result<Segment>>,
}

impl std::fmt::Debug for CheckpointWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CheckpointWriter").field(&self.inner.checkpoint).finish()
    }
}

impl CheckpointWriter {
    /// `directory` is the job's. Uploads run on the current Tokio runtime, whatever runtime segments come from.
    pub(super) fn new(
        store: &Store,
        job: &JobId,
        directory: String,
        checkpoint: CheckpointId,
        options: MergeOptions,
        contributors: usize,
    ) -> Self {
        let state = State {
            open: Vec::new(),
            open_bytes: 0,
            in_flight: Vec::new(),
            contributors,
            inline_left: options.inline_threshold,
            arrivals: 0,
            lingering: false,
            stats: WriterStats::default(),
            upload_span: None,
        };
        let inner = Inner {
            store: store.clone(),
            job: job.clone(),
            directory,
            checkpoint,
            options,
            runtime: Handle::current(),
            uploads: Semaphore::new(UPLOADS),
            aborted: watch::Sender::new(None),
            state: Mutex::new(state),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Which checkpoint this is.
    pub fn checkpoint(&self) -> CheckpointId {
        self.inner.checkpoint
    }

    /// Hand over a segment. The body is taken at once; the future resolves when it is durable (or, for a segment that
    /// goes into the manifest, when that is decided). Dropping the future does not take the segment back.
    pub fn segment(&self, body: SegmentBody) -> impl Future<Output = Result<Segment>> + Send + 'static + use<> {
        let name = match &body {
            SegmentBody::Bytes(_) => String::new(),
            SegmentBody::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        };
        self.named_segment(name, body)
    }

    /// As [`CheckpointWriter::segment`], with a name for the object's index, where a person may look for it.
    pub fn named_segment(
        &self,
        name: String,
        body: SegmentBody,
    ) -> impl Future<Output = Result<Segment>> + Send + 'static + use<> {
        let aborted = self.inner.aborted.subscribe();
        let checkpoint = self.inner.checkpoint;
        let durable = self.enqueue(name, body, false);
        Self::durable(durable, aborted, checkpoint)
    }

    /// Hand over a subtask's rows in flight. Without merging, [`MergeOptions::in_flight_sharers`] subtasks share an object;
    /// if it cannot be written, it fails for all of them.
    pub fn in_flight_segment(&self, bytes: Bytes) -> impl Future<Output = Result<Segment>> + Send + 'static + use<> {
        let (aborted, checkpoint) = (self.inner.aborted.subscribe(), self.inner.checkpoint);
        let durable = self.enqueue("in-flight".to_owned(), SegmentBody::Bytes(bytes), true);
        Self::durable(durable, aborted, checkpoint)
    }

    async fn durable(
        durable: Result<oneshot::Receiver<Result<Segment>>>,
        mut aborted: watch::Receiver<Option<Arc<str>>>,
        checkpoint: CheckpointId,
    ) -> Result<Segment> {
        let mut durable = durable?;
        let answer = tokio::select! {
            biased;
            answer = &mut durable => answer.ok(),
            reason = reason_of(&mut aborted) => Some(Err(StorageError::Aborted { checkpoint, reason })),
        };
        answer.unwrap_or_else(|| {
            // Nobody will answer: an abort has emptied the open batch, or the runtime is gone.
            let reason = aborted.borrow().as_deref().unwrap_or("the process is shutting down").to_owned();
            Err(StorageError::Aborted { checkpoint, reason })
        })
    }

    fn enqueue(&self, name: String, body: SegmentBody, in_flight: bool) -> Result<oneshot::Receiver<Result<Segment>>> {
        let length = match &body {
            SegmentBody::Bytes(bytes) => bytes.len() as u64,
            SegmentBody::File(path) => std::fs::metadata(path).map_err(|e| io(path, e))?.len(),
        };
        let (reply, durable) = oneshot::channel();
        let inner = &self.inner;
        let mut state = inner.state.lock();
        if let Some(reason) = inner.aborted.borrow().as_ref() {
            return Err(StorageError::Aborted { checkpoint: inner.checkpoint, reason: reason.to_string() });
        }
        if length == 0 {
            let _ = reply.send(Ok(Segment::inline(Bytes::new())));
            return Ok(durable);
        }
        if in_flight && !inner.options.merging {
            state.in_flight.push(Pending { name, body, length, reply });
            if state.in_flight.len() >= inner.options.in_flight_sharers || state.contributors == 0 {
                inner.seal_in_flight(&mut state);
            }
            return Ok(durable);
        }
        if !state.open.is_empty() && state.open_bytes + length > inner.options.max_file_size {
            inner.seal(&mut state);
        }
        state.open.push(Pending { name, body, length, reply });
        state.open_bytes += length;
        state.arrivals += 1;
        let full = state.open_bytes >= inner.options.max_file_size;
        if full || state.contributors == 0 || !inner.options.merging {
            inner.seal(&mut state);
        } else if !state.lingering {
            state.lingering = true;
            inner.runtime.spawn(Arc::clone(inner).linger());
        }
        Ok(durable)
    }

    /// One contributor has handed over all of its segments. After the last one, what is open is written.
    pub async fn contributor_done(&self) {
        let mut state = self.inner.state.lock();
        state.contributors = state.contributors.saturating_sub(1);
        if state.contributors == 0 {
            self.inner.seal(&mut state);
            self.inner.seal_in_flight(&mut state);
        }
    }

    /// Give the checkpoint up: every segment that is not durable fails. Nothing is deleted; clean-up does that, from
    /// what manifests say.
    pub async fn abort(&self, reason: &str) {
        let mut state = self.inner.state.lock();
        self.inner.aborted.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason.into());
            }
            first
        });
        state.open.clear();
        state.in_flight.clear();
        state.open_bytes = 0;
    }

    /// What has been written so far.
    pub fn stats(&self) -> WriterStats {
        let state = self.inner.state.lock();
        let upload_ms = state.upload_span.map_or(0, |(from, to)| (to - from).as_millis() as u64);
        WriterStats { upload_ms, ..state.stats }
    }
}

async fn reason_of(aborted: &mut watch::Receiver<Option<Arc<str>>>) -> String {
    let reason =
        aborted.wait_for(Option::is_some).await.ok().map(|reason| reason.as_deref().unwrap_or_default().to_owned());
    match reason {
        Some(reason) => reason,
        // The writer is gone, and with it every upload; the other branch of the select reports it.
        None => std::future::pending().await,
    }
}

fn io(path: &Path, source: std::io::Error) -> StorageError {
    StorageError::Io { path: path.display().to_string(), source }
}

impl Inner {
    /// Write what is open. Decides what stays inline: the smallest bodies, as long as the threshold has room.
    fn seal(self: &Arc<Self>, state: &mut State) {
        let batch = std::mem::take(&mut state.open);
        state.open_bytes = 0;
        self.seal_batch(state, batch);
    }

    fn seal_in_flight(self: &Arc<Self>, state: &mut State) {
        let batch = std::mem::take(&mut state.in_flight);
        self.seal_batch(state, batch);
    }

    fn seal_batch(self: &Arc<Self>, state: &mut State, batch: Vec<Pending>) {
        if batch.is_empty() {
            return;
        }
        let lengths: Vec<u64> = batch.iter().map(|pending| pending.length).collect();
        let inline = smallest_within(&lengths, state.inline_left);
        let inline_bytes: u64 = inline.iter().map(|i| lengths[*i]).sum();
        state.inline_left -= inline_bytes;
        state.stats.inline_bytes += inline_bytes;
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for (i, pending) in batch.into_iter().enumerate() {
            if inline.contains(&i) { small.push(pending) } else { large.push(pending) }
        }
        if !small.is_empty() {
            self.runtime.spawn(embed(small));
        }
        if !large.is_empty() {
            self.runtime.spawn(Arc::clone(self).write(large));
        }
    }

    async fn linger(self: Arc<Self>) {
        let mut seen = self.state.lock().arrivals;
        loop {
            tokio::time::sleep(self.options.linger).await;
            let mut state = self.state.lock();
            if state.arrivals == seen {
                self.seal(&mut state);
                state.lingering = false;
                return;
            }
            seen = state.arrivals;
        }
    }

    async fn write(self: Arc<Self>, batch: Vec<Pending>) {
        // UUIDv7 keeps names unique over attempts and processes; the checkpoint's number tells clean-up whose it is.
        let path = object_path(self.checkpoint, &uuid::Uuid::now_v7().simple().to_string());
        let full_path = format!("{}{path}", self.directory);
        let mut index = MergedFileIndex::new(self.job.clone(), self.checkpoint);
        let begin = Instant::now();
        let mut aborted = self.aborted.subscribe();
        let result = match self.uploads.acquire().await {
            Ok(_permit) => {
                let total: u64 = batch.iter().map(|pending| pending.length).sum();
                let small = total <= WHOLE;
                tokio::select! {
                    biased;
                    result = async {
                        if small {
                            self.write_whole(&full_path, &batch, &mut index).await
                        } else {
                            self.write_parts(&full_path, total, &batch, &mut index).await
                        }
                    } => result,
                    // `write_parts` notices by itself, in order to tell the store to drop the parts.
                    reason = reason_of(&mut aborted), if small => {
                        Err(StorageError::Aborted { checkpoint: self.checkpoint, reason })
                    }
                }
            }
            Err(_) => return,
        };
        let end = Instant::now();
        {
            let mut state = self.state.lock();
            let (from, to) = state.upload_span.unwrap_or((begin, end));
            state.upload_span = Some((from.min(begin), to.max(end)));
            if result.is_ok() {
                state.stats.objects += 1;
                state.stats.new_bytes += batch.iter().map(|pending| pending.length).sum::<u64>();
            }
        }
        match result {
            Ok(()) => {
                for (pending, segment) in batch.into_iter().zip(index.segments) {
                    let (offset, length, crc32) = (segment.offset, segment.length, segment.crc32);
                    let _ = pending.reply.send(Ok(Segment::Object { path: path.clone(), offset, length, crc32 }));
                }
            }
            Err(error) => {
                for pending in batch {
                    let _ = pending.reply.send(Err(self.failure(&error, &full_path)));
                }
            }
        }
    }

    async fn write_whole(&self, path: &str, batch: &[Pending], index: &mut MergedFileIndex) -> Result<()> {
        let mut chunks = vec![Bytes::from_static(MAGIC)];
        for pending in batch {
            let bytes = read_whole(pending).await?;
            index.push(pending.name.clone(), pending.length, crc32fast::hash(&bytes));
            chunks.push(bytes);
        }
        chunks.push(index.footer());
        self.store.put_chunks(path, chunks).await
    }

    async fn write_parts(&self, path: &str, total: u64, batch: &[Pending], index: &mut MergedFileIndex) -> Result<()> {
        let part = PART.max(total.div_ceil(MAX_PARTS));
        let mut upload = self.store.upload(path, part as usize).await?;
        match self.fill(&mut upload, batch, index).await {
            Ok(()) => upload.finish().await,
            Err(error) => {
                if let Err(e) = upload.abort().await {
                    tracing::debug!(error = %e, "parts of an aborted upload stay until the store's own rule removes them");
                }
                Err(error)
            }
        }
    }

    async fn fill(
        &self,
        upload: &mut crate::store::Upload,
        batch: &[Pending],
        index: &mut MergedFileIndex,
    ) -> Result<()> {
        upload.write(Bytes::from_static(MAGIC)).await?;
        for pending in batch {
            self.check_aborted()?;
            let crc32 = match &pending.body {
                SegmentBody::Bytes(bytes) => {
                    upload.write(bytes.clone()).await?;
                    crc32fast::hash(bytes)
                }
                SegmentBody::File(path) => {
                    let mut crc = crc32fast::Hasher::new();
                    let mut file = tokio::fs::File::open(path).await.map_err(|e| io(path, e))?;
                    let mut left = pending.length;
                    while left > 0 {
                        let mut buffer = BytesMut::with_capacity(READ.min(left as usize));
                        let read = (&mut file).take(left).read_buf(&mut buffer).await.map_err(|e| io(path, e))?;
                        if read == 0 {
                            return Err(shorter(path, pending.length));
                        }
                        left -= read as u64;
                        crc.update(&buffer);
                        upload.write(buffer.freeze()).await?;
                        self.check_aborted()?;
                    }
                    crc.finalize()
                }
            };
            index.push(pending.name.clone(), pending.length, crc32);
        }
        upload.write(index.footer()).await
    }

    /// An upload's error, once for each of its segments.
    fn failure(&self, error: &StorageError, path: &str) -> StorageError {
        let checkpoint = self.checkpoint;
        match error {
            StorageError::Aborted { reason, .. } => StorageError::Aborted { checkpoint, reason: reason.clone() },
            other => StorageError::Upload { checkpoint, url: self.store.absolute(path), reason: other.to_string() },
        }
    }

    fn check_aborted(&self) -> Result<()> {
        match self.aborted.borrow().as_ref() {
            None => Ok(()),
            Some(reason) => Err(StorageError::Aborted { checkpoint: self.checkpoint, reason: reason.to_string() }),
        }
    }
}

async fn embed(batch: Vec<Pending>) {
    for pending in batch {
        let result = read_whole(&pending).await.map(Segment::inline);
        let _ = pending.reply.send(result);
    }
}

async fn read_whole(pending: &Pending) -> Result<Bytes> {
    match &pending.body {
        SegmentBody::Bytes(bytes) => Ok(bytes.clone()),
        SegmentBody::File(path) => {
            let bytes = tokio::fs::read(path).await.map_err(|e| io(path, e))?;
            if bytes.len() as u64 != pending.length {
                return Err(shorter(path, pending.length));
            }
            Ok(bytes.into())
        }
    }
}

fn shorter(path: &Path, length: u64) -> StorageError {
    let text = format!("it changed while it was being uploaded; it had {length} bytes");
    io(path, std::io::Error::new(std::io::ErrorKind::InvalidData, text))
}

/// Where an object of `checkpoint` lies, relative to the job's directory.
pub(super) fn object_path(checkpoint: CheckpointId, unique: &str) -> String {
    format!("data/chk-{checkpoint}-{unique}")
}

/// Which checkpoint an object was written for (inverse of [`object_path`]).
pub(super) fn checkpoint_of(path: &str) -> Option<CheckpointId> {
    let (number, _) = path.strip_prefix("data/chk-")?.split_once('-')?;
    number.parse().ok().map(CheckpointId)
}

/// Indices of the smallest lengths whose sum is within `budget`.
fn smallest_within(lengths: &[u64], budget: u64) -> HashSet<usize> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| (lengths[*i], *i));
    let mut left = budget;
    order
        .into_iter()
        .map_while(|i| {
            left = left.checked_sub(lengths[i])?;
            Some(i)
        })
        .collect()
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
