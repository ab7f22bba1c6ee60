//! Which operators run in one task: pure.
//!
//! An operator joins the task of the one before it when it has one input, that input is a forward edge, and nobody else
//! reads from there. Everything else begins a task of its own.

use crate::error::{Result, RuntimeError};
use crate::graph::{Exchange, Graph, NodeIndex, OperatorSpec};

/// A job's graph cut into tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// In the order of their first operators, which is topological.
    pub(crate) tasks: Vec<TaskPlan>,
    /// The task of each operator.
    pub(crate) task_of: Vec<usize>,
}

/// Operators that run as one, in `parallelism` instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskPlan {
    /// In order; not empty.
    pub(crate) nodes: Vec<NodeIndex>,
    pub(crate) parallelism: u32,
}

impl TaskPlan {
    pub(crate) fn first(&self) -> NodeIndex {
        self.nodes.first().copied().unwrap_or_default()
    }

    /// Names of its operators, for people.
    pub(crate) fn name(&self, graph: &Graph) -> String {
        self.nodes.iter().map(|node| graph.nodes[*node].name.as_str()).collect::<Vec<_>>().join(" -> ")
    }
}

/// Cuts `graph` into tasks, or says what is wrong with it.
pub(crate) fn plan(graph: &Graph, query: &str) -> Result<Plan> {
    check(graph, query)?;
    let mut readers = vec![0usize; graph.nodes.len()];
    for edge in graph.nodes.iter().flat_map(|node| &node.inputs) {
        readers[edge.from] += 1;
    }
    let mut tasks: Vec<TaskPlan> = Vec::new();
    let mut task_of = Vec::with_capacity(graph.nodes.len());
    for (index, node) in graph.nodes.iter().enumerate() {
        let joins = match &node.inputs[..] {
            [edge] if edge.exchange == Exchange::Forward && readers[edge.from] == 1 => Some(task_of[edge.from]),
            _ => None,
        };
        let task: usize = match joins {
            Some(task) => task,
            None => {
                tasks.push(TaskPlan { nodes: Vec::new(), parallelism: node.parallelism });
                tasks.len() - 1
            }
        };
        tasks[task].nodes.push(index);
        task_of.push(task);
    }
    Ok(Plan { tasks, task_of })
}

fn check(graph: &Graph, query: &str) -> Result<()> {
    let refuse = |reason: String| Err(RuntimeError::CannotStart { query: query.to_owned(), reason });
    if graph.nodes.is_empty() {
        return refuse("its graph has no operators".to_owned());
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let name = &node.name;
        if node.parallelism == 0 || node.parallelism > u32::from(graph.max_parallelism) {
            let (given, max) = (node.parallelism, graph.max_parallelism);
            return refuse(format!("operator \"{name}\" has parallelism {given}; it must be from 1 to {max}"));
        }
        let is_source = matches!(node.spec, OperatorSpec::Source(_));
        if is_source != node.inputs.is_empty() {
            let inputs = node.inputs.len();
            return refuse(format!("operator \"{name}\" has {inputs} inputs: sources have none, all others some"));
        }
        if graph.nodes[..index].iter().any(|other| other.uid == node.uid) {
            return refuse(format!("two operators have the uid \"{}\", by which state is found again", node.uid));
        }
        for edge in &node.inputs {
            let Some(from) = graph.nodes[..index].get(edge.from) else {
                return refuse(format!("operator \"{name}\" reads from one that does not come before it"));
            };
            if matches!(from.spec, OperatorSpec::Sink(_)) {
                return refuse(format!("operator \"{name}\" reads from sink \"{}\", which emits nothing", from.name));
            }
            if edge.exchange == Exchange::Forward && from.parallelism != node.parallelism {
                let (left, right) = (from.parallelism, node.parallelism);
                let from = &from.name;
                return refuse(format!("a forward edge joins \"{from}\" ({left} instances) to \"{name}\" ({right})"));
            }
            if let Exchange::Hash(columns) = &edge.exchange
                && let Some(column) = columns.iter().find(|column| **column >= from.schema.fields().len())
            {
                return refuse(format!("an edge into \"{name}\" is parted by column {column}, which does not exist"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{graph, union_node};

    fn chains(edges: &[(u32, &[(usize, Exchange)])]) -> Result<Vec<Vec<NodeIndex>>> {
        let nodes =
            edges.iter().enumerate().map(|(index, (parallelism, inputs))| union_node(index, *parallelism, inputs));
        Ok(plan(&graph(nodes.collect()), "q")?.tasks.into_iter().map(|task| task.nodes).collect())
    }

    #[test]
    fn forward_edges_are_chained_and_others_are_not() {
        let hash = Exchange::Hash(vec![0]);
        let found =
            chains(&[(2, &[]), (2, &[(0, Exchange::Forward)]), (2, &[(1, hash)]), (2, &[(2, Exchange::Forward)])]);
        assert_eq!(found.unwrap(), [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn two_readers_or_two_inputs_break_a_chain() {
        let forward = |from| (from, Exchange::Forward);
        let found = chains(&[(1, &[]), (1, &[forward(0)]), (1, &[forward(0)]), (1, &[forward(1), forward(2)])]);
        assert_eq!(found.unwrap(), [vec![0], vec![1], vec![2], vec![3]]);
    }

    #[test]
    fn what_cannot_run_is_refused_with_a_reason() {
        let reason = |edges: &[(u32, &[(usize, Exchange)])]| chains(edges).unwrap_err().to_string();
        assert!(reason(&[(1, &[]), (2, &[(0, Exchange::Forward)])]).contains("1 instances"));
        assert!(reason(&[(0, &[])]).contains("must be from 1 to 128"));
        assert!(reason(&[(1, &[]), (1, &[(1, Exchange::Rebalance)])]).contains("does not come before"));
        assert!(reason(&[(1, &[]), (1, &[(0, Exchange::Hash(vec![9]))])]).contains("column 9"));
        assert!(reason(&[]).contains("no operators"));
    }
}
