use std::collections::BTreeMap;

use futures::future::{join_all, try_join_all};
use proptest::prelude::*;

use super::*;
use crate::checkpoint::JobStore;
use crate::store::testing::{Fault, Faulty};

fn job() -> JobId {
    JobId("by_carrier-1".into())
}

fn memory() -> Store {
    Store::open("memory:", &BTreeMap::new()).unwrap()
}

/// No test depends on the linger unless it says so.
fn options(inline_threshold: u64, max_file_size: u64) -> MergeOptions {
    MergeOptions { inline_threshold, max_file_size, linger: Duration::from_secs(3600), ..MergeOptions::default() }
}

fn begin(store: &Store, options: MergeOptions, contributors: usize) -> (JobStore, CheckpointWriter) {
    let job = JobStore::read_only(store, &job());
    let writer = job.begin(CheckpointId(13), options, contributors);
    (job, writer)
}

fn body(length: usize, fill: u8) -> SegmentBody {
    vec![fill; length].into()
}

#[tokio::test]
async fn segments_of_all_subtasks_share_one_object() {
    let store = memory();
    let (job, writer) = begin(&store, options(10, 1 << 20), 3);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("000009.sst");
    std::fs::write(&file, vec![9; 3000]).unwrap();
    let waiting = [body(100, 1), body(10, 2), file.into(), body(0, 0), body(200, 4)].map(|body| writer.segment(body));
    for _ in 0..3 {
        assert_eq!(store.list("").await.unwrap(), [], "nothing is written before the last contributor is done");
        writer.contributor_done().await;
    }
    let segments = try_join_all(waiting).await.unwrap();
    let objects = store.list("jobs/by_carrier-1/data").await.unwrap();
    assert_eq!(objects.len(), 1);
    assert_eq!(segments[1], Segment::inline(vec![2; 10]), "the smallest stay in the manifest");
    assert_eq!(segments[3], Segment::inline(Bytes::new()));
    for (segment, (length, fill)) in segments.iter().zip([(100, 1), (10, 2), (3000, 9), (0, 0), (200, 4)]) {
        assert_eq!(job.read_segment(segment).await.unwrap(), vec![fill; length]);
    }
    let stats = writer.stats();
    assert_eq!((stats.objects, stats.new_bytes, stats.inline_bytes), (1, 3300, 10));

    let file = store.get(&objects[0].path).await.unwrap();
    let index = MergedFileIndex::from_tail(&file, "u").unwrap();
    assert_eq!(index.checkpoint, CheckpointId(13));
    assert_eq!(index.segments.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["", "000009.sst", ""]);
}

#[tokio::test]
async fn little_state_needs_no_object() {
    let store = memory();
    let (_job, writer) = begin(&store, options(412, 1 << 20), 2);
    let waiting = [body(200, 1), body(212, 2)].map(|body| writer.segment(body));
    writer.contributor_done().await;
    writer.contributor_done().await;
    let segments = try_join_all(waiting).await.unwrap();
    assert!(segments.iter().all(|segment| segment.object().is_none()));
    assert_eq!(store.list("").await.unwrap(), []);
    assert_eq!(writer.stats(), WriterStats { inline_bytes: 412, ..WriterStats::default() });
}

#[tokio::test]
async fn an_object_is_sealed_before_it_exceeds_its_size() {
    let store = memory();
    let (_job, writer) = begin(&store, options(0, 1000), 1);
    // 400 + 400 | 400 + 600 (full) | 5000 alone | 1
    let waiting = [400, 400, 400, 600, 5000, 1].map(|length| writer.segment(body(length, 7)));
    writer.contributor_done().await;
    let segments = try_join_all(waiting).await.unwrap();
    let mut by_object: BTreeMap<&str, u64> = BTreeMap::new();
    for segment in &segments {
        *by_object.entry(segment.object().unwrap()).or_default() += segment.length();
    }
    let mut sizes: Vec<_> = by_object.into_values().collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 800, 1000, 5000]);
}

#[tokio::test]
async fn large_bodies_are_streamed_from_disk_and_memory() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store").to_str().unwrap(), &BTreeMap::new()).unwrap();
    let (job, writer) = begin(&store, options(0, 256 << 20), 1);
    let file = directory.path().join("000009.sst");
    let content: Vec<u8> = (0..12_000_000u32).map(|i| (i / 7) as u8).collect();
    std::fs::write(&file, &content).unwrap();
    let waiting = [body(9_000_000, 3), SegmentBody::File(file.clone()), body(5, 5)].map(|body| writer.segment(body));
    writer.contributor_done().await;
    let segments = try_join_all(waiting).await.unwrap();
    assert_eq!(store.list("jobs").await.unwrap().len(), 1);
    assert_eq!(job.read_segment(&segments[0]).await.unwrap(), vec![3; 9_000_000]);
    let copy = directory.path().join("copy");
    job.download_segment(&segments[1], &copy).await.unwrap();
    assert!(std::fs::read(&copy).unwrap() == content);
    assert_eq!(job.read_segment(&segments[2]).await.unwrap(), vec![5; 5]);
}

#[tokio::test]
async fn without_merging_each_segment_has_its_own_object() {
    let store = memory();
    let (_job, writer) = begin(&store, MergeOptions { merging: false, ..options(0, 1 << 20) }, 1);
    let segments = try_join_all([10, 20, 30].map(|length| writer.segment(body(length, 1)))).await.unwrap();
    writer.contributor_done().await;
    assert_eq!(segments.iter().filter_map(Segment::object).collect::<HashSet<_>>().len(), 3);
}

#[tokio::test]
async fn awaiting_a_segment_before_being_done_is_slow_but_no_deadlock() {
    let store = memory();
    let (_job, writer) = begin(&store, MergeOptions { linger: Duration::from_millis(1), ..options(0, 1 << 20) }, 2);
    writer.segment(body(10, 1)).await.unwrap();
    writer.segment(body(10, 2)).await.unwrap();
    assert_eq!(writer.stats().objects, 2);
}

#[tokio::test]
async fn abort_fails_what_is_not_durable_and_deletes_nothing() {
    let faulty = Arc::new(Faulty::default());
    let store = faulty.store();
    let (_job, writer) = begin(&store, options(0, 100), 2);
    let durable = writer.segment(body(100, 1)).await.unwrap();
    faulty.on_put(1, Fault::Hangs);
    let uploading = writer.segment(body(100, 2));
    let open = writer.segment(body(10, 3));
    writer.abort("its time-out of 10 min has passed").await;
    writer.abort("a later reason").await;
    let late = writer.segment(body(10, 4));
    for result in join_all([tokio::spawn(uploading), tokio::spawn(open), tokio::spawn(late)]).await {
        let error = result.unwrap().unwrap_err().to_string();
        assert_eq!(error, "checkpoint 13 was aborted: its time-out of 10 min has passed");
    }
    writer.contributor_done().await;
    writer.contributor_done().await;
    let objects = store.list("").await.unwrap();
    assert_eq!(objects.len(), 1);
    assert!(objects[0].path.ends_with(durable.object().unwrap()));
}

#[tokio::test]
async fn a_failed_upload_fails_all_of_its_segments_by_url() {
    let faulty = Arc::new(Faulty::default());
    let store = faulty.store();
    let (_job, writer) = begin(&store, options(0, 1 << 20), 1);
    faulty.on_every_put(Some(Fault::Refused));
    let waiting = [body(10, 1), body(20, 2)].map(|body| writer.segment(body));
    writer.contributor_done().await;
    for result in join_all(waiting).await {
        let error = result.unwrap_err().to_string();
        let begin = format!("checkpoint 13 could not write {}/jobs/by_carrier-1/data/chk-13-", store.url());
        assert!(error.starts_with(&begin) && error.contains("access denied"), "{error}");
    }
    assert_eq!(writer.stats().objects, 0);
}

#[tokio::test]
async fn a_missing_or_changing_file_is_an_error() {
    let store = memory();
    let (_job, writer) = begin(&store, options(0, 1 << 20), 1);
    let directory = tempfile::tempdir().unwrap();
    let error = writer.segment(directory.path().join("absent").into()).await.unwrap_err().to_string();
    assert!(error.contains("absent"), "{error}");
    let file = directory.path().join("changing");
    std::fs::write(&file, "1234").unwrap();
    let waiting = writer.segment(file.clone().into());
    std::fs::write(&file, "12").unwrap();
    writer.contributor_done().await;
    assert!(waiting.await.unwrap_err().to_string().contains("it changed"));
}

#[test]
fn an_object_tells_its_checkpoint() {
    let path = object_path(CheckpointId(13), "0197");
    assert_eq!(checkpoint_of(&path), Some(CheckpointId(13)));
    assert_eq!(checkpoint_of("data/else"), None);
    assert_eq!(checkpoint_of("data/chk-x-1"), None);
}

proptest! {
    #[test]
    fn inline_takes_as_many_as_fit(lengths in proptest::collection::vec(1u64..50, 0..20), budget in 0u64..300) {
        let chosen = smallest_within(&lengths, budget);
        let sum: u64 = chosen.iter().map(|i| lengths[*i]).sum();
        prop_assert!(sum <= budget);
        let next = (0..lengths.len()).filter(|i| !chosen.contains(i)).map(|i| lengths[i]).min();
        prop_assert!(next.is_none_or(|next| sum + next > budget));
    }
}

#[tokio::test]
async fn without_merging_so_many_subtasks_share_an_object_of_rows_in_flight() {
    let store = Store::open("memory:", &Default::default()).unwrap();
    let unmerged = MergeOptions { merging: false, in_flight_sharers: 2, ..options(0, 1 << 20) };
    let (_job, writer) = begin(&store, unmerged, 3);
    let mut segments = Vec::new();
    for subtask in 0..3u8 {
        segments.push(writer.in_flight_segment(vec![subtask; 10].into()));
        writer.contributor_done().await;
    }
    let segments = futures::future::try_join_all(segments).await.unwrap();
    let objects: Vec<_> = segments.iter().map(|segment| segment.object().unwrap().to_owned()).collect();
    assert_eq!(objects[0], objects[1]);
    assert_ne!(objects[1], objects[2], "the last one waits for nobody");
    assert_eq!(writer.stats().objects, 2);
}
