use super::*;
use crate::graph::{Edge, JoinSpec, MaterializeSpec, Node};
use crate::operators::testing::{binary, col, lit, schema};
use crate::testing::{graph, int_values, ints, node, sink_spec, source_spec};
use datafusion::logical_expr::Operator as BinaryOperator;
use weir_storage::{key_group_of, owner_of};

fn edge(from: usize, exchange: Exchange) -> Edge {
    Edge { from, exchange }
}

fn materialize(key: Vec<usize>) -> OperatorSpec {
    OperatorSpec::Materialize(MaterializeSpec { relation: "v".into(), key, upsert: false, forward: false })
}

fn join() -> OperatorSpec {
    OperatorSpec::Join(JoinSpec { kind: JoinKind::Inner, on: vec![(0, 0)], filter: None, null_equals_null: false })
}

fn source(parallelism: u32) -> Node {
    node("source", source_spec("numbers"), parallelism, vec![])
}

/// source =exchange=> union ─forward─► last
fn line(exchange: Exchange, last: OperatorSpec, parallelism: u32) -> Graph {
    let union = node("union", OperatorSpec::Union, parallelism, vec![edge(0, exchange)]);
    let last = node("last", last, parallelism, vec![edge(1, Exchange::Forward)]);
    graph(vec![source(parallelism), union, last])
}

fn stored(from: &str, to: &str, to_subtask: u32, rows: &[i64]) -> Stored {
    let uid = |name: &str| OperatorUid(format!("uid-{name}"));
    let chunks = vec![ints(rows)];
    Stored { from: uid(from), from_subtask: Subtask(1), to: uid(to), to_subtask: Subtask(to_subtask), input: 0, chunks }
}

fn placed(graph: &Graph, stored: Vec<Stored>, former: u32) -> Vec<(NodeIndex, u32, Vec<i64>)> {
    let places = place(graph, "q", stored, |_| Some(former)).unwrap();
    let mut all: Vec<_> = places
        .into_iter()
        .map(|((node, subtask), rows)| {
            for (channel, _) in &rows {
                assert_eq!((channel.to.node, channel.to.subtask), (node, subtask));
                assert!(channel.from.subtask.0 < graph.nodes[channel.from.node].parallelism, "a sender that there is");
            }
            (node, subtask.0, rows.iter().flat_map(|(_, chunk)| int_values(chunk)).collect())
        })
        .collect();
    all.sort();
    all
}

fn owner(value: i64, parallelism: u32) -> u32 {
    let encoder = KeyEncoder::new(&[arrow::datatypes::DataType::Int64], 128).unwrap();
    let key = encoder.encode(&[ints(&[value]).batch().column(0).clone()]).unwrap();
    owner_of(key_group_of(key.key(0), 128), parallelism, 128).0
}

#[test]
fn with_the_same_parallelism_everything_stays() {
    let graph = line(Exchange::Rebalance, sink_spec(), 3);
    let rows = vec![stored("source", "union", 2, &[1, 2]), stored("source", "union", 0, &[3])];
    assert_eq!(placed(&graph, rows, 3), [(1, 0, vec![3]), (1, 2, vec![1, 2])]);
}

#[test]
fn rows_of_a_keyed_edge_go_to_the_owner_of_their_key_group() {
    let values: Vec<i64> = (0..50).collect();
    for (graph, from, to, at) in [
        (line(Exchange::Hash(vec![0]), sink_spec(), 3), "source", "union", 1),
        // The union's rows are parted by the key that was exchanged before it.
        (line(Exchange::Hash(vec![0]), materialize(vec![0]), 3), "union", "last", 2),
        (line(Exchange::Hash(vec![0]), sink_spec(), 3), "union", "last", 2),
    ] {
        let rows = vec![stored(from, to, 0, &values[..20]), stored(from, to, 1, &values[20..])];
        let expected: Vec<_> =
            (0..3).map(|p| (at, p, values.iter().copied().filter(|v| owner(*v, 3) == p).collect::<Vec<_>>())).collect();
        assert_eq!(placed(&graph, rows, 2), expected);
    }
}

#[test]
fn where_no_key_matters_all_rows_of_a_former_subtask_stay_together() {
    let graph = line(Exchange::Rebalance, sink_spec(), 2);
    let rows = (0..3).map(|to| stored("union", "last", to, &[i64::from(to), 10])).collect();
    assert_eq!(placed(&graph, rows, 3), [(2, 0, vec![0, 10, 2, 10]), (2, 1, vec![1, 10])]);
}

#[test]
fn barriers_overtake_where_there_is_a_rule() {
    let may = |graph: &Graph, to, input| may_be_overtaken(graph, to, input);
    let keyed = line(Exchange::Hash(vec![0]), materialize(vec![0]), 2);
    assert!(may(&keyed, 1, 0) && may(&keyed, 2, 0));
    let unkeyed = line(Exchange::Rebalance, sink_spec(), 2);
    assert!(may(&unkeyed, 1, 0) && may(&unkeyed, 2, 0));
    let lost = line(Exchange::Rebalance, materialize(vec![0]), 2);
    assert!(!may(&lost, 1, 0) && !may(&lost, 2, 0), "state by key behind it, and no key to part by");
    let grows = line(Exchange::Rebalance, materialize(vec![]), 2);
    assert!(may(&grows, 1, 0), "rows of a result that only grows lie anywhere");
    let error = place(&lost, "q", vec![stored("union", "last", 0, &[1])], |_| Some(3)).unwrap_err().to_string();
    assert!(error.contains("with the parallelism that it had") && error.contains("unaligned.forced"), "{error}");
    assert_eq!(placed(&lost, vec![stored("union", "last", 1, &[1])], 2), [(2, 1, vec![1])], "forced, and not rescaled");
}

#[test]
fn a_projection_keeps_the_key_that_it_passes_on() {
    let wide = schema("k bigint, v bigint");
    let column = |name: &str| col(name, &wide);
    let sum = binary(column("k"), BinaryOperator::Plus, lit(1i64), &wide);
    let projected = |exprs: Vec<crate::graph::Expr>| {
        let mut source = source(2);
        source.schema = wide.clone();
        let project = node("project", OperatorSpec::Project { exprs }, 2, vec![edge(0, Exchange::Hash(vec![0]))]);
        graph(vec![source, project, node("last", join(), 2, vec![edge(1, Exchange::Forward)])])
    };
    assert_eq!(partition_of(&projected(vec![column("v"), column("k")]), 1), Some(vec![1]));
    assert_eq!(partition_of(&projected(vec![column("v"), sum]), 1), None);
    assert_eq!(partition_of(&projected(vec![column("v"), column("k")]), 2), Some(vec![0]), "a join's key is its own");
}

#[test]
fn rows_for_an_edge_that_is_gone_are_not_forgotten_silently() {
    let graph = line(Exchange::Hash(vec![0]), sink_spec(), 2);
    let error = |rows| place(&graph, "q", vec![rows], |_| Some(2)).unwrap_err().to_string();
    assert!(error(stored("filter", "union", 0, &[1])).contains("which the query no longer has"));
    assert!(error(stored("source", "last", 0, &[1])).contains("now reads from elsewhere"));
}
