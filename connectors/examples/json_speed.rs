//! How fast JSON lines are decoded: Weir's projected decoder beside Arrow's, on the same generated Nexmark bids.
//!
//! `cargo run --release -p weir-connectors --example json_speed [events]`

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use weir_connectors::Epoch;
use weir_connectors::Format;
use weir_connectors::format::RowDecoder;
use weir_connectors::nexmark::{NexmarkConfig, write_files};

const BLOCK: usize = 2 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let events: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let directory = std::env::temp_dir().join(format!("weir-json-speed-{}", std::process::id()));
    let begun = Instant::now();
    let written = write_files(&directory, events, 1, NexmarkConfig::default())?;
    println!("generated {} bids, {} bytes in all, in {:.2?}", written.bids, written.bytes, begun.elapsed());
    let text = std::fs::read(directory.join("bids-0.jsonl"))?;
    std::fs::remove_dir_all(&directory)?;
    let schema = Arc::new(Schema::new(vec![
        Field::new("auction", DataType::Int64, true),
        Field::new("bidder", DataType::Int64, true),
        Field::new("price", DataType::Int64, true),
        Field::new("channel", DataType::Utf8, true),
        Field::new("url", DataType::Utf8, true),
        Field::new("date_time", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        Field::new("extra", DataType::Utf8, true),
    ]));
    for projection in [vec![], vec![1, 5], vec![0, 1, 2, 5], vec![0, 1, 2, 3, 4, 5, 6]] {
        let projected = Arc::new(schema.project(&projection)?);
        let names: Vec<&str> = projected.fields().iter().map(|field| field.name().as_str()).collect();
        let (weir, rows) = best(|| weir(&text, &schema, &projection))?;
        let (arrow, arrow_rows) = best(|| arrow_json(&text, &projected))?;
        let rate = |seconds: f64| text.len() as f64 / 1e6 / seconds;
        println!(
            "{:48} weir {:6.0} MB/s   arrow-json {:6.0} MB/s   {rows} rows{}",
            names.join(","),
            rate(weir),
            rate(arrow),
            if rows == arrow_rows { "" } else { "  ROWS DIFFER" }
        );
    }
    Ok(())
}

/// The best of three runs.
fn best(run: impl Fn() -> Result<usize, Box<dyn Error>>) -> Result<(f64, usize), Box<dyn Error>> {
    let mut seconds = f64::MAX;
    let mut rows = 0;
    for _ in 0..3 {
        let begun = Instant::now();
        rows = run()?;
        seconds = seconds.min(begun.elapsed().as_secs_f64());
    }
    Ok((seconds, rows))
}

fn weir(text: &[u8], schema: &SchemaRef, projection: &[usize]) -> Result<usize, Box<dyn Error>> {
    let mut decoder = RowDecoder::new(&Format::Json { epoch: Epoch::Text }, schema, projection, None)?;
    let (mut position, mut rows) = (0, 0);
    while position < text.len() {
        let end = (position + BLOCK).min(text.len());
        let decoded = decoder.decode(&text[position..end], end == text.len(), 16_384)?;
        position += decoded.consumed;
        rows += decoded.batch.num_rows();
    }
    Ok(rows)
}

fn arrow_json(text: &[u8], schema: &SchemaRef) -> Result<usize, Box<dyn Error>> {
    let mut decoder = arrow::json::ReaderBuilder::new(Arc::clone(schema)).with_batch_size(8192).build_decoder()?;
    let (mut position, mut rows) = (0, 0);
    loop {
        let read = decoder.decode(&text[position..])?;
        position += read;
        match decoder.flush()? {
            Some(batch) => rows += batch.num_rows(),
            None => return Ok(rows),
        }
    }
}
