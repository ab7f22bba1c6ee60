//! `weir nexmark`: the benchmark's events as files.

use weir_connectors::nexmark::{NexmarkConfig, write_files};

use super::{Failure, NexmarkArgs};

pub(super) fn run(args: &NexmarkArgs) -> Result<(), Failure> {
    let written = write_files(&args.out, args.events, u64::from(args.parts), NexmarkConfig::default())
        .map_err(|e| Failure::Message(format!("cannot write events to {}: {e}", args.out.display())))?;
    println!(
        "{} persons, {} auctions, {} bids in {}",
        written.persons,
        written.auctions,
        written.bids,
        args.out.display()
    );
    Ok(())
}
