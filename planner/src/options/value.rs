//! Values of options: Flink's units, read and written.

use std::time::Duration;

use super::{Kind, OptionSpec};
use crate::error::{ErrorKind, Result, SqlError, nearest};

/// Milliseconds in a unit of time. Finer units have their own arm, as they are not whole milliseconds.
const TIME_UNITS: &[(&[&str], u64)] = &[
    (&["ns", "nano", "nanosecond", "nanos", "nanoseconds"], 1),
    (&["us", "µs", "micro", "microsecond", "micros", "microseconds"], 1_000),
    (&["", "ms", "milli", "millisecond", "millis", "milliseconds"], 1_000_000),
    (&["s", "sec", "second", "secs", "seconds"], 1_000_000_000),
    (&["m", "min", "minute", "mins", "minutes"], 60_000_000_000),
    (&["h", "hour", "hours"], 3_600_000_000_000),
    (&["d", "day", "days"], 86_400_000_000_000),
];

const BYTE_UNITS: &[(&[&str], u64)] = &[
    (&["", "b", "byte", "bytes"], 1),
    (&["k", "kb", "kib", "kibibytes"], 1 << 10),
    (&["m", "mb", "mib", "mebibytes"], 1 << 20),
    (&["g", "gb", "gib", "gibibytes"], 1 << 30),
    (&["t", "tb", "tib", "tebibytes"], 1 << 40),
];

/// The value in its usual spelling.
pub(super) fn canonical(spec: &OptionSpec, given: &str) -> Result<String> {
    let wrong = |expected: &str| invalid(spec.name, given, expected);
    match spec.kind {
        Kind::Duration => {
            parse_duration(given).map(format_duration).map_err(|_| wrong("a duration such as '500 ms', '10s' or '2m'"))
        }
        Kind::Bytes => parse_bytes(given).map(format_bytes).map_err(|_| wrong("a size such as '20kb' or '256mb'")),
        Kind::Int { min, max } => match given.parse::<i64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
            _ if max == i64::MAX => Err(wrong(&format!("a whole number from {min}"))),
            _ => Err(wrong(&format!("a whole number from {min} to {max}"))),
        },
        Kind::Number { min } => match given.parse::<f64>() {
            Ok(number) if number >= min && number.is_finite() => Ok(number.to_string()),
            _ => Err(wrong(&format!("a number from {min}"))),
        },
        Kind::Bool => match given.to_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => Ok("true".into()),
            "false" | "off" | "no" | "0" => Ok("false".into()),
            _ => Err(wrong("true or false")),
        },
        Kind::Enum(values) => {
            let same = |v: &&&str| v.eq_ignore_ascii_case(given) || v.replace('_', "-").eq_ignore_ascii_case(given);
            values.iter().find(same).map(|v| (*v).to_owned()).ok_or_else(|| {
                let error = wrong(&format!("one of {}", values.join(", ")));
                error.maybe_hint(nearest(given, values.iter().copied()).map(|near| format!("did you mean {near}?")))
            })
        }
        Kind::Retention => parse_retention(given).map(|retention| retention.to_string()),
        Kind::Text => Ok(given.to_owned()),
    }
}

/// How much of its history a stream keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// All of it.
    Forever,
    /// What was written within this time.
    Age(Duration),
    /// The newest rows, up to so many bytes.
    Bytes(u64),
}

impl std::fmt::Display for Retention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Forever => f.write_str("forever"),
            Self::Age(age) => f.write_str(&format_duration(*age)),
            Self::Bytes(bytes) => f.write_str(&format_bytes(*bytes)),
        }
    }
}

/// Reads `forever`, `7 d`, `10 gb`. A number alone is refused: nobody could tell whether it is time or space.
pub fn parse_retention(text: &str) -> Result<Retention> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("forever") {
        return Ok(Retention::Forever);
    }
    let wrong = || invalid(super::RETENTION, text, "'forever', a duration such as '7 d' or a size such as '10 gb'");
    if !text.contains(char::is_alphabetic) {
        return Err(wrong());
    }
    let age = parse_duration(text).map(Retention::Age);
    age.or_else(|_| parse_bytes(text).map(Retention::Bytes)).map_err(|_| wrong())
}

pub(super) fn invalid(name: &str, given: &str, expected: &str) -> SqlError {
    SqlError::new(ErrorKind::INVALID_VALUE, format!("{name} = '{given}' is not {expected}"))
}

/// Reads `10s`, `500 ms`, `2 min`; a number alone is milliseconds.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let nanos = with_unit(text, TIME_UNITS)
        .ok_or_else(|| invalid("duration", text, "a duration such as '500 ms', '10s' or '2m'"))?;
    Ok(Duration::from_nanos(nanos))
}

/// Reads `256mb`, `20 kb`; a number alone is bytes.
pub fn parse_bytes(text: &str) -> Result<u64> {
    with_unit(text, BYTE_UNITS).ok_or_else(|| invalid("size", text, "a size such as '20kb' or '256mb'"))
}

fn with_unit(text: &str, units: &[(&[&str], u64)]) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (text[..split].parse::<u64>().ok()?, text[split..].trim().to_lowercase());
    let (_, factor) = units.iter().find(|(names, _)| names.contains(&unit.as_str()))?;
    number.checked_mul(*factor)
}

/// As [`parse_duration`] reads it, in the largest unit that leaves no fraction.
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units = [("d", 86_400_000_000_000), ("h", 3_600_000_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000)];
    if nanos > 0
        && let Some((name, factor)) = units.into_iter().find(|(_, factor)| nanos.is_multiple_of(*factor))
    {
        return format!("{} {name}", nanos / factor);
    }
    if nanos.is_multiple_of(1_000_000) { format!("{} ms", nanos / 1_000_000) } else { format!("{nanos} ns") }
}

/// As [`parse_bytes`] reads it, in the largest unit that leaves no fraction.
pub fn format_bytes(bytes: u64) -> String {
    let units = [("tb", 1 << 40), ("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)];
    match units.into_iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor)) {
        Some((name, factor)) => format!("{} {name}", bytes / factor),
        None => format!("{bytes} b"),
    }
}
