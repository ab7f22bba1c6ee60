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
}

#[derive(Debug)]
struct Published {
    /// What is published for an epoch before this one is no consistent cut.
    from: Epoch,
    /// What the present run has published.
    subtasks: Vec<VecDeque<(Epoch, Arc<TableSnapshot>)>>,
    pending: VecDeque<(Epoch, Vec<Chunk>)>,
    /// The last cut of the run before, until the present one has published everywhere.
    former: Option<ViewSnapshot>,
    changes: broadcast::Sender<Arc<ViewChanges>>,
}

/// Epochs of changes that a subscriber may lag behind.
const KEPT_CHANGES: usize = 1024;

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
        let (changes, _) = broadcast::channel(KEPT_CHANGES);
        let published =
            Published { from: Epoch(0), subtasks: Vec::new(), pending: VecDeque::new(), former: None, changes };
        Arc::new(Self { schema, key, published: Mutex::new(published), visible })
    }

    /// Schema of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Indices of the key columns; empty when rows have no key.
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// The query (re)starts with `parallelism` subtasks: the last cut of the former run is forgotten once the new run
    /// has published its first epoch at every subtask; until then readers keep it. Subscriptions to the former run end
    /// at that moment: the new one begins at a checkpoint, and some of its changes are ones that they had already.
    ///
    /// A run that begins with a state taken within an epoch shows nothing of before `from`, the first epoch of its own:
    /// until then its subtasks are in different epochs.
    pub fn begin(&self, parallelism: u32, from: Epoch) {
        let mut published = self.published.lock();
        published.from = from;
        published.former = Self::cut(&published);
        published.subtasks = (0..parallelism).map(|_| VecDeque::new()).collect();
        published.pending.clear();
    }

    /// A subtask has finished `epoch`: `snapshot` holds its rows, `changes` what the epoch changed.
    pub fn publish(&self, subtask: Subtask, epoch: Epoch, snapshot: Arc<TableSnapshot>, changes: Vec<Chunk>) {
        let mut published = self.published.lock();
        if epoch < published.from {
            return;
        }
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
        if published.former.take().is_some() {
            published.changes = broadcast::channel(KEPT_CHANGES).0;
        }
        while published.pending.front().is_some_and(|(e, _)| *e <= complete) {
            if let Some((epoch, chunks)) = published.pending.pop_front() {
                // No subscriber is no error.
                let _ = published.changes.send(Arc::new(ViewChanges { epoch, chunks }));
            }
        }
        if self.visible.borrow().is_none_or(|e| e != complete) {
            self.visible.send_replace(Some(complete));
        }
    }

    /// The latest epoch that every subtask has finished, as one cut; `None` before the first. While a restarted query has
    /// not yet published everywhere, the last one of its former run.
    pub fn snapshot(&self) -> Option<ViewSnapshot> {
        let published = self.published.lock();
        Self::cut(&published)
    }

    fn cut(published: &Published) -> Option<ViewSnapshot> {
        let complete = published.subtasks.iter().map(|q| q.back().map(|(e, _)| *e)).min().flatten();
        let Some(epoch) = complete else { return published.former.clone() };
        let parts = published
            .subtasks
            .iter()
            .map(|q| q.iter().rev().find(|(e, _)| *e <= epoch).map(|(_, s)| Arc::clone(s)))
            .collect::<Option<Vec<_>>>()?;
        Some(ViewSnapshot { epoch, parts })
    }

    /// A snapshot and all changes after it: what a subscription starts from. A receiver that lags more than 1,024
    /// epochs behind gets `Lagged`, one whose query was restarted `Closed`; both must subscribe again.
    pub fn subscribe(&self) -> (Option<ViewSnapshot>, broadcast::Receiver<Arc<ViewChanges>>) {
        // Both under the lock: no epoch is published between the snapshot and the subscription.
        let published = self.published.lock();
        (Self::cut(&published), published.changes.subscribe())
    }

    /// Follows the latest readable epoch.
    pub fn epochs(&self) -> watch::Receiver<Option<Epoch>> {
        self.visible.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Schema;
    use weir_storage::{KeyGroupRange, KeyedState, StateResources, TableId};

    use super::*;
    use crate::testing::{int_values, ints};

    struct Bench {
        view: Arc<ViewHandle>,
        state: KeyedState,
        _dir: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (resources, range) = (StateResources::new(1 << 20), KeyGroupRange { start: 0, end: 128 });
            let state = KeyedState::create(dir.path(), &resources, range).unwrap();
            Self { view: ViewHandle::new(Arc::new(Schema::empty()), vec![]), state, _dir: dir }
        }

        fn publish(&self, subtask: u32, epoch: u64, values: &[i64]) {
            let snapshot = Arc::new(self.state.table(TableId(0)).snapshot().unwrap());
            self.view.publish(Subtask(subtask), Epoch(epoch), snapshot, vec![ints(values)]);
        }

        fn seen(&self) -> Option<u64> {
            let epoch = self.view.snapshot().map(|snapshot| snapshot.epoch);
            assert_eq!(epoch, *self.view.epochs().borrow());
            epoch.map(|epoch| epoch.0)
        }
    }

    #[test]
    fn an_epoch_is_seen_when_every_subtask_has_published_it() {
        let bench = Bench::new();
        bench.view.begin(2, Epoch(0));
        let (none, mut changes) = bench.view.subscribe();
        assert!(none.is_none());
        bench.publish(0, 1, &[1]);
        bench.publish(0, 2, &[2]);
        assert_eq!(bench.seen(), None);
        bench.publish(1, 1, &[3]);
        assert_eq!(bench.seen(), Some(1));
        let change = changes.try_recv().unwrap();
        assert_eq!(change.chunks.iter().flat_map(int_values).collect::<Vec<_>>(), [1, 3]);
        assert!(changes.try_recv().is_err());
    }

    #[test]
    fn readers_keep_the_old_cut_until_the_new_run_has_published_everywhere() {
        let bench = Bench::new();
        bench.view.begin(1, Epoch(0));
        bench.publish(0, 5, &[1]);
        let (_, mut changes) = bench.view.subscribe();
        bench.view.begin(2, Epoch(0));
        bench.view.begin(2, Epoch(0));
        assert_eq!(bench.seen(), Some(5));
        bench.publish(0, 7, &[1]);
        assert_eq!(bench.seen(), Some(5));
        assert_eq!(changes.try_recv().unwrap_err(), broadcast::error::TryRecvError::Empty);
        bench.publish(1, 7, &[2]);
        assert_eq!(bench.seen(), Some(7));
        assert_eq!(changes.try_recv().unwrap_err(), broadcast::error::TryRecvError::Closed);
        let (snapshot, mut changes) = bench.view.subscribe();
        assert_eq!(snapshot.unwrap().parts.len(), 2);
        bench.publish(0, 8, &[]);
        bench.publish(1, 8, &[4]);
        assert_eq!(changes.try_recv().unwrap().epoch, Epoch(8));
    }
}
