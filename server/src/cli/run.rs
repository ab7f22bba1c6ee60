//! `weir run`: a script in this process, to the end of its bounded inputs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::TryStreamExt;
use weir_planner::{ErrorKind, Parsed, SqlError, Statement};
use weir_runtime::graph::Emit;

use super::config_file::ConfigFile;
use super::output::{Format, Printer, Value, error_text};
use super::{Failure, RunArgs, read_script};
use crate::config::{Config, cores};
use crate::engine::Engine;
use crate::error::from_datafusion;
use crate::pg::encode::{copy_text, text_rows};
use crate::pg::types::pg_type;
use crate::session::{Outcome, Session};

pub(super) async fn run(args: RunArgs) -> Result<(), Failure> {
    let script = read_script(&args.script)?;
    let file = ConfigFile::read(args.config.as_ref())?;
    // The script is read before anything is started: a slip at its end should not cost a run.
    let statements = weir_planner::parse(&script).map_err(|error| said(&error, &script))?;
    for parsed in &statements {
        refuse_endless(&parsed.statement).map_err(|error| said(&error, &script))?;
    }
    let data = match args.data_dir {
        Some(dir) => DataDir { path: dir, temporary: false },
        None => DataDir::temporary()?,
    };
    let mut config = Config::embedded(&data.path);
    config.parallelism = args.parallelism.unwrap_or_else(cores);
    config.options = file.options;
    config.store_options = file.store;
    let engine = Engine::start(config).await?;
    let result = tokio::select! {
        result = execute(&engine, &statements, &script, args.format) => result,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            Err(Failure::Message("interrupted".into()))
        }
    };
    engine.shutdown().await;
    result
}

async fn execute(engine: &Arc<Engine>, script: &[Parsed], text: &str, format: Format) -> Result<(), Failure> {
    let mut session = engine.session(crate::pg::DATABASE);
    for parsed in script {
        if reads(&parsed.statement) {
            engine.drain().await?;
        }
        statement(&mut session, parsed, format).await.map_err(|problem| match problem {
            Problem::Sql(error) => said(&error, text),
            Problem::Output(error) => Failure::Message(format!("the rows cannot be written: {error}")),
        })?;
    }
    // What the script has started runs to the end of its input, so that its sinks are complete.
    engine.drain().await?;
    Ok(())
}

enum Problem {
    Sql(SqlError),
    Output(std::io::Error),
}

impl From<SqlError> for Problem {
    fn from(error: SqlError) -> Self {
        Self::Sql(error)
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

async fn statement(session: &mut Session, parsed: &Parsed, format: Format) -> Result<(), Problem> {
    match session.execute(parsed, &[]).await? {
        Outcome::Rows { schema, mut rows, .. } => {
            let types: Vec<_> = schema.fields().iter().map(|field| pg_type(field)).collect();
            let mut printer = Printer::new(format, schema.fields().iter().map(|f| f.name().clone()).collect());
            while let Some(batch) = rows.try_next().await.map_err(from_datafusion)? {
                for row in text_rows(&batch)? {
                    printer.row(row.into_iter().zip(&types).map(|(text, ty)| Value::new(text, ty)).collect());
                }
                if format != Format::Table {
                    printer.flush(&mut std::io::stdout().lock())?;
                }
            }
            printer.finish(&mut std::io::stdout().lock())?;
        }
        Outcome::CopyOut { mut rows, .. } => {
            while let Some(batch) = rows.try_next().await.map_err(from_datafusion)? {
                std::io::stdout().lock().write_all(&copy_text(&batch)?)?;
            }
        }
        Outcome::Command { tag, notices } => {
            for notice in notices {
                eprintln!("notice: {notice}");
            }
            if format == Format::Table {
                println!("{tag}");
            }
        }
    }
    Ok(())
}

/// Whether a statement looks at what queries have computed.
fn reads(statement: &Statement) -> bool {
    match statement {
        Statement::Query(_) | Statement::CopyQuery(_) | Statement::Show(_) | Statement::DeclareCursor { .. } => true,
        Statement::Update(_) | Statement::Delete(_) => true,
        Statement::Explain { analyze, .. } => *analyze,
        Statement::Insert(insert) => insert.source.is_some(),
        _ => false,
    }
}

/// What goes on until it is cancelled has no place in a script that ends.
fn refuse_endless(statement: &Statement) -> Result<(), SqlError> {
    let endless = match statement {
        Statement::Subscribe(_) | Statement::CopySubscribe(_) => true,
        Statement::Query(query) | Statement::CopyQuery(query) => query.emit == Some(Emit::Changes),
        _ => false,
    };
    if !endless {
        return Ok(());
    }
    Err(SqlError::new(ErrorKind::UNSUPPORTED, "a subscription does not end, and `weir run` waits for the end")
        .hint("SELECT the final rows, or run the script with `weir serve` and `weir sql`"))
}

fn said(error: &SqlError, script: &str) -> Failure {
    eprint!("{}", error_text(error, Some(script)));
    Failure::Reported
}

/// Where the run keeps its data; a temporary directory goes when the run ends.
struct DataDir {
    path: PathBuf,
    temporary: bool,
}

impl DataDir {
    fn temporary() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("weir-run-{}", uuid::Uuid::new_v4()));
        create(&path)?;
        Ok(Self { path, temporary: true })
    }
}

fn create(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(|e| Failure::Message(format!("cannot create {}: {e}", path.display())))
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "the temporary directory was not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(sql: &str) -> Statement {
        weir_planner::parse(sql).unwrap().remove(0).statement
    }

    #[test]
    fn what_does_not_end_is_refused_before_the_run() {
        assert!(refuse_endless(&one("SUBSCRIBE TO v")).is_err());
        assert!(refuse_endless(&one("SELECT * FROM v EMIT CHANGES")).is_err());
        assert!(refuse_endless(&one("SELECT * FROM v")).is_ok());
    }

    #[test]
    fn reading_waits_for_the_end_of_the_input() {
        assert!(reads(&one("SELECT * FROM v")));
        assert!(!reads(&one("SET 'execution.checkpointing.interval' = '1s'")));
        assert!(!reads(&one("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM s")));
    }

    #[test]
    fn a_temporary_directory_goes() {
        let dir = DataDir::temporary().unwrap();
        let path = dir.path.clone();
        assert!(path.is_dir());
        drop(dir);
        assert!(!path.exists());
    }
}
