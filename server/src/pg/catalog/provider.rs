//! The three schemas as DataFusion sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{
    CatalogProviderList, MemTable, MemoryCatalogProviderList, SchemaProvider, Session, TableProvider,
};
use datafusion::datasource::TableType;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_pg_catalog::pg_catalog::{PG_CATALOG_TABLES, PgCatalogSchemaProvider, PgCatalogStaticTables};
use weir_planner::{ErrorKind, SqlError};

use super::Snapshot;
use super::names::{OWN_TABLES, is_system_table};
use super::{schema_tables, tables};

/// `pg_catalog`: what depends on relations from the snapshot, the rest as PostgreSQL ships it.
pub(super) struct PgCatalog {
    snapshot: Arc<Snapshot>,
    fixed: PgCatalogSchemaProvider<Arc<dyn CatalogProviderList>, EmptyContextProvider>,
}

impl PgCatalog {
    pub(super) fn new(snapshot: Arc<Snapshot>, tables: Arc<PgCatalogStaticTables>) -> Result<Self> {
        let nothing: Arc<dyn CatalogProviderList> = Arc::new(MemoryCatalogProviderList::new());
        Ok(Self { snapshot, fixed: PgCatalogSchemaProvider::try_new(nothing, tables, EmptyContextProvider)? })
    }
}

impl fmt::Debug for PgCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pg_catalog")
    }
}

#[async_trait]
impl SchemaProvider for PgCatalog {
    fn table_names(&self) -> Vec<String> {
        PG_CATALOG_TABLES.iter().chain(OWN_TABLES).map(|name| (*name).to_owned()).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        match tables::build(&self.snapshot, name)? {
            Some(table) => Ok(Some(table)),
            None => self.fixed.table(name).await,
        }
    }

    fn table_exist(&self, name: &str) -> bool {
        is_system_table(name)
    }
}

/// A schema of tables that are all made beforehand.
#[derive(Debug)]
pub(super) struct SystemSchema(BTreeMap<&'static str, Arc<MemTable>>);

impl SystemSchema {
    pub(super) fn information_schema(snapshot: &Snapshot) -> Self {
        Self(schema_tables::build(snapshot))
    }
}

#[async_trait]
impl SchemaProvider for SystemSchema {
    fn table_names(&self) -> Vec<String> {
        self.0.keys().map(|name| (*name).to_owned()).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        Ok(self.0.get(name).map(|table| Arc::clone(table) as _))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Weir's relations: their columns can be looked at, their rows cannot be read along with the catalogs.
#[derive(Debug)]
pub(super) struct RelationSchemas(Arc<Snapshot>);

impl RelationSchemas {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self(snapshot)
    }
}

#[async_trait]
impl SchemaProvider for RelationSchemas {
    fn table_names(&self) -> Vec<String> {
        self.0.relations.iter().map(|r| r.name.clone()).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let relation = self.0.relations.iter().find(|r| r.name == name);
        Ok(relation.map(|r| Arc::new(Shape { name: r.name.clone(), schema: r.schema() }) as _))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.0.relations.iter().any(|r| r.name == name)
    }
}

/// A relation without its rows.
#[derive(Debug)]
struct Shape {
    name: String,
    schema: SchemaRef,
}

#[async_trait]
impl TableProvider for Shape {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        _projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let error = SqlError::new(
            ErrorKind::UNSUPPORTED,
            format!("\"{}\" cannot be read in one query with the system catalogs", self.name),
        )
        .hint("make two queries of it");
        Err(DataFusionError::External(Box::new(error)))
    }
}
