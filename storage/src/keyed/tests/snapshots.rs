//! What a snapshot uploads.

use super::*;

#[tokio::test]
async fn an_empty_state_uploads_nothing() {
    let mut world = World::new();
    let state = world.create(ALL);
    let snapshot = world.checkpoint(&state).await;
    assert_eq!((snapshot.files.len(), snapshot.bytes()), (0, 0));
    assert!(world.store.list("jobs").await.unwrap().is_empty());
    let restored = world.restore(ALL, &[snapshot]).await;
    assert!(contents(&table(&restored)).is_empty());
}

#[tokio::test]
async fn only_changes_are_uploaded() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 10_000, 0);
    let full = world.checkpoint(&state).await;
    assert!(full.new_bytes > 1_000_000 && full.shared_bytes == 0, "{full:?}");

    fill(&table(&state), 500, 100, 1);
    let changed = world.checkpoint(&state).await;
    assert!(changed.new_bytes < 30_000, "{}", changed.new_bytes);
    assert_eq!(sst_names(&changed)[..1], sst_names(&full));

    let unchanged = world.checkpoint(&state).await;
    assert_eq!(sst_names(&unchanged), sst_names(&changed));
    assert!(unchanged.new_bytes < 2_000, "only the list of files: {}", unchanged.new_bytes);
    world.keep_only(&unchanged).await;
    let restored = world.restore(ALL, &[unchanged]).await;
    assert_eq!(contents(&table(&restored)), contents(&table(&state)));
}

#[tokio::test]
async fn many_small_changes_upload_a_key_a_few_times_only() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 20_000, 0);
    let full = world.checkpoint(&state).await.new_bytes;
    let mut uploaded = 0;
    for round in 0..40 {
        fill(&table(&state), round * 200, 200, 1);
        uploaded += world.checkpoint(&state).await.new_bytes;
    }
    // 40 rounds change 40 % of the state.
    assert!(uploaded < 3 * full, "{uploaded} of {full}");
}

#[tokio::test]
async fn a_snapshot_holds_tables_and_their_list_and_nothing_else() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 10, 0);
    let snapshot = world.checkpoint(&state).await;
    let other: Vec<_> = snapshot.files.iter().map(|file| &file.name).filter(|name| !name.ends_with(".sst")).collect();
    assert!(matches!(other[..], [current, list] if current == "CURRENT" && list.starts_with("MANIFEST-")), "{other:?}");
    let json = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<KeyedSnapshot>(&json).unwrap(), snapshot);
}

#[tokio::test]
async fn an_aborted_snapshot_leaves_nothing_and_is_not_referenced() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 1000, 0);
    let pending = state.snapshot(&world.path("staging")).unwrap();
    assert!(world.path("staging").exists() && pending.new_bytes().unwrap() > 100_000);
    drop(pending);
    assert!(!world.path("staging").exists());

    let aborted = world.upload(&state).await;
    let next = world.checkpoint(&state).await;
    assert!(next.new_bytes >= aborted.new_bytes && next.shared_bytes == 0);
    world.keep_only(&next).await;
    let restored = world.restore(ALL, &[next]).await;
    assert_eq!(contents(&table(&restored)), contents(&table(&state)));
}

#[tokio::test]
async fn an_upload_that_fails_is_an_error_and_leaves_nothing() {
    let world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 1000, 0);
    let writer = world.job.begin(CheckpointId(1), world.options.clone(), 1);
    let uploaded = state.snapshot(&world.path("staging")).unwrap().upload(&writer);
    writer.abort("the test wants it").await;
    let message = uploaded.await.unwrap_err().to_string();
    assert!(message.contains("checkpoint 1 was aborted"), "{message}");
    assert!(!world.path("staging").exists());
}

#[tokio::test]
async fn what_a_crash_left_in_the_staging_directory_does_not_disturb() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 10, 0);
    for left in ["staging", "staging.tmp"] {
        std::fs::create_dir_all(world.path(left)).unwrap();
        std::fs::write(world.path(left).join("CURRENT"), "junk").unwrap();
    }
    let snapshot = world.checkpoint(&state).await;
    assert_eq!(contents(&table(&world.restore(ALL, &[snapshot]).await)).len(), 10);
}

#[tokio::test]
async fn copies_can_be_made_to_be_uploaded_again() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 1000, 0);
    let first = world.checkpoint(&state).await;
    state.upload_again(&|segment| first.segments().any(|old| old == segment));
    let second = world.checkpoint(&state).await;
    assert_eq!(sst_names(&second), sst_names(&first));
    assert!(second.segments().all(|segment| first.segments().all(|old| old != segment)));
}

#[tokio::test]
async fn small_state_lives_in_the_manifest() {
    let mut world = World::new();
    world.options = MergeOptions::default();
    let state = world.create(ALL);
    fill(&table(&state), 0, 10, 0);
    let snapshot = world.checkpoint(&state).await;
    assert!(snapshot.segments().all(|segment| segment.object().is_none()));
    assert_eq!(contents(&table(&world.restore(ALL, &[snapshot]).await)), contents(&table(&state)));
}
