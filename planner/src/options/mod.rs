//! Options of queries and of the server: one typed table, with Flink's names and units.

mod differences;
mod parameters;
mod table;
mod value;

use std::collections::BTreeMap;
use std::time::Duration;

use weir_runtime::graph::ConnectorOptions;

use crate::error::{ErrorKind, Result, SqlError, nearest};

pub use differences::DIFFERENCES;
pub use parameters::{PARAMETERS, Parameter, Parameters, SERVER_VERSION};
pub use table::OPTIONS;
pub use value::{Retention, format_bytes, format_duration, parse_bytes, parse_duration, parse_retention};

/// The option of a stream that says how much of its history is kept.
pub const RETENTION: &str = "retention";

/// The shortest interval and timeout of checkpoints.
const LEAST_TIME: Duration = Duration::from_millis(10);
/// Most bytes of state inside a manifest.
const MOST_INLINE: u64 = 1 << 20;

/// What values an option takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// `300ms`, `10 s`, `2m`, `1 h`; a number alone is milliseconds.
    Duration,
    /// `256mb`, `20 kb`; a number alone is bytes.
    Bytes,
    /// A whole number.
    Int {
        /// The least.
        min: i64,
        /// The greatest.
        max: i64,
    },
    /// A number with a fraction.
    Number {
        /// The least.
        min: f64,
    },
    /// `true` or `false`.
    Bool,
    /// One of these, in any case.
    Enum(&'static [&'static str]),
    /// How much history is kept: `forever`, a duration with its unit, or a size with its unit.
    Retention,
    /// Any text.
    Text,
}

/// Where an option may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Configuration file, SET, and `WITH (…)` of a query, which keeps it.
    Query,
    /// Configuration file and command line only.
    Server,
}

/// Which values this version acts upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// All.
    Full,
    /// Only these; others are known and refused.
    Only(&'static [&'static str]),
}

/// An option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// The value when none is given.
    pub default: &'static str,
    /// What it means, in a sentence or two.
    pub doc: &'static str,
    /// Where it may be given.
    pub scope: Scope,
    /// Which values have an effect in this version.
    pub available: Availability,
}

impl OptionSpec {
    /// The option of that name (in any case).
    pub fn find(name: &str) -> Option<&'static OptionSpec> {
        OPTIONS.iter().find(|spec| spec.name.eq_ignore_ascii_case(name))
    }

    /// The unit of values, for tables.
    pub fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Duration => "duration (ms, s, min, h, d)",
            Kind::Bytes => "bytes (b, kb, mb, gb)",
            Kind::Int { .. } | Kind::Number { .. } => "number",
            Kind::Bool => "true, false",
            Kind::Retention => "forever, duration, bytes",
            Kind::Enum(_) | Kind::Text => "",
        }
    }

    /// Whether all values have an effect in this version.
    pub fn is_available(&self) -> bool {
        self.available == Availability::Full
    }

    /// What differs from the option of the same name in Flink, and why; `None` if nothing does.
    pub fn difference(&self) -> Option<&'static str> {
        DIFFERENCES.iter().find(|(name, _)| *name == self.name).map(|(_, text)| *text)
    }

    /// Whether an empty value means that the option is not set.
    fn may_be_unset(&self) -> bool {
        self.default.is_empty()
    }

    /// The value in its usual spelling, or why it is none.
    pub fn check(&self, given: &str) -> Result<String> {
        if self.may_be_unset() && given.trim().is_empty() {
            return Ok(String::new());
        }
        let value = value::canonical(self, given.trim())?;
        match self.available {
            Availability::Full => Ok(value),
            Availability::Only(values) if values.contains(&value.as_str()) => Ok(value),
            Availability::Only(values) => Err(SqlError::new(
                ErrorKind::OPTION_UNAVAILABLE,
                format!("{} = '{given}' is not available in this version", self.name),
            )
            .hint(match values {
                [""] => "leave it unset".to_owned(),
                _ => format!("only {} is", values.iter().map(|v| format!("'{v}'")).collect::<Vec<_>>().join(", ")),
            })),
        }
    }
}

/// Options with values that were given; the rest have their defaults. A connection has one, a query keeps one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    values: BTreeMap<&'static str, String>,
}

impl Options {
    /// All at their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// As persisted by [`Options::changed`]. Names that this version does not know are an error.
    pub fn from_changed(changed: &BTreeMap<String, String>) -> Result<Self> {
        let mut options = Self::new();
        for (name, value) in changed {
            options.set_any(name, value)?;
        }
        Ok(options)
    }

    /// SET: options of queries only. Checks the value, not the combination (see [`Options::check`]).
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let spec = Self::spec(name)?;
        if spec.scope == Scope::Server {
            return Err(SqlError::new(
                ErrorKind::OPTION_UNAVAILABLE,
                format!("{} belongs to the server and cannot be set on a connection", spec.name),
            )
            .hint("write it into the configuration file given with --config and start the server anew"));
        }
        self.put(spec, value)
    }

    /// From the configuration file: any option.
    pub fn set_any(&mut self, name: &str, value: &str) -> Result<()> {
        self.put(Self::spec(name)?, value)
    }

    fn put(&mut self, spec: &'static OptionSpec, value: &str) -> Result<()> {
        let value = spec.check(value)?;
        if value.is_empty() && spec.may_be_unset() {
            self.values.remove(spec.name);
        } else {
            self.values.insert(spec.name, value);
        }
        Ok(())
    }

    /// Back to the default.
    pub fn reset(&mut self, name: &str) -> Result<()> {
        self.values.remove(Self::spec(name)?.name);
        Ok(())
    }

    /// All back to their defaults.
    pub fn reset_all(&mut self) {
        self.values.clear();
    }

    /// The value in force, in its usual spelling.
    pub fn get(&self, name: &str) -> Result<&str> {
        let spec = Self::spec(name)?;
        Ok(self.values.get(spec.name).map_or(spec.default, String::as_str))
    }

    /// Whether a value was given.
    pub fn is_set(&self, name: &str) -> bool {
        OptionSpec::find(name).is_some_and(|spec| self.values.contains_key(spec.name))
    }

    /// A duration; `None` when it is 0, which everywhere means "off" or "none".
    pub fn duration(&self, name: &str) -> Result<Option<Duration>> {
        Ok(Some(value::parse_duration(self.get(name)?)?).filter(|d| !d.is_zero()))
    }

    /// A size in bytes.
    pub fn bytes(&self, name: &str) -> Result<u64> {
        value::parse_bytes(self.get(name)?)
    }

    /// How much history a stream keeps.
    pub fn retention(&self) -> Result<Retention> {
        value::parse_retention(self.get(RETENTION)?)
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Result<i64> {
        let text = self.get(name)?;
        text.parse().map_err(|_| value::invalid(name, text, "a whole number"))
    }

    /// A number.
    pub fn number(&self, name: &str) -> Result<f64> {
        let text = self.get(name)?;
        text.parse().map_err(|_| value::invalid(name, text, "a number"))
    }

    /// Whether it is on.
    pub fn is_on(&self, name: &str) -> Result<bool> {
        Ok(self.get(name)? == "true")
    }

    /// The values that were given, by name: what a query keeps.
    pub fn changed(&self) -> BTreeMap<String, String> {
        self.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    /// All options with the value in force, for SHOW ALL.
    pub fn all(&self) -> impl Iterator<Item = (&'static OptionSpec, &str)> {
        OPTIONS.iter().map(|spec| (spec, self.values.get(spec.name).map_or(spec.default, String::as_str)))
    }

    /// Parts a statement's `WITH (…)` into options of its query, over `self`, and the connector's options. Names with
    /// a dot are options; a connector's have none.
    pub fn split(&self, with: &ConnectorOptions) -> Result<(Self, ConnectorOptions)> {
        let (mut options, mut connector) = (self.clone(), ConnectorOptions::new());
        for (name, value) in with {
            if OptionSpec::find(name).is_some() || is_option_name(name) {
                options.set(name, value)?;
            } else {
                connector.insert(name.clone(), value.clone());
            }
        }
        options.check()?;
        Ok((options, connector))
    }

    /// Whether the options can hold together.
    pub fn check(&self) -> Result<()> {
        let conflict = |message: String, hint: &str| Err(SqlError::new(ErrorKind::OPTION_CONFLICT, message).hint(hint));
        let unaligned = self.is_on("execution.checkpointing.unaligned.enabled")?;
        if unaligned && self.get("execution.checkpointing.mode")? == "AT_LEAST_ONCE" {
            return conflict(
                "unaligned checkpoints cannot be taken in mode AT_LEAST_ONCE".into(),
                "set execution.checkpointing.mode to EXACTLY_ONCE",
            );
        }
        if unaligned && self.int("execution.checkpointing.max-concurrent-checkpoints")? > 1 {
            return conflict(
                "unaligned checkpoints cannot run concurrently".into(),
                "set execution.checkpointing.max-concurrent-checkpoints to 1",
            );
        }
        let (parallelism, max) = (self.int("parallelism.default")?, self.int("pipeline.max-parallelism")?);
        if parallelism > max {
            return conflict(
                format!("parallelism.default = {parallelism} is above pipeline.max-parallelism = {max}"),
                "raise pipeline.max-parallelism or lower parallelism.default",
            );
        }
        let timeout = self.duration("execution.checkpointing.timeout")?.unwrap_or_default();
        if timeout < LEAST_TIME {
            return conflict(
                format!("execution.checkpointing.timeout = {} is below 10 ms", format_duration(timeout)),
                "10 min is the default, and 10 ms the least",
            );
        }
        let inline = self.bytes("execution.checkpointing.data-inline-threshold")?;
        if inline > MOST_INLINE {
            return conflict(
                format!("execution.checkpointing.data-inline-threshold = {} is above 1 mb", format_bytes(inline)),
                "a manifest is read and written whole; larger state belongs into data objects",
            );
        }
        if let Some(interval) = self.duration("execution.checkpointing.interval")? {
            let epoch = self.duration("execution.epoch.interval")?;
            if interval < LEAST_TIME {
                return conflict(
                    format!("execution.checkpointing.interval = {} is below 10 ms", format_duration(interval)),
                    "10 ms is the shortest interval; 0 switches periodic checkpoints off",
                );
            }
            if self.is_set("execution.checkpointing.interval-during-backlog")
                && let Some(backlog) = self.duration("execution.checkpointing.interval-during-backlog")?
                && backlog < interval
            {
                return conflict(
                    format!(
                        "execution.checkpointing.interval-during-backlog = {} is below execution.checkpointing.interval = {}",
                        format_duration(backlog),
                        format_duration(interval)
                    ),
                    "a backlog is read with longer intervals, or with 0, which takes no periodic checkpoints meanwhile",
                );
            }
            if epoch.is_none() {
                return conflict("execution.epoch.interval must be above 0".into(), "200 ms is the default");
            }
        }
        Ok(())
    }

    fn spec(name: &str) -> Result<&'static OptionSpec> {
        OptionSpec::find(name).ok_or_else(|| unknown(name))
    }
}

/// Every option, in the order of the documentation.
pub fn all() -> &'static [OptionSpec] {
    OPTIONS
}

/// Whether a name is meant as an option of Weir rather than as a PostgreSQL parameter or a connector's option.
pub fn is_option_name(name: &str) -> bool {
    let first = name.split('.').next().unwrap_or_default();
    name.contains('.') && OPTIONS.iter().any(|spec| spec.name.split('.').next().unwrap_or_default() == first)
}

/// The error for a name that is neither an option nor a session parameter.
pub fn unknown(name: &str) -> SqlError {
    let known = OPTIONS.iter().map(|o| o.name).chain(PARAMETERS.iter().map(|p| p.name));
    SqlError::new(ErrorKind::UNDEFINED_OPTION, format!("unknown option \"{name}\"")).hint(match nearest(name, known) {
        Some(near) => format!("did you mean '{near}'?"),
        None => "SHOW ALL lists the options".to_owned(),
    })
}
