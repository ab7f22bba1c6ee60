//! DataFusion as the oracle of Weir's SQL: the same statements over the same files, read by DataFusion's own readers.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::datasource::MemTable;
use datafusion::execution::context::SessionContext;
use datafusion::prelude::{CsvReadOptions, JsonReadOptions, SessionConfig};
use sqllogictest::DBOutput;
use weir_planner::statement::CreateRelation;
use weir_planner::types::quote_ident;
use weir_planner::{SqlType, Statement};

use crate::cases::{CaseError, Kind, substituted, written};
use crate::{Row, pg_text};

/// A context that understands CREATE STREAM, CREATE TABLE and CREATE MATERIALIZED VIEW.
pub struct Batch {
    context: SessionContext,
}

impl Default for Batch {
    fn default() -> Self {
        let mut config = SessionConfig::new().with_target_partitions(2);
        config.options_mut().sql_parser.map_string_types_to_utf8view = false;
        config.options_mut().execution.parquet.schema_force_view_types = false;
        Self { context: SessionContext::new_with_config(config) }
    }
}

impl Batch {
    /// The answer to a query: columns and rows as PostgreSQL prints them.
    pub async fn query(&self, sql: &str) -> Result<(Vec<FieldRef>, Vec<Row>), CaseError> {
        let frame = self.context.sql(sql).await.map_err(CaseError::new)?;
        let task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.map_err(CaseError::new)?;
        // The plan's schema and not the frame's: types are coerced on the way.
        let fields = plan.schema().fields().iter().cloned().collect();
        let batches = datafusion::physical_plan::collect(plan, task).await.map_err(CaseError::new)?;
        Ok((fields, batches.iter().flat_map(pg_text::rows).collect()))
    }

    /// Runs a statement of Weir's, or one that only DataFusion knows (`verbatim`).
    pub async fn execute(&self, sql: &str, verbatim: bool) -> Result<DBOutput<Kind>, CaseError> {
        let sql = substituted(sql);
        if verbatim {
            return self.output(&sql).await;
        }
        let parsed = weir_planner::parse(&sql).map_err(|e| CaseError::new(e.message))?;
        let mut output = DBOutput::StatementComplete(0);
        for one in parsed {
            output = match one.statement {
                Statement::CreateStream(create) | Statement::CreateTable(create) => self.create(&create).await?,
                Statement::CreateMaterializedView(create) | Statement::CreateStreamAs(create) => {
                    self.output(&format!("CREATE VIEW {} AS {}", quote_ident(&create.name), create.query.sql)).await?
                }
                Statement::Query(query) => self.output(&query.sql).await?,
                Statement::Set { .. } => DBOutput::StatementComplete(0),
                _ => self.output(&one.sql).await?,
            };
        }
        Ok(output)
    }

    async fn output(&self, sql: &str) -> Result<DBOutput<Kind>, CaseError> {
        let (fields, rows) = self.query(sql).await?;
        // INSERT, UPDATE and DELETE answer one column `count`, of unsigned integers.
        if let ([field], [row]) = (fields.as_slice(), rows.as_slice())
            && field.name() == "count"
            && field.data_type() == &DataType::UInt64
        {
            let count = row[0].as_deref().and_then(|c| c.parse().ok()).unwrap_or(0);
            return Ok(DBOutput::StatementComplete(count));
        }
        if fields.is_empty() {
            return Ok(DBOutput::StatementComplete(0));
        }
        Ok(DBOutput::Rows { types: fields.iter().map(|f| pg_text::kind(f)).collect(), rows: written(&rows) })
    }

    async fn create(&self, create: &CreateRelation) -> Result<DBOutput<Kind>, CaseError> {
        let types: Vec<SqlType> = create
            .columns
            .iter()
            .map(|c| SqlType::parse(&c.type_name).map_err(|e| CaseError::new(e.message)))
            .collect::<Result<_, _>>()?;
        let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
        let name = &create.name;
        let Some(path) = create.options.get("path") else {
            let fields: Vec<Field> =
                create.columns.iter().zip(&types).map(|(c, t)| field(&c.name, t.data_type())).collect();
            let table = MemTable::try_new(Arc::new(Schema::new(fields)), vec![vec![]]).map_err(CaseError::new)?;
            self.context.register_table(name.as_str(), Arc::new(table)).map_err(CaseError::new)?;
            return Ok(DBOutput::StatementComplete(0));
        };
        // Types that DataFusion's readers do not know are read as text and cast in a view.
        let null = create.options.get("null");
        let physical = create.columns.iter().zip(&types).filter(|(c, _)| c.generated.is_none());
        let fields: Vec<Field> = physical
            .map(|(column, sql_type)| match sql_type {
                SqlType::Interval | SqlType::Bytea => field(&column.name, DataType::Utf8),
                // DataFusion 55 heeds `null_regex` when it infers a schema, and not when it reads.
                _ if null.is_some() => field(&column.name, DataType::Utf8),
                other => field(&column.name, other.data_type()),
            })
            .collect();
        let schema = Schema::new(fields);
        let raw = format!("{name}_as_read");
        let extension =
            std::path::Path::new(path).extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
        if create.options.get("format").is_some_and(|f| f == "json") {
            let options = JsonReadOptions::default().schema(&schema).file_extension(&extension);
            self.context.register_json(raw.as_str(), path, options).await.map_err(CaseError::new)?;
        } else {
            let options = CsvReadOptions::new().schema(&schema).has_header(true).newlines_in_values(true);
            self.context.register_csv(raw.as_str(), path, options).await.map_err(CaseError::new)?;
        }
        let columns: Vec<String> = create
            .columns
            .iter()
            .zip(&types)
            .map(|(column, sql_type)| {
                let quoted = quote_ident(&column.name);
                match (&column.generated, sql_type) {
                    (Some(expr), _) => format!("arrow_cast({expr}, '{}') AS {quoted}", sql_type.data_type()),
                    (None, SqlType::Interval) => format!("CAST({quoted} AS INTERVAL) AS {quoted}"),
                    (None, SqlType::Bytea) => format!("decode(substr({quoted}, 3), 'hex') AS {quoted}"),
                    _ => match null {
                        Some(null) => {
                            format!("arrow_cast(nullif({quoted}, '{null}'), '{}') AS {quoted}", sql_type.data_type())
                        }
                        None => quoted,
                    },
                }
            })
            .collect();
        self.output(&format!("CREATE VIEW {} AS SELECT {} FROM {raw}", quote_ident(name), columns.join(", "))).await
    }
}
