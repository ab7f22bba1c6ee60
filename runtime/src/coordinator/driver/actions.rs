//! What the coordinator says is to be done, done.

use std::sync::Arc;
use std::time::Instant;

use weir_storage::{CheckpointId, Manifest, MergeOptions};

use super::super::manifest::{About, assemble, splits_of};
use super::super::{Action, Kind, Ticket};
use super::{Collecting, Done, Driver, Outcome, Reply, commit};
use crate::error::RuntimeError;
use crate::job::{CheckpointState, PinnedCheckpoint};
use crate::message::{Alignment, Barrier};
use crate::options::{CheckpointMode, CheckpointOptions};
use crate::run::Control;
use crate::supervisor::{Lineage, elapsed_ms, now_ms};

impl Driver {
    pub(super) async fn act(&mut self, action: Action, lineage: &mut Lineage) -> Option<Outcome> {
        match action {
            Action::Trigger { checkpoint, kind } => self.trigger(checkpoint, kind, lineage),
            Action::WriteManifest { checkpoint, kind } => self.write_manifest(checkpoint, kind),
            Action::Commit { checkpoint } => self.commit(checkpoint),
            Action::Complete { checkpoint, kind, tickets } => self.complete(checkpoint, kind, &tickets),
            Action::Abort { checkpoint, reason, tickets } => self.abort(checkpoint, &reason, &tickets).await,
            Action::CleanUp { retained, in_progress } => {
                // What is being copied stays until a later clean-up.
                let pinned = self.services.pins.of(&self.shared.spec.id);
                self.retained.retain(|id, _| retained.contains(id) || pinned.contains(id));
                self.clean_up(self.retained.keys().copied().collect(), in_progress);
            }
            Action::Fail { reason } => {
                return Some(Outcome::Failed(RuntimeError::Checkpoint { query: self.query().to_owned(), reason }));
            }
            Action::End { kind: Kind::Final, .. } => return Some(Outcome::Finished),
            Action::End { .. } => return Some(Outcome::Stopped),
        }
        None
    }

    fn trigger(&mut self, checkpoint: CheckpointId, kind: Kind, lineage: &mut Lineage) {
        let options = &self.shared.spec.checkpointing;
        let alignment = alignment(options, kind);
        let overtakes_at = Instant::now() + options.aligned_timeout;
        let merge = MergeOptions {
            merging: options.merging,
            inline_threshold: options.inline_threshold,
            max_file_size: options.max_file_size,
            in_flight_sharers: options.in_flight_sharers,
            ..MergeOptions::default()
        };
        self.run.open(self.store.begin(checkpoint, merge, self.tasks.len()), overtakes_at);
        let epoch = match alignment {
            // It ends no epoch; its number only says which ones are before it.
            Alignment::Unaligned => lineage.take_epoch(),
            Alignment::Aligned | Alignment::AtLeastOnce => self.next_epoch(lineage),
        };
        let triggered_at_ms = now_ms();
        self.shared.record(checkpoint, triggered_at_ms, CheckpointState::InProgress);
        let unaligned = alignment == Alignment::Unaligned;
        let collecting = Collecting { epoch, unaligned, triggered_at_ms, since: Instant::now(), acks: Vec::new() };
        self.collecting.insert(checkpoint, collecting);
        let query = self.query();
        tracing::info!(%query, %checkpoint, %epoch, ?kind, ?alignment, "checkpoint triggered");
        self.to_sources(&Control::Barrier(Barrier {
            checkpoint,
            epoch,
            triggered_at_ms,
            alignment,
            last: kind.is_last(),
        }));
    }

    fn write_manifest(&mut self, checkpoint: CheckpointId, kind: Kind) {
        let Some(collecting) = self.collecting.get_mut(&checkpoint) else { return };
        let acks = std::mem::take(&mut collecting.acks);
        let writer = self.run.writer(checkpoint);
        let manifest = assemble(
            &About {
                job: &self.shared.spec.id,
                sql: &self.shared.spec.sql,
                graph: &self.shared.spec.graph,
                generation: self.services.fence.generation(),
                checkpoint,
                epoch: collecting.epoch,
                unaligned: collecting.unaligned,
                triggered_at_ms: collecting.triggered_at_ms,
                completed_at_ms: now_ms(),
                upload_ms: writer.map_or(0, |writer| writer.stats().upload_ms),
                last: kind == Kind::Final,
                committed: self.retained.keys().next_back().copied(),
            },
            acks,
        );
        let (store, points) = (self.store.clone(), self.run.points.clone());
        self.io.spawn(async move {
            let written = async {
                points.hit("before-manifest")?;
                let info = store.complete(&manifest).await?;
                points.hit("after-manifest")?;
                Ok((Arc::new(manifest), info))
            };
            Done::Manifest(checkpoint, written.await)
        });
    }

    fn commit(&mut self, checkpoint: CheckpointId) {
        let Some(manifest) = self.retained.get(&checkpoint).cloned() else { return };
        let (committers, shared) = (Arc::clone(&self.committers), Arc::clone(&self.shared));
        let points = self.run.points.clone();
        self.io.spawn(async move {
            let since = Instant::now();
            let mut committers = committers.lock().await;
            let committed = commit(&mut committers, &manifest, &shared.spec.graph, &points).await;
            Done::Committed(checkpoint, committed.map(|()| since.elapsed()))
        });
    }

    fn complete(&mut self, checkpoint: CheckpointId, kind: Kind, tickets: &[Ticket]) {
        self.run.close(checkpoint);
        self.to_all(&Control::Completed(checkpoint));
        let collected = self.collecting.remove(&checkpoint);
        let Some(info) = self.infos.remove(&checkpoint) else { return };
        let ms = collected.map_or(0, |collected| elapsed_ms(collected.since));
        let (query, url, note) = (self.query(), &info.url, info.note.as_deref().unwrap_or(""));
        let (inline, new, shared) = (info.inline_bytes, info.new_bytes, info.shared_bytes);
        tracing::info!(
            %query, %checkpoint, url, ms, alignment_ms = info.alignment_ms, snapshot_ms = info.snapshot_ms,
            upload_ms = info.upload_ms, commit_ms = info.commit_ms, inline, new, shared, note, "checkpoint complete"
        );
        self.shared.record(checkpoint, info.triggered_at_ms, CheckpointState::Completed(info.clone()));
        for ticket in tickets {
            match self.replies.remove(ticket) {
                Some(Reply::Checkpoint(reply)) => {
                    let pin = self.services.pins.pin(&self.shared.spec.id, checkpoint);
                    let _ = reply.send(Ok(PinnedCheckpoint { info: info.clone(), pin }));
                }
                Some(Reply::Stop(reply)) => drop(reply.send(Ok(Some(info.clone())))),
                None => {}
            }
        }
        if kind == Kind::Final {
            for reply in std::mem::take(&mut self.draining) {
                let _ = reply.send(Ok(Some(info.clone())));
            }
        }
    }

    async fn abort(&mut self, checkpoint: CheckpointId, reason: &str, tickets: &[Ticket]) {
        if let Some(writer) = self.run.close(checkpoint) {
            writer.abort(reason).await;
        }
        self.to_all(&Control::Aborted(checkpoint));
        let triggered_at_ms = self.collecting.remove(&checkpoint).map_or_else(now_ms, |c| c.triggered_at_ms);
        let query = self.query();
        tracing::warn!(%query, %checkpoint, reason, "checkpoint given up");
        self.shared.record(checkpoint, triggered_at_ms, CheckpointState::Failed { reason: reason.to_owned() });
        for ticket in tickets {
            self.answer_failure(*ticket, reason);
        }
    }

    pub(super) fn no_checkpoint(&self, reason: String) -> RuntimeError {
        RuntimeError::Checkpoint { query: self.query().to_owned(), reason }
    }

    pub(super) fn answer_failure(&mut self, ticket: Ticket, reason: &str) {
        let error = self.no_checkpoint(reason.to_owned());
        match self.replies.remove(&ticket) {
            Some(Reply::Checkpoint(reply)) => drop(reply.send(Err(error))),
            Some(Reply::Stop(reply)) => drop(reply.send(Err(error))),
            None => {}
        }
    }

    /// Removes what the retained checkpoints do not need, in the background and once at a time.
    pub(super) fn clean_up(&mut self, retained: Vec<CheckpointId>, in_progress: Option<CheckpointId>) {
        if self.cleaning_up {
            self.next_clean_up = Some((retained, in_progress));
            return;
        }
        self.cleaning_up = true;
        let manifests: Vec<Arc<Manifest>> = retained.iter().filter_map(|id| self.retained.get(id)).cloned().collect();
        let (store, points, query) = (self.store.clone(), self.run.points.clone(), self.query().to_owned());
        let grace = self.shared.spec.checkpointing.orphan_grace;
        let released: Vec<_> = self
            .sources
            .iter()
            .map(|(node, running)| {
                let uid = &self.shared.spec.graph.nodes[*node].uid;
                let retained = manifests.iter().map(|manifest| splits_of(manifest, uid)).collect::<Vec<_>>();
                (Arc::clone(&running.source), retained)
            })
            .collect();
        self.background.spawn(async move {
            let manifests: Vec<Manifest> = manifests.iter().map(|manifest| Manifest::clone(manifest)).collect();
            let cleaned = async {
                points.hit("before-clean-up")?;
                let report = store.clean_up(&manifests, in_progress, grace).await?;
                points.hit("after-clean-up")?;
                Ok::<_, RuntimeError>(report)
            };
            match cleaned.await {
                Ok(report) => {
                    tracing::debug!(%query, ?report, "cleaned up");
                    for (source, retained) in released {
                        source.release(&retained);
                    }
                }
                // The next one does it.
                Err(error) => tracing::warn!(%query, %error, "cannot remove what earlier checkpoints left"),
            }
            Done::CleanedUp
        });
    }
}

/// How a checkpoint's barriers treat the rows around them. The last one of a job and what it is stopped with hold no rows in
/// flight: they are restored at any parallelism, by any later version, and by a query that has changed.
fn alignment(options: &CheckpointOptions, kind: Kind) -> Alignment {
    match options.mode {
        CheckpointMode::AtLeastOnce => Alignment::AtLeastOnce,
        CheckpointMode::ExactlyOnce if options.unaligned && !kind.is_last() => Alignment::Unaligned,
        CheckpointMode::ExactlyOnce => Alignment::Aligned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_ends_or_stops_with_is_always_aligned() {
        let options = CheckpointOptions { unaligned: true, ..CheckpointOptions::default() };
        let of = |kind| alignment(&options, kind);
        assert_eq!([of(Kind::Periodic), of(Kind::Requested)], [Alignment::Unaligned; 2]);
        assert_eq!([of(Kind::Stop), of(Kind::Final)], [Alignment::Aligned; 2]);
        assert_eq!(alignment(&CheckpointOptions::default(), Kind::Periodic), Alignment::Aligned);
    }
}
