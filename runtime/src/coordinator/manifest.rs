//! From the parts that tasks acknowledged to a manifest: pure.

use std::collections::BTreeMap;

use weir_storage::checkpoint::{Committable, Durations, MANIFEST_FORMAT};
use weir_storage::{CheckpointId, Epoch, Generation, JobId, Manifest, OperatorState, OperatorUid, SubtaskState};

use crate::build::split_tables;
use crate::error::Result;
use crate::graph::{Graph, NodeIndex};
use crate::run::Ack;
use crate::source::SplitState;

/// What a manifest says besides the operators' state.
pub(crate) struct About<'a> {
    pub(crate) job: &'a JobId,
    pub(crate) sql: &'a str,
    pub(crate) graph: &'a Graph,
    pub(crate) generation: Generation,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) epoch: Epoch,
    pub(crate) unaligned: bool,
    pub(crate) triggered_at_ms: i64,
    pub(crate) completed_at_ms: i64,
    pub(crate) upload_ms: u64,
    pub(crate) last: bool,
    /// What sinks prepared until this checkpoint stands in a manifest already.
    pub(crate) committed: Option<CheckpointId>,
}

/// The manifest of a checkpoint whose parts are all there.
pub(crate) fn assemble(about: &About<'_>, acks: Vec<Ack>) -> Manifest {
    let longest =
        |time: fn(&Ack) -> std::time::Duration| acks.iter().map(time).max().unwrap_or_default().as_millis() as u64;
    let (alignment_ms, snapshot_ms) = (longest(|ack| ack.alignment), longest(|ack| ack.snapshot));
    let mut states: BTreeMap<NodeIndex, Vec<SubtaskState>> = BTreeMap::new();
    for part in acks.into_iter().flat_map(|ack| ack.parts) {
        let mut state = part.state;
        let fresh = part.committables.into_iter().filter(|(prepared, _)| Some(*prepared) > about.committed);
        state.committables = fresh.flat_map(|(_, bytes)| bytes).map(|bytes| Committable(bytes.into())).collect();
        states.entry(part.node).or_default().push(state);
    }
    let operators = states.into_iter().map(|(node, mut subtasks)| {
        let node = &about.graph.nodes[node];
        subtasks.sort_by_key(|state| state.subtask);
        OperatorState {
            uid: node.uid.clone(),
            name: node.name.clone(),
            parallelism: node.parallelism,
            max_parallelism: about.graph.max_parallelism,
            subtasks,
        }
    });
    Manifest {
        format: MANIFEST_FORMAT,
        job: about.job.clone(),
        checkpoint: about.checkpoint,
        epoch: about.epoch,
        unaligned: about.unaligned,
        generation: about.generation,
        triggered_at_ms: about.triggered_at_ms,
        completed_at_ms: about.completed_at_ms,
        last: about.last,
        query_sql: about.sql.to_owned(),
        durations: Durations { alignment_ms, snapshot_ms, upload_ms: about.upload_ms },
        savepoint: None,
        operators: operators.collect(),
    }
}

/// Where a manifest has the splits of a source; none if it cannot be told, or the source was not there yet.
pub(crate) fn splits_of(manifest: &Manifest, source: &OperatorUid) -> Vec<SplitState> {
    let operators = manifest.operators.iter().filter(|operator| operator.uid == *source);
    let tables: Result<Vec<_>> = operators.map(split_tables).collect();
    let tables = tables.unwrap_or_default().into_iter().flatten();
    tables.flat_map(|table| table.splits).map(|split| split.state).collect()
}

/// What each sink of a manifest has to commit.
pub(crate) fn committables(manifest: &Manifest, graph: &Graph) -> BTreeMap<NodeIndex, Vec<Vec<u8>>> {
    let mut of_sinks = BTreeMap::new();
    for operator in &manifest.operators {
        let bytes: Vec<_> =
            operator.subtasks.iter().flat_map(|state| &state.committables).map(|bytes| bytes.0.to_vec()).collect();
        let node = graph.nodes.iter().position(|node| node.uid == operator.uid);
        if let (Some(node), false) = (node, bytes.is_empty()) {
            of_sinks.insert(node, bytes);
        }
    }
    of_sinks
}
