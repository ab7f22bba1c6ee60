//! Restoring, with the same and with other key groups.

use super::*;
use crate::Segment;

#[tokio::test]
async fn history_survives_recovery() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 5000, 0);
    let before = world.checkpoint(&state).await;
    drop(state);
    let restored = world.restore(ALL, std::slice::from_ref(&before)).await;
    fill(&table(&restored), 0, 10, 1);
    let after = world.checkpoint(&restored).await;
    assert!(after.new_bytes < 10_000 && after.shared_bytes > 500_000, "{} {}", after.new_bytes, after.shared_bytes);
    assert_ne!(after.instance, before.instance);
}

#[tokio::test]
async fn a_table_name_that_comes_again_with_other_content_is_uploaded_anew() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 100, 0);
    let base = world.checkpoint(&state).await;
    drop(state);

    // Two recoveries from the same checkpoint give the next table the same name.
    let mut next = Vec::new();
    for seed in [7, 8] {
        let restored = world.restore(ALL, std::slice::from_ref(&base)).await;
        fill(&table(&restored), 0, 100, seed);
        let expected = contents(&table(&restored));
        next.push((world.checkpoint(&restored).await, expected));
    }
    let [(lost, _), (kept, expected)] = &next[..] else { unreachable!() };
    assert_eq!(sst_names(lost), sst_names(kept));
    let name = *sst_names(kept).last().unwrap();
    let segment = |snapshot: &KeyedSnapshot| -> Segment {
        snapshot.files.iter().find(|file| file.name == name).unwrap().segment.clone()
    };
    assert_ne!(segment(lost), segment(kept));
    world.keep_only(kept).await;
    assert_eq!(contents(&table(&world.restore(ALL, std::slice::from_ref(kept)).await)), *expected);
}

#[tokio::test]
async fn key_groups_move_when_parallelism_changes() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 4000, 0);
    fill(&state.table(TableId(2)), 0, 50, 9);
    table(&state).write(&[(KeyGroup(0), &0u64.to_be_bytes(), None)]).unwrap();
    let expected = (contents(&table(&state)), contents(&state.table(TableId(2))));
    let whole = world.checkpoint(&state).await;
    drop(state);

    // One to two, unevenly.
    let ranges = [KeyGroupRange { start: 0, end: 3 }, KeyGroupRange { start: 3, end: 8 }];
    let mut halves = Vec::new();
    for range in ranges {
        let half = world.restore(range, std::slice::from_ref(&whole)).await;
        for (id, all) in [(TableId(1), &expected.0), (TableId(2), &expected.1)] {
            let mut own = all.clone();
            own.retain(|(group, _), _| range.contains(KeyGroup(*group)));
            assert_eq!(contents(&half.table(id)), own);
        }
        let first = world.checkpoint(&half).await;
        assert_eq!(first.range, range);
        assert!(first.new_bytes < whole.new_bytes / 10, "{} of {} bytes again", first.new_bytes, whole.new_bytes);
        fill(&table(&half), 100, 10, 5);
        let change = world.checkpoint(&half).await;
        assert!(change.new_bytes < whole.new_bytes / 10, "{} of {}", change.new_bytes, whole.new_bytes);
        halves.push((first, contents(&table(&half))));
    }

    // Two to one, in any order of the parts.
    let parts = [halves[1].0.clone(), halves[0].0.clone()];
    let merged = world.restore(ALL, &parts).await;
    assert_eq!(contents(&table(&merged)), expected.0);
    assert_eq!(contents(&merged.table(TableId(2))), expected.1);
    let again = world.checkpoint(&merged).await;
    assert!(again.shared_bytes > again.new_bytes, "the larger half is not uploaded: {again:?}");

    // Two to three: a part in the middle draws from both.
    let range = KeyGroupRange { start: 2, end: 5 };
    let middle = world.restore(range, &parts).await;
    let mut own = expected.0.clone();
    own.retain(|(group, _), _| range.contains(KeyGroup(*group)));
    assert_eq!(contents(&table(&middle)), own);
    drop((merged, middle));
    assert_eq!(std::fs::read_dir(world.path("state")).unwrap().count(), 0, "copies leave no directory behind");
}

/// Keys that went away with a key group must not be there when it comes back, whoever changed or deleted them meanwhile.
#[tokio::test]
async fn a_key_group_that_comes_back_brings_its_present_keys() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 800, 0);
    let mut whole = world.checkpoint(&state).await;
    let mut expected = contents(&table(&state));
    drop(state);
    for round in 1..4u64 {
        let mut halves = Vec::new();
        for range in [KeyGroupRange { start: 0, end: 5 }, KeyGroupRange { start: 5, end: 8 }] {
            let half = world.restore(range, std::slice::from_ref(&whole)).await;
            let group = KeyGroup(range.start);
            let gone: Vec<_> = expected.keys().filter(|(g, _)| *g == group.0).take(20).cloned().collect();
            let changes: Vec<_> = gone.iter().map(|(_, key)| (group, key.as_slice(), None)).collect();
            table(&half).write(&changes).unwrap();
            gone.iter().for_each(|key| drop(expected.remove(key)));
            let (key, value) = (round.to_be_bytes(), noise(round, 50));
            table(&half).write(&[(group, &key, Some(&value))]).unwrap();
            expected.insert((group.0, key.to_vec()), value);
            halves.push(world.checkpoint(&half).await);
        }
        let merged = world.restore(ALL, &halves).await;
        assert_eq!(contents(&table(&merged)), expected);
        whole = world.checkpoint(&merged).await;
        world.keep_only(&whole).await;
    }
}

/// Files that hold none of the range's key groups are left behind: space does not grow with each change of parallelism.
#[tokio::test]
async fn a_part_of_a_large_state_takes_part_of_its_space() {
    let mut world = World::new();
    let state = world.create(ALL);
    // Several files' worth, in order.
    for part in 0..10 {
        fill(&table(&state), part * 100_000, 100_000, part);
    }
    state.compact().unwrap();
    let whole = world.checkpoint(&state).await;
    let range = KeyGroupRange { start: 0, end: 2 };
    let quarter = world.restore(range, std::slice::from_ref(&whole)).await;
    let first = world.checkpoint(&quarter).await;
    assert!(first.new_bytes < whole.new_bytes / 100, "{} of {} bytes again", first.new_bytes, whole.new_bytes);
    assert!(first.bytes() < whole.bytes() * 2 / 3, "{} of {} bytes kept", first.bytes(), whole.bytes());
}

#[tokio::test]
async fn empty_parts_move_as_well() {
    let mut world = World::new();
    let state = world.create(ALL);
    let empty = world.checkpoint(&state).await;
    let half = world.restore(KeyGroupRange { start: 0, end: 4 }, &[empty]).await;
    assert!(contents(&table(&half)).is_empty());
    assert!(world.restore(ALL, &[]).await.range() == ALL);
}

#[tokio::test]
async fn parts_that_leave_out_or_repeat_a_key_group_are_refused() {
    let world = World::new();
    let part = |start, end| KeyedSnapshot::empty(KeyGroupRange { start, end }, uuid::Uuid::new_v4());
    for (parts, expected) in [
        (vec![part(0, 3), part(4, 8)], "no snapshot of the keyed state holds key groups 3..4"),
        (vec![part(0, 7)], "no snapshot of the keyed state holds key groups 7..8"),
        (vec![part(9, 12)], "no snapshot of the keyed state holds key groups 0..8"),
        (vec![part(0, 5), part(4, 8)], "two snapshots of the keyed state hold key groups 4..5"),
    ] {
        let restored = KeyedState::restore(&world.path("state"), &world.resources, ALL, &parts, &world.job).await;
        let message = restored.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn a_restore_that_fails_leaves_nothing_and_can_be_repeated() {
    let mut world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 100, 0);
    let whole = world.checkpoint(&state).await;
    drop(state);

    let mut damaged = whole.clone();
    for file in &mut damaged.files {
        if let Segment::Object { crc32, .. } = &mut file.segment {
            *crc32 ^= 1;
        }
    }
    let failed = KeyedState::restore(&world.path("state"), &world.resources, ALL, &[damaged], &world.job).await;
    assert!(failed.unwrap_err().to_string().contains("damaged"));
    assert_eq!(std::fs::read_dir(world.path("state")).unwrap().count(), 0);
    assert_eq!(contents(&table(&world.restore(ALL, &[whole]).await)).len(), 100);
}
