//! A graph as a tree for people: operators from the result down to the sources, with what each edge and state is.

use std::fmt::Write;

use weir_runtime::graph::{Emit, Exchange, Graph, NodeIndex, OperatorSpec};

/// Draws a graph, one operator a line:
///
/// ```text
/// materialize by_carrier  [key carrier; changelog; the result: one row per carrier]
/// └─ project carrier, n
///    └─ aggregate by carrier: count(*)  [changelog; unbounded: one row per carrier]
///       └─ hash(carrier) ← source flights  [append-only]
/// ```
pub fn explain(graph: &Graph) -> String {
    let mut text = String::new();
    let read: Vec<NodeIndex> = graph.nodes.iter().flat_map(|n| n.inputs.iter().map(|e| e.from)).collect();
    for root in (0..graph.nodes.len()).filter(|i| !read.contains(i)) {
        line(graph, root, "", "", None, &mut text);
    }
    text
}

fn line(graph: &Graph, index: NodeIndex, first: &str, rest: &str, exchange: Option<&Exchange>, text: &mut String) {
    let Some(node) = graph.nodes.get(index) else { return };
    let exchanged = exchange.map_or_else(String::new, |e| exchange_text(graph, index, e));
    let _ = writeln!(text, "{first}{exchanged}{}  [{}]", node.name, traits(graph, index).join("; "));
    for (i, edge) in node.inputs.iter().enumerate() {
        let last = i + 1 == node.inputs.len();
        let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        line(graph, edge.from, &format!("{rest}{branch}"), &format!("{rest}{below}"), Some(&edge.exchange), text);
    }
}

fn exchange_text(graph: &Graph, from: NodeIndex, exchange: &Exchange) -> String {
    match exchange {
        Exchange::Forward => String::new(),
        Exchange::Rebalance => "rebalance ← ".to_owned(),
        Exchange::Hash(columns) if columns.is_empty() => "all to one ← ".to_owned(),
        Exchange::Hash(columns) => format!("hash({}) ← ", names(graph, from, columns).join(", ")),
    }
}

fn names(graph: &Graph, node: NodeIndex, columns: &[usize]) -> Vec<String> {
    let fields = graph.nodes.get(node).map(|n| n.schema.fields());
    let name = |i: &usize| fields.and_then(|f| f.get(*i)).map_or_else(|| format!("#{i}"), |f| f.name().clone());
    columns.iter().map(name).collect()
}

fn traits(graph: &Graph, index: NodeIndex) -> Vec<String> {
    let mut traits = Vec::new();
    let Some(node) = graph.nodes.get(index) else { return traits };
    match &node.spec {
        OperatorSpec::Source(source) => {
            if let Some(watermark) = &source.watermark {
                let told = if watermark.expr.is_none() { " from its log" } else { "" };
                traits.push(format!("watermark on {}{told}", names(graph, index, &[watermark.column]).join("")));
            }
        }
        OperatorSpec::Aggregate(aggregate) => traits.push(
            match aggregate.emit {
                Emit::Changes => "emits changes",
                Emit::OnWindowClose => "emits when the window closes",
            }
            .to_owned(),
        ),
        OperatorSpec::Materialize(spec) => traits.push(match names(graph, index, &spec.key) {
            key if key.is_empty() => "no key".to_owned(),
            key => format!("key {}", key.join(", ")),
        }),
        _ => {}
    }
    traits.push(if node.changelog { "changelog" } else { "append-only" }.to_owned());
    if node.spec.is_stateful() {
        traits.push(node.state_bound.clone());
    }
    traits.push(format!("×{}", node.parallelism));
    traits
}
