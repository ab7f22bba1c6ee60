//! Checkpoints whose barriers may overtake.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use arrow::datatypes::SchemaRef;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::Operator as BinaryOperator;
use weir_storage::Manifest;

use super::*;
use crate::graph::{AggregateSpec, Emit, JoinKind, JoinSpec, MaterializeSpec};
use crate::operators::ViewCodec;
use crate::operators::testing::{binary, call, col, lit, schema};

fn unaligned(aligned_timeout: Duration) -> CheckpointOptions {
    CheckpointOptions { interval: None, unaligned: true, aligned_timeout, ..CheckpointOptions::default() }
}

fn spec(bench: &Bench, graph: Graph) -> JobSpec {
    JobSpec { checkpointing: unaligned(Duration::ZERO), ..bench.spec(graph) }
}

fn source(name: &str, parallelism: u32) -> Node {
    node(name, source_spec("numbers"), parallelism, vec![])
}

fn from(from: usize, exchange: Exchange) -> Edge {
    Edge { from, exchange }
}

fn hash(of: usize) -> Edge {
    from(of, Exchange::Hash(vec![0]))
}

fn passes(name: &str, parallelism: u32, input: Edge) -> Node {
    node(name, OperatorSpec::Filter { predicate: predicate(|| false) }, parallelism, vec![input])
}

/// (source, source) -> union => filter => filter => sink
fn nested(parallelism: u32) -> Graph {
    let forward = |of| from(of, Exchange::Forward);
    graph(vec![
        source("a", parallelism),
        source("b", parallelism),
        node("union", OperatorSpec::Union, parallelism, vec![forward(0), forward(1)]),
        passes("first", parallelism, hash(2)),
        passes("second", parallelism, hash(3)),
        node("sink", sink_spec(), parallelism, vec![hash(4)]),
    ])
}

/// (source => filter -> , source =>) join => sink: a keyed edge that is not exchanged.
fn joined(parallelism: u32) -> Graph {
    let spec = JoinSpec { kind: JoinKind::Inner, on: vec![(0, 0)], filter: None, null_equals_null: false };
    let inputs = vec![from(2, Exchange::Forward), hash(1)];
    let mut join = node("join", OperatorSpec::Join(spec), parallelism, inputs);
    join.schema = schema("n bigint, m bigint");
    let sources = vec![source("a", parallelism), source("b", parallelism)];
    let rest =
        vec![passes("filter", parallelism, hash(0)), join, node("sink", sink_spec(), parallelism, vec![hash(3)])];
    graph(sources.into_iter().chain(rest).collect())
}

fn rows_in(job: &JobHandle) -> u64 {
    job.metrics().iter().map(|metrics| metrics.rows_in).sum()
}

/// Lets the job go on until nothing moves for a while. What a test finds out does not depend on how long that is.
async fn settle(job: &JobHandle) {
    let (mut seen, mut quiet) = (rows_in(job), 0);
    while quiet < 10 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let now = rows_in(job);
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
    }
}

async fn has_read(job: &JobHandle) {
    in_time("reading", async {
        while rows_in(job) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn latest(bench: &Bench) -> Manifest {
    JobStore::read_only(&bench.services.store, &bench.id).latest().await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn under_total_back_pressure_an_unaligned_checkpoint_completes() {
    for timeout in [Duration::ZERO, Duration::from_millis(20)] {
        let bench = Bench::new(world()).await;
        bench.world.shut_sink(true);
        // Not to the end: with that the aligned last checkpoint begins.
        bench.world.release(30);
        let checkpointing = unaligned(timeout);
        let job = spawn(JobSpec { checkpointing, ..bench.spec(to_sink(2)) }, bench.services.clone());
        has_read(&job).await;
        let info = in_time("checkpoint", job.checkpoint()).await.unwrap();
        assert!(info.in_flight_bytes > 0, "what was read is on its way: {info:?}");
        assert!(bench.world.output().is_empty(), "the sink took nothing");
        let manifest = latest(&bench).await;
        assert!(manifest.unaligned && !manifest.last);
        let subtasks = || manifest.operators.iter().flat_map(|operator| &operator.subtasks);
        assert!(subtasks().all(|state| state.in_flight.is_some() == (state.overtaken_bytes > 0)));
        assert!(subtasks().any(|state| state.overtaken_bytes > 0));
        bench.world.shut_sink(false);
        bench.world.release(1000);
        finished(&job).await;
        assert_eq!(bench.world.output(), expected());
        let manifest = latest(&bench).await;
        assert!(manifest.last && !manifest.unaligned && manifest.in_flight_bytes() == 0, "the last one is aligned");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn under_total_back_pressure_an_aligned_checkpoint_does_not_complete() {
    let bench = Bench::new(world()).await;
    bench.world.shut_sink(true);
    bench.world.release(30);
    let checkpointing = CheckpointOptions {
        interval: None,
        timeout: Duration::from_millis(300),
        tolerable_failed: u32::MAX,
        ..CheckpointOptions::default()
    };
    let job = spawn(JobSpec { checkpointing, ..bench.spec(to_sink(2)) }, bench.services.clone());
    has_read(&job).await;
    let error = in_time("checkpoint", job.checkpoint()).await.unwrap_err().to_string();
    assert!(error.contains("had not acknowledged it"), "{error}");
    bench.world.shut_sink(false);
    bench.world.release(1000);
    finished(&job).await;
    assert_eq!(bench.world.output(), expected());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_checkpoint_that_is_aligned_in_time_overtakes_nothing() {
    let bench = Bench::new(world()).await;
    let checkpointing = unaligned(Duration::from_secs(3600));
    let job = spawn(JobSpec { checkpointing, ..bench.spec(nested(2)) }, bench.services.clone());
    for released in [5, 11, 30] {
        bench.world.release(released);
        let info = in_time("checkpoint", job.checkpoint()).await.unwrap();
        assert_eq!(info.in_flight_bytes, 0);
    }
    bench.world.release(1000);
    finished(&job).await;
    assert_eq!(bench.world.output(), twice());
}

fn twice() -> Vec<i64> {
    let mut all = [expected(), expected()].concat();
    all.sort_unstable();
    all
}

/// Kills the job after checkpoints that hold rows in flight, and restores it at other parallelisms. The first checkpoint of
/// each run is taken while it still recovers.
async fn survives(graph: impl Fn(u32) -> Graph, expected: Vec<i64>) {
    let bench = Bench::new(world()).await;
    let (mut in_flight, mut carried_over) = (0, 0);
    for (parallelism, released) in [(1, 9), (2, 15), (3, 24), (3, 30), (11, 34), (1, 37)] {
        bench.world.shut_sink(true);
        let job = spawn(spec(&bench, graph(parallelism)), bench.services.clone());
        carried_over += in_time("checkpoint", job.checkpoint()).await.unwrap().in_flight_bytes;
        bench.world.release(released);
        settle(&job).await;
        in_flight += in_time("checkpoint", job.checkpoint()).await.unwrap().in_flight_bytes;
        bench.world.shut_sink(false);
        settle(&job).await;
        if parallelism % 2 == 1 {
            in_time("checkpoint", job.checkpoint()).await.unwrap();
        }
        in_time("stop", job.stop(StopMode::Now)).await.unwrap();
    }
    assert!(!bench.world.output().is_empty(), "some of it was committed on the way");
    assert!(in_flight > 0 && carried_over > 0, "{in_flight} {carried_over}");
    bench.world.release(1000);
    let job = spawn(spec(&bench, graph(2)), bench.services.clone());
    finished(&job).await;
    assert_eq!(bench.world.output(), expected);
    assert_eq!(bench.world.leftovers(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn rows_in_flight_survive_a_kill_and_a_change_of_parallelism() {
    survives(to_sink, expected()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn so_do_those_of_a_union_and_several_exchanges() {
    survives(nested, twice()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn so_do_those_of_a_join_on_keyed_edges_of_both_kinds() {
    survives(joined, expected()).await;
}

#[tokio::test]
async fn every_row_counts_once_whatever_fails_and_when() {
    let stages =
        ["before-snapshot", "after-snapshot", "before-upload", "after-upload", "before-manifest", "after-manifest"];
    for stage in stages.into_iter().chain(["before-sink-commit", "after-sink-commit"]) {
        for nth in [1, 3] {
            let bench = Bench::new(world()).await;
            let points = FailPoints::default();
            points.arm(stage, nth);
            run_in_steps(spec(&bench, to_sink(2)), &bench, points.clone()).await;
            assert_eq!(bench.world.output(), expected(), "{stage}:{nth}");
            assert_eq!(bench.world.leftovers(), 0, "{stage}:{nth}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn one_that_is_given_up_while_it_aligns_frees_its_channels() {
    let bench = Bench::new(world()).await;
    bench.world.shut_sink(true);
    bench.world.release(20);
    let checkpointing = CheckpointOptions {
        timeout: Duration::from_millis(300),
        tolerable_failed: u32::MAX,
        ..unaligned(Duration::from_secs(3600))
    };
    let job = spawn(JobSpec { checkpointing, ..bench.spec(nested(2)) }, bench.services.clone());
    has_read(&job).await;
    assert!(in_time("checkpoint", job.checkpoint()).await.is_err(), "it stays aligned, and the sink is shut");
    bench.world.shut_sink(false);
    bench.world.release(1000);
    finished(&job).await;
    assert_eq!(bench.world.output(), twice());
}

/// source -> n % 10 => count by it -> the count => count by that => view: a change of one count is a retraction and an
/// insertion, and goes to two subtasks.
fn counts(parallelism: u32) -> Graph {
    let (numbers, counted, inner) = (number_schema(), schema("k bigint, c bigint"), schema("c bigint"));
    let count = |input: &SchemaRef, input_changelog| {
        OperatorSpec::Aggregate(AggregateSpec {
            group: vec![0],
            calls: vec![call(count_udaf(), vec![lit(1i64)], input)],
            input_changelog,
            window_end: None,
            emit: Emit::Changes,
        })
    };
    let key = binary(col("n", &numbers), BinaryOperator::Modulo, lit(10i64), &numbers);
    let changing = |mut node: Node, schema: SchemaRef| {
        (node.changelog, node.schema) = (true, schema);
        node
    };
    let forward = |of| vec![from(of, Exchange::Forward)];
    let exprs = vec![col("c", &counted)];
    let view = MaterializeSpec { relation: "view".to_owned(), key: vec![0], upsert: false, forward: false };
    graph(vec![
        source("a", parallelism),
        node("key", OperatorSpec::Project { exprs: vec![key] }, parallelism, forward(0)),
        changing(node("count", count(&numbers, false), parallelism, vec![hash(1)]), counted),
        changing(node("inner", OperatorSpec::Project { exprs }, parallelism, forward(2)), inner.clone()),
        changing(node("counts", count(&inner, true), parallelism, vec![hash(3)]), schema("c bigint, m bigint")),
        changing(node("view", OperatorSpec::Materialize(view), parallelism, forward(4)), schema("c bigint, m bigint")),
    ])
}

/// What readers see: how many keys have which count.
fn seen(view: &ViewHandle) -> Option<BTreeMap<i64, i64>> {
    let snapshot = view.snapshot()?;
    let codec = Arc::new(ViewCodec::new(&schema("c bigint, m bigint"), &[0], 128).unwrap());
    let mut rows = BTreeMap::new();
    for batch in codec.scan(snapshot.parts, None).unwrap() {
        let batch = batch.unwrap();
        let column = |index: usize| batch.column(index).as_primitive::<Int64Type>().values().to_vec();
        rows.extend(column(0).into_iter().zip(column(1)));
    }
    Some(rows)
}

/// Reads the view over and over until told to stop. The number of keys only grows: a reader that saw half an update would
/// miss one.
fn watch(view: Arc<ViewHandle>, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<usize> {
    tokio::spawn(async move {
        let (mut keys, mut cuts) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            if let Some(rows) = seen(&view) {
                let now: i64 = rows.values().sum();
                assert!(now >= keys, "{now} keys after {keys}: {rows:?}");
                assert!(rows.values().all(|keys| *keys > 0), "{rows:?}");
                (keys, cuts) = (now, cuts + 1);
            }
            tokio::task::yield_now().await;
        }
        cuts
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_reader_never_sees_half_an_update() {
    let bench = Bench::new(world()).await;
    let run = |parallelism: u32| {
        let view = ViewHandle::new(schema("c bigint, m bigint"), vec![0]);
        let scripted = Scripted { world: Arc::clone(&bench.world), view: Arc::clone(&view) };
        let services = JobServices { views: Arc::new(scripted), ..bench.services.clone() };
        (spawn(spec(&bench, counts(parallelism)), services), view)
    };
    let mut epoch = weir_storage::Epoch(0);
    for (parallelism, released) in [(2, 9), (2, 15), (3, 24), (1, 30), (2, 36)] {
        let (job, view) = run(parallelism);
        let stop = Arc::new(AtomicBool::new(false));
        let reader = watch(Arc::clone(&view), Arc::clone(&stop));
        for step in 1..=3 {
            bench.world.release(released - 3 + step);
            in_time("checkpoint", job.checkpoint()).await.unwrap();
        }
        in_time("view", async { view.epochs().wait_for(Option::is_some).await.map(drop).unwrap() }).await;
        let first = view.snapshot().unwrap().epoch;
        assert!(first > epoch, "what is seen is of the run's own epochs: {first} after {epoch}");
        let manifest = latest(&bench).await;
        assert!(manifest.unaligned);
        in_time("stop", job.stop(StopMode::Now)).await.unwrap();
        epoch = manifest.epoch;
        stop.store(true, Ordering::Relaxed);
        assert!(reader.await.unwrap() > 0);
    }
    bench.world.release(1000);
    let (job, view) = run(2);
    finished(&job).await;
    let mut of_keys: BTreeMap<i64, i64> = BTreeMap::new();
    expected().iter().for_each(|n| *of_keys.entry(n % 10).or_default() += 1);
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    of_keys.values().for_each(|count| *counts.entry(*count).or_default() += 1);
    assert_eq!(seen(&view).unwrap(), counts);
}
