//! `WHERE`: keeps the rows for which a predicate is true.

use arrow::array::{Array, AsArray, BooleanArray, Int8Array};
use arrow::compute::{filter, filter_record_batch, prep_null_mask_filter};

use super::Site;
use crate::error::Result;
use crate::graph::Expr;
use crate::message::Chunk;
use crate::operator::{Operator, Output};

/// Keeps a row, with its weight, where the predicate is true; null counts as false.
pub(super) struct Filter {
    site: Site,
    predicate: Expr,
}

impl Filter {
    pub(super) fn new(site: Site, predicate: Expr) -> Self {
        Self { site, predicate }
    }
}

impl Operator for Filter {
    fn batch(&mut self, _input: usize, chunk: Chunk, out: &mut Output) -> Result<()> {
        let mask = self.site.mask(&self.predicate, chunk.batch())?;
        out.push(keep(chunk, &mask)?);
        Ok(())
    }
}

/// The rows of `chunk` whose mask is true. Nothing is copied when all are.
pub(super) fn keep(chunk: Chunk, mask: &BooleanArray) -> Result<Chunk> {
    let kept = mask.true_count();
    if kept == chunk.num_rows() {
        return Ok(chunk);
    }
    if kept == 0 {
        return Ok(chunk.slice(0, 0));
    }
    let batch = filter_record_batch(chunk.batch(), mask)?;
    Ok(match chunk.ops() {
        None => Chunk::insert(batch),
        Some(ops) => Chunk::new(batch, filter_ops(ops, mask)?),
    })
}

fn filter_ops(ops: &Int8Array, mask: &BooleanArray) -> Result<Int8Array> {
    Ok(filter(ops, mask)?.as_primitive().clone())
}

/// A mask without nulls: null is false.
pub(super) fn definite(mask: &BooleanArray) -> BooleanArray {
    if mask.null_count() == 0 { mask.clone() } else { prep_null_mask_filter(mask) }
}

#[cfg(test)]
mod tests {
    use crate::graph::OperatorSpec;
    use crate::operators::testing::{Harness, binary, col, lit, schema};
    use datafusion::logical_expr::Operator as Op;

    #[test]
    fn keeps_true_rows_with_their_weights_and_drops_null() {
        let input = schema("a bigint, b text");
        let predicate = binary(col("a", &input), Op::Gt, lit(1i64), &input);
        let mut h = Harness::new(OperatorSpec::Filter { predicate }, &[&input], &input, true);
        h.batch(0, "+ 1 x\n+ 2 y\n- 3 z\n+ ~ w");
        assert_eq!(h.emitted(), "+ 2 y\n- 3 z\n");
        h.batch(0, "+ 2 p\n+ 3 q");
        assert_eq!(h.emitted(), "+ 2 p\n+ 3 q\n");
        h.batch(0, "+ 0 p");
        assert_eq!(h.emitted(), "");
    }

    #[test]
    fn an_arithmetic_error_names_the_operator() {
        let input = schema("a bigint");
        let predicate = binary(binary(lit(1i64), Op::Divide, col("a", &input), &input), Op::Gt, lit(0i64), &input);
        let mut h = Harness::new(OperatorSpec::Filter { predicate }, &[&input], &input, false);
        let error = h.try_batch(0, "+ 0").expect_err("division by zero").to_string();
        assert!(error.contains("\"under test\"") && error.contains("Divide by zero"), "{error}");
    }
}
