//! Which of a database's files are durable already: pure bookkeeping.
//!
//! A file may be referenced by a new snapshot only when the checkpoint that uploaded it was completed: an aborted
//! checkpoint's objects may be swept at any time. The names are those of one opened database, which never gives a name
//! twice; the bookkeeping lives and dies with it, so a name never stands for the bytes of another database.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::StateFile;
use crate::{CheckpointId, checkpoint::Segment};

/// The durable files of one opened database.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    confirmed: HashMap<String, Segment>,
    unconfirmed: BTreeMap<CheckpointId, Vec<StateFile>>,
}

impl Uploads {
    /// The bookkeeping of a database that was opened from `files` of a completed checkpoint.
    pub(crate) fn adopted(files: &[StateFile]) -> Self {
        let confirmed = files.iter().map(|file| (file.name.clone(), file.segment.clone())).collect();
        Self { confirmed, unconfirmed: BTreeMap::new() }
    }

    /// The segment that holds `name`, if a snapshot may reference it.
    pub(crate) fn durable(&self, name: &str) -> Option<&Segment> {
        self.confirmed.get(name)
    }

    /// Forgets files that the database no longer has.
    pub(crate) fn keep_only(&mut self, live: &HashSet<&str>) {
        self.confirmed.retain(|name, _| live.contains(name.as_str()));
    }

    /// Remembers what `checkpoint` uploaded until it is confirmed.
    pub(crate) fn uploaded(&mut self, checkpoint: CheckpointId, files: Vec<StateFile>) {
        self.unconfirmed.insert(checkpoint, files);
    }

    /// `checkpoint` completed. What earlier checkpoints uploaded and nobody confirmed by now is forgotten: they were
    /// aborted, or are subsumed by this one.
    pub(crate) fn confirm(&mut self, checkpoint: CheckpointId) {
        let later = self.unconfirmed.split_off(&checkpoint.next());
        if let Some(files) = std::mem::replace(&mut self.unconfirmed, later).remove(&checkpoint) {
            self.confirmed.extend(files.into_iter().map(|file| (file.name, file.segment)));
        }
    }

    /// Forgets the durable copies that `stale` names, so that the next snapshot uploads their files anew.
    pub(crate) fn forget(&mut self, stale: &dyn Fn(&Segment) -> bool) {
        self.confirmed.retain(|_, segment| !stale(segment));
        for files in self.unconfirmed.values_mut() {
            files.retain(|file| !stale(&file.segment));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, object: &str) -> StateFile {
        let segment = Segment::Object { path: object.to_owned(), offset: 0, length: 1, crc32: 0 };
        StateFile { name: name.to_owned(), segment }
    }

    #[test]
    fn files_of_an_unconfirmed_checkpoint_are_not_referenced() {
        let mut uploads = Uploads::default();
        uploads.uploaded(CheckpointId(1), vec![file("000001.sst", "a")]);
        assert!(uploads.durable("000001.sst").is_none());
        uploads.uploaded(CheckpointId(2), vec![file("000001.sst", "b")]);
        uploads.confirm(CheckpointId(2));
        assert_eq!(uploads.durable("000001.sst"), Some(&file("000001.sst", "b").segment));
    }

    #[test]
    fn a_late_confirmation_of_a_subsumed_checkpoint_changes_nothing() {
        let mut uploads = Uploads::default();
        uploads.uploaded(CheckpointId(1), vec![file("000001.sst", "a")]);
        uploads.uploaded(CheckpointId(2), vec![file("000002.sst", "b")]);
        uploads.uploaded(CheckpointId(3), vec![file("000003.sst", "c")]);
        uploads.confirm(CheckpointId(2));
        uploads.confirm(CheckpointId(1));
        assert!(uploads.durable("000001.sst").is_none());
        assert!(uploads.durable("000003.sst").is_none());
        uploads.confirm(CheckpointId(3));
        assert!(uploads.durable("000002.sst").is_some() && uploads.durable("000003.sst").is_some());
    }

    #[test]
    fn an_unknown_checkpoint_is_ignored() {
        let mut uploads = Uploads::adopted(&[file("000001.sst", "a")]);
        uploads.confirm(CheckpointId(9));
        assert!(uploads.durable("000001.sst").is_some());
    }

    #[test]
    fn forgotten_copies_are_not_referenced() {
        let mut uploads = Uploads::adopted(&[file("000001.sst", "a"), file("000002.sst", "b")]);
        uploads.forget(&|segment| matches!(segment, Segment::Object { path, .. } if path == "a"));
        assert!(uploads.durable("000001.sst").is_none() && uploads.durable("000002.sst").is_some());
        uploads.keep_only(&HashSet::new());
        assert!(uploads.durable("000002.sst").is_none());
    }
}
