//! PostgreSQL's session parameters that clients set and read. Weir answers them so that drivers work; they do not
//! change what a query means, unless their line says so.

use std::collections::BTreeMap;

use crate::error::{ErrorKind, Result, SqlError};

/// What the server says its version is: that of PostgreSQL whose manners it has, which drivers read, then Weir's.
pub const SERVER_VERSION: &str = concat!("16.6 (Weir ", env!("CARGO_PKG_VERSION"), ")");

/// A session parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// PostgreSQL's spelling.
    pub name: &'static str,
    /// The value when none is given.
    pub default: &'static str,
    /// Whether it can be set.
    pub settable: bool,
}

const fn parameter(name: &'static str, default: &'static str) -> Parameter {
    Parameter { name, default, settable: true }
}

const fn fixed(name: &'static str, default: &'static str) -> Parameter {
    Parameter { name, default, settable: false }
}

/// All session parameters.
pub static PARAMETERS: &[Parameter] = &[
    parameter("application_name", ""),
    parameter("bytea_output", "hex"),
    parameter("client_encoding", "UTF8"),
    parameter("client_min_messages", "notice"),
    parameter("DateStyle", "ISO, MDY"),
    parameter("default_transaction_isolation", "read committed"),
    parameter("default_transaction_read_only", "off"),
    parameter("escape_string_warning", "on"),
    parameter("extra_float_digits", "1"),
    parameter("idle_in_transaction_session_timeout", "0"),
    parameter("IntervalStyle", "postgres"),
    parameter("lock_timeout", "0"),
    parameter("row_security", "on"),
    parameter("search_path", "public"),
    parameter("standard_conforming_strings", "on"),
    parameter("statement_timeout", "0"),
    parameter("synchronize_seqscans", "on"),
    parameter("TimeZone", "UTC"),
    parameter("transaction_isolation", "read committed"),
    parameter("transaction_read_only", "off"),
    parameter("xmloption", "content"),
    fixed("in_hot_standby", "off"),
    fixed("integer_datetimes", "on"),
    fixed("is_superuser", "on"),
    fixed("max_identifier_length", "63"),
    fixed("server_encoding", "UTF8"),
    fixed("server_version", SERVER_VERSION),
    fixed("server_version_num", "160006"),
    fixed("session_authorization", "weir"),
];

/// The session parameters of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    values: BTreeMap<&'static str, String>,
}

impl Parameters {
    /// All at their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The parameter of that name, in any case. `SET TIME ZONE` and `SET NAMES` come as `timezone` and
    /// `client_encoding`.
    pub fn find(name: &str) -> Option<&'static Parameter> {
        PARAMETERS.iter().find(|p| p.name.eq_ignore_ascii_case(name))
    }

    /// Sets one; `None` is its default. An unknown name is for [`super::Options`] to judge, hence `Ok(false)`.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let Some(parameter) = Self::find(name) else { return Ok(false) };
        if !parameter.settable {
            return Err(SqlError::new(ErrorKind::INVALID_VALUE, format!("parameter \"{name}\" cannot be changed")));
        }
        match value {
            None => self.values.remove(parameter.name),
            Some(value) => self.values.insert(parameter.name, Self::check(parameter, value)?),
        };
        Ok(true)
    }

    /// The value in force; `None` when there is no such parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        let parameter = Self::find(name)?;
        Some(self.values.get(parameter.name).map_or(parameter.default, String::as_str))
    }

    /// All back to their defaults.
    pub fn reset_all(&mut self) {
        self.values.clear();
    }

    /// All with the value in force.
    pub fn all(&self) -> impl Iterator<Item = (&'static Parameter, &str)> {
        PARAMETERS.iter().map(|p| (p, self.values.get(p.name).map_or(p.default, String::as_str)))
    }

    fn check(parameter: &Parameter, value: &str) -> Result<String> {
        let plain = value.to_lowercase().replace(['-', '_'], "");
        match parameter.name {
            "client_encoding" if !matches!(plain.as_str(), "utf8" | "unicode" | "sqlascii") => {
                Err(SqlError::new(ErrorKind::INVALID_VALUE, format!("client_encoding '{value}' is not available"))
                    .hint("Weir speaks UTF8"))
            }
            "client_encoding" => Ok("UTF8".into()),
            "standard_conforming_strings" if !matches!(plain.as_str(), "on" | "true" | "1") => {
                Err(SqlError::new(ErrorKind::INVALID_VALUE, "standard_conforming_strings cannot be switched off")
                    .hint("write E'…' for strings with backslash escapes"))
            }
            _ => Ok(value.to_owned()),
        }
    }
}
