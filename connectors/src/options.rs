//! Options of `WITH (…)`: each connector lists its options as data, and both the documentation and the errors come
//! from that list.

use std::time::Duration;

use weir_runtime::graph::ConnectorOptions;
use weir_runtime::{Result, RuntimeError};

/// One option of a connector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionSpec {
    /// Name as written in `WITH (…)`.
    pub name: &'static str,
    /// The default, as it would be written; empty when there is none.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// Shorthand for the option tables.
pub(crate) const fn option(name: &'static str, default: &'static str, meaning: &'static str) -> OptionSpec {
    OptionSpec { name, default, meaning }
}

/// The known name closest to `given`, if any is close enough to be meant.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_ascii_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&given, &name.to_ascii_lowercase()), name))
        .filter(|(distance, name)| *distance <= (name.len().max(given.len()) / 2).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// An option value that does not do.
pub(crate) fn bad_option(option: &str, given: &str, expected: impl Into<String>) -> RuntimeError {
    RuntimeError::Option { option: option.to_owned(), given: given.to_owned(), expected: expected.into() }
}

/// Typed reading of a connector's options.
pub(crate) struct Reader<'a> {
    connector: &'static str,
    options: &'a ConnectorOptions,
}

impl<'a> Reader<'a> {
    /// Over `options`, for errors in the name of `connector`.
    pub(crate) fn new(connector: &'static str, options: &'a ConnectorOptions) -> Self {
        Self { connector, options }
    }

    /// The option as written.
    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        self.options.get(name).map(String::as_str)
    }

    /// An option that must be there.
    pub(crate) fn required(&self, name: &str, example: &str) -> Result<&'a str> {
        self.text(name).ok_or_else(|| RuntimeError::Connector {
            connector: self.connector.to_owned(),
            subject: format!("option \"{name}\""),
            reason: format!("is required; write {name} = '{example}' in WITH (…)"),
        })
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self, name: &str, default: bool) -> Result<bool> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "on" | "yes" | "1" => Ok(true),
                "false" | "off" | "no" | "0" => Ok(false),
                _ => Err(bad_option(name, text, "give 'true' or 'false'")),
            },
        }
    }

    /// A whole number ≥ 0.
    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>> {
        self.text(name)
            .map(|text| {
                text.trim()
                    .replace('_', "")
                    .parse()
                    .map_err(|_| bad_option(name, text, "give a whole number such as '1000'"))
            })
            .transpose()
    }

    /// A number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.text(name)
            .map(|text| match text.trim().parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(number),
                _ => Err(bad_option(name, text, "give a number such as '2.5'")),
            })
            .transpose()
    }

    /// A size: `64mb`, `1 GiB`, or a number of bytes.
    pub(crate) fn size(&self, name: &str, default: u64) -> Result<u64> {
        self.text(name).map_or(Ok(default), |text| {
            parse_size(text)
                .ok_or_else(|| bad_option(name, text, "give a size such as '64mb', '1gb' or a number of bytes"))
        })
    }

    /// A length of time: `500ms`, `1s`, `5 min`.
    pub(crate) fn duration(&self, name: &str) -> Result<Option<Duration>> {
        self.text(name)
            .map(|text| {
                parse_duration(text).filter(|duration| !duration.is_zero()).ok_or_else(|| {
                    bad_option(name, text, "give a length of time above zero such as '500ms', '1s' or '5min'")
                })
            })
            .transpose()
    }

    /// One ASCII character.
    pub(crate) fn ascii(&self, name: &str, default: Option<u8>) -> Result<Option<u8>> {
        match self.text(name) {
            None => Ok(default),
            Some("") => Ok(None),
            Some("\\t") => Ok(Some(b'\t')),
            Some(text) => match text.as_bytes() {
                [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r') => Ok(Some(*byte)),
                _ => Err(bad_option(name, text, "give one ASCII character (write '\\t' for the tabulator)")),
            },
        }
    }
}

/// Number and unit apart.
fn number_and_unit(text: &str) -> Option<(f64, String)> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..split].parse().ok()?;
    Some((number, text[split..].trim().to_ascii_lowercase()))
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let factor: u64 = match unit.as_str() {
        "" | "b" | "bytes" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return None,
    };
    Some((number * factor as f64) as u64)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let seconds = match unit.as_str() {
        "ms" | "milliseconds" | "millisecond" => 0.001,
        "s" | "sec" | "second" | "seconds" => 1.0,
        "m" | "min" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations() {
        assert_eq!(parse_size("64mb"), Some(64 << 20));
        assert_eq!(parse_size("1 GiB"), Some(1 << 30));
        assert_eq!(parse_size("17"), Some(17));
        assert_eq!(parse_size("17 ells"), None);
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5 min"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("7"), None);
    }

    #[test]
    fn the_nearest_name_is_found_or_none() {
        assert_eq!(nearest("foramt", ["format", "path", "header"]), Some("format"));
        assert_eq!(nearest("HEADR", ["format", "path", "header"]), Some("header"));
        assert_eq!(nearest("zzzzzz", ["format", "path"]), None);
    }
}
