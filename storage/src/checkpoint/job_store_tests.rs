use std::collections::BTreeMap;

use super::*;
use crate::checkpoint::manifest::tests::example;
use crate::checkpoint::{OperatorState, SegmentBody, SubtaskState};
use crate::fence::OwnerInfo;
use crate::store::testing::{Fault, Faulty};
use crate::{Generation, Subtask};

fn memory() -> Store {
    Store::open("memory:", &BTreeMap::new()).unwrap()
}

async fn owned(store: &Store) -> JobStore {
    let fence = Fence::acquire(store, OwnerInfo::current()).await.unwrap();
    JobStore::new(store, &JobId("by_carrier-1".into()), Arc::new(fence))
}

pub(crate) fn manifest(id: u64, segments: Vec<Segment>) -> Manifest {
    let subtasks = segments
        .into_iter()
        .enumerate()
        .map(|(i, segment)| SubtaskState { operator_state: Some(segment), ..SubtaskState::empty(Subtask(i as u32)) });
    let template = example();
    let operator = OperatorState { subtasks: subtasks.collect(), ..template.operators[0].clone() };
    Manifest { checkpoint: CheckpointId(id), operators: vec![operator], ..template }
}

/// Take checkpoint `id` with one segment of its own besides those given.
pub(crate) async fn take(job: &JobStore, id: u64, shared: &[Segment]) -> (Manifest, CheckpointInfo) {
    let options = MergeOptions { inline_threshold: 0, ..MergeOptions::default() };
    let writer = job.begin(CheckpointId(id), options, 1);
    let own = writer.segment(SegmentBody::from(vec![id as u8; 100]));
    writer.contributor_done().await;
    let mut segments = vec![own.await.unwrap()];
    segments.extend_from_slice(shared);
    let manifest = manifest(id, segments);
    let info = job.complete(&manifest).await.unwrap();
    (manifest, info)
}

#[tokio::test]
async fn a_checkpoint_is_visible_wherever_its_bytes_are() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap(), &BTreeMap::new()).unwrap();
    let job = owned(&store).await;
    assert_eq!(job.latest().await.unwrap(), None);
    let tiny = manifest(13, vec![Segment::inline(vec![1; 412])]);
    let info = job.complete(&tiny).await.unwrap();
    assert_eq!(info.url, format!("{}/jobs/by_carrier-1/chk-13/_metadata", store.url()));
    assert_eq!(info.note.as_deref(), Some("412 B of state inside the manifest; no data file was needed"));
    assert_eq!((info.inline_bytes, info.new_bytes, info.total_bytes, info.objects), (412, 0, 412, 0));
    let path = directory.path().join("jobs/by_carrier-1/chk-13/_metadata");
    assert_eq!(Manifest::from_bytes(&std::fs::read(path).unwrap(), "u").unwrap(), tiny);
    let latest = std::fs::read_to_string(directory.path().join("jobs/by_carrier-1/LATEST")).unwrap();
    assert_eq!(latest, "chk-13/_metadata\n");

    let (fourteen, info) = take(&job, 14, &[]).await;
    assert_eq!((info.new_bytes, info.shared_bytes, info.objects, &info.note), (100, 0, 1, &None));
    let (_, info) = take(&job, 15, &fourteen.segments().cloned().collect::<Vec<_>>()).await;
    assert_eq!((info.new_bytes, info.shared_bytes, info.objects), (100, 100, 2));
    let info = job.complete(&manifest(16, fourteen.segments().cloned().collect())).await.unwrap();
    let note = "0 B of state inside the manifest; 1 data file of earlier checkpoints used again, none written";
    assert_eq!(info.note.as_deref(), Some(note));
    assert_eq!(job.list().await.unwrap(), [13, 14, 15, 16].map(CheckpointId));
    assert_eq!(job.latest().await.unwrap().unwrap().checkpoint, CheckpointId(16));
}

#[test]
fn bytes_read_well() {
    let shown = [0, 1023, 1024, 1536, 5 << 20, 3 << 40].map(bytes_for_people);
    assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 TiB"]);
}

#[tokio::test]
async fn the_outcome_of_completion_is_known_even_when_the_answer_is_lost() {
    let faulty = Arc::new(Faulty::default());
    let store = faulty.store();
    let job = owned(&store).await;
    faulty.on_put(1, Fault::After);
    job.complete(&manifest(1, vec![])).await.unwrap();
    faulty.on_put(1, Fault::Before);
    job.complete(&manifest(2, vec![])).await.unwrap();
    faulty.on_put(1, Fault::Overtaken);
    let error = job.complete(&manifest(3, vec![])).await.unwrap_err();
    assert!(
        matches!(&error, StorageError::Conflict { url, .. } if *url == job.manifest_url(CheckpointId(3))),
        "{error}"
    );
    // LATEST is only a hint.
    for n in 2..=4 {
        faulty.on_put(n, Fault::Before);
    }
    job.complete(&manifest(4, vec![])).await.unwrap();
}

#[tokio::test]
async fn completing_twice_with_different_content_is_a_conflict() {
    let job = owned(&memory()).await;
    job.complete(&manifest(1, vec![])).await.unwrap();
    let error = job.complete(&manifest(1, vec![Segment::inline(vec![1])])).await.unwrap_err();
    assert!(matches!(error, StorageError::Conflict { .. }), "{error}");
    assert_eq!(job.read(CheckpointId(1)).await.unwrap().segments().count(), 0);
}

#[tokio::test]
async fn what_is_not_needed_is_deleted_one_after_the_other_too() {
    for parallel in [true, false] {
        let store = memory();
        let job = owned(&store).await.with_parallel_deletes(parallel);
        take(&job, 1, &[]).await;
        let (two, _) = take(&job, 2, &[]).await;
        assert_eq!(job.clean_up(&[two], None, Duration::ZERO).await.unwrap().manifests, [CheckpointId(1)]);
        assert_eq!(job.list().await.unwrap(), [CheckpointId(2)]);
        job.delete_all().await.unwrap();
        assert!(store.list("jobs").await.unwrap().is_empty(), "{parallel}");
    }
}

#[tokio::test]
async fn a_fenced_process_neither_completes_nor_deletes() {
    let store = memory();
    let job = owned(&store).await;
    let (one, _) = take(&job, 1, &[]).await;
    store.put("fence/00000000000000000002.json", "x").await.unwrap();
    for error in [
        job.complete(&manifest(2, vec![])).await.unwrap_err(),
        job.clean_up(&[one], None, Duration::ZERO).await.unwrap_err(),
        job.delete_all().await.unwrap_err(),
    ] {
        assert!(matches!(error, StorageError::Fenced { ours: Generation(1), theirs: Generation(2), .. }), "{error}");
    }
    assert_eq!(job.list().await.unwrap(), [CheckpointId(1)]);
}

#[tokio::test]
async fn an_unreadable_newest_checkpoint_is_an_error_not_an_older_one() {
    let store = memory();
    let job = owned(&store).await;
    take(&job, 1, &[]).await;
    take(&job, 2, &[]).await;
    store.put("jobs/by_carrier-1/chk-2/_metadata", "{}").await.unwrap();
    let error = job.latest().await.unwrap_err();
    assert!(
        matches!(&error, StorageError::Corrupt { url, .. } if *url == job.manifest_url(CheckpointId(2))),
        "{error}"
    );
    let error = job.read(CheckpointId(9)).await.unwrap_err();
    assert!(matches!(error, StorageError::Missing { .. }), "{error}");
}

#[tokio::test]
async fn damaged_segments_are_found_when_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = memory();
    let job = owned(&store).await;
    let (manifest, _) = take(&job, 1, &[]).await;
    let segment = manifest.segments().next().unwrap();
    let path = job.path(segment.object().unwrap());
    let mut bytes = store.get(&path).await.unwrap().to_vec();
    bytes[50] ^= 1;
    store.put(&path, bytes.clone()).await.unwrap();
    let file = directory.path().join("sst");
    for error in [job.read_segment(segment).await.unwrap_err(), job.download_segment(segment, &file).await.unwrap_err()]
    {
        assert!(matches!(&error, StorageError::Corrupt { url, .. } if *url == store.absolute(&path)), "{error}");
    }
    assert!(!file.exists());
    store.put(&path, bytes[..50].to_vec()).await.unwrap();
    assert!(job.read_segment(segment).await.is_err());
    store.delete(&path).await.unwrap();
    let error = job.read_segment(segment).await.unwrap_err();
    assert!(matches!(&error, StorageError::Missing { url, .. } if *url == store.absolute(&path)), "{error}");
}

#[tokio::test]
async fn clean_up_keeps_what_is_retained_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap(), &BTreeMap::new()).unwrap();
    let job = owned(&store).await;
    let (one, _) = take(&job, 1, &[]).await;
    let (_two, _) = take(&job, 2, &[]).await;
    let shared: Vec<Segment> = one.segments().cloned().collect();
    let (three, _) = take(&job, 3, &shared).await;
    // Left by an attempt that failed.
    let orphan = "jobs/by_carrier-1/data/chk-4-orphan";
    store.put(orphan, "x").await.unwrap();

    let retained = [three.clone()];
    let report = job.clean_up(&retained, Some(CheckpointId(4)), Duration::ZERO).await.unwrap();
    assert_eq!((report.manifests, report.objects), (vec![CheckpointId(1), CheckpointId(2)], 1));
    assert_eq!(report.kept_orphans, 1);
    assert!(!directory.path().join("jobs/by_carrier-1/chk-1").exists(), "an empty directory goes as well");
    for segment in three.segments() {
        job.read_segment(segment).await.unwrap();
    }
    let report = job.clean_up(&retained, None, Duration::ZERO).await.unwrap();
    assert_eq!((report.objects, report.freed_bytes, report.kept_orphans), (1, 1, 0));
    assert!(!store.exists(orphan).await.unwrap());
}

#[tokio::test]
async fn a_checkpoint_that_nobody_was_told_of_survives_clean_up() {
    let store = memory();
    let job = owned(&store).await;
    let (one, _) = take(&job, 1, &[]).await;
    let (two, _) = take(&job, 2, &one.segments().cloned().collect::<Vec<_>>()).await;
    let (three, _) = take(&job, 3, &two.segments().cloned().collect::<Vec<_>>()).await;
    job.clean_up(&[two], None, Duration::ZERO).await.unwrap();
    assert_eq!(job.list().await.unwrap(), [CheckpointId(2), CheckpointId(3)]);
    for segment in three.segments() {
        job.read_segment(segment).await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_job_leaves_nothing() {
    let store = memory();
    let job = owned(&store).await;
    take(&job, 1, &[]).await;
    let other = JobStore::read_only(&store, &JobId("by_carrier-12".into()));
    take(&other, 1, &[]).await;
    job.delete_all().await.unwrap();
    assert_eq!(store.list("jobs/by_carrier-1").await.unwrap(), []);
    assert_eq!(other.list().await.unwrap(), [CheckpointId(1)]);
}
