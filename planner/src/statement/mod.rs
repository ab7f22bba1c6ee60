//! What a person can say: one enum, one file a family of statements.
//!
//! Weir's own statements are read by the front parser in this module; everything that DataFusion can run as it
//! stands (SELECT, the rows of INSERT, …) stays sqlparser's AST.

mod create;
mod cursor;
mod dml;
mod parser;
mod query;
mod savepoint;
mod session;
mod show;

use sqlparser::ast;
use weir_runtime::graph::{ConnectorOptions, Emit};

pub use parser::parse;
pub(crate) use query::parse_expr;

/// A statement with its place in the text that it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// Exactly as written, without the semicolon and the space around it.
    pub sql: String,
    /// Where it starts in the whole text, in characters from 0.
    pub offset: usize,
    /// What it says.
    pub statement: Statement,
}

/// What a statement says. Names are folded as PostgreSQL does: lower case unless quoted; the schema `public` is
/// accepted and dropped.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `CREATE STREAM name (columns) WITH (…)`.
    CreateStream(CreateRelation),
    /// `CREATE TABLE name (columns) [WITH (…)]`.
    CreateTable(CreateRelation),
    /// `CREATE STREAM name AS SELECT …`.
    CreateStreamAs(CreateQuery),
    /// `CREATE MATERIALIZED VIEW name AS SELECT …`.
    CreateMaterializedView(CreateQuery),
    /// `CREATE SINK name FROM relation | AS SELECT … WITH (…)`.
    CreateSink(CreateQuery),
    /// `INSERT INTO …`.
    Insert(Insert),
    /// `UPDATE … SET …`.
    Update(Update),
    /// `DELETE FROM …`.
    Delete(Delete),
    /// `DROP …`.
    Drop(Drop),
    /// `SHOW STREAMS`, `SHOW CHECKPOINTS`, `SHOW CREATE …`.
    Show(Show),
    /// `SHOW name`: the value of an option or session parameter.
    ShowOption {
        /// The name as written, lower-cased.
        name: String,
    },
    /// `SHOW ALL`.
    ShowAllOptions,
    /// `DESCRIBE name`.
    Describe {
        /// The relation.
        name: String,
    },
    /// `EXPLAIN [ANALYZE] statement`.
    Explain {
        /// With the numbers of the running query.
        analyze: bool,
        /// What is explained.
        statement: Box<Parsed>,
    },
    /// `ALTER QUERY name PAUSE | RESUME | STOP WITH SAVEPOINT …`.
    AlterQuery {
        /// The query.
        name: String,
        /// What to do with it.
        action: QueryAction,
    },
    /// `CREATE SAVEPOINT [name] FOR QUERY query [TO 'url']`.
    CreateSavepoint {
        /// The query.
        query: String,
        /// What it is called and where it goes.
        target: SavepointTarget,
    },
    /// `DROP SAVEPOINT [IF EXISTS] name FOR QUERY query | 'url'`.
    DropSavepoint {
        /// Which one.
        savepoint: DropSavepoint,
        /// `IF EXISTS`.
        if_exists: bool,
    },
    /// `RESTORE QUERY query FROM 'url' [CLAIM | NO CLAIM]`.
    RestoreQuery {
        /// The query.
        query: String,
        /// A savepoint or checkpoint.
        url: String,
        /// Whether it is the query's from then on, and removed.
        claim: bool,
    },
    /// `CHECKPOINT query`.
    Checkpoint {
        /// The query.
        query: String,
    },
    /// `SET [SESSION | LOCAL] name = value` and `SET name TO value`.
    Set {
        /// The name, lower-cased.
        name: String,
        /// The value without its quotes; `None` for DEFAULT.
        value: Option<String>,
    },
    /// `RESET name | ALL`.
    Reset {
        /// The name, lower-cased; `None` for ALL.
        name: Option<String>,
    },
    /// SELECT, VALUES, `TABLE t`: a batch query, or with EMIT CHANGES one that goes on until it is cancelled.
    Query(Query),
    /// `SUBSCRIBE TO relation`.
    Subscribe(Subscribe),
    /// `COPY (SUBSCRIBE TO relation) TO STDOUT`.
    CopySubscribe(Subscribe),
    /// `COPY (SELECT …) TO STDOUT`.
    CopyQuery(Query),
    /// `DECLARE c CURSOR FOR …`.
    DeclareCursor {
        /// The cursor.
        name: String,
        /// A query or a subscription.
        statement: Box<Parsed>,
    },
    /// `FETCH n FROM c`.
    Fetch {
        /// The cursor.
        cursor: String,
        /// How many rows; `None` for ALL.
        count: Option<u64>,
    },
    /// `CLOSE c | ALL`.
    CloseCursor {
        /// The cursor; `None` for ALL.
        name: Option<String>,
    },
    /// `BEGIN`, `START TRANSACTION`.
    Begin,
    /// `COMMIT`, `END`.
    Commit,
    /// `ROLLBACK`, `ABORT`.
    Rollback,
    /// `DISCARD ALL`.
    DiscardAll,
    /// `DEALLOCATE [PREPARE] name | ALL`.
    Deallocate {
        /// The prepared statement; `None` for ALL.
        name: Option<String>,
    },
}

/// A declared column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnClause {
    /// Its name.
    pub name: String,
    /// The type as written, without constraints: `numeric(10,2)`.
    pub type_name: String,
    /// `NOT NULL` (a primary key implies it).
    pub not_null: bool,
    /// `PRIMARY KEY` behind the column.
    pub primary_key: bool,
    /// `GENERATED ALWAYS AS (expr)`.
    pub generated: Option<String>,
    /// `DEFAULT expr`.
    pub default: Option<String>,
    /// Where it starts in the whole text, in characters from 1.
    pub position: usize,
}

/// `WATERMARK FOR column AS expr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatermarkClause {
    /// The event-time column.
    pub column: String,
    /// The expression as written.
    pub expr: String,
    /// Where it starts in the whole text, in characters from 1.
    pub position: usize,
}

/// `CREATE STREAM` and `CREATE TABLE` with columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRelation {
    /// Its name.
    pub name: String,
    /// `IF NOT EXISTS`.
    pub if_not_exists: bool,
    /// The columns in order.
    pub columns: Vec<ColumnClause>,
    /// The primary key's columns, from either syntax.
    pub primary_key: Vec<String>,
    /// The watermark.
    pub watermark: Option<WatermarkClause>,
    /// `WITH (…)`, names lower-cased: connector options, and options of the query (`execution.checkpointing.…`).
    pub options: ConnectorOptions,
}

/// A relation that a query feeds: derived stream, materialized view, sink.
#[derive(Debug, Clone, PartialEq)]
pub struct CreateQuery {
    /// Its name, which is also the query's.
    pub name: String,
    /// `IF NOT EXISTS`.
    pub if_not_exists: bool,
    /// The query. `CREATE SINK s FROM v` reads as `SELECT * FROM v`.
    pub query: Query,
    /// `CREATE STREAM s (WATERMARK FOR c AS expr) AS SELECT …`: event time of what the query writes.
    pub watermark: Option<WatermarkClause>,
    /// `WITH (…)`, names lower-cased.
    pub options: ConnectorOptions,
}

/// A query, apart from the clauses that sqlparser does not know.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// The query without EMIT and WITH options, as written.
    pub sql: String,
    /// The same, parsed.
    pub ast: Box<ast::Query>,
    /// `EMIT CHANGES` or `EMIT ON WINDOW CLOSE`, if written.
    pub emit: Option<Emit>,
    /// Where it starts in the whole text, in characters from 0.
    pub offset: usize,
}

/// `INSERT INTO table [(columns)] VALUES … | SELECT …`.
#[derive(Debug, Clone, PartialEq)]
pub struct Insert {
    /// The stream or table.
    pub table: String,
    /// Named columns; empty when none were named.
    pub columns: Vec<String>,
    /// The rows; `None` for DEFAULT VALUES.
    pub source: Option<Box<ast::Query>>,
    /// The rows as text.
    pub source_sql: String,
}

/// `UPDATE table SET column = expr, … [WHERE …]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    /// The table.
    pub table: String,
    /// The assignments in order.
    pub assignments: Vec<(String, ast::Expr)>,
    /// Which rows; all when absent.
    pub selection: Option<ast::Expr>,
}

/// `DELETE FROM table [WHERE …]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Delete {
    /// The table.
    pub table: String,
    /// Which rows; all when absent.
    pub selection: Option<ast::Expr>,
}

/// What can be created, dropped and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A stream.
    Stream,
    /// A table.
    Table,
    /// A materialized view (`VIEW` means the same).
    View,
    /// A sink.
    Sink,
    /// The running query of a view, sink or derived stream.
    Query,
}

/// `DROP kind [IF EXISTS] name, … [CASCADE | RESTRICT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drop {
    /// What kind.
    pub kind: ObjectKind,
    /// Which ones.
    pub names: Vec<String>,
    /// `IF EXISTS`.
    pub if_exists: bool,
    /// `CASCADE`.
    pub cascade: bool,
}

/// What SHOW lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Show {
    /// `SHOW STREAMS | TABLES | [MATERIALIZED] VIEWS | SINKS | QUERIES`.
    Objects(ObjectKind),
    /// `SHOW CHECKPOINTS [FOR QUERY q]`.
    Checkpoints {
        /// One query, or all.
        query: Option<String>,
    },
    /// `SHOW SAVEPOINTS [FOR QUERY q]`.
    Savepoints {
        /// One query, or all.
        query: Option<String>,
    },
    /// `SHOW CREATE [kind] name`.
    Create {
        /// What kind it is said to be.
        kind: Option<ObjectKind>,
        /// Which one.
        name: String,
    },
    /// `SHOW COLUMNS FROM name`.
    Columns {
        /// The relation.
        relation: String,
    },
}

/// `ALTER QUERY` actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryAction {
    /// Take no more input until RESUME.
    Pause,
    /// Go on.
    Resume,
    /// `STOP WITH SAVEPOINT [name] [TO 'url'] [DRAIN]`.
    StopWithSavepoint {
        /// What it is called and where it goes.
        target: SavepointTarget,
        /// Whether windows close first, as if the input had ended.
        drain: bool,
    },
}

/// What a savepoint is called and where it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavepointTarget {
    /// Its name, if it is given one.
    pub name: Option<String>,
    /// The URL of its directory, if it is not to be in the usual place.
    pub url: Option<String>,
}

/// Which savepoint is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DropSavepoint {
    /// That of a query by its name.
    Named {
        /// The name.
        name: String,
        /// The query.
        query: String,
    },
    /// The one in the directory at this URL.
    Url(String),
}

/// `SUBSCRIBE TO relation [WITH (snapshot = false)]` or `SUBSCRIBE TO (SELECT …)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscribe {
    /// What is followed.
    pub target: SubscribeTarget,
    /// Whether the rows that stand now come first (the default).
    pub snapshot: bool,
    /// The other options, names lower-cased.
    pub options: ConnectorOptions,
}

/// What a subscription follows.
#[derive(Debug, Clone, PartialEq)]
pub enum SubscribeTarget {
    /// A stream, table or view.
    Relation(String),
    /// A query of its own.
    Query(Query),
}

impl ObjectKind {
    /// As in sentences: `materialized view`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Table => "table",
            Self::View => "materialized view",
            Self::Sink => "sink",
            Self::Query => "query",
        }
    }
}

impl Statement {
    /// PostgreSQL's command tag, without a row count: `CREATE STREAM`.
    pub fn tag(&self) -> &'static str {
        match self {
            Self::CreateStream(_) | Self::CreateStreamAs(_) => "CREATE STREAM",
            Self::CreateTable(_) => "CREATE TABLE",
            Self::CreateMaterializedView(_) => "CREATE MATERIALIZED VIEW",
            Self::CreateSink(_) => "CREATE SINK",
            Self::Insert(_) => "INSERT",
            Self::Update(_) => "UPDATE",
            Self::Delete(_) => "DELETE",
            Self::Drop(drop) => match drop.kind {
                ObjectKind::Stream => "DROP STREAM",
                ObjectKind::Table => "DROP TABLE",
                ObjectKind::View => "DROP MATERIALIZED VIEW",
                ObjectKind::Sink => "DROP SINK",
                ObjectKind::Query => "DROP QUERY",
            },
            Self::Show(_) | Self::ShowOption { .. } | Self::ShowAllOptions => "SHOW",
            Self::Describe { .. } => "DESCRIBE",
            Self::Explain { .. } => "EXPLAIN",
            Self::AlterQuery { .. } => "ALTER QUERY",
            Self::CreateSavepoint { .. } => "CREATE SAVEPOINT",
            Self::DropSavepoint { .. } => "DROP SAVEPOINT",
            Self::RestoreQuery { .. } => "RESTORE QUERY",
            Self::Checkpoint { .. } => "CHECKPOINT",
            Self::Set { .. } => "SET",
            Self::Reset { .. } => "RESET",
            Self::Query(_) => "SELECT",
            Self::Subscribe(_) => "SUBSCRIBE",
            Self::CopySubscribe(_) | Self::CopyQuery(_) => "COPY",
            Self::DeclareCursor { .. } => "DECLARE CURSOR",
            Self::Fetch { .. } => "FETCH",
            Self::CloseCursor { .. } => "CLOSE CURSOR",
            Self::Begin => "BEGIN",
            Self::Commit => "COMMIT",
            Self::Rollback => "ROLLBACK",
            Self::DiscardAll => "DISCARD ALL",
            Self::Deallocate { .. } => "DEALLOCATE",
        }
    }
}

impl Query {
    /// Reads a query with its EMIT clause, as [`crate::Relation::query`] keeps it.
    pub fn from_sql(sql: &str) -> crate::Result<Self> {
        query::from_text(sql)
    }

    /// The query with its EMIT clause.
    pub fn full_sql(&self) -> String {
        match self.emit {
            None => self.sql.clone(),
            Some(Emit::Changes) => format!("{} EMIT CHANGES", self.sql),
            Some(Emit::OnWindowClose) => format!("{} EMIT ON WINDOW CLOSE", self.sql),
        }
    }
}
