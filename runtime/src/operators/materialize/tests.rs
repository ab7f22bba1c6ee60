use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::SchemaRef;

use crate::graph::{MaterializeSpec, OperatorSpec};
use crate::operators::ViewCodec;
use crate::operators::testing::{Harness, changes_text, rows_text, schema};

fn spec(key: &[usize], upsert: bool, forward: bool) -> OperatorSpec {
    OperatorSpec::Materialize(MaterializeSpec { relation: "v".to_owned(), key: key.to_vec(), upsert, forward })
}

fn input() -> SchemaRef {
    schema("k bigint, v text")
}

fn harness(key: &[usize], upsert: bool, forward: bool, changelog: bool) -> Harness {
    let input = input();
    Harness::new(spec(key, upsert, forward), &[&input], &input, changelog)
}

/// What a reader sees now.
fn read(h: &Harness) -> Vec<String> {
    let codec = Arc::new(ViewCodec::new(h.view().schema(), h.view().key(), 16).expect("a codec"));
    let snapshot = h.view().snapshot().expect("a readable view");
    let scan = codec.scan(snapshot.parts, None).expect("a scan");
    let mut rows: Vec<String> = scan.flat_map(|batch| rows_text(&batch.expect("a batch"))).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn an_upsert_replaces_and_a_delete_goes_by_key() {
    let mut h = harness(&[0], true, true, true);
    h.batch(0, "+ 1 a\n+ 2 b\n+ 1 c");
    h.epoch();
    assert_eq!(h.emitted_sorted(), "+ 1 c\n+ 2 b\n");
    h.batch(0, "+ 2 d\n- 1 whatever\n+ 3 e\n- 3 e");
    h.epoch();
    assert_eq!(h.emitted_sorted(), "+ 2 d\n- 1 c\n- 2 b\n");
    h.batch(0, "+ 2 d");
    h.epoch();
    assert_eq!(h.emitted(), "", "an upsert of the same row changes nothing");
    assert_eq!(read(&h), ["2 d"]);
    assert_eq!(h.folded(), "2 d\n");
}

#[test]
fn changes_of_a_key_are_netted_within_an_epoch() {
    let mut h = harness(&[0], false, true, true);
    h.batch(0, "+ 1 a\n- 1 a\n+ 1 b");
    h.epoch();
    assert_eq!(h.emitted(), "+ 1 b\n");
    // The insertion of the new row may come before the retraction of the old one.
    h.batch(0, "+ 1 c\n+ 2 x");
    h.batch(0, "- 1 b");
    h.epoch();
    assert_eq!(h.emitted(), "- 1 b\n+ 1 c\n+ 2 x\n");
    h.batch(0, "- 1 c\n+ 1 c");
    h.epoch();
    assert_eq!(h.emitted(), "");
    h.batch(0, "- 2 x");
    h.epoch();
    assert_eq!(read(&h), ["1 c"]);
}

#[test]
fn rows_without_a_key_are_counted() {
    let mut h = harness(&[], false, true, true);
    h.batch(0, "+ 1 a\n+ 1 a\n+ 2 b\n- 2 b");
    h.epoch();
    assert_eq!(h.emitted(), "+ 1 a\n+ 1 a\n");
    h.batch(0, "- 1 a\n+ ~ ~");
    h.epoch();
    assert_eq!(read(&h), ["1 a", "~ ~"]);
    assert_eq!(h.folded(), "1 a\n~ ~\n");
}

#[test]
fn rows_that_only_grow_are_all_kept_over_restarts() {
    let mut h = harness(&[], false, false, false);
    h.batch(0, "+ 1 a\n+ 1 a");
    h.epoch();
    h.crash();
    h.batch(0, "+ 1 a");
    h.epoch();
    assert_eq!(read(&h), ["1 a", "1 a", "1 a"]);
    assert!(h.try_batch(0, "- 1 a").is_err());
}

#[test]
fn an_idle_view_is_readable_after_the_first_epoch_and_after_a_restore() {
    let mut h = harness(&[0], false, false, true);
    assert!(h.view().snapshot().is_none());
    h.epoch();
    assert!(read(&h).is_empty());
    h.batch(0, "+ 1 a");
    h.epoch();
    h.crash();
    assert_eq!(read(&h), ["1 a"]);
}

#[test]
fn readers_see_epochs_and_subscribers_their_changes() {
    let mut h = harness(&[0], true, false, true);
    h.batch(0, "+ 1 a");
    h.epoch();
    let (snapshot, mut changes) = h.view().subscribe();
    h.batch(0, "+ 1 b");
    assert_eq!(read(&h), ["1 a"], "nothing is seen before the epoch ends");
    h.epoch();
    assert_eq!(read(&h), ["1 b"]);
    assert_eq!(changes_text(&changes.try_recv().expect("changes").chunks), "- 1 a\n+ 1 b\n");
    let codec = Arc::new(ViewCodec::new(h.view().schema(), &[0], 16).expect("a codec"));
    let old = codec.scan(snapshot.expect("a snapshot").parts, Some(vec![1])).expect("a scan");
    assert_eq!(old.flat_map(|batch| rows_text(&batch.expect("a batch"))).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn changes_gathered_before_an_unaligned_snapshot_come_back() {
    for (key, upsert, changelog) in
        [(&[0usize][..], true, true), (&[0], false, true), (&[], false, true), (&[], false, false)]
    {
        let mut h = harness(key, upsert, true, changelog);
        h.batch(0, "+ 1 a\n+ 2 b");
        h.epoch();
        h.batch(0, if changelog { "- 1 a\n+ 1 c\n+ 3 d" } else { "+ 1 c\n+ 3 d" });
        h.crash();
        h.crash();
        h.batch(0, "+ 4 e");
        h.epoch();
        h.crash();
        h.epoch();
        let expected =
            if changelog { vec!["1 c", "2 b", "3 d", "4 e"] } else { vec!["1 a", "1 c", "2 b", "3 d", "4 e"] };
        assert_eq!(read(&h), expected, "{key:?} {upsert} {changelog}");
        assert_eq!(h.folded().lines().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn forwarding_that_starts_late_begins_with_everything() {
    let mut h = harness(&[0], false, false, true);
    h.batch(0, "+ 1 a\n+ 2 b");
    h.epoch();
    assert_eq!(h.emitted(), "");
    let checkpoint = h.checkpoint();
    let mut h = harness(&[0], false, true, true);
    h.restore(&checkpoint);
    h.batch(0, "- 2 b\n+ 3 c");
    h.epoch();
    assert_eq!(h.emitted_sorted(), "+ 1 a\n+ 3 c\n");
    h.crash();
    h.batch(0, "+ 4 d");
    h.epoch();
    assert_eq!(h.emitted(), "+ 4 d\n");
    assert_eq!(h.folded(), "1 a\n3 c\n4 d\n");
}

#[test]
fn rows_are_found_by_key() {
    let mut h = harness(&[0], true, false, true);
    h.batch(0, "+ 1 a\n+ 2 b\n+ ~ c");
    h.epoch();
    let codec = ViewCodec::new(h.view().schema(), &[0], 16).expect("a codec");
    let parts = h.view().snapshot().expect("a snapshot").parts;
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![Some(2), Some(7), None]));
    let mut found = rows_text(&codec.lookup(&parts, &[keys]).expect("a lookup"));
    found.sort_unstable();
    assert_eq!(found, ["2 b", "~ c"]);
    assert!(codec.lookup(&parts, &[]).is_err());
}

#[test]
fn long_results_come_in_batches() {
    let mut h = harness(&[], false, false, true);
    let rows: String = (0..9000).map(|i| format!("+ {} x\n", i % 4500)).collect();
    h.batch(0, &rows);
    h.epoch();
    let codec = Arc::new(ViewCodec::new(h.view().schema(), &[], 16).expect("a codec"));
    let scan = codec.scan(h.view().snapshot().expect("a snapshot").parts, Some(vec![])).expect("a scan");
    let sizes: Vec<usize> = scan.map(|batch| batch.expect("a batch").num_rows()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 9000);
    assert!(sizes.len() == 2 && sizes[0] >= 8192, "{sizes:?}");
}
