//! Reads and writes of one state.

use super::*;
use crate::TableSnapshot;

fn keys(table: &StateTable, group: u16, from: &[u8], to: Option<&[u8]>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    table
        .scan(KeyGroup(group), from, to, &mut |key, _| {
            found.push(key.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

fn put(table: &StateTable, group: u16, key: &[u8], value: &[u8]) {
    table.write(&[(KeyGroup(group), key, Some(value))]).unwrap();
}

#[test]
fn values_come_in_the_order_of_their_keys() {
    let world = World::new();
    let table = table(&world.create(ALL));
    let names: Vec<_> = (0..3000u32).map(|i| (KeyGroup((i % 8) as u16), i.to_le_bytes())).collect();
    let changes: Vec<_> = names.iter().step_by(2).map(|(group, key)| (*group, &key[..], Some(&key[..]))).collect();
    table.write(&changes).unwrap();

    let mut asked: Vec<_> = names.iter().rev().map(|(group, key)| (*group, &key[..])).collect();
    asked.push(asked[1]);
    let values = table.get_many(&asked).unwrap();
    for ((_, key), value) in asked.iter().zip(&values) {
        let number = u32::from_le_bytes((*key).try_into().unwrap());
        assert_eq!(value.as_deref(), (number % 2 == 0).then_some(*key), "{number}");
    }
    assert_eq!(table.get_many(&[]).unwrap().len(), 0);
}

#[test]
fn the_last_change_of_a_key_holds() {
    let world = World::new();
    let table = table(&world.create(ALL));
    let group = KeyGroup(0);
    table
        .write(&[(group, b"k", Some(b"1")), (group, b"a", Some(b"9")), (group, b"k", None), (group, b"k", Some(b"2"))])
        .unwrap();
    assert_eq!(table.get(group, b"k").unwrap().as_deref(), Some(&b"2"[..]));
    table.write(&[(group, b"k", Some(b"3")), (group, b"k", None)]).unwrap();
    assert_eq!(table.get(group, b"k").unwrap(), None);
    table.write(&[]).unwrap();
}

#[test]
fn scans_keep_to_their_bounds_table_and_key_group() {
    let world = World::new();
    let state = world.create(ALL);
    let (one, last) = (state.table(TableId(1)), state.table(TableId(u16::MAX)));
    for key in [&b""[..], b"a", b"ab", b"b", b"\xff", b"\xff\xff"] {
        put(&one, 3, key, b"x");
    }
    put(&last, 3, b"a", b"x");
    put(&one, 2, b"a", b"x");
    put(&one, 4, b"a", b"x");

    assert_eq!(keys(&one, 3, b"", None).len(), 6);
    assert_eq!(keys(&one, 3, b"a", Some(b"b")), [&b"a"[..], b"ab"]);
    assert_eq!(keys(&one, 3, b"b", None), [&b"b"[..], b"\xff", b"\xff\xff"]);
    assert!(keys(&one, 3, b"b", Some(b"a")).is_empty());
    assert_eq!(keys(&last, 3, b"", None), [b"a"]);
    assert!(keys(&one, 5, b"", None).is_empty());

    let mut seen = Vec::new();
    let mut visit = |key: &[u8], _: &[u8]| {
        seen.push(key.to_vec());
        if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    one.scan_prefix(KeyGroup(3), b"a", &mut visit).unwrap();
    assert_eq!(seen, [&b"a"[..], b"ab"]);
    seen.clear();
    let mut visit = |key: &[u8], _: &[u8]| {
        seen.push(key.to_vec());
        ControlFlow::Break(())
    };
    one.scan_prefix(KeyGroup(3), b"\xff", &mut visit).unwrap();
    assert_eq!(seen, [b"\xff"]);
}

#[test]
fn a_snapshot_is_one_cut_and_outlives_the_state() {
    fn shareable<T: Send + Sync + std::fmt::Debug + Clone>(_: &T) {}
    let world = World::new();
    let state = world.create(ALL);
    let table = table(&state);
    put(&table, 1, b"a", b"old");
    let cut: TableSnapshot = table.snapshot().unwrap();
    shareable(&cut);
    table.write(&[(KeyGroup(1), b"a", Some(b"new")), (KeyGroup(1), b"b", Some(b"new"))]).unwrap();
    assert_eq!(table.get(KeyGroup(1), b"a").unwrap().as_deref(), Some(&b"new"[..]));
    drop((state, table));

    assert_eq!(cut.get(KeyGroup(1), b"a").unwrap().as_deref(), Some(&b"old"[..]));
    let values = cut.get_many(&[(KeyGroup(1), b"b"), (KeyGroup(1), b"a")]).unwrap();
    assert_eq!(values, [None, Some(b"old".to_vec())]);
    let mut rows = 0;
    let mut visit = |_: &[u8], _: &[u8]| {
        rows += 1;
        ControlFlow::Continue(())
    };
    cut.scan(KeyGroup(1), b"", None, &mut visit).unwrap();
    cut.scan_prefix(KeyGroup(1), b"a", &mut visit).unwrap();
    assert_eq!(rows, 2);
    assert_eq!(cut.range(), ALL);
    // The directory goes with the last handle.
    assert_eq!(std::fs::read_dir(world.path("state")).unwrap().count(), 1);
    drop(cut);
    assert_eq!(std::fs::read_dir(world.path("state")).unwrap().count(), 0);
}

#[test]
fn a_foreign_key_group_is_an_error() {
    let world = World::new();
    let table = table(&world.create(KeyGroupRange { start: 2, end: 4 }));
    let message = table.write(&[(KeyGroup(4), b"k", None)]).unwrap_err().to_string();
    assert!(message.contains("key group 4") && message.contains("2..4"), "{message}");
    assert!(table.get(KeyGroup(1), b"k").is_err());
    assert!(table.get_many(&[(KeyGroup(2), b"k"), (KeyGroup(0), b"k")]).is_err());
}

#[test]
fn a_failing_disk_is_an_error_that_names_the_directory() {
    let world = World::new();
    let state = world.create(ALL);
    fill(&table(&state), 0, 10, 0);
    std::fs::remove_dir_all(world.path("state")).unwrap();
    let message = state.snapshot(&world.path("staging")).unwrap_err().to_string();
    assert!(message.contains(world.path("state").to_str().unwrap()), "{message}");
    std::fs::write(world.path("file"), "").unwrap();
    assert!(KeyedState::create(&world.path("file/below"), &world.resources, ALL).is_err());
}

#[test]
fn size_follows_content() {
    let world = World::new();
    let state = world.create(ALL);
    let empty = state.bytes();
    fill(&table(&state), 0, 2000, 0);
    assert!(state.bytes() > empty + 100 * 2000, "{} {empty}", state.bytes());
}
