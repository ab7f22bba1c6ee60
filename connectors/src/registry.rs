//! The list of connectors: one entry each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use weir_runtime::graph::{ConnectorOptions, SinkSpec};
use weir_runtime::sink::Sink;
use weir_runtime::source::{Source, SourceRequest};
use weir_runtime::{Result, RuntimeError};

use crate::blackhole::{self, BlackholeSink};
use crate::file::{self, FileSink, FileSource};
use crate::format::{Format, READ_OPTIONS, WRITE_OPTIONS};
use crate::options::{OptionSpec, nearest};
use crate::print::{self, PrintSink};
use crate::{datagen, nexmark};

/// What a connector needs to know of the process.
#[derive(Debug, Clone, Default)]
pub struct ConnectorContext {
    /// What relative paths are relative to; empty: the working directory.
    pub base_dir: PathBuf,
    /// Options for object stores (endpoint, region, keys, …), over those of the environment.
    pub store_options: BTreeMap<String, String>,
}

/// What a connector is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `CREATE STREAM … WITH (connector = …)`
    Source,
    /// `CREATE SINK … WITH (connector = …)`
    Sink,
}

/// A connector as people see it.
#[derive(Debug)]
pub struct Connector {
    /// Name as in `WITH (connector = …)`.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub meaning: &'static str,
    /// Options as a source, in groups; `None` when it is none.
    pub source: Option<&'static [&'static [OptionSpec]]>,
    /// Options as a sink, in groups; `None` when it is none.
    pub sink: Option<&'static [&'static [OptionSpec]]>,
    /// Options of a column, written `fields.<column>.<option>`.
    pub fields: &'static [OptionSpec],
}

static CONNECTORS: [Connector; 5] = [
    Connector {
        name: file::NAME,
        meaning: "files of this machine or an object store: CSV, JSON lines, Parquet",
        source: Some(&[file::SOURCE_OPTIONS, READ_OPTIONS]),
        sink: Some(&[file::SINK_OPTIONS, WRITE_OPTIONS]),
        fields: &[],
    },
    Connector {
        name: datagen::NAME,
        meaning: "made-up rows for trying things out",
        source: Some(&[datagen::OPTIONS]),
        sink: None,
        fields: datagen::FIELD_OPTIONS,
    },
    Connector {
        name: nexmark::NAME,
        meaning: "the persons, auctions and bids of the Nexmark benchmark",
        source: Some(&[nexmark::OPTIONS]),
        sink: None,
        fields: &[],
    },
    Connector {
        name: print::NAME,
        meaning: "each row as a line on the server's standard output",
        source: None,
        sink: Some(&[print::OPTIONS]),
        fields: &[],
    },
    Connector {
        name: blackhole::NAME,
        meaning: "counts rows and forgets them",
        source: None,
        sink: Some(&[blackhole::OPTIONS]),
        fields: &[],
    },
];

/// All connectors.
pub fn connectors() -> &'static [Connector] {
    &CONNECTORS
}

impl Connector {
    /// The options for a role; `None` when the connector does not have it.
    pub fn options(&self, role: Role) -> Option<impl Iterator<Item = &'static OptionSpec>> {
        let groups = match role {
            Role::Source => self.source,
            Role::Sink => self.sink,
        };
        groups.map(|groups| groups.iter().flat_map(|group| group.iter()))
    }
}

/// The options of all connectors as Markdown tables: the reference part of the documentation.
pub fn documentation() -> String {
    let mut out = String::new();
    let table = |out: &mut String, title: &str, options: &mut dyn Iterator<Item = &'static OptionSpec>| {
        out.push_str(&format!("\n{title}\n\n| option | default | meaning |\n| --- | --- | --- |\n"));
        for option in options {
            let default = if option.default.is_empty() { String::new() } else { format!("`{}`", option.default) };
            out.push_str(&format!("| `{}` | {default} | {} |\n", option.name, option.meaning));
        }
    };
    for connector in &CONNECTORS {
        out.push_str(&format!("\n## {}\n\n{}.\n", connector.name, capitalised(connector.meaning)));
        for (role, title) in [(Role::Source, "As a source:"), (Role::Sink, "As a sink:")] {
            if let Some(options) = connector.options(role) {
                let mut options = options.peekable();
                if options.peek().is_none() {
                    out.push_str(&format!("\n{title} no options.\n"));
                } else {
                    table(&mut out, title, &mut options);
                }
            }
        }
        if !connector.fields.is_empty() {
            table(&mut out, "For a column, written `fields.<column>.<option>`:", &mut connector.fields.iter());
        }
    }
    out
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

fn fault(connector: &str, subject: impl Into<String>, reason: impl Into<String>) -> RuntimeError {
    RuntimeError::Connector { connector: connector.to_owned(), subject: subject.into(), reason: reason.into() }
}

/// The connector called `name` in a role.
fn find(name: &str, role: Role) -> Result<&'static Connector> {
    let able =
        || CONNECTORS.iter().filter(move |connector| connector.options(role).is_some()).map(|connector| connector.name);
    let kind = match role {
        Role::Source => "source",
        Role::Sink => "sink",
    };
    let list = able().collect::<Vec<_>>().join(", ");
    match CONNECTORS.iter().find(|connector| connector.name.eq_ignore_ascii_case(name)) {
        Some(connector) if connector.options(role).is_some() => Ok(connector),
        Some(connector) => {
            Err(fault(connector.name, format!("used as a {kind}"), format!("it is none; the {kind}s are: {list}")))
        }
        None => {
            let near = nearest(name, able()).map(|name| format!("did you mean '{name}'? ")).unwrap_or_default();
            Err(fault(
                name,
                format!("used as a {kind}"),
                format!("there is no such connector; {near}the {kind}s are: {list}"),
            ))
        }
    }
}

/// Refuse options that the connector does not have.
fn check_names(connector: &Connector, role: Role, options: &ConnectorOptions, columns: &[&str]) -> Result<()> {
    let known: Vec<&'static str> = connector.options(role).into_iter().flatten().map(|option| option.name).collect();
    for given in options.keys().filter(|name| *name != "connector") {
        if known.contains(&given.as_str()) {
            continue;
        }
        let subject = format!("option \"{given}\"");
        if let (Some(rest), false) = (given.strip_prefix("fields."), connector.fields.is_empty()) {
            let (column, option) = rest.rsplit_once('.').unwrap_or((rest, ""));
            if !columns.contains(&column) {
                let near = nearest(column, columns.iter().copied()).map(|name| format!("; did you mean \"{name}\"?"));
                let reason = format!("there is no column \"{column}\"{}", near.unwrap_or_default());
                return Err(fault(connector.name, subject, reason));
            }
            let names = || connector.fields.iter().map(|option| option.name);
            if names().any(|name| name == option) {
                continue;
            }
            let near = nearest(option, names()).map(|name| format!("did you mean \"fields.{column}.{name}\"? "));
            let list = names().collect::<Vec<_>>().join(", ");
            let reason = format!("is not known; {}a column's options are: {list}", near.unwrap_or_default());
            return Err(fault(connector.name, subject, reason));
        }
        let near =
            nearest(given, known.iter().copied()).map(|name| format!("did you mean \"{name}\"? ")).unwrap_or_default();
        let list =
            if known.is_empty() { "it has none".to_owned() } else { format!("its options are: {}", known.join(", ")) };
        return Err(fault(connector.name, subject, format!("is not known; {near}{list}")));
    }
    Ok(())
}

fn names(schema: &SchemaRef) -> Vec<&str> {
    schema.fields().iter().map(|field| field.name().as_str()).collect()
}

/// Check a connector's name, options and columns when a relation is created; touches neither files nor network.
/// `schema`: the declared physical columns of a source, or the columns that a sink is to write.
pub fn validate(
    role: Role,
    name: &str,
    options: &ConnectorOptions,
    schema: &SchemaRef,
    context: &ConnectorContext,
) -> Result<()> {
    let connector = find(name, role)?;
    check_names(connector, role, options, &names(schema))?;
    let carried = |format: Format| {
        format.check(schema).map_err(|reason| fault(connector.name, format!("format '{}'", format.name()), reason))
    };
    match (connector.name, role) {
        (file::NAME, Role::Source) => carried(file::validate_source(options, context)?),
        (file::NAME, Role::Sink) => carried(file::validate_sink(options, context)?),
        (datagen::NAME, _) => datagen::validate(options, schema),
        (nexmark::NAME, _) => nexmark::validate(options, schema),
        _ => Ok(()),
    }
}

/// Open a source.
pub fn source(
    name: &str,
    options: &ConnectorOptions,
    request: &SourceRequest,
    context: &ConnectorContext,
) -> Result<Arc<dyn Source>> {
    let connector = find(name, Role::Source)?;
    check_names(connector, Role::Source, options, &names(&request.declared))?;
    match connector.name {
        datagen::NAME => datagen::open(options, request),
        nexmark::NAME => nexmark::open(options, request),
        _ => Ok(Arc::new(FileSource::open(options, request, context)?)),
    }
}

/// Open a sink.
pub fn sink(
    name: &str,
    options: &ConnectorOptions,
    spec: &SinkSpec,
    context: &ConnectorContext,
) -> Result<Arc<dyn Sink>> {
    let connector = find(name, Role::Sink)?;
    check_names(connector, Role::Sink, options, &names(&spec.schema))?;
    match connector.name {
        print::NAME => Ok(Arc::new(PrintSink)),
        blackhole::NAME => Ok(Arc::new(BlackholeSink::open(options)?)),
        _ => Ok(Arc::new(FileSink::open(options, spec, context)?)),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn check(role: Role, name: &str, options: &[(&str, &str)]) -> String {
        let options = options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let schema = Arc::new(Schema::new(vec![Field::new("carrier", DataType::Utf8, true)]));
        match validate(role, name, &options, &schema, &ConnectorContext::default()) {
            Ok(()) => "ok".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_contract_of_options_holds() {
        let source = [
            ("connector", "file"),
            ("path", "/data/flights.csv"),
            ("format", "csv"),
            ("header", "true"),
            ("null", "NA"),
        ];
        assert_eq!(check(Role::Source, "file", &source), "ok");
        let sink = [("connector", "file"), ("path", "/data/late"), ("format", "json")];
        assert_eq!(check(Role::Sink, "file", &sink), "ok");
    }

    #[test]
    fn what_is_unknown_is_refused_with_the_nearest_name() {
        let no_connector = check(Role::Source, "flie", &[]);
        assert_eq!(
            no_connector,
            "flie connector, used as a source: there is no such connector; did you mean 'file'? the sources are: file, datagen, nexmark"
        );
        let wrong_role = check(Role::Sink, "nexmark", &[]);
        assert_eq!(wrong_role, "nexmark connector, used as a sink: it is none; the sinks are: file, print, blackhole");
        let no_option = check(Role::Source, "file", &[("path", "/x.csv"), ("heder", "true")]);
        assert!(no_option.starts_with("file connector, option \"heder\": is not known; did you mean \"header\"? its options are: path, format,"), "{no_option}");
        let no_format = check(Role::Source, "file", &[("path", "/x"), ("format", "jsno")]);
        assert_eq!(no_format, "option \"format\" = 'jsno': did you mean 'json'? the formats are csv, json, parquet");
        let no_column = check(Role::Source, "datagen", &[("fields.carier.kind", "random")]);
        assert_eq!(
            no_column,
            "datagen connector, option \"fields.carier.kind\": there is no column \"carier\"; did you mean \"carrier\"?"
        );
        let no_path = check(Role::Source, "file", &[("format", "csv")]);
        assert_eq!(
            no_path,
            "file connector, option \"path\": is required; write path = '/data/events.csv' in WITH (…)"
        );
        let no_print = check(Role::Sink, "print", &[("x", "1")]);
        assert_eq!(no_print, "print connector, option \"x\": is not known; it has none");
        let column = check(Role::Source, "nexmark", &[("type", "bid")]);
        assert!(column.contains("column \"carrier\": is not made by the generator"), "{column}");
        assert!(column.contains("type 'bid' has: auction BIGINT,"), "{column}");
    }

    #[test]
    fn every_option_is_documented() {
        let text = documentation();
        assert!(text.contains("| `watch.interval` | `1s` |"));
        assert!(text.contains("## blackhole"));
    }
}
