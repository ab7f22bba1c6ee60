//! A segment: one logical state file, wherever its bytes lie.

use std::path::PathBuf;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One logical state file of a checkpoint: inside the manifest when small, a range of a merged file otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    /// The bytes themselves, inside the manifest (whose checksum covers them).
    Inline {
        /// The bytes; base64 in the manifest.
        #[serde(with = "base64_bytes")]
        bytes: Bytes,
    },
    /// A range of an object.
    Object {
        /// The object, relative to the job's directory: `data/chk-13-0197…`.
        path: String,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// CRC-32 of exactly these bytes.
        crc32: u32,
    },
}

impl Segment {
    /// A segment that lives in the manifest.
    pub fn inline(bytes: impl Into<Bytes>) -> Self {
        Self::Inline { bytes: bytes.into() }
    }

    /// Number of bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Inline { bytes } => bytes.len() as u64,
            Self::Object { length, .. } => *length,
        }
    }

    /// The object that holds it, if it is not inline; relative to the job's directory.
    pub fn object(&self) -> Option<&str> {
        match self {
            Self::Inline { .. } => None,
            Self::Object { path, .. } => Some(path),
        }
    }
}

/// What is to become a [`Segment`].
#[derive(Debug, Clone)]
pub enum SegmentBody {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A local file, which must stay unchanged until the segment is durable. Large ones are streamed.
    File(PathBuf),
}

impl From<Bytes> for SegmentBody {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for SegmentBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<PathBuf> for SegmentBody {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// Serde of bytes as a base64 string (standard alphabet, padded): `#[serde(with = "base64_bytes")]`.
pub mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Bytes to a base64 string.
    pub fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    /// A base64 string to bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        STANDARD.decode(text.as_bytes()).map(Bytes::from).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_fixed_for_good() {
        let inline = Segment::inline(&b"\x00weir\xff"[..]);
        assert_eq!(serde_json::to_string(&inline).unwrap(), r#"{"inline":{"bytes":"AHdlaXL/"}}"#);
        let object = Segment::Object { path: "data/chk-1-a".into(), offset: 8, length: 3, crc32: 7 };
        let json = r#"{"object":{"path":"data/chk-1-a","offset":8,"length":3,"crc32":7}}"#;
        assert_eq!(serde_json::to_string(&object).unwrap(), json);
        for segment in [inline, object] {
            let json = serde_json::to_string(&segment).unwrap();
            assert_eq!(serde_json::from_str::<Segment>(&json).unwrap(), segment);
        }
    }
}
