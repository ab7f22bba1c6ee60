//! What can be read: for each view and table the door between its materialization and its readers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use weir_planner::{ErrorKind, Relation, SqlError};
use weir_runtime::job::Views;
use weir_runtime::operators::ViewCodec;
use weir_runtime::view::{ViewHandle, ViewSnapshot};

use super::Engine;
use crate::error::from_runtime;

/// How long a reader waits for a view that has just been created or is being restored.
const FIRST_EPOCH_PATIENCE: Duration = Duration::from_secs(30);

/// A view or table that can be read.
#[derive(Debug, Clone)]
pub struct ReadableView {
    /// Snapshots and changes.
    pub handle: Arc<ViewHandle>,
    /// How rows lie in the state.
    pub codec: Arc<ViewCodec>,
}

/// All readable relations by name.
#[derive(Debug, Default)]
pub(super) struct ViewRegistry {
    views: RwLock<HashMap<String, ReadableView>>,
}

impl ViewRegistry {
    /// The entry for `relation`, made at first use. It outlives restarts of the query.
    pub(super) fn open(&self, relation: &Relation, max_parallelism: u16) -> Result<ReadableView, SqlError> {
        if let Some(view) = self.views.read().get(&relation.name) {
            return Ok(view.clone());
        }
        let schema = relation.schema();
        let codec = Arc::new(ViewCodec::new(&schema, &relation.key, max_parallelism).map_err(from_runtime)?);
        let view = ReadableView { handle: ViewHandle::new(schema, relation.key.clone()), codec };
        self.views.write().insert(relation.name.clone(), view.clone());
        Ok(view)
    }

    pub(super) fn get(&self, name: &str) -> Option<ReadableView> {
        self.views.read().get(name).cloned()
    }

    pub(super) fn close(&self, name: &str) {
        self.views.write().remove(name);
    }
}

impl Views for ViewRegistry {
    fn view(&self, relation: &str) -> Option<Arc<ViewHandle>> {
        self.get(relation).map(|view| view.handle)
    }
}

impl Engine {
    /// The door to a view or table.
    pub fn view(&self, name: &str) -> Option<ReadableView> {
        self.views.get(name)
    }

    /// A snapshot of a view, waiting for its first one when the query has only just started.
    pub(crate) async fn snapshot(&self, name: &str, view: &ReadableView) -> Result<ViewSnapshot, SqlError> {
        self.wait_for_inherited_rows(name).await;
        let mut epochs = view.handle.epochs();
        let ready = async {
            loop {
                if let Some(snapshot) = view.handle.snapshot() {
                    return Some(snapshot);
                }
                if epochs.changed().await.is_err() {
                    return None;
                }
            }
        };
        match tokio::time::timeout(FIRST_EPOCH_PATIENCE, ready).await {
            Ok(Some(snapshot)) => Ok(snapshot),
            Ok(None) => Err(SqlError::new(ErrorKind::UNDEFINED_RELATION, format!("relation \"{name}\" was dropped"))),
            Err(_) => {
                let state = self.query_state(name).unwrap_or_else(|| "not running".to_owned());
                Err(SqlError::new(ErrorKind::NOT_READY, format!("\"{name}\" cannot be read yet: its query is {state}"))
                    .hint("SHOW QUERIES tells why; try again when it is RUNNING"))
            }
        }
    }
}
