//! The asynchronous part of a snapshot: makes it durable, then acknowledges.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use futures::poll;
use weir_storage::{CheckpointId, CheckpointWriter, PendingSnapshot, Segment, SegmentBody, SubtaskState};

use crate::build::SubtaskMetrics;
use crate::error::Result;
use crate::graph::NodeIndex;
use crate::in_flight::{InFlight, encode};
use crate::rejects::{PendingRejects, RejectLedger, Snapshot};
use crate::run::{Ack, Part, Run, TaskEvent, TaskId, TaskName};

/// One operator's part, taken but not yet durable.
pub(crate) struct PendingPart {
    pub(crate) operator_state: Vec<u8>,
    /// Rejected rows that no complete checkpoint holds, and the ledger that wants to know when they are durable.
    rejected: Option<(Arc<RejectLedger>, PendingRejects)>,
    pub(crate) committables: Vec<(CheckpointId, Vec<Vec<u8>>)>,
    pub(crate) state: SubtaskState,
}

impl PendingPart {
    pub(crate) fn new(state: SubtaskState) -> Self {
        Self { operator_state: Vec::new(), rejected: None, committables: Vec::new(), state }
    }

    /// Takes in what the operator has counted and rejected.
    pub(crate) fn report(&mut self, report: &SubtaskMetrics, incremental: bool) -> Result<()> {
        self.state.counts = report.metrics.counts();
        match report.rejects.snapshot(incremental)? {
            Snapshot::Nothing => {}
            Snapshot::Same(segment) => self.state.rejected = Some(segment),
            Snapshot::New(pending) => self.rejected = Some((Arc::clone(&report.rejects), pending)),
        }
        Ok(())
    }

    /// What is to become segments.
    fn bodies(&self) -> impl Iterator<Item = (Place, SegmentBody)> {
        let state = Some(&self.operator_state).filter(|state| !state.is_empty());
        let rejected = self.rejected.as_ref().map(|(_, pending)| &pending.bytes);
        let places = [(Place::OperatorState, state), (Place::Rejected, rejected)];
        places.into_iter().filter_map(|(place, bytes)| Some((place, SegmentBody::from(bytes?.clone()))))
    }

    fn written(&mut self, checkpoint: CheckpointId, place: Place, segment: Segment) {
        match place {
            Place::OperatorState => self.state.operator_state = Some(segment),
            Place::Rejected => {
                if let Some((ledger, pending)) = &self.rejected {
                    ledger.written(checkpoint, pending.version, segment.clone());
                }
                self.state.rejected = Some(segment);
            }
        }
    }
}

/// Where a segment belongs in an operator's part.
#[derive(Debug, Clone, Copy)]
enum Place {
    OperatorState,
    Rejected,
}

/// One task subtask's part, taken but not yet durable.
pub(crate) struct PendingSnapshotOf {
    pub(crate) checkpoint: CheckpointId,
    pub(crate) task: TaskId,
    pub(crate) name: TaskName,
    /// In whose part the rows in flight stand.
    pub(crate) first: NodeIndex,
    pub(crate) alignment: Duration,
    pub(crate) snapshot: Duration,
    pub(crate) parts: BTreeMap<NodeIndex, PendingPart>,
    pub(crate) keyed: Option<(NodeIndex, PendingSnapshot)>,
    /// What the barrier overtook, in order.
    pub(crate) in_flight: Vec<InFlight>,
}

impl PendingSnapshotOf {
    /// Uploads, and tells the driver how that went.
    pub(crate) async fn upload(self, writer: CheckpointWriter, run: Arc<Run>) {
        let (checkpoint, task, name) = (self.checkpoint, self.task, self.name.clone());
        match self.try_upload(writer, &run).await {
            Ok(ack) => run.tell(TaskEvent::Acked(Box::new(ack))),
            Err(error) => {
                let reason = format!("task \"{name}\" could not write its state: {error}");
                run.tell(TaskEvent::Declined { checkpoint, task, reason });
            }
        }
    }

    async fn try_upload(self, writer: CheckpointWriter, run: &Run) -> Result<Ack> {
        run.points.hit("before-upload")?;
        let since = Instant::now();
        let bodies = self.parts.iter().flat_map(|(node, part)| part.bodies().map(move |body| (*node, body)));
        let segments: Vec<_> = bodies
            .map(|(node, (place, body))| {
                let segment = writer.segment(body);
                async move { Ok::<_, weir_storage::StorageError>((node, place, segment.await?)) }
            })
            .collect();
        let overtaken_bytes = self.in_flight.iter().map(InFlight::bytes).sum::<u64>();
        let in_flight = match encode(&self.in_flight, &run.uids)? {
            bytes if bytes.is_empty() => None,
            bytes => Some(writer.in_flight_segment(bytes.into())),
        };
        let in_flight = async {
            match in_flight {
                Some(segment) => segment.await.map(Some),
                None => Ok(None),
            }
        };
        let (host, keyed) = self.keyed.unzip();
        let keyed = async {
            match keyed {
                Some(keyed) => keyed.upload(&writer).await.map(Some),
                None => Ok(None),
            }
        };
        let mut durable = pin!(async { tokio::try_join!(keyed, in_flight, try_join_all(segments)) });
        // The first poll hands everything over; only then is this task done with the merged file.
        let first = poll!(durable.as_mut());
        writer.contributor_done().await;
        let (keyed, in_flight, segments) = match first {
            std::task::Poll::Ready(result) => result?,
            std::task::Poll::Pending => durable.await?,
        };
        let mut parts = self.parts;
        for (node, place, segment) in segments {
            if let Some(part) = parts.get_mut(&node) {
                part.written(self.checkpoint, place, segment);
            }
        }
        if let (Some(host), Some(keyed)) = (host, keyed) {
            let empty = || PendingPart::new(SubtaskState::empty(self.name.subtask));
            parts.entry(host).or_insert_with(empty).state.keyed = Some(keyed);
        }
        let empty = || PendingPart::new(SubtaskState::empty(self.name.subtask));
        let alignment_ms = self.alignment.as_millis() as u64;
        if in_flight.is_some() || alignment_ms > 0 {
            let first = &mut parts.entry(self.first).or_insert_with(empty).state;
            (first.in_flight, first.overtaken_bytes, first.alignment_ms) = (in_flight, overtaken_bytes, alignment_ms);
        }
        run.points.hit("after-upload")?;
        let (query, checkpoint, ms) = (&run.query, self.checkpoint, since.elapsed().as_millis() as u64);
        tracing::debug!(%query, %checkpoint, task = %self.name, ms, alignment_ms, overtaken_bytes, "uploaded");
        let parts =
            parts.into_iter().map(|(node, part)| Part { node, state: part.state, committables: part.committables });
        let (task, alignment, snapshot) = (self.task, self.alignment, self.snapshot);
        Ok(Ack { checkpoint, task, alignment, snapshot, parts: parts.collect() })
    }
}
