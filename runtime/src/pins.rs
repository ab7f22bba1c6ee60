//! Checkpoints that somebody is copying: they stay, whatever the number of those to retain says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_storage::{CheckpointId, JobId};

/// The pinned checkpoints of all jobs of a process. Cloning it gives another handle. Pins outlast a job's restart.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    counts: Arc<Mutex<HashMap<JobId, BTreeMap<CheckpointId, usize>>>>,
}

/// Keeps a checkpoint from being cleaned up until it is dropped; the clean-up after that removes it.
#[derive(Debug)]
pub struct Pin {
    pins: Pins,
    job: JobId,
    checkpoint: CheckpointId,
}

impl Pins {
    /// Pins a checkpoint that is there and retained.
    #[must_use]
    pub fn pin(&self, job: &JobId, checkpoint: CheckpointId) -> Pin {
        *self.counts.lock().entry(job.clone()).or_default().entry(checkpoint).or_default() += 1;
        Pin { pins: self.clone(), job: job.clone(), checkpoint }
    }

    /// The pinned checkpoints of a job.
    pub(crate) fn of(&self, job: &JobId) -> BTreeSet<CheckpointId> {
        self.counts.lock().get(job).map(|pinned| pinned.keys().copied().collect()).unwrap_or_default()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut counts = self.pins.counts.lock();
        let Some(pinned) = counts.get_mut(&self.job) else { return };
        if let Some(count) = pinned.get_mut(&self.checkpoint) {
            *count -= 1;
            if *count == 0 {
                pinned.remove(&self.checkpoint);
            }
        }
        if pinned.is_empty() {
            counts.remove(&self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_stays_until_its_last_pin_is_gone() {
        let (pins, job) = (Pins::default(), JobId("q-1".into()));
        let first = pins.pin(&job, CheckpointId(3));
        let second = pins.clone().pin(&job, CheckpointId(3));
        let other = pins.pin(&job, CheckpointId(4));
        drop(first);
        assert_eq!(pins.of(&job), BTreeSet::from([CheckpointId(3), CheckpointId(4)]));
        drop((second, other));
        assert!(pins.of(&job).is_empty() && pins.counts.lock().is_empty());
    }
}
