//! What may be deleted: a pure decision over what is retained and what is there.
//!
//! An object lives as long as a retained manifest names a segment in it. What nobody names is garbage at once if it
//! was written for a checkpoint that a newer retained one has replaced; if it may belong to a checkpoint whose fate is
//! not known here, it is garbage only after a grace period, and never while that checkpoint is being taken.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::manifest::Manifest;
use super::segment::Segment;
use super::writer::checkpoint_of;
use crate::CheckpointId;
use crate::store::ObjectInfo;

/// What lies in a job's directory.
#[derive(Debug, Clone)]
pub struct Listing {
    /// Checkpoints that have a manifest.
    pub manifests: Vec<CheckpointId>,
    /// Objects below `data/`, with paths relative to the job's directory.
    pub objects: Vec<ObjectInfo>,
    /// Milliseconds since 1970.
    pub now_ms: i64,
}

/// What is to be deleted, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanUp {
    /// Checkpoints whose manifest goes first: from then on nothing can restore from them.
    pub manifests: Vec<CheckpointId>,
    /// Objects that go afterwards, relative to the job's directory.
    pub objects: Vec<String>,
    /// Objects that nothing names, but that stay for now.
    pub kept_orphans: usize,
}

/// What a clean-up did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanUpReport {
    /// Checkpoints that were removed.
    pub manifests: Vec<CheckpointId>,
    /// Number of objects that were removed.
    pub objects: usize,
    /// Their bytes.
    pub freed_bytes: u64,
    /// Objects that nothing names, but that stay for now.
    pub kept_orphans: usize,
}

/// Decide what to delete. `retained` are all checkpoints that may still be restored, `in_progress` the oldest one
/// being taken.
pub fn decide_clean_up(
    retained: &[Manifest],
    listing: &Listing,
    in_progress: Option<CheckpointId>,
    grace: Duration,
) -> CleanUp {
    let kept: HashSet<CheckpointId> = retained.iter().map(|manifest| manifest.checkpoint).collect();
    let newest = kept.iter().copied().max();
    let superseded = |id: CheckpointId| newest.is_some_and(|newest| id <= newest);
    let manifests: Vec<_> =
        listing.manifests.iter().copied().filter(|id| superseded(*id) && !kept.contains(id)).collect();
    // A manifest that nobody told us about and that is newer than all we know keeps alive we know not what.
    if listing.manifests.iter().any(|id| !superseded(*id)) {
        return CleanUp { manifests, objects: Vec::new(), kept_orphans: 0 };
    }
    let live: HashSet<&str> = retained.iter().flat_map(Manifest::segments).filter_map(Segment::object).collect();
    let grace_ms = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    let mut objects = Vec::new();
    let mut kept_orphans = 0;
    for object in listing.objects.iter().filter(|object| !live.contains(object.path.as_str())) {
        let of = checkpoint_of(&object.path);
        let being_taken = in_progress.is_some_and(|oldest| of.is_none_or(|id| id >= oldest));
        let old = listing.now_ms.saturating_sub(object.modified_ms).max(0) >= grace_ms;
        if !being_taken && (of.is_some_and(superseded) || old) {
            objects.push(object.path.clone());
        } else {
            kept_orphans += 1;
        }
    }
    CleanUp { manifests, objects, kept_orphans }
}

/// How much of the stored bytes is still named by a retained checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpaceUsage {
    /// Bytes of all objects that retained checkpoints name.
    pub stored_bytes: u64,
    /// Bytes of the segments in them that retained checkpoints name.
    pub live_bytes: u64,
    /// Objects whose segments should be written again by the next checkpoint, so that `stored / live` comes under the
    /// limit; the most wasteful first.
    pub rewrite: Vec<String>,
}

/// Space amplification over the retained checkpoints and what to write again to keep it under `max_amplification`
/// (a limit below 1 disables this).
pub fn space_usage(retained: &[Manifest], objects: &[ObjectInfo], max_amplification: f64) -> SpaceUsage {
    let mut live: BTreeMap<&str, HashMap<u64, u64>> = BTreeMap::new();
    for segment in retained.iter().flat_map(Manifest::segments) {
        if let Segment::Object { path, offset, length, .. } = segment {
            live.entry(path).or_default().insert(*offset, *length);
        }
    }
    let sizes: HashMap<&str, u64> = objects.iter().map(|object| (object.path.as_str(), object.size)).collect();
    let mut by_object: Vec<(&str, u64, u64)> =
        live.iter().filter_map(|(path, segments)| Some((*path, *sizes.get(path)?, segments.values().sum()))).collect();
    let stored_bytes: u64 = by_object.iter().map(|(_, size, _)| size).sum();
    let live_bytes: u64 = by_object.iter().map(|(.., live)| live).sum();
    let mut rewrite = Vec::new();
    if max_amplification >= 1.0 {
        // By waste, ties by name, so that the decision does not depend on the listing's order.
        by_object.sort_by_key(|(path, size, live)| (std::cmp::Reverse(size.saturating_sub(*live)), *path));
        let mut stored = stored_bytes as f64;
        let goal = live_bytes as f64 * max_amplification;
        for (path, size, live) in by_object {
            if stored <= goal || size <= live {
                break;
            }
            // Only objects that are themselves over the limit: rewriting a full one frees nothing.
            if live as f64 * max_amplification < size as f64 {
                rewrite.push(path.to_owned());
                stored -= size.saturating_sub(live) as f64;
            }
        }
    }
    SpaceUsage { stored_bytes, live_bytes, rewrite }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Subtask;
    use crate::checkpoint::manifest::tests::example;
    use crate::checkpoint::{OperatorState, SubtaskState};

    fn manifest(id: u64, objects: &[(u64, u64)]) -> Manifest {
        let subtasks = objects.iter().enumerate().map(|(i, (of, n))| SubtaskState {
            operator_state: Some(Segment::Object { path: path(*of, *n), offset: 8, length: 10, crc32: 0 }),
            ..SubtaskState::empty(Subtask(i as u32))
        });
        let template = example();
        let operator = OperatorState { subtasks: subtasks.collect(), ..template.operators[0].clone() };
        Manifest { checkpoint: CheckpointId(id), operators: vec![operator], ..template }
    }

    fn path(of: u64, n: u64) -> String {
        format!("data/chk-{of}-{n}")
    }

    fn object(of: u64, n: u64, modified_ms: i64) -> ObjectInfo {
        ObjectInfo { path: path(of, n), size: 40, modified_ms }
    }

    fn listing(manifests: &[u64], objects: &[(u64, u64)]) -> Listing {
        Listing {
            manifests: manifests.iter().copied().map(CheckpointId).collect(),
            objects: objects.iter().map(|(of, n)| object(*of, *n, 1_000)).collect(),
            now_ms: 2_000,
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn manifests_go_first_and_shared_objects_stay() {
        let retained = [manifest(3, &[(1, 0), (3, 0)])];
        let decision = decide_clean_up(&retained, &listing(&[1, 2, 3], &[(1, 0), (2, 0), (3, 0)]), None, HOUR);
        assert_eq!(decision.manifests, [CheckpointId(1), CheckpointId(2)]);
        assert_eq!(decision.objects, [path(2, 0)]);
    }

    #[test]
    fn objects_of_a_checkpoint_being_taken_stay() {
        let retained = [manifest(3, &[])];
        let there = listing(&[3], &[(2, 0), (4, 0), (5, 0)]);
        let decision = decide_clean_up(&retained, &there, Some(CheckpointId(4)), Duration::ZERO);
        assert_eq!((decision.objects, decision.kept_orphans), (vec![path(2, 0)], 2));
        // An older one still running beside a newer completed one keeps its objects as well.
        let decision = decide_clean_up(&retained, &there, Some(CheckpointId(2)), Duration::ZERO);
        assert_eq!((decision.objects, decision.kept_orphans), (vec![], 3));
    }

    #[test]
    fn leftovers_of_a_failed_checkpoint_go_after_the_grace_period() {
        let retained = [manifest(3, &[])];
        let there = listing(&[3], &[(4, 0)]);
        let decide = |grace| decide_clean_up(&retained, &there, None, grace).objects;
        assert_eq!(decide(Duration::from_millis(1_001)), Vec::<String>::new());
        assert_eq!(decide(Duration::from_millis(1_000)), [path(4, 0)]);
    }

    #[test]
    fn an_unknown_newer_manifest_keeps_everything() {
        let retained = [manifest(3, &[])];
        let decision = decide_clean_up(&retained, &listing(&[2, 3, 4], &[(1, 0), (4, 0)]), None, Duration::ZERO);
        assert_eq!((decision.manifests, decision.objects), (vec![CheckpointId(2)], vec![]));
        let nothing_known = decide_clean_up(&[], &listing(&[1], &[(1, 0)]), None, Duration::ZERO);
        assert_eq!((nothing_known.manifests, nothing_known.objects), (vec![], vec![]));
    }

    #[test]
    fn rewrites_the_most_wasteful_objects_only() {
        let retained = [manifest(3, &[(1, 0), (2, 0), (3, 0)])];
        let mut objects = vec![object(1, 0, 0), object(2, 0, 0), object(3, 0, 0)];
        objects[0].size = 100;
        objects[1].size = 12;
        objects[2].size = 60;
        let usage = space_usage(&retained, &objects, 3.0);
        assert_eq!((usage.stored_bytes, usage.live_bytes), (172, 30));
        assert_eq!(usage.rewrite, [path(1, 0)]);
        assert_eq!(space_usage(&retained, &objects, 2.0).rewrite, [path(1, 0), path(3, 0)]);
        assert!(space_usage(&retained, &objects, 0.5).rewrite.is_empty());
    }

    proptest! {
        #[test]
        fn never_deletes_what_is_needed_and_leaves_no_orphan(
            completed in proptest::collection::btree_map(1u64..12, proptest::collection::vec((1u64..12, 0u64..3), 0..6), 0..6),
            keep in 1usize..4,
            extra in proptest::collection::btree_set((1u64..14, 0u64..3), 0..12),
            in_progress in proptest::option::of(1u64..15),
            grace_ms in 0u64..3_000,
        ) {
            let all: Vec<Manifest> = completed.iter().map(|(id, objects)| manifest(*id, objects)).collect();
            let retained = &all[all.len().saturating_sub(keep)..];
            let mut objects: std::collections::BTreeSet<(u64, u64)> = extra;
            objects.extend(completed.values().flatten());
            let ids: Vec<u64> = completed.keys().copied().collect();
            let objects: Vec<_> = objects.into_iter().collect();
            let there = listing(&ids, &objects);
            let needed: HashSet<String> =
                retained.iter().flat_map(Manifest::segments).filter_map(|s| s.object().map(str::to_owned)).collect();

            let in_progress = in_progress.map(CheckpointId);
            let decision = decide_clean_up(retained, &there, in_progress, Duration::from_millis(grace_ms));
            for gone in &decision.objects {
                prop_assert!(!needed.contains(gone), "{gone} is needed");
                let of = checkpoint_of(gone).unwrap();
                prop_assert!(in_progress.is_none_or(|oldest| of < oldest), "{gone} is being written");
            }
            for gone in &decision.manifests {
                prop_assert!(retained.iter().all(|manifest| manifest.checkpoint != *gone));
            }

            let decision = decide_clean_up(retained, &there, None, Duration::ZERO);
            let left: HashSet<String> =
                there.objects.iter().map(|o| o.path.clone()).filter(|p| !decision.objects.contains(p)).collect();
            prop_assert_eq!(left, needed);
            prop_assert_eq!(decision.kept_orphans, 0);
        }
    }
}
