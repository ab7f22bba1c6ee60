//! One split of a text file: blocks read ahead, rows decoded, position told after each batch.
//!
//! The position is the byte offset of the next unread row (of the decompressed text), with its line number where that
//! is known and, while a file is watched, the file's identity.

use std::io::Read;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use weir_runtime::rejects::BadRow;
use weir_runtime::source::{SourceEvent, SplitId};
use weir_runtime::{Result, RuntimeError};

use super::input::{Block, HEADROOM, Input, identity, read_block};
use super::location::local_path;
use super::source::Shared;
use super::split::{Part, Split};
use super::{fault, io_reason, join_fault};
use crate::format::encode::Compression;
use crate::format::{BYTE_ORDER_MARK, Format, RowDecoder, oversized, split_header};

/// How many rows at most are decoded at once; a block mostly holds fewer.
const MAX_ROWS: usize = 2 * crate::format::BATCH_ROWS;

/// Where a split stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Byte offset of the next row.
    offset: u64,
    /// Its line number, from 1, unless the split began in the middle of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// Which file it was, when it is watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// Whether the offset lies inside a row that is too long: everything up to the next newline is passed over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    skipping: bool,
}

/// What a step of a split brings.
pub(crate) enum Step {
    /// Rows.
    Rows(SourceEvent),
    /// The split is finished for good.
    Finished,
    /// Nothing more at present (a watched file); go on later from this position.
    CaughtUp(serde_json::Value),
}

/// What opening a split finds.
enum Opened {
    Ready {
        stream: Box<dyn Read + Send>,
        decoder: Box<RowDecoder>,
        position: Position,
    },
    /// A watched file has nothing new, or not yet its header.
    Nothing,
    /// No row lies in the split.
    Empty,
}

type Reading = JoinHandle<(Box<dyn Read + Send>, std::io::Result<Block>)>;

/// What is going on in the background. Kept here, not in a future, so that [`TextSplit::next`] may be dropped and
/// called again at any time.
enum State {
    Start(serde_json::Value),
    Opening(JoinHandle<Result<Opened>>),
    Reading(Reading),
    /// The stream has ended; what is in the block is all there is.
    AtEnd,
    Over(Outcome),
}

#[derive(Clone, Copy)]
enum Outcome {
    Finished,
    CaughtUp,
}

/// A split being read.
pub(crate) struct TextSplit {
    id: SplitId,
    split: Split,
    shared: Arc<Shared>,
    state: State,
    decoder: Option<Box<RowDecoder>>,
    position: Position,
    /// The current block; `start` is the place of `position.offset` in it.
    block: Vec<u8>,
    start: usize,
    /// Where the position was when the split was opened, as given.
    origin: serde_json::Value,
}

impl TextSplit {
    pub(crate) fn new(shared: Arc<Shared>, id: SplitId, position: serde_json::Value) -> Self {
        Self {
            split: Split::parse(&id),
            id,
            shared,
            state: State::Start(position.clone()),
            decoder: None,
            position: Position { offset: 0, line: None, file: None, skipping: false },
            block: Vec::new(),
            start: 0,
            origin: position,
        }
    }

    /// Whether the file grows while it is read.
    fn tailed(&self) -> bool {
        self.shared.options.watch.is_some()
            && self.split.url.starts_with("file://")
            && self.shared.options.compression_of(&self.split.url) == Compression::None
    }

    fn end(&self) -> Option<u64> {
        match self.split.part {
            Part::Bytes(_, end) => end,
            Part::Whole | Part::Groups(_) => None,
        }
    }

    /// The next rows. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Step> {
        loop {
            let tailed = self.tailed();
            match &mut self.state {
                State::Start(position) => {
                    let (shared, split) = (Arc::clone(&self.shared), self.split.clone());
                    let position = std::mem::take(position);
                    let handle = Handle::current();
                    let opening = move || open(&shared, &split, position, tailed, &handle);
                    self.state = State::Opening(tokio::task::spawn_blocking(opening));
                }
                State::Opening(task) => {
                    let opened = task.await.map_err(|error| join_fault(&error))?;
                    match opened? {
                        Opened::Ready { stream, decoder, position } => {
                            self.decoder = Some(decoder);
                            self.position = position;
                            self.state = State::Reading(read_ahead(stream, Vec::new()));
                        }
                        Opened::Nothing => self.state = State::Over(Outcome::CaughtUp),
                        Opened::Empty => self.state = State::Over(Outcome::Finished),
                    }
                }
                State::Reading(_) | State::AtEnd => {
                    if let Some(event) = self.decode()? {
                        return Ok(Step::Rows(event));
                    }
                    // Decoding may have come to the split's end.
                    if let State::Reading(task) = &mut self.state {
                        let (stream, block) = task.await.map_err(|error| join_fault(&error))?;
                        let block = block.map_err(|error| fault(&self.split.url, io_reason(&error, "read")))?;
                        let spare = self.take_block(block.bytes);
                        self.state = if block.end { State::AtEnd } else { State::Reading(read_ahead(stream, spare)) };
                    }
                }
                State::Over(Outcome::Finished) => return Ok(Step::Finished),
                State::Over(Outcome::CaughtUp) => {
                    let position = if self.decoder.is_some() { self.told()? } else { self.origin.clone() };
                    return Ok(Step::CaughtUp(position));
                }
            }
        }
    }

    /// Put a new block behind what is left of the current one; answers the buffer to be used next.
    fn take_block(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        let left = &self.block[self.start..];
        if left.len() <= HEADROOM {
            self.start = HEADROOM - left.len();
            bytes[self.start..HEADROOM].copy_from_slice(left);
            std::mem::replace(&mut self.block, bytes)
        } else {
            self.block.drain(..self.start);
            self.start = 0;
            self.block.extend_from_slice(&bytes[HEADROOM..]);
            bytes
        }
    }

    /// Decode rows that the block holds; `None` when it holds none that is complete. May end the split.
    fn decode(&mut self) -> Result<Option<SourceEvent>> {
        let at_end = matches!(self.state, State::AtEnd);
        // A tailed file's last line waits for its newline.
        let mut last = at_end && !self.tailed();
        if self.end().is_some_and(|end| self.position.offset >= end) {
            self.state = State::Over(Outcome::Finished);
            return Ok(None);
        }
        if self.position.skipping && !self.skip_line() {
            if at_end {
                self.state = State::Over(if last { Outcome::Finished } else { Outcome::CaughtUp });
            }
            return Ok(None);
        }
        let mut region = &self.block[self.start..];
        if let Some(end) = self.end() {
            // The row that holds the split's last byte is ours to its end.
            let from = (end - 1 - self.position.offset) as usize;
            if let Some(length) = region.get(from..).and_then(|rest| memchr::memchr(b'\n', rest)) {
                region = &region[..from + length + 1];
                last = true;
            }
        }
        if region.is_empty() {
            if at_end {
                self.state = State::Over(if self.tailed() { Outcome::CaughtUp } else { Outcome::Finished });
            }
            return Ok(None);
        }
        let Some(decoder) = &mut self.decoder else { return Ok(None) };
        let decoded = decoder.decode(region, last, MAX_ROWS)?;
        if decoded.consumed > 0 {
            let first_line = self.position.line;
            let offset = self.position.offset;
            let relation = &self.shared.request.relation;
            let bad =
                decoded.bad.into_iter().map(|line| line.into_row(relation, &self.id.0, first_line, offset)).collect();
            self.advance(decoded.consumed, decoded.lines);
            return Ok(Some(self.event(decoded.batch, bad)?));
        }
        let limit = self.shared.options.max_row_bytes;
        if region.len() >= limit {
            return self.give_up_line(limit).map(Some);
        }
        if at_end {
            // Only a tailed file gets here: an unfinished last line.
            self.state = State::Over(Outcome::CaughtUp);
        }
        Ok(None)
    }

    fn advance(&mut self, bytes: usize, lines: u64) {
        self.start += bytes;
        self.position.offset += bytes as u64;
        self.position.line = self.position.line.map(|line| line + lines);
    }

    /// A row that is longer than allowed: it is bad, and reading goes on behind its first newline.
    fn give_up_line(&mut self, limit: usize) -> Result<SourceEvent> {
        let line = oversized(&self.block[self.start..], limit);
        let bad = line.into_row(&self.shared.request.relation, &self.id.0, self.position.line, self.position.offset);
        self.position.skipping = true;
        self.skip_line();
        let empty = arrow::array::RecordBatch::new_empty(Arc::clone(&self.shared.schema));
        self.event(empty, vec![bad])
    }

    /// Pass over everything up to the next newline; `false` when it is not in the block.
    fn skip_line(&mut self) -> bool {
        match memchr::memchr(b'\n', &self.block[self.start..]) {
            Some(length) => {
                self.advance(length + 1, 1);
                self.position.skipping = false;
                true
            }
            None => {
                self.advance(self.block.len() - self.start, 0);
                false
            }
        }
    }

    fn told(&self) -> Result<serde_json::Value> {
        serde_json::to_value(&self.position)
            .map_err(|error| RuntimeError::Internal { place: "file source", reason: error.to_string() })
    }

    fn event(&self, batch: arrow::array::RecordBatch, bad: Vec<BadRow>) -> Result<SourceEvent> {
        Ok(SourceEvent::Rows { split: self.id.clone(), batch, ops: None, position: self.told()?, bad })
    }
}

fn read_ahead(mut stream: Box<dyn Read + Send>, buffer: Vec<u8>) -> Reading {
    tokio::task::spawn_blocking(move || {
        let block = read_block(stream.as_mut(), buffer);
        (stream, block)
    })
}

/// Open a split at a position. Blocks.
fn open(shared: &Shared, split: &Split, position: serde_json::Value, tailed: bool, handle: &Handle) -> Result<Opened> {
    let url = &split.url;
    let failed = |error: std::io::Error| fault(url, io_reason(&error, "read"));
    let compression = shared.options.compression_of(url);
    let mut at: Option<Position> = match position {
        serde_json::Value::Null => None,
        value => Some(
            serde_json::from_value(value)
                .map_err(|error| fault(url, format!("the saved position is unreadable: {error}")))?,
        ),
    };
    if tailed && at.is_some() && !local_path(url).exists() {
        // Whoever rotates logs removes old ones. What was read of it is read.
        tracing::warn!(file = %url, "a watched file is gone; rows that it got after the last look are not read");
        return Ok(Opened::Nothing);
    }
    let input = Input::open(&shared.location, url, handle)?;
    let mut file = None;
    if tailed && let Input::Local(opened) = &input {
        let metadata = opened.metadata().map_err(failed)?;
        let now = identity(&metadata);
        if let Some(at) = &at {
            check_unchanged(url, at, &now, metadata.len())?;
            if metadata.len() == at.offset {
                return Ok(Opened::Nothing);
            }
        }
        file = Some(now);
    }
    if let Some(at) = &mut at {
        at.file = file.clone();
    }
    let named = matches!(&shared.options.format, Format::Csv(options) if options.header);
    let start = match split.part {
        Part::Bytes(start, _) => start,
        Part::Whole | Part::Groups(_) => 0,
    };
    // The head: a header names the columns whatever part is read, and the first part begins behind it.
    let mut header = None;
    let mut head_end = Position { offset: 0, line: Some(1), file: file.clone(), skipping: false };
    if named || (start == 0 && at.is_none()) {
        let mut head = Input::open(&shared.location, url, handle)?.stream(compression, 0).map_err(failed)?;
        match read_head(shared, head.as_mut(), named).map_err(failed)? {
            Head::Found { line, end, lines } => {
                header = line;
                head_end.offset = end;
                head_end.line = Some(1 + lines);
            }
            Head::Empty if tailed => return Ok(Opened::Nothing),
            Head::Empty => return Ok(Opened::Empty),
            Head::TooLong => {
                return Err(fault(
                    url,
                    format!("its header line is longer than {} bytes", shared.options.max_row_bytes),
                ));
            }
        }
    }
    let decoder = RowDecoder::new(
        &shared.options.format,
        &shared.request.declared,
        &shared.request.projection,
        header.as_deref(),
    )
    .map_err(|reason| fault(url, reason))?;
    let (position, align) = match at {
        Some(at) => (at, false),
        None if start <= head_end.offset => (head_end, false),
        None => (Position { offset: start - 1, line: None, file, skipping: false }, true),
    };
    let mut stream = input.stream(compression, position.offset).map_err(failed)?;
    let mut position = position;
    if align {
        // A row that began before the split is its neighbour's: go on behind the first newline, which may be the byte
        // just before the split.
        match skip_to_newline(stream.as_mut()).map_err(failed)? {
            Some(passed) => position.offset += passed,
            None => return Ok(Opened::Empty),
        }
        stream = Input::open(&shared.location, url, handle)?.stream(compression, position.offset).map_err(failed)?;
    }
    Ok(Opened::Ready { stream, decoder: Box::new(decoder), position })
}

/// A watched file must be the one that was read before, and not have lost anything.
fn check_unchanged(url: &str, at: &Position, now: &str, size: u64) -> Result<()> {
    let advice = "a watched file may only grow; give new data a new name (or drop and create the stream again)";
    if at.file.as_deref().is_some_and(|before| before != now) {
        return Err(fault(url, format!("was replaced by another file while it was watched; {advice}")));
    }
    if size < at.offset {
        return Err(fault(url, format!("was cut to {size} bytes after {} bytes had been read; {advice}", at.offset)));
    }
    Ok(())
}

enum Head {
    /// The header line, if one is wanted, and where rows begin.
    Found {
        line: Option<Vec<u8>>,
        end: u64,
        lines: u64,
    },
    Empty,
    TooLong,
}

/// Look at a file's beginning: byte-order mark and header.
fn read_head(shared: &Shared, stream: &mut dyn Read, named: bool) -> std::io::Result<Head> {
    let mut text = Vec::new();
    loop {
        let wanted = if named { 64 << 10 } else { BYTE_ORDER_MARK.len() as u64 };
        let count = stream.take(wanted).read_to_end(&mut text)?;
        if !named {
            let mark = if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() as u64 } else { 0 };
            return Ok(Head::Found { line: None, end: mark, lines: 0 });
        }
        if text.is_empty() {
            return Ok(Head::Empty);
        }
        let Format::Csv(options) = &shared.options.format else { return Ok(Head::Empty) };
        // A watched file's header may still be being written.
        let last = (count as u64) < wanted && shared.options.watch.is_none();
        if let Some((line, next)) = split_header(&text, options, last) {
            let lines = memchr::memchr_iter(b'\n', &text[..next]).count() as u64;
            return Ok(Head::Found { line: Some(line.to_vec()), end: next as u64, lines });
        }
        if (count as u64) < wanted {
            return Ok(Head::Empty);
        }
        if text.len() > shared.options.max_row_bytes {
            return Ok(Head::TooLong);
        }
    }
}

/// Bytes up to and with the next newline.
fn skip_to_newline(stream: &mut dyn Read) -> std::io::Result<Option<u64>> {
    let mut passed = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if let Some(at) = memchr::memchr(b'\n', &buffer[..count]) {
            return Ok(Some(passed + at as u64 + 1));
        }
        passed += count as u64;
    }
}

/// Whether a local file has something behind a saved position; used to leave quiet files alone.
pub(crate) fn has_grown(url: &str, position: &serde_json::Value) -> bool {
    let offset = position.get("offset").and_then(serde_json::Value::as_u64);
    match (std::fs::metadata(local_path(url)), offset) {
        (Ok(metadata), Some(offset)) => {
            let same =
                position.get("file").and_then(serde_json::Value::as_str).is_none_or(|file| file == identity(&metadata));
            metadata.len() != offset || !same
        }
        // Gone, and read before: opening would only warn again.
        (Err(error), Some(_)) if error.kind() == std::io::ErrorKind::NotFound => false,
        // Let opening tell what is wrong.
        _ => true,
    }
}
