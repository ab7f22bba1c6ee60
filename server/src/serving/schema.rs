//! The relations that one statement can name.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, MemTable, SchemaProvider, TableProvider};
use datafusion::common::{DataFusionError, Result as DfResult};
use tokio::sync::Mutex;
use weir_planner::{ErrorKind, RelationKind, SqlError};

use super::stream_table::StreamTable;
use super::view_table::ViewTable;
use super::{DATABASE, system};
use crate::engine::Engine;

/// One database with two schemas, for one statement.
#[derive(Debug)]
pub(super) struct StatementCatalogs {
    database: Arc<StatementDatabase>,
}

impl StatementCatalogs {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        let public = Arc::new(PublicSchema { engine: Arc::clone(engine), opened: Mutex::default() });
        let system = Arc::new(SystemSchema { engine: Arc::clone(engine) });
        Self { database: Arc::new(StatementDatabase { public, system }) }
    }
}

impl CatalogProviderList for StatementCatalogs {
    fn register_catalog(&self, _: String, _: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![DATABASE.to_owned()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        (name == DATABASE).then(|| Arc::clone(&self.database) as _)
    }
}

#[derive(Debug)]
struct StatementDatabase {
    public: Arc<PublicSchema>,
    system: Arc<SystemSchema>,
}

impl CatalogProvider for StatementDatabase {
    fn schema_names(&self) -> Vec<String> {
        vec!["public".to_owned(), system::SCHEMA.to_owned()]
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        match name {
            "public" => Some(Arc::clone(&self.public) as _),
            system::SCHEMA => Some(Arc::clone(&self.system) as _),
            _ => None,
        }
    }
}

/// Streams, tables and views.
struct PublicSchema {
    engine: Arc<Engine>,
    /// What the statement has named already: naming it again must show the same epoch.
    opened: Mutex<HashMap<String, Arc<dyn TableProvider>>>,
}

impl std::fmt::Debug for PublicSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PublicSchema")
    }
}

impl PublicSchema {
    async fn open(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, SqlError> {
        let catalog = self.engine.catalog();
        let Some(relation) = catalog.get(name) else { return Ok(None) };
        Ok(Some(match relation.kind {
            RelationKind::View | RelationKind::Table => {
                let view = self.engine.view(name).ok_or_else(|| {
                    SqlError::new(ErrorKind::NOT_READY, format!("\"{name}\" cannot be read: its query did not start"))
                        .hint("the server's log says why")
                })?;
                let snapshot = self.engine.snapshot(name, &view).await?;
                Arc::new(ViewTable::new(&view, snapshot))
            }
            RelationKind::Stream => Arc::new(StreamTable::open(&self.engine, relation)?),
            RelationKind::Sink => {
                return Err(SqlError::new(ErrorKind::WRONG_KIND, format!("sink \"{name}\" cannot be read"))
                    .hint("read what it writes where it writes it, or create a materialized view of the same query"));
            }
        }))
    }
}

#[async_trait]
impl SchemaProvider for PublicSchema {
    fn table_names(&self) -> Vec<String> {
        self.engine.relations().iter().map(|r| r.name.clone()).collect()
    }

    async fn table(&self, name: &str) -> DfResult<Option<Arc<dyn TableProvider>>> {
        let mut opened = self.opened.lock().await;
        if let Some(table) = opened.get(name) {
            return Ok(Some(Arc::clone(table)));
        }
        let table = self.open(name).await.map_err(|e| DataFusionError::External(Box::new(e)))?;
        if let Some(table) = &table {
            opened.insert(name.to_owned(), Arc::clone(table));
        }
        Ok(table)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.engine.catalog().get(name).is_some()
    }
}

/// System relations.
struct SystemSchema {
    engine: Arc<Engine>,
}

impl std::fmt::Debug for SystemSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SystemSchema")
    }
}

#[async_trait]
impl SchemaProvider for SystemSchema {
    fn table_names(&self) -> Vec<String> {
        system::RELATIONS.iter().map(|name| (*name).to_owned()).collect()
    }

    async fn table(&self, name: &str) -> DfResult<Option<Arc<dyn TableProvider>>> {
        let rows = system::rows(&self.engine, name).map_err(|e| DataFusionError::External(Box::new(e)))?;
        match rows {
            Some(rows) => Ok(Some(Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?))),
            None => Ok(None),
        }
    }

    fn table_exist(&self, name: &str) -> bool {
        system::RELATIONS.contains(&name)
    }
}
