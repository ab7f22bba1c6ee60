//! For operator tests: chunks from text, and a harness that runs an operator on a real keyed state, crashes it,
//! changes its parallelism, and folds what it emits into the table that its readers would have.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int8Array, Int32Array, Int64Array, RecordBatch,
    RecordBatchOptions, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::logical_expr::{AggregateUDF, Operator as BinaryOperator};
use datafusion::physical_expr::aggregate::AggregateExprBuilder;
use datafusion::physical_plan::expressions;
use parking_lot::Mutex;
use weir_storage::{Epoch, KeyGroup, KeyGroupRange, OperatorUid, Subtask, TableId};
use weir_storage::{KeyedState, StateResources, StateTable};

use super::{CacheSizes, create_sized};
use crate::error::Result;
use crate::graph::{AggregateCall, Expr, Node, OperatorSpec};
use crate::message::{Chunk, EventTime};
use crate::metrics::OperatorMetrics;
use crate::operator::{Operator, OperatorContext, Output, StateAccess};
use crate::rejects::{BadRow, Rejects};
use crate::view::ViewHandle;

const MAX_PARALLELISM: u16 = 16;

/// A schema from `name type, …`; types: `bigint int text double boolean timestamp decimal`.
pub(crate) fn schema(text: &str) -> SchemaRef {
    let fields: Vec<Field> = text
        .split(',')
        .map(str::trim)
        .filter(|field| !field.is_empty())
        .map(|field| {
            let (name, data_type) = field.split_once(' ').expect("name and type");
            let data_type = match data_type {
                "bigint" => DataType::Int64,
                "int" => DataType::Int32,
                "text" => DataType::Utf8,
                "double" => DataType::Float64,
                "boolean" => DataType::Boolean,
                "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, None),
                "decimal" => DataType::Decimal128(38, 2),
                other => panic!("no type {other}"),
            };
            Field::new(name, data_type, true)
        })
        .collect();
    Arc::new(Schema::new(fields))
}

/// A chunk from lines `+ 1 a` and `- 1 a`; `~` is null, a timestamp is a number of microseconds.
pub(crate) fn chunk(schema: &SchemaRef, text: &str) -> Chunk {
    let rows: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).filter(|row: &Vec<_>| !row.is_empty()).collect();
    let ops = Int8Array::from_iter_values(rows.iter().map(|row| match row[0] {
        "+" => 1,
        "-" => -1,
        other => panic!("a row starts with + or -, not {other}"),
    }));
    let columns: Vec<ArrayRef> = schema
        .fields()
        .iter()
        .enumerate()
        .map(|(i, field)| {
            let values: Vec<Option<&str>> =
                rows.iter().map(|row| Some(row[i + 1]).filter(|value| *value != "~")).collect();
            parse(field.data_type(), &values)
        })
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Chunk::new(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).expect("a batch"), ops)
}

fn parse(data_type: &DataType, values: &[Option<&str>]) -> ArrayRef {
    let integers = || values.iter().map(|v| v.map(|v| v.parse::<i64>().expect("a number")));
    match data_type {
        DataType::Int64 => Arc::new(Int64Array::from_iter(integers())),
        DataType::Int32 => Arc::new(Int32Array::from_iter(integers().map(|v| v.map(|v| v as i32)))),
        DataType::Timestamp(..) => Arc::new(TimestampMicrosecondArray::from_iter(integers())),
        DataType::Utf8 => Arc::new(StringArray::from_iter(values.iter().copied())),
        DataType::Float64 => {
            Arc::new(Float64Array::from_iter(values.iter().map(|v| v.map(|v| v.parse::<f64>().expect("a number")))))
        }
        DataType::Boolean => Arc::new(BooleanArray::from_iter(values.iter().map(|v| v.map(|v| v == "true")))),
        DataType::Decimal128(p, s) => {
            let text = StringArray::from_iter(values.iter().copied());
            arrow::compute::cast(&text, &DataType::Decimal128(*p, *s)).expect("decimals")
        }
        other => panic!("no type {other}"),
    }
}

/// Rows as text, without their weights.
pub(crate) fn rows_text(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("~");
    let cell = |column: &ArrayRef, row: usize| match column.as_primitive_opt::<TimestampMicrosecondType>() {
        Some(times) if times.is_valid(row) => times.value(row).to_string(),
        _ => ArrayFormatter::try_new(column, &options).expect("a format").value(row).to_string(),
    };
    (0..batch.num_rows())
        .map(|row| batch.columns().iter().map(|column| cell(column, row)).collect::<Vec<_>>().join(" "))
        .collect()
}

/// Changes as text, a line each.
pub(crate) fn changes_text(chunks: &[Chunk]) -> String {
    let mut text = String::new();
    for chunk in chunks {
        for (i, row) in rows_text(chunk.batch()).into_iter().enumerate() {
            let sign = if chunk.op(i) > 0 { "+" } else { "-" };
            text += format!("{sign} {row}").trim_end();
            text.push('\n');
        }
    }
    text
}

pub(crate) fn col(name: &str, schema: &SchemaRef) -> Expr {
    expressions::col(name, schema).expect("a column")
}

pub(crate) fn lit(value: impl datafusion::logical_expr::Literal) -> Expr {
    expressions::lit(value)
}

pub(crate) fn binary(left: Expr, op: BinaryOperator, right: Expr, schema: &SchemaRef) -> Expr {
    expressions::binary(left, op, right, schema).expect("an expression")
}

/// A call of `function` over `args`, as the planner makes it.
pub(crate) fn call(function: Arc<AggregateUDF>, args: Vec<Expr>, schema: &SchemaRef) -> AggregateCall {
    let builder = AggregateExprBuilder::new(function, args).schema(Arc::clone(schema)).alias("call");
    AggregateCall { function: Arc::new(builder.build().expect("a call")), filter: None }
}

/// The same with `DISTINCT`.
pub(crate) fn distinct_call(function: Arc<AggregateUDF>, args: Vec<Expr>, schema: &SchemaRef) -> AggregateCall {
    let builder = AggregateExprBuilder::new(function, args).schema(Arc::clone(schema)).alias("call").distinct();
    AggregateCall { function: Arc::new(builder.build().expect("a call")), filter: None }
}

#[derive(Default)]
struct Collected {
    late: Mutex<Vec<String>>,
    bad: Mutex<Vec<BadRow>>,
}

impl Rejects for Collected {
    fn late(&self, _watermark: EventTime, rows: &RecordBatch) {
        self.late.lock().extend(rows_text(rows));
    }

    fn bad(&self, rows: Vec<BadRow>) {
        self.bad.lock().extend(rows);
    }
}

struct Tables<'a> {
    state: &'a KeyedState,
    names: &'a mut Vec<String>,
}

impl StateAccess for Tables<'_> {
    fn table(&mut self, name: &str) -> Result<StateTable> {
        let id = self.names.iter().position(|held| held == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        Ok(self.state.table(TableId(id as u16)))
    }
}

/// Everything that a checkpoint holds.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    state: Vec<u8>,
    rows: Vec<(TableId, KeyGroup, Vec<u8>, Vec<u8>)>,
    folded: BTreeMap<String, i64>,
    epoch: u64,
}

/// Runs one subtask of an operator.
pub(crate) struct Harness {
    node: Node,
    inputs: Vec<SchemaRef>,
    sizes: CacheSizes,
    view: Arc<ViewHandle>,
    dir: tempfile::TempDir,
    names: Vec<String>,
    state: KeyedState,
    operator: Box<dyn Operator>,
    out: Output,
    emitted: Vec<Chunk>,
    folded: BTreeMap<String, i64>,
    epoch: u64,
    rejects: Arc<Collected>,
    pub(crate) metrics: Arc<OperatorMetrics>,
}

impl Harness {
    pub(crate) fn new(spec: OperatorSpec, inputs: &[&SchemaRef], output: &SchemaRef, changelog: bool) -> Self {
        Self::sized(spec, inputs, output, changelog, CacheSizes::default())
    }

    pub(crate) fn sized(
        spec: OperatorSpec,
        inputs: &[&SchemaRef],
        output: &SchemaRef,
        changelog: bool,
        sizes: CacheSizes,
    ) -> Self {
        let node = Node {
            uid: OperatorUid("test-1".to_owned()),
            former_uid: None,
            name: "under test".to_owned(),
            spec: spec.clone(),
            parallelism: 1,
            inputs: Vec::new(),
            schema: Arc::clone(output),
            changelog,
            state_bound: String::new(),
        };
        let key = match &spec {
            OperatorSpec::Materialize(spec) => spec.key.clone(),
            _ => Vec::new(),
        };
        let view = ViewHandle::new(Arc::clone(output), key);
        let dir = tempfile::tempdir().expect("a directory");
        let state = open(&dir, KeyGroupRange { start: 0, end: MAX_PARALLELISM });
        let inputs: Vec<SchemaRef> = inputs.iter().map(|schema| Arc::clone(schema)).collect();
        let (rejects, metrics) = (Arc::new(Collected::default()), Arc::new(OperatorMetrics::default()));
        let mut names = Vec::new();
        view.begin(1, Epoch(0));
        let operator =
            make(&node, &inputs, sizes, &view, &state, &mut names, (&rejects, &metrics)).expect("an operator");
        Self {
            node,
            inputs,
            sizes,
            view,
            dir,
            names,
            state,
            operator,
            out: Output::default(),
            emitted: Vec::new(),
            folded: BTreeMap::new(),
            epoch: 0,
            rejects,
            metrics,
        }
    }

    fn collect(&mut self) {
        for chunk in self.out.take() {
            assert_eq!(chunk.batch().schema(), self.node.schema);
            for (i, row) in rows_text(chunk.batch()).into_iter().enumerate() {
                let weight = self.folded.entry(row.clone()).or_default();
                *weight += i64::from(chunk.op(i));
                if *weight == 0 {
                    self.folded.remove(&row);
                }
            }
            self.emitted.push(chunk);
        }
    }

    pub(crate) fn try_batch(&mut self, input: usize, text: &str) -> Result<()> {
        let chunk = chunk(&self.inputs[input], text);
        self.operator.batch(input, chunk, &mut self.out)?;
        self.collect();
        Ok(())
    }

    pub(crate) fn batch(&mut self, input: usize, text: &str) {
        self.try_batch(input, text).expect("a batch");
    }

    pub(crate) fn watermark(&mut self, time: i64) {
        self.operator.watermark(EventTime(time), &mut self.out).expect("a watermark");
        self.collect();
    }

    pub(crate) fn epoch(&mut self) {
        self.epoch += 1;
        self.operator.epoch(Epoch(self.epoch), &mut self.out).expect("an epoch");
        self.collect();
    }

    /// The changes emitted since the last call.
    pub(crate) fn emitted(&mut self) -> String {
        changes_text(&std::mem::take(&mut self.emitted))
    }

    /// The same in sorted order, for operators whose order does not matter.
    pub(crate) fn emitted_sorted(&mut self) -> String {
        let text = self.emitted();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The table that all changes so far add up to, in order.
    pub(crate) fn folded(&self) -> String {
        let mut text = String::new();
        for (row, weight) in &self.folded {
            assert!(*weight > 0, "{row} is there {weight} times");
            for _ in 0..*weight {
                text += row;
                text.push('\n');
            }
        }
        text
    }

    /// What a checkpoint at this moment would hold: an unaligned one unless an epoch has just ended.
    pub(crate) fn checkpoint(&mut self) -> Checkpoint {
        let state = self.operator.snapshot().expect("a snapshot");
        let mut rows = Vec::new();
        for id in (0..self.names.len()).map(|id| TableId(id as u16)) {
            let table = self.state.table(id);
            for group in table.range().groups() {
                let scan = table.scan(group, &[], None, &mut |key, value| {
                    rows.push((id, group, key.to_vec(), value.to_vec()));
                    ControlFlow::Continue(())
                });
                scan.expect("a scan");
            }
        }
        Checkpoint { state, rows, folded: self.folded.clone(), epoch: self.epoch }
    }

    /// The process dies and comes back with a checkpoint: all that was only in memory is gone, and readers have what
    /// was committed with the checkpoint.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) {
        self.dir = tempfile::tempdir().expect("a directory");
        self.state = open(&self.dir, KeyGroupRange { start: 0, end: MAX_PARALLELISM });
        for (table, group, key, value) in &checkpoint.rows {
            self.state.table(*table).write(&[(*group, key, Some(value))]).expect("a write");
        }
        self.view.begin(1, Epoch(0));
        self.operator = make(
            &self.node,
            &self.inputs,
            self.sizes,
            &self.view,
            &self.state,
            &mut self.names,
            (&self.rejects, &self.metrics),
        )
        .expect("an operator");
        self.operator.restore(std::slice::from_ref(&checkpoint.state)).expect("a restore");
        (self.folded, self.epoch) = (checkpoint.folded.clone(), checkpoint.epoch);
        self.emitted.clear();
    }

    /// A checkpoint, a crash and the restore.
    pub(crate) fn crash(&mut self) {
        let checkpoint = self.checkpoint();
        self.restore(&checkpoint);
    }

    /// Number of rows in the operator's tables.
    pub(crate) fn stored_rows(&mut self) -> usize {
        self.checkpoint().rows.len()
    }

    pub(crate) fn view(&self) -> &Arc<ViewHandle> {
        &self.view
    }

    pub(crate) fn late_rows(&self) -> Vec<String> {
        self.rejects.late.lock().clone()
    }

    pub(crate) fn bad_rows(&self) -> Vec<BadRow> {
        self.rejects.bad.lock().clone()
    }
}

fn open(dir: &tempfile::TempDir, range: KeyGroupRange) -> KeyedState {
    KeyedState::create(dir.path(), &StateResources::new(8 << 20), range).expect("a state")
}

fn make(
    node: &Node,
    inputs: &[SchemaRef],
    sizes: CacheSizes,
    view: &Arc<ViewHandle>,
    state: &KeyedState,
    names: &mut Vec<String>,
    (rejects, metrics): (&Arc<Collected>, &Arc<OperatorMetrics>),
) -> Result<Box<dyn Operator>> {
    let ctx = OperatorContext {
        query: "q",
        uid: &node.uid,
        subtask: Subtask(0),
        parallelism: 1,
        max_parallelism: MAX_PARALLELISM,
        key_groups: KeyGroupRange { start: 0, end: MAX_PARALLELISM },
        state: &mut Tables { state, names },
        rejects: Arc::clone(rejects) as Arc<dyn Rejects>,
        metrics: Arc::clone(metrics),
    };
    create_sized(&node.spec, node, inputs, ctx, Some(Arc::clone(view)), sizes)
}
