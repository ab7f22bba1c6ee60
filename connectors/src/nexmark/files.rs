//! The same events as JSON-lines files, written fast: for benchmarks that read files.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::generator::{Column, ColumnType, Kind, NexmarkConfig, ROUND, decimal};

/// What was written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Number of persons.
    pub persons: u64,
    /// Number of auctions.
    pub auctions: u64,
    /// Number of bids.
    pub bids: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Write the first `events` events into `dir`: `parts` files of each type (`bids-0.jsonl`, `persons-0.jsonl`,
/// `auctions-0.jsonl`, …), rounds of 50 events dealt out in turn. Each part has its own thread.
pub fn write_files(dir: &Path, events: u64, parts: u64, config: NexmarkConfig) -> io::Result<Written> {
    std::fs::create_dir_all(dir)?;
    let parts = parts.max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..parts).map(|part| scope.spawn(move || write_part(dir, events, part, parts, &config))).collect();
        let mut total = Written::default();
        for thread in threads {
            let part = thread.join().map_err(|_| io::Error::other("a writing thread panicked"))??;
            total.persons += part.persons;
            total.auctions += part.auctions;
            total.bids += part.bids;
            total.bytes += part.bytes;
        }
        Ok(total)
    })
}

struct Output {
    kind: Kind,
    file: File,
    buffer: Vec<u8>,
    /// For each column, what stands in front of its value.
    keys: Vec<(Column, Vec<u8>)>,
    rows: u64,
    bytes: u64,
}

impl Output {
    fn create(dir: &Path, kind: Kind, part: u64) -> io::Result<Self> {
        let file = File::create(dir.join(format!("{}s-{part}.jsonl", kind.name())))?;
        let keys = kind.columns().iter().enumerate().map(|(index, column)| {
            let quote = if column.column_type() == ColumnType::Number { "" } else { "\"" };
            let opening = if index == 0 { "{" } else { "," };
            (*column, format!("{opening}\"{}\":{quote}", column.name()).into_bytes())
        });
        Ok(Self { kind, file, buffer: Vec::with_capacity(1 << 20), keys: keys.collect(), rows: 0, bytes: 0 })
    }

    fn event(&mut self, config: &NexmarkConfig, clock: &mut Clock, event: u64) -> io::Result<()> {
        let out = &mut self.buffer;
        for (column, key) in &self.keys {
            out.extend_from_slice(key);
            match column.column_type() {
                ColumnType::Number => decimal(config.number(self.kind, *column, event) as u64, out),
                ColumnType::Time => {
                    clock.write(config.timestamp(*column, event), out);
                    out.push(b'"');
                }
                ColumnType::Text => {
                    config.text(self.kind, *column, event, out);
                    out.push(b'"');
                }
            }
        }
        out.extend_from_slice(b"}\n");
        self.rows += 1;
        if self.buffer.len() >= (1 << 20) - 4096 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Writes `YYYY-MM-DD HH:MM:SS.mmm`, keeping the text of the last second.
#[derive(Default)]
struct Clock {
    second: Option<i64>,
    text: String,
}

impl Clock {
    fn write(&mut self, micros: i64, out: &mut Vec<u8>) {
        let second = micros.div_euclid(1_000_000);
        if self.second != Some(second) {
            self.text = chrono::DateTime::from_timestamp(second, 0)
                .map(|time| time.format("%Y-%m-%d %H:%M:%S.").to_string())
                .unwrap_or_default();
            self.second = Some(second);
        }
        out.extend_from_slice(self.text.as_bytes());
        let millis = micros.rem_euclid(1_000_000) / 1000;
        for divisor in [100, 10, 1] {
            out.push(b'0' + (millis / divisor % 10) as u8);
        }
    }
}

fn write_part(dir: &Path, events: u64, part: u64, parts: u64, config: &NexmarkConfig) -> io::Result<Written> {
    let mut outputs = [Kind::Person, Kind::Auction, Kind::Bid].map(|kind| Output::create(dir, kind, part));
    let mut clock = Clock::default();
    for round in (part..events.div_ceil(ROUND)).step_by(parts as usize) {
        for output in &mut outputs {
            let output = output.as_mut().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
            for event in output.kind.of_round().map(|offset| round * ROUND + offset).filter(|event| *event < events) {
                output.event(config, &mut clock, event)?;
            }
        }
    }
    let mut written = Written::default();
    for output in outputs {
        let mut output = output?;
        output.flush()?;
        written.bytes += output.bytes;
        match output.kind {
            Kind::Person => written.persons = output.rows,
            Kind::Auction => written.auctions = output.rows,
            Kind::Bid => written.bids = output.rows,
        }
    }
    Ok(written)
}
