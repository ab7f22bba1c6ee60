//! The events as pure functions of their numbers.

use crate::counted::Random;

/// Events of one round: one person, three auctions, 46 bids, in this order.
pub(crate) const ROUND: u64 = 50;
const PERSONS: u64 = 1;
const AUCTIONS: u64 = 3;

const FIRST_PERSON_ID: u64 = 1000;
const FIRST_AUCTION_ID: u64 = 1000;
const FIRST_CATEGORY_ID: u64 = 10;
const CATEGORIES: u64 = 5;
/// Persons and auctions that later events refer to.
const ACTIVE_PEOPLE: u64 = 1000;
const IN_FLIGHT_AUCTIONS: u64 = 100;
/// How far ahead of the latest id an event may refer.
const PERSON_ID_LEAD: u64 = 10;
const AUCTION_ID_LEAD: u64 = 10;
/// One id in so many is hot.
const HOT_STEP: u64 = 100;
/// All but one in so many refer to the hot id.
const HOT_AUCTIONS: u64 = 2;
const HOT_BIDDERS: u64 = 4;
const HOT_SELLERS: u64 = 4;
const HOT_CHANNELS: u64 = 2;
const CHANNELS: u64 = 10_000;
const PERSON_BYTES: usize = 200;
const AUCTION_BYTES: usize = 500;
const BID_BYTES: usize = 100;

const FIRST_NAMES: [&str; 11] =
    ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"];
const LAST_NAMES: [&str; 9] = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"];
const CITIES: [&str; 10] =
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"];
const STATES: [&str; 6] = ["AZ", "CA", "ID", "OR", "WA", "WY"];
const HOT_CHANNEL_NAMES: [&str; 4] = ["Google", "Facebook", "Baidu", "Apple"];

/// The three types of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A person registers.
    Person,
    /// A person opens an auction.
    Auction,
    /// A person bids in an auction.
    Bid,
}

impl Kind {
    /// The type called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "person" | "persons" => Some(Self::Person),
            "auction" | "auctions" => Some(Self::Auction),
            "bid" | "bids" => Some(Self::Bid),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Auction => "auction",
            Self::Bid => "bid",
        }
    }

    /// Which events of a round are of this type.
    pub(crate) fn of_round(self) -> std::ops::Range<u64> {
        match self {
            Self::Person => 0..PERSONS,
            Self::Auction => PERSONS..PERSONS + AUCTIONS,
            Self::Bid => PERSONS + AUCTIONS..ROUND,
        }
    }

    /// The type's columns in order.
    pub(crate) fn columns(self) -> &'static [Column] {
        match self {
            Self::Person => &[
                Column::Id,
                Column::Name,
                Column::EmailAddress,
                Column::CreditCard,
                Column::City,
                Column::State,
                Column::DateTime,
                Column::Extra,
            ],
            Self::Auction => &[
                Column::Id,
                Column::ItemName,
                Column::Description,
                Column::InitialBid,
                Column::Reserve,
                Column::DateTime,
                Column::Expires,
                Column::Seller,
                Column::Category,
                Column::Extra,
            ],
            Self::Bid => &[
                Column::Auction,
                Column::Bidder,
                Column::Price,
                Column::Channel,
                Column::Url,
                Column::DateTime,
                Column::Extra,
            ],
        }
    }
}

/// The columns of all types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Column {
    Id,
    Name,
    EmailAddress,
    CreditCard,
    City,
    State,
    DateTime,
    Extra,
    ItemName,
    Description,
    InitialBid,
    Reserve,
    Expires,
    Seller,
    Category,
    Auction,
    Bidder,
    Price,
    Channel,
    Url,
}

/// What kind of value a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Number,
    Text,
    Time,
}

impl Column {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Name => "name",
            Self::EmailAddress => "email_address",
            Self::CreditCard => "credit_card",
            Self::City => "city",
            Self::State => "state",
            Self::DateTime => "date_time",
            Self::Extra => "extra",
            Self::ItemName => "item_name",
            Self::Description => "description",
            Self::InitialBid => "initial_bid",
            Self::Reserve => "reserve",
            Self::Expires => "expires",
            Self::Seller => "seller",
            Self::Category => "category",
            Self::Auction => "auction",
            Self::Bidder => "bidder",
            Self::Price => "price",
            Self::Channel => "channel",
            Self::Url => "url",
        }
    }

    /// Its type.
    pub(crate) fn column_type(self) -> ColumnType {
        match self {
            Self::Id
            | Self::InitialBid
            | Self::Reserve
            | Self::Seller
            | Self::Category
            | Self::Auction
            | Self::Bidder
            | Self::Price => ColumnType::Number,
            Self::DateTime | Self::Expires => ColumnType::Time,
            _ => ColumnType::Text,
        }
    }
}

/// What the events follow from, besides their numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NexmarkConfig {
    /// Another seed makes other events.
    pub seed: u64,
    /// Events in a second of event time.
    pub event_rate: f64,
    /// Event time of event 0, microseconds since the Unix epoch.
    pub start_micros: i64,
}

impl Default for NexmarkConfig {
    fn default() -> Self {
        // 2026-01-01 00:00:00 UTC
        Self { seed: 0, event_rate: 10_000.0, start_micros: 1_767_225_600_000_000 }
    }
}

impl NexmarkConfig {
    fn random(&self, column: Column, event: u64) -> Random {
        Random::new(self.seed, column as u64 + 1, event)
    }

    /// Event time of an event, in whole milliseconds as Nexmark has it, in microseconds.
    pub(crate) fn time(&self, event: u64) -> i64 {
        let millis = (event as f64 * 1000.0 / self.event_rate) as i64;
        self.start_micros + millis * 1000
    }

    /// A number column of an event of `kind`.
    pub(crate) fn number(&self, kind: Kind, column: Column, event: u64) -> i64 {
        let mut random = self.random(column, event);
        let value = match (kind, column) {
            (Kind::Person, _) => FIRST_PERSON_ID + last_person(event),
            (_, Column::Id) => FIRST_AUCTION_ID + last_auction(event),
            (_, Column::InitialBid | Column::Price) => price(&mut random),
            (_, Column::Reserve) => self.number(kind, Column::InitialBid, event) as u64 + price(&mut random),
            (_, Column::Category) => FIRST_CATEGORY_ID + random.below(CATEGORIES),
            (_, Column::Seller) => {
                let hot = random.below(HOT_SELLERS) > 0;
                FIRST_PERSON_ID
                    + if hot { last_person(event) / HOT_STEP * HOT_STEP } else { person(event, &mut random) }
            }
            (_, Column::Bidder) => {
                let hot = random.below(HOT_BIDDERS) > 0;
                // Not the hot seller.
                FIRST_PERSON_ID
                    + if hot { last_person(event) / HOT_STEP * HOT_STEP + 1 } else { person(event, &mut random) }
            }
            _ => {
                let hot = random.below(HOT_AUCTIONS) > 0;
                FIRST_AUCTION_ID
                    + if hot { last_auction(event) / HOT_STEP * HOT_STEP } else { auction(event, &mut random) }
            }
        };
        value as i64
    }

    /// A time column of an event, microseconds since the Unix epoch.
    pub(crate) fn timestamp(&self, column: Column, event: u64) -> i64 {
        let time = self.time(event);
        if column != Column::Expires {
            return time;
        }
        // Long enough that about IN_FLIGHT_AUCTIONS are open at any time.
        let horizon = (self.time(event + IN_FLIGHT_AUCTIONS * ROUND / AUCTIONS) - time) / 1000;
        let length = 1 + self.random(column, event).below((horizon * 2).max(1) as u64) as i64;
        time + length * 1000
    }

    /// Append a text column of an event of `kind`.
    pub(crate) fn text(&self, kind: Kind, column: Column, event: u64, out: &mut Vec<u8>) {
        let mut random = self.random(column, event);
        let mut pick = |words: &[&str], out: &mut Vec<u8>| {
            out.extend_from_slice(words[random.below(words.len() as u64) as usize].as_bytes());
        };
        match column {
            Column::Name => {
                pick(&FIRST_NAMES, out);
                out.push(b' ');
                pick(&LAST_NAMES, out);
            }
            Column::City => pick(&CITIES, out),
            Column::State => pick(&STATES, out),
            Column::EmailAddress => {
                let (user, host) = (3 + random.below(5) as usize, 3 + random.below(3) as usize);
                random.letters(user, out);
                out.push(b'@');
                random.letters(host, out);
                out.extend_from_slice(b".com");
            }
            Column::CreditCard => {
                for group in 0..4 {
                    if group > 0 {
                        out.push(b' ');
                    }
                    let number = random.below(10_000);
                    for divisor in [1000, 100, 10, 1] {
                        out.push(b'0' + (number / divisor % 10) as u8);
                    }
                }
            }
            Column::ItemName => {
                let length = 3 + random.below(18) as usize;
                random.letters(length, out);
            }
            Column::Description => {
                let length = 3 + random.below(98) as usize;
                random.letters(length, out);
            }
            Column::Channel => match self.channel(event) {
                Channel::Hot(index) => out.extend_from_slice(HOT_CHANNEL_NAMES[index].as_bytes()),
                Channel::Other(number) => {
                    out.extend_from_slice(b"channel-");
                    decimal(number, out);
                }
            },
            Column::Url => self.url(event, out),
            _ => {
                // Fill the event up to about its size.
                let (size, other) = match kind {
                    Kind::Person => (PERSON_BYTES, 80),
                    Kind::Auction => (AUCTION_BYTES, 120),
                    Kind::Bid => (BID_BYTES, 32),
                };
                let mean = size - other;
                let spread = mean / 5;
                let length = mean - spread + random.below(2 * spread as u64) as usize;
                random.letters(length, out);
            }
        }
    }

    fn channel(&self, event: u64) -> Channel {
        let mut random = self.random(Column::Channel, event);
        if random.below(HOT_CHANNELS) > 0 {
            Channel::Hot(random.below(HOT_CHANNEL_NAMES.len() as u64) as usize)
        } else {
            Channel::Other(random.below(CHANNELS))
        }
    }

    /// A channel's URL is always the same.
    fn url(&self, event: u64, out: &mut Vec<u8>) {
        let series = match self.channel(event) {
            Channel::Hot(index) => CHANNELS + index as u64,
            Channel::Other(number) => number,
        };
        let mut random = Random::new(self.seed, Column::Url as u64 + 1, series);
        out.extend_from_slice(b"https://www.nexmark.com/");
        for part in 0..3 {
            if part > 0 {
                out.push(b'/');
            }
            random.letters(5, out);
        }
        out.extend_from_slice(b"/item.htm?query=1");
        if series < CHANNELS && random.below(10) > 0 {
            out.extend_from_slice(b"&channel_id=");
            // As Flink has it: the bits of the number from back to front.
            decimal(u64::from((series as u32).reverse_bits() & 0x7FFF_FFFF), out);
        }
    }
}

enum Channel {
    Hot(usize),
    Other(u64),
}

/// Append a number's decimal digits.
pub(crate) fn decimal(number: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Number of the latest person at an event.
fn last_person(event: u64) -> u64 {
    // A round begins with its persons.
    event / ROUND * PERSONS + PERSONS - 1
}

/// Number of the latest auction at an event.
fn last_auction(event: u64) -> u64 {
    let (round, offset) = (event / ROUND, event % ROUND);
    if offset < PERSONS {
        // The last one of the round before; before the first auction, the first.
        return (round * AUCTIONS).saturating_sub(1);
    }
    round * AUCTIONS + (offset - PERSONS).min(AUCTIONS - 1)
}

/// A person among the active ones.
fn person(event: u64, random: &mut Random) -> u64 {
    let people = last_person(event) + 1;
    let active = people.min(ACTIVE_PEOPLE);
    people - active + random.below(active + PERSON_ID_LEAD)
}

/// An auction among those in flight.
fn auction(event: u64, random: &mut Random) -> u64 {
    let last = last_auction(event);
    let first = last.saturating_sub(IN_FLIGHT_AUCTIONS);
    first + random.below(last - first + 1 + AUCTION_ID_LEAD)
}

/// A price between 1.00 and 1,000,000.00 in cents, evenly spread by magnitude.
fn price(random: &mut Random) -> u64 {
    (10f64.powf(random.unit() * 6.0) * 100.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_refer_to_what_is_there() {
        let config = NexmarkConfig::default();
        let (mut hot, mut bids) = (0, 0);
        for round in 0..2000u64 {
            for offset in Kind::Bid.of_round() {
                let event = round * ROUND + offset;
                let auction = config.number(Kind::Bid, Column::Auction, event) as u64;
                assert!(auction < FIRST_AUCTION_ID + (round + 1) * AUCTIONS + AUCTION_ID_LEAD);
                let bidder = config.number(Kind::Bid, Column::Bidder, event) as u64;
                assert!(bidder <= FIRST_PERSON_ID + round + PERSON_ID_LEAD + 1);
                bids += 1;
                hot += u64::from(auction == FIRST_AUCTION_ID + last_auction(event) / HOT_STEP * HOT_STEP);
            }
        }
        assert!(hot * 2 > bids && hot * 10 < bids * 6, "{hot} of {bids}");
        assert_eq!(config.number(Kind::Person, Column::Id, 100), 1002);
        assert_eq!(config.number(Kind::Auction, Column::Id, 51), 1003);
        assert_eq!(config.number(Kind::Auction, Column::Id, 3), 1002);
    }

    #[test]
    fn a_column_is_the_same_whenever_it_is_made() {
        let config = NexmarkConfig::default();
        let text = |column| {
            let mut out = Vec::new();
            config.text(Kind::Bid, column, 4711, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(Column::Extra), text(Column::Extra));
        assert!(text(Column::Url).starts_with("https://www.nexmark.com/"));
        assert_eq!(config.time(20_000), config.start_micros + 2_000_000);
        let mut out = Vec::new();
        [0, 7, 10, 1234567890].iter().for_each(|number| decimal(*number, &mut out));
        assert_eq!(out, b"07101234567890");
    }
}
