//! The merged file: many segments in one object.
//!
//! ```text
//!   WEIRMRG1 · segment · segment · … · footer (JSON: the index) · footer length u32 LE · footer CRC u32 LE · WEIRMRG1
//! ```
//!
//! A manifest names ranges of it and needs no footer; the footer makes the object readable by itself, when a manifest
//! is lost or someone asks what an object is.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Result, StorageError};
use crate::{CheckpointId, JobId};

/// Begin and end of every merged file.
pub(crate) const MAGIC: &[u8; 8] = b"WEIRMRG1";
/// Bytes after the footer's JSON.
pub(crate) const TRAILER: u64 = 16;

/// The index in the footer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedFileIndex {
    /// Job that wrote the file.
    pub job: JobId,
    /// Checkpoint that it was written for.
    pub checkpoint: CheckpointId,
    /// Its segments in order.
    pub segments: Vec<MergedSegment>,
}

/// A segment in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedSegment {
    /// What its writer called it.
    pub name: String,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// CRC-32 of these bytes.
    pub crc32: u32,
}

impl MergedFileIndex {
    /// An index without segments.
    pub(crate) fn new(job: JobId, checkpoint: CheckpointId) -> Self {
        Self { job, checkpoint, segments: Vec::new() }
    }

    /// Add the next segment; where it begins follows from those before it.
    pub(crate) fn push(&mut self, name: String, length: u64, crc32: u32) -> &MergedSegment {
        let offset = self.end();
        let at = self.segments.len();
        self.segments.push(MergedSegment { name, offset, length, crc32 });
        &self.segments[at]
    }

    /// Where the footer begins.
    fn end(&self) -> u64 {
        self.segments.last().map_or(MAGIC.len() as u64, |last| last.offset + last.length)
    }

    /// The footer and what follows it.
    pub(crate) fn footer(&self) -> Bytes {
        // A struct of strings and numbers has no way not to be JSON.
        let mut footer = serde_json::to_vec(self).unwrap_or_default();
        let (length, crc) = (footer.len() as u32, crc32fast::hash(&footer));
        footer.extend_from_slice(&length.to_le_bytes());
        footer.extend_from_slice(&crc.to_le_bytes());
        footer.extend_from_slice(MAGIC);
        footer.into()
    }

    /// How many bytes before the end the footer begins, from the object's last [`TRAILER`] bytes.
    pub(crate) fn footer_length(trailer: &[u8], url: &str) -> Result<u64> {
        let (length, _) = parse_trailer(trailer, url)?;
        Ok(u64::from(length) + TRAILER)
    }

    /// Read the index from the object's last bytes (at least footer and trailer).
    pub fn from_tail(tail: &[u8], url: &str) -> Result<Self> {
        let damaged = |reason: &str| StorageError::Corrupt { url: url.to_owned(), reason: reason.to_owned() };
        let (length, crc) = parse_trailer(tail, url)?;
        let json_end = tail.len() - TRAILER as usize;
        let json_start = json_end.checked_sub(length as usize).ok_or_else(|| damaged("its footer is cut off"))?;
        let json = &tail[json_start..json_end];
        if crc32fast::hash(json) != crc {
            return Err(damaged("its footer does not have the checksum that was written"));
        }
        serde_json::from_slice(json).map_err(|e| damaged(&format!("its footer is no index: {e}")))
    }
}

fn parse_trailer(tail: &[u8], url: &str) -> Result<(u32, u32)> {
    let trailer = tail.last_chunk::<16>();
    match trailer {
        Some([a, b, c, d, e, f, g, h, magic @ ..]) if magic == MAGIC => {
            Ok((u32::from_le_bytes([*a, *b, *c, *d]), u32::from_le_bytes([*e, *f, *g, *h])))
        }
        _ => Err(StorageError::Corrupt {
            url: url.to_owned(),
            reason: "it does not end as a merged file does; it is something else or cut off".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (MergedFileIndex, Vec<u8>) {
        let mut index = MergedFileIndex::new(JobId("job-1".into()), CheckpointId(13));
        let mut file = MAGIC.to_vec();
        for (name, body) in [("000009.sst", &b"twelve bytes"[..]), ("empty", b""), ("", b"\x00\xff")] {
            index.push(name.to_owned(), body.len() as u64, crc32fast::hash(body));
            file.extend_from_slice(body);
        }
        file.extend_from_slice(&index.footer());
        (index, file)
    }

    const GOLDEN: &[u8] = include_bytes!("../../tests/golden/merged-file-v1.bin");

    #[test]
    fn golden_bytes_stay_the_same() {
        let (index, file) = example();
        assert_eq!(file, GOLDEN, "{}", String::from_utf8_lossy(&file));
        assert_eq!(MergedFileIndex::from_tail(GOLDEN, "golden").unwrap(), index);
    }

    #[test]
    fn the_tail_alone_is_enough() {
        let (index, file) = example();
        let length = MergedFileIndex::footer_length(&file[file.len() - TRAILER as usize..], "u").unwrap();
        assert_eq!(MergedFileIndex::from_tail(&file[file.len() - length as usize..], "u").unwrap(), index);
        for segment in &index.segments {
            let body = &file[segment.offset as usize..(segment.offset + segment.length) as usize];
            assert_eq!(crc32fast::hash(body), segment.crc32);
        }
    }

    #[test]
    fn damage_of_the_footer_is_found() {
        let (index, file) = example();
        let start = index.end() as usize;
        for at in start..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert!(MergedFileIndex::from_tail(&damaged, "u").is_err(), "byte {at}");
        }
        for end in 0..file.len() {
            assert!(MergedFileIndex::from_tail(&file[..end], "u").is_err(), "cut at {end}");
        }
    }
}
