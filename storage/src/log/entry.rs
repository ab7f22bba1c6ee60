//! An entry of a relation's log, as bytes.
//!
//! ```text
//!   WEIRLOG1 · header length u32 LE · header CRC u32 LE · header (JSON) · inline parts · CRC of them u32 LE · WEIRLOG1
//! ```
//!
//! A part is an Arrow IPC stream (LZ4), inline or an object of its own. Weights are a last column `__op`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, Int8Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::CompressionType;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::LogSeq;
use crate::error::{Result, StorageError};
use crate::{CheckpointId, JobId};

const MAGIC: &[u8; 8] = b"WEIRLOG1";
/// Magic, header length and header CRC.
const FRONT: usize = 16;
/// Body CRC and magic.
const BACK: usize = 12;
/// Format that this version writes, and the highest that it reads.
const FORMAT: u32 = 1;

const OP_COLUMN: &str = "__op";
/// Schema metadata by which a stream with weights is told from one whose user has a column of that name.
const OPS_KEY: &str = "weir.ops";

/// Rows with their weights; `None` means all +1.
pub type LogBatch = (RecordBatch, Option<Int8Array>);

/// How an entry came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogEntryKind {
    /// INSERT, UPDATE, DELETE or HTTP: durable when acknowledged.
    Append,
    /// A job's output, committed with its checkpoint.
    Publish,
}

/// The header of an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub format: u32,
    pub kind: LogEntryKind,
    /// Makes the object's content unique to its writer.
    pub nonce: uuid::Uuid,
    pub written_ms: i64,
    pub rows: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_keys: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,
    /// The last checkpoint that each job has published up to and including this entry. So the newest entry alone
    /// tells whether a commit is a repetition.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub published: BTreeMap<String, Published>,
    /// Event time that the writing job had come to, in microseconds since 1970: it holds after the entry's rows.
    /// Versions before it was written skip the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<i64>,
    pub parts: Vec<PartRef>,
}

/// Who published an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Writer {
    pub job: JobId,
    pub checkpoint: CheckpointId,
}

/// A job's last publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Published {
    pub checkpoint: CheckpointId,
    pub seq: LogSeq,
    /// The watermark that was published with it, or before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<i64>,
}

/// Where a part's bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PartRef {
    /// The next so many bytes of the body.
    Inline { length: u64 },
    /// An object, relative to the log's directory.
    Object { path: String, length: u64, crc32: u32 },
}

impl Header {
    pub fn new(kind: LogEntryKind) -> Self {
        Self {
            format: FORMAT,
            kind,
            nonce: uuid::Uuid::new_v4(),
            written_ms: chrono::Utc::now().timestamp_millis(),
            rows: 0,
            client_keys: Vec::new(),
            writer: None,
            published: BTreeMap::new(),
            watermark: None,
            parts: Vec::new(),
        }
    }

    /// The entry's bytes; `body` are its inline parts.
    pub fn encode(&self, body: &[Bytes]) -> Bytes {
        // Strings, numbers and string-keyed maps have no way not to be JSON.
        let header = serde_json::to_vec(self).unwrap_or_default();
        let mut crc = crc32fast::Hasher::new();
        let length: usize = body.iter().map(Bytes::len).sum();
        let mut bytes = Vec::with_capacity(FRONT + header.len() + length + BACK);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        bytes.extend_from_slice(&header);
        for part in body {
            crc.update(part);
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(&crc.finalize().to_le_bytes());
        bytes.extend_from_slice(MAGIC);
        bytes.into()
    }

    /// The header from an entry's first bytes, or how many are needed if there are too few.
    pub fn decode(bytes: &[u8], url: &str) -> Result<Result<(Self, usize), usize>> {
        let damaged = |reason: &str| StorageError::Corrupt { url: url.to_owned(), reason: reason.to_owned() };
        let Some((front, rest)) = bytes.split_first_chunk::<FRONT>() else {
            return Err(damaged("it is too short to be an entry of a log"));
        };
        let (magic, [a, b, c, d, e, f, g, h]) =
            front.split_first_chunk::<8>().map_or((&[0; 8], &[][..]), |(m, r)| (m, r))
        else {
            return Err(damaged("it does not begin as an entry of a log does"));
        };
        if magic != MAGIC {
            return Err(damaged("it does not begin as an entry of a log does"));
        }
        let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let crc = u32::from_le_bytes([*e, *f, *g, *h]);
        let Some(header) = rest.get(..length) else { return Ok(Err(FRONT + length)) };
        if crc32fast::hash(header) != crc {
            return Err(damaged("its header does not have the checksum that was written"));
        }
        let header: Self =
            serde_json::from_slice(header).map_err(|e| damaged(&format!("its header cannot be read: {e}")))?;
        if header.format > FORMAT {
            return Err(damaged(&format!(
                "it has format {}, and this version reads up to {FORMAT}; use the version of Weir that wrote it or a \
                 later one",
                header.format
            )));
        }
        Ok(Ok((header, FRONT + length)))
    }

    /// An entry's header and inline parts, whose checksums are right.
    pub fn decode_entry(bytes: &Bytes, url: &str) -> Result<(Self, Vec<Bytes>)> {
        let damaged = |reason: &str| StorageError::Corrupt { url: url.to_owned(), reason: reason.to_owned() };
        let (header, start) = Self::decode(bytes, url)?.map_err(|_| damaged("its header is cut off"))?;
        let end = bytes.len().checked_sub(BACK).filter(|end| *end >= start).ok_or_else(|| damaged("it is cut off"))?;
        let (crc, magic) = bytes[end..].split_at(4);
        if magic != MAGIC {
            return Err(damaged("it does not end as an entry of a log does; it may have been cut off"));
        }
        if crc != crc32fast::hash(&bytes[start..end]).to_le_bytes() {
            return Err(damaged("its rows do not have the checksum that was written"));
        }
        let mut at = start;
        let mut parts = Vec::new();
        for part in &header.parts {
            if let PartRef::Inline { length } = part {
                let next = at + *length as usize;
                if next > end {
                    return Err(damaged("its header names more rows than it has"));
                }
                parts.push(bytes.slice(at..next));
                at = next;
            }
        }
        Ok((header, parts))
    }
}

/// Rows as Arrow IPC streams (LZ4), one for each run of equal schemas; each with its number of rows. Weights are a last
/// column, if any row of a stream is a retraction.
pub fn encode_rows(batches: &[LogBatch]) -> Result<Vec<(Bytes, u64)>> {
    let mut streams = Vec::new();
    for run in batches.chunk_by(|(a, _), (b, _)| a.schema() == b.schema()) {
        streams.push((encode_run(run)?, run.iter().map(|(batch, _)| batch.num_rows() as u64).sum()));
    }
    Ok(streams)
}

fn encode_run(run: &[LogBatch]) -> Result<Bytes> {
    let Some((first, _)) = run.first() else { return Ok(Bytes::new()) };
    let weighted = run.iter().any(|(_, ops)| ops.is_some());
    let schema = if weighted {
        let mut metadata = first.schema().metadata().clone();
        metadata.insert(OPS_KEY.to_owned(), "1".to_owned());
        let op = Arc::new(Field::new(OP_COLUMN, DataType::Int8, false));
        let fields: Vec<_> = first.schema().fields().iter().cloned().chain([op]).collect();
        Arc::new(Schema::new_with_metadata(fields, metadata))
    } else {
        first.schema()
    };
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME))?;
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options)?;
    for (batch, ops) in run {
        if weighted {
            let ops = ops.clone().unwrap_or_else(|| Int8Array::from(vec![1; batch.num_rows()]));
            let columns = batch.columns().iter().cloned().chain([Arc::new(ops) as _]).collect();
            writer.write(&RecordBatch::try_new(Arc::clone(&schema), columns)?)?;
        } else {
            writer.write(batch)?;
        }
    }
    Ok(writer.into_inner()?.into())
}

/// Rows of an Arrow IPC stream that [`encode_rows`] wrote.
pub fn decode_rows(bytes: &[u8]) -> Result<Vec<LogBatch>> {
    let reader = StreamReader::try_new(bytes, None)?;
    let stored = reader.schema();
    if !stored.metadata().contains_key(OPS_KEY) {
        return reader.map(|batch| Ok((batch?, None))).collect();
    }
    let mut metadata = stored.metadata().clone();
    metadata.remove(OPS_KEY);
    let columns = stored.fields().len().saturating_sub(1);
    let schema = Arc::new(Schema::new_with_metadata(stored.fields()[..columns].to_vec(), metadata));
    let split = |batch: RecordBatch| {
        let ops = batch.column(columns).as_any().downcast_ref::<Int8Array>().cloned();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let rows =
            RecordBatch::try_new_with_options(Arc::clone(&schema), batch.columns()[..columns].to_vec(), &options)?;
        Ok((rows, ops))
    };
    reader.map(|batch| split(batch?)).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};

    use super::*;

    pub(crate) fn rows(values: &[i64]) -> RecordBatch {
        let names: StringArray = values.iter().map(|v| Some(format!("n{v}"))).collect();
        let metadata = [("weir.type".to_owned(), "json".to_owned())].into();
        let schema = Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("name", DataType::Utf8, true).with_metadata(metadata),
        ]);
        RecordBatch::try_new(schema.into(), vec![Arc::new(Int64Array::from(values.to_vec())), Arc::new(names)]).unwrap()
    }

    fn example() -> (Header, Vec<Bytes>) {
        let streams = encode_rows(&[(rows(&[1, 2]), None), (rows(&[3]), Some(Int8Array::from(vec![-1])))]).unwrap();
        let body: Vec<Bytes> = streams.iter().map(|(bytes, _)| bytes.clone()).collect();
        let mut header = Header::new(LogEntryKind::Append);
        header.rows = streams.iter().map(|(_, rows)| rows).sum();
        header.parts = body.iter().map(|part| PartRef::Inline { length: part.len() as u64 }).collect();
        (header, body)
    }

    #[test]
    fn rows_weights_and_metadata_come_back() {
        let (header, body) = example();
        assert_eq!(header.rows, 3);
        let (decoded, parts) = Header::decode_entry(&header.encode(&body), "u").unwrap();
        assert_eq!((&decoded, &parts), (&header, &body));
        let rows_back = decode_rows(&parts[0]).unwrap();
        assert_eq!(rows_back[0], (rows(&[1, 2]), Some(Int8Array::from(vec![1, 1]))));
        assert_eq!(rows_back[1], (rows(&[3]), Some(Int8Array::from(vec![-1]))));
    }

    #[test]
    fn without_weights_there_is_no_extra_column_even_if_the_user_has_one_of_its_name() {
        let schema = Schema::new(vec![Field::new(OP_COLUMN, DataType::Int8, false)]);
        let batch = RecordBatch::try_new(schema.into(), vec![Arc::new(Int8Array::from(vec![7]))]).unwrap();
        let streams = encode_rows(&[(batch.clone(), None)]).unwrap();
        assert_eq!(decode_rows(&streams[0].0).unwrap(), [(batch, None)]);
    }

    #[test]
    fn a_change_of_schema_begins_a_stream() {
        let other = RecordBatch::new_empty(Schema::new(vec![Field::new("x", DataType::Utf8, true)]).into());
        let streams =
            encode_rows(&[(rows(&[1]), None), (other, None), (rows(&[2]), None), (rows(&[3]), None)]).unwrap();
        assert_eq!(streams.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(), [1, 0, 2]);
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let (header, body) = example();
        let bytes = header.encode(&body);
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x20;
            assert!(Header::decode_entry(&damaged.into(), "u").is_err(), "byte {at}");
            assert!(Header::decode_entry(&bytes.slice(..at), "u").is_err(), "cut at {at}");
        }
    }

    const GOLDEN: &[u8] = include_bytes!("../../tests/golden/log-entry-v1.bin");
    const GOLDEN_WATERMARK: &[u8] = include_bytes!("../../tests/golden/log-entry-v1-watermark.bin");

    #[test]
    fn golden_bytes_stay_the_same() {
        let mut header = Header::new(LogEntryKind::Publish);
        header.nonce = uuid::Uuid::from_u128(5);
        header.written_ms = 1_750_000_000_000;
        header.rows = 3;
        header.client_keys = vec!["key-1".into()];
        let job = JobId("by_carrier-0197".into());
        let published = Published { checkpoint: CheckpointId(13), seq: LogSeq(42), watermark: None };
        header.published = [(job.0.clone(), published)].into();
        header.writer = Some(Writer { job, checkpoint: CheckpointId(13) });
        header.parts = vec![
            PartRef::Inline { length: 5 },
            PartRef::Object { path: "data/by_carrier-0197/chk-13-0-a".into(), length: 9, crc32: 7 },
        ];
        let bytes = header.encode(&[Bytes::from_static(b"arrow")]);
        assert_eq!(bytes, GOLDEN, "{}", String::from_utf8_lossy(&bytes));
        assert_eq!(Header::decode_entry(&Bytes::from_static(GOLDEN), "golden").unwrap().0, header);

        // With a watermark, as entries have it since there are some; without, the bytes are those of before.
        header.watermark = Some(1_750_000_000_000_000);
        header.published.values_mut().for_each(|last| last.watermark = header.watermark);
        let bytes = header.encode(&[Bytes::from_static(b"arrow")]);
        assert_eq!(bytes, GOLDEN_WATERMARK, "{}", String::from_utf8_lossy(&bytes));
        assert_eq!(Header::decode_entry(&Bytes::from_static(GOLDEN_WATERMARK), "golden").unwrap().0, header);
    }
}
