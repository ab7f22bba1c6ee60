use super::super::job_store::tests::take;
use super::*;

fn none() -> BTreeMap<String, String> {
    BTreeMap::new()
}

async fn two_jobs(store: &Store) -> (JobStore, Manifest) {
    let job = JobStore::read_only(store, &JobId("by_carrier-1".into()));
    let (one, _) = take(&job, 1, &[]).await;
    let (two, _) = take(&job, 2, &one.segments().cloned().collect::<Vec<_>>()).await;
    let other = JobStore::read_only(store, &JobId("by/day-2".into()));
    take(&other, 7, &[]).await;
    (job, two)
}

#[tokio::test]
async fn any_url_will_do() {
    let directory = tempfile::tempdir().unwrap();
    for url in [directory.path().to_str().unwrap(), "memory:"] {
        let store = Store::open(url, &none()).unwrap();
        let (job, two) = two_jobs(&store).await;
        let report = verify(store.url(), &none()).await.unwrap();
        assert!(report.is_ok(), "{report:?}");
        assert_eq!((report.checkpoints.len(), report.objects, report.bytes), (3, 3, 300));
        assert_eq!(list(store.url(), &none()).await.unwrap().len(), 3);

        let of_job = list(&job.url(), &none()).await.unwrap();
        assert_eq!(of_job.iter().map(|(_, info)| info.id).collect::<Vec<_>>(), [CheckpointId(1), CheckpointId(2)]);
        assert_eq!(of_job[1].1.url, job.manifest_url(CheckpointId(2)));
        assert_eq!(show(&job.url(), &none()).await.unwrap().checkpoint, CheckpointId(2));
        for url in [job.manifest_url(CheckpointId(2)), format!("{}/chk-2/", job.url())] {
            let report = verify(&url, &none()).await.unwrap();
            assert!(report.is_ok(), "{report:?}");
            assert_eq!(report.checkpoints, [job.manifest_url(CheckpointId(2))]);
            assert_eq!(report.objects, 2);
            assert_eq!(show(&url, &none()).await.unwrap().checkpoint, two.checkpoint);
        }
        let refused = show(store.url(), &none()).await.unwrap_err().to_string();
        assert!(refused.contains("2 jobs"), "{refused}");
    }
}

#[tokio::test]
async fn every_missing_or_damaged_object_is_named() {
    let store = Store::open("memory:", &none()).unwrap();
    let (job, two) = two_jobs(&store).await;
    let objects: Vec<String> = two.segments().filter_map(Segment::object).map(|path| job.path(path)).collect();
    let bytes = store.get(&objects[0]).await.unwrap().to_vec();
    store.delete(&objects[1]).await.unwrap();

    let cases = [
        (bytes.iter().enumerate().map(|(i, b)| b ^ u8::from(i == 60)).collect::<Vec<u8>>(), "checksum"),
        (bytes[..50].to_vec(), "it has 50 bytes"),
        (bytes[..bytes.len() - 1].to_vec(), "cut off"),
        (Vec::new(), "it has 0 bytes"),
    ];
    for (damaged, reason) in cases {
        store.put(&objects[0], damaged).await.unwrap();
        let report = verify(&job.url(), &none()).await.unwrap();
        assert!(!report.is_ok());
        let of = |path: &str| report.problems.iter().find(|p| p.url == store.absolute(path)).unwrap();
        assert_eq!(of(&objects[1]).reason, "it does not exist");
        assert_eq!(of(&objects[1]).needed_by, [1, 2].map(|id| job.manifest_url(CheckpointId(id))));
        assert_eq!(of(&objects[0]).needed_by, [job.manifest_url(CheckpointId(2))]);
        assert!(of(&objects[0]).to_string().contains(reason), "{}", of(&objects[0]));
    }

    store.put(&job.path("chk-1/_metadata"), "{").await.unwrap();
    let report = verify(store.url(), &none()).await.unwrap();
    assert!(report.problems.iter().any(|p| p.url == job.manifest_url(CheckpointId(1))), "{report:?}");
    let absent = verify(&job.manifest_url(CheckpointId(9)), &none()).await.unwrap();
    assert_eq!(absent.problems[0].reason, "it does not exist");
}

#[tokio::test]
async fn other_places_are_refused() {
    let store = Store::open("memory:", &none()).unwrap();
    store.put("photos/1.jpg", "x").await.unwrap();
    let error = verify(store.url(), &none()).await.unwrap_err().to_string();
    assert!(error.contains("neither a store of Weir"), "{error}");
}
