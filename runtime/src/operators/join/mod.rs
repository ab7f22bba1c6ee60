//! Joins of two changing inputs by equal keys.
//!
//! Both sides are kept, by key. A change of one side meets the rows of the other side as they are at that moment, so
//! each pair is emitted once, by whichever of its rows came last; weights multiply.
//!
//! Outer, semi and anti joins also count, for each row of a side that is *preserved*, how many partners it has (its
//! degree). A row is padded with nulls (or passes an anti join) while its degree is 0. When the degree crosses 0, the
//! difference is emitted. Because only differences are emitted, the sum is right in whatever order changes come.
//!
//! ```text
//!   batch of one side ── by key ──► rows of the other side ── filter ──► pairs
//!                                         │ degree of each partner crosses 0 ──► ± partner padded
//!                                         └ own degree is 0 ──► own row padded
//! ```

mod cache;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Int8Array, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array,
};
use arrow::compute::{is_null, or, take};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use weir_storage::{KeyEncoder, RowCodec};

use self::cache::Cache;
use super::Site;
use crate::error::Result;
use crate::graph::{Expr, JoinKind, JoinSpec};
use crate::keys::key_columns;
use crate::message::Chunk;
use crate::operator::{Operator, OperatorContext, Output};

/// Pairs examined at a time.
const PAIRS: usize = 8192;

/// What becomes of a side's rows besides pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preserve {
    /// Nothing.
    No,
    /// Padded with nulls while they have no partner.
    Padded,
    /// Passed on by themselves while they have a partner (true) or none (false).
    Alone(bool),
}

impl Preserve {
    /// Whether a row with this degree has a row of its own in the result.
    fn shows(self, degree: i64) -> bool {
        match self {
            Self::No => false,
            Self::Padded => degree <= 0,
            Self::Alone(partner) => (degree > 0) == partner,
        }
    }
}

/// See the module.
pub(super) struct Join {
    site: Site,
    schema: SchemaRef,
    inputs: [SchemaRef; 2],
    /// Schema of a pair, over which the filter is.
    pair_schema: SchemaRef,
    keys: [Vec<usize>; 2],
    filter: Option<Expr>,
    null_equals_null: bool,
    emits_pairs: bool,
    preserve: [Preserve; 2],
    encoder: KeyEncoder,
    codecs: [RowCodec; 2],
    cache: Cache,
}

/// Rows of a result that come from one side only, or pairs: places to take, with weights.
#[derive(Default)]
struct Picked {
    own: Vec<u32>,
    other: Vec<u32>,
    ops: Vec<i8>,
}

impl Picked {
    fn push(&mut self, own: usize, other: usize, weight: i64) {
        for _ in 0..weight.unsigned_abs() {
            self.own.push(own as u32);
            self.other.push(other as u32);
            self.ops.push(weight.signum() as i8);
        }
    }
}

impl Join {
    pub(super) fn new(
        site: Site,
        spec: &JoinSpec,
        schema: SchemaRef,
        inputs: [SchemaRef; 2],
        ctx: OperatorContext<'_>,
        cache_bytes: usize,
    ) -> Result<Self> {
        let types = |schema: &SchemaRef| -> Vec<DataType> {
            schema.fields().iter().map(|field| field.data_type().clone()).collect()
        };
        let key_types: Vec<DataType> =
            spec.on.iter().map(|(left, _)| inputs[0].field(*left).data_type().clone()).collect();
        let fields: Vec<_> = inputs.iter().flat_map(|schema| schema.fields().iter().cloned()).collect();
        let preserve = match spec.kind {
            JoinKind::Inner => [Preserve::No, Preserve::No],
            JoinKind::Left => [Preserve::Padded, Preserve::No],
            JoinKind::Right => [Preserve::No, Preserve::Padded],
            JoinKind::Full => [Preserve::Padded, Preserve::Padded],
            JoinKind::LeftSemi => [Preserve::Alone(true), Preserve::No],
            JoinKind::LeftAnti => [Preserve::Alone(false), Preserve::No],
        };
        Ok(Self {
            site,
            schema,
            pair_schema: Arc::new(Schema::new(fields)),
            keys: [spec.on.iter().map(|on| on.0).collect(), spec.on.iter().map(|on| on.1).collect()],
            filter: spec.filter.clone(),
            null_equals_null: spec.null_equals_null,
            emits_pairs: !matches!(spec.kind, JoinKind::LeftSemi | JoinKind::LeftAnti),
            preserve,
            encoder: KeyEncoder::new(&key_types, ctx.max_parallelism)?,
            codecs: [RowCodec::new(&types(&inputs[0]))?, RowCodec::new(&types(&inputs[1]))?],
            inputs,
            cache: Cache::new([ctx.state.table("left")?, ctx.state.table("right")?], cache_bytes),
        })
    }

    /// Rows whose key is null and therefore equals none.
    fn unmatched(&self, keys: &[ArrayRef]) -> Result<Option<BooleanArray>> {
        if self.null_equals_null {
            return Ok(None);
        }
        let mut unmatched: Option<BooleanArray> = None;
        for key in keys.iter().filter(|key| key.logical_null_count() > 0) {
            let null = is_null(key)?;
            unmatched = Some(match unmatched {
                None => null,
                Some(others) => or(&others, &null)?,
            });
        }
        Ok(unmatched)
    }

    /// Columns of pairs in output order, whichever side `own` is.
    fn pair(&self, side: usize, own: &RecordBatch, other: &RecordBatch, picked: &Picked) -> Result<Vec<ArrayRef>> {
        let (own_places, other_places) =
            (UInt32Array::from(picked.own.clone()), UInt32Array::from(picked.other.clone()));
        let own = take_columns(own, &own_places)?;
        let other = take_columns(other, &other_places)?;
        Ok(if side == 0 { [own, other].concat() } else { [other, own].concat() })
    }

    /// Emits rows of `side` that have a row of their own in the result.
    fn emit_alone(
        &self,
        side: usize,
        batch: &RecordBatch,
        places: Vec<u32>,
        ops: Vec<i8>,
        out: &mut Output,
    ) -> Result<()> {
        if places.is_empty() {
            return Ok(());
        }
        let rows = places.len();
        let columns = take_columns(batch, &UInt32Array::from(places))?;
        let columns = if self.preserve[side] == Preserve::Padded {
            let nulls: Vec<ArrayRef> =
                self.inputs[1 - side].fields().iter().map(|field| new_null_array(field.data_type(), rows)).collect();
            if side == 0 { [columns, nulls].concat() } else { [nulls, columns].concat() }
        } else {
            columns
        };
        out.push(Chunk::new(with_rows(&self.schema, columns, rows)?, Int8Array::from(ops)));
        Ok(())
    }
}

fn take_columns(batch: &RecordBatch, places: &UInt32Array) -> Result<Vec<ArrayRef>> {
    Ok(batch.columns().iter().map(|column| take(column, places, None)).collect::<Result<_, _>>()?)
}

fn with_rows(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// What one batch meets on the other side.
struct Meeting<'a> {
    side: usize,
    chunk: &'a Chunk,
    /// Rows of the other side that have a key of the batch.
    partners: RecordBatch,
    /// Where each partner is in the cache: (slot of the key, index of the row).
    partner_places: Vec<(usize, usize)>,
    /// Partners' weight found so far for each row of the batch.
    degrees: Vec<i64>,
}

impl Join {
    /// Examines candidate pairs (row of the batch, partner): emits those that pass the filter, and what becomes of
    /// partners whose degree crosses 0.
    fn examine(&mut self, meeting: &mut Meeting<'_>, candidates: &mut Picked, out: &mut Output) -> Result<()> {
        let candidates = std::mem::take(candidates);
        if candidates.own.is_empty() {
            return Ok(());
        }
        let (side, other) = (meeting.side, 1 - meeting.side);
        let batch = meeting.chunk.batch();
        let (passed, columns) = match &self.filter {
            None => (None, None),
            Some(filter) => {
                let columns = self.pair(side, batch, &meeting.partners, &candidates)?;
                let pairs = with_rows(&self.pair_schema, columns, candidates.own.len())?;
                let mask = self.site.mask(filter, &pairs)?;
                let all = mask.true_count() == mask.len();
                (Some(mask), all.then_some(pairs))
            }
        };
        let mut pairs = Picked::default();
        let (mut crossed, mut crossed_ops) = (Vec::new(), Vec::new());
        let mut once = true;
        for (index, (own, partner)) in candidates.own.iter().zip(&candidates.other).enumerate() {
            if passed.as_ref().is_some_and(|passed| !passed.value(index)) {
                continue;
            }
            let (own, partner) = (*own as usize, *partner as usize);
            let weight = i64::from(meeting.chunk.op(own));
            let (slot, row) = meeting.partner_places[partner];
            let held = self.cache.row_mut(slot, other, row);
            meeting.degrees[own] += held.weight;
            if self.emits_pairs {
                once &= held.weight == 1;
                pairs.push(own, partner, weight * held.weight);
            }
            if self.preserve[other] != Preserve::No {
                let shown = self.preserve[other].shows(held.degree);
                held.degree += weight;
                let shows = self.preserve[other].shows(held.degree);
                let difference = (i64::from(shows) - i64::from(shown)) * held.weight;
                for _ in 0..difference.unsigned_abs() {
                    crossed.push(partner as u32);
                    crossed_ops.push(difference.signum() as i8);
                }
                self.cache.mark_dirty(slot, other, row);
            }
        }
        if !pairs.own.is_empty() {
            let rows = pairs.own.len();
            let batch = match columns {
                // Every candidate became one pair: the columns that the filter saw are the answer.
                Some(seen) if once => with_rows(&self.schema, seen.columns().to_vec(), rows)?,
                _ => with_rows(&self.schema, self.pair(side, batch, &meeting.partners, &pairs)?, rows)?,
            };
            out.push(Chunk::new(batch, Int8Array::from(pairs.ops)));
        }
        self.emit_alone(other, &meeting.partners, crossed, crossed_ops, out)
    }
}

impl Operator for Join {
    fn batch(&mut self, side: usize, chunk: Chunk, out: &mut Output) -> Result<()> {
        let other = 1 - side;
        let batch = chunk.batch();
        let keys = key_columns(batch, &self.keys[side]);
        let unmatched = self.unmatched(&keys)?;
        let is_unmatched = |row: usize| unmatched.as_ref().is_some_and(|unmatched| unmatched.value(row));
        let encoded_keys = self.encoder.encode_rows(&keys, batch.num_rows())?;
        let encoded_rows = self.codecs[side].encode_rows(batch.columns(), batch.num_rows())?;

        // The key of each row in the cache.
        let matched = (0..batch.num_rows()).filter(|row| !is_unmatched(*row));
        let wanted: Vec<(usize, &[u8])> = matched.map(|row| (row, encoded_keys.key(row))).collect();
        let slots = self.cache.slots(wanted.iter().map(|(_, key)| *key), |key| self.encoder.group_of(key))?;

        // All rows of the other side that have one of these keys, decoded once.
        let mut starts: hashbrown::HashMap<usize, usize> = hashbrown::HashMap::new();
        let mut partner_places: Vec<(usize, usize)> = Vec::new();
        for slot in &slots {
            starts.entry(*slot).or_insert_with(|| {
                let start = partner_places.len();
                partner_places.extend((0..self.cache.count(*slot, other)).map(|row| (*slot, row)));
                start
            });
        }
        let partners = partner_places.iter().map(|(slot, row)| self.cache.row_bytes(*slot, other, *row));
        let partners = self.codecs[other].decode(partners)?;
        let partners = with_rows(&self.inputs[other], partners, partner_places.len())?;

        let degrees = vec![0; batch.num_rows()];
        let mut meeting = Meeting { side, chunk: &chunk, partners, partner_places, degrees };
        let mut candidates = Picked::default();
        for ((row, _), slot) in wanted.iter().zip(&slots) {
            let start = starts[slot];
            for index in 0..self.cache.count(*slot, other) {
                if self.cache.row_mut(*slot, other, index).weight != 0 {
                    candidates.push(*row, start + index, 1);
                    if candidates.own.len() >= PAIRS {
                        self.examine(&mut meeting, &mut candidates, out)?;
                    }
                }
            }
        }
        self.examine(&mut meeting, &mut candidates, out)?;

        // The batch's own rows: kept for what comes on the other side.
        let degrees = meeting.degrees;
        for ((row, _), slot) in wanted.iter().zip(&slots) {
            self.cache.add(*slot, side, encoded_rows.row(*row), i64::from(chunk.op(*row)), degrees[*row]);
        }
        if self.preserve[side] != Preserve::No {
            let shown: Vec<u32> = (0..batch.num_rows())
                .filter(|row| self.preserve[side].shows(degrees[*row]))
                .map(|row| row as u32)
                .collect();
            let ops = shown.iter().map(|row| chunk.op(*row as usize)).collect();
            self.emit_alone(side, batch, shown, ops, out)?;
        }
        self.cache.tidy(|key| self.encoder.group_of(key))
    }

    fn snapshot(&mut self) -> Result<Vec<u8>> {
        self.cache.write_back(|key| self.encoder.group_of(key))?;
        Ok(Vec::new())
    }

    fn restore(&mut self, _states: &[Vec<u8>]) -> Result<()> {
        self.cache.restored();
        Ok(())
    }
}
