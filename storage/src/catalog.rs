//! The catalog's change log: small JSON objects in order, one created conditionally for each change.
//!
//! ```text
//!   catalog/snapshot-00…0256.json   all changes up to 256      catalog/00…0257.json   catalog/00…0258.json
//! ```
//!
//! What a change means is the caller's business; opening the log gives all of them in order. Every 256 changes the
//! history becomes one snapshot object, after which the single ones go.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Generation;
use crate::checkpoint::seal::{sealed, unsealed};
use crate::error::{Result, StorageError};
use crate::fence::Fence;
use crate::store::Store;

/// Changes between two snapshots.
const SNAPSHOT_EVERY: u64 = 256;
/// Objects that are read at the same time when the log is opened.
const CONCURRENCY: usize = 16;

#[derive(Serialize, Deserialize)]
struct Change {
    format: u32,
    seq: u64,
    generation: Generation,
    /// Makes the object's content unique to its writer.
    nonce: uuid::Uuid,
    change: Value,
}

#[derive(Serialize, Deserialize)]
struct Snapshot {
    format: u32,
    last: u64,
    changes: Vec<Value>,
}

/// The log, open for appending. One process at a time has it, guarded by its [`Fence`].
#[derive(Debug)]
pub struct CatalogLog {
    store: Store,
    next: u64,
    snapshot: u64,
    history: Vec<Arc<Value>>,
}

impl CatalogLog {
    /// Open the log; the changes come in the order in which they were made.
    pub async fn open(store: &Store) -> Result<(Self, Vec<Value>)> {
        use futures::{StreamExt, TryStreamExt};

        let paths: Vec<String> = store.list("catalog").await?.into_iter().map(|object| object.path).collect();
        let snapshot = paths.iter().filter_map(|path| number(path, "catalog/snapshot-")).max();
        let mut changes = Vec::new();
        let mut last = 0;
        if let Some(seq) = snapshot {
            let snapshot: Snapshot = read(store, &snapshot_path(seq)).await?;
            last = snapshot.last;
            changes = snapshot.changes;
        }
        let mut sequence: Vec<u64> = paths.iter().filter_map(|path| number(path, "catalog/")).collect();
        sequence.retain(|seq| *seq > last);
        for (found, expected) in sequence.iter().zip(last + 1..) {
            if *found != expected {
                return Err(StorageError::Missing {
                    url: store.absolute(&change_path(expected)),
                    needed_by: format!("the catalog, which goes on with change {found}"),
                });
            }
        }
        let next = last + sequence.len() as u64 + 1;
        let paths: Vec<String> = sequence.into_iter().map(change_path).collect();
        let later: Vec<Change> = futures::stream::iter(&paths)
            .map(|path| read::<Change>(store, path))
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        changes.extend(later.into_iter().map(|change| change.change));
        let history = changes.iter().cloned().map(Arc::new).collect();
        Ok((Self { store: store.clone(), next, snapshot: last, history }, changes))
    }

    /// Make a change durable; its number in the log.
    pub async fn append(&mut self, fence: &Fence, change: &Value) -> Result<u64> {
        fence.check().await?;
        let seq = self.next;
        let path = change_path(seq);
        let object = Change {
            format: 1,
            seq,
            generation: fence.generation(),
            nonce: uuid::Uuid::new_v4(),
            change: change.clone(),
        };
        if !self.store.create(&path, self.encode(&path, &object)?).await? {
            fence.check().await?;
            let reason = format!("change {seq} of the catalog was to be written there");
            return Err(StorageError::Conflict { url: self.store.absolute(&path), reason });
        }
        self.next += 1;
        self.history.push(Arc::new(change.clone()));
        if seq - self.snapshot >= SNAPSHOT_EVERY
            && let Err(error) = self.compact().await
        {
            // The change itself is durable; the next one tries again.
            tracing::warn!(%error, "the catalog's history could not be compacted");
        }
        Ok(seq)
    }

    /// Number of the last change; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    async fn compact(&mut self) -> Result<()> {
        let last = self.last();
        let path = snapshot_path(last);
        let changes = self.history.iter().map(|change| Value::clone(change)).collect();
        let bytes = self.encode(&path, &Snapshot { format: 1, last, changes })?;
        // Only its content decides what the object is, so writing it twice is the same as once.
        self.store.put(&path, bytes).await?;
        self.snapshot = last;
        let objects = self.store.list("catalog").await?;
        let covered = |path: &str| match number(path, "catalog/snapshot-") {
            Some(seq) => seq < last,
            None => number(path, "catalog/").is_some_and(|seq| seq <= last),
        };
        self.store.delete_many(objects.into_iter().map(|o| o.path).filter(|path| covered(path)).collect()).await
    }

    fn encode(&self, path: &str, value: &impl Serialize) -> Result<bytes::Bytes> {
        let json = serde_json::to_vec_pretty(value);
        json.map(sealed).map_err(|e| StorageError::Corrupt { url: self.store.absolute(path), reason: e.to_string() })
    }
}

async fn read<T: for<'de> Deserialize<'de>>(store: &Store, path: &str) -> Result<T> {
    let url = store.absolute(path);
    let bytes = store.get(path).await?;
    serde_json::from_slice(unsealed(&bytes, &url)?).map_err(|e| StorageError::Corrupt { url, reason: e.to_string() })
}

fn change_path(seq: u64) -> String {
    format!("catalog/{seq:020}.json")
}

fn snapshot_path(seq: u64) -> String {
    format!("catalog/snapshot-{seq:020}.json")
}

fn number(path: &str, prefix: &str) -> Option<u64> {
    path.strip_prefix(prefix)?.strip_suffix(".json")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::fence::OwnerInfo;

    async fn owned() -> (Store, Fence) {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let fence = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
        (store, fence)
    }

    #[tokio::test]
    async fn changes_come_back_in_order_over_snapshots() {
        let (store, fence) = owned().await;
        let (mut log, changes) = CatalogLog::open(&store).await.unwrap();
        assert!(changes.is_empty());
        for i in 1..=600u64 {
            assert_eq!(log.append(&fence, &json!({ "create": i })).await.unwrap(), i);
        }
        let (log, changes) = CatalogLog::open(&store).await.unwrap();
        assert_eq!(log.last(), 600);
        assert_eq!(changes, (1..=600u64).map(|i| json!({ "create": i })).collect::<Vec<_>>());
        let objects = store.list("catalog").await.unwrap();
        assert_eq!(objects.len(), 600 - 512 + 1, "single changes go once a snapshot has them");
    }

    #[tokio::test]
    async fn only_the_owner_appends() {
        let (store, fence) = owned().await;
        let (mut log, _) = CatalogLog::open(&store).await.unwrap();
        let (mut other, _) = CatalogLog::open(&store).await.unwrap();
        log.append(&fence, &json!(1)).await.unwrap();
        let error = other.append(&fence, &json!(2)).await.unwrap_err();
        assert!(matches!(error, StorageError::Conflict { .. }), "{error}");
        fence.release().await.unwrap();
        let _next = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
        let error = log.append(&fence, &json!(3)).await.unwrap_err();
        assert!(matches!(error, StorageError::Fenced { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_gap_or_damage_is_reported_by_url() {
        let (store, fence) = owned().await;
        let (mut log, _) = CatalogLog::open(&store).await.unwrap();
        for i in 1..=3 {
            log.append(&fence, &json!(i)).await.unwrap();
        }
        store.delete(&change_path(2)).await.unwrap();
        let error = CatalogLog::open(&store).await.unwrap_err().to_string();
        assert!(error.starts_with(&store.absolute(&change_path(2))), "{error}");
        store.put(&change_path(2), &b"{}"[..]).await.unwrap();
        let error = CatalogLog::open(&store).await.unwrap_err().to_string();
        assert!(error.contains(&store.absolute(&change_path(2))) && error.contains("damaged"), "{error}");
    }
}
