//! What a decoder hands back, and the steps that both text formats share: scan, UTF-8, columns, bad rows in order.

use std::borrow::Cow;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use weir_runtime::{Result, RuntimeError};

use super::column::{BadValues, Conversion, Fields, Texts, convert};
use crate::bad_rows::{BadLine, raw_text};

/// Rows decoded from the start of a block.
#[derive(Debug)]
pub struct Decoded {
    /// The good rows.
    pub batch: RecordBatch,
    /// The bad ones, in order.
    pub bad: Vec<BadLine>,
    /// Bytes of the block that these rows took. Zero: not one complete row is there.
    pub consumed: usize,
    /// Lines that these bytes hold.
    pub lines: u64,
}

/// A row whose structure is broken.
pub(crate) struct BrokenRow {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) line: u64,
    pub(crate) reason: String,
}

/// What a scan saw, besides the fields.
#[derive(Default)]
pub(crate) struct Scanned {
    pub(crate) broken: Vec<BrokenRow>,
    pub(crate) consumed: usize,
    pub(crate) lines: u64,
}

/// Finds the fields of rows in a block.
pub(crate) trait Scanner {
    /// Note the places of up to `max_rows` rows from the start of `block`. `last`: nothing follows the block, so that
    /// its last row needs no line end.
    fn scan(&mut self, block: &[u8], last: bool, max_rows: usize) -> Scanned;
    /// The places noted by the last scan.
    fn fields(&self) -> &Fields;
    /// The columns to make.
    fn schema(&self) -> &SchemaRef;
    /// How values are read.
    fn conversion(&self) -> Conversion;
    /// Whether control characters inside strings matter.
    const JSON: bool;
}

/// Decode up to `max_rows` rows from the start of `block`.
///
/// Structure is ASCII, so that a block which is not UTF-8 throughout is scanned again with each broken byte replaced
/// by one character: everything lies where it lay, and the rows that held broken bytes are bad.
pub(crate) fn decode<S: Scanner>(scanner: &mut S, block: &[u8], last: bool, max_rows: usize) -> Result<Decoded> {
    let mut scanned = scanner.scan(block, last, max_rows);
    let region = &block[..scanned.consumed];
    let mut not_utf8 = Vec::new();
    let text = match simdutf8::basic::from_utf8(region) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            let repaired = repair(region, &mut not_utf8);
            scanned = scanner.scan(repaired.as_bytes(), true, max_rows);
            Cow::Owned(repaired)
        }
    };
    let fields = scanner.fields();
    let scratch = simdutf8::basic::from_utf8(&fields.scratch)
        .map_err(|error| RuntimeError::Internal { place: "text format", reason: error.to_string() })?;
    let controls = S::JSON && text.bytes().fold(false, |any, byte| any | ((byte < 0x20) & (byte != b'\n')));
    let mut bad_values = BadValues::default();
    for at in not_utf8 {
        let row = fields.rows.partition_point(|row| row.end <= at);
        if let Some(place) = fields.rows.get(row).filter(|place| place.start <= at) {
            bad_values.add(row, || {
                format!("not UTF-8: byte 0x{:02X} at position {} of the row", region[at], at - place.start + 1)
            });
        }
    }
    let texts = Texts { block: &text, scratch, controls };
    let (batch, bad_values) = convert(scanner.schema(), scanner.conversion(), fields, texts, bad_values)?;
    let raw = |start: usize, end: usize| raw_text(region[start..end].trim_ascii_end());
    let mut bad: Vec<BadLine> = scanned
        .broken
        .into_iter()
        .map(|row| BadLine { offset: row.start, line: row.line, reason: row.reason, raw: raw(row.start, row.end) })
        .collect();
    bad.extend(bad_values.into_rows().map(|(row, reason)| {
        let place = fields.rows[row];
        BadLine { offset: place.start, line: place.line, reason, raw: raw(place.start, place.end) }
    }));
    bad.sort_by_key(|line| line.offset);
    Ok(Decoded { batch, bad, consumed: scanned.consumed, lines: scanned.lines })
}

/// The bytes with each that is not part of valid UTF-8 replaced by `?`; `broken` gets their offsets.
fn repair(bytes: &[u8], broken: &mut Vec<usize>) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for _ in chunk.invalid() {
            broken.push(text.len());
            text.push('?');
        }
    }
    text
}
