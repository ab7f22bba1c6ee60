//! Where files are: a local path, a glob, or a URL.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use weir_runtime::Result;

use super::{fault, io_reason, join_fault};
use crate::ConnectorContext;

/// A parsed `path` option.
#[derive(Debug, Clone)]
pub(crate) enum Location {
    /// Of this machine.
    Local(PathBuf),
    /// Of an object store.
    Object(ObjectLocation),
}

/// A place in an object store.
#[derive(Debug, Clone)]
pub(crate) struct ObjectLocation {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// `s3://bucket`
    pub(crate) root: String,
    /// Key within it, glob characters included.
    pub(crate) key: String,
}

/// A file that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundFile {
    /// Its absolute URL.
    pub(crate) url: String,
    /// Its length.
    pub(crate) size: u64,
}

const GLOB: [char; 3] = ['*', '?', '['];

impl Location {
    /// Understand `path` without touching anything.
    pub(crate) fn parse(path: &str, context: &ConnectorContext) -> Result<Self> {
        if let Some(local) = path.strip_prefix("file://") {
            if !local.starts_with('/') {
                return Err(fault(path, "a file: URL needs an absolute path, as in file:///data/events.csv"));
            }
            return Ok(Self::Local(PathBuf::from(local)));
        }
        let Some((scheme, rest)) = path.split_once("://") else {
            return match context.base_dir.join(path) {
                joined if joined.is_absolute() => Ok(Self::Local(joined)),
                joined => std::path::absolute(&joined).map(Self::Local).map_err(|error| fault(path, error.to_string())),
            };
        };
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        let root = format!("{scheme}://{host}");
        let url = url::Url::parse(&root).map_err(|error| {
            fault(path, format!("not a URL ({error}); give a path or a URL such as s3://bucket/events/*.json"))
        })?;
        // The environment first, so that the options win.
        let environment = std::env::vars().map(|(name, value)| (name.to_ascii_lowercase(), value));
        let options =
            environment.chain(context.store_options.iter().map(|(name, value)| (name.clone(), value.clone())));
        let (store, prefix) = object_store::parse_url_opts(&url, options).map_err(|error| {
            fault(path, format!("cannot use this URL: {error}; known are file:, s3:, gs:, az: and http(s):"))
        })?;
        let key = if prefix.as_ref().is_empty() { key.to_owned() } else { format!("{prefix}/{key}") };
        Ok(Self::Object(ObjectLocation { store: Arc::from(store), root, key }))
    }

    /// All files there, by name.
    pub(crate) async fn list(&self) -> Result<Vec<FoundFile>> {
        match self {
            Self::Local(pattern) => {
                let pattern = pattern.clone();
                tokio::task::spawn_blocking(move || list_local(&pattern)).await.map_err(|error| join_fault(&error))?
            }
            Self::Object(location) => location.list().await,
        }
    }

    /// Whether it is one local file that does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Local(path) if !path.to_string_lossy().contains(GLOB) && !path.exists())
    }

    /// For errors.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Local(path) => path.display().to_string(),
            Self::Object(location) => location.url(&location.key),
        }
    }

    /// The key of an object's URL, if it lies here.
    pub(crate) fn object(&self, url: &str) -> Option<(Arc<dyn ObjectStore>, ObjectPath)> {
        match self {
            Self::Local(_) => None,
            Self::Object(location) => {
                let key = url.strip_prefix(&location.root)?.trim_start_matches('/');
                Some((Arc::clone(&location.store), ObjectPath::parse(key).ok()?))
            }
        }
    }
}

/// The local path of a URL that [`Location::list`] gave.
pub(crate) fn local_path(url: &str) -> PathBuf {
    PathBuf::from(url.strip_prefix("file://").unwrap_or(url))
}

fn found(path: &Path) -> Result<Option<FoundFile>> {
    let shown = path.display().to_string();
    let metadata = std::fs::metadata(path).map_err(|error| fault(&shown, io_reason(&error, "read")))?;
    let Some(text) = path.to_str() else {
        return Err(fault(&shown, "the file's name is not UTF-8; rename it"));
    };
    Ok(metadata.is_file().then(|| FoundFile { url: format!("file://{text}"), size: metadata.len() }))
}

fn list_local(pattern: &Path) -> Result<Vec<FoundFile>> {
    let shown = pattern.display().to_string();
    // A file whose name holds a glob character means itself.
    if pattern.exists() || !shown.contains(GLOB) {
        return match found(pattern)? {
            Some(file) => Ok(vec![file]),
            None if pattern.is_dir() => Err(fault(
                &shown,
                format!("is a directory; name its files with a glob such as {}/*.csv", shown.trim_end_matches('/')),
            )),
            None => Err(fault(&shown, "is not a regular file")),
        };
    }
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        // Hidden files are somebody's unfinished ones.
        require_literal_leading_dot: true,
    };
    let paths =
        glob::glob_with(&shown, options).map_err(|error| fault(&shown, format!("the glob is malformed: {error}")))?;
    let mut files = Vec::new();
    for path in paths {
        let path = path.map_err(|error| fault(error.path().display().to_string(), io_reason(error.error(), "list")))?;
        match found(&path) {
            Ok(file) => files.extend(file),
            // Gone between listing and looking.
            Err(_) if !path.exists() => {}
            Err(error) => return Err(error),
        }
    }
    files.sort_by(|a, b| a.url.cmp(&b.url));
    Ok(files)
}

impl ObjectLocation {
    /// Absolute URL of a key.
    pub(crate) fn url(&self, key: &str) -> String {
        format!("{}/{key}", self.root)
    }

    async fn list(&self) -> Result<Vec<FoundFile>> {
        let shown = self.url(&self.key);
        let failed = |error: object_store::Error| match error {
            object_store::Error::NotFound { .. } => fault(&shown, "does not exist"),
            error => fault(&shown, format!("cannot be listed: {error}")),
        };
        let Some(first) = self.key.find(GLOB) else {
            let path = ObjectPath::parse(&self.key).map_err(|error| fault(&shown, error.to_string()))?;
            let meta = self.store.head(&path).await.map_err(failed)?;
            return Ok(vec![FoundFile { url: self.url(meta.location.as_ref()), size: meta.size }]);
        };
        let pattern =
            glob::Pattern::new(&self.key).map_err(|error| fault(&shown, format!("the glob is malformed: {error}")))?;
        let options = glob::MatchOptions {
            require_literal_separator: true,
            require_literal_leading_dot: true,
            case_sensitive: true,
        };
        let prefix = self.key[..first].rsplit_once('/').map(|(folder, _)| ObjectPath::from(folder));
        let objects: Vec<_> = self.store.list(prefix.as_ref()).try_collect().await.map_err(failed)?;
        let mut files: Vec<FoundFile> = objects
            .into_iter()
            .filter(|meta| pattern.matches_with(meta.location.as_ref(), options))
            .map(|meta| FoundFile { url: self.url(meta.location.as_ref()), size: meta.size })
            .collect();
        files.sort_by(|a, b| a.url.cmp(&b.url));
        Ok(files)
    }
}
