//! From a graph and a checkpoint to tasks that are ready to run.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::{BoxFuture, try_join_all};
use tokio::sync::mpsc;
use weir_storage::{
    Epoch, JobStore, KeyGroupRange, KeyedState, Manifest, OperatorState, OperatorUid, Segment, Subtask,
};

use crate::assignment::Assignment;
use crate::chain::{Chain, Link};
use crate::channel::{BlockedTime, ChannelId, Endpoint, Inbox, Room};
use crate::error::{Result, RuntimeError, internal};
use crate::exchange::OutputEdge;
use crate::graph::{Exchange, Graph, NodeIndex, OperatorSpec, SourceSpec};
use crate::in_flight::{Place, decode, may_be_overtaken, place};
use crate::job::{JobServices, JobSpec};
use crate::message::Chunk;
use crate::metrics::OperatorMetrics;
use crate::operator::OperatorContext;
use crate::operators;
use crate::options::CheckpointMode;
use crate::plan::{Plan, TaskPlan, plan};
use crate::process_task::ProcessTask;
use crate::rejects::RejectLedger;
use crate::run::{Control, Run, TaskId, TaskName};
use crate::sink::Sink;
use crate::sink_task::{SinkEnd, WriteMode};
use crate::source::Source;
use crate::source_task::{ReadState, SourceColumns, SourceTask, SplitTable};
use crate::tables::{Header, OperatorTables, TableNumbers, unframe};
use crate::task::{Task, TaskEnd, keyed_header};
use crate::time::SplitTimes;

/// A task that is ready to run.
pub(crate) struct BuiltTask {
    pub(crate) id: TaskId,
    pub(crate) name: TaskName,
    pub(crate) is_source: bool,
    pub(crate) is_terminal: bool,
    pub(crate) control: mpsc::UnboundedSender<Control>,
    pub(crate) body: BoxFuture<'static, Result<()>>,
}

/// A source operator of a run.
pub(crate) struct RunningSource {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) relation: String,
    pub(crate) assignment: Assignment,
    /// Its tasks by subtask.
    pub(crate) tasks: Vec<TaskId>,
}

/// All of a run.
pub(crate) struct Built {
    pub(crate) tasks: Vec<BuiltTask>,
    pub(crate) sources: BTreeMap<NodeIndex, RunningSource>,
    pub(crate) metrics: Vec<SubtaskMetrics>,
}

/// Counters and rejected rows of one subtask of one operator.
#[derive(Debug, Clone)]
pub(crate) struct SubtaskMetrics {
    pub(crate) node: NodeIndex,
    pub(crate) subtask: Subtask,
    pub(crate) metrics: Arc<OperatorMetrics>,
    pub(crate) rejects: Arc<RejectLedger>,
}

/// What tasks are built from.
pub(crate) struct Builder<'a> {
    pub(crate) spec: &'a JobSpec,
    pub(crate) services: &'a JobServices,
    pub(crate) run: &'a Arc<Run>,
    pub(crate) store: &'a JobStore,
    pub(crate) manifest: Option<&'a Manifest>,
    pub(crate) sinks: &'a HashMap<NodeIndex, Arc<dyn Sink>>,
    /// Where databases live; shared by all tasks of the job.
    pub(crate) state_dir: PathBuf,
    pub(crate) paused: bool,
}

/// An operator's part of the checkpoint to restore.
struct Former<'a> {
    operator: &'a OperatorState,
    /// By subtask.
    headers: Vec<Header>,
    states: Vec<Vec<u8>>,
    /// Rejected rows, with the segments that hold them.
    rejected: Vec<Option<(Segment, Vec<u8>)>>,
}

impl Former<'_> {
    /// What subtask `index` of `parallelism` takes up: its own, or everybody's if their number changed.
    fn states(&self, index: u32, parallelism: u32) -> Vec<Vec<u8>> {
        if self.operator.parallelism == parallelism {
            self.states.get(index as usize).cloned().into_iter().collect()
        } else {
            self.states.clone()
        }
    }

    /// Counters and rejected rows that subtask `index` of `parallelism` goes on from. If their number changed, each
    /// former subtask's go to one of them, so that no sum changes.
    fn report(&self, index: u32, parallelism: u32) -> Result<(OperatorMetrics, RejectLedger)> {
        let taken = |former: usize| former as u32 % parallelism.max(1) == index;
        let subtasks = self.operator.subtasks.iter().enumerate();
        let counts = subtasks.filter(|(former, _)| taken(*former)).map(|(_, state)| state.counts).sum();
        let rejected = self.rejected.iter().enumerate().filter(|(former, _)| taken(*former));
        let rejected = rejected.filter_map(|(_, rows)| rows.clone()).collect();
        Ok((OperatorMetrics::restore(counts), RejectLedger::restore(rejected)?))
    }

    fn sink_states(&self, index: u32, parallelism: u32) -> Vec<Vec<u8>> {
        let own = self.operator.parallelism == parallelism;
        let taken = self.operator.subtasks.iter().filter(|state| !own || state.subtask.0 == index);
        taken.map(|state| state.sink_state.to_vec()).collect()
    }
}

type Formers<'a> = HashMap<NodeIndex, Former<'a>>;

impl Builder<'_> {
    fn graph(&self) -> &Graph {
        &self.spec.graph
    }

    fn refuse<T>(&self, reason: String) -> Result<T> {
        Err(RuntimeError::CannotStart { query: self.spec.name.clone(), reason })
    }

    /// Builds all tasks. None of them runs yet.
    pub(crate) async fn build(&self) -> Result<Built> {
        let options = &self.spec.checkpointing;
        if options.unaligned && (options.mode == CheckpointMode::AtLeastOnce || options.max_concurrent > 1) {
            return self.refuse(
                "unaligned checkpoints need mode EXACTLY_ONCE and one checkpoint at a time; set \
                 execution.checkpointing.unaligned.enabled to false, or execution.checkpointing.mode to EXACTLY_ONCE and \
                 execution.checkpointing.max-concurrent-checkpoints to 1"
                    .to_owned(),
            );
        }
        let plan = plan(self.graph(), &self.spec.name)?;
        let formers = self.formers().await?;
        let numbers = TableNumbers::default();
        for (node, former) in &formers {
            let uid = &self.graph().nodes[*node].uid;
            former.headers.iter().try_for_each(|header| numbers.restore(uid, header))?;
        }
        let mut keyed = self.keyed(&plan, &formers).await?;
        let mut in_flight = self.in_flight().await?;
        let mut wiring = self.wire(&plan)?;
        self.begin_views();
        let mut built = Built { tasks: Vec::new(), sources: self.sources(&plan).await?, metrics: Vec::new() };
        for task in &plan.tasks {
            let name: Arc<str> = task.name(self.graph()).into();
            for subtask in (0..task.parallelism).map(Subtask) {
                let id = TaskId(built.tasks.len());
                let name = TaskName { chain: Arc::clone(&name), subtask };
                let mut wires = wiring.remove(&id).unwrap_or_default();
                // What is nearer to the end of the chain was sent earlier.
                let rows = task.nodes.iter().rev().filter_map(|node| in_flight.remove(&(*node, subtask)));
                wires.recovered = rows.flatten().collect();
                let keyed = keyed.remove(&id);
                let built_task = self.task(task, id, name, wires, keyed, &formers, &numbers, &mut built).await?;
                built.tasks.push(built_task);
            }
        }
        Ok(built)
    }

    /// The checkpoint's operators by node of the graph.
    async fn formers(&self) -> Result<Formers<'_>> {
        let mut formers = HashMap::new();
        for operator in self.manifest.iter().flat_map(|manifest| &manifest.operators) {
            let Some(node) = self.graph().nodes.iter().position(|node| node.uid == operator.uid) else {
                if operator.has_state() && !self.spec.checkpointing.ignore_unclaimed_state {
                    return self.refuse(format!(
                        "its checkpoint holds state of operator \"{}\" ({}), which the query no longer has; drop and \
                         create the query to begin without that state, or set \
                         execution.state-recovery.ignore-unclaimed-state to leave it behind",
                        operator.name, operator.uid
                    ));
                }
                continue;
            };
            if operator.max_parallelism != self.graph().max_parallelism {
                return self.refuse(format!(
                    "its checkpoint has {} key groups and the query {}; their number is fixed when a query is created",
                    operator.max_parallelism,
                    self.graph().max_parallelism
                ));
            }
            let reads = operator.subtasks.iter().map(|state| async move {
                match &state.operator_state {
                    Some(segment) => unframe(&self.store.read_segment(segment).await?),
                    None => Ok((Header::default(), Vec::new())),
                }
            });
            let (headers, states) = try_join_all(reads).await?.into_iter().unzip();
            let rejected = operator.subtasks.iter().map(|state| async move {
                match &state.rejected {
                    Some(segment) => {
                        Ok::<_, RuntimeError>(Some((segment.clone(), self.store.read_segment(segment).await?.to_vec())))
                    }
                    None => Ok(None),
                }
            });
            let rejected = try_join_all(rejected).await?;
            formers.insert(node, Former { operator, headers, states, rejected });
        }
        Ok(formers)
    }

    /// The checkpoint's rows in flight by who takes them up.
    async fn in_flight(&self) -> Result<Place> {
        let operators = || self.manifest.iter().flat_map(|manifest| &manifest.operators);
        let segments = operators().flat_map(|operator| &operator.subtasks).filter_map(|state| state.in_flight.as_ref());
        let stored =
            try_join_all(segments.map(|segment| async move { decode(&self.store.read_segment(segment).await?) }));
        let parallelism =
            |uid: &OperatorUid| operators().find(|operator| operator.uid == *uid).map(|operator| operator.parallelism);
        place(self.graph(), &self.spec.name, stored.await?.into_iter().flatten().collect(), parallelism)
    }

    /// One keyed state for each subtask of a task that has any stateful operator.
    async fn keyed(&self, plan: &Plan, formers: &Formers<'_>) -> Result<HashMap<TaskId, (NodeIndex, KeyedState)>> {
        let mut opening = Vec::new();
        let mut first = 0;
        for task in &plan.tasks {
            let stateful = task.nodes.iter().copied().filter(|node| self.graph().nodes[*node].spec.is_stateful());
            let stateful: Vec<_> = stateful.collect();
            if let Some(host) = stateful.first().copied() {
                let parts = self.keyed_parts(&stateful, formers)?;
                for subtask in 0..task.parallelism {
                    let range = KeyGroupRange::of(subtask, task.parallelism, self.graph().max_parallelism);
                    let overlaps = |part: &&weir_storage::KeyedSnapshot| {
                        part.range.start < range.end && range.start < part.range.end
                    };
                    let parts: Vec<_> = parts.iter().filter(overlaps).cloned().collect();
                    let id = TaskId(first + subtask as usize);
                    opening.push(async move {
                        let (dir, resources) = (&self.state_dir, &self.services.state);
                        let state = if parts.is_empty() {
                            KeyedState::create(dir, resources, range)?
                        } else {
                            KeyedState::restore(dir, resources, range, &parts, self.store).await?
                        };
                        Ok::<_, RuntimeError>((id, (host, state)))
                    });
                }
            }
            first += task.parallelism as usize;
        }
        Ok(try_join_all(opening).await?.into_iter().collect())
    }

    /// The snapshots that hold the state of these operators, which run in one task.
    fn keyed_parts(&self, stateful: &[NodeIndex], formers: &Formers<'_>) -> Result<Vec<weir_storage::KeyedSnapshot>> {
        let headers = stateful.iter().filter_map(|node| formers.get(node)).flat_map(|former| &former.headers);
        let hosts: BTreeSet<&OperatorUid> = headers.filter_map(|header| header.keyed_with.as_ref()).collect();
        let mut hosts = hosts.into_iter();
        let (Some(host), another) = (hosts.next(), hosts.next()) else { return Ok(Vec::new()) };
        if let Some(another) = another {
            return self.refuse(format!(
                "state of \"{host}\" and \"{another}\" stood apart in its checkpoint and would now stand together; \
                 start it with the parallelism that it had"
            ));
        }
        let operators = self.manifest.iter().flat_map(|manifest| &manifest.operators);
        let of_host = operators.filter(|operator| operator.uid == *host).flat_map(|operator| &operator.subtasks);
        Ok(of_host.filter_map(|state| state.keyed.clone()).collect())
    }

    /// Opens all channels.
    fn wire(&self, plan: &Plan) -> Result<HashMap<TaskId, Wires>> {
        let mut first = Vec::with_capacity(plan.tasks.len());
        let mut wires: Vec<Wires> = Vec::new();
        for task in &plan.tasks {
            first.push(wires.len());
            wires.extend((0..task.parallelism).map(|_| Wires::default()));
        }
        for (to_task, task) in plan.tasks.iter().enumerate() {
            let to = task.first();
            for (input, edge) in self.graph().nodes[to].inputs.iter().enumerate() {
                let from_task = plan.task_of[edge.from];
                for from in 0..plan.tasks[from_task].parallelism {
                    let receivers = match edge.exchange {
                        Exchange::Forward => from..from + 1,
                        _ => 0..task.parallelism,
                    };
                    let room = Arc::clone(&wires[first[from_task] + from as usize].room);
                    let senders = receivers.map(|receiver| {
                        let id = ChannelId {
                            from: Endpoint { node: edge.from, subtask: Subtask(from) },
                            to: Endpoint { node: to, subtask: Subtask(receiver) },
                            input,
                        };
                        let inbox = &mut wires[first[to_task] + receiver as usize].inbox;
                        inbox.open(id, self.spec.channel_bytes, Arc::clone(&room))
                    });
                    let (senders, schema) = (senders.collect(), &self.graph().nodes[edge.from].schema);
                    let edge = OutputEdge::new(&edge.exchange, senders, schema, self.graph().max_parallelism)?;
                    wires[first[from_task] + from as usize].edges.push(edge);
                }
            }
        }
        Ok(wires.into_iter().enumerate().map(|(id, wires)| (TaskId(id), wires)).collect())
    }

    fn begin_views(&self) {
        let from = match self.manifest {
            Some(manifest) if manifest.unaligned => manifest.epoch.next(),
            _ => Epoch(0),
        };
        for node in &self.graph().nodes {
            if let OperatorSpec::Materialize(spec) = &node.spec
                && let Some(view) = self.services.views.view(&spec.relation)
            {
                view.begin(node.parallelism, from);
            }
        }
    }

    /// Opens the sources and shares out their splits.
    async fn sources(&self, plan: &Plan) -> Result<BTreeMap<NodeIndex, RunningSource>> {
        let finished = self.manifest.is_some_and(|manifest| manifest.last);
        let mut sources = BTreeMap::new();
        let mut first = 0;
        for task in &plan.tasks {
            let index = task.first();
            let tasks = (first..first + task.parallelism as usize).map(TaskId).collect();
            first += task.parallelism as usize;
            let node = &self.graph().nodes[index];
            let OperatorSpec::Source(spec) = &node.spec else { continue };
            let former = self.manifest.iter().flat_map(|manifest| &manifest.operators).find(|o| o.uid == node.uid);
            let tables = former.map_or(Ok(Vec::new()), split_tables)?;
            let mut assignment = Assignment::restore(tables, node.parallelism);
            let source = self.services.resolver.source(&spec.request).await?;
            if !finished {
                assignment.add(source.discover(&assignment.known(), node.parallelism).await?);
            }
            let relation = spec.request.relation.clone();
            sources.insert(index, RunningSource { source, relation, assignment, tasks });
        }
        Ok(sources)
    }

    #[allow(clippy::too_many_arguments, reason = "one step of build, which holds all of it")]
    async fn task(
        &self,
        plan: &TaskPlan,
        id: TaskId,
        name: TaskName,
        wires: Wires,
        keyed: Option<(NodeIndex, KeyedState)>,
        formers: &Formers<'_>,
        numbers: &TableNumbers,
        built: &mut Built,
    ) -> Result<BuiltTask> {
        let subtask = name.subtask;
        let mut reports = Vec::with_capacity(plan.nodes.len());
        for node in plan.nodes.iter().copied() {
            let former = formers.get(&node).map(|former| former.report(subtask.0, plan.parallelism)).transpose()?;
            let (metrics, rejects) = former.unwrap_or_default();
            reports.push(SubtaskMetrics { node, subtask, metrics: Arc::new(metrics), rejects: Arc::new(rejects) });
        }
        built.metrics.extend(reports.iter().cloned());
        let (mut links, mut headers, mut sink, mut source) = (Vec::new(), BTreeMap::new(), None, None);
        for report in &reports {
            let (node, metrics) = (report.node, Arc::clone(&report.metrics));
            match &self.graph().nodes[node].spec {
                OperatorSpec::Source(spec) => source = Some((spec, report.clone())),
                OperatorSpec::Sink(_) => sink = Some((node, metrics)),
                _ => {
                    let (link, header) = self.link(report, plan, keyed.as_ref(), formers.get(&node), numbers)?;
                    links.push(link);
                    headers.extend(header.map(|header| (node, header)));
                }
            }
        }
        let blocked = wires.blocked;
        let end = match sink {
            None => TaskEnd::Edges(wires.edges),
            Some((node, metrics)) => {
                let Some(sink) = self.sinks.get(&node) else { return Err(internal("build", "a sink was not opened")) };
                let states = formers.get(&node).map(|former| former.sink_states(subtask.0, plan.parallelism));
                let writer = sink.writer(&self.spec.id, subtask, states.unwrap_or_default()).await?;
                let OperatorSpec::Sink(spec) = &self.graph().nodes[node].spec else {
                    return Err(internal("build", "a sink is none"));
                };
                let pieces = self.spec.checkpointing.unaligned;
                let mode = WriteMode { pieces, whole_epochs: pieces && spec.changelog };
                TaskEnd::Sink(SinkEnd::new(node, writer, mode, metrics, Arc::clone(&blocked)))
            }
        };
        let before_sink = match &end {
            TaskEnd::Sink(sink) => self.graph().nodes[sink.node()].inputs.first().map(|edge| edge.from),
            TaskEnd::Edges(_) => None,
        };
        let is_terminal = matches!(&end, TaskEnd::Sink(_)) || matches!(&end, TaskEnd::Edges(edges) if edges.is_empty());
        let (control, controls) = mpsc::unbounded_channel();
        let (run, counted_blocked) = (Arc::clone(self.run), std::time::Duration::ZERO);
        let chain = Chain::new(links);
        let task = Task {
            id,
            name: name.clone(),
            run,
            first: plan.first(),
            chain,
            end,
            room: wires.room,
            recovered: wires.recovered,
            before_sink,
            passing: None,
            keyed,
            headers,
            blocked,
            counted_blocked,
            reports,
        };
        let is_source = source.is_some();
        let body: BoxFuture<'static, Result<()>> = match source {
            None => {
                let forced = self.spec.checkpointing.unaligned_forced;
                let channels = wires.inbox.channels().iter().map(|channel| channel.id());
                let overtakable =
                    channels.map(|id| forced || may_be_overtaken(self.graph(), id.to.node, id.input)).collect();
                Box::pin(ProcessTask::new(task, wires.inbox, overtakable, controls).run())
            }
            Some((spec, report)) => {
                let source = self.source_task(task, spec, report, controls, &built.sources).await?;
                Box::pin(source.run())
            }
        };
        Ok(BuiltTask { id, name, is_source, is_terminal, control, body })
    }

    fn link(
        &self,
        report: &SubtaskMetrics,
        plan: &TaskPlan,
        keyed: Option<&(NodeIndex, KeyedState)>,
        former: Option<&Former<'_>>,
        numbers: &TableNumbers,
    ) -> Result<(Link, Option<Header>)> {
        let (index, subtask, metrics) = (report.node, report.subtask, Arc::clone(&report.metrics));
        let node = &self.graph().nodes[index];
        let stateful = node.spec.is_stateful();
        let (uid, own) = (&node.uid, keyed.filter(|_| stateful).map(|(_, state)| state));
        let mut tables = OperatorTables { uid, keyed: own, numbers, used: BTreeMap::new() };
        let max_parallelism = self.graph().max_parallelism;
        let context = OperatorContext {
            query: &self.spec.name,
            uid,
            subtask,
            parallelism: plan.parallelism,
            max_parallelism,
            key_groups: KeyGroupRange::of(subtask.0, plan.parallelism, max_parallelism),
            state: &mut tables,
            rejects: Arc::clone(&report.rejects) as _,
            metrics: Arc::clone(&metrics),
        };
        let inputs: Vec<_> = node.inputs.iter().map(|edge| Arc::clone(&self.graph().nodes[edge.from].schema)).collect();
        let view = match &node.spec {
            OperatorSpec::Materialize(spec) => self.services.views.view(&spec.relation),
            _ => None,
        };
        let mut operator = operators::create(&node.spec, node, &inputs, context, view)?;
        if let Some(former) = former {
            operator.restore(&former.states(subtask.0, plan.parallelism))?;
        }
        let header = match keyed {
            Some((host, _)) if stateful => Some(keyed_header(tables.used, &self.graph().nodes[*host].uid)),
            _ => None,
        };
        Ok((Link::new(index, operator, stateful, metrics), header))
    }

    async fn source_task(
        &self,
        task: Task,
        spec: &SourceSpec,
        report: SubtaskMetrics,
        control: mpsc::UnboundedReceiver<Control>,
        sources: &BTreeMap<NodeIndex, RunningSource>,
    ) -> Result<SourceTask> {
        let SubtaskMetrics { node, metrics, rejects, .. } = report;
        let Some(running) = sources.get(&node) else { return Err(internal("build", "a source was not opened")) };
        let table = running.assignment.of(task.subtask());
        let bounded = running.source.is_bounded();
        let idle_timeout = spec.watermark.as_ref().and_then(|watermark| watermark.idle_timeout).filter(|_| !bounded);
        let mut times = SplitTimes::new(idle_timeout, table.watermark);
        for split in &table.splits {
            times.add(split.state.id.clone(), split.watermark);
            if split.state.finished {
                times.finished(&split.state.id);
            }
        }
        let unfinished: Vec<_> =
            table.splits.iter().filter(|split| !split.state.finished).map(|split| split.state.clone()).collect();
        let ended = self.manifest.is_some_and(|manifest| manifest.last) || (bounded && unfinished.is_empty());
        let reader = if ended { None } else { Some(running.source.reader(unfinished).await?) };
        Ok(SourceTask {
            task,
            node,
            relation: running.relation.clone(),
            reader,
            columns: SourceColumns::new(spec, Arc::clone(&self.graph().nodes[node].schema)),
            splits: table.splits.into_iter().map(|split| (split.state.id.clone(), split.state)).collect(),
            times,
            control,
            metrics,
            rejects,
            paused: self.paused,
            state: ReadState::default(),
        })
    }
}

/// A task's channels.
#[derive(Default)]
struct Wires {
    inbox: Inbox,
    edges: Vec<OutputEdge>,
    room: Arc<Room>,
    recovered: VecDeque<(ChannelId, Chunk)>,
    blocked: Arc<BlockedTime>,
}

/// The table of splits of a source, by subtask.
pub(crate) fn split_tables(operator: &OperatorState) -> Result<Vec<SplitTable>> {
    let table = |state: &weir_storage::SubtaskState| {
        let value = state.source_splits.clone();
        serde_json::from_value(value).map_err(|error| internal("table of splits", error.to_string()))
    };
    operator.subtasks.iter().map(table).collect()
}
