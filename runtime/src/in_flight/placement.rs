//! Who takes up rows in flight after a restart: pure.
//!
//! | edge                | after a change of parallelism                                                          |
//! |---------------------|----------------------------------------------------------------------------------------|
//! | hash                | each row to the owner of its key group                                                   |
//! | forward, keyed      | the same: its rows are parted by a key that was exchanged further up                     |
//! | forward, rebalance  | all rows of former subtask `i` to subtask `i mod p`: nothing behind it depends on which  |
//!
//! With an unchanged number of receivers every row goes where it would have gone. An edge of the last kind behind which
//! state is kept by key has no rule that would be right; barriers do not overtake on it.

use std::collections::HashMap;

use datafusion::physical_expr::expressions::Column;
use weir_storage::{KeyEncoder, OperatorUid, Subtask};

use super::Stored;
use crate::channel::{ChannelId, Endpoint};
use crate::error::{Result, RuntimeError};
use crate::exchange::part;
use crate::graph::{Exchange, Graph, JoinKind, NodeIndex, OperatorSpec};
use crate::message::Chunk;

/// Rows that one subtask of one operator takes up, in order.
pub(crate) type Place = HashMap<(NodeIndex, Subtask), Vec<(ChannelId, Chunk)>>;

/// The rows of a checkpoint by who takes them up. `parallelism` is what the checkpoint says of each operator.
pub(crate) fn place(
    graph: &Graph,
    query: &str,
    stored: Vec<Stored>,
    parallelism: impl Fn(&OperatorUid) -> Option<u32>,
) -> Result<Place> {
    let refuse = |reason: String| RuntimeError::CannotStart { query: query.to_owned(), reason };
    let mut places = Place::new();
    for rows in stored {
        let node = |uid: &OperatorUid| graph.nodes.iter().position(|node| node.uid == *uid);
        let (Some(from), Some(to)) = (node(&rows.from), node(&rows.to)) else {
            return Err(refuse(format!(
                "its checkpoint holds rows on their way from \"{}\" to \"{}\", which the query no longer has; drop and \
                 create the query to begin without them",
                rows.from, rows.to
            )));
        };
        let Some(edge) = graph.nodes[to].inputs.get(rows.input).filter(|edge| edge.from == from) else {
            return Err(refuse(format!(
                "its checkpoint holds rows on their way from \"{}\" to input {} of \"{}\", which now reads from \
                 elsewhere; drop and create the query to begin without them",
                rows.from, rows.input, rows.to
            )));
        };
        let now = graph.nodes[to].parallelism;
        let channel = |subtask: Subtask| {
            let sender = Subtask(rows.from_subtask.0 % graph.nodes[from].parallelism.max(1));
            let from = Endpoint { node: from, subtask: sender };
            ChannelId { from, to: Endpoint { node: to, subtask }, input: rows.input }
        };
        let keep = parallelism(&rows.to) == Some(now);
        let columns = match &edge.exchange {
            Exchange::Hash(columns) => Some(columns.clone()),
            Exchange::Forward => partition_of(graph, from),
            Exchange::Rebalance => None,
        };
        match columns.filter(|_| !keep) {
            Some(columns) => {
                let schema = graph.nodes[from].schema.project(&columns)?;
                let types: Vec<_> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
                let encoder = KeyEncoder::new(&types, graph.max_parallelism)?;
                for chunk in &rows.chunks {
                    for (subtask, part) in part(chunk, &columns, &encoder, now, graph.max_parallelism)? {
                        places.entry((to, subtask)).or_default().push((channel(subtask), part));
                    }
                }
            }
            None if keep || !keyed_behind(graph, to) => {
                let subtask = if keep { rows.to_subtask } else { Subtask(rows.to_subtask.0 % now.max(1)) };
                let chunks = rows.chunks.iter().map(|chunk| (channel(subtask), chunk.clone()));
                places.entry((to, subtask)).or_default().extend(chunks);
            }
            None => {
                let (from, to) = (&graph.nodes[from].name, &graph.nodes[to].name);
                return Err(refuse(format!(
                    "its checkpoint holds rows on their way from \"{from}\" to \"{to}\", which keep their place only with \
                     the parallelism that it had; start it with that one and stop it with a checkpoint, which holds no \
                     such rows, or leave execution.checkpointing.unaligned.forced off"
                )));
            }
        }
    }
    Ok(places)
}

/// Whether a barrier may overtake rows on this edge: whether there is a rule for who takes them up after a change of
/// parallelism.
pub(crate) fn may_be_overtaken(graph: &Graph, to: NodeIndex, input: usize) -> bool {
    let Some(edge) = graph.nodes[to].inputs.get(input) else { return false };
    match &edge.exchange {
        Exchange::Hash(_) => true,
        Exchange::Forward => partition_of(graph, edge.from).is_some() || !keyed_behind(graph, to),
        Exchange::Rebalance => !keyed_behind(graph, to),
    }
}

/// The columns of an operator's output whose key group tells which subtask emits a row; none if it cannot be told.
fn partition_of(graph: &Graph, node: NodeIndex) -> Option<Vec<usize>> {
    let of = &graph.nodes[node];
    let incoming = || match &of.inputs[..] {
        [edge] => match &edge.exchange {
            Exchange::Hash(columns) => Some(columns.clone()),
            Exchange::Forward => partition_of(graph, edge.from),
            Exchange::Rebalance => None,
        },
        _ => None,
    };
    match &of.spec {
        OperatorSpec::Source(_) => None,
        OperatorSpec::Aggregate(spec) => Some((0..spec.group.len()).collect()),
        OperatorSpec::Join(spec) => match spec.kind {
            JoinKind::Inner | JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti => {
                Some(spec.on.iter().map(|(left, _)| *left).collect())
            }
            JoinKind::Right => {
                let width = graph.nodes[of.inputs.first()?.from].schema.fields().len();
                Some(spec.on.iter().map(|(_, right)| width + right).collect())
            }
            // A padded row stands with its own side's key.
            JoinKind::Full => None,
        },
        OperatorSpec::Project { exprs } => {
            let place = |column: usize| {
                exprs.iter().position(|expr| expr.downcast_ref::<Column>().is_some_and(|found| found.index() == column))
            };
            incoming()?.into_iter().map(place).collect()
        }
        OperatorSpec::Filter { .. }
        | OperatorSpec::WindowAssign(_)
        | OperatorSpec::Union
        | OperatorSpec::Materialize(_)
        | OperatorSpec::Sink(_) => incoming(),
    }
}

/// Whether this operator, or one that its rows reach without an exchange, keeps state by key.
fn keyed_behind(graph: &Graph, node: NodeIndex) -> bool {
    let keyed = match &graph.nodes[node].spec {
        OperatorSpec::Aggregate(_) | OperatorSpec::Join(_) => true,
        // Rows of a result that only grows lie anywhere.
        OperatorSpec::Materialize(spec) => !spec.key.is_empty() || graph.nodes[node].changelog,
        _ => false,
    };
    let reads = |other: &NodeIndex| {
        graph.nodes[*other].inputs.iter().any(|edge| edge.from == node && edge.exchange == Exchange::Forward)
    };
    keyed || (node + 1..graph.nodes.len()).filter(reads).any(|other| keyed_behind(graph, other))
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
