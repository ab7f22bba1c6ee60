//! How a materialized result lies in its table, for those who write and those who read it.
//!
//! Value: how often the row is there (LEB128), then the row of all columns. Key, by kind of result:
//!
//! | the result has …      | key                                        |
//! |-----------------------|--------------------------------------------|
//! | a key                 | the encoded key columns                    |
//! | none, and retractions | the row itself                             |
//! | none, and only grows  | run and number of the row, unique for good |

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, SchemaRef};
use weir_storage::{EncodedKeys, EncodedRows, KeyEncoder, KeyGroup, RowCodec, TableSnapshot};

use crate::error::{Result, RuntimeError};
use crate::keys::{key_columns, normalised};

/// Rows in a batch that a scan yields.
const BATCH: usize = 8192;

/// Encodes and decodes the rows of a materialized result. Readers make one from the view's schema and key.
#[derive(Debug)]
pub struct ViewCodec {
    schema: SchemaRef,
    key: Vec<usize>,
    keys: KeyEncoder,
    rows: RowCodec,
}

impl ViewCodec {
    /// The codec for rows of `schema` with these key columns (none: rows have no key).
    pub fn new(schema: &SchemaRef, key: &[usize], max_parallelism: u16) -> Result<Self> {
        let types: Vec<DataType> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let key_types: Vec<DataType> = key.iter().map(|column| types[*column].clone()).collect();
        // Without a key the row is its own key.
        let key_types = if key.is_empty() { &types } else { &key_types };
        Ok(Self {
            schema: Arc::clone(schema),
            key: key.to_vec(),
            keys: KeyEncoder::new(key_types, max_parallelism)?,
            rows: RowCodec::new(&types)?,
        })
    }

    /// Schema of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// All rows of a view's snapshot, in batches of up to 8,192, `projection` columns only. `parts` are the snapshots
    /// of all subtasks.
    pub fn scan(self: &Arc<Self>, parts: Vec<Arc<TableSnapshot>>, projection: Option<Vec<usize>>) -> Result<ViewScan> {
        let schema = match &projection {
            None => Arc::clone(&self.schema),
            Some(columns) => Arc::new(self.schema.project(columns)?),
        };
        let ranges = parts
            .into_iter()
            .flat_map(|part| {
                let groups: Vec<KeyGroup> = part.range().groups().collect();
                groups.into_iter().map(move |group| (Arc::clone(&part), group))
            })
            .collect();
        Ok(ViewScan { codec: Arc::clone(self), schema, projection, ranges, from: Vec::new() })
    }

    /// The rows with these keys: one column a key column, as many rows as keys are looked up. Keys that are not there
    /// have no row in the answer. Values are cast to the key columns' types. Only for results that have a key.
    pub fn lookup(&self, parts: &[Arc<TableSnapshot>], keys: &[ArrayRef]) -> Result<RecordBatch> {
        if self.key.is_empty() || keys.len() != self.key.len() {
            return Err(RuntimeError::Internal {
                place: "view lookup",
                reason: format!("{} key columns given, the view has {}", keys.len(), self.key.len()),
            });
        }
        let keys = keys
            .iter()
            .zip(&self.key)
            .map(|(values, column)| Ok(normalised(&cast(values, self.schema.field(*column).data_type())?)))
            .collect::<Result<Vec<_>>>()?;
        let encoded = self.keys.encode(&keys)?;
        let wanted = encoded.with_groups();
        let mut found: Vec<Vec<u8>> = Vec::new();
        for part in parts {
            let mine: Vec<(KeyGroup, &[u8])> =
                wanted.iter().copied().filter(|(group, _)| part.range().contains(*group)).collect();
            found.extend(part.get_many(&mine)?.into_iter().flatten());
        }
        let (columns, rows) = self.decode_values(found.iter().map(Vec::as_slice))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }

    /// The keys of the batch's rows.
    pub(super) fn encode_keys(&self, batch: &RecordBatch) -> Result<EncodedKeys> {
        if self.key.is_empty() {
            return Ok(self.keys.encode_rows(batch.columns(), batch.num_rows())?);
        }
        Ok(self.keys.encode_rows(&key_columns(batch, &self.key), batch.num_rows())?)
    }

    /// The batch's rows.
    pub(super) fn encode_rows(&self, batch: &RecordBatch) -> Result<EncodedRows> {
        Ok(self.rows.encode_rows(batch.columns(), batch.num_rows())?)
    }

    /// Rows as a batch, each as often as said.
    pub(super) fn decode_rows(&self, rows: &[&[u8]]) -> Result<RecordBatch> {
        let columns = self.rows.decode(rows.iter().copied())?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }

    /// The key group of an encoded key.
    pub(super) fn group_of(&self, key: &[u8]) -> KeyGroup {
        self.keys.group_of(key)
    }

    /// Columns and number of the rows that these values stand for.
    fn decode_values<'a>(&self, values: impl Iterator<Item = &'a [u8]>) -> Result<(Vec<ArrayRef>, usize)> {
        let mut rows: Vec<&[u8]> = Vec::new();
        let mut repeated: Vec<u32> = Vec::new();
        for value in values {
            let (count, row) = split_value(value)?;
            if count > 0 {
                repeated.extend((0..count).map(|_| rows.len() as u32));
                rows.push(row);
            }
        }
        let distinct = rows.len();
        let mut columns = self.rows.decode(rows.into_iter())?;
        if repeated.len() > distinct {
            let repeated = UInt32Array::from(repeated.clone());
            columns = columns.iter().map(|column| Ok(take(column, &repeated, None)?)).collect::<Result<_>>()?;
        }
        Ok((columns, repeated.len()))
    }
}

/// The value that says that `row` is there `count` times. A negative count is one that a later insertion makes up for.
pub(super) fn value(count: i64, row: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(row.len() + 1);
    let mut rest = ((count << 1) ^ (count >> 63)) as u64;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes.extend_from_slice(row);
    bytes
}

/// Count and row of a value.
pub(super) fn split_value(value: &[u8]) -> Result<(i64, &[u8])> {
    let mut zigzag = 0u64;
    for (index, byte) in value.iter().enumerate().take(10) {
        zigzag |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let count = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
            return Ok((count, &value[index + 1..]));
        }
    }
    Err(RuntimeError::Internal { place: "view row", reason: format!("a value of {} bytes without a row", value.len()) })
}

/// Yields the rows of a snapshot. Holds no more than a batch in memory.
#[derive(Debug)]
pub struct ViewScan {
    codec: Arc<ViewCodec>,
    schema: SchemaRef,
    projection: Option<Vec<usize>>,
    /// Key groups still to be read; the first one from `from` on.
    ranges: VecDeque<(Arc<TableSnapshot>, KeyGroup)>,
    from: Vec<u8>,
}

impl ViewScan {
    /// Schema of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let mut values: Vec<Vec<u8>> = Vec::new();
        let mut rows = 0usize;
        let mut damaged = None;
        while rows < BATCH
            && let Some((part, group)) = self.ranges.front()
        {
            let mut stopped = None;
            part.scan(*group, &self.from, None, &mut |key, value| {
                match split_value(value) {
                    Ok((count, _)) => rows += usize::try_from(count).unwrap_or(0),
                    Err(error) => damaged = Some(error),
                }
                values.push(value.to_vec());
                if rows >= BATCH {
                    // The smallest key after this one.
                    stopped = Some([key, &[0]].concat());
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            match stopped {
                Some(from) => self.from = from,
                None => {
                    self.from.clear();
                    self.ranges.pop_front();
                }
            }
        }
        if let Some(error) = damaged {
            return Err(error);
        }
        if rows == 0 {
            return Ok(None);
        }
        let (columns, rows) = self.codec.decode_values(values.iter().map(Vec::as_slice))?;
        let columns = match &self.projection {
            None => columns,
            Some(projection) => projection.iter().map(|column| Arc::clone(&columns[*column])).collect(),
        };
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(Some(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?))
    }
}

impl Iterator for ViewScan {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch();
        if batch.is_err() {
            self.ranges.clear();
        }
        batch.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_fixed_for_good() {
        for (count, bytes) in [(1, vec![2u8]), (0, vec![0]), (-1, vec![1]), (64, vec![0x80, 1]), (300, vec![0xd8, 4])] {
            let encoded = value(count, b"row");
            assert_eq!(encoded, [&bytes[..], b"row"].concat());
            assert_eq!(split_value(&encoded).expect("a value"), (count, &b"row"[..]));
        }
        for count in [i64::MIN, i64::MAX] {
            assert_eq!(split_value(&value(count, b"")).expect("a value"), (count, &b""[..]));
        }
        assert!(split_value(&[]).is_err());
        assert!(split_value(&[0x80; 12]).is_err());
    }
}
