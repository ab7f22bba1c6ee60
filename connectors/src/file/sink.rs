//! The file sink's writers: rows into hidden parts, made durable at each barrier.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use weir_runtime::graph::{ConnectorOptions, SinkSpec};
use weir_runtime::message::Chunk;
use weir_runtime::sink::{Prepared, Sink, SinkCommitter, SinkWriter};
use weir_runtime::{Result, RuntimeError};
use weir_storage::{CheckpointId, JobId, Subtask};

use super::commit::{Committable, FileCommitter, Target, lineage, staging, sync_directory};
use super::location::Location;
use super::{SinkOptions, fault, io_reason, join_fault};
use crate::ConnectorContext;
use crate::format::encode::{FileEncoder, OP_COLUMN, written_batch, written_schema};

/// How much encoded text is kept before it goes to the file.
const FLUSH_BYTES: usize = 1 << 20;
/// Size of a part of a multipart upload; what is smaller goes up in one request.
const UPLOAD_PART_BYTES: usize = 8 << 20;
/// How many parts of an upload are under way at once.
const UPLOAD_CONCURRENCY: usize = 4;

/// The file sink.
#[derive(Debug)]
pub(crate) struct FileSink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: SinkOptions,
    target: Target,
    /// Schema of what is written.
    schema: SchemaRef,
    changelog: bool,
}

impl FileSink {
    pub(crate) fn open(options: &ConnectorOptions, spec: &SinkSpec, context: &ConnectorContext) -> Result<Self> {
        let options = SinkOptions::parse(options)?;
        let target = match Location::parse(&options.path, context)? {
            Location::Local(path) => Target::Local(path),
            Location::Object(location) => Target::Object {
                prefix: ObjectPath::parse(&location.key).map_err(|error| fault(&options.path, error.to_string()))?,
                url: location.url(&location.key),
                store: location.store,
            },
        };
        Self::at(options, spec, target)
    }

    pub(crate) fn at(options: SinkOptions, spec: &SinkSpec, target: Target) -> Result<Self> {
        if spec.changelog && spec.schema.index_of(OP_COLUMN).is_ok() {
            let reason = format!(
                "the rows can be retracted, so a column \"{OP_COLUMN}\" (+I or -D) is written in front, but the query has one of that name; rename it with AS"
            );
            return Err(fault(&options.path, reason));
        }
        let schema = written_schema(&spec.schema, spec.changelog);
        options.format.check(&schema).map_err(|reason| fault(&options.path, reason))?;
        Ok(Self { shared: Arc::new(Shared { options, target, schema, changelog: spec.changelog }) })
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn writer(&self, job: &JobId, subtask: Subtask, _restored: Vec<Vec<u8>>) -> Result<Box<dyn SinkWriter>> {
        if let Target::Local(path) = &self.shared.target {
            let path = path.clone();
            let task = tokio::task::spawn_blocking(move || check_directory(&path));
            task.await.map_err(|error| join_fault(&error))??;
        }
        Ok(Box::new(FileWriter {
            shared: Arc::clone(&self.shared),
            job: job.clone(),
            subtask,
            part: None,
            staged: Vec::new(),
        }))
    }

    async fn committer(&self, job: &JobId) -> Result<Option<Box<dyn SinkCommitter>>> {
        Ok(Some(Box::new(FileCommitter::new(self.shared.target.clone(), job.clone()))))
    }
}

/// Say at once, and not at the first checkpoint, when nothing can be written here.
fn check_directory(path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    if path.exists() && !path.is_dir() {
        return Err(fault(shown, "is a file, but the sink writes a directory of files; give another path"));
    }
    std::fs::create_dir_all(path).map_err(|error| fault(shown, io_reason(&error, "create")))
}

/// A part that is ended and durable, but has no final name yet.
struct Staged {
    name: String,
    length: u64,
    crc32: u32,
}

/// Writes the rows of one subtask.
struct FileWriter {
    shared: Arc<Shared>,
    job: JobId,
    subtask: Subtask,
    part: Option<Part>,
    staged: Vec<Staged>,
}

/// A part being written.
struct Part {
    name: String,
    encoder: FileEncoder,
    buffer: Vec<u8>,
    output: Output,
    length: u64,
    crc: crc32fast::Hasher,
    rows: u64,
    begun: Instant,
}

enum Output {
    Local(Arc<File>),
    Object { store: Arc<dyn ObjectStore>, path: ObjectPath, upload: Option<WriteMultipart> },
}

impl FileWriter {
    async fn begin(&mut self) -> Result<Part> {
        let name = format!("{}/{}-{}", staging(&self.job), self.subtask, uuid::Uuid::new_v4().simple());
        let output = match &self.shared.target {
            Target::Local(path) => {
                let path = path.join(&name);
                let task = tokio::task::spawn_blocking(move || create(&path));
                Output::Local(Arc::new(task.await.map_err(|error| join_fault(&error))??))
            }
            Target::Object { store, prefix, .. } => {
                let path = name.split('/').fold(prefix.clone(), |path, segment| path.join(segment));
                Output::Object { store: Arc::clone(store), path, upload: None }
            }
        };
        let options = &self.shared.options;
        Ok(Part {
            name,
            encoder: FileEncoder::new(&options.format, options.compression, &self.shared.schema)?,
            buffer: Vec::new(),
            output,
            length: 0,
            crc: crc32fast::Hasher::new(),
            rows: 0,
            begun: Instant::now(),
        })
    }

    async fn end_part(&mut self) -> Result<()> {
        if let Some(part) = self.part.take() {
            self.staged.push(part.end(&self.shared.options.path).await?);
        }
        Ok(())
    }
}

/// Create a staged part. The committer removes the directory when it is empty, so that it may vanish in between.
fn create(path: &Path) -> Result<File> {
    let failed = |error: std::io::Error| fault(path.display().to_string(), io_reason(&error, "write"));
    let directory = path.parent().unwrap_or(path);
    for _ in 0..16 {
        std::fs::create_dir_all(directory).map_err(failed)?;
        match File::create_new(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            created => return created.map_err(failed),
        }
    }
    File::create_new(path).map_err(failed)
}

impl Part {
    async fn flush(&mut self, shown: &str, at_least: usize) -> Result<()> {
        if self.buffer.len() < at_least.max(1) {
            return Ok(());
        }
        match &mut self.output {
            Output::Local(file) => {
                let buffer = std::mem::take(&mut self.buffer);
                self.length += buffer.len() as u64;
                self.crc.update(&buffer);
                let file = Arc::clone(file);
                let task = tokio::task::spawn_blocking(move || (&*file).write_all(&buffer).map(|()| buffer));
                let written = task.await.map_err(|error| join_fault(&error))?;
                self.buffer = written.map_err(|error| fault(shown, io_reason(&error, "write")))?;
                self.buffer.clear();
            }
            Output::Object { store, path, upload } => {
                if self.buffer.len() < UPLOAD_PART_BYTES {
                    return Ok(());
                }
                let failed = |error: object_store::Error| fault(shown, format!("cannot be written: {error}"));
                let buffer = std::mem::take(&mut self.buffer);
                self.length += buffer.len() as u64;
                self.crc.update(&buffer);
                let upload = match upload {
                    Some(upload) => upload,
                    None => {
                        let begun = store.put_multipart(path).await.map_err(failed)?;
                        upload.insert(WriteMultipart::new_with_chunk_size(begun, UPLOAD_PART_BYTES))
                    }
                };
                upload.wait_for_capacity(UPLOAD_CONCURRENCY).await.map_err(failed)?;
                upload.put(Bytes::from(buffer));
            }
        }
        Ok(())
    }

    /// End the part and make it durable.
    async fn end(mut self, shown: &str) -> Result<Staged> {
        self.encoder.finish(&mut self.buffer)?;
        self.flush(shown, 1).await?;
        match self.output {
            Output::Local(file) => {
                let task = tokio::task::spawn_blocking(move || file.sync_all());
                let synced = task.await.map_err(|error| join_fault(&error))?;
                synced.map_err(|error| fault(shown, io_reason(&error, "write")))?;
            }
            Output::Object { store, path, upload } => {
                let failed = |error: object_store::Error| fault(shown, format!("cannot be written: {error}"));
                self.length += self.buffer.len() as u64;
                self.crc.update(&self.buffer);
                let rest = Bytes::from(self.buffer);
                match upload {
                    Some(mut upload) => {
                        upload.put(rest);
                        upload.finish().await.map_err(failed)?;
                    }
                    None => {
                        store.put(&path, PutPayload::from_bytes(rest)).await.map_err(failed)?;
                    }
                }
            }
        }
        Ok(Staged { name: self.name, length: self.length, crc32: self.crc.finalize() })
    }
}

#[async_trait]
impl SinkWriter for FileWriter {
    async fn write(&mut self, chunk: Chunk) -> Result<()> {
        let roll = self.shared.options.roll;
        let mut chunk = chunk;
        while !chunk.is_empty() {
            let part = match &mut self.part {
                Some(part) => part,
                None => {
                    let part = self.begin().await?;
                    self.part.insert(part)
                }
            };
            let room = roll.room(part.rows, chunk.num_rows());
            let now = chunk.slice(0, room);
            chunk = chunk.slice(room, chunk.num_rows() - room);
            let batch = written_batch(&self.shared.schema, &now, self.shared.changelog)?;
            part.encoder.write(&batch, &mut part.buffer)?;
            part.rows += room as u64;
            part.flush(&self.shared.options.path, FLUSH_BYTES).await?;
            let size = part.length + (part.buffer.len() + part.encoder.pending()) as u64;
            if roll.is_due(size, part.rows, part.begun.elapsed()) {
                self.end_part().await?;
            }
        }
        Ok(())
    }

    async fn prepare(&mut self, checkpoint: CheckpointId) -> Result<Prepared> {
        self.end_part().await?;
        let extension = self.shared.options.extension();
        let lineage = lineage(&self.job);
        let mut committables = Vec::with_capacity(self.staged.len());
        for (number, part) in self.staged.drain(..).enumerate() {
            let name = format!("part-{lineage}-{}-{:06}-{number}.{extension}", self.subtask, checkpoint.0);
            let committable = Committable { staged: part.name, name, length: part.length, crc32: part.crc32 };
            committables.push(
                serde_json::to_vec(&committable)
                    .map_err(|error| RuntimeError::Internal { place: "file sink", reason: error.to_string() })?,
            );
        }
        if let (Target::Local(path), false) = (&self.shared.target, committables.is_empty()) {
            let (path, staging) = (path.clone(), path.join(staging(&self.job)));
            let task =
                tokio::task::spawn_blocking(move || sync_directory(&staging).and_then(|()| sync_directory(&path)));
            task.await.map_err(|error| join_fault(&error))??;
        }
        Ok(Prepared { committables, state: Vec::new() })
    }
}
