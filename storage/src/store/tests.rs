use std::time::Duration;

use super::testing::{Fault, Faulty};
use super::*;

fn both() -> (tempfile::TempDir, Vec<Store>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a new/directory");
    let stores = [path.to_str().unwrap(), "memory:"].map(|url| Store::open(url, &BTreeMap::new()).unwrap());
    (directory, stores.into())
}

#[tokio::test]
async fn reads_back_what_was_written() {
    let (_directory, stores) = both();
    for store in stores {
        store.probe().await.unwrap();
        assert_eq!(store.list("").await.unwrap(), [], "a probe leaves nothing behind");
        store.put("a/b", "first").await.unwrap();
        store.put("a/b", "second").await.unwrap();
        store.put_relaxed("a/d", "hint").await.unwrap();
        assert_eq!(store.get("a/b").await.unwrap(), "second");
        assert_eq!(store.get_range("a/b", 1..4).await.unwrap(), "eco");
        assert!(store.get_range("a/b", 1..40).await.is_err(), "{}", store.url());
        assert_eq!(store.get_prefix("a/b", 40).await.unwrap().unwrap(), "second");
        assert_eq!(store.size("a/b").await.unwrap(), Some(6));
        assert!(!store.exists("a/c").await.unwrap());
        assert!(store.create("a/c", "created").await.unwrap());
        assert!(!store.create("a/c", "created").await.unwrap());
        let listed: Vec<_> = store.list("a").await.unwrap().into_iter().map(|o| (o.path, o.size)).collect();
        assert_eq!(listed, [("a/b".to_owned(), 6), ("a/c".to_owned(), 7), ("a/d".to_owned(), 4)]);
        assert_eq!(store.list_directories("").await.unwrap(), ["a"]);
        assert_eq!(store.list("b").await.unwrap(), []);
        assert_eq!(store.list_directories("b/c").await.unwrap(), Vec::<String>::new());
        store.delete_many(vec!["a/b".into(), "a/gone".into(), "a/d".into()]).await.unwrap();
        store.delete("a/b").await.unwrap();
        let error = store.get("a/b").await.unwrap_err();
        assert!(error.is_not_found() && error.to_string().contains(&store.absolute("a/b")), "{error}");
    }
}

#[tokio::test]
async fn large_objects_appear_whole_or_not_at_all() {
    let (directory, stores) = both();
    for store in stores {
        let mut upload = store.upload("big/one", 1000).await.unwrap();
        for i in 0..10u8 {
            upload.write(vec![i; 777].into()).await.unwrap();
        }
        assert!(!store.exists("big/one").await.unwrap());
        upload.finish().await.unwrap();
        let expected: Vec<u8> = (0..10u8).flat_map(|i| vec![i; 777]).collect();
        assert_eq!(store.get("big/one").await.unwrap(), expected);

        let mut upload = store.upload("big/two", 1000).await.unwrap();
        upload.write(vec![0; 5000].into()).await.unwrap();
        upload.abort().await.unwrap();
        assert_eq!(store.list("big").await.unwrap().len(), 1);
    }
    let left: Vec<_> = std::fs::read_dir(directory.path().join("a new/directory/big")).unwrap().collect();
    assert_eq!(left.len(), 1, "no staging file stays: {left:?}");
}

#[tokio::test]
async fn urls_are_absolute_and_name_what_is_wrong() {
    let open = |url: &str| Store::open(url, &BTreeMap::new());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    for url in
        [format!("{}/x/", path.display()), format!("file://{}/x", path.display()), format!("file:{}/x", path.display())]
    {
        let store = open(&url).unwrap();
        assert_eq!(store.url(), format!("file://{}/x", path.display()), "{url}");
        assert_eq!(store.absolute("chk-1/_metadata"), format!("file://{}/x/chk-1/_metadata", path.display()));
    }
    let refused = |url: &str| open(url).unwrap_err().to_string();
    assert!(refused("hdfs://name/x").contains("file:, s3:, gs:, az:"), "{}", refused("hdfs://name/x"));
    assert!(refused("s3:///x").contains("bucket"), "{}", refused("s3:///x"));
    assert!(refused(" ").contains("empty"));
    let absent = path.join("absent");
    assert!(Store::open_existing(absent.to_str().unwrap(), &BTreeMap::new()).is_err());
    assert!(!absent.exists(), "looking creates nothing");

    let options = [("endpoint", "http://127.0.0.1:1"), ("region", "eu-central-1"), ("allow-http", "true")];
    let options = options.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let store = Store::open("s3://bucket/some/prefix/", &options).unwrap();
    assert_eq!(store.absolute("LATEST"), "s3://bucket/some/prefix/LATEST");
    assert_eq!(store.location("a").unwrap().as_ref(), "some/prefix/a");
    let unknown = [("colour".to_owned(), "blue".to_owned())].into();
    assert!(Store::open("s3://bucket", &unknown).unwrap_err().to_string().contains("\"colour\""));
}

#[tokio::test]
async fn names_with_anything_in_them_stay_one_part() {
    let (_directory, stores) = both();
    for store in stores {
        for name in ["a/b", "100% #1", "ä..", "..", "x*?y"] {
            let path = format!("logs/{}/00", path_part(name));
            store.put(&path, name.to_owned()).await.unwrap();
            assert_eq!(store.get(&path).await.unwrap(), name.to_owned());
            assert!(store.list("logs").await.unwrap().iter().any(|o| o.path == path), "{name}");
        }
        assert_eq!(store.list_directories("logs").await.unwrap().len(), 5);
    }
}

#[tokio::test]
async fn memory_stores_are_found_by_their_url() {
    let store = Store::open("memory:", &BTreeMap::new()).unwrap();
    store.put("jobs/x/LATEST", "1").await.unwrap();
    let again = Store::open(&store.absolute("jobs"), &BTreeMap::new()).unwrap();
    assert_eq!(again.get("x/LATEST").await.unwrap(), "1");
    let other = Store::open("memory:", &BTreeMap::new()).unwrap();
    assert_eq!(other.list("").await.unwrap(), []);
}

#[tokio::test]
async fn transient_errors_are_tried_again_and_definite_ones_are_not() {
    let faulty = Arc::new(Faulty::default());
    let store = faulty.store();
    faulty.on_put(1, Fault::Before);
    faulty.on_put(2, Fault::After);
    store.put("a", "x").await.unwrap();
    assert_eq!(faulty.puts(), 3);
    faulty.on_get(1, Fault::Before);
    assert_eq!(store.get("a").await.unwrap(), "x");
    faulty.on_put(1, Fault::Refused);
    let error = store.put("b", "x").await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("write {}", store.absolute("b"))) && error.contains("access denied"), "{error}");
    assert_eq!(faulty.puts(), 4);
    for n in 1..=3 {
        faulty.on_put(n, Fault::Before);
    }
    assert!(store.put("b", "x").await.is_err());
}

#[tokio::test]
async fn the_outcome_of_a_create_is_always_known() {
    let faulty = Arc::new(Faulty::default());
    let store = faulty.store();
    // The work was done, the answer lost: ours.
    faulty.on_put(1, Fault::After);
    assert!(store.create("a", "mine").await.unwrap());
    assert_eq!(faulty.puts(), 1);
    // Nothing was done: tried again.
    faulty.on_put(1, Fault::Before);
    assert!(store.create("b", "mine").await.unwrap());
    // Somebody else was faster.
    faulty.on_put(1, Fault::Overtaken);
    assert!(!store.create("c", "mine").await.unwrap());
    assert_eq!(store.get("c").await.unwrap(), "somebody else's");
    // The answer got lost twice; the second request finds the first one's object.
    faulty.on_put(1, Fault::Before);
    faulty.on_put(2, Fault::After);
    assert!(store.create("d", "mine").await.unwrap());
    for n in 1..=3 {
        faulty.on_put(n, Fault::Before);
    }
    assert!(store.create("e", "mine").await.is_err());
    assert!(!store.exists("e").await.unwrap());
}

#[tokio::test]
async fn the_probe_names_what_is_missing() {
    for (n, fault, operation) in [(1, Fault::Refused, "write"), (2, Fault::Refused, "create conditionally")] {
        let faulty = Arc::new(Faulty::default());
        let store = faulty.store();
        faulty.on_put(n, fault);
        let error = store.probe().await.unwrap_err();
        assert!(matches!(error, StorageError::Probe { operation: o, .. } if o == operation), "{error}");
        assert!(error.to_string().contains(&format!("{}/probe/", store.url())), "{error}");
    }
    let faulty = Arc::new(Faulty::default());
    faulty.on_get(1, Fault::Refused);
    let error = faulty.store().probe().await.unwrap_err().to_string();
    assert!(error.contains("cannot read"), "{error}");
}

#[tokio::test]
async fn a_directory_that_cannot_be_created_is_reported() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Store::open(&format!("{}/x", file.path().display()), &BTreeMap::new()).unwrap_err();
    assert!(matches!(error, StorageError::Io { .. }), "{error}");
}

#[tokio::test]
async fn interrupted_writes_leave_nothing_for_long() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap(), &BTreeMap::new()).unwrap();
    store.put("data/kept", "x").await.unwrap();
    let staging = directory.path().join("data/lost#123456");
    std::fs::write(&staging, "half").unwrap();
    assert_eq!(store.list("data").await.unwrap().len(), 1, "a staging file is no object");
    assert_eq!(store.remove_stale_staging("data", Duration::from_secs(3600)).await.unwrap(), 0);
    assert_eq!(store.remove_stale_staging("data", Duration::ZERO).await.unwrap(), 1);
    assert!(!staging.exists());
    assert!(store.exists("data/kept").await.unwrap());
}
