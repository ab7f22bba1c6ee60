//! What all handles of one relation's log in this process share: the head, the order of writers, known client keys,
//! and the newest entries.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::entry::{LogBatch, Published};
use super::{LogEntryMeta, LogSeq};

/// Bytes of the newest entries that stay in memory for readers that follow the head.
const RECENT_BYTES: usize = 8 << 20;

type Registry = HashMap<(String, String), Weak<Shared>>;

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

pub(super) struct Shared {
    /// Sequence number of the newest entry that is known.
    pub head: watch::Sender<LogSeq>,
    /// Held while an entry is written: entries of one process do not race for a sequence number.
    pub writer: tokio::sync::Mutex<WriterState>,
    recent: Mutex<Recent>,
}

#[derive(Default)]
pub(super) struct WriterState {
    /// Whether `head` and `published` have been read from the store.
    pub loaded: bool,
    /// Last checkpoint that each job has published.
    pub published: BTreeMap<String, Published>,
    /// The oldest entry that was not trimmed, once somebody asked.
    pub first: Option<LogSeq>,
    /// Whether what an interrupted trim left was looked for.
    pub swept: bool,
    /// Client keys, once somebody asked for one.
    pub keys: Option<ClientKeys>,
}

/// An entry as readers want it.
pub(super) type ReadEntry = (LogEntryMeta, Vec<LogBatch>);

#[derive(Default)]
struct Recent {
    entries: VecDeque<(Arc<ReadEntry>, usize)>,
    bytes: usize,
}

impl Shared {
    pub fn of(url: &str, relation: &str) -> Arc<Self> {
        let mut registry = REGISTRY.lock();
        let key = (url.to_owned(), relation.to_owned());
        if let Some(shared) = registry.get(&key).and_then(Weak::upgrade) {
            return shared;
        }
        registry.retain(|_, shared| shared.strong_count() > 0);
        let shared = Arc::new(Self {
            head: watch::Sender::new(LogSeq(0)),
            writer: tokio::sync::Mutex::default(),
            recent: Mutex::default(),
        });
        registry.insert(key, Arc::downgrade(&shared));
        shared
    }

    pub fn head(&self) -> LogSeq {
        *self.head.borrow()
    }

    /// A newest entry becomes known; readers wake.
    pub fn advance(&self, to: LogSeq) {
        self.head.send_if_modified(|head| {
            let later = to > *head;
            *head = to.max(*head);
            later
        });
    }

    pub fn remember(&self, entry: ReadEntry) {
        let bytes = entry.1.iter().map(|(batch, _)| batch.get_array_memory_size()).sum::<usize>() + 256;
        let mut recent = self.recent.lock();
        recent.entries.push_back((Arc::new(entry), bytes));
        recent.bytes += bytes;
        while recent.bytes > RECENT_BYTES
            && let Some((_, bytes)) = recent.entries.pop_front()
        {
            recent.bytes -= bytes;
        }
    }

    pub fn recent(&self, seq: LogSeq) -> Option<Arc<ReadEntry>> {
        let recent = self.recent.lock();
        let at = recent.entries.binary_search_by_key(&seq, |(entry, _)| entry.0.seq).ok()?;
        Some(Arc::clone(&recent.entries[at].0))
    }

    pub fn forget(&self) {
        *self.recent.lock() = Recent::default();
    }

    /// Entries before `before` were trimmed.
    pub fn forget_before(&self, before: LogSeq) {
        let mut recent = self.recent.lock();
        while recent.entries.front().is_some_and(|(entry, _)| entry.0.seq < before)
            && let Some((_, bytes)) = recent.entries.pop_front()
        {
            recent.bytes -= bytes;
        }
    }
}

/// Client keys of the newest entries.
#[derive(Default)]
pub(super) struct ClientKeys {
    by_key: HashMap<String, LogSeq>,
    in_order: VecDeque<(LogSeq, String)>,
}

impl ClientKeys {
    pub fn get(&self, key: &str) -> Option<LogSeq> {
        self.by_key.get(key).copied()
    }

    /// Add keys of entry `seq` (in order), and forget those of entries before `since`.
    pub fn add(&mut self, seq: LogSeq, keys: &[String], since: LogSeq) {
        for key in keys {
            self.by_key.insert(key.clone(), seq);
            self.in_order.push_back((seq, key.clone()));
        }
        while self.in_order.front().is_some_and(|(seq, _)| *seq < since) {
            if let Some((seq, key)) = self.in_order.pop_front()
                && self.by_key.get(&key) == Some(&seq)
            {
                self.by_key.remove(&key);
            }
        }
    }
}
