//! A session: the one place where every door's statement runs.
//!
//! psql, REST, the dashboard, `weir sql` and `weir run` all parse with [`weir_planner::parse`] and hand each statement
//! to [`Session::execute`]: one grammar, one error type, one permission check. One file a family of statements.

mod assign;
mod changes;
mod cursor;
mod ddl;
mod dml;
mod explain;
mod query;
mod savepoints;
mod settings;
pub(crate) mod show;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::scalar::ScalarValue;
use weir_planner::options::Parameters;
use weir_planner::{Options, Parsed, SqlError, Statement};

use crate::engine::Engine;
use cursor::Cursor;
pub(crate) use query::with_schema;

/// What a statement answers.
pub enum Outcome {
    /// Rows, possibly without end. Dropping the stream cancels the statement.
    Rows {
        /// Schema of the rows.
        schema: SchemaRef,
        /// The rows as they come. An error inside is a `DataFusionError::External(SqlError)` when it has a code.
        rows: SendableRecordBatchStream,
        /// Command tag for the wire protocol: `SELECT`, `SHOW`, `FETCH`, …
        tag: &'static str,
        /// Whether the rows never end (a subscription): a client must be sent each batch at once.
        endless: bool,
    },
    /// Rows in COPY's text format (`COPY (SUBSCRIBE TO v) TO STDOUT`).
    CopyOut {
        /// Schema of the rows.
        schema: SchemaRef,
        /// The rows as they come.
        rows: SendableRecordBatchStream,
    },
    /// Nothing but a command tag such as `CREATE STREAM` or `INSERT 0 3`, and what the user should know.
    Command {
        /// The tag.
        tag: String,
        /// Notices, one sentence each.
        notices: Vec<String>,
    },
}

impl Outcome {
    fn command(tag: impl Into<String>) -> Self {
        Self::Command { tag: tag.into(), notices: Vec::new() }
    }

    /// Rows that are all there already.
    fn table(tag: &'static str, batch: RecordBatch) -> Self {
        let schema = batch.schema();
        let rows = futures::stream::iter([Ok(batch)]);
        let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), rows));
        Self::Rows { schema, rows, tag, endless: false }
    }
}

/// What a statement will answer, before it is run.
#[derive(Debug, Clone)]
pub struct Description {
    /// Types of `$1`, `$2`, …; `Null` where nothing tells.
    pub parameters: Vec<DataType>,
    /// Schema of the rows, or `None` for a command.
    pub columns: Option<SchemaRef>,
}

/// One client's session: its options, cursors and transaction state.
pub struct Session {
    engine: Arc<Engine>,
    user: String,
    /// Options of queries: the server's under what SET gave in this session.
    options: Options,
    /// PostgreSQL's session parameters.
    parameters: Parameters,
    cursors: BTreeMap<String, Cursor>,
    in_transaction: bool,
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>, user: &str) -> Self {
        Self {
            options: engine.config.options.clone(),
            parameters: Parameters::new(),
            engine,
            user: user.to_owned(),
            cursors: BTreeMap::new(),
            in_transaction: false,
        }
    }

    /// The user of this session.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Whether BEGIN was given. Weir accepts it for clients that insist; each statement is a transaction of its own.
    pub fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Parse a script into statements, without running any.
    pub fn parse(&self, sql: &str) -> Result<Vec<Parsed>, SqlError> {
        weir_planner::parse(sql)
    }

    /// Run one statement. `parameters` are the values of `$1`, `$2`, …
    pub async fn execute(&mut self, parsed: &Parsed, parameters: &[ScalarValue]) -> Result<Outcome, SqlError> {
        match &parsed.statement {
            Statement::CreateStream(create) => self.create_relation(parsed, create, false).await,
            Statement::CreateTable(create) => self.create_relation(parsed, create, true).await,
            Statement::CreateStreamAs(_) | Statement::CreateMaterializedView(_) | Statement::CreateSink(_) => {
                self.create_query(parsed).await
            }
            Statement::Insert(insert) => self.insert(insert, parameters).await,
            Statement::Update(update) => self.update(update, parameters).await,
            Statement::Delete(delete) => self.delete(delete, parameters).await,
            Statement::Drop(drop) => self.drop_relations(drop).await,
            Statement::Show(show) => self.show(show),
            Statement::ShowOption { name } => self.show_option(name),
            Statement::ShowAllOptions => self.show_all_options(),
            Statement::Describe { name } => self.describe_relation(name, "DESCRIBE"),
            Statement::Explain { analyze, statement } => self.explain(*analyze, statement).await,
            Statement::AlterQuery { name, action } => self.alter_query(name, action).await,
            Statement::CreateSavepoint { query, target } => self.create_savepoint(query, target).await,
            Statement::DropSavepoint { savepoint, if_exists } => self.drop_savepoint(savepoint, *if_exists).await,
            Statement::RestoreQuery { query, url, claim } => self.restore_query(query, url, *claim).await,
            Statement::Checkpoint { query } => self.checkpoint(query).await,
            Statement::Set { name, value } => self.set_option(name, value.as_deref()),
            Statement::Reset { name } => self.reset_option(name.as_deref()),
            Statement::Query(query) => self.select(parsed, query, parameters).await,
            Statement::Subscribe(subscribe) => self.subscribe(subscribe).await,
            Statement::CopySubscribe(subscribe) => copy_out(self.subscribe(subscribe).await?),
            Statement::CopyQuery(query) => copy_out(self.select(parsed, query, parameters).await?),
            Statement::DeclareCursor { name, statement } => self.declare_cursor(name, statement, parameters).await,
            Statement::Fetch { cursor, count } => self.fetch(cursor, *count).await,
            Statement::CloseCursor { name } => self.close_cursor(name.as_deref()),
            Statement::Begin => {
                self.in_transaction = true;
                Ok(Outcome::command("BEGIN"))
            }
            Statement::Commit | Statement::Rollback => {
                self.in_transaction = false;
                self.cursors.clear();
                Ok(Outcome::command(parsed.statement.tag()))
            }
            Statement::DiscardAll => {
                self.reset_option(None)?;
                self.cursors.clear();
                Ok(Outcome::command("DISCARD ALL"))
            }
            Statement::Deallocate { .. } => Ok(Outcome::command("DEALLOCATE")),
        }
    }

    /// Tell what a statement will answer (for the extended query protocol's Describe).
    pub async fn describe(&mut self, parsed: &Parsed) -> Result<Description, SqlError> {
        let none = Vec::new();
        match &parsed.statement {
            Statement::Query(query) if query.emit.is_none() => self.describe_select(parsed, query).await,
            Statement::Insert(insert) => self.describe_insert(insert).await,
            Statement::Update(update) => self.describe_update(update).await,
            Statement::Delete(delete) => self.describe_delete(delete).await,
            Statement::Query(_)
            | Statement::Subscribe(_)
            | Statement::Show(_)
            | Statement::ShowOption { .. }
            | Statement::ShowAllOptions
            | Statement::Describe { .. }
            | Statement::Explain { .. } => {
                // These only read: what they answer is found by asking.
                match self.execute(parsed, &[]).await? {
                    Outcome::Rows { schema, .. } => Ok(Description { parameters: none, columns: Some(schema) }),
                    _ => Ok(Description { parameters: none, columns: None }),
                }
            }
            Statement::Fetch { cursor, .. } => {
                let columns = self.cursors.get(cursor).map(Cursor::schema);
                Ok(Description { parameters: none, columns })
            }
            _ => Ok(Description { parameters: none, columns: None }),
        }
    }
}

fn copy_out(outcome: Outcome) -> Result<Outcome, SqlError> {
    match outcome {
        Outcome::Rows { schema, rows, .. } => Ok(Outcome::CopyOut { schema, rows }),
        other => Ok(other),
    }
}
