//! Jobs from end to end, over a scripted source and sink and a store in memory.

mod unaligned;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::array::{AsArray, BooleanArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_expr::ScalarFunctionExpr;
use weir_storage::{CheckpointId, JobStore};

use crate::fail_point::{FailPoints, OF_A_CHECKPOINT};
use crate::graph::{Edge, Exchange, Expr, Graph, Node, OperatorSpec};
use crate::job::{CheckpointState, JobHandle, JobServices, JobSpec, JobStatus, StopMode, spawn, spawn_with};
use crate::options::{CheckpointMode, CheckpointOptions, RestartPolicy};
use crate::testing::{
    Bench, Scripted, World, graph, materialize_spec, node, number_column, number_schema, sink_spec, source_spec,
};
use crate::view::ViewHandle;

const ROWS: i64 = 40;

fn world() -> Arc<World> {
    World::new(&[("a", (0..ROWS).collect()), ("b", (100..100 + ROWS).collect()), ("c", (200..205).collect())])
}

fn expected() -> Vec<i64> {
    (0..ROWS).chain(100..100 + ROWS).chain(200..205).collect()
}

fn edge(from: usize, exchange: Exchange) -> Vec<Edge> {
    vec![Edge { from, exchange }]
}

fn filter(predicate: Expr, parallelism: u32) -> Node {
    node("filter", OperatorSpec::Filter { predicate }, parallelism, edge(0, Exchange::Forward))
}

/// A predicate that is true; `misbehave` is called at each batch and may say that it shall panic.
fn predicate(misbehave: impl Fn() -> bool + Send + Sync + 'static) -> Expr {
    let function = move |args: &[ColumnarValue]| {
        assert!(!misbehave(), "scripted panic");
        let rows = ColumnarValue::values_to_arrays(args)?[0].as_primitive::<Int64Type>().len();
        Ok(ColumnarValue::Array(Arc::new(BooleanArray::from(vec![true; rows]))))
    };
    let udf = create_udf("always", vec![DataType::Int64], DataType::Boolean, Volatility::Volatile, Arc::new(function));
    let config = Arc::new(ConfigOptions::default());
    Arc::new(ScalarFunctionExpr::try_new(Arc::new(udf), vec![number_column()], &number_schema(), config).unwrap())
}

/// source -> filter => sink
fn to_sink(parallelism: u32) -> Graph {
    to_sink_through(predicate(|| false), parallelism)
}

fn to_sink_through(predicate: Expr, parallelism: u32) -> Graph {
    graph(vec![
        node("source", source_spec("numbers"), parallelism, vec![]),
        filter(predicate, parallelism),
        node("sink", sink_spec(), parallelism, edge(1, Exchange::Hash(vec![0]))),
    ])
}

/// source => view
fn to_view(parallelism: u32) -> Graph {
    graph(vec![
        node("source", source_spec("numbers"), parallelism, vec![]),
        node("view", materialize_spec(), parallelism, edge(0, Exchange::Hash(vec![0]))),
    ])
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(60), future).await {
        Ok(done) => done,
        Err(_) => panic!("{what} takes for ever"),
    }
}

async fn until(job: &JobHandle, is: impl Fn(&JobStatus) -> bool) {
    let mut status = job.status();
    in_time("status", async { drop(status.wait_for(|status| is(status)).await.unwrap()) }).await;
}

async fn finished(job: &JobHandle) {
    assert_eq!(in_time("job", job.finished()).await, JobStatus::Finished);
}

/// Takes checkpoints until `rows` rows are committed. Failures of the job in between are part of the script.
async fn commit_rows(job: &JobHandle, world: &World, rows: usize) {
    in_time("commit", async {
        while world.output().len() < rows {
            let _ = job.checkpoint().await;
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn completed(job: &JobHandle) -> Vec<CheckpointId> {
    let records = job.checkpoints();
    let done = records.iter().filter(|record| matches!(record.state, CheckpointState::Completed(_)));
    done.map(|record| record.id).collect()
}

#[tokio::test]
async fn a_job_reads_all_commits_and_finishes_with_one_checkpoint() {
    let bench = Bench::new(world()).await;
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    bench.world.release(1000);
    finished(&job).await;
    assert_eq!(bench.world.output(), expected());
    assert_eq!(bench.world.leftovers(), 0);
    assert_eq!(completed(&job), [CheckpointId(1)]);
    let store = JobStore::read_only(&bench.services.store, &bench.id);
    let manifest = store.latest().await.unwrap().unwrap();
    assert!(manifest.last);
    assert_eq!(
        manifest.operators.iter().map(|operator| operator.uid.0.as_str()).collect::<Vec<_>>(),
        ["uid-source", "uid-filter", "uid-sink"]
    );
    let metrics = job.metrics();
    let rows = |name: &str| metrics.iter().filter(|m| m.name == name).map(|m| m.rows_in).sum::<u64>();
    assert_eq!((rows("source"), rows("filter"), rows("sink")), (85, 85, 85));
    assert!(job.checkpoint().await.is_err());
}

/// Reads in steps with a checkpoint after each, whatever happens in between.
async fn run_in_steps(spec: JobSpec, bench: &Bench, points: FailPoints) -> JobHandle {
    let job = spawn_with(spec, bench.services.clone(), points);
    for step in [4, 9, 20] {
        bench.world.release(step);
        let _ = in_time("checkpoint", job.checkpoint()).await;
        let _ = in_time("checkpoint", job.checkpoint()).await;
    }
    bench.world.release(1000);
    finished(&job).await;
    job
}

#[tokio::test]
async fn every_row_counts_once_whatever_fails_and_when() {
    for stage in OF_A_CHECKPOINT {
        for nth in [1, 2] {
            let bench = Bench::new(world()).await;
            let points = FailPoints::default();
            points.arm(stage, nth);
            run_in_steps(bench.spec(to_sink(2)), &bench, points.clone()).await;
            assert_eq!(bench.world.output(), expected(), "{stage}:{nth}");
            assert_eq!(bench.world.leftovers(), 0, "{stage}:{nth}");
            assert!(points.all_fired(), "{stage}:{nth}");
            assert!(bench.world.commits().is_sorted(), "{stage}:{nth}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn every_row_counts_once_when_recovery_fails_too() {
    for stage in ["in-recovery", "in-recovery-after-recommit"] {
        let bench = Bench::new(world()).await;
        bench.world.fail_at(10, 2);
        let points = FailPoints::default();
        // The first start passes here, too.
        points.arm(stage, 2);
        run_in_steps(bench.spec(to_sink(2)), &bench, points.clone()).await;
        assert_eq!(bench.world.output(), expected(), "{stage}");
        assert!(points.all_fired(), "{stage}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn concurrent_checkpoints_count_every_row_once_too() {
    let bench = Bench::new(world()).await;
    let points = FailPoints::default();
    points.arm("before-upload", 3);
    let checkpointing = CheckpointOptions {
        interval: Some(Duration::from_millis(1)),
        max_concurrent: 3,
        num_retained: 1,
        orphan_grace: Duration::ZERO,
        ..CheckpointOptions::default()
    };
    run_in_steps(JobSpec { checkpointing, ..bench.spec(to_sink(3)) }, &bench, points).await;
    assert_eq!(bench.world.output(), expected());
    assert_eq!(bench.world.leftovers(), 0);
}

#[tokio::test]
async fn at_least_once_loses_nothing() {
    let bench = Bench::new(world()).await;
    bench.world.fail_at(10, 1);
    let checkpointing =
        CheckpointOptions { interval: None, mode: CheckpointMode::AtLeastOnce, ..CheckpointOptions::default() };
    run_in_steps(JobSpec { checkpointing, ..bench.spec(to_sink(2)) }, &bench, FailPoints::default()).await;
    let output: BTreeSet<i64> = bench.world.output().into_iter().collect();
    assert_eq!(output.into_iter().collect::<Vec<_>>(), expected());
}

#[tokio::test]
async fn a_panic_in_an_operator_restarts_the_job_and_says_so() {
    let bench = Bench::new(world()).await;
    let broken = Arc::new(AtomicBool::new(true));
    let misbehaves = Arc::clone(&broken);
    let restart =
        RestartPolicy { initial: Duration::from_millis(1), max: Duration::from_millis(1), ..RestartPolicy::default() };
    let graph = to_sink_through(predicate(move || misbehaves.load(Ordering::Relaxed)), 2);
    let job = spawn(JobSpec { restart, ..bench.spec(graph) }, bench.services.clone());
    bench.world.release(1000);
    let said = |status: &JobStatus| match status {
        JobStatus::Restarting { attempt, reason, .. } => {
            *attempt >= 1 && reason.contains("scripted panic") && reason.contains("source -> filter")
        }
        _ => false,
    };
    until(&job, said).await;
    broken.store(false, Ordering::Relaxed);
    finished(&job).await;
    assert_eq!(bench.world.output(), expected());
}

#[tokio::test]
async fn a_job_that_fails_too_often_is_given_up_and_one_that_cannot_start_at_once() {
    let bench = Bench::new(world()).await;
    bench.world.fail_at(0, u32::MAX);
    bench.world.release(1000);
    let restart = RestartPolicy { initial: Duration::ZERO, max_attempts: Some(2), ..RestartPolicy::default() };
    let job = spawn(JobSpec { restart, ..bench.spec(to_sink(1)) }, bench.services.clone());
    let JobStatus::Failed { reason } = in_time("job", job.finished()).await else { panic!("it has not failed") };
    assert!(reason.contains("it fails here"), "{reason}");

    let job = spawn(bench.spec(graph(vec![])), bench.services.clone());
    let JobStatus::Failed { reason } = in_time("job", job.finished()).await else { panic!("it has not failed") };
    assert!(reason.contains("query \"q\" cannot start: its graph has no operators"), "{reason}");
}

#[tokio::test]
async fn a_failed_commit_is_repeated_by_recovery() {
    let bench = Bench::new(world()).await;
    bench.world.fail_commits(3);
    run_in_steps(bench.spec(to_sink(2)), &bench, FailPoints::default()).await;
    assert_eq!(bench.world.output(), expected());
}

#[tokio::test]
async fn a_paused_job_reads_nothing_and_still_takes_checkpoints() {
    let bench = Bench::new(world()).await;
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    bench.world.release(3);
    commit_rows(&job, &bench.world, 9).await;
    job.pause().await;
    assert_eq!(*job.status().borrow(), JobStatus::Paused);
    bench.world.release(1000);
    in_time("checkpoint", job.checkpoint()).await.unwrap();
    assert_eq!(bench.world.output().len(), 9);
    job.resume().await;
    finished(&job).await;
    assert_eq!(bench.world.output(), expected());
}

#[tokio::test]
async fn a_stopped_job_goes_on_where_it_was_at_any_parallelism() {
    let bench = Bench::new(world()).await;
    let mut last = CheckpointId(0);
    for (parallelism, released, rows) in [(2, 3, 9), (2, 5, 15), (3, 8, 21), (1, 20, 45), (4, 30, 65)] {
        let job = spawn(bench.spec(to_sink(parallelism)), bench.services.clone());
        bench.world.release(released);
        commit_rows(&job, &bench.world, rows).await;
        let stopped = in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap().unwrap();
        assert!(stopped.id > last);
        last = stopped.id;
        assert_eq!(*job.status().borrow(), JobStatus::Stopped);
        let store = JobStore::read_only(&bench.services.store, &bench.id);
        assert!(!store.latest().await.unwrap().unwrap().last, "it can go on");
    }
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    bench.world.release(1000);
    finished(&job).await;
    assert_eq!(bench.world.output(), expected());
}

#[tokio::test]
async fn a_stop_whose_checkpoint_fails_says_so_and_the_job_goes_on() {
    let bench = Bench::new(world()).await;
    let points = FailPoints::default();
    let job = spawn_with(bench.spec(to_sink(2)), bench.services.clone(), points.clone());
    bench.world.release(3);
    commit_rows(&job, &bench.world, 9).await;
    points.arm("before-manifest", 1);
    let error = in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap_err().to_string();
    assert!(error.contains("manifest could not be written"), "{error}");
    bench.world.release(1000);
    finished(&job).await;
    assert_eq!(bench.world.output(), expected());
}

#[tokio::test]
async fn a_job_stopped_at_once_repeats_what_was_not_committed() {
    let bench = Bench::new(world()).await;
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    bench.world.release(3);
    commit_rows(&job, &bench.world, 9).await;
    bench.world.release(6);
    assert_eq!(in_time("stop", job.stop(StopMode::Now)).await.unwrap(), None);
    bench.world.release(1000);
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    finished(&job).await;
    assert_eq!(bench.world.output(), expected());
}

#[tokio::test]
async fn new_splits_are_found_and_read_and_finished_ones_never_again() {
    let bench = Bench::new(World::new(&[("a", vec![1, 2])])).await;
    bench.world.set_unbounded();
    bench.world.release(1000);
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    commit_rows(&job, &bench.world, 2).await;
    bench.world.add_split("b", vec![3, 4, 5]);
    commit_rows(&job, &bench.world, 5).await;
    in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap();
    let asked = bench.world.discoveries();
    let job = spawn(bench.spec(to_sink(3)), bench.services.clone());
    bench.world.add_split("c", vec![6]);
    commit_rows(&job, &bench.world, 6).await;
    assert!(bench.world.discoveries() > asked);
    in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap();
    assert_eq!(bench.world.output(), [1, 2, 3, 4, 5, 6]);
}

/// How many rows readers of the view see.
fn rows_in_view(view: &ViewHandle) -> Option<usize> {
    let snapshot = view.snapshot()?;
    let codec = crate::operators::ViewCodec::new(&number_schema(), &[], 128).unwrap();
    let scan = Arc::new(codec).scan(snapshot.parts, None).unwrap();
    Some(scan.map(|batch| batch.unwrap().num_rows()).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_view_is_kept_over_crashes_rescaling_and_after_the_end() {
    let bench = Bench::new(world()).await;
    let mut epoch = weir_storage::Epoch(0);
    for (parallelism, released, rows) in [(2, 3, 9), (2, 5, 15), (3, 8, 21), (1, 20, 45)] {
        bench.world.release(released);
        bench.world.fail_at(released as i64 - 1, 1);
        let job = spawn(bench.spec(to_view(parallelism)), bench.services.clone());
        in_time("view", async {
            while rows_in_view(&bench.view) != Some(rows) {
                bench.view.epochs().changed().await.unwrap();
            }
        })
        .await;
        in_time("checkpoint", job.checkpoint()).await.unwrap();
        assert!(bench.view.snapshot().unwrap().epoch > epoch, "epochs go on over restarts");
        epoch = bench.view.snapshot().unwrap().epoch;
        in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap();
        assert_eq!(rows_in_view(&bench.view), Some(rows), "readers keep what they had");
    }
    bench.world.release(1000);
    let job = spawn(bench.spec(to_view(2)), bench.services.clone());
    finished(&job).await;
    assert_eq!(rows_in_view(&bench.view), Some(85));
    let last = completed(&job).last().copied().unwrap();

    let view = ViewHandle::new(number_schema(), vec![]);
    let scripted = Scripted { world: Arc::clone(&bench.world), view: Arc::clone(&view) };
    let services = JobServices { views: Arc::new(scripted), ..bench.services.clone() };
    let job = spawn(bench.spec(to_view(2)), services);
    finished(&job).await;
    assert_eq!(rows_in_view(&view), Some(85), "a finished job is served from its last checkpoint");
    assert_eq!(completed(&job).last(), Some(&last), "and takes no further one");
}

/// Sums of the counters of an operator: rows in, rows out, bad rows.
fn counts(job: &JobHandle, name: &str) -> (u64, u64, u64) {
    let metrics = job.metrics();
    let of = metrics.iter().filter(|m| m.name == name);
    of.fold((0, 0, 0), |sum, m| (sum.0 + m.rows_in, sum.1 + m.rows_out, sum.2 + m.bad_rows))
}

fn rejected(job: &JobHandle) -> Vec<i64> {
    let mut raws: Vec<i64> = job.rejected().bad.iter().map(|kept| kept.row.raw.parse().unwrap()).collect();
    raws.sort_unstable();
    raws
}

#[tokio::test]
async fn rows_are_counted_and_bad_ones_kept_once_over_failures_restarts_and_rescaling() {
    let rows = |first: i64| (first..first + 40).flat_map(|n| [n, -n - 1]).collect::<Vec<_>>();
    let bench = Bench::new(World::new(&[("a", rows(0)), ("b", rows(100)), ("c", rows(200))])).await;
    let bad: Vec<i64> = (0..40).chain(100..140).chain(200..240).map(|n| -n - 1).rev().collect();
    for (parallelism, released) in [(2, 8), (2, 14), (3, 20), (1, 32), (4, 50)] {
        // Fails on the way, with rows that were counted and rejected since the last checkpoint.
        bench.world.fail_at(released as i64 / 2 - 1, 1);
        let job = spawn(bench.spec(to_sink(parallelism)), bench.services.clone());
        bench.world.release(released);
        let good = released / 2 * 3;
        commit_rows(&job, &bench.world, good).await;
        in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap();
        for operator in ["source", "filter", "sink"] {
            let bad = if operator == "source" { good as u64 } else { 0 };
            assert_eq!(counts(&job, operator), (good as u64, good as u64, bad), "{operator} of {parallelism}");
        }
        assert_eq!(rejected(&job).len(), good, "{parallelism}");
    }
    bench.world.release(1000);
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    finished(&job).await;
    assert_eq!((counts(&job, "source"), rejected(&job)), ((120, 120, 120), bad.clone()));
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    finished(&job).await;
    assert_eq!((counts(&job, "source"), rejected(&job)), ((120, 120, 120), bad), "of a finished job too");
}

#[tokio::test]
async fn rejected_rows_that_did_not_change_are_not_written_again() {
    let bench = Bench::new(World::new(&[("a", (0..40).flat_map(|n| [n, -n - 1]).collect())])).await;
    let checkpointing = CheckpointOptions { interval: None, inline_threshold: 0, ..CheckpointOptions::default() };
    let spec = || JobSpec { checkpointing: checkpointing.clone(), ..bench.spec(to_sink(1)) };
    let job = spawn(spec(), bench.services.clone());
    bench.world.release(6);
    commit_rows(&job, &bench.world, 3).await;
    let first = in_time("checkpoint", job.checkpoint()).await.unwrap();
    let second = in_time("checkpoint", job.checkpoint()).await.unwrap();
    assert_eq!((second.new_bytes, second.shared_bytes), (0, first.shared_bytes + first.new_bytes));
    assert!(second.shared_bytes > 0);
    in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap();
    let job = spawn(spec(), bench.services.clone());
    let third = in_time("checkpoint", job.checkpoint()).await.unwrap();
    assert_eq!((third.new_bytes, third.shared_bytes), (0, second.shared_bytes), "nor after a restart");
    bench.world.release(8);
    commit_rows(&job, &bench.world, 4).await;
    let last = in_time("checkpoint", job.checkpoint()).await.unwrap();
    assert!(last.total_bytes > second.total_bytes);
    assert_eq!(rejected(&job), [-4, -3, -2, -1]);
}

#[tokio::test]
async fn without_incremental_checkpoints_each_holds_all_of_its_state() {
    let bench = Bench::new(world()).await;
    for incremental in [true, false] {
        let checkpointing =
            CheckpointOptions { interval: None, inline_threshold: 0, incremental, ..CheckpointOptions::default() };
        let job = spawn(JobSpec { checkpointing, ..bench.spec(to_view(2)) }, bench.services.clone());
        bench.world.release(if incremental { 3 } else { 5 });
        in_time("flush", async {
            while rows_in_view(&bench.view) != Some(if incremental { 9 } else { 15 }) {
                bench.view.epochs().changed().await.unwrap();
            }
        })
        .await;
        in_time("checkpoint", job.checkpoint()).await.unwrap();
        let second = in_time("checkpoint", job.checkpoint()).await.unwrap();
        assert!(second.new_bytes > 0, "the lists of tables are always new");
        assert_eq!(second.shared_bytes > 0, incremental, "{second:?}");
        in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap();
    }
}

#[tokio::test]
async fn a_backlog_is_read_without_checkpoints_if_so_wished_and_its_end_is_committed() {
    let bench = Bench::new(world()).await;
    let checkpointing = CheckpointOptions {
        interval: Some(Duration::from_millis(1)),
        interval_during_backlog: Some(Duration::ZERO),
        ..CheckpointOptions::default()
    };
    let job = spawn(JobSpec { checkpointing, ..bench.spec(to_sink(2)) }, bench.services.clone());
    // All of a bounded input is backlog.
    bench.world.release(1000);
    finished(&job).await;
    assert_eq!(bench.world.output(), expected());
    assert_eq!(completed(&job), [CheckpointId(1)]);
}

#[tokio::test]
async fn state_of_an_operator_that_is_gone_is_not_forgotten_silently() {
    let bench = Bench::new(world()).await;
    let job = spawn(bench.spec(to_view(2)), bench.services.clone());
    bench.world.release(3);
    in_time("checkpoint", job.checkpoint()).await.unwrap();
    in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap();
    let job = spawn(bench.spec(to_sink(2)), bench.services.clone());
    let JobStatus::Failed { reason } = in_time("job", job.finished()).await else { panic!("it has not failed") };
    assert!(reason.contains("\"view\" (uid-view), which the query no longer has"), "{reason}");
}

#[tokio::test]
async fn only_the_newest_checkpoints_are_kept() {
    let bench = Bench::new(world()).await;
    let job = spawn(bench.spec(to_view(2)), bench.services.clone());
    for step in 1..8 {
        bench.world.release(step * 3);
        in_time("checkpoint", job.checkpoint()).await.unwrap();
    }
    in_time("stop", job.stop(StopMode::WithCheckpoint)).await.unwrap();
    let store = JobStore::read_only(&bench.services.store, &bench.id);
    assert_eq!(store.list().await.unwrap(), completed(&job)[6..]);
    let objects = bench.services.store.list("jobs").await.unwrap();
    assert_eq!(objects.iter().filter(|object| object.path.ends_with("_metadata")).count(), 2);
}
