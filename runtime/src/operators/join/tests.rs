use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::logical_expr::Operator as Op;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::graph::{JoinKind, JoinSpec, OperatorSpec};
use crate::operators::CacheSizes;
use crate::operators::testing::{Harness, binary, col, schema};

fn sides() -> (SchemaRef, SchemaRef) {
    (schema("k bigint, a bigint"), schema("k2 bigint, b bigint"))
}

fn pair_schema() -> SchemaRef {
    let (left, right) = sides();
    Arc::new(Schema::new([left.fields().to_vec(), right.fields().to_vec()].concat()))
}

fn join(kind: JoinKind, filter: bool, null_equals_null: bool, cache: usize) -> Harness {
    let (left, right) = sides();
    let pair = pair_schema();
    let filter = filter.then(|| binary(col("a", &pair), Op::Lt, col("b", &pair), &pair));
    let output = match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => Arc::clone(&left),
        _ => pair,
    };
    let spec = OperatorSpec::Join(JoinSpec { kind, on: vec![(0, 0)], filter, null_equals_null });
    Harness::sized(spec, &[&left, &right], &output, true, CacheSizes { aggregate: 0, join: cache })
}

const LARGE: usize = 1 << 30;

#[test]
fn an_inner_join_emits_each_pair_once() {
    let mut h = join(JoinKind::Inner, false, false, LARGE);
    h.batch(0, "+ 1 10\n+ 2 20\n+ ~ 30");
    assert_eq!(h.emitted(), "");
    h.batch(1, "+ 1 100\n+ 1 101\n+ ~ 102");
    assert_eq!(h.emitted(), "+ 1 10 1 100\n+ 1 10 1 101\n");
    h.batch(0, "- 1 10\n+ 1 11");
    assert_eq!(h.emitted_sorted(), "+ 1 11 1 100\n+ 1 11 1 101\n- 1 10 1 100\n- 1 10 1 101\n");
    h.batch(0, "+ 1 11");
    assert_eq!(h.folded(), "1 11 1 100\n1 11 1 100\n1 11 1 101\n1 11 1 101\n");
}

#[test]
fn a_left_join_pads_rows_without_a_partner() {
    let mut h = join(JoinKind::Left, true, false, LARGE);
    h.batch(0, "+ 1 10\n+ ~ 30");
    assert_eq!(h.emitted(), "+ 1 10 ~ ~\n+ ~ 30 ~ ~\n");
    h.batch(1, "+ 1 5");
    assert_eq!(h.emitted(), "", "the filter keeps them apart");
    h.batch(1, "+ 1 15\n+ 1 16");
    assert_eq!(h.emitted_sorted(), "+ 1 10 1 15\n+ 1 10 1 16\n- 1 10 ~ ~\n");
    h.batch(1, "- 1 15\n- 1 16");
    assert_eq!(h.folded(), "1 10 ~ ~\n~ 30 ~ ~\n");
    h.batch(0, "- ~ 30\n- 1 10");
    assert_eq!(h.folded(), "");
}

#[test]
fn semi_and_anti_joins_pass_left_rows() {
    let mut semi = join(JoinKind::LeftSemi, false, false, LARGE);
    let mut anti = join(JoinKind::LeftAnti, false, false, LARGE);
    for h in [&mut semi, &mut anti] {
        h.batch(0, "+ 1 10\n+ 1 10\n+ 2 20\n+ ~ 30");
        h.batch(1, "+ 1 100\n+ 1 101\n+ ~ 0");
    }
    assert_eq!((semi.folded(), anti.folded()), ("1 10\n1 10\n".to_owned(), "2 20\n~ 30\n".to_owned()));
    for h in [&mut semi, &mut anti] {
        h.batch(1, "- 1 100\n+ 2 0");
        h.crash();
        h.batch(1, "- 1 101");
    }
    assert_eq!((semi.folded(), anti.folded()), ("2 20\n".to_owned(), "1 10\n1 10\n~ 30\n".to_owned()));
}

#[test]
fn nothing_is_kept_of_rows_that_are_gone() {
    let mut h = join(JoinKind::Full, false, false, LARGE);
    h.batch(0, "+ 1 10");
    h.batch(1, "+ 1 100\n+ 2 200");
    h.crash();
    assert_eq!(h.stored_rows(), 3);
    h.batch(1, "- 1 100\n- 2 200");
    h.batch(0, "- 1 10");
    assert_eq!((h.folded().as_str(), h.stored_rows()), ("", 0));
}

#[test]
fn many_pairs_come_in_parts() {
    let mut h = join(JoinKind::Left, true, false, LARGE);
    let left: String = (0..150).map(|i| format!("+ 1 {i}\n")).collect();
    let right: String = (0..200).map(|i| format!("+ 1 {i}\n")).collect();
    h.batch(1, &right);
    h.batch(0, &left);
    let pairs: usize = (0..150).map(|a| 199 - a).sum();
    assert_eq!(h.folded().lines().count(), pairs);
}

type Rows = BTreeMap<(Option<i64>, i64), i64>;

fn cell(value: Option<i64>) -> String {
    value.map_or_else(|| "~".to_owned(), |value| value.to_string())
}

/// The join by its definition.
fn expected(kind: JoinKind, filter: bool, null_equals_null: bool, left: &Rows, right: &Rows) -> String {
    let matches = |l: &(Option<i64>, i64), r: &(Option<i64>, i64)| {
        (l.0 == r.0 && (l.0.is_some() || null_equals_null)) && (!filter || l.1 < r.1)
    };
    let mut lines: Vec<String> = Vec::new();
    let mut add = |line: String, count: i64| lines.extend((0..count).map(|_| line.clone()));
    let outer = |side: JoinKind| kind == side || kind == JoinKind::Full;
    for (l, count) in left {
        let partners: Vec<_> = right.iter().filter(|(r, _)| matches(l, r)).collect();
        let text = format!("{} {}", cell(l.0), l.1);
        match kind {
            JoinKind::LeftSemi if !partners.is_empty() => add(text, *count),
            JoinKind::LeftAnti if partners.is_empty() => add(text, *count),
            JoinKind::LeftSemi | JoinKind::LeftAnti => {}
            _ => {
                for (r, other) in &partners {
                    add(format!("{text} {} {}", cell(r.0), r.1), count * **other);
                }
                if partners.is_empty() && outer(JoinKind::Left) {
                    add(format!("{text} ~ ~"), *count);
                }
            }
        }
    }
    if outer(JoinKind::Right) {
        for (r, count) in right {
            if !left.keys().any(|l| matches(l, r)) {
                add(format!("~ ~ {} {}", cell(r.0), r.1), *count);
            }
        }
    }
    lines.sort_unstable();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn random_changes_add_up_to_the_join_by_definition() {
    use JoinKind::{Full, Inner, Left, LeftAnti, LeftSemi, Right};
    let mut seed = 0;
    for kind in [Inner, Left, Right, Full, LeftSemi, LeftAnti] {
        for (filter, null_equals_null) in [(false, false), (true, false), (false, true), (true, true)] {
            for cache in [LARGE, 1500] {
                random_run(seed, kind, filter, null_equals_null, cache);
                seed += 1;
            }
        }
    }
}

fn random_run(seed: u64, kind: JoinKind, filter: bool, null_equals_null: bool, cache: usize) {
    let mut h = join(kind, filter, null_equals_null, cache);
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut sides: [Rows; 2] = Default::default();
    for _ in 0..8 {
        for _ in 0..rng.random_range(1..5) {
            let side = rng.random_range(0..2);
            let rows = &mut sides[side];
            let mut changes: Vec<String> = Vec::new();
            for _ in 0..rng.random_range(1..8) {
                let (row, sign) = if !rows.is_empty() && rng.random_ratio(2, 5) {
                    (*rows.keys().nth(rng.random_range(0..rows.len())).expect("a row"), "-")
                } else {
                    (((!rng.random_ratio(1, 6)).then(|| rng.random_range(0..4)), rng.random_range(0..6)), "+")
                };
                let count = rows.entry(row).or_default();
                *count += if sign == "+" { 1 } else { -1 };
                if *count == 0 {
                    rows.remove(&row);
                }
                changes.push(format!("{sign} {} {}", cell(row.0), row.1));
            }
            if rng.random_ratio(1, 3) {
                // A retraction may come before its insertion.
                changes.reverse();
            }
            let split = rng.random_range(0..=changes.len());
            h.batch(side, &changes[..split].join("\n"));
            h.batch(side, &changes[split..].join("\n"));
            if rng.random_ratio(1, 10) {
                h.crash();
            }
        }
        h.epoch();
        let expected = expected(kind, filter, null_equals_null, &sides[0], &sides[1]);
        let run = format!("seed {seed} {kind:?} filter {filter} nulls {null_equals_null} cache {cache}");
        assert_eq!(h.folded(), expected, "{run}");
    }
}
