//! DataFusion alone, in batch, over the benchmark's files: the mark that Weir's speed is held against.
//!
//! `datafusion-batch DIRECTORY QUERY.sql` reads every `*.jsonl` file as table `bid` and counts the rows of the answer.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(query)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: datafusion-batch DIRECTORY QUERY.sql");
    };
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let number = |name: &str| Field::new(name, DataType::Int64, true);
    let schema = Arc::new(Schema::new(vec![
        number("auction"),
        number("bidder"),
        number("price"),
        text("channel"),
        text("url"),
        Field::new("date_time", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        text("extra"),
    ]));
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    let options = ListingOptions::new(Arc::new(JsonFormat::default())).with_file_extension(".jsonl");
    let url = ListingTableUrl::parse(format!("{directory}/"))?;
    let config = ListingTableConfig::new(url).with_listing_options(options).with_schema(schema);
    context.register_table("bid", Arc::new(ListingTable::try_new(config)?))?;
    let frame = context.sql(&std::fs::read_to_string(query)?).await?;
    let mut batches = frame.execute_stream().await?;
    let mut rows = 0;
    while let Some(batch) = batches.next().await {
        rows += batch?.num_rows();
    }
    println!("{rows} rows");
    Ok(())
}
