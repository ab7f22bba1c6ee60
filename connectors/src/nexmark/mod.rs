//! The `nexmark` source: an auction site's persons, auctions and bids, after the benchmark of the same name
//! (Tucker et al.) with the proportions and hot keys of the generator in Apache Beam and Flink.
//!
//! Of 50 events one is a person, three are auctions and 46 are bids. Every column of every event is a pure function of
//! the seed and the event's number, so that any part of the stream can be made anywhere, in any order.

mod files;
mod generator;
mod source;

use weir_runtime::Result;
use weir_runtime::graph::ConnectorOptions;

pub use self::files::{Written, write_files};
pub use self::generator::{Kind, NexmarkConfig};
pub(crate) use self::source::{open, validate};

use crate::options::{OptionSpec, Reader, bad_option, option};

/// The connector's name.
pub(crate) const NAME: &str = "nexmark";

/// Options of the source.
pub(crate) const OPTIONS: &[OptionSpec] = &[
    option("type", "", "person, auction or bid: which events; required"),
    option("events", "", "number of events in all, of the three types together; without it there is no end"),
    option(
        "events_per_second",
        "",
        "events of the three types together made in a second; without it as fast as they are read",
    ),
    option("event_rate", "10000", "events of the three types together in a second of event time"),
    option("start_time", "2026-01-01 00:00:00", "event time of the first event"),
    option("seed", "0", "another seed makes other events"),
];

/// What was asked for, understood.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) kind: Kind,
    pub(crate) config: NexmarkConfig,
    pub(crate) events: Option<u64>,
    pub(crate) events_per_second: Option<f64>,
}

impl Options {
    pub(crate) fn parse(options: &ConnectorOptions) -> Result<Self> {
        let reader = Reader::new(NAME, options);
        let kind = reader.required("type", "bid")?;
        let kind = Kind::parse(kind).ok_or_else(|| bad_option("type", kind, "give 'person', 'auction' or 'bid'"))?;
        let positive = |name: &str| -> Result<Option<f64>> {
            match reader.number(name)? {
                Some(number) if number <= 0.0 => Err(bad_option(name, &number.to_string(), "give a number above zero")),
                number => Ok(number),
            }
        };
        let events_per_second = positive("events_per_second")?;
        let default = NexmarkConfig::default();
        let start = match reader.text("start_time") {
            None => default.start_micros,
            Some(text) => crate::format::parse_timestamp(text)
                .ok_or_else(|| bad_option("start_time", text, "give a timestamp such as '2026-01-01 00:00:00'"))?,
        };
        let config = NexmarkConfig {
            seed: reader.count("seed")?.unwrap_or(default.seed),
            event_rate: positive("event_rate")?.or(events_per_second).unwrap_or(default.event_rate),
            start_micros: start,
        };
        Ok(Self { kind, config, events: reader.count("events")?, events_per_second })
    }
}
