//! A large object, written part by part.

use bytes::Bytes;
use object_store::{MultipartUpload, WriteMultipart};

use super::Store;
use crate::error::Result;

/// Parts that are under way at the same time; bounds an upload's memory to as many parts.
const PARTS_IN_FLIGHT: usize = 4;

/// See [`Store::upload`].
pub(crate) struct Upload {
    store: Store,
    path: String,
    parts: WriteMultipart,
}

impl Upload {
    pub(super) fn new(store: Store, path: String, upload: Box<dyn MultipartUpload>, part_size: usize) -> Self {
        Self { store, path, parts: WriteMultipart::new_with_chunk_size(upload, part_size) }
    }

    /// Append bytes; waits while too many parts are under way.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let ready = self.parts.wait_for_capacity(PARTS_IN_FLIGHT).await;
        ready.map_err(|e| self.store.failed("write", &self.path, e))?;
        self.parts.put(bytes);
        Ok(())
    }

    /// Make the object appear. Durable when this returns.
    pub async fn finish(self) -> Result<()> {
        let Self { store, path, parts } = self;
        parts.finish().await.map(|_| ()).map_err(|e| store.failed("write", &path, e))
    }

    /// Give up and let the store drop the parts that it has.
    pub async fn abort(self) -> Result<()> {
        let Self { store, path, parts } = self;
        parts.abort().await.map_err(|e| store.failed("abort the write of", &path, e))
    }
}
