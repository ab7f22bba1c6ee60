//! The `weir` command.
//!
//! ```text
//!   weir serve        serve.rs ── config_file.rs ──► Engine, pg::serve, http::serve
//!   weir sql          shell.rs ── complete.rs ──► client.rs ──► output.rs
//!   weir run          run.rs ──► Engine in this process ──► output.rs
//!   weir checkpoint   checkpoint.rs ──► weir_storage::checkpoint
//!   weir nexmark      nexmark.rs ──► weir_connectors
//! ```

mod checkpoint;
mod client;
mod complete;
pub mod config_file;
mod nexmark;
pub mod output;
mod run;
mod serve;
mod shell;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use weir_planner::SqlError;

use output::Format;

/// Weir, a streaming SQL database.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about = "Weir, a streaming SQL database", propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Start a server with everything embedded
    Serve(ServeArgs),
    /// Talk SQL to a server: interactive, or with -c and -f
    Sql(SqlArgs),
    /// Run a script in this process to the end of its bounded inputs and print what it selects
    Run(RunArgs),
    /// Look at checkpoints in a store, without a server
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Write the events of the nexmark benchmark as JSON lines
    Nexmark(NexmarkArgs),
}

/// `weir serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Directory for local state and, unless --store says otherwise, for everything durable
    #[arg(long, value_name = "DIR", env = "WEIR_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// URL of the store: file:, s3:, gs: or az: [default: file: below the data directory]
    #[arg(long, value_name = "URL", env = "WEIR_STORE")]
    store: Option<String>,
    /// Address for psql and drivers [default: 127.0.0.1:4577]
    #[arg(long, value_name = "ADDRESS", env = "WEIR_LISTEN_SQL")]
    listen_sql: Option<SocketAddr>,
    /// Address for REST and the dashboard [default: 127.0.0.1:4578]
    #[arg(long, value_name = "ADDRESS", env = "WEIR_LISTEN_HTTP")]
    listen_http: Option<SocketAddr>,
    /// YAML file of options; flags go before it
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
    /// Subtasks of each operator [default: number of cores]
    #[arg(long, value_name = "N", env = "WEIR_PARALLELISM", value_parser = clap::value_parser!(u32).range(1..))]
    parallelism: Option<u32>,
}

/// `weir sql`.
#[derive(Debug, Args)]
pub(crate) struct SqlArgs {
    /// Run these statements and end; may be given more than once
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,
    /// Run the statements of a file and end; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// How rows are printed
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Connection URL, instead of host and port: postgres://user@host:port/weir
    #[arg(long, value_name = "URL", env = "WEIR_URL", conflicts_with_all = ["host", "port", "user"])]
    url: Option<String>,
    /// Host of the server
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port of the server
    #[arg(long, short, default_value_t = 4577)]
    port: u16,
    /// User to be known as
    #[arg(long, short = 'U', default_value = "weir")]
    user: String,
}

/// `weir run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The script; - is standard input
    script: PathBuf,
    /// Keep data here instead of in a temporary directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How rows are printed
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// YAML file of options
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Subtasks of each operator [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    parallelism: Option<u32>,
}

/// `weir checkpoint`.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// List the completed checkpoints below a URL (of a store, a job or one checkpoint)
    List {
        /// Where to look: file:, s3:, gs:, az: or a path
        url: String,
        /// How the list is printed
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
    },
    /// Show what one checkpoint consists of (the newest one for a job's URL)
    Show {
        /// The checkpoint, its _metadata, or its job
        url: String,
    },
    /// Read everything that checkpoints refer to and compare the checksums
    Verify {
        /// The checkpoint, its job, or the whole store
        url: String,
    },
}

/// `weir nexmark`.
#[derive(Debug, Args)]
pub(crate) struct NexmarkArgs {
    /// Directory to write into
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of events: persons, auctions and bids together
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    events: u64,
    /// Number of files of each kind
    #[arg(long, value_name = "N", default_value_t = 1)]
    parts: u32,
}

/// Why a command ended without success: said on standard error.
#[derive(Debug)]
pub enum Failure {
    /// With Weir's code, hint and detail.
    Sql(Box<SqlError>),
    /// One sentence.
    Message(String),
    /// It has been said already.
    Reported,
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        Self::Sql(Box::new(error))
    }
}

impl From<weir_storage::StorageError> for Failure {
    fn from(error: weir_storage::StorageError) -> Self {
        Self::Message(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Message(error.to_string())
    }
}

impl Failure {
    fn report(&self) {
        match self {
            Self::Sql(error) => eprint!("{}", output::error_text(error.as_ref(), None)),
            Self::Message(message) => eprintln!("error: {message}"),
            Self::Reported => {}
        }
    }
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(args) => blocking(serve::serve(args)),
        Command::Sql(args) => shell::run(args),
        Command::Run(args) => blocking(run::run(args)),
        Command::Checkpoint(command) => blocking(checkpoint::run(command)),
        Command::Nexmark(args) => nexmark::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            ExitCode::FAILURE
        }
    }
}

/// Runs a future on the server's runtime: doors, sessions and batch queries. The dataflow has a runtime of its own.
fn blocking<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("weir-server")
        .enable_all()
        .build()
        .map_err(|e| Failure::Message(format!("cannot start threads: {e}")))?;
    let result = runtime.block_on(work);
    // A read of standard input cannot be interrupted; ending must not wait for it.
    runtime.shutdown_background();
    result
}

/// Reads a script; `-` is standard input.
fn read_script(path: &std::path::Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        return Ok(std::io::read_to_string(std::io::stdin())?);
    }
    std::fs::read_to_string(path).map_err(|e| Failure::Message(format!("cannot read {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_nearest() {
        let error = Cli::try_parse_from(["weir", "serve", "--listen-sq", "127.0.0.1:1"]).unwrap_err().to_string();
        assert!(error.contains("--listen-sql"), "{error}");
        let error = Cli::try_parse_from(["weir", "sreve"]).unwrap_err().to_string();
        assert!(error.contains("serve"), "{error}");
    }

    #[test]
    fn options_of_the_contract_are_there() {
        for line in [
            "weir serve --data-dir d --store file:d --listen-sql 127.0.0.1:1 --listen-http 127.0.0.1:2 --parallelism 2",
            "weir sql -c SELECT --format json",
            "weir sql -f x.sql --format csv --host h --port 1",
            "weir run x.sql --format table",
            "weir checkpoint list file:x",
            "weir checkpoint show file:x",
            "weir checkpoint verify file:x",
            "weir nexmark --out d --events 10 --parts 2",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap();
        }
    }
}
