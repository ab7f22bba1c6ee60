//! Rows that could not be read, made ready for a person to look at.

use weir_runtime::rejects::BadRow;

/// How much of a bad row is kept.
const RAW_LIMIT: usize = 4096;
/// How much of a bad value a reason quotes.
const VALUE_LIMIT: usize = 80;

/// A bad row as a decoder finds it, before it is known which file and relation it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Byte offset of the row within the decoded block.
    pub offset: usize,
    /// Number of lines of the block before the row.
    pub line: u64,
    /// Why it could not be read.
    pub reason: String,
    /// The row, cut and escaped.
    pub raw: String,
}

impl BadLine {
    /// The bad row for `relation` and `split`. `first_line` is the number of the block's first line, if it is known
    /// (a split that starts in the middle of a file counts bytes instead); `block_offset` is the block's offset.
    pub fn into_row(self, relation: &str, split: &str, first_line: Option<u64>, block_offset: u64) -> BadRow {
        let position = match first_line {
            Some(first) => format!("line {}", first + self.line),
            None => format!("byte {}", block_offset + self.offset as u64),
        };
        BadRow { relation: relation.to_owned(), split: split.to_owned(), position, reason: self.reason, raw: self.raw }
    }
}

/// The row's bytes as text: cut at 4 KiB, with what is not UTF-8 escaped as `\xFF`.
pub fn raw_text(bytes: &[u8]) -> String {
    escape(bytes, RAW_LIMIT)
}

/// A value as quoted in a reason.
pub fn quoted(text: &[u8]) -> String {
    format!("\"{}\"", escape(text, VALUE_LIMIT))
}

fn escape(bytes: &[u8], limit: usize) -> String {
    let cut = &bytes[..bytes.len().min(limit)];
    let mut out = String::with_capacity(cut.len());
    for chunk in cut.utf8_chunks() {
        out.push_str(chunk.valid());
        // A character that only the cut broke is left out rather than shown as damage.
        let broken_by_cut = bytes.len() > limit && chunk.invalid().as_ptr_range().end == cut.as_ptr_range().end;
        if !broken_by_cut {
            chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02X}")));
        }
    }
    if bytes.len() > limit {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_text_is_cut_and_escaped() {
        assert_eq!(raw_text(b"a\xffb"), "a\\xFFb");
        assert_eq!(raw_text("ü".as_bytes()), "ü");
        let long = "ü".repeat(3000);
        let cut = raw_text(long.as_bytes());
        assert!(cut.ends_with('…') && cut.len() <= RAW_LIMIT + 8);
        assert!(!cut.contains("\\x"));
    }
}
