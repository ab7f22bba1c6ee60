use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Int8Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};

use super::*;
use crate::fence::OwnerInfo;
use crate::store::testing::{Fault, Faulty};

fn rows(values: &[i64]) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("id", DataType::Int64, true)]);
    RecordBatch::try_new(schema.into(), vec![Arc::new(Int64Array::from(values.to_vec()))]).unwrap()
}

fn entry(values: &[i64]) -> LogEntry {
    LogEntry::new(vec![(rows(values), None)])
}

fn keyed(values: &[i64], key: &str) -> LogEntry {
    LogEntry { client_key: Some(key.into()), ..entry(values) }
}

async fn owned() -> (Store, Arc<Fence>) {
    let store = Store::open("memory:", &BTreeMap::new()).unwrap();
    let fence = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
    (store, Arc::new(fence))
}

fn job() -> JobId {
    JobId("by_carrier-1".into())
}

async fn values(log: &Log) -> Vec<(u64, i64, i8)> {
    let mut all = Vec::new();
    for seq in log.first().await.unwrap().0..=log.head().await.unwrap().0 {
        let (meta, batches) = log.read(LogSeq(seq)).await.unwrap().unwrap();
        assert_eq!(meta.seq, LogSeq(seq));
        for (batch, ops) in batches {
            let ids = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap().clone();
            all.extend((0..ids.len()).map(|i| (seq, ids.value(i), ops.as_ref().map_or(1, |ops| ops.value(i)))));
        }
    }
    all
}

/// Forget what this process knows, as a restart does. All handles must be dropped first.
fn reopened(store: &Store, log: Log, relation: &str) -> Log {
    assert_eq!(Arc::strong_count(&log.shared), 1);
    drop(log);
    Log::new(store, relation)
}

#[tokio::test]
async fn entries_come_back_in_order_after_a_restart() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "flights");
    assert_eq!(log.head().await.unwrap(), LogSeq(0));
    assert_eq!(log.read(LogSeq(1)).await.unwrap(), None);
    let mut watch = log.watch();
    assert_eq!(log.append(&fence, entry(&[1, 2])).await.unwrap(), LogSeq(1));
    watch.changed().await.unwrap();
    assert_eq!(*watch.borrow_and_update(), LogSeq(1));
    let weighted = LogEntry::new(vec![(rows(&[2]), Some(Int8Array::from(vec![-1]))), (rows(&[3]), None)]);
    assert_eq!(log.append(&fence, weighted).await.unwrap(), LogSeq(2));
    let expected = [(1, 1, 1), (1, 2, 1), (2, 2, -1), (2, 3, 1)];
    assert_eq!(values(&log).await, expected);
    let log = reopened(&store, log, "flights");
    assert_eq!(values(&log).await, expected, "read from the store, not from memory");
    assert_eq!(log.append(&fence, entry(&[])).await.unwrap(), LogSeq(2), "no rows, no entry");
    assert_eq!(Log::new(&store, "other").head().await.unwrap(), LogSeq(0));
}

#[tokio::test]
async fn small_parts_travel_inline_and_large_ones_as_objects() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "a \"quoted/name\"");
    let large: Vec<i64> = (0..50_000i64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect();
    let mut parts = log.stage(&job(), CheckpointId(1), Subtask(0), &[(rows(&[1]), None)]).await.unwrap();
    parts.extend(log.stage(&job(), CheckpointId(1), Subtask(1), &[(rows(&large), None)]).await.unwrap());
    assert!(matches!(parts.as_slice(), [LogPart::Inline { rows: 1, .. }, LogPart::Object { rows: 50_000, .. }]));
    let json = serde_json::to_vec(&parts).unwrap();
    let parts: Vec<LogPart> = serde_json::from_slice(&json).unwrap();
    assert_eq!(log.head().await.unwrap(), LogSeq(0), "staged rows are not visible");

    let seq = log.publish(&fence, (job(), CheckpointId(1)), parts.clone(), None).await.unwrap();
    let (meta, batches) = log.read(seq).await.unwrap().unwrap();
    assert_eq!((meta.rows, meta.writer), (50_001, Some((job(), CheckpointId(1)))));
    assert_eq!(batches, [(rows(&[1]), None), (rows(&large), None)]);

    let LogPart::Object { path, .. } = &parts[1] else { panic!("an object") };
    let full = format!("{}{path}", log.directory);
    let mut bytes = store.get(&full).await.unwrap().to_vec();
    bytes[1000] ^= 1;
    store.put(&full, bytes).await.unwrap();
    assert!(matches!(log.read(seq).await, Err(StorageError::Corrupt { url, .. }) if url == store.absolute(&full)));
    store.delete(&full).await.unwrap();
    assert!(matches!(log.read(seq).await, Err(StorageError::Missing { url, .. }) if url == store.absolute(&full)));
}

#[tokio::test]
async fn a_commit_is_repeated_without_effect_even_after_a_restart() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "totals");
    let part = async |log: &Log, id: u64| {
        log.stage(&job(), CheckpointId(id), Subtask(0), &[(rows(&[id as i64]), None)]).await.unwrap()
    };
    let publish = async |log: &Log, id: u64| {
        log.publish(&fence, (job(), CheckpointId(id)), part(log, id).await, None).await.unwrap()
    };
    assert_eq!(publish(&log, 1).await, LogSeq(1));
    log.append(&fence, entry(&[100])).await.unwrap();
    assert_eq!(publish(&log, 1).await, LogSeq(1));
    assert_eq!(publish(&log, 3).await, LogSeq(3));
    let other = JobId("another".into());
    let seq = log.publish(&fence, (other, CheckpointId(1)), part(&log, 7).await, None).await.unwrap();
    assert_eq!(seq, LogSeq(4), "another job's checkpoints are its own");
    let log = reopened(&store, log, "totals");
    assert_eq!(publish(&log, 3).await, LogSeq(3));
    assert_eq!(publish(&log, 2).await, LogSeq(3), "committed together with the later one");
    assert_eq!(
        log.publish(&fence, (job(), CheckpointId(4)), vec![], None).await.unwrap(),
        LogSeq(4),
        "nothing to publish"
    );
    assert_eq!(values(&log).await.iter().map(|(_, id, _)| *id).collect::<Vec<_>>(), [1, 100, 3, 7]);
}

#[tokio::test]
async fn lost_answers_neither_lose_nor_repeat_rows() {
    let faulty = Arc::new(Faulty::default());
    let store = faulty.store();
    let fence = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
    let log = Log::new(&store, "flights");
    for (i, fault) in [Fault::After, Fault::Before].into_iter().enumerate() {
        faulty.on_put(1, fault);
        assert_eq!(log.append(&fence, entry(&[i as i64])).await.unwrap(), LogSeq(i as u64 + 1));
    }
    let parts = log.stage(&job(), CheckpointId(1), Subtask(0), &[(rows(&[2]), None)]).await.unwrap();
    faulty.on_put(1, Fault::After);
    assert_eq!(log.publish(&fence, (job(), CheckpointId(1)), parts.clone(), None).await.unwrap(), LogSeq(3));
    // All attempts fail: the caller sees an error, and repeats.
    for n in 1..=3 {
        faulty.on_put(n, Fault::Before);
    }
    let next = log.stage(&job(), CheckpointId(2), Subtask(0), &[(rows(&[3]), None)]).await.unwrap();
    assert!(log.publish(&fence, (job(), CheckpointId(2)), next.clone(), None).await.is_err());
    assert_eq!(log.publish(&fence, (job(), CheckpointId(2)), next, None).await.unwrap(), LogSeq(4));
    assert_eq!(values(&log).await, [(1, 0, 1), (2, 1, 1), (3, 2, 1), (4, 3, 1)]);
}

#[tokio::test]
async fn a_taken_position_is_noticed() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "flights");
    log.append(&fence, entry(&[1])).await.unwrap();
    // Another process's entry, of which this one knows nothing: the same job's commit, repeated by its successor.
    let mut header = Header::new(LogEntryKind::Publish);
    let published = Published { checkpoint: CheckpointId(1), seq: LogSeq(2), watermark: None };
    header.published = [(job().0, published)].into();
    header.client_keys = vec!["theirs".into()];
    store.put(&log.entry_path(LogSeq(2)), header.encode(&[])).await.unwrap();

    let parts = log.stage(&job(), CheckpointId(1), Subtask(0), &[(rows(&[2]), None)]).await.unwrap();
    assert_eq!(log.publish(&fence, (job(), CheckpointId(1)), parts, None).await.unwrap(), LogSeq(2));
    assert_eq!(log.append(&fence, keyed(&[3], "theirs")).await.unwrap(), LogSeq(2));
    assert_eq!(log.append(&fence, keyed(&[4], "ours")).await.unwrap(), LogSeq(3));
    assert_eq!(values(&log).await, [(1, 1, 1), (3, 4, 1)]);
}

#[tokio::test]
async fn a_fenced_process_does_not_append() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "flights");
    log.append(&fence, entry(&[1])).await.unwrap();
    fence.release().await.unwrap();
    let next = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
    assert!(matches!(log.append(&fence, entry(&[2])).await, Err(StorageError::Fenced { .. })));
    assert_eq!(log.append(&next, entry(&[3])).await.unwrap(), LogSeq(2));
}

#[tokio::test]
async fn a_client_key_is_written_once() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "flights");
    let group = vec![keyed(&[1], "a"), keyed(&[1], "a"), entry(&[9]), keyed(&[2], "b")];
    assert_eq!(log.append_group(&fence, group).await.unwrap(), [LogSeq(1); 4]);
    assert_eq!(log.append(&fence, keyed(&[3], "c")).await.unwrap(), LogSeq(2));
    let log = reopened(&store, log, "flights");
    assert_eq!(log.known_client_key("b").await.unwrap(), Some(LogSeq(1)));
    assert_eq!(log.known_client_key("d").await.unwrap(), None);
    let group = vec![keyed(&[1], "a"), keyed(&[4], "d"), keyed(&[3], "c")];
    assert_eq!(log.append_group(&fence, group).await.unwrap(), [1, 3, 2].map(LogSeq));
    assert_eq!(log.append(&fence, keyed(&[4], "d")).await.unwrap(), LogSeq(3));
    assert_eq!(values(&log).await.iter().map(|(_, id, _)| *id).collect::<Vec<_>>(), [1, 9, 2, 3, 4]);
}

#[test]
fn old_client_keys_are_forgotten() {
    let mut keys = ClientKeys::default();
    keys.add(LogSeq(1), &["a".into(), "b".into()], LogSeq(0));
    keys.add(LogSeq(2), &["a".into()], LogSeq(0));
    keys.add(LogSeq(3), &["c".into()], LogSeq(2));
    assert_eq!(["a", "b", "c"].map(|key| keys.get(key)), [Some(LogSeq(2)), None, Some(LogSeq(3))]);
}

#[tokio::test]
async fn concurrent_appends_share_entries() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "flights");
    let appender = LogAppender::new(log.clone(), fence);
    let appends = (0..200).map(|i| {
        let appender = appender.clone();
        async move { appender.append(keyed(&[i], &format!("key {i}"))).await.unwrap() }
    });
    let sequence = futures::future::join_all(appends).await;
    assert!(log.head().await.unwrap() < LogSeq(20), "{}", log.head().await.unwrap());
    let all = values(&log).await;
    let mut ids: Vec<i64> = all.iter().map(|(_, id, _)| *id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..200).collect::<Vec<_>>());
    for (i, seq) in sequence.into_iter().enumerate() {
        assert!(all.contains(&(seq.0, i as i64, 1)));
    }
}

#[tokio::test]
async fn a_failed_group_fails_every_append_in_it() {
    let faulty = Arc::new(Faulty::default());
    let store = faulty.store();
    let fence = Arc::new(Fence::acquire(&store, OwnerInfo::current()).await.unwrap());
    let log = Log::new(&store, "flights");
    let appender = LogAppender::new(log.clone(), fence);
    faulty.on_every_put(Some(Fault::Refused));
    let results = futures::future::join_all((0..3).map(|i| appender.append(entry(&[i])))).await;
    for result in results {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(&format!("appending to {}", log.url())) && error.contains("denied"), "{error}");
    }
    faulty.on_every_put(None);
    assert_eq!(appender.append(entry(&[7])).await.unwrap(), LogSeq(1));
}

#[tokio::test]
async fn a_long_log_is_opened_from_its_hint() {
    let (store, fence) = owned().await;
    let mut log = Log::new(&store, "flights");
    for i in 1..=200 {
        log.append(&fence, entry(&[i])).await.unwrap();
        if [1, 63, 64, 65, 127, 190].contains(&i) {
            log = reopened(&store, log, "flights");
            assert_eq!(log.head().await.unwrap(), LogSeq(i as u64));
        }
    }
    assert!(store.exists("logs/flights/HEAD").await.unwrap());
    // An empty hint, as a power loss may leave it, costs a listing and nothing else.
    store.put("logs/flights/HEAD", "").await.unwrap();
    let log = reopened(&store, log, "flights");
    assert_eq!(log.head().await.unwrap(), LogSeq(200));
}

#[tokio::test]
async fn trimming_removes_entries_and_their_objects() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "flights");
    let large: Vec<i64> = (0..50_000i64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect();
    for id in 1..=3u64 {
        let parts = log.stage(&job(), CheckpointId(id), Subtask(0), &[(rows(&large), None)]).await.unwrap();
        log.publish(&fence, (job(), CheckpointId(id)), parts, None).await.unwrap();
    }
    log.stage(&job(), CheckpointId(4), Subtask(0), &[(rows(&large), None)]).await.unwrap();
    assert_eq!(store.list("logs/flights/data").await.unwrap().len(), 4);
    assert_eq!(log.discard_staged(&job(), CheckpointId(3)).await.unwrap(), 1);
    assert_eq!(log.trim(&fence, LogSeq(1)).await.unwrap(), 0);
    assert_eq!(log.trim(&fence, LogSeq(3)).await.unwrap(), 2);
    assert_eq!(log.trim(&fence, LogSeq(99)).await.unwrap(), 0, "the newest entry stays");
    assert_eq!(store.list("logs/flights/data").await.unwrap().len(), 1);
    let log = reopened(&store, log, "flights");
    assert_eq!((log.first().await.unwrap(), log.head().await.unwrap()), (LogSeq(3), LogSeq(3)));
    let error = log.read(LogSeq(2)).await.unwrap_err();
    assert!(matches!(error, StorageError::Missing { .. }), "{error}");
    assert!(log.read(LogSeq(3)).await.unwrap().is_some());
    let seq = log.publish(&fence, (job(), CheckpointId(2)), vec![], None).await.unwrap();
    assert_eq!(seq, LogSeq(3), "what was published is still known");

    log.delete_all(&fence).await.unwrap();
    assert_eq!(log.head().await.unwrap(), LogSeq(0));
    assert_eq!(store.list("logs").await.unwrap(), []);
    assert_eq!(log.append(&fence, entry(&[1])).await.unwrap(), LogSeq(1));
}

#[tokio::test]
async fn a_watermark_is_written_when_it_moved_and_never_goes_back() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "s");
    let publish = async |log: &Log, id: u64, values: &[i64], watermark: Option<i64>| {
        let parts = match values {
            [] => Vec::new(),
            _ => log.stage(&job(), CheckpointId(id), Subtask(0), &[(rows(values), None)]).await.unwrap(),
        };
        log.publish(&fence, (job(), CheckpointId(id)), parts, watermark).await.unwrap().0
    };
    let meta = async |log: &Log, seq: u64| {
        let (meta, _) = log.read(LogSeq(seq)).await.unwrap().unwrap();
        (meta.rows, meta.watermark)
    };
    assert_eq!(publish(&log, 1, &[], None).await, 0, "nothing to tell");
    assert_eq!(publish(&log, 2, &[1], Some(10)).await, 1);
    assert_eq!(publish(&log, 3, &[], Some(10)).await, 1, "nothing moved");
    assert_eq!(publish(&log, 4, &[], Some(20)).await, 2);
    assert_eq!(publish(&log, 4, &[], Some(20)).await, 2, "repeated after a crash");
    log.append(&fence, entry(&[7])).await.unwrap();
    let log = reopened(&store, log, "s");
    assert_eq!(publish(&log, 4, &[], Some(20)).await, 2, "and after a restart");
    assert_eq!(publish(&log, 5, &[], Some(15)).await, 3, "it does not go back");
    assert_eq!(publish(&log, 6, &[2], Some(15)).await, 4);
    assert_eq!(publish(&log, 7, &[3], None).await, 5);
    assert_eq!(publish(&log, 8, &[], Some(i64::MAX)).await, 6);
    let mut told = Vec::new();
    for seq in 1..=6 {
        told.push(meta(&log, seq).await);
    }
    let end = Some(i64::MAX);
    assert_eq!(told, [(1, Some(10)), (0, Some(20)), (1, None), (1, Some(20)), (1, Some(20)), (0, end)]);
}

#[tokio::test]
async fn client_keys_are_known_after_their_entries_were_trimmed() {
    let (store, fence) = owned().await;
    let mut log = Log::new(&store, "flights");
    for i in 1..=10 {
        log.append(&fence, keyed(&[i], &format!("key {i}"))).await.unwrap();
    }
    for before in [4, 8] {
        log.trim(&fence, LogSeq(before)).await.unwrap();
        log = reopened(&store, log, "flights");
        for i in 1..=10 {
            assert_eq!(log.known_client_key(&format!("key {i}")).await.unwrap(), Some(LogSeq(i)));
        }
    }
    assert_eq!(log.append(&fence, keyed(&[3], "key 3")).await.unwrap(), LogSeq(3), "not written again");
    assert_eq!(log.append(&fence, keyed(&[11], "key 11")).await.unwrap(), LogSeq(11));
    assert_eq!(values(&log).await.iter().map(|(_, id, _)| *id).collect::<Vec<_>>(), [8, 9, 10, 11]);
}

#[tokio::test]
async fn a_trim_that_was_interrupted_leaves_a_log_that_opens_and_the_next_one_finishes_it() {
    let (store, fence) = owned().await;
    let names = async || {
        let mut names: Vec<String> = store.list("logs/flights").await.unwrap().into_iter().map(|o| o.path).collect();
        names.retain(|name| !name.ends_with("HEAD"));
        names
    };
    let log = Log::new(&store, "flights");
    for i in 1..=9 {
        log.append(&fence, entry(&[i])).await.unwrap();
    }
    let all = names().await;
    log.trim(&fence, LogSeq(7)).await.unwrap();
    // As if the process had died before some of the entries were removed.
    for left in [2, 4, 5] {
        store.put(&log.entry_path(LogSeq(left)), Header::new(LogEntryKind::Append).encode(&[])).await.unwrap();
    }
    let log = reopened(&store, log, "flights");
    assert_eq!((log.first().await.unwrap(), log.head().await.unwrap()), (LogSeq(7), LogSeq(9)));
    assert_eq!(values(&log).await.iter().map(|(_, id, _)| *id).collect::<Vec<_>>(), [7, 8, 9]);
    // Without the hint the log begins where it has no gap any more.
    store.delete("logs/flights/HEAD").await.unwrap();
    let log = reopened(&store, log, "flights");
    assert_eq!((log.first().await.unwrap(), log.head().await.unwrap()), (LogSeq(7), LogSeq(9)));
    assert_eq!(log.trim(&fence, LogSeq(7)).await.unwrap(), 3);
    assert_eq!(names().await, all[6..]);
    assert_eq!(log.trim(&fence, LogSeq(7)).await.unwrap(), 0);
    assert_eq!(log.append(&fence, entry(&[10])).await.unwrap(), LogSeq(10));
}

#[tokio::test]
async fn the_extent_tells_age_and_size_of_the_oldest_entries() {
    let (store, fence) = owned().await;
    let log = Log::new(&store, "flights");
    assert_eq!(log.extent(true).await.unwrap(), LogExtent { first: LogSeq(1), ..LogExtent::default() });
    let large: Vec<i64> = (0..50_000i64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect();
    log.append(&fence, entry(&[1])).await.unwrap();
    let parts = log.stage(&job(), CheckpointId(1), Subtask(0), &[(rows(&large), None)]).await.unwrap();
    log.publish(&fence, (job(), CheckpointId(1)), parts, None).await.unwrap();
    let extent = log.extent(true).await.unwrap();
    assert_eq!((extent.first, extent.head, extent.oldest.len()), (LogSeq(1), LogSeq(2), 2));
    assert_eq!(extent.oldest.iter().map(|entry| entry.bytes).sum::<u64>(), extent.bytes, "objects count");
    assert!(extent.oldest[1].bytes > 300_000 && extent.oldest[0].bytes < 2_000, "{extent:?}");
    log.trim(&fence, LogSeq(2)).await.unwrap();
    let rest = log.extent(true).await.unwrap();
    assert_eq!((rest.first, &rest.oldest[..]), (LogSeq(2), &extent.oldest[1..]));
}
