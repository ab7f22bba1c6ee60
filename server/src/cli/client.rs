//! A connection to a server, and statements run over it.

use std::io::Write;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Config, NoTls, SimpleQueryMessage};
use weir_planner::{Parsed, Statement};
use weir_runtime::graph::Emit;

use super::output::{ErrorView, Format, Printer, Value, error_text};
use super::{Failure, SqlArgs};

/// A connection.
pub(super) struct Client {
    client: tokio_postgres::Client,
}

impl Client {
    /// Connects as the arguments say.
    pub(super) async fn connect(args: &SqlArgs) -> Result<Self, Failure> {
        let config = match &args.url {
            Some(url) => {
                url.parse::<Config>().map_err(|e| Failure::Message(format!("\"{url}\" is no connection URL: {e}")))?
            }
            None => {
                let mut config = Config::new();
                config.host(&args.host).port(args.port).user(&args.user).dbname(crate::pg::DATABASE);
                config
            }
        };
        let mut config = config;
        config.application_name("weir sql").connect_timeout(Duration::from_secs(10));
        let (client, mut connection) = config.connect(NoTls).await.map_err(|error| match error.as_db_error() {
            Some(error) => {
                Failure::Message(error_text(error, None).trim_start_matches("error: ").trim_end().to_owned())
            }
            None => Failure::Message(format!(
                "no server answers at {}: {}; `weir serve` starts one",
                args.url.clone().unwrap_or_else(|| format!("{}:{}", args.host, args.port)),
                root(&error)
            )),
        })?;
        tokio::spawn(async move {
            let mut messages = futures::stream::poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notice(notice) = message {
                    eprintln!("{}: {}", notice.severity().to_lowercase(), notice.message());
                }
            }
        });
        Ok(Self { client })
    }

    /// Whether the server has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs a statement and prints what it answers. Ctrl-C cancels it at the server.
    pub(super) async fn run(&self, parsed: &Parsed, format: Format) -> Result<(), Failure> {
        let running = self.statement(parsed, format);
        tokio::pin!(running);
        loop {
            tokio::select! {
                result = &mut running => return result.map_err(|error| report(&error, &parsed.sql)),
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted?;
                    if self.client.cancel_token().cancel_query(NoTls).await.is_err() {
                        return Err(Failure::Message("the server could not be reached to cancel the statement".into()));
                    }
                }
            }
        }
    }

    async fn statement(&self, parsed: &Parsed, format: Format) -> Result<(), Trouble> {
        if matches!(parsed.statement, Statement::CopySubscribe(_) | Statement::CopyQuery(_)) {
            let rows = self.client.copy_out(parsed.sql.as_str()).await?;
            tokio::pin!(rows);
            while let Some(bytes) = rows.try_next().await? {
                let mut out = std::io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            return Ok(());
        }
        let types = self.types(&parsed.statement, &parsed.sql).await;
        let endless = is_endless(&parsed.statement);
        let answer = self.client.simple_query_raw(&parsed.sql).await?;
        tokio::pin!(answer);
        let mut printer: Option<Printer> = None;
        while let Some(message) = answer.try_next().await? {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    printer = Some(Printer::new(format, columns.iter().map(|c| c.name().to_owned()).collect()));
                }
                SimpleQueryMessage::Row(row) => {
                    let value = |index: usize| {
                        let ty = types.get(index).cloned().unwrap_or(Type::TEXT);
                        Value::new(row.get(index).map(str::to_owned), &ty)
                    };
                    if let Some(printer) = &mut printer {
                        printer.row((0..row.len()).map(value).collect());
                        if endless || format != Format::Table {
                            printer.flush(&mut std::io::stdout().lock())?;
                        }
                    }
                }
                SimpleQueryMessage::CommandComplete(rows) => match printer.take() {
                    Some(printer) => printer.finish(&mut std::io::stdout().lock())?,
                    None if format == Format::Table => println!("{}", command_tag(&parsed.statement, rows)),
                    None => {}
                },
                _ => {}
            }
        }
        Ok(())
    }

    /// The types of a statement's columns, for numbers in JSON and alignment in tables. Unknown ones are text.
    async fn types(&self, statement: &Statement, sql: &str) -> Vec<Type> {
        if !matches!(statement, Statement::Query(_) | Statement::Show(_) | Statement::Fetch { .. }) {
            return Vec::new();
        }
        match self.client.prepare(sql).await {
            Ok(prepared) => prepared.columns().iter().map(|column| column.type_().clone()).collect(),
            // The statement itself will say what is wrong with it.
            Err(_) => Vec::new(),
        }
    }

    /// Names for completion: relations and their columns.
    pub(super) async fn names(&self) -> Vec<String> {
        let sql = "SELECT table_name, column_name FROM information_schema.columns ORDER BY 1, 2";
        let mut names = Vec::new();
        for message in self.client.simple_query(sql).await.unwrap_or_default() {
            if let SimpleQueryMessage::Row(row) = message {
                names.extend((0..row.len()).filter_map(|index| row.get(index)).map(str::to_owned));
            }
        }
        names.sort();
        names.dedup();
        names
    }
}

/// Whether a statement goes on until it is cancelled.
fn is_endless(statement: &Statement) -> bool {
    match statement {
        Statement::Subscribe(_) => true,
        Statement::Query(query) => query.emit == Some(Emit::Changes),
        _ => false,
    }
}

/// What psql prints after a statement without rows.
pub(super) fn command_tag(statement: &Statement, rows: u64) -> String {
    match statement {
        Statement::Insert(_) => format!("INSERT 0 {rows}"),
        Statement::Update(_) | Statement::Delete(_) => format!("{} {rows}", statement.tag()),
        other => other.tag().to_owned(),
    }
}

/// What can go wrong while a statement runs.
enum Trouble {
    Server(tokio_postgres::Error),
    Output(std::io::Error),
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

/// Says what went wrong, pointing into the statement.
fn report(error: &Trouble, sql: &str) -> Failure {
    match error {
        Trouble::Server(error) => match error.as_db_error() {
            Some(error) => {
                eprint!("{}", error_text(ErrorView::from(error), Some(sql)));
                Failure::Reported
            }
            None => Failure::Message(format!("the connection to the server was lost: {}", root(error))),
        },
        // `weir sql … | head` has read enough.
        Trouble::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Failure::Reported,
        Trouble::Output(error) => Failure::Message(format!("the rows cannot be written: {error}")),
    }
}

/// The innermost cause.
fn root(error: &tokio_postgres::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
