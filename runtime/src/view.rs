//! What readers see of a materialized result: for each epoch one consistent snapshot over all subtasks, and the
//! epoch's changes.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use weir_storage::{Epoch, Subtask, TableSnapshot};

use crate::message::Chunk;

/// Epochs of snapshots kept for each subtask, so that a reader finds one that all subtasks have reached.
const KEPT_EPOCHS: usize = 8;

/// The door between a running materialization and its readers. Lives as long as the relation: when the query
/// restarts, the new tasks publish into the same one.
#[derive(Debug)]
pub struct ViewHandle {
    schema: SchemaRef,
    key: Vec<usize>,
    published: Mutex<Published>,
    visible: watch::Sender<Option<Epoch>>,
    changes: broadcast::Sender<Arc<ViewChanges>>,
}

#[derive(Debug, Default)]
struct Published {
    subtasks: Vec<VecDeque<(Epoch, Arc<TableSnapshot>)>>,
    pending: VecDeque<(Epoch, Vec<Chunk>)>,
}

/// The state of a view at one epoch: one snapshot a subtask, in subtask order.
#[derive(Debug, Clone)]
pub struct ViewSnapshot {
    /// The epoch.
    pub epoch: Epoch,
    /// One snapshot a subtask.
    pub parts: Vec<Arc<TableSnapshot>>,
}

/// What one epoch changed in a view, over all subtasks.
#[derive(Debug)]
pub struct ViewChanges {
    /// The epoch.
    pub epoch: Epoch,
    /// The net changes; may be empty.
    pub chunks: Vec<Chunk>,
}

impl ViewHandle {
    /// A view of `schema` identified by `key` columns, not yet readable.
    pub fn new(schema: SchemaRef, key: Vec<usize>) -> Arc<Self> {
        let (visible, _) = watch::channel(None);
        let (changes, _) = broadcast::channel(1024);
        Arc::new(Self { schema, key, published: Mutex::default(), visible, changes })
    }

    /// Schema of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Indices of the key columns; empty when rows have no key.
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// The query (re)starts with `parallelism` subtasks: snapshots of the former run are forgotten once the new run
    /// has published its first epoch at every subtask; until then readers keep what they had.
    pub fn begin(&self, parallelism: u32) {
        let mut published = self.published.lock();
        *published =
            Published { subtasks: (0..parallelism).map(|_| VecDeque::new()).collect(), pending: VecDeque::new() };
    }

    /// A subtask has finished `epoch`: `snapshot` holds its rows, `changes` what the epoch changed.
    pub fn publish(&self, subtask: Subtask, epoch: Epoch, snapshot: Arc<TableSnapshot>, changes: Vec<Chunk>) {
        let mut published = self.published.lock();
        let Some(queue) = published.subtasks.get_mut(subtask.0 as usize) else { return };
        queue.push_back((epoch, snapshot));
        while queue.len() > KEPT_EPOCHS {
            queue.pop_front();
        }
        match published.pending.iter_mut().find(|(e, _)| *e == epoch) {
            Some((_, chunks)) => chunks.extend(changes),
            None => published.pending.push_back((epoch, changes)),
        }
        let complete = published.subtasks.iter().map(|q| q.back().map(|(e, _)| *e)).min().flatten();
        let Some(complete) = complete else { return };
        while published.pending.front().is_some_and(|(e, _)| *e <= complete) {
            if let Some((epoch, chunks)) = published.pending.pop_front() {
                // No subscriber is no error.
                let _ = self.changes.send(Arc::new(ViewChanges { epoch, chunks }));
            }
        }
        if self.visible.borrow().is_none_or(|e| e != complete) {
            self.visible.send_replace(Some(complete));
        }
    }

    /// The latest epoch that every subtask has finished, as one cut; `None` before the first.
    pub fn snapshot(&self) -> Option<ViewSnapshot> {
        let published = self.published.lock();
        Self::cut(&published)
    }

    fn cut(published: &Published) -> Option<ViewSnapshot> {
        let epoch = published.subtasks.iter().map(|q| q.back().map(|(e, _)| *e)).min().flatten()?;
        let parts = published
            .subtasks
            .iter()
            .map(|q| q.iter().rev().find(|(e, _)| *e <= epoch).map(|(_, s)| Arc::clone(s)))
            .collect::<Option<Vec<_>>>()?;
        Some(ViewSnapshot { epoch, parts })
    }

    /// A snapshot and all changes after it: what a subscription starts from. A receiver that lags more than 1,024
    /// epochs behind gets `Lagged` and must subscribe again.
    pub fn subscribe(&self) -> (Option<ViewSnapshot>, broadcast::Receiver<Arc<ViewChanges>>) {
        // Both under the lock: no epoch is published between the snapshot and the subscription.
        let published = self.published.lock();
        (Self::cut(&published), self.changes.subscribe())
    }

    /// Follows the latest readable epoch.
    pub fn epochs(&self) -> watch::Receiver<Option<Epoch>> {
        self.visible.subscribe()
    }
}
