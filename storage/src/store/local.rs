//! Local directory as an object store, made durable.
//!
//! [`LocalFileSystem`] writes atomically (a staging file, then rename or hard link) but never asks the disk to keep
//! it: after a power loss an object may exist with no content. Everything that Weir acknowledges depends on the
//! opposite, so this adapter syncs the file before it gets its name, and the directory afterwards. Staging files are
//! named `object#digits`, which `LocalFileSystem` never lists.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

const NAME: &str = "LocalDirectory";

/// See the module.
#[derive(Debug)]
pub(super) struct LocalDirectory(pub LocalFileSystem);

impl std::fmt::Display for LocalDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for LocalDirectory {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let path = self.0.path_to_filesystem(location)?;
        let create = match opts.mode {
            PutMode::Overwrite => false,
            PutMode::Create => true,
            PutMode::Update(_) => return self.0.put_opts(location, payload, opts).await,
        };
        blocking(move || {
            let mut staged = Staged::open(&path)?;
            for chunk in &payload {
                staged.file.write_all(chunk).map_err(generic)?;
            }
            staged.publish(&path, create)
        })
        .await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let path = self.0.path_to_filesystem(location)?;
        let target = path.clone();
        let staged = blocking(move || Staged::open(&target)).await?;
        Ok(Box::new(LocalUpload { path, staged: Some(Arc::new(staged)), offset: 0 }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

/// A file that has no name yet that a reader would find; removed when dropped unpublished.
#[derive(Debug)]
struct Staged {
    file: File,
    path: PathBuf,
    published: bool,
}

impl Staged {
    fn open(target: &FsPath) -> Result<Self> {
        loop {
            let unique = uuid::Uuid::new_v4().as_u128();
            let mut name = target.as_os_str().to_owned();
            name.push(format!("#{unique}"));
            let path = PathBuf::from(name);
            match File::options().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { file, path, published: false }),
                Err(e) if e.kind() == ErrorKind::NotFound => create_directories(target.parent()).map_err(generic)?,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(named(&path, e)),
            }
        }
    }

    fn publish(mut self, target: &FsPath, create: bool) -> Result<()> {
        self.file.sync_data().map_err(|e| named(&self.path, e))?;
        if create {
            fs::hard_link(&self.path, target).map_err(|source| match source.kind() {
                ErrorKind::AlreadyExists => {
                    Error::AlreadyExists { path: target.display().to_string(), source: source.into() }
                }
                _ => named(target, source),
            })?;
            // The staging name goes with `drop`.
        } else {
            fs::rename(&self.path, target).map_err(|e| named(target, e))?;
            self.published = true;
        }
        sync_directory(target.parent()).map_err(|e| named(target, e))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[derive(Debug)]
struct LocalUpload {
    path: PathBuf,
    staged: Option<Arc<Staged>>,
    offset: u64,
}

#[async_trait]
impl MultipartUpload for LocalUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let offset = self.offset;
        self.offset += data.content_length() as u64;
        let staged = self.staged.clone();
        Box::pin(async move {
            let staged = staged.ok_or_else(over)?;
            blocking(move || {
                use std::os::unix::fs::FileExt;
                let mut at = offset;
                for chunk in &data {
                    staged.file.write_all_at(chunk, at).map_err(|e| named(&staged.path, e))?;
                    at += chunk.len() as u64;
                }
                Ok(())
            })
            .await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.staged.take().and_then(Arc::into_inner).ok_or_else(over)?;
        let path = self.path.clone();
        blocking(move || staged.publish(&path, false)).await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> Result<()> {
        self.staged = None;
        Ok(())
    }
}

fn over() -> Error {
    Error::Generic { store: NAME, source: "the upload is over, or a part of it is still being written".into() }
}

/// Create what is missing of a directory and make each new name durable in its parent.
fn create_directories(directory: Option<&FsPath>) -> io::Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    match fs::create_dir(directory) {
        Ok(()) => sync_directory(directory.parent()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            create_directories(directory.parent())?;
            create_directories(Some(directory))
        }
        Err(e) => Err(e),
    }
}

fn sync_directory(directory: Option<&FsPath>) -> io::Result<()> {
    match directory {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Staging files under `directory` (not below it) that no write can still be using: a crash left them.
pub(super) fn remove_stale_staging(directory: &FsPath, older_than: std::time::Duration) -> io::Result<usize> {
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        let staging = entry
            .file_name()
            .to_str()
            .and_then(|name| name.rsplit_once('#'))
            .is_some_and(|(_, suffix)| !suffix.is_empty() && suffix.bytes().all(|b| b.is_ascii_digit()));
        if !staging {
            continue;
        }
        let age = entry.metadata().and_then(|m| m.modified()).map(|m| m.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age >= older_than) && fs::remove_file(entry.path()).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

fn generic(source: io::Error) -> Error {
    Error::Generic { store: NAME, source: source.into() }
}

fn named(path: &FsPath, source: io::Error) -> Error {
    let path = path.display().to_string();
    match source.kind() {
        ErrorKind::NotFound => Error::NotFound { path, source: source.into() },
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            Error::PermissionDenied { path, source: source.into() }
        }
        _ => Error::Generic { store: NAME, source: format!("{path}: {source}").into() },
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}
