//! The `file` connector: files of a local file system or an object store, read split by split and written in two
//! phases.
//!
//! ```text
//!  location.rs  path, glob or URL ─► files             split.rs   file ─► splits (pure)
//!  source.rs    discovers splits                        reader.rs  one subtask's splits in turn
//!  input.rs     opens and decompresses, reads ahead     text.rs, rows.rs   one split: lines / row groups
//!  sink.rs      writes hidden parts ─► roll.rs when ─► commit.rs renames them once the checkpoint is durable
//! ```

mod commit;
mod input;
mod location;
mod reader;
mod roll;
mod rows;
mod sink;
mod source;
mod split;
#[cfg(test)]
mod tests;
mod text;

use std::time::Duration;

use weir_runtime::graph::ConnectorOptions;
use weir_runtime::{Result, RuntimeError};

use crate::ConnectorContext;
use crate::format::encode::Compression;
use crate::format::{Format, MAX_ROW_BYTES};
use crate::options::{OptionSpec, Reader, bad_option, option};

pub(crate) use self::sink::FileSink;
pub(crate) use self::source::FileSource;

/// The connector's name.
pub(crate) const NAME: &str = "file";

/// Options of the source (besides the formats').
pub(crate) const SOURCE_OPTIONS: &[OptionSpec] = &[
    option("path", "", "the file, a glob such as /data/*.csv, or a URL (file:, s3:, gs:, az:); required"),
    option("format", "", "csv, json (one object a line) or parquet; by default told from the path's extension"),
    option("compression", "auto", "auto (by extension .gz or .zst), none, gzip or zstd"),
    option("mode", "bounded", "bounded: read what is there, then end; watch: go on with new and growing files"),
    option("watch.interval", "1s", "how often to look for new files and new lines"),
    option("max_row_bytes", "4mb", "a longer row is a bad row"),
    option("split.min_size", "32mb", "a file is not cut into pieces smaller than this to be read in parallel"),
];

/// Options of the sink (besides the formats').
pub(crate) const SINK_OPTIONS: &[OptionSpec] = &[
    option("path", "", "the directory that gets the files, or a URL (file:, s3:, gs:, az:); required"),
    option("format", "", "csv, json (one object a line) or parquet; required"),
    option("compression", "none", "none, gzip or zstd (Parquet always compresses its pages)"),
    option("roll.size", "128mb", "begin a new file when the current one has this size"),
    option("roll.rows", "", "begin a new file after so many rows"),
    option("roll.interval", "", "begin a new file when the current one is this old"),
];

/// What the source was asked for, understood.
#[derive(Debug, Clone)]
pub(crate) struct SourceOptions {
    pub(crate) path: String,
    pub(crate) format: Format,
    pub(crate) compression: Option<Compression>,
    pub(crate) watch: Option<Duration>,
    pub(crate) max_row_bytes: usize,
    pub(crate) split_min_size: u64,
}

impl SourceOptions {
    pub(crate) fn parse(options: &ConnectorOptions) -> Result<Self> {
        let reader = Reader::new(NAME, options);
        let path = reader.required("path", "/data/events.csv")?.to_owned();
        let watch = match reader.text("mode").map(str::to_ascii_lowercase).as_deref() {
            None | Some("bounded") => None,
            Some("watch") => Some(reader.duration("watch.interval")?.unwrap_or(Duration::from_secs(1))),
            Some(other) => return Err(bad_option("mode", other, "give 'bounded' or 'watch'")),
        };
        let max_row_bytes = reader.size("max_row_bytes", 4 << 20)? as usize;
        if !(1024..=MAX_ROW_BYTES / 4).contains(&max_row_bytes) {
            return Err(bad_option("max_row_bytes", &max_row_bytes.to_string(), "give a size from 1kb to 64mb"));
        }
        let compression = match reader.text("compression") {
            None | Some("auto") => None,
            Some(text) => Some(compression(text)?),
        };
        let format = Format::read_options(&reader, Some(&path))?;
        if format == Format::Parquet && !matches!(compression, None | Some(Compression::None)) {
            let given = reader.text("compression").unwrap_or_default();
            return Err(bad_option("compression", given, "Parquet compresses its own pages; leave the option out"));
        }
        let split_min_size = reader.size("split.min_size", 32 << 20)?.max(1);
        Ok(Self { path, format, compression, watch, max_row_bytes, split_min_size })
    }

    /// How the file at `url` is compressed.
    pub(crate) fn compression_of(&self, url: &str) -> Compression {
        match (self.compression, &self.format) {
            (Some(compression), _) => compression,
            (None, Format::Parquet) => Compression::None,
            (None, _) if url.ends_with(".gz") => Compression::Gzip,
            (None, _) if url.ends_with(".zst") || url.ends_with(".zstd") => Compression::Zstd,
            (None, _) => Compression::None,
        }
    }
}

/// What the sink was asked for, understood.
#[derive(Debug, Clone)]
pub(crate) struct SinkOptions {
    pub(crate) path: String,
    pub(crate) format: Format,
    pub(crate) compression: Compression,
    pub(crate) roll: roll::Roll,
}

impl SinkOptions {
    pub(crate) fn parse(options: &ConnectorOptions) -> Result<Self> {
        let reader = Reader::new(NAME, options);
        let path = reader.required("path", "/data/out")?.to_owned();
        let format = Format::write_options(&reader, None)?;
        let compression = reader.text("compression").map_or(Ok(Compression::None), compression)?;
        if format == Format::Parquet && compression != Compression::None {
            let given = reader.text("compression").unwrap_or_default();
            return Err(bad_option("compression", given, "Parquet compresses its own pages; leave the option out"));
        }
        let roll = roll::Roll {
            size: reader.size("roll.size", 128 << 20)?.max(1),
            rows: reader.count("roll.rows")?.filter(|rows| *rows > 0),
            interval: reader.duration("roll.interval")?,
        };
        Ok(Self { path, format, compression, roll })
    }

    /// What file names end with.
    pub(crate) fn extension(&self) -> String {
        let suffix = match self.compression {
            Compression::None => "",
            Compression::Gzip => ".gz",
            Compression::Zstd => ".zst",
        };
        format!("{}{suffix}", self.format.name())
    }
}

fn compression(text: &str) -> Result<Compression> {
    match text.to_ascii_lowercase().as_str() {
        "none" => Ok(Compression::None),
        "gzip" | "gz" => Ok(Compression::Gzip),
        "zstd" | "zst" => Ok(Compression::Zstd),
        _ => Err(bad_option("compression", text, "give 'none', 'gzip' or 'zstd'")),
    }
}

/// Check a source's options without touching any file.
pub(crate) fn validate_source(options: &ConnectorOptions, context: &ConnectorContext) -> Result<Format> {
    let options = SourceOptions::parse(options)?;
    location::Location::parse(&options.path, context)?;
    Ok(options.format)
}

/// Check a sink's options without touching any file.
pub(crate) fn validate_sink(options: &ConnectorOptions, context: &ConnectorContext) -> Result<Format> {
    let options = SinkOptions::parse(options)?;
    location::Location::parse(&options.path, context)?;
    Ok(options.format)
}

/// A file that cannot be used.
pub(crate) fn fault(subject: impl Into<String>, reason: impl Into<String>) -> RuntimeError {
    RuntimeError::Connector { connector: NAME.to_owned(), subject: subject.into(), reason: reason.into() }
}

/// An error of the local file system as a sentence.
pub(crate) fn io_reason(error: &std::io::Error, action: &str) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        std::io::ErrorKind::PermissionDenied => {
            format!("no permission to {action}; let the user that runs Weir {action} it")
        }
        std::io::ErrorKind::StorageFull => format!("cannot {action}: the disk is full"),
        _ => format!("cannot {action}: {error}"),
    }
}

/// A background task that did not come to its end.
pub(crate) fn join_fault(error: &tokio::task::JoinError) -> RuntimeError {
    RuntimeError::Internal { place: "file connector", reason: format!("a file operation was interrupted: {error}") }
}
