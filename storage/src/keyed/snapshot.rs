//! What a manifest keeps of one subtask's keyed state: the names of the database's files and where their bytes are.

use serde::{Deserialize, Serialize};

use crate::{KeyGroupRange, checkpoint::Segment};

/// One file of a snapshot of a keyed state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFile {
    /// Name in the database's directory, `000012.sst`. It says what to call the file on restore and nothing about its
    /// content: after a recovery another database may give the same name to other bytes.
    pub name: String,
    /// Where the bytes are.
    pub segment: Segment,
}

/// A snapshot of one subtask's keyed state. Without files the state was empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedSnapshot {
    /// The key groups whose keys the files hold.
    pub range: KeyGroupRange,
    /// The opened database the files come from. Together with a file's name it identifies content.
    pub instance: uuid::Uuid,
    /// All files that restoring needs, those of earlier snapshots included, ordered by name.
    pub files: Vec<StateFile>,
    /// Bytes of the files that this snapshot uploaded.
    pub new_bytes: u64,
    /// Bytes of the files that earlier snapshots had uploaded.
    pub shared_bytes: u64,
}

impl KeyedSnapshot {
    /// The snapshot of a state that holds nothing.
    #[must_use]
    pub fn empty(range: KeyGroupRange, instance: uuid::Uuid) -> Self {
        Self { range, instance, files: Vec::new(), new_bytes: 0, shared_bytes: 0 }
    }

    /// Everything in the job's store that restoring needs: what clean-up must keep alive.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.files.iter().map(|file| &file.segment)
    }

    /// Size of the state's files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.new_bytes + self.shared_bytes
    }
}
