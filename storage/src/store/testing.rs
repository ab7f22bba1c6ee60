//! An object store that fails on purpose.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use super::Store;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails and has done nothing.
    Before,
    /// It does its work, and then the answer gets lost.
    After,
    /// The store refuses it for good.
    Refused,
    /// A put: it does nothing, and somebody else creates the object with other content meanwhile.
    Overtaken,
    /// It never answers, and has done nothing.
    Hangs,
}

/// Counts requests and lets chosen ones fail.
#[derive(Debug, Default)]
pub(crate) struct Faulty {
    pub objects: InMemory,
    puts: AtomicU64,
    gets: AtomicU64,
    put_faults: Mutex<HashMap<u64, Fault>>,
    get_faults: Mutex<HashMap<u64, Fault>>,
    every_put: Mutex<Option<Fault>>,
}

impl Faulty {
    pub fn store(self: &Arc<Self>) -> Store {
        let url = format!("memory:///faulty-{}", uuid::Uuid::new_v4());
        Store::with_objects(&url, Arc::clone(self) as _)
    }

    /// The `n`th put from now on (counted from 1).
    pub fn on_put(&self, n: u64, fault: Fault) {
        self.put_faults.lock().insert(self.puts.load(Ordering::SeqCst) + n, fault);
    }

    /// The `n`th get from now on (counted from 1).
    pub fn on_get(&self, n: u64, fault: Fault) {
        self.get_faults.lock().insert(self.gets.load(Ordering::SeqCst) + n, fault);
    }

    pub fn on_every_put(&self, fault: Option<Fault>) {
        *self.every_put.lock() = fault;
    }

    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::SeqCst)
    }
}

fn lost() -> Error {
    Error::Generic { store: "Faulty", source: "connection reset by peer".into() }
}

fn refused(location: &Path) -> Error {
    Error::PermissionDenied { path: location.to_string(), source: "access denied".into() }
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let n = self.puts.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = self.put_faults.lock().remove(&n).or(*self.every_put.lock());
        match fault {
            None => self.objects.put_opts(location, payload, opts).await,
            Some(Fault::Before) => Err(lost()),
            Some(Fault::After) => {
                self.objects.put_opts(location, payload, opts).await?;
                Err(lost())
            }
            Some(Fault::Refused) => Err(refused(location)),
            Some(Fault::Overtaken) => {
                let theirs = PutPayload::from(Bytes::from_static(b"somebody else's"));
                self.objects.put_opts(location, theirs, PutOptions::default()).await?;
                Err(lost())
            }
            Some(Fault::Hangs) => std::future::pending().await,
        }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let n = self.gets.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = self.get_faults.lock().remove(&n);
        match fault {
            None => self.objects.get_opts(location, options).await,
            Some(Fault::Refused) => Err(refused(location)),
            Some(Fault::Hangs) => std::future::pending().await,
            Some(_) => Err(lost()),
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
