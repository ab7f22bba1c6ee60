//! The one place where everything durable lies, behind a URL.
//!
//! A [`Store`] wraps an object store and adds what Weir needs of one: absolute URLs in every error, repetition of
//! requests that may succeed the next time, a conditional create whose outcome is always known, and durability on a
//! local disk.

mod local;
mod open;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod upload;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use crate::error::{Result, StorageError};
pub(crate) use upload::Upload;

/// How often a request is tried before its error is reported.
const ATTEMPTS: u32 = 3;
/// Bytes that are read at a time when an object is copied from store to store.
const COPY_PIECE: u64 = 8 << 20;
/// Pause before the second attempt; doubled for each further one, with up to as much jitter again.
const BACK_OFF: Duration = Duration::from_millis(40);

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Path relative to the store.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// When it was written, by the store's clock, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// Everything durable, below one URL. Paths are relative to it, with `/` between their parts.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    url: String,
    objects: Arc<dyn ObjectStore>,
    relaxed: Arc<dyn ObjectStore>,
    prefix: Path,
    directory: Option<PathBuf>,
    repeats: bool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store").field(&self.inner.url).finish()
    }
}

impl Store {
    /// The store at `url`: `file:`, `s3:`, `gs:`, `az:`, `memory:`, or a plain path, whose directory is created.
    /// Credentials and endpoints come from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`); `options` override it
    /// (`endpoint`, `region`, `allow_http`, `access_key_id`, …).
    pub fn open(url: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        Self::opened(url, options, true)
    }

    /// As [`Store::open`], but nothing is created: for looking at what is there.
    pub fn open_existing(url: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        Self::opened(url, options, false)
    }

    fn opened(url: &str, options: &BTreeMap<String, String>, create: bool) -> Result<Self> {
        let opened = open::open(url, options, create)?;
        Ok(Self {
            inner: Arc::new(Inner {
                url: opened.url,
                objects: opened.objects,
                relaxed: opened.relaxed,
                prefix: opened.prefix,
                directory: opened.directory,
                repeats: opened.repeats,
            }),
        })
    }

    /// Any object store under a URL that only serves to name it.
    #[cfg(test)]
    pub(crate) fn with_objects(url: &str, objects: Arc<dyn ObjectStore>) -> Self {
        let inner = Inner {
            url: url.to_owned(),
            relaxed: Arc::clone(&objects),
            objects,
            prefix: Path::default(),
            directory: None,
            repeats: false,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The store's absolute URL, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// The absolute URL of an object.
    pub fn absolute(&self, path: &str) -> String {
        match &self.inner.directory {
            // What is percent-encoded in a path is so on the disk as well.
            Some(_) => format!("{}/{}", self.inner.url, path.replace('%', "%25")),
            None => format!("{}/{path}", self.inner.url),
        }
    }

    /// Show that the store can do what Weir asks of it; the error names the first thing that it cannot.
    pub async fn probe(&self) -> Result<()> {
        let path = format!("probe/{}", uuid::Uuid::now_v7().simple());
        let failed = |operation: &'static str, source: Error| StorageError::Probe {
            url: self.absolute(&path),
            operation,
            source,
        };
        let unfit = |text: &str| Error::Generic { store: "probe", source: text.to_owned().into() };
        let of = |e: StorageError| match e {
            StorageError::Store { source, .. } => source,
            other => unfit(&other.to_string()),
        };
        let body = Bytes::from_static(b"written by Weir at start-up to prove that this place can be used");
        self.put(&path, body.clone()).await.map_err(|e| failed("write", of(e)))?;
        let read = self.get(&path).await.map_err(|e| failed("read", of(e)))?;
        if read != body {
            return Err(failed("read", unfit("what was read is not what had been written")));
        }
        let listed = self.list("probe").await.map_err(|e| failed("list", of(e)))?;
        if !listed.iter().any(|object| object.path == path) {
            return Err(failed("list", unfit("an object that was just written is not in the listing")));
        }
        // Different bytes, so that a store that silently overwrites is found out as well as one that refuses.
        let second = self.create(&path, Bytes::from_static(b"must not be written"));
        if second.await.map_err(|e| failed("create conditionally", of(e)))? {
            let text = "it replaced an object although it was asked to create one only if there is none";
            return Err(failed("create conditionally", unfit(text)));
        }
        self.delete(&path).await.map_err(|e| failed("delete", of(e)))?;
        let created = self.create(&path, body).await.map_err(|e| failed("create conditionally", of(e)))?;
        if !created {
            return Err(failed("delete", unfit("an object that was deleted is still there")));
        }
        self.delete(&path).await.map_err(|e| failed("delete", of(e)))
    }

    /// All bytes of an object.
    pub async fn get(&self, path: &str) -> Result<Bytes> {
        let location = self.location(path)?;
        self.repeat("read", path, || async { self.inner.objects.get(&location).await?.bytes().await }).await
    }

    /// All bytes of an object, or `None` if it does not exist.
    pub async fn get_if_exists(&self, path: &str) -> Result<Option<Bytes>> {
        match self.get(path).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A range of an object. An error if the object is shorter.
    pub async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let location = self.location(path)?;
        let bytes = self.repeat("read", path, || self.inner.objects.get_range(&location, range.clone())).await?;
        if bytes.len() as u64 != range.end - range.start {
            return Err(StorageError::Corrupt {
                url: self.absolute(path),
                reason: format!("bytes {} to {} were asked for, but it ends before that", range.start, range.end),
            });
        }
        Ok(bytes)
    }

    /// The first `length` bytes of an object, or all of them if it has fewer; `None` if it does not exist.
    pub(crate) async fn get_prefix(&self, path: &str, length: u64) -> Result<Option<Bytes>> {
        let location = self.location(path)?;
        match self.repeat("read", path, || self.inner.objects.get_range(&location, 0..length)).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Write an object, replacing what was there. Durable when this returns.
    pub async fn put(&self, path: &str, bytes: impl Into<Bytes>) -> Result<()> {
        self.put_to(&self.inner.objects, path, bytes.into()).await
    }

    /// Write an object that nothing depends on (a hint for people): not synced on a local disk.
    pub async fn put_relaxed(&self, path: &str, bytes: impl Into<Bytes>) -> Result<()> {
        self.put_to(&self.inner.relaxed, path, bytes.into()).await
    }

    async fn put_to(&self, objects: &Arc<dyn ObjectStore>, path: &str, bytes: Bytes) -> Result<()> {
        let location = self.location(path)?;
        self.repeat("write", path, || objects.put(&location, PutPayload::from(bytes.clone()))).await.map(|_| ())
    }

    /// Write an object from several buffers without joining them.
    pub(crate) async fn put_chunks(&self, path: &str, chunks: Vec<Bytes>) -> Result<()> {
        let location = self.location(path)?;
        let payload = PutPayload::from_iter(chunks);
        self.repeat("write", path, || self.inner.objects.put(&location, payload.clone())).await.map(|_| ())
    }

    /// Begin to write a large object part by part. It appears, whole, when the upload is finished.
    pub(crate) async fn upload(&self, path: &str, part_size: usize) -> Result<Upload> {
        let location = self.location(path)?;
        let upload = self.repeat("write", path, || self.inner.objects.put_multipart(&location)).await?;
        Ok(Upload::new(self.clone(), path.to_owned(), upload, part_size))
    }

    /// Copies an object to another path or another store. Within one store, and without a local disk, the store itself
    /// does it; on a local disk the bytes are written anew, so that what harms one copy leaves the other unharmed.
    /// Durable when this returns.
    pub(crate) async fn copy(&self, path: &str, to: &Self, to_path: &str) -> Result<()> {
        if Arc::ptr_eq(&self.inner, &to.inner) && self.inner.directory.is_none() {
            let (from, target) = (self.location(path)?, self.location(to_path)?);
            return self.repeat("copy", path, || self.inner.objects.copy(&from, &target)).await;
        }
        let location = self.location(path)?;
        let size = self.repeat("read", path, || self.inner.objects.head(&location)).await?.size;
        let mut upload = to.upload(to_path, COPY_PIECE as usize).await?;
        let copied = async {
            let mut done = 0;
            while done < size {
                let end = size.min(done + COPY_PIECE);
                upload.write(self.get_range(path, done..end).await?).await?;
                done = end;
            }
            Ok(())
        };
        match copied.await {
            Ok(()) => upload.finish().await,
            Err(error) => {
                let _ = upload.abort().await;
                Err(error)
            }
        }
    }

    /// The path of `url` within this store, if it lies there and the store can copy objects by itself.
    pub(crate) fn path_of(&self, url: &str) -> Option<String> {
        let path = url.strip_prefix(&self.inner.url)?.strip_prefix('/')?;
        (self.inner.directory.is_none() && !path.is_empty()).then(|| path.to_owned())
    }

    /// Create an object if there is none; `false` if there is one already. Durable when this returns.
    ///
    /// When the outcome of a request is unknown (connection lost, time-out), the object is read back: the same bytes
    /// mean that it was ours. The content of anything created this way should therefore be unique to its writer.
    pub async fn create(&self, path: &str, bytes: impl Into<Bytes>) -> Result<bool> {
        let bytes = bytes.into();
        let location = self.location(path)?;
        let options = || PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let mut doubt = self.inner.repeats;
        let mut attempt = 1;
        loop {
            let payload = PutPayload::from(bytes.clone());
            let error = match self.inner.objects.put_opts(&location, payload, options()).await {
                Ok(_) => return Ok(true),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) if !doubt => return Ok(false),
                Err(error) => error,
            };
            let exists = matches!(error, Error::AlreadyExists { .. } | Error::Precondition { .. });
            if !exists && is_definite(&error) {
                return Err(self.failed("create", path, error));
            }
            match self.get_if_exists(path).await? {
                Some(found) => return Ok(found == bytes),
                None if attempt == ATTEMPTS => return Err(self.failed("create", path, error)),
                None => {}
            }
            doubt = true;
            back_off(attempt).await;
            attempt += 1;
        }
    }

    /// Delete an object; one that is gone already is no error.
    pub async fn delete(&self, path: &str) -> Result<()> {
        let location = self.location(path)?;
        match self.repeat("delete", path, || self.inner.objects.delete(&location)).await {
            Err(e) if e.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// Delete many objects, in bulk where the store can. Stops at the first error; what is gone already is none.
    pub async fn delete_many(&self, paths: Vec<String>) -> Result<()> {
        let locations = paths.iter().map(|path| self.location(path)).collect::<Result<Vec<_>>>()?;
        let stream = futures::stream::iter(locations).map(Ok).boxed();
        let results: Vec<_> = self.inner.objects.delete_stream(stream).collect().await;
        for (result, path) in results.into_iter().zip(&paths) {
            match result {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) if is_definite(&error) => return Err(self.failed("delete", path, error)),
                Err(_) => self.delete(path).await?,
            }
        }
        Ok(())
    }

    /// All objects below `prefix` (whole path parts; empty for everything), ordered by path.
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let location = self.location(prefix)?;
        let metas =
            self.repeat("list", prefix, || self.inner.objects.list(Some(&location)).try_collect::<Vec<_>>()).await;
        self.listing(metas)
    }

    fn listing(&self, metas: Result<Vec<object_store::ObjectMeta>>) -> Result<Vec<ObjectInfo>> {
        let metas = match metas {
            Err(e) if e.is_not_found() => Vec::new(),
            metas => metas?,
        };
        let mut objects: Vec<_> = metas
            .into_iter()
            .map(|meta| ObjectInfo {
                path: self.relative(&meta.location),
                size: meta.size,
                modified_ms: meta.last_modified.timestamp_millis(),
            })
            .collect();
        objects.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(objects)
    }

    /// Names of the "directories" directly below `prefix`, ordered.
    pub async fn list_directories(&self, prefix: &str) -> Result<Vec<String>> {
        let location = self.location(prefix)?;
        let listed = self.repeat("list", prefix, || self.inner.objects.list_with_delimiter(Some(&location))).await;
        let listed = match listed {
            Err(e) if e.is_not_found() => return Ok(Vec::new()),
            listed => listed?,
        };
        let mut names: Vec<_> =
            listed.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect();
        names.sort();
        Ok(names)
    }

    /// Objects directly below `prefix`, ordered by path.
    pub(crate) async fn list_here(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let location = self.location(prefix)?;
        let listed = self.repeat("list", prefix, || self.inner.objects.list_with_delimiter(Some(&location))).await;
        self.listing(listed.map(|listed| listed.objects))
    }

    /// Whether an object exists.
    pub async fn exists(&self, path: &str) -> Result<bool> {
        Ok(self.size(path).await?.is_some())
    }

    /// An object's size, or `None` if it does not exist.
    pub async fn size(&self, path: &str) -> Result<Option<u64>> {
        let location = self.location(path)?;
        match self.repeat("look up", path, || self.inner.objects.head(&location)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// On a local disk: remove what interrupted writes to the directory `prefix` left behind, if older than this.
    pub(crate) async fn remove_stale_staging(&self, prefix: &str, older_than: Duration) -> Result<usize> {
        let Some(root) = &self.inner.directory else { return Ok(0) };
        let directory = root.join(prefix);
        let shown = directory.display().to_string();
        match tokio::task::spawn_blocking(move || local::remove_stale_staging(&directory, older_than)).await {
            Ok(removed) => removed.map_err(|source| StorageError::Io { path: shown, source }),
            Err(e) => Err(StorageError::Io { path: shown, source: std::io::Error::other(e) }),
        }
    }

    fn location(&self, path: &str) -> Result<Path> {
        let prefix = &self.inner.prefix;
        let full = if prefix.as_ref().is_empty() { path.to_owned() } else { format!("{prefix}/{path}") };
        Path::parse(full.trim_end_matches('/')).map_err(|e| self.failed("name", path, Error::InvalidPath { source: e }))
    }

    fn relative(&self, location: &Path) -> String {
        let full = location.as_ref();
        let prefix = self.inner.prefix.as_ref();
        full.strip_prefix(prefix).unwrap_or(full).trim_start_matches('/').to_owned()
    }

    fn failed(&self, operation: &'static str, path: &str, source: Error) -> StorageError {
        StorageError::Store { url: self.absolute(path), operation, source }
    }

    async fn repeat<T, F>(&self, operation: &'static str, path: &str, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut attempt = 1;
        loop {
            match request().await {
                Ok(value) => return Ok(value),
                Err(error) if attempt == ATTEMPTS || is_definite(&error) => {
                    return Err(self.failed(operation, path, error));
                }
                Err(error) => {
                    tracing::debug!(url = self.absolute(path), operation, attempt, %error, "trying again");
                }
            }
            back_off(attempt).await;
            attempt += 1;
        }
    }
}

/// Whether repeating the request cannot help, because the store answered it.
fn is_definite(error: &Error) -> bool {
    !matches!(error, Error::Generic { .. } | Error::JoinError { .. })
}

async fn back_off(attempt: u32) {
    let pause = BACK_OFF * 2u32.pow(attempt - 1);
    let jitter = uuid::Uuid::new_v4().as_u128() % pause.as_micros();
    tokio::time::sleep(pause + Duration::from_micros(jitter as u64)).await;
}

/// A name as one part of a path: what cannot stand there (a slash in a quoted identifier) is percent-encoded.
pub(crate) fn path_part(name: &str) -> String {
    object_store::path::PathPart::from(name).as_ref().to_owned()
}
