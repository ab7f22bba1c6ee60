//! Directories of databases and of snapshots: made for one purpose and removed with it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::StateResources;
use crate::{Result, StorageError};

/// The directory of one opened database, `<dir>/<instance>`. Each opening gets its own, because readers may hold the
/// former database open while a restarted task opens the next one.
#[derive(Debug)]
pub(crate) struct InstanceDir {
    path: PathBuf,
    instance: Uuid,
    resources: StateResources,
}

impl InstanceDir {
    /// Makes an empty directory below `dir` and removes what earlier processes left there.
    pub(crate) fn create(dir: &Path, resources: &StateResources) -> Result<Self> {
        fs::create_dir_all(dir).map_err(|source| io_error(dir, source))?;
        let instance = Uuid::new_v4();
        resources.open_instances().lock().insert(instance);
        let path = dir.join(instance.to_string());
        let created = Self { path, instance, resources: resources.clone() };
        sweep(dir, resources)?;
        fs::create_dir(&created.path).map_err(|source| io_error(&created.path, source))?;
        Ok(created)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn instance(&self) -> Uuid {
        self.instance
    }
}

impl Drop for InstanceDir {
    fn drop(&mut self) {
        remove(&self.path);
        self.resources.open_instances().lock().remove(&self.instance);
    }
}

/// Removes directories of instances that this process does not have open. Anything else in `dir` is left alone.
fn sweep(dir: &Path, resources: &StateResources) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(|source| io_error(dir, source))? {
        let entry = entry.map_err(|source| io_error(dir, source))?;
        let name = entry.file_name();
        let Some(instance) = name.to_str().and_then(|name| Uuid::try_parse(name).ok()) else { continue };
        if !resources.open_instances().lock().contains(&instance) {
            remove(&entry.path());
        }
    }
    Ok(())
}

/// A directory of hard links to a database's files; removed when dropped.
#[derive(Debug)]
pub(crate) struct StagingDir {
    path: PathBuf,
}

impl StagingDir {
    /// Reserves `path`: it does not exist afterwards, its parent does.
    pub(crate) fn reserve(path: &Path) -> Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|source| io_error(parent, source))?;
        }
        let reserved = Self { path: path.to_owned() };
        reserved.clear();
        Ok(reserved)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn clear(&self) {
        remove(&self.path);
        // RocksDB assembles a checkpoint under this name and renames it when it is whole.
        let mut unfinished = self.path.clone().into_os_string();
        unfinished.push(".tmp");
        remove(Path::new(&unfinished));
    }
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The error of the local disk at `path`.
pub(crate) fn io_error(path: &Path, source: io::Error) -> StorageError {
    StorageError::Io { path: path.display().to_string(), source }
}

/// Removing is tidying: what cannot be removed now is swept at the next start, and must not fail the caller.
fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove a directory of local state"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crashed_process_left_is_swept_and_the_rest_kept() {
        let dir = tempfile::tempdir().unwrap();
        let resources = StateResources::new(1 << 20);
        let open = InstanceDir::create(dir.path(), &resources).unwrap();
        let crashed = dir.path().join(Uuid::new_v4().to_string());
        fs::create_dir_all(crashed.join("half")).unwrap();
        fs::create_dir(dir.path().join("of-somebody-else")).unwrap();

        let second = InstanceDir::create(dir.path(), &resources).unwrap();
        assert!(!crashed.exists());
        assert!(open.path().exists() && second.path().exists() && dir.path().join("of-somebody-else").exists());

        let path = open.path().to_owned();
        drop(open);
        assert!(!path.exists() && second.path().exists());
    }
}
