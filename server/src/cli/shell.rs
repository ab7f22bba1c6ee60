//! `weir sql`: the interactive shell, `-c` and `-f`.

use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Editor};
use weir_planner::{Parsed, Statement};

use super::client::Client;
use super::complete::Editing;
use super::output::{Format, error_text};
use super::{Failure, SqlArgs, read_script};

const HELP: &str = r"Statements end with a semicolon and may span lines. Tab completes names and keywords.
  \d          streams, tables, views and sinks
  \d NAME     columns of one of them
  \ds \dt \dv \dk \dq   streams, tables, views, sinks, queries
  \?          this help
  \q          end (also Ctrl-D)
Ctrl-C cancels the running statement.";

/// Runs statements given with -c and -f, or else the shell.
pub(super) fn run(args: SqlArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = runtime.block_on(Client::connect(&args))?;
    let mut scripts = args.command.clone();
    for file in &args.file {
        scripts.push(read_script(file)?);
    }
    if !scripts.is_empty() {
        return runtime.block_on(async {
            for script in &scripts {
                run_script(&client, script, args.format).await?;
            }
            Ok(())
        });
    }
    let mut shell = Shell::new(client, args.format)?;
    shell.learn_names(&runtime);
    println!("weir {} — \\? for help, \\q to end", env!("CARGO_PKG_VERSION"));
    shell.converse(&runtime)
}

/// Runs statements in order; the first that fails ends the script.
async fn run_script(client: &Client, script: &str, format: Format) -> Result<(), Failure> {
    for statement in parse(script)? {
        client.run(&statement, format).await?;
    }
    Ok(())
}

fn parse(script: &str) -> Result<Vec<Parsed>, Failure> {
    weir_planner::parse(script).map_err(|error| {
        eprint!("{}", error_text(&error, Some(script)));
        Failure::Reported
    })
}

/// The interactive shell.
struct Shell {
    client: Client,
    format: Format,
    editor: Editor<Editing, DefaultHistory>,
    history: Option<PathBuf>,
}

impl Shell {
    fn new(client: Client, format: Format) -> Result<Self, Failure> {
        let config = Config::builder()
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .auto_add_history(true)
            .build();
        let mut editor = Editor::with_config(config).map_err(|e| Failure::Message(format!("no terminal: {e}")))?;
        editor.set_helper(Some(Editing::default()));
        let history = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".weir_history"));
        if let Some(path) = &history {
            // There is none the first time.
            let _ = editor.load_history(path);
        }
        Ok(Self { client, format, editor, history })
    }

    fn learn_names(&mut self, runtime: &tokio::runtime::Runtime) {
        let names = runtime.block_on(self.client.names());
        if let Some(editing) = self.editor.helper_mut() {
            editing.names = names;
        }
    }

    fn converse(&mut self, runtime: &tokio::runtime::Runtime) -> Result<(), Failure> {
        loop {
            match self.editor.readline("weir=> ") {
                Ok(input) if input.trim().is_empty() => {}
                Ok(input) => {
                    if input.trim() == "\\q" {
                        break;
                    }
                    self.obey(runtime, input.trim());
                    if self.client.is_closed() {
                        self.remember();
                        return Err(Failure::Message("the server has closed the connection".into()));
                    }
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(Failure::Message(format!("cannot read the terminal: {error}"))),
            }
        }
        self.remember();
        Ok(())
    }

    /// Runs what was typed. Errors are said and the shell goes on.
    fn obey(&mut self, runtime: &tokio::runtime::Runtime, input: &str) {
        let script = match input.strip_prefix('\\') {
            None => input.to_owned(),
            Some(command) => match translate(command) {
                Some(script) => script,
                None => {
                    if command != "?" {
                        eprintln!("there is no command \\{command}");
                    }
                    println!("{HELP}");
                    return;
                }
            },
        };
        let statements = match parse(&script) {
            Ok(statements) => statements,
            Err(failure) => return failure.report(),
        };
        let defines = statements.iter().any(|parsed| {
            matches!(
                parsed.statement,
                Statement::CreateStream(_)
                    | Statement::CreateStreamAs(_)
                    | Statement::CreateTable(_)
                    | Statement::CreateMaterializedView(_)
                    | Statement::CreateSink(_)
                    | Statement::Drop(_)
            )
        });
        for parsed in &statements {
            if let Err(failure) = runtime.block_on(self.client.run(parsed, self.format)) {
                failure.report();
                break;
            }
        }
        if defines {
            self.learn_names(runtime);
        }
    }

    fn remember(&mut self) {
        if let Some(path) = &self.history
            && let Err(error) = self.editor.save_history(path)
        {
            eprintln!("the history was not saved to {}: {error}", path.display());
        }
    }
}

/// The statements that a command of the shell stands for.
fn translate(command: &str) -> Option<String> {
    let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let argument = argument.trim().trim_end_matches(';').trim();
    Some(match (name, argument) {
        ("d", "") => "SHOW STREAMS; SHOW TABLES; SHOW VIEWS; SHOW SINKS".to_owned(),
        ("d", relation) => format!("DESCRIBE {relation}"),
        ("ds", "") => "SHOW STREAMS".to_owned(),
        ("dt", "") => "SHOW TABLES".to_owned(),
        ("dv", "") => "SHOW VIEWS".to_owned(),
        ("dk", "") => "SHOW SINKS".to_owned(),
        ("dq", "") => "SHOW QUERIES".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_statements() {
        assert_eq!(translate("d flights;").as_deref(), Some("DESCRIBE flights"));
        assert_eq!(translate("dt").as_deref(), Some("SHOW TABLES"));
        assert_eq!(translate("x"), None);
        for command in ["d", "d t", "ds", "dt", "dv", "dk", "dq"] {
            weir_planner::parse(&translate(command).unwrap()).unwrap();
        }
    }
}
