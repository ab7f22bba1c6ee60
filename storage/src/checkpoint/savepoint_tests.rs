use super::super::job_store::tests::take;
use super::super::manifest::Committable;
use super::super::verify::{list, verify};
use super::*;
use crate::JobId;

fn none() -> BTreeMap<String, String> {
    BTreeMap::new()
}

fn about() -> SavepointAbout {
    SavepointAbout { query: "by/carrier".into(), name: Some("one".into()), created_at_ms: 9, inputs: BTreeMap::new() }
}

/// A job with two checkpoints, of which the second shares an object of the first and has output to commit.
async fn job(store: &Store) -> (JobStore, Manifest) {
    let job = JobStore::read_only(store, &JobId("by_carrier-1".into()));
    let (one, _) = take(&job, 1, &[]).await;
    let (mut two, _) = take(&job, 2, &one.segments().cloned().collect::<Vec<_>>()).await;
    two.operators[0].subtasks[0].committables = vec![Committable(Bytes::from_static(b"part"))];
    two.operators[0].subtasks[0].sink_state = Bytes::from_static(b"own");
    (job, two)
}

#[tokio::test]
async fn a_savepoint_outlives_its_job_and_a_move() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for url in [directory.path().to_str().unwrap(), "memory:"] {
        let store = Store::open(url, &none()).unwrap();
        let (job, two) = job(&store).await;
        let place = SavepointPlace::within(&store, "by/carrier", "one");
        let info = place.write(&job, &two, about()).await.unwrap();
        assert_eq!(info.url, format!("{}/_metadata", place.url()));
        assert_eq!((info.objects, info.new_bytes, info.shared_bytes, &info.note), (2, 200, 0, &None));
        assert!(place.url().starts_with(&format!("{}/savepoints/by%", store.url())), "{}", place.url());
        assert!(matches!(place.write(&job, &two, about()).await, Err(StorageError::Conflict { .. })));
        assert_eq!(list(store.url(), &none()).await.unwrap().len(), 3, "it is listed with the checkpoints");

        job.delete_all().await.unwrap();
        for url in [place.url(), info.url.clone()] {
            let report = verify(&url, &none()).await.unwrap();
            assert!(report.is_ok(), "{report:?}");
            assert_eq!((report.checkpoints, report.objects, report.bytes), (vec![info.url.clone()], 2, 200));
        }
        let found = locate(&place.url(), &none()).await.unwrap();
        assert!(found.is_savepoint());
        assert_eq!(found.manifest.savepoint, Some(about()));
        assert!(found.manifest.operators[0].subtasks[0].committables.is_empty(), "it is committed");

        // Into the directory of another query, in another store.
        let other = Store::open(elsewhere.path().to_str().unwrap(), &none()).unwrap();
        let fork = JobStore::read_only(&other, &JobId(format!("fork-{}", store.url().len())));
        let adopted = fork.adopt(&found, CheckpointId(1), Epoch(3), Generation(7), false).await.unwrap();
        assert_eq!((adopted.id, adopted.objects, adopted.new_bytes), (CheckpointId(1), 2, 200));
        found.delete().await.unwrap();
        assert!(locate(&place.url(), &none()).await.is_err());
        let restored = fork.latest().await.unwrap().unwrap();
        assert_eq!((restored.epoch, restored.generation), (two.epoch, Generation(7)));
        assert_eq!((&restored.job, &restored.savepoint), (fork.job(), &None));
        assert!(restored.operators[0].subtasks[0].sink_state.is_empty(), "that of another query's sink");
        assert!(verify(&fork.url(), &none()).await.unwrap().is_ok());
    }
}

#[tokio::test]
async fn a_job_goes_back_to_a_checkpoint_of_its_own_without_copies() {
    let store = Store::open("memory:", &none()).unwrap();
    let (job, two) = job(&store).await;
    let found = locate(&job.manifest_url(CheckpointId(1)), &none()).await.unwrap();
    assert!(!found.is_savepoint());
    let epoch = two.epoch.next();
    let info = job.adopt(&found, CheckpointId(3), epoch, Generation(2), false).await.unwrap();
    assert_eq!((info.id, info.objects, info.shared_bytes), (CheckpointId(3), 1, 100));
    let newest = job.latest().await.unwrap().unwrap();
    assert_eq!((newest.checkpoint, newest.epoch, newest.objects()), (CheckpointId(3), epoch, found.manifest.objects()));
    assert_eq!(store.list("jobs/by_carrier-1/data").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_claimed_checkpoint_leaves_what_its_neighbours_need() {
    let store = Store::open("memory:", &none()).unwrap();
    let (job, _) = job(&store).await;
    locate(&job.manifest_url(CheckpointId(1)), &none()).await.unwrap().delete().await.unwrap();
    assert_eq!(job.list().await.unwrap(), [CheckpointId(2)]);
    assert!(verify(&job.url(), &none()).await.unwrap().is_ok());
    locate(&job.url(), &none()).await.unwrap().delete().await.unwrap();
    assert!(store.list("jobs").await.unwrap().is_empty());
}

#[tokio::test]
async fn half_a_savepoint_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap(), &none()).unwrap();
    let (job, two) = job(&store).await;
    let place = SavepointPlace::within(&store, "q", "half");
    let object = *two.objects().first().unwrap();
    store.copy(&job.path(object), &store, &place.path(object)).await.unwrap();
    assert!(locate(&place.url(), &none()).await.is_err());
    let report = verify(&place.url(), &none()).await.unwrap();
    assert!(report.problems[0].reason.contains("never complete"), "{report:?}");
    assert_eq!(verify(store.url(), &none()).await.unwrap().checkpoints.len(), 2, "nor is it counted with the others");
    // Taking it again completes it.
    place.write(&job, &two, about()).await.unwrap();
    assert!(verify(&place.url(), &none()).await.unwrap().is_ok());
}

#[tokio::test]
async fn a_savepoint_of_what_is_gone_fails_and_leaves_nothing() {
    let store = Store::open("memory:", &none()).unwrap();
    let (job, two) = job(&store).await;
    let lost = two.objects().last().unwrap().to_string();
    store.delete(&job.path(&lost)).await.unwrap();
    let place = SavepointPlace::within(&store, "q", "lost");
    let error = place.write(&job, &two, about()).await.unwrap_err();
    assert!(matches!(&error, StorageError::Missing { url, .. } if *url == job.absolute(&lost)), "{error}");
    assert!(store.list(SAVEPOINTS).await.unwrap().is_empty());
}

#[tokio::test]
async fn places_that_would_be_misread_are_refused() {
    let store = Store::open("memory:", &none()).unwrap();
    for (url, reason) in [("relative/path", "relative"), ("memory:/x/chk-3", "that of a checkpoint"), ("", "relative")]
    {
        let error = SavepointPlace::at(url, &store, &none()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let within = SavepointPlace::at(&format!("{}/mine/x", store.url()), &store, &none());
    if let Ok(within) = within {
        assert_eq!(within.url(), format!("{}/mine/x", store.url()));
    }
}
