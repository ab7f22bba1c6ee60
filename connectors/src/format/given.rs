//! A field's text as a value of a column's type, or what is wrong with it.

use arrow::compute::kernels::cast_utils::parse_decimal;
use arrow::datatypes::Decimal128Type;

use super::value::{self, DateCache};
use crate::bad_rows::quoted;

/// A field as text, with what is known of its type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Given<'a> {
    Null,
    Plain(&'a str),
    String(&'a str),
    Escaped(&'a str),
    Number(&'a str),
    Bool(bool),
    Nested(&'a str),
}

impl Given<'_> {
    /// As quoted in a reason.
    pub(crate) fn describe(&self) -> String {
        match self {
            Given::Null => "null".to_owned(),
            Given::Plain(text) => quoted(text.as_bytes()),
            Given::String(text) | Given::Escaped(text) => format!("the string {}", quoted(text.as_bytes())),
            Given::Number(text) => format!("the value {}", quoted(text.as_bytes())),
            Given::Bool(value) => value.to_string(),
            Given::Nested(text) if text.starts_with('[') => format!("the array {}", quoted(text.as_bytes())),
            Given::Nested(text) => format!("the object {}", quoted(text.as_bytes())),
        }
    }
}

/// How numbers stand for timestamps, if they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Epoch {
    /// They may not: timestamps are text.
    #[default]
    Text,
    /// Seconds since 1970-01-01.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
}

pub(crate) const NOT_INTEGER: &str = "is not a whole number";
pub(crate) const OUT_OF_RANGE: &str = "is out of range";
pub(crate) const NOT_NUMBER: &str = "is not a number";
pub(crate) const NOT_BOOLEAN: &str = "is not a boolean (true or false)";
pub(crate) const NOT_TEXT: &str = "is not a string";
pub(crate) const NOT_DATE: &str = "is not a date (2026-01-31)";
pub(crate) const NOT_TIME: &str = "is not a time (12:34:56.789)";
pub(crate) const NOT_TIMESTAMP: &str = "is not a timestamp (2026-01-31 12:34:56.789, or RFC 3339)";
pub(crate) const NOT_INTERVAL: &str = "is not an interval (1 day 2 hours)";
pub(crate) const NOT_HEX: &str = "is not hexadecimal bytes (\\x01af)";
pub(crate) const NOT_JSON: &str = "is not valid JSON";
pub(crate) const BAD_STRING: &str = "has an escape or control character that JSON does not allow";
pub(crate) const NOT_NULL: &str = "but the column is NOT NULL";

pub(crate) fn integer(given: Given<'_>) -> Result<i64, &'static str> {
    let text = match given {
        Given::Number(text) => text,
        Given::Plain(text) => {
            return value::integer(text.trim().as_bytes()).ok_or_else(|| {
                if text.trim().trim_start_matches(['-', '+']).bytes().all(|byte| byte.is_ascii_digit())
                    && !text.trim().is_empty()
                {
                    OUT_OF_RANGE
                } else {
                    NOT_INTEGER
                }
            });
        }
        _ => return Err(NOT_INTEGER),
    };
    let bytes = text.as_bytes();
    match value::integer(bytes) {
        // A zero in front, a plus sign: not JSON.
        Some(value) if !matches!(bytes, [b'0', _, ..] | [b'-', b'0', _, ..] | [b'+', ..]) => Ok(value),
        _ if !value::is_json_number(bytes) => Err(NOT_INTEGER),
        _ => match value::integral(bytes) {
            Some(value) => Ok(value),
            None if value::float(bytes).is_some_and(|value| value.fract() == 0.0) => Err(OUT_OF_RANGE),
            None => Err(NOT_INTEGER),
        },
    }
}

pub(crate) fn float(given: Given<'_>) -> Result<f64, &'static str> {
    match given {
        Given::Number(text) if value::is_json_number(text.as_bytes()) => match value::float(text.as_bytes()) {
            Some(value) if value.is_finite() => Ok(value),
            _ => Err(OUT_OF_RANGE),
        },
        Given::Plain(text) => value::float(text.trim().as_bytes()).ok_or(NOT_NUMBER),
        _ => Err(NOT_NUMBER),
    }
}

pub(crate) fn decimal(given: Given<'_>, precision: u8, scale: i8) -> Result<i128, &'static str> {
    let text = match given {
        Given::Number(text) | Given::String(text) => text,
        Given::Plain(text) => text.trim(),
        Given::Escaped(text) => return decimal(Given::String(&unescape(text).ok_or(NOT_NUMBER)?), precision, scale),
        _ => return Err(NOT_NUMBER),
    };
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if !value::is_json_number(unsigned.as_bytes()) {
        return Err(NOT_NUMBER);
    }
    parse_decimal::<Decimal128Type>(unsigned, precision, scale).map_err(|_| OUT_OF_RANGE)
}

#[inline]
pub(crate) fn text<T>(
    given: Given<'_>,
    what: &'static str,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, &'static str> {
    match given {
        Given::String(text) => parse(text.as_bytes()).ok_or(what),
        Given::Plain(text) => parse(text.trim().as_bytes()).ok_or(what),
        Given::Escaped(text) => unescape(text).and_then(|text| parse(text.as_bytes())).ok_or(what),
        _ => Err(what),
    }
}

/// A JSON string's content from the text between its quotes.
pub(crate) fn unescape(text: &str) -> Option<String> {
    serde_json::from_str(&format!("\"{text}\"")).ok()
}

#[inline]
pub(crate) fn timestamp(given: Given<'_>, epoch: Epoch, cache: &mut DateCache) -> Result<i64, &'static str> {
    if epoch != Epoch::Text {
        let number = match given {
            Given::Number(_) => Some(integer(given)),
            Given::Plain(text) if !text.contains(':') => Some(integer(given)),
            _ => None,
        };
        let factor = match epoch {
            Epoch::Seconds => 1_000_000,
            Epoch::Millis => 1_000,
            Epoch::Micros | Epoch::Text => 1,
        };
        if let Some(number) = number {
            return number.map_err(|_| NOT_TIMESTAMP)?.checked_mul(factor).ok_or(OUT_OF_RANGE);
        }
    }
    text(given, NOT_TIMESTAMP, |bytes| value::timestamp(bytes, cache))
}
