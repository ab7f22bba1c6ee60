//! The dataflow graph: what the planner makes and a job runs.
//!
//! A graph is plain data: operators with what they need to know, and edges with how rows are exchanged. Sources and
//! sinks are named, not opened; [`Resolver`] opens them where I/O is allowed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use weir_storage::{Manifest, OperatorUid};

use crate::error::Result;
use crate::sink::Sink;
use crate::source::{Source, SourceRequest};

/// A compiled expression, evaluated once per batch.
pub type Expr = Arc<dyn PhysicalExpr>;

/// Index of a node in [`Graph::nodes`].
pub type NodeIndex = usize;

/// A query as operators and edges. `nodes` is in topological order: an edge only points backwards.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The operators.
    pub nodes: Vec<Node>,
    /// Number of key groups, the upper bound of parallelism for good.
    pub max_parallelism: u16,
}

impl Graph {
    /// Operators that `manifest` has under the name of an earlier build keep that name, in this query for good: so do the
    /// tables of keys and the rows in flight that refer to it.
    pub fn keep_names_of(&mut self, manifest: &Manifest) {
        let known = |uid: &OperatorUid| manifest.operators.iter().any(|operator| operator.uid == *uid);
        for node in &mut self.nodes {
            if !known(&node.uid)
                && let Some(former) = node.former_uid.take_if(|former| known(former))
            {
                node.uid = former;
            }
        }
    }
}

/// An operator of the graph.
#[derive(Debug, Clone)]
pub struct Node {
    /// Stable name, derived from the plan's meaning.
    pub uid: OperatorUid,
    /// What earlier builds named it, where that differs: checkpoints of theirs are found by it.
    pub former_uid: Option<OperatorUid>,
    /// What a person reads in EXPLAIN and the dashboard: `filter dep_delay > 60`.
    pub name: String,
    /// What it does.
    pub spec: OperatorSpec,
    /// Number of parallel instances.
    pub parallelism: u32,
    /// Where rows come from, in input order.
    pub inputs: Vec<Edge>,
    /// Schema of the rows it emits.
    pub schema: SchemaRef,
    /// Whether it may emit retractions.
    pub changelog: bool,
    /// What bounds its state: `stateless`, `watermark of window_end`, `unbounded: one row per carrier`, …
    pub state_bound: String,
}

/// How rows get from one operator to the next.
#[derive(Debug, Clone)]
pub struct Edge {
    /// The operator that emits the rows.
    pub from: NodeIndex,
    /// Which subtask gets which row.
    pub exchange: Exchange,
}

/// Which subtask of the receiver gets a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// The subtask of the same index. Both sides have the same parallelism; such operators are chained into a task
    /// when the receiver has one input.
    Forward,
    /// The owner of the key group of these columns. With no columns, all rows go to the owner of the empty key.
    Hash(Vec<usize>),
    /// Batches in turn to all subtasks; used where parallelism changes and no key matters.
    Rebalance,
}

/// What an operator does.
#[derive(Debug, Clone)]
pub enum OperatorSpec {
    /// Read a relation of the outside world or another query's log.
    Source(SourceSpec),
    /// Keep the rows for which the predicate is true.
    Filter {
        /// Boolean expression over the input.
        predicate: Expr,
    },
    /// Compute columns. Never fails to keep the rows' weights.
    Project {
        /// One expression a column of the node's schema.
        exprs: Vec<Expr>,
    },
    /// Append `window_start` and `window_end`; a hopping window repeats the row once a window.
    WindowAssign(WindowSpec),
    /// All rows of all inputs.
    Union,
    /// Group and aggregate. Hash-exchanged by the group columns.
    Aggregate(AggregateSpec),
    /// Join two inputs (0 = left, 1 = right). Hash-exchanged by the key columns.
    Join(JoinSpec),
    /// Keep the result as a table that can be read.
    Materialize(MaterializeSpec),
    /// Write out.
    Sink(SinkSpec),
}

/// A source operator.
#[derive(Debug, Clone)]
pub struct SourceSpec {
    /// What is read from the connector.
    pub request: SourceRequest,
    /// The columns that the operator emits, as expressions over the projected physical columns (column references,
    /// casts, generated columns).
    pub columns: Vec<Expr>,
    /// How event time is told, if it is.
    pub watermark: Option<WatermarkSpec>,
}

/// Event time of a source: `WATERMARK FOR column AS expr`, or what the splits themselves tell.
#[derive(Debug, Clone)]
pub struct WatermarkSpec {
    /// Expression over the source's *output* columns; its maximum so far is the split's watermark. A timestamp in
    /// microseconds, with or without zone. None: the splits tell their watermarks, as another query's log does.
    pub expr: Option<Expr>,
    /// Index of the event-time column in the source's output.
    pub column: usize,
    /// A split without rows for this long no longer holds back event time. `None`: it holds it back for ever.
    pub idle_timeout: Option<Duration>,
}

/// `TUMBLE` (slide = size) and `HOP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpec {
    /// Index of the event-time column (a timestamp in microseconds).
    pub time_column: usize,
    /// Length of a window, microseconds.
    pub size: i64,
    /// Distance between the starts of windows, microseconds.
    pub slide: i64,
    /// Shift of all windows against the Unix epoch, microseconds.
    pub offset: i64,
}

/// Grouping and aggregating. Output columns: the group columns, then one a call.
#[derive(Debug, Clone)]
pub struct AggregateSpec {
    /// Indices of the group columns in the input.
    pub group: Vec<usize>,
    /// The aggregate calls.
    pub calls: Vec<AggregateCall>,
    /// Whether the input retracts.
    pub input_changelog: bool,
    /// Index *into `group`* of the column that closes a group (`window_end`), if the group is a window.
    pub window_end: Option<usize>,
    /// When results are emitted.
    pub emit: Emit,
}

/// One aggregate call.
#[derive(Debug, Clone)]
pub struct AggregateCall {
    /// DataFusion's function with its arguments compiled against the input schema.
    pub function: Arc<AggregateFunctionExpr>,
    /// `FILTER (WHERE …)`, over the input.
    pub filter: Option<Expr>,
}

/// When an aggregate emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emit {
    /// At the end of each epoch, the change since the last: retractions of old results, insertions of new ones.
    Changes,
    /// Once per group, when the watermark has passed its `window_end`; append-only. Later rows are late.
    OnWindowClose,
}

/// Which rows of a join appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and left rows without one padded with nulls.
    Left,
    /// Pairs, and right rows without one padded with nulls.
    Right,
    /// Pairs, and rows of both sides without one padded with nulls.
    Full,
    /// Left rows that have a partner.
    LeftSemi,
    /// Left rows that have none.
    LeftAnti,
}

/// A join of two inputs by equal keys. Output columns: left then right (semi and anti: left only).
#[derive(Debug, Clone)]
pub struct JoinSpec {
    /// Which rows appear.
    pub kind: JoinKind,
    /// Key columns, pairwise (left index, right index); same types on both sides.
    pub on: Vec<(usize, usize)>,
    /// Further condition over left columns followed by right columns.
    pub filter: Option<Expr>,
    /// Whether null keys equal each other (`IS NOT DISTINCT FROM`).
    pub null_equals_null: bool,
}

/// A table that can be read.
#[derive(Debug, Clone)]
pub struct MaterializeSpec {
    /// Name of the view or table.
    pub relation: String,
    /// Indices of the columns that identify a row. Empty: rows have no key; equal rows are counted.
    pub key: Vec<usize>,
    /// Whether an insertion replaces the row of the same key (a table's log carries upserts and deletes), or every
    /// replacement comes as retraction and insertion.
    pub upsert: bool,
    /// Whether to pass the changes on (to a log that other queries read). A view that starts logging late first
    /// emits all that it holds.
    pub forward: bool,
}

/// A sink operator.
#[derive(Debug, Clone)]
pub struct SinkSpec {
    /// Name of the sink, or of the stream or view whose log is written.
    pub relation: String,
    /// Schema of the rows to write.
    pub schema: SchemaRef,
    /// Whether the rows carry retractions.
    pub changelog: bool,
    /// Whether the relation's own log is written rather than a connector.
    pub log: bool,
    /// Whether event time goes out with the rows: they have an event-time column, for which the watermark holds.
    pub event_time: bool,
}

/// Opens the sources and sinks that a graph names.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// The source behind `request.relation`.
    async fn source(&self, request: &SourceRequest) -> Result<Arc<dyn Source>>;
    /// The sink called `spec.relation`.
    async fn sink(&self, spec: &SinkSpec) -> Result<Arc<dyn Sink>>;
}

/// Options of a connector as written in `WITH (…)`, lower-cased names.
pub type ConnectorOptions = BTreeMap<String, String>;

impl OperatorSpec {
    /// Short name of the kind, as in metrics and plans.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Source(_) => "source",
            Self::Filter { .. } => "filter",
            Self::Project { .. } => "project",
            Self::WindowAssign(_) => "window",
            Self::Union => "union",
            Self::Aggregate(_) => "aggregate",
            Self::Join(_) => "join",
            Self::Materialize(_) => "materialize",
            Self::Sink(_) => "sink",
        }
    }

    /// Whether the operator has keyed state.
    pub fn is_stateful(&self) -> bool {
        matches!(self, Self::Aggregate(_) | Self::Join(_) | Self::Materialize(_))
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward => f.write_str("forward"),
            Self::Hash(columns) => write!(f, "hash{columns:?}"),
            Self::Rebalance => f.write_str("rebalance"),
        }
    }
}
