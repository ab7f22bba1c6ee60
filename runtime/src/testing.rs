//! For tests: rows of one number, a source and a sink that are scripted, and graphs of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{AsArray, Int8Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::physical_expr::expressions::Column;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_storage::{CheckpointId, Fence, JobId, OperatorUid, OwnerInfo, StateResources, Store, Subtask};

use crate::error::{Result, internal};
use crate::graph::{Edge, Exchange, Expr, Graph, MaterializeSpec, Node, OperatorSpec, Resolver, SinkSpec, SourceSpec};
use crate::job::{JobServices, JobSpec, Views};
use crate::message::Chunk;
use crate::options::{CheckpointOptions, RestartPolicy};
use crate::rejects::BadRow;
use crate::sink::{Prepared, Sink, SinkCommitter, SinkWriter};
use crate::source::{Source, SourceEvent, SourceReader, SourceRequest, SplitId, SplitState};
use crate::view::ViewHandle;

pub(crate) fn number_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]))
}

fn batch(values: &[i64]) -> RecordBatch {
    RecordBatch::try_new(number_schema(), vec![Arc::new(Int64Array::from(values.to_vec()))]).unwrap()
}

/// Insertions.
pub(crate) fn ints(values: &[i64]) -> Chunk {
    Chunk::insert(batch(values))
}

/// Numbers with weights.
pub(crate) fn weighted(rows: &[(i64, i8)]) -> Chunk {
    let values: Vec<i64> = rows.iter().map(|row| row.0).collect();
    Chunk::new(batch(&values), rows.iter().map(|row| Some(row.1)).collect::<Int8Array>())
}

pub(crate) fn int_values(chunk: &Chunk) -> Vec<i64> {
    chunk.batch().column(0).as_primitive::<Int64Type>().values().to_vec()
}

pub(crate) fn graph(nodes: Vec<Node>) -> Graph {
    Graph { nodes, max_parallelism: 128 }
}

pub(crate) fn number_column() -> Expr {
    Arc::new(Column::new("n", 0))
}

fn request(relation: &str) -> SourceRequest {
    SourceRequest { relation: relation.to_owned(), declared: number_schema(), projection: vec![0] }
}

pub(crate) fn node(name: &str, spec: OperatorSpec, parallelism: u32, inputs: Vec<Edge>) -> Node {
    Node {
        uid: OperatorUid(format!("uid-{name}")),
        former_uid: None,
        name: name.to_owned(),
        spec,
        parallelism,
        inputs,
        schema: number_schema(),
        changelog: false,
        state_bound: "stateless".to_owned(),
    }
}

/// A union, or a source if it has no inputs.
pub(crate) fn union_node(index: usize, parallelism: u32, inputs: &[(usize, Exchange)]) -> Node {
    let inputs: Vec<Edge> =
        inputs.iter().map(|(from, exchange)| Edge { from: *from, exchange: exchange.clone() }).collect();
    let spec = if inputs.is_empty() { source_spec("numbers") } else { OperatorSpec::Union };
    node(&format!("node {index}"), spec, parallelism, inputs)
}

pub(crate) fn source_spec(relation: &str) -> OperatorSpec {
    OperatorSpec::Source(SourceSpec { request: request(relation), columns: vec![number_column()], watermark: None })
}

pub(crate) fn sink_spec() -> OperatorSpec {
    let relation = "out".to_owned();
    OperatorSpec::Sink(SinkSpec { relation, schema: number_schema(), changelog: false, log: false, event_time: false })
}

pub(crate) fn materialize_spec() -> OperatorSpec {
    let relation = "view".to_owned();
    OperatorSpec::Materialize(MaterializeSpec { relation, key: vec![], upsert: false, forward: false })
}

/// What is outside: the input of all splits, how much of it may be read, and what was committed. A number below 0 is a
/// row that cannot be read.
#[derive(Default)]
pub(crate) struct World {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    splits: BTreeMap<String, Vec<i64>>,
    /// Rows of each split that may be read.
    released: usize,
    unbounded: bool,
    /// The source fails when it comes to this row, so often.
    failing: Option<(i64, u32)>,
    discoveries: u32,
    staged: HashMap<String, Vec<i64>>,
    committed: BTreeSet<String>,
    output: Vec<(CheckpointId, Vec<i64>)>,
    next_stage: u64,
    commits_to_fail: u32,
    late_stages: u32,
    /// The sink takes no rows.
    shut: bool,
}

impl World {
    pub(crate) fn new(splits: &[(&str, Vec<i64>)]) -> Arc<Self> {
        let world = Self::default();
        world.inner.lock().splits = splits.iter().map(|(name, rows)| ((*name).to_owned(), rows.clone())).collect();
        Arc::new(world)
    }

    /// Lets up to `rows` rows of each split be read.
    pub(crate) fn release(&self, rows: usize) {
        self.inner.lock().released = rows;
        self.changed.notify_waiters();
    }

    pub(crate) fn add_split(&self, name: &str, rows: Vec<i64>) {
        self.inner.lock().splits.insert(name.to_owned(), rows);
    }

    pub(crate) fn set_unbounded(&self) {
        self.inner.lock().unbounded = true;
    }

    pub(crate) fn fail_at(&self, row: i64, times: u32) {
        self.inner.lock().failing = Some((row, times));
    }

    pub(crate) fn fail_commits(&self, times: u32) {
        self.inner.lock().commits_to_fail = times;
    }

    /// Lets the sink take rows, or none.
    pub(crate) fn shut_sink(&self, shut: bool) {
        self.inner.lock().shut = shut;
        self.changed.notify_waiters();
    }

    pub(crate) fn discoveries(&self) -> u32 {
        self.inner.lock().discoveries
    }

    /// All committed rows, sorted.
    pub(crate) fn output(&self) -> Vec<i64> {
        let mut rows: Vec<i64> = self.inner.lock().output.iter().flat_map(|(_, rows)| rows.clone()).collect();
        rows.sort_unstable();
        rows
    }

    /// Checkpoints in the order of their commits.
    pub(crate) fn commits(&self) -> Vec<CheckpointId> {
        self.inner.lock().output.iter().map(|(checkpoint, _)| *checkpoint).collect()
    }

    /// Rows that were prepared and never committed nor cleaned up.
    pub(crate) fn leftovers(&self) -> usize {
        self.inner.lock().staged.len()
    }
}

fn bad_row(split: &str, row: i64) -> BadRow {
    BadRow {
        relation: "numbers".to_owned(),
        split: split.to_owned(),
        position: String::new(),
        reason: "below 0".to_owned(),
        raw: row.to_string(),
    }
}

struct Numbers(Arc<World>);

#[async_trait]
impl Source for Numbers {
    async fn discover(&self, known: &[SplitState], _parallelism: u32) -> Result<Vec<SplitState>> {
        let mut inner = self.0.inner.lock();
        inner.discoveries += 1;
        let new = inner.splits.keys().filter(|name| known.iter().all(|split| split.id.0 != **name));
        let split = |name: &String| SplitState {
            id: SplitId(name.clone()),
            position: serde_json::Value::Null,
            finished: false,
        };
        Ok(new.map(split).collect())
    }

    fn discovery_interval(&self) -> Option<Duration> {
        self.0.inner.lock().unbounded.then_some(Duration::from_millis(1))
    }

    async fn reader(&self, splits: Vec<SplitState>) -> Result<Box<dyn SourceReader>> {
        let mut reader = NumberReader { world: Arc::clone(&self.0), splits: BTreeMap::new() };
        reader.add_splits(splits).await?;
        Ok(Box::new(reader))
    }
}

struct NumberReader {
    world: Arc<World>,
    splits: BTreeMap<String, usize>,
}

impl NumberReader {
    fn try_next(&mut self) -> Result<Option<SourceEvent>> {
        let mut inner = self.world.inner.lock();
        for (name, at) in &mut self.splits {
            let all = inner.splits[name].clone();
            let until = (*at + 3).min(inner.released).min(all.len());
            if *at < until {
                let rows = &all[*at..until];
                if let Some((row, times)) = &mut inner.failing
                    && rows.contains(row)
                    && *times > 0
                {
                    *times -= 1;
                    return Err(internal("scripted source", "it fails here"));
                }
                *at = until;
                let position = serde_json::json!(until);
                let split = SplitId(name.clone());
                let (good, bad): (Vec<i64>, Vec<i64>) = rows.iter().partition(|row| **row >= 0);
                let bad = bad.into_iter().map(|row| bad_row(name, row)).collect();
                return Ok(Some(SourceEvent::Rows { split, batch: batch(&good), ops: None, position, bad }));
            }
        }
        let read =
            self.splits.iter().find(|(name, at)| **at == inner.splits[*name].len()).map(|(name, _)| name.clone());
        if let Some(name) = read {
            self.splits.remove(&name);
            return Ok(Some(SourceEvent::SplitFinished { split: SplitId(name) }));
        }
        Ok((self.splits.is_empty() && !inner.unbounded).then_some(SourceEvent::End))
    }
}

#[async_trait]
impl SourceReader for NumberReader {
    async fn next(&mut self) -> Result<SourceEvent> {
        let world = Arc::clone(&self.world);
        loop {
            let changed = world.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            changed.await;
        }
    }

    async fn add_splits(&mut self, splits: Vec<SplitState>) -> Result<()> {
        self.splits.extend(splits.into_iter().map(|s| (s.id.0, s.position.as_u64().unwrap_or(0) as usize)));
        Ok(())
    }
}

struct Out(Arc<World>);

struct OutWriter {
    world: Arc<World>,
    subtask: Subtask,
    rows: Vec<i64>,
}

#[async_trait]
impl Sink for Out {
    async fn writer(&self, _: &JobId, subtask: Subtask, restored: Vec<Vec<u8>>) -> Result<Box<dyn SinkWriter>> {
        assert!(restored.iter().all(|state| state == b"state"), "what prepare returned comes back");
        Ok(Box::new(OutWriter { world: Arc::clone(&self.0), subtask, rows: Vec::new() }))
    }

    async fn committer(&self, _: &JobId) -> Result<Option<Box<dyn SinkCommitter>>> {
        Ok(Some(Box::new(OutCommitter(Arc::clone(&self.0)))))
    }
}

#[async_trait]
impl SinkWriter for OutWriter {
    async fn ready(&mut self) -> Result<()> {
        loop {
            let mut changed = std::pin::pin!(self.world.changed.notified());
            changed.as_mut().enable();
            if !self.world.inner.lock().shut {
                return Ok(());
            }
            changed.await;
        }
    }

    async fn write(&mut self, chunk: Chunk) -> Result<()> {
        self.rows.extend(int_values(&chunk));
        Ok(())
    }

    async fn prepare(&mut self, _: CheckpointId) -> Result<Prepared> {
        let rows = std::mem::take(&mut self.rows);
        let state = b"state".to_vec();
        if rows.is_empty() {
            return Ok(Prepared { committables: vec![], state });
        }
        let mut inner = self.world.inner.lock();
        inner.next_stage += 1;
        let name = format!("{}-{}", self.subtask, inner.next_stage);
        inner.staged.insert(name.clone(), rows);
        Ok(Prepared { committables: vec![name.into_bytes()], state })
    }
}

struct OutCommitter(Arc<World>);

#[async_trait]
impl SinkCommitter for OutCommitter {
    async fn commit(&mut self, checkpoint: CheckpointId, committables: Vec<Vec<u8>>) -> Result<()> {
        let mut inner = self.0.inner.lock();
        if inner.commits_to_fail > 0 {
            inner.commits_to_fail -= 1;
            return Err(internal("scripted sink", "its commit fails"));
        }
        for bytes in committables {
            let name = String::from_utf8(bytes).unwrap();
            if inner.committed.contains(&name) {
                continue;
            }
            let Some(rows) = inner.staged.remove(&name) else {
                inner.late_stages += 1;
                return Err(internal("scripted sink", format!("{name} was removed before its commit")));
            };
            inner.committed.insert(name);
            inner.output.push((checkpoint, rows));
        }
        Ok(())
    }

    async fn clean_up(&mut self) -> Result<()> {
        self.0.inner.lock().staged.clear();
        Ok(())
    }
}

/// Opens the scripted source and sink, and nothing else.
pub(crate) struct Scripted {
    pub(crate) world: Arc<World>,
    pub(crate) view: Arc<ViewHandle>,
}

#[async_trait]
impl Resolver for Scripted {
    async fn source(&self, _: &SourceRequest) -> Result<Arc<dyn Source>> {
        Ok(Arc::new(Numbers(Arc::clone(&self.world))))
    }

    async fn sink(&self, _: &SinkSpec) -> Result<Arc<dyn Sink>> {
        Ok(Arc::new(Out(Arc::clone(&self.world))))
    }
}

impl Views for Scripted {
    fn view(&self, _: &str) -> Option<Arc<ViewHandle>> {
        Some(Arc::clone(&self.view))
    }
}

/// A store in memory, and what jobs need besides.
pub(crate) struct Bench {
    pub(crate) world: Arc<World>,
    pub(crate) view: Arc<ViewHandle>,
    pub(crate) services: JobServices,
    pub(crate) id: JobId,
    _dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn new(world: Arc<World>) -> Self {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let fence = Arc::new(Fence::acquire(&store, OwnerInfo::current()).await.unwrap());
        let dir = tempfile::tempdir().unwrap();
        let view = ViewHandle::new(number_schema(), vec![]);
        let scripted = Arc::new(Scripted { world: Arc::clone(&world), view: Arc::clone(&view) });
        let services = JobServices {
            store,
            fence,
            state: StateResources::new(16 << 20),
            state_dir: dir.path().to_owned(),
            resolver: Arc::clone(&scripted) as _,
            views: scripted,
            pins: Default::default(),
            cpu: tokio::runtime::Handle::current(),
        };
        Self { world, view, services, id: JobId("q-1".to_owned()), _dir: dir }
    }

    pub(crate) fn spec(&self, graph: Graph) -> JobSpec {
        JobSpec {
            id: self.id.clone(),
            name: "q".to_owned(),
            sql: "CREATE SINK q AS SELECT n FROM numbers".to_owned(),
            graph,
            checkpointing: CheckpointOptions { interval: None, ..CheckpointOptions::default() },
            epoch_interval: Duration::from_millis(2),
            channel_bytes: 64,
            restart: RestartPolicy { initial: Duration::ZERO, max: Duration::ZERO, ..RestartPolicy::default() },
            paused: false,
        }
    }
}
