//! Opening files and reading them ahead, off the task's thread.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use tokio::runtime::Handle;
use weir_runtime::Result;

use super::location::{Location, local_path};
use super::{fault, io_reason};
use crate::format::encode::Compression;

/// How much is read at a time: small enough that a block stays in the processor's cache while it is decoded.
pub(crate) const BLOCK_BYTES: usize = 2 << 20;

/// Room kept in front of a block for the unfinished row of the block before.
pub(crate) const HEADROOM: usize = 64 << 10;

/// An opened file, of either kind.
#[derive(Debug)]
pub(crate) enum Input {
    /// Local.
    Local(File),
    /// Of an object store, read by range requests. Only used on threads that may block.
    Object(ObjectInput),
}

#[derive(Debug, Clone)]
pub(crate) struct ObjectInput {
    store: Arc<dyn ObjectStore>,
    path: ObjectPath,
    size: u64,
    handle: Handle,
}

/// Identity of a local file: another file at the same path has another one.
pub(crate) fn identity(metadata: &std::fs::Metadata) -> String {
    format!("{}:{}", metadata.dev(), metadata.ino())
}

impl Input {
    /// Open the file at `url`. Blocks.
    pub(crate) fn open(location: &Location, url: &str, handle: &Handle) -> Result<Self> {
        let Some((store, path)) = location.object(url) else {
            let path = local_path(url);
            let file = File::open(&path).map_err(|error| fault(url, io_reason(&error, "read")))?;
            return Ok(Self::Local(file));
        };
        let meta = handle.block_on(store.head(&path)).map_err(|error| match error {
            object_store::Error::NotFound { .. } => fault(url, "does not exist"),
            error => fault(url, format!("cannot be read: {error}")),
        })?;
        Ok(Self::Object(ObjectInput { store, path, size: meta.size, handle: handle.clone() }))
    }

    /// A stream of its (decompressed) bytes from `offset` on. Blocks.
    pub(crate) fn stream(self, compression: Compression, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let raw: Box<dyn Read + Send> = match self {
            Self::Local(mut file) => {
                if compression == Compression::None && offset > 0 {
                    file.seek(SeekFrom::Start(offset))?;
                }
                Box::new(file)
            }
            Self::Object(input) => {
                let position = if compression == Compression::None { offset } else { 0 };
                Box::new(ObjectStream { input, position, buffer: Bytes::new() })
            }
        };
        let mut decompressed: Box<dyn Read + Send> = match compression {
            Compression::None => return Ok(raw),
            Compression::Gzip => {
                Box::new(flate2::read::MultiGzDecoder::new(io::BufReader::with_capacity(256 << 10, raw)))
            }
            Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(raw)?),
        };
        // Compressed data has no other way to a position than through all that lies before it.
        let skipped = io::copy(&mut decompressed.by_ref().take(offset), &mut io::sink())?;
        if skipped < offset {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was"));
        }
        Ok(decompressed)
    }
}

/// Reads an object front to back.
struct ObjectStream {
    input: ObjectInput,
    position: u64,
    buffer: Bytes,
}

impl Read for ObjectStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            let end = (self.position + BLOCK_BYTES as u64 * 2).min(self.input.size);
            if self.position >= end {
                return Ok(0);
            }
            self.buffer = self.input.range(self.position, end)?;
            self.position = end;
        }
        let count = self.buffer.len().min(into.len());
        into[..count].copy_from_slice(&self.buffer.split_to(count));
        Ok(count)
    }
}

impl ObjectInput {
    fn range(&self, start: u64, end: u64) -> io::Result<Bytes> {
        self.handle.block_on(self.store.get_range(&self.path, start..end)).map_err(io::Error::other)
    }
}

impl Length for Input {
    fn len(&self) -> u64 {
        match self {
            Self::Local(file) => file.len(),
            Self::Object(input) => input.size,
        }
    }
}

impl ChunkReader for Input {
    type T = Box<dyn Read + Send>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        match self {
            Self::Local(file) => Ok(Box::new(file.get_read(start)?)),
            Self::Object(input) => {
                Ok(Box::new(ObjectStream { input: input.clone(), position: start, buffer: Bytes::new() }))
            }
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        match self {
            Self::Local(file) => file.get_bytes(start, length),
            Self::Object(input) => Ok(input.range(start, start + length as u64)?),
        }
    }
}

/// A block as read: [`HEADROOM`] spare bytes, then data.
#[derive(Debug)]
pub(crate) struct Block {
    /// Spare bytes and data.
    pub(crate) bytes: Vec<u8>,
    /// Whether the stream ended with it.
    pub(crate) end: bool,
}

/// Read the next block into `buffer`, which is reused so that its pages need not be mapped again. Blocks.
pub(crate) fn read_block(stream: &mut dyn Read, mut buffer: Vec<u8>) -> io::Result<Block> {
    buffer.resize(HEADROOM + BLOCK_BYTES, 0);
    let mut filled = HEADROOM;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let end = filled < buffer.len();
    buffer.truncate(filled);
    Ok(Block { bytes: buffer, end })
}
