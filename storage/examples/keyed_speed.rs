//! How fast a keyed state is on this machine: batches of lookups, changes and scans, and what a checkpoint costs.
//!
//! ```sh
//! cargo run --release -p weir-storage --example keyed_speed -- [KEYS] [VALUE_BYTES] [DIRECTORY]
//! ```
//!
//! KEYS (default 1000000) keys of two columns (TEXT, BIGINT) with VALUE_BYTES (default 64) are loaded; then each of ten
//! epochs looks 100,000 random ones of them up, changes them, and takes a snapshot, as an aggregation does. The directory
//! (default: the system's one for temporary files) should be on the disk that the server would use. One line a kind of
//! access is printed; snapshots are flushed and hard-linked, and not uploaded.

use std::{
    error::Error,
    ops::ControlFlow,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use arrow::{
    array::{ArrayRef, Int64Array, StringArray},
    datatypes::DataType,
};
use weir_storage::{EncodedKeys, KeyEncoder, KeyGroupRange, KeyedState, StateResources, TableId};

const GROUPS: u16 = 128;
const BATCH: usize = 100_000;
const EPOCHS: u64 = 10;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let value_bytes: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let dir = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from).join("weir-keyed-speed");

    let resources = StateResources::new(256 << 20);
    let state = KeyedState::create(&dir.join("state"), &resources, KeyGroupRange { start: 0, end: GROUPS })?;
    let table = state.table(TableId(0));
    let encoder = KeyEncoder::new(&[DataType::Utf8, DataType::Int64], GROUPS)?;

    let mut load = Meter::new("load (write, new keys)");
    for first in (0..keys).step_by(BATCH) {
        let encoded = encode(&encoder, first..keys.min(first + BATCH as u64))?;
        load.measure(encoded.len(), || write(&table, &encoded, value_bytes))?;
    }
    let meters =
        ["encode keys", "get_many", "visit_many", "write", "snapshot (keys changed)", "view and scan of one key group"];
    let [mut encodes, mut gets, mut visits, mut writes, mut snapshots, mut scans] = meters.map(Meter::new);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for epoch in 0..EPOCHS {
        let chosen: Vec<u64> = (0..BATCH).map(|_| next(&mut random) % keys).collect();
        let encoded = encodes.measure(BATCH, || encode(&encoder, chosen.iter().copied()))?;
        let lookups = encoded.with_groups();
        let found = gets.measure(BATCH, || Ok(table.get_many(&lookups)?))?;
        if found.iter().any(Option::is_none) {
            return Err("a key that was written is not found".into());
        }
        visits.measure(BATCH, || {
            let mut bytes = 0;
            table.visit_many(&lookups, &mut |_, value| bytes += value.map_or(0, <[u8]>::len))?;
            Ok(bytes)
        })?;
        writes.measure(BATCH, || write(&table, &encoded, value_bytes))?;
        let group = encoded.group(epoch as usize);
        let mut rows = 0;
        let started = Instant::now();
        table.snapshot()?.scan(group, b"", None, &mut |_, _| {
            rows += 1;
            ControlFlow::Continue(())
        })?;
        scans.add(rows, started.elapsed());
        snapshots.measure(BATCH, || {
            drop(state.snapshot(&dir.join("staging"))?);
            Ok(())
        })?;
    }
    for meter in [load, encodes, gets, visits, writes, scans, snapshots] {
        meter.print();
    }
    println!("{:32} {:>10.1} MB", "state", state.bytes() as f64 / 1e6);
    println!("{:32} {:>10.1} MB", "cache and unwritten changes", resources.used_bytes() as f64 / 1e6);
    Ok(())
}

fn encode(encoder: &KeyEncoder, keys: impl Iterator<Item = u64> + Clone) -> Result<EncodedKeys> {
    let texts: StringArray = keys.clone().map(|key| Some(format!("customer-{:06}", key % 1000))).collect();
    let numbers: Int64Array = keys.map(|key| Some(key as i64)).collect();
    Ok(encoder.encode(&[Arc::new(texts) as ArrayRef, Arc::new(numbers)])?)
}

fn write(table: &weir_storage::StateTable, keys: &EncodedKeys, value_bytes: usize) -> Result<()> {
    let mut value = vec![0x5a; value_bytes];
    value.iter_mut().step_by(2).enumerate().for_each(|(index, byte)| *byte = (index * 37) as u8);
    let keys = keys.with_groups();
    let changes: Vec<_> = keys.iter().map(|(group, key)| (*group, *key, Some(&value[..]))).collect();
    Ok(table.write(&changes)?)
}

/// splitmix64: the same keys at every run.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

struct Meter {
    name: &'static str,
    operations: usize,
    calls: u32,
    total: Duration,
    worst: Duration,
}

impl Meter {
    fn new(name: &'static str) -> Self {
        Self { name, operations: 0, calls: 0, total: Duration::ZERO, worst: Duration::ZERO }
    }

    fn measure<T>(&mut self, operations: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let result = work()?;
        self.add(operations, started.elapsed());
        Ok(result)
    }

    fn add(&mut self, operations: usize, took: Duration) {
        self.operations += operations;
        self.calls += 1;
        self.total += took;
        self.worst = self.worst.max(took);
    }

    fn print(&self) {
        let rate = self.operations as f64 / self.total.as_secs_f64();
        let mean = self.total.as_secs_f64() * 1e3 / f64::from(self.calls.max(1));
        let worst = self.worst.as_secs_f64() * 1e3;
        println!("{:32} {rate:>10.0} /s   {mean:>7.1} ms a batch, at worst {worst:.1} ms", self.name);
    }
}
