//! The catalog, durable: a change is in the store before it is seen.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Mutex;
use weir_planner::{Catalog, CatalogChange, ErrorKind, SqlError};
use weir_storage::{CatalogLog, Fence, Store};

use crate::error::from_storage;

/// The catalog and the log of its changes.
pub(super) struct DurableCatalog {
    log: Mutex<CatalogLog>,
    fence: Arc<Fence>,
    current: RwLock<Catalog>,
}

impl DurableCatalog {
    /// Replays all changes.
    pub(super) async fn open(store: &Store, fence: Arc<Fence>) -> Result<Self, SqlError> {
        let (log, changes) = CatalogLog::open(store).await.map_err(from_storage)?;
        let mut catalog = Catalog::new();
        for change in changes {
            let change: CatalogChange = serde_json::from_value(change).map_err(|e| {
                SqlError::new(
                    ErrorKind::STORAGE,
                    format!("a change in the catalog at {} cannot be read: {e}", store.url()),
                )
                .hint("it was written by a newer version of Weir, or is damaged; start the version that wrote it")
            })?;
            catalog.apply(&change);
        }
        Ok(Self { log: Mutex::new(log), fence, current: RwLock::new(catalog) })
    }

    /// A copy for one statement.
    pub(super) fn current(&self) -> Catalog {
        self.current.read().clone()
    }

    /// Makes `change` durable, then visible. `check` sees the catalog under the lock that orders changes, so what it
    /// finds still holds when the change is made.
    pub(super) async fn change(
        &self,
        check: impl FnOnce(&Catalog) -> Result<CatalogChange, SqlError>,
    ) -> Result<Catalog, SqlError> {
        let mut log = self.log.lock().await;
        let change = check(&self.current())?;
        let json = serde_json::to_value(&change)
            .map_err(|e| SqlError::new(ErrorKind::INTERNAL, format!("a catalog change cannot be written: {e}")))?;
        log.append(&self.fence, &json).await.map_err(from_storage)?;
        let mut current = self.current.write();
        current.apply(&change);
        Ok(current.clone())
    }
}
