//! Writes Nexmark events as JSON-lines files.
//!
//! `cargo run --release -p weir-connectors --example nexmark_files DIRECTORY EVENTS [PARTS]`

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use weir_connectors::nexmark::{NexmarkConfig, write_files};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: nexmark_files DIRECTORY EVENTS [PARTS]";
    let directory = PathBuf::from(arguments.next().ok_or(usage)?);
    let events: u64 = arguments.next().ok_or(usage)?.parse()?;
    let parts: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let begun = Instant::now();
    let written = write_files(&directory, events, parts, NexmarkConfig::default())?;
    println!(
        "{} persons, {} auctions, {} bids; {} bytes in {:.2?}",
        written.persons,
        written.auctions,
        written.bids,
        written.bytes,
        begun.elapsed()
    );
    Ok(())
}
