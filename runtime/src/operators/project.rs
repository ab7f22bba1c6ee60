//! `SELECT`: computes columns.

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;

use super::Site;
use crate::error::Result;
use crate::graph::Expr;
use crate::message::Chunk;
use crate::operator::{Operator, Output};

/// Computes one column an expression; rows keep their weights.
pub(super) struct Project {
    site: Site,
    exprs: Vec<Expr>,
    schema: SchemaRef,
}

impl Project {
    pub(super) fn new(site: Site, exprs: Vec<Expr>, schema: SchemaRef) -> Self {
        Self { site, exprs, schema }
    }
}

impl Operator for Project {
    fn batch(&mut self, _input: usize, chunk: Chunk, out: &mut Output) -> Result<()> {
        let columns =
            self.exprs.iter().map(|expr| self.site.column(expr, chunk.batch())).collect::<Result<Vec<_>>>()?;
        // A projection to no columns (under count(*)) still has rows.
        let options = RecordBatchOptions::new().with_row_count(Some(chunk.num_rows()));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        out.push(chunk.with_batch(batch));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::OperatorSpec;
    use crate::operators::testing::{Harness, binary, col, lit, schema};
    use datafusion::logical_expr::Operator as Op;

    #[test]
    fn computes_columns_and_keeps_weights() {
        let input = schema("a bigint, b text");
        let output = schema("b text, c bigint");
        let exprs = vec![col("b", &input), binary(col("a", &input), Op::Plus, lit(10i64), &input)];
        let mut h = Harness::new(OperatorSpec::Project { exprs }, &[&input], &output, true);
        h.batch(0, "+ 1 x\n- ~ y");
        assert_eq!(h.emitted(), "+ x 11\n- y ~\n");
    }

    #[test]
    fn no_columns_still_have_rows() {
        let input = schema("a bigint");
        let mut h = Harness::new(OperatorSpec::Project { exprs: vec![] }, &[&input], &schema(""), false);
        h.batch(0, "+ 1\n+ 2");
        assert_eq!(h.emitted(), "+\n+\n");
    }
}
