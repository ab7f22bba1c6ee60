//! Logical plan to dataflow graph: one file a kind of node.
//!
//! The builder goes up from the sources. For each node it knows what is emitted ([`Props`]): which columns, whether
//! rows are taken back, what identifies them, how they are spread over subtasks, what is event time. Its schemas may
//! have columns that the logical plan does not (a watermark's, a join key's); columns are found by name, so that they
//! do no harm.

mod aggregate;
mod join;
mod names;
mod project;
mod source;
mod target;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{DFSchema, DFSchemaRef};
use datafusion::logical_expr::{Expr, LogicalPlan};
use weir_runtime::graph::{Edge, Emit, Exchange, Graph, Node, NodeIndex, OperatorSpec, WindowSpec};
use weir_storage::OperatorUid;

use crate::bounds;
use crate::changelog::{Key, project_key};
use crate::context::Context;
use crate::error::{ErrorKind, Result, SqlError};
use crate::plan::Parallelism;
use crate::refuse;
use crate::time::Times;
use crate::window::WindowNode;

pub(crate) use names::sentence;

/// What a node emits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Props {
    pub(crate) changelog: bool,
    pub(crate) key: Key,
    /// Columns by whose key group the rows are spread; `None` when by nothing.
    pub(crate) partition: Option<Vec<usize>>,
    pub(crate) parallelism: u32,
    pub(crate) time: Times,
    /// Whether there is one row at any time.
    pub(crate) single_row: bool,
}

impl Props {
    /// The event-time column of rows that are only added, for which the watermark holds: what a reader of their log may
    /// close windows by.
    pub(crate) fn event_time(&self) -> Option<usize> {
        self.time.event_time.filter(|_| self.time.watermark && !self.changelog)
    }

    /// Through a projection: `places` tells where an input column is found in the output.
    fn project(&self, places: impl Fn(usize) -> Option<usize>) -> Self {
        Self {
            key: project_key(&self.time.shorter_key(&self.key, &places), &places),
            partition: project_key(&self.partition, &places),
            time: self.time.project(&places),
            ..self.clone()
        }
    }
}

/// A part of the graph that stands.
#[derive(Debug, Clone)]
pub(crate) struct Built {
    pub(crate) node: NodeIndex,
    pub(crate) schema: DFSchemaRef,
    pub(crate) props: Props,
}

/// Makes a graph.
pub(crate) struct Builder<'a> {
    pub(crate) context: &'a Context,
    pub(crate) parallelism: Parallelism,
    pub(crate) emit: Emit,
    nodes: Vec<Node>,
    uids: HashMap<String, usize>,
    former_uids: HashMap<String, usize>,
    pub(crate) warnings: Vec<String>,
    pub(crate) reads: BTreeSet<String>,
    /// Windows that close: how many aggregates emit by the watermark.
    closing: usize,
    extra: usize,
}

/// A node about to be added.
pub(crate) struct NewNode {
    /// What a person reads.
    pub(crate) name: String,
    /// What makes up its identity beside its kind and inputs.
    pub(crate) meaning: String,
    pub(crate) spec: OperatorSpec,
    pub(crate) inputs: Vec<Edge>,
    pub(crate) schema: SchemaRef,
    pub(crate) changelog: bool,
    pub(crate) parallelism: u32,
    pub(crate) state_bound: String,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(context: &'a Context, parallelism: Parallelism, emit: Emit) -> Self {
        Self {
            context,
            parallelism,
            emit,
            nodes: Vec::new(),
            uids: HashMap::new(),
            former_uids: HashMap::new(),
            warnings: Vec::new(),
            reads: BTreeSet::new(),
            closing: 0,
            extra: 0,
        }
    }

    /// The graph for what was built.
    pub(crate) fn finish(self) -> Graph {
        Graph { nodes: self.nodes, max_parallelism: self.parallelism.max }
    }

    /// Whether an aggregate closes windows.
    pub(crate) fn closes_windows(&self) -> bool {
        self.closing > 0
    }

    /// Builds the part of the graph that computes `plan`.
    pub(crate) fn build(&mut self, plan: &LogicalPlan) -> Result<Built> {
        match plan {
            LogicalPlan::TableScan(scan) => self.source(scan),
            LogicalPlan::Projection(projection) => {
                let input = self.build(&projection.input)?;
                self.projection(input, &projection.expr, &projection.schema)
            }
            LogicalPlan::Filter(filter) => {
                let input = self.build(&filter.input)?;
                self.filter(input, &filter.predicate)
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = self.build(&alias.input)?;
                let fields = input.schema.fields().iter().map(|f| (Some(alias.alias.clone()), Arc::clone(f))).collect();
                let schema = DFSchema::new_with_metadata(fields, HashMap::new()).map_err(crate::from_datafusion)?;
                Ok(Built { schema: Arc::new(schema), ..input })
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Union(union) => self.union(union),
            LogicalPlan::Extension(extension) => match extension.node.as_any().downcast_ref::<WindowNode>() {
                Some(window) => self.window(window),
                None => Err(unplanned(plan)),
            },
            LogicalPlan::Subquery(_) => Err(refuse::lateral()),
            other => {
                refuse::check(other)?;
                Err(unplanned(other))
            }
        }
    }

    /// Adds a node; its uid follows from its meaning and its inputs.
    pub(crate) fn add(&mut self, node: NewNode) -> NodeIndex {
        let same = node.meaning.clone();
        self.add_formerly(node, &same)
    }

    /// The same for one whose meaning was `former` in earlier builds.
    pub(crate) fn add_formerly(&mut self, node: NewNode, former: &str) -> NodeIndex {
        let kind = node.spec.kind();
        let inputs = || node.inputs.iter().filter_map(|edge| self.nodes.get(edge.from));
        let name = identity(kind, &node.meaning, inputs().map(|input| &input.uid));
        let former_inputs = inputs().map(|input| input.former_uid.as_ref().unwrap_or(&input.uid));
        let former = identity(kind, former, former_inputs);
        let uid = unique(&mut self.uids, name);
        let former_uid = Some(unique(&mut self.former_uids, former)).filter(|former| *former != uid);
        self.nodes.push(Node {
            uid,
            former_uid,
            name: node.name,
            spec: node.spec,
            parallelism: node.parallelism,
            inputs: node.inputs,
            schema: node.schema,
            changelog: node.changelog,
            state_bound: node.state_bound,
        });
        self.nodes.len() - 1
    }

    /// The edge that brings rows to their key's owner: forward if they are there already.
    pub(crate) fn keyed(&self, from: &Built, columns: &[usize], parallelism: u32) -> Edge {
        let there = from.props.parallelism == parallelism && from.props.partition.as_deref() == Some(columns);
        let exchange = if there { Exchange::Forward } else { Exchange::Hash(columns.to_vec()) };
        Edge { from: from.node, exchange }
    }

    /// The edge where no key matters.
    pub(crate) fn unkeyed(from: &Built, parallelism: u32) -> Edge {
        let same = from.props.parallelism == parallelism;
        Edge { from: from.node, exchange: if same { Exchange::Forward } else { Exchange::Rebalance } }
    }

    pub(crate) fn forward(from: &Built) -> Vec<Edge> {
        vec![Edge { from: from.node, exchange: Exchange::Forward }]
    }

    /// Compiles an expression; a subquery that is still there is refused.
    pub(crate) fn compile(&self, expr: &Expr, schema: &DFSchema) -> Result<weir_runtime::graph::Expr> {
        use datafusion::common::tree_node::TreeNode;
        let subquery = expr.exists(|e| {
            Ok(matches!(
                e,
                Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::OuterReferenceColumn(..)
            ))
        });
        if subquery.unwrap_or(false) {
            return Err(refuse::subquery(&sentence(expr)));
        }
        self.context.compile(expr, schema)
    }

    fn filter(&mut self, input: Built, predicate: &Expr) -> Result<Built> {
        if let Expr::Literal(datafusion::common::ScalarValue::Boolean(Some(true)), _) = predicate {
            return Ok(input);
        }
        let compiled = self.compile(predicate, &input.schema)?;
        let text = sentence(predicate);
        let node = self.add(NewNode {
            name: format!("filter {text}"),
            meaning: names::meaning(predicate),
            spec: OperatorSpec::Filter { predicate: compiled },
            inputs: Self::forward(&input),
            schema: arrow_schema(&input.schema),
            changelog: input.props.changelog,
            parallelism: input.props.parallelism,
            state_bound: bounds::STATELESS.to_owned(),
        });
        let props = Props { single_row: false, ..input.props };
        Ok(Built { node, schema: input.schema, props })
    }

    fn window(&mut self, window: &WindowNode) -> Result<Built> {
        let input = self.build(&window.input)?;
        let time = match &window.time {
            Expr::Column(column) => input.schema.index_of_column(column).map_err(crate::from_datafusion)?,
            other => return Err(SqlError::new(ErrorKind::INTERNAL, format!("{other} is not a column"))),
        };
        let schema = WindowNode::schema_over(&input.schema, &window.time).map_err(crate::from_datafusion)?;
        let spec = WindowSpec { time_column: time, size: window.size, slide: window.slide, offset: window.offset };
        let name = names::window(&spec, input.schema.field(time).name());
        let inputs = input.schema.fields().len();
        let key = input.props.key.clone().map(|mut key| {
            // A row of a hopping window comes once a window.
            if spec.slide != spec.size {
                key.push(inputs);
            }
            key
        });
        let node = self.add(NewNode {
            meaning: name.clone(),
            name,
            spec: OperatorSpec::WindowAssign(spec),
            inputs: Self::forward(&input),
            schema: arrow_schema(&schema),
            changelog: input.props.changelog,
            parallelism: input.props.parallelism,
            state_bound: bounds::STATELESS.to_owned(),
        });
        let time = input.props.time.windowed(time, inputs);
        Ok(Built { node, schema, props: Props { key, time, single_row: false, ..input.props } })
    }
}

/// The name that follows from what an operator does and reads.
fn identity<'u>(kind: &str, meaning: &str, inputs: impl Iterator<Item = &'u OperatorUid>) -> String {
    let mut text = format!("{kind}\n{meaning}");
    for input in inputs {
        text.push('\n');
        text.push_str(&input.0);
    }
    format!("{kind}-{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

/// The same operator twice in a query (a self-join): told apart by the order in which they stand in it.
fn unique(seen: &mut HashMap<String, usize>, name: String) -> OperatorUid {
    let times = seen.entry(name.clone()).and_modify(|n| *n += 1).or_insert(1);
    OperatorUid(if *times == 1 { name } else { format!("{name}-{times}") })
}

/// The schema without qualifiers, as batches have it.
pub(crate) fn arrow_schema(schema: &DFSchema) -> SchemaRef {
    Arc::new(schema.as_arrow().clone())
}

fn unplanned(plan: &LogicalPlan) -> SqlError {
    SqlError::new(
        ErrorKind::NOT_STREAMABLE,
        format!("\"{}\" is not available in continuous queries in this version", plan.display()),
    )
    .hint("SELECT, WHERE, GROUP BY, DISTINCT, UNION ALL, JOIN, TUMBLE and HOP are")
}
