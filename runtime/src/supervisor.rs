//! Keeps a job alive: runs it, and runs it again from its last checkpoint when it fails.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use weir_storage::{CheckpointId, CheckpointInfo, Epoch, JobStore, Manifest};

use crate::build::{Builder, SubtaskMetrics};
use crate::coordinator::driver::{Committers, Driver, Outcome, commit};
use crate::error::{Result, RuntimeError};
use crate::fail_point::FailPoints;
use crate::graph::{NodeIndex, OperatorSpec};
use crate::job::{CheckpointRecord, CheckpointState, JobServices, JobSpec, JobStatus, PinnedCheckpoint, StopMode};
use crate::pins::Pins;
use crate::run::Run;
use crate::sink::Sink;

/// Checkpoints that are remembered for people.
const RECORDS: usize = 100;

/// What a handle asks for.
#[derive(Debug)]
pub(crate) enum Command {
    Checkpoint(oneshot::Sender<Result<PinnedCheckpoint>>),
    Pause(oneshot::Sender<()>),
    Resume(oneshot::Sender<()>),
    Stop(StopMode, oneshot::Sender<Result<Option<CheckpointInfo>>>),
    Flush(oneshot::Sender<()>),
}

/// What a job's handles see of it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) spec: JobSpec,
    pub(crate) status: watch::Sender<JobStatus>,
    pub(crate) metrics: Mutex<Vec<SubtaskMetrics>>,
    pub(crate) records: Mutex<VecDeque<CheckpointRecord>>,
}

impl Shared {
    pub(crate) fn new(spec: JobSpec) -> Self {
        let status = watch::Sender::new(JobStatus::Created);
        Self { spec, status, metrics: Mutex::default(), records: Mutex::default() }
    }

    /// Remembers what became of a checkpoint.
    pub(crate) fn record(&self, id: CheckpointId, triggered_at_ms: i64, state: CheckpointState) {
        let mut records = self.records.lock();
        match records.iter_mut().find(|record| record.id == id) {
            Some(record) => record.state = state,
            None => records.push_back(CheckpointRecord { id, triggered_at_ms, state }),
        }
        while records.len() > RECORDS {
            records.pop_front();
        }
    }
}

/// What a job remembers from one run to the next.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// Greater than every checkpoint tried so far.
    pub(crate) next_checkpoint: CheckpointId,
    /// Greater than every epoch so far.
    pub(crate) next_epoch: Epoch,
    pub(crate) paused: bool,
}

impl Lineage {
    /// The number of the next epoch.
    pub(crate) fn take_epoch(&mut self) -> Epoch {
        let epoch = self.next_epoch;
        self.next_epoch = epoch.next();
        epoch
    }
}

/// See the module.
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    services: JobServices,
    commands: mpsc::UnboundedReceiver<Command>,
    points: FailPoints,
    store: JobStore,
    lineage: Lineage,
    /// Checkpoints that were asked for while the job was being restored: taken as soon as it runs.
    requested: Vec<oneshot::Sender<Result<PinnedCheckpoint>>>,
}

/// How a wait for something ended.
enum Waited<T> {
    Done(T),
    Stopped,
}

impl Supervisor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        services: JobServices,
        commands: mpsc::UnboundedReceiver<Command>,
        points: FailPoints,
    ) -> Self {
        let store = JobStore::new(&services.store, &shared.spec.id, Arc::clone(&services.fence))
            .with_parallel_deletes(shared.spec.checkpointing.parallel_clean_up);
        let lineage = Lineage { paused: shared.spec.paused, ..Lineage::default() };
        Self { shared, services, commands, points, store, lineage, requested: Vec::new() }
    }

    /// Runs until the job is over.
    pub(crate) async fn run(mut self) {
        let query = self.shared.spec.name.clone();
        let mut attempt = 0;
        let status = loop {
            let began = Instant::now();
            let error = match self.run_once().await {
                Outcome::Finished => break JobStatus::Finished,
                Outcome::Stopped => break JobStatus::Stopped,
                Outcome::Failed(error) => error,
            };
            let reason = error.to_string();
            if error.is_final() {
                tracing::error!(%query, %reason, "failed for good");
                break JobStatus::Failed { reason };
            }
            if began.elapsed() >= self.shared.spec.restart.reset_after {
                attempt = 0;
            }
            attempt += 1;
            let Some(delay) = self.shared.spec.restart.delay(attempt) else {
                tracing::error!(%query, %reason, attempts = attempt - 1, "failed too often, given up");
                break JobStatus::Failed { reason };
            };
            tracing::warn!(%query, %reason, attempt, ?delay, "failed; it will be started again from its last checkpoint");
            let since_ms = chrono::Utc::now().timestamp_millis();
            let next_try_ms = since_ms + delay.as_millis() as i64;
            self.shared.status.send_replace(JobStatus::Restarting {
                attempt,
                reason: reason.clone(),
                since_ms,
                next_try_ms,
            });
            let why = format!("the query is being restarted: {reason}");
            for reply in std::mem::take(&mut self.requested) {
                let _ = reply.send(Err(self.no_checkpoint(&why)));
            }
            if let Waited::Stopped = self.while_not_running(Some(&why), tokio::time::sleep(delay)).await {
                break JobStatus::Stopped;
            }
        };
        tracing::info!(%query, status = ?status, "over");
        self.shared.status.send_replace(status);
    }

    /// One run, from the last checkpoint to its end.
    async fn run_once(&mut self) -> Outcome {
        self.shared.status.send_replace(JobStatus::Restoring);
        let shared = Arc::clone(&self.shared);
        let (services, store, points) = (self.services.clone(), self.store.clone(), self.points.clone());
        let paused = self.lineage.paused;
        let restore = Box::pin(restore(shared, services, store, points, paused));
        let restored = match self.while_not_running(None, restore).await {
            Waited::Stopped => return Outcome::Stopped,
            Waited::Done(Err(error)) => return Outcome::Failed(error),
            Waited::Done(Ok(restored)) => restored,
        };
        if let Some(newest) = restored.retained.last() {
            self.lineage.next_checkpoint = self.lineage.next_checkpoint.max(newest.checkpoint.next());
            self.lineage.next_epoch = self.lineage.next_epoch.max(newest.epoch.next());
        }
        self.lineage.next_checkpoint = self.lineage.next_checkpoint.max(CheckpointId(1));
        self.lineage.next_epoch = self.lineage.next_epoch.max(Epoch(1));
        let driver = Driver::new(Arc::clone(&self.shared), self.services.clone(), self.store.clone(), restored);
        driver.run(&mut self.lineage, &mut self.commands, std::mem::take(&mut self.requested)).await
    }

    fn no_checkpoint(&self, why: &str) -> RuntimeError {
        RuntimeError::Checkpoint { query: self.shared.spec.name.clone(), reason: why.to_owned() }
    }

    /// Waits for `future`, and answers commands meanwhile. `why` there can be no checkpoint; without, it will be taken
    /// later.
    async fn while_not_running<T>(&mut self, why: Option<&str>, future: impl Future<Output = T>) -> Waited<T> {
        let mut future = std::pin::pin!(future);
        loop {
            let command = tokio::select! {
                done = future.as_mut() => return Waited::Done(done),
                command = self.commands.recv() => command,
            };
            match command {
                None => return Waited::Stopped,
                Some(Command::Checkpoint(reply)) => match why {
                    Some(why) => drop(reply.send(Err(self.no_checkpoint(why)))),
                    None => self.requested.push(reply),
                },
                Some(Command::Pause(reply)) => {
                    self.lineage.paused = true;
                    let _ = reply.send(());
                }
                Some(Command::Resume(reply)) => {
                    self.lineage.paused = false;
                    let _ = reply.send(());
                }
                Some(Command::Stop(_, reply)) => {
                    let _ = reply.send(Ok(None));
                    return Waited::Stopped;
                }
                // Dropped: who asked learns that nothing was flushed.
                Some(Command::Flush(reply)) => drop(reply),
            }
        }
    }
}

/// A run that is ready to begin.
pub(crate) struct Restored {
    pub(crate) run: Arc<Run>,
    pub(crate) events: mpsc::UnboundedReceiver<crate::run::TaskEvent>,
    pub(crate) built: crate::build::Built,
    pub(crate) committers: Committers,
    /// Complete checkpoints that are kept, oldest first.
    pub(crate) retained: Vec<Manifest>,
    /// Whether tasks were built paused.
    pub(crate) paused: bool,
}

/// Recovery: the last checkpoint's output is committed again, leftovers of what came after it are removed, and only then
/// are tasks built from it.
async fn restore(
    shared: Arc<Shared>,
    services: JobServices,
    store: JobStore,
    points: FailPoints,
    paused: bool,
) -> Result<Restored> {
    let spec = &shared.spec;
    let retained = retained(&store, &shared, &services.pins).await?;
    let manifest = retained.last();
    points.hit("in-recovery")?;
    let mut sinks: HashMap<NodeIndex, Arc<dyn Sink>> = HashMap::new();
    let mut committers = Committers::new();
    for (node, operator) in spec.graph.nodes.iter().enumerate() {
        let OperatorSpec::Sink(sink) = &operator.spec else { continue };
        let sink = services.resolver.sink(sink).await?;
        if let Some(committer) = sink.committer(&spec.id).await? {
            committers.insert(node, committer);
        }
        sinks.insert(node, sink);
    }
    if let Some(manifest) = manifest {
        let (query, checkpoint) = (&spec.name, manifest.checkpoint);
        tracing::info!(%query, %checkpoint, url = store.manifest_url(checkpoint), "restoring");
        commit(&mut committers, manifest, &spec.graph, &FailPoints::default()).await?;
    }
    for committer in committers.values_mut() {
        committer.clean_up().await?;
    }
    points.hit("in-recovery-after-recommit")?;
    let state_dir = services.state_dir.join(directory_name(&spec.id.0));
    let staging = state_dir.join("staging");
    // Whatever a crashed process left there is of no use to anybody.
    if let Err(error) = std::fs::remove_dir_all(&staging)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %staging.display(), %error, "cannot remove files of former uploads");
    }
    let (sender, events) = mpsc::unbounded_channel();
    let uids = spec.graph.nodes.iter().map(|node| node.uid.clone()).collect();
    let run = Arc::new(Run::new(spec.name.clone(), uids, sender, staging, spec.checkpointing.incremental, points));
    let (run_ref, store_ref, services_ref, sinks_ref) = (&run, &store, &services, &sinks);
    let builder = Builder {
        spec,
        services: services_ref,
        run: run_ref,
        store: store_ref,
        manifest,
        sinks: sinks_ref,
        state_dir,
        paused,
    };
    let built = builder.build().await?;
    drop(builder);
    Ok(Restored { run, events, built, committers, retained, paused })
}

/// The manifests of all complete checkpoints that are kept, oldest first. The newest must be readable: going on from an
/// older one would repeat output that is committed.
async fn retained(store: &JobStore, shared: &Shared, pins: &Pins) -> Result<Vec<Manifest>> {
    let ids = store.list().await?;
    let pinned = pins.of(&shared.spec.id);
    let keep = shared.spec.checkpointing.num_retained.max(1);
    let mut manifests = Vec::new();
    let older = ids.len().saturating_sub(keep);
    let kept = ids.iter().enumerate().filter(|(place, id)| *place >= older || pinned.contains(id));
    for (_, id) in kept {
        match store.read(*id).await {
            Ok(manifest) => manifests.push(manifest),
            Err(error) if Some(id) == ids.last() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(query = %shared.spec.name, checkpoint = %id, %error, "an older checkpoint cannot be read")
            }
        }
    }
    for manifest in &manifests {
        let info = CheckpointInfo::of(manifest, store.manifest_url(manifest.checkpoint));
        let known =
            shared.records.lock().iter().any(|record| {
                record.id == manifest.checkpoint && matches!(record.state, CheckpointState::Completed(_))
            });
        if !known {
            shared.record(manifest.checkpoint, manifest.triggered_at_ms, CheckpointState::Completed(info));
        }
    }
    Ok(manifests)
}

/// A name for a local directory: a query may be called anything, `../x` included.
fn directory_name(job: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    job.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }).collect()
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

/// How long `since` was ago, for a log.
pub(crate) fn elapsed_ms(since: Instant) -> u64 {
    Duration::as_millis(&since.elapsed()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_stay_below_the_one_they_belong_in() {
        assert_eq!(directory_name("by_carrier-0197"), "by_carrier-0197");
        assert_eq!(directory_name("../é"), "%2e%2e%2f%c3%a9");
    }
}
