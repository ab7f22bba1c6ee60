use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{SortColumn, SortOptions, filter, lexsort_to_indices, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::functions_aggregate::array_agg::array_agg_udaf;
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::bit_and_or_xor::bit_and_udaf;
use datafusion::functions_aggregate::bool_and_or::bool_or_udaf;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::first_last::last_value_udaf;
use datafusion::functions_aggregate::median::median_udaf;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::{AggregateUDF, Operator as Op};
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::aggregate::AggregateExprBuilder;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::graph::{AggregateCall, AggregateSpec, Emit, OperatorSpec};
use crate::operators::CacheSizes;
use crate::operators::testing::{Harness, binary, call, chunk, col, distinct_call, lit, rows_text, schema};

/// The output's schema: group columns, then results.
fn output(input: &SchemaRef, group: &[usize], calls: &[AggregateCall]) -> SchemaRef {
    let mut fields: Vec<Field> = group.iter().map(|column| input.field(*column).clone()).collect();
    for (i, call) in calls.iter().enumerate() {
        fields.push(Field::new(format!("r{i}"), call.function.field().data_type().clone(), true));
    }
    Arc::new(Schema::new(fields))
}

fn aggregate(
    input: &SchemaRef,
    group: &[usize],
    calls: Vec<AggregateCall>,
    input_changelog: bool,
    window: Option<(usize, Emit)>,
    cache: usize,
) -> Harness {
    let output = output(input, group, &calls);
    let spec = OperatorSpec::Aggregate(AggregateSpec {
        group: group.to_vec(),
        calls,
        input_changelog,
        window_end: window.map(|(column, _)| column),
        emit: window.map_or(Emit::Changes, |(_, emit)| emit),
    });
    Harness::sized(spec, &[input], &output, true, CacheSizes { aggregate: cache, join: 0 })
}

const LARGE: usize = 1 << 30;

fn simple(input: &SchemaRef) -> Vec<AggregateCall> {
    let v = || vec![col("v", input)];
    vec![
        call(count_udaf(), vec![lit(1i64)], input),
        call(count_udaf(), v(), input),
        call(sum_udaf(), v(), input),
        call(min_udaf(), v(), input),
        call(max_udaf(), v(), input),
    ]
}

#[test]
fn an_epoch_emits_how_results_changed() {
    let input = schema("k bigint, v bigint");
    let mut h = aggregate(&input, &[0], simple(&input), false, None, LARGE);
    h.batch(0, "+ 1 5\n+ 2 ~\n+ 1 7");
    assert_eq!(h.emitted(), "");
    h.epoch();
    assert_eq!(h.emitted(), "+ 1 2 2 12 5 7\n+ 2 1 0 ~ ~ ~\n");
    h.batch(0, "+ 1 1\n+ ~ 3");
    h.epoch();
    assert_eq!(h.emitted(), "- 1 2 2 12 5 7\n+ 1 3 3 13 1 7\n+ ~ 1 1 3 3 3\n");
    h.epoch();
    assert_eq!(h.emitted(), "");
    assert_eq!(h.folded(), "1 3 3 13 1 7\n2 1 0 ~ ~ ~\n~ 1 1 3 3 3\n");
}

#[test]
fn a_change_that_makes_no_difference_emits_nothing() {
    let input = schema("k bigint, v bigint");
    let calls = vec![call(max_udaf(), vec![col("v", &input)], &input)];
    let mut h = aggregate(&input, &[0], calls, false, None, LARGE);
    h.batch(0, "+ 1 5");
    h.epoch();
    h.emitted();
    h.batch(0, "+ 1 3");
    h.epoch();
    assert_eq!(h.emitted(), "");
}

#[test]
fn retractions_are_exact_and_an_empty_group_disappears() {
    let input = schema("k text, v bigint");
    let mut h = aggregate(&input, &[0], simple(&input), true, None, LARGE);
    h.batch(0, "+ a 5\n+ a 9\n+ a ~\n+ b 1\n- c 4");
    h.batch(0, "+ c 4\n+ c 8");
    h.epoch();
    assert_eq!(h.folded(), "a 3 2 14 5 9\nb 1 1 1 1 1\nc 1 1 8 8 8\n");
    h.emitted();
    h.batch(0, "- a 9\n- b 1");
    h.epoch();
    assert_eq!(h.emitted(), "- a 3 2 14 5 9\n+ a 2 1 5 5 5\n- b 1 1 1 1 1\n");
    h.batch(0, "- a 5\n- c 8");
    h.epoch();
    assert_eq!(h.folded(), "a 1 0 ~ ~ ~\n", "a sum over no value is null");
    h.batch(0, "- a ~");
    h.epoch();
    assert_eq!(h.folded(), "");
    assert_eq!(h.stored_rows(), 0, "nothing is left of groups that are gone");
    h.batch(0, "+ a 2");
    h.epoch();
    assert_eq!(h.folded(), "a 1 1 2 2 2\n");
}

#[test]
fn without_group_by_there_is_one_row_from_the_start() {
    let input = schema("v bigint");
    let mut h = aggregate(&input, &[], simple(&input), true, None, LARGE);
    h.epoch();
    assert_eq!(h.emitted(), "+ 0 0 ~ ~ ~\n");
    h.crash();
    h.epoch();
    assert_eq!(h.emitted(), "", "a restart does not emit it again");
    h.batch(0, "+ 4\n+ 6");
    h.epoch();
    h.batch(0, "- 4\n- 6");
    h.crash();
    h.epoch();
    assert_eq!(h.folded(), "0 0 ~ ~ ~\n");
}

#[test]
fn distinct_rows_are_a_grouping_without_calls() {
    let input = schema("k bigint, v text");
    let mut h = aggregate(&input, &[0, 1], vec![], true, None, LARGE);
    h.batch(0, "+ 1 a\n+ 1 a\n+ 1 b");
    h.epoch();
    assert_eq!(h.emitted(), "+ 1 a\n+ 1 b\n");
    h.batch(0, "- 1 a\n- 1 b");
    h.epoch();
    assert_eq!(h.emitted(), "- 1 b\n");
}

#[test]
fn negative_and_positive_zero_are_one_group() {
    let input = schema("k double, v bigint");
    let calls = || vec![call(sum_udaf(), vec![col("v", &input)], &input)];
    let mut h = aggregate(&input, &[0], calls(), false, None, 0);
    h.batch(0, "+ -0.0 1\n+ 0.0 2");
    h.batch(0, "+ 0.0 3");
    h.batch(0, "+ -0.0 4\n+ NaN 1");
    h.epoch();
    assert_eq!(h.folded(), "0.0 10\nNaN 1\n");
}

fn windowed() -> (SchemaRef, Vec<AggregateCall>) {
    let input = schema("window_start timestamp, window_end timestamp, k text, v bigint");
    let calls = vec![
        call(count_udaf(), vec![lit(1i64)], &input),
        distinct_call(count_udaf(), vec![col("v", &input)], &input),
        call(bit_and_udaf(), vec![col("v", &input)], &input),
    ];
    (input, calls)
}

#[test]
fn a_closed_window_is_emitted_once_and_later_rows_are_late() {
    for cache in [LARGE, 0] {
        let (input, calls) = windowed();
        let mut h = aggregate(&input, &[1, 2], calls, false, Some((0, Emit::OnWindowClose)), cache);
        h.batch(0, "+ 0 10 a 1\n+ 0 10 a 1\n+ 0 10 b 3\n+ 10 20 a 7");
        h.epoch();
        h.watermark(9);
        assert_eq!(h.emitted(), "");
        h.crash();
        h.batch(0, "+ 0 10 a 3");
        h.watermark(10);
        assert_eq!(h.emitted_sorted(), "+ 10 a 3 2 1\n+ 10 b 1 1 3\n");
        h.batch(0, "+ 0 10 a 1\n+ 10 20 a 5");
        assert_eq!(h.late_rows(), ["0 10 a 1"]);
        h.crash();
        // Event time does not run backwards over a restart.
        h.batch(0, "+ 0 10 b 1");
        assert_eq!(h.late_rows().len(), 2);
        assert_eq!(h.metrics.snapshot("", "", 0).late_rows, 2);
        h.epoch();
        h.watermark(i64::MAX);
        assert_eq!(h.emitted(), "+ 20 a 2 2 5\n");
        assert_eq!(h.stored_rows(), 0);
    }
}

#[test]
fn changes_of_a_window_end_with_it() {
    for cache in [LARGE, 0] {
        let (input, calls) = windowed();
        let mut h = aggregate(&input, &[1, 2], calls, true, Some((0, Emit::Changes)), cache);
        h.batch(0, "+ 0 10 a 1\n+ 0 10 b 3\n+ 10 20 a 7");
        h.epoch();
        h.batch(0, "+ 0 10 a 2\n- 10 20 a 7");
        h.crash();
        h.watermark(10);
        h.epoch();
        assert_eq!(h.folded(), "10 a 2 2 0\n10 b 1 1 3\n", "what was emitted stays");
        h.batch(0, "- 0 10 a 1");
        h.epoch();
        assert_eq!(h.late_rows(), ["0 10 a 1"]);
        assert_eq!(h.folded(), "10 a 2 2 0\n10 b 1 1 3\n");
        assert_eq!(h.stored_rows(), 0);
    }
}

#[test]
fn many_closed_windows_leave_memory() {
    let input = schema("window_end timestamp, v bigint");
    let calls = vec![call(sum_udaf(), vec![col("v", &input)], &input)];
    let mut h = aggregate(&input, &[0], calls, false, Some((0, Emit::OnWindowClose)), LARGE);
    for round in 0..30i64 {
        let rows: String = (0..1000).map(|i| format!("+ {} {i}\n", round * 1000 + i)).collect();
        h.batch(0, &rows);
        h.watermark(round * 1000 + 500);
        h.epoch();
        if round == 17 {
            h.crash();
        }
    }
    h.watermark(i64::MAX);
    assert_eq!(h.folded().lines().count(), 30_000);
    assert_eq!(h.stored_rows(), 0);
}

fn sorted_by(
    function: Arc<AggregateUDF>,
    args: Vec<crate::graph::Expr>,
    by: &str,
    descending: bool,
    input: &SchemaRef,
) -> AggregateCall {
    let order = PhysicalSortExpr::new(col(by, input), SortOptions { descending, nulls_first: false });
    let builder =
        AggregateExprBuilder::new(function, args).schema(Arc::clone(input)).alias("call").order_by(vec![order]);
    AggregateCall { function: Arc::new(builder.build().expect("a call")), filter: None }
}

fn all_kinds(input: &SchemaRef) -> Vec<AggregateCall> {
    let column = |name: &str| vec![col(name, input)];
    let mut filtered = call(sum_udaf(), column("i"), input);
    filtered.filter = Some(binary(col("i", input), Op::Gt, lit(3i64), input));
    let mut filtered_distinct = distinct_call(count_udaf(), column("s"), input);
    filtered_distinct.filter = Some(col("b", input));
    let mut filtered_min = call(min_udaf(), column("s"), input);
    filtered_min.filter = Some(col("b", input));
    let mut filtered_bits = call(bit_and_udaf(), column("i"), input);
    filtered_bits.filter = Some(col("b", input));
    vec![
        call(count_udaf(), vec![lit(1i64)], input),
        call(count_udaf(), column("s"), input),
        call(sum_udaf(), column("i"), input),
        call(sum_udaf(), column("f"), input),
        call(sum_udaf(), column("d"), input),
        call(avg_udaf(), column("f"), input),
        call(avg_udaf(), column("d"), input),
        call(min_udaf(), column("i"), input),
        call(max_udaf(), column("s"), input),
        call(min_udaf(), column("b"), input),
        call(max_udaf(), column("f"), input),
        call(min_udaf(), column("d"), input),
        distinct_call(count_udaf(), column("s"), input),
        distinct_call(sum_udaf(), column("i"), input),
        call(bit_and_udaf(), column("i"), input),
        call(bool_or_udaf(), column("b"), input),
        call(median_udaf(), column("f"), input),
        sorted_by(array_agg_udaf(), column("i"), "i", true, input),
        sorted_by(last_value_udaf(), column("i"), "i", false, input),
        filtered,
        filtered_distinct,
        filtered_min,
        filtered_bits,
    ]
}

/// The answer for one group, by DataFusion's accumulators over all its rows.
fn oracle(batch: &RecordBatch, calls: &[AggregateCall]) -> Vec<ArrayRef> {
    calls
        .iter()
        .map(|call| {
            let mut exprs = call.function.expressions();
            exprs.extend(call.function.order_bys().iter().map(|order| Arc::clone(&order.expr)));
            let mut columns: Vec<ArrayRef> = exprs
                .iter()
                .map(|expr| expr.evaluate(batch).and_then(|v| v.into_array(batch.num_rows())).expect("a column"))
                .collect();
            if let Some(expr) = &call.filter {
                let mask = expr.evaluate(batch).and_then(|v| v.into_array(batch.num_rows())).expect("a mask");
                let mask: &BooleanArray = mask.as_boolean();
                columns = columns.iter().map(|column| filter(column, mask).expect("rows")).collect();
            }
            if !call.function.order_bys().is_empty() {
                let sort: Vec<SortColumn> = columns[call.function.expressions().len()..]
                    .iter()
                    .zip(call.function.order_bys())
                    .map(|(values, by)| SortColumn { values: Arc::clone(values), options: Some(by.options) })
                    .collect();
                let order: UInt32Array = lexsort_to_indices(&sort, None).expect("an order");
                columns = columns.iter().map(|column| take(column, &order, None).expect("rows")).collect();
            }
            let mut accumulator = call.function.create_accumulator().expect("an accumulator");
            accumulator.update_batch(&columns).expect("an update");
            accumulator.evaluate().and_then(|v| v.to_array()).expect("a result")
        })
        .collect()
}

fn expected(
    input: &SchemaRef,
    rows: &BTreeMap<String, i64>,
    group_columns: usize,
    calls: &[AggregateCall],
    output: &SchemaRef,
) -> String {
    let mut groups: BTreeMap<String, String> = BTreeMap::new();
    for (row, count) in rows {
        let key = row.split(' ').take(group_columns).collect::<Vec<_>>().join(" ");
        let text = groups.entry(key).or_default();
        (0..*count).for_each(|_| *text += &format!("+ {row}\n"));
    }
    if group_columns == 0 && groups.is_empty() {
        groups.insert(String::new(), String::new());
    }
    let mut lines: Vec<String> = Vec::new();
    for (_, text) in groups.iter().filter(|(_, text)| group_columns == 0 || !text.is_empty()) {
        let batch = chunk(input, text).batch().clone();
        let mut columns: Vec<ArrayRef> = batch.columns()[..group_columns].iter().map(|c| c.slice(0, 1)).collect();
        columns.extend(oracle(&batch, calls));
        lines.extend(rows_text(&RecordBatch::try_new(Arc::clone(output), columns).expect("a batch")));
    }
    lines.sort_unstable();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn random_row(rng: &mut SmallRng, keys: u32) -> String {
    let cells = [
        rng.random_range(0..keys).to_string(),
        ["x", "y"][rng.random_range(0..2)].to_owned(),
        rng.random_range(0..8).to_string(),
        format!("{}", f64::from(rng.random_range(-8i32..8)) * 0.25),
        format!("{}.{:02}", rng.random_range(0..20), rng.random_range(0..100)),
        ["ant", "bee", "cat", "dog", "longer-than-the-others"][rng.random_range(0..5)].to_owned(),
        ["true", "false"][rng.random_range(0..2)].to_owned(),
    ];
    let cells = cells.map(|cell| if rng.random_ratio(1, 8) { "~".to_owned() } else { cell });
    cells.join(" ")
}

/// Runs random changes with crashes, little memory and unaligned snapshots; the folded output must be the oracle's.
fn random_run(seed: u64, group: &[usize], changelog: bool, cache: usize) {
    let input = schema("k bigint, g text, i bigint, f double, d decimal, s text, b boolean");
    let calls = all_kinds(&input);
    let output = output(&input, group, &calls);
    let mut h = aggregate(&input, group, calls.clone(), changelog, None, cache);
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut rows: BTreeMap<String, i64> = BTreeMap::new();
    for _ in 0..12 {
        for _ in 0..rng.random_range(0..3) {
            let mut changes: Vec<String> = Vec::new();
            for _ in 0..rng.random_range(1..12) {
                if changelog && !rows.is_empty() && rng.random_ratio(2, 5) {
                    let victim = rows.keys().nth(rng.random_range(0..rows.len())).expect("a row").clone();
                    changes.push(format!("- {victim}"));
                    let count = rows.get_mut(&victim).expect("its count");
                    *count -= 1;
                    if *count == 0 {
                        rows.remove(&victim);
                    }
                } else {
                    let row = random_row(&mut rng, 4);
                    changes.push(format!("+ {row}"));
                    *rows.entry(row).or_default() += 1;
                }
            }
            if changelog && rng.random_ratio(1, 3) {
                // Within an epoch a retraction may come before its insertion.
                changes.reverse();
            }
            let split = rng.random_range(0..=changes.len());
            for part in [&changes[..split], &changes[split..]] {
                h.batch(0, &part.join("\n"));
                match rng.random_range(0..12) {
                    0 => h.crash(),
                    1 => drop(h.checkpoint()),
                    _ => {}
                }
            }
        }
        h.epoch();
        if rng.random_ratio(1, 6) {
            h.crash();
        }
        let expected = expected(&input, &rows, group.len(), &calls, &output);
        assert_eq!(h.folded(), expected, "seed {seed} group {group:?} changelog {changelog} cache {cache}");
    }
}

#[test]
fn random_changes_add_up_to_the_oracles_answer() {
    for seed in 0..3 {
        for group in [&[][..], &[0], &[0, 1]] {
            for changelog in [false, true] {
                random_run(seed, group, changelog, LARGE);
                random_run(seed, group, changelog, 3000);
            }
        }
    }
}

/// Windows of length 10 that close while rows, some of them late, come in; with crashes and little memory.
fn random_windows(seed: u64, emit: Emit, changelog: bool, cache: usize) {
    let input = schema("window_end timestamp, k bigint, i bigint, f double, d decimal, s text, b boolean");
    let calls = all_kinds(&input);
    let output = output(&input, &[0, 1], &calls);
    let mut h = aggregate(&input, &[0, 1], calls.clone(), changelog, Some((0, emit)), cache);
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut rows, mut late): (BTreeMap<String, i64>, usize) = (BTreeMap::new(), 0);
    let mut watermark = 0;
    for _ in 0..25 {
        let mut changes = Vec::new();
        for _ in 0..rng.random_range(0..6) {
            let end = (watermark / 10 + rng.random_range(0..4)) * 10;
            let cells = random_row(&mut rng, 2);
            let cells: Vec<&str> = cells.split(' ').collect();
            let row = format!("{end} {} {}", cells[0], cells[2..].join(" "));
            if end <= watermark && watermark > 0 {
                late += 1;
            } else {
                *rows.entry(row.clone()).or_default() += 1;
            }
            changes.push(format!("+ {row}"));
        }
        let open = |row: &String| row.split(' ').next().and_then(|end| end.parse::<i64>().ok()) > Some(watermark);
        let victim = rows.keys().find(|row| open(row)).cloned();
        if let Some(victim) = victim.filter(|_| changelog && rng.random_ratio(1, 2)) {
            changes.push(format!("- {victim}"));
            if rows[&victim] == 1 {
                rows.remove(&victim)
            } else {
                rows.insert(victim.clone(), rows[&victim] - 1)
            };
        }
        h.batch(0, &changes.join("\n"));
        if rng.random_ratio(1, 10) {
            h.crash();
        }
        if rng.random_ratio(1, 2) {
            h.epoch();
        }
        if rng.random_ratio(1, 2) {
            watermark += rng.random_range(1..12);
            h.watermark(watermark);
        }
        if rng.random_ratio(1, 10) {
            h.crash();
        }
    }
    h.epoch();
    h.watermark(i64::MAX);
    h.epoch();
    let run = format!("seed {seed} {emit:?} changelog {changelog} cache {cache}");
    assert_eq!(h.folded(), expected(&input, &rows, 2, &calls, &output), "{run}");
    assert_eq!((h.late_rows().len(), h.stored_rows()), (late, 0), "{run}");
}

#[test]
fn random_windows_add_up_to_the_oracles_answer() {
    for seed in 0..3 {
        for emit in [Emit::Changes, Emit::OnWindowClose] {
            for changelog in [false, true] {
                random_windows(seed, emit, changelog, LARGE);
                random_windows(seed, emit, changelog, 2000);
            }
        }
    }
}

#[test]
fn results_have_the_types_of_datafusion() {
    let input = schema("i bigint, f double, d decimal");
    let mut calls = Vec::new();
    for name in ["i", "f", "d"] {
        calls.push(call(sum_udaf(), vec![col(name, &input)], &input));
    }
    calls.push(call(avg_udaf(), vec![col("f", &input)], &input));
    calls.push(call(avg_udaf(), vec![col("d", &input)], &input));
    let types: Vec<DataType> = calls.iter().map(|call| call.function.field().data_type().clone()).collect();
    assert_eq!(types[3..], [DataType::Float64, DataType::Decimal128(38, 6)]);
    let mut h = aggregate(&input, &[], calls, false, None, LARGE);
    h.batch(0, &format!("+ {} 0.5 1.00\n+ 1 0.25 0.01\n+ ~ ~ 0.01", i64::MAX));
    h.epoch();
    assert_eq!(h.folded(), format!("{} 0.75 1.02 0.375 0.340000\n", i64::MIN), "overflow wraps, as in DataFusion");
}
