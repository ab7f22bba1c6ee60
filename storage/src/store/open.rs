//! From a URL to a store: which schemes there are, and what each takes from the environment and the options.

use std::collections::BTreeMap;
use std::path::{Path as FsPath, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Weak};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};
use parking_lot::Mutex;
use url::Url;

use super::local::LocalDirectory;
use crate::error::{Result, StorageError};

/// What a URL names.
pub(super) struct Opened {
    /// Absolute, without a slash at the end.
    pub url: String,
    /// Where objects are; `prefix` goes in front of every path.
    pub objects: Arc<dyn ObjectStore>,
    /// The same place, for objects that need not survive a power loss.
    pub relaxed: Arc<dyn ObjectStore>,
    pub prefix: Path,
    /// The directory, if this is one.
    pub directory: Option<PathBuf>,
    /// Whether the client repeats requests by itself, so that "exists already" may be the answer to our own write.
    pub repeats: bool,
}

/// In-memory stores of this process by URL, so that `verify` and a second `open` find them.
static MEMORY: LazyLock<Mutex<BTreeMap<String, Weak<InMemory>>>> = LazyLock::new(Mutex::default);

const SCHEMES: &str = "file:, s3:, gs:, az: and memory: are supported";

pub(super) fn open(given: &str, options: &BTreeMap<String, String>, create: bool) -> Result<Opened> {
    let bad = |reason: String| StorageError::BadUrl { url: given.to_owned(), reason };
    let trimmed = given.trim();
    if trimmed.is_empty() {
        return Err(bad("it is empty".to_owned()));
    }
    let scheme = trimmed.split_once(':').map(|(scheme, _)| scheme).filter(|s| {
        // `C` and the like are no schemes, nor is a path that merely contains a colon.
        s.len() > 1 && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'-')
    });
    match scheme {
        None => directory(FsPath::new(trimmed), create, &bad),
        Some("file") => {
            let path = match trimmed.strip_prefix("file://") {
                Some(_) => Url::parse(trimmed)
                    .map_err(|e| bad(e.to_string()))?
                    .to_file_path()
                    .map_err(|()| bad("a file: URL has three slashes before an absolute path".to_owned()))?,
                None => PathBuf::from(&trimmed["file:".len()..]),
            };
            directory(&path, create, &bad)
        }
        Some("memory") => memory(trimmed, &bad),
        Some(scheme) => remote(scheme, trimmed, options, &bad),
    }
}

fn directory(path: &FsPath, create: bool, bad: &dyn Fn(String) -> StorageError) -> Result<Opened> {
    let io = |source| StorageError::Io { path: path.display().to_string(), source };
    if path.as_os_str().is_empty() {
        return Err(bad("it names no directory".to_owned()));
    }
    if create {
        std::fs::create_dir_all(path).map_err(io)?;
    }
    // Canonical, so that every error and every manifest URL is absolute whatever the working directory was.
    let absolute = std::fs::canonicalize(path).map_err(io)?;
    let url = Url::from_file_path(&absolute).map_err(|()| bad("the path cannot be written as a URL".to_owned()))?;
    let open = || LocalFileSystem::new_with_prefix(&absolute).map(|s| s.with_automatic_cleanup(true));
    let store = |source| StorageError::Store { url: url.to_string(), operation: "open", source };
    Ok(Opened {
        url: url.as_str().trim_end_matches('/').to_owned(),
        objects: Arc::new(LocalDirectory(open().map_err(store)?)),
        relaxed: Arc::new(open().map_err(store)?),
        prefix: Path::default(),
        directory: Some(absolute),
        repeats: false,
    })
}

fn memory(given: &str, bad: &dyn Fn(String) -> StorageError) -> Result<Opened> {
    let name = given["memory:".len()..].trim_matches('/');
    let (name, prefix) = name.split_once('/').unwrap_or((name, ""));
    let name = if name.is_empty() { uuid::Uuid::now_v7().simple().to_string() } else { name.to_owned() };
    let prefix = Path::parse(prefix).map_err(|e| bad(e.to_string()))?;
    let mut known = MEMORY.lock();
    let store = known.get(&name).and_then(Weak::upgrade).unwrap_or_default();
    known.retain(|_, store| store.strong_count() > 0);
    known.insert(name.clone(), Arc::downgrade(&store));
    Ok(Opened {
        url: format!("memory:///{name}/{prefix}").trim_end_matches('/').to_owned(),
        objects: store.clone(),
        relaxed: store,
        prefix,
        directory: None,
        repeats: false,
    })
}

fn remote(
    scheme: &str,
    given: &str,
    options: &BTreeMap<String, String>,
    bad: &dyn Fn(String) -> StorageError,
) -> Result<Opened> {
    let url = Url::parse(given).map_err(|e| bad(e.to_string()))?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err(bad(format!("it names no bucket; write {scheme}://bucket/prefix")));
    }
    let built = |e: object_store::Error| bad(e.to_string());
    let bucket = &url[..url::Position::AfterHost];
    let objects: Arc<dyn ObjectStore> = match scheme {
        "s3" | "s3a" => {
            let mut builder = AmazonS3Builder::from_env().with_url(bucket).with_retry(retry());
            for (key, value) in options {
                builder = builder.with_config(parse_option::<AmazonS3ConfigKey>(key, bad)?, value);
            }
            Arc::new(builder.build().map_err(built)?)
        }
        "gs" | "gcs" => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_url(bucket.replace("gcs://", "gs://"));
            for (key, value) in options {
                builder = builder.with_config(parse_option::<GoogleConfigKey>(key, bad)?, value);
            }
            Arc::new(builder.with_retry(retry()).build().map_err(built)?)
        }
        "az" | "azure" | "abfs" | "abfss" => {
            let authority = &url[..url::Position::BeforePath];
            let mut builder = MicrosoftAzureBuilder::from_env().with_url(authority);
            for (key, value) in options {
                builder = builder.with_config(parse_option::<AzureConfigKey>(key, bad)?, value);
            }
            Arc::new(builder.with_retry(retry()).build().map_err(built)?)
        }
        other => return Err(bad(format!("\"{other}:\" is not a kind of store Weir knows; {SCHEMES}"))),
    };
    Ok(Opened {
        url: given.trim_end_matches('/').to_owned(),
        relaxed: Arc::clone(&objects),
        objects,
        prefix: Path::from_url_path(url.path()).map_err(|e| bad(e.to_string()))?,
        directory: None,
        repeats: true,
    })
}

/// The client's own repetition covers single parts and pages; [`super::Store`] repeats whole requests above it, so
/// this one is kept short enough for a checkpoint's timeout.
fn retry() -> RetryConfig {
    RetryConfig { max_retries: 4, retry_timeout: std::time::Duration::from_secs(30), ..RetryConfig::default() }
}

fn parse_option<K: FromStr>(key: &str, bad: &dyn Fn(String) -> StorageError) -> Result<K> {
    key.to_ascii_lowercase().replace(['-', '.'], "_").parse().map_err(|_| {
        bad(format!("the store option \"{key}\" is unknown; endpoint, region and allow_http are examples"))
    })
}
