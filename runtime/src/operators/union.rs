//! `UNION ALL`: all rows of all inputs.

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;

use crate::error::Result;
use crate::message::Chunk;
use crate::operator::{Operator, Output};

/// Passes every input on under the output's schema (names come from the first input).
pub(super) struct Union {
    schema: SchemaRef,
}

impl Union {
    pub(super) fn new(schema: SchemaRef) -> Self {
        Self { schema }
    }
}

impl Operator for Union {
    fn batch(&mut self, _input: usize, chunk: Chunk, out: &mut Output) -> Result<()> {
        if chunk.batch().schema_ref() == &self.schema {
            out.push(chunk);
            return Ok(());
        }
        let options = RecordBatchOptions::new().with_row_count(Some(chunk.num_rows()));
        let columns = chunk.batch().columns().to_vec();
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        out.push(chunk.with_batch(batch));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::OperatorSpec;
    use crate::operators::testing::{Harness, schema};

    #[test]
    fn passes_all_inputs_under_one_schema() {
        let (left, right) = (schema("a bigint"), schema("z bigint"));
        let mut h = Harness::new(OperatorSpec::Union, &[&left, &right], &left, true);
        h.batch(0, "+ 1");
        h.batch(1, "+ 2\n- 1");
        assert_eq!(h.emitted(), "+ 1\n+ 2\n- 1\n");
    }
}
