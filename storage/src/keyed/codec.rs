//! Columns to bytes and back: keys and values of state tables.
//!
//! An encoding is a format byte and the row in arrow-row's format, whose byte order is the order of the rows (ascending,
//! nulls first, unless asked otherwise). Both are persisted: the tests hold golden bytes.

use arrow::{
    array::ArrayRef,
    datatypes::DataType,
    row::{RowConverter, SortField},
};

use super::key::FORMAT;
use crate::{KeyGroup, Result, StorageError, key_group_of};

/// Encodes the key columns of batches, and says in which key group each key belongs.
///
/// Rows that must meet must be encoded by encoders of the same types. `-0.0` and `0.0` are different keys, as are NaNs
/// with different bits: normalise floating-point keys before.
#[derive(Debug)]
pub struct KeyEncoder {
    codec: RowCodec,
    max_parallelism: u16,
}

impl KeyEncoder {
    /// An encoder of keys of these column types.
    pub fn new(types: &[DataType], max_parallelism: u16) -> Result<Self> {
        Ok(Self { codec: RowCodec::new(types)?, max_parallelism })
    }

    /// An encoder whose keys sort as `fields` say.
    pub fn sorted(fields: Vec<SortField>, max_parallelism: u16) -> Result<Self> {
        Ok(Self { codec: RowCodec::sorted(fields)?, max_parallelism })
    }

    /// Encodes each row of `columns`, of which there must be at least one.
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<EncodedKeys> {
        self.encode_rows(columns, columns.first().map_or(0, |column| column.len()))
    }

    /// Encodes `rows` rows of `columns`. Without columns they all have the one key there is: that of a grouping by nothing.
    pub fn encode_rows(&self, columns: &[ArrayRef], rows: usize) -> Result<EncodedKeys> {
        Ok(EncodedKeys { rows: self.codec.encode_rows(columns, rows)?, max_parallelism: self.max_parallelism })
    }

    /// The key group of an encoded key.
    #[must_use]
    pub fn group_of(&self, key: &[u8]) -> KeyGroup {
        key_group_of(key, self.max_parallelism)
    }

    /// The columns of encoded keys.
    pub fn decode<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        self.codec.decode(keys)
    }
}

/// Encodes rows of columns into values of a state table.
#[derive(Debug)]
pub struct RowCodec {
    converter: RowConverter,
    columns: usize,
}

impl RowCodec {
    /// A codec for rows of these column types. Dictionaries decode to the type of their values.
    pub fn new(types: &[DataType]) -> Result<Self> {
        Self::sorted(types.iter().map(|data_type| SortField::new(data_type.clone())).collect())
    }

    fn sorted(fields: Vec<SortField>) -> Result<Self> {
        let columns = fields.len();
        Ok(Self { converter: RowConverter::new(fields)?, columns })
    }

    /// Encodes each row of `columns`, of which there must be at least one.
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<EncodedRows> {
        self.encode_rows(columns, columns.first().map_or(0, |column| column.len()))
    }

    /// Encodes `rows` rows of `columns`, of which there may be none.
    pub fn encode_rows(&self, columns: &[ArrayRef], rows: usize) -> Result<EncodedRows> {
        if self.columns == 0 && columns.is_empty() {
            return Ok(EncodedRows { bytes: vec![FORMAT; rows], ends: (1..=rows).collect() });
        }
        let converted = self.converter.convert_columns(columns)?;
        let length: usize = converted.lengths().sum();
        let mut bytes = Vec::with_capacity(length + converted.num_rows());
        let mut ends = Vec::with_capacity(converted.num_rows());
        for row in &converted {
            bytes.push(FORMAT);
            bytes.extend_from_slice(row.data());
            ends.push(bytes.len());
        }
        Ok(EncodedRows { bytes, ends })
    }

    /// The columns of encoded rows.
    pub fn decode<'a>(&self, rows: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        let bodies = rows.map(strip_format).collect::<Result<Vec<_>>>()?;
        if self.columns == 0 {
            return Ok(Vec::new());
        }
        let parser = self.converter.parser();
        Ok(self.converter.convert_rows(bodies.into_iter().map(|body| parser.parse(body)))?)
    }
}

fn strip_format(row: &[u8]) -> Result<&[u8]> {
    match row.split_first() {
        Some((&FORMAT, body)) => Ok(body),
        first => Err(StorageError::Corrupt {
            url: "a row of keyed state".to_owned(),
            reason: match first {
                Some((format, _)) => format!(
                    "its format is {format}, this version of Weir reads format {FORMAT}; it was written by a newer version"
                ),
                None => "it is empty".to_owned(),
            },
        }),
    }
}

/// Rows encoded by a [`RowCodec`], in one buffer.
#[derive(Debug, Clone, Default)]
pub struct EncodedRows {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl EncodedRows {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of row `index`, which must be less than [`Self::len`].
    #[must_use]
    pub fn row(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }

    /// All rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// Memory in use.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }
}

/// Keys encoded by a [`KeyEncoder`], in one buffer.
#[derive(Debug, Clone)]
pub struct EncodedKeys {
    rows: EncodedRows,
    max_parallelism: u16,
}

impl EncodedKeys {
    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The bytes of key `index`, which must be less than [`Self::len`].
    #[must_use]
    pub fn key(&self, index: usize) -> &[u8] {
        self.rows.row(index)
    }

    /// The key group of key `index`: [`key_group_of`] all its bytes. Hashed at each call.
    #[must_use]
    pub fn group(&self, index: usize) -> KeyGroup {
        key_group_of(self.key(index), self.max_parallelism)
    }

    /// All keys in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.rows.iter()
    }

    /// All keys in order, each with its key group: what a state table wants.
    #[must_use]
    pub fn with_groups(&self) -> Vec<(KeyGroup, &[u8])> {
        self.iter().map(|key| (key_group_of(key, self.max_parallelism), key)).collect()
    }

    /// Memory in use.
    #[must_use]
    pub fn size(&self) -> usize {
        self.rows.size()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::{
        array::{
            BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray,
            TimestampMicrosecondArray,
        },
        compute::SortOptions,
        datatypes::TimeUnit,
    };
    use proptest::prelude::*;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn golden(column: ArrayRef, expected: &[&str]) {
        let codec = RowCodec::new(&[column.data_type().clone()]).unwrap();
        let rows = codec.encode(&[Arc::clone(&column)]).unwrap();
        assert_eq!(rows.iter().map(hex).collect::<Vec<_>>(), expected, "{}", column.data_type());
        assert_eq!(&codec.decode(rows.iter()).unwrap()[0], &column);
    }

    #[test]
    fn encodings_are_fixed_for_good() {
        golden(
            Arc::new(Int32Array::from(vec![Some(-2), None, Some(1)])),
            &["01017ffffffe", "010000000000", "010180000001"],
        );
        golden(
            Arc::new(Int64Array::from(vec![i64::MIN, -1, 258])),
            &["01010000000000000000", "01017fffffffffffffff", "01018000000000000102"],
        );
        golden(
            Arc::new(StringArray::from(vec![Some(""), Some("weir"), None, Some("é")])),
            &["0101", "0102776569720000000004", "0100", "0102c3a900000000000002"],
        );
        golden(
            Arc::new(Decimal128Array::from(vec![Some(-12345), None]).with_precision_and_scale(38, 10).unwrap()),
            &["01017fffffffffffffffffffffffffffcfc7", "010000000000000000000000000000000000"],
        );
        golden(
            Arc::new(TimestampMicrosecondArray::from(vec![1_700_000_000_000_000, -1]).with_timezone("UTC")),
            &["010180060a24181e4000", "01017fffffffffffffff"],
        );
        golden(Arc::new(Float64Array::from(vec![-1.5, 1.5])), &["01014007ffffffffffff", "0101bff8000000000000"]);
        golden(Arc::new(BooleanArray::from(vec![Some(false), Some(true), None])), &["010100", "010101", "010000"]);
        golden(Arc::new(Date32Array::from(vec![19_000])), &["010180004a38"]);
    }

    #[test]
    fn key_groups_of_keys_are_fixed_for_good() {
        let types = [DataType::Utf8, DataType::Int64];
        let encoder = KeyEncoder::new(&types, 128).unwrap();
        let keys = encoder
            .encode(&[Arc::new(StringArray::from(vec!["DHL", "UPS"])), Arc::new(Int64Array::from(vec![1, -1]))])
            .unwrap();
        assert_eq!(hex(keys.key(0)), "010244484c000000000003018000000000000001");
        assert_eq!(keys.group(0), key_group_of(keys.key(0), 128));
        assert_eq!(keys.with_groups(), vec![(keys.group(0), keys.key(0)), (keys.group(1), keys.key(1))]);
        assert_eq!((keys.group(0), keys.group(1)), (KeyGroup(83), KeyGroup(82)));
    }

    #[test]
    fn grouping_by_nothing_has_one_key() {
        let encoder = KeyEncoder::new(&[], 128).unwrap();
        let keys = encoder.encode_rows(&[], 3).unwrap();
        assert_eq!(keys.iter().collect::<Vec<_>>(), vec![&[FORMAT][..]; 3]);
        assert_eq!(encoder.decode(keys.iter()).unwrap().len(), 0);
    }

    #[test]
    fn another_format_and_wrong_columns_are_errors() {
        let codec = RowCodec::new(&[DataType::Int32]).unwrap();
        let newer = codec.decode([&[2u8, 1, 0, 0, 0, 0][..]].into_iter()).unwrap_err().to_string();
        assert!(newer.contains("its format is 2"), "{newer}");
        assert!(codec.decode([&[][..]].into_iter()).is_err());
        assert!(codec.encode(&[Arc::new(Int64Array::from(vec![1])) as ArrayRef]).is_err());
        assert!(codec.encode(&[]).is_err());
    }

    #[test]
    fn sorted_keys_follow_their_options() {
        let descending = SortOptions { descending: true, nulls_first: false };
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        let encoder = KeyEncoder::sorted(vec![SortField::new_with_options(time, descending)], 1).unwrap();
        let column = TimestampMicrosecondArray::from(vec![Some(3), Some(2), Some(-7), None]);
        let keys = encoder.encode(&[Arc::new(column)]).unwrap();
        assert!(keys.iter().is_sorted());
    }

    proptest! {
        #[test]
        fn rows_come_back_and_sort_like_their_values(
            rows in prop::collection::vec((any::<Option<i64>>(), any::<Option<String>>()), 1..40)
        ) {
            let numbers: Int64Array = rows.iter().map(|row| row.0).collect();
            let texts: StringArray = rows.iter().map(|row| row.1.as_deref()).collect();
            let columns: Vec<ArrayRef> = vec![Arc::new(numbers), Arc::new(texts)];
            let codec = RowCodec::new(&[DataType::Int64, DataType::Utf8]).unwrap();
            let encoded = codec.encode(&columns).unwrap();
            prop_assert_eq!(codec.decode(encoded.iter()).unwrap(), columns);
            let mut by_value: Vec<_> = (0..rows.len()).collect();
            let mut by_bytes = by_value.clone();
            by_value.sort_by_key(|index| &rows[*index]);
            by_bytes.sort_by_key(|index| encoded.row(*index));
            prop_assert_eq!(by_value, by_bytes);
        }
    }
}
