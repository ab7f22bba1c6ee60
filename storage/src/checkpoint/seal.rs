//! JSON objects with a checksum: a last line `crc32:xxxxxxxx` over all bytes before it.

use bytes::Bytes;

use crate::error::{Result, StorageError};

const SEAL: &str = "crc32:";

/// JSON and its checksum line.
pub(crate) fn sealed(mut json: Vec<u8>) -> Bytes {
    json.push(b'\n');
    let line = format!("{SEAL}{:08x}\n", crc32fast::hash(&json));
    json.extend_from_slice(line.as_bytes());
    json.into()
}

/// The JSON of something [`sealed`], whose checksum is right.
pub(crate) fn unsealed<'a>(bytes: &'a [u8], url: &str) -> Result<&'a [u8]> {
    let damaged = |reason: String| StorageError::Corrupt { url: url.to_owned(), reason };
    const LINE: usize = SEAL.len() + 8 + 1;
    let at = bytes.len().checked_sub(LINE).ok_or_else(|| damaged(format!("it has only {} bytes", bytes.len())))?;
    let (json, line) = bytes.split_at(at);
    let stored = std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.strip_suffix('\n')?.strip_prefix(SEAL))
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .ok_or_else(|| damaged("its last line is not \"crc32:xxxxxxxx\"; it may have been cut off".to_owned()))?;
    let actual = crc32fast::hash(json);
    if stored != actual {
        return Err(damaged(format!("its checksum is {actual:08x}, and {stored:08x} was written")));
    }
    Ok(json)
}
