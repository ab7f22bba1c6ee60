//! The tour of the README prints what the README says.

use std::path::Path;
use std::time::{Duration, Instant};

use weir_tests::process::PATIENCE;
use weir_tests::{Weir, root};

use super::clients::{psql, text};

/// A fenced block: its language and its lines.
struct Block<'a> {
    language: &'a str,
    lines: Vec<&'a str>,
    /// What stands above it since the block before.
    before: String,
}

fn blocks(markdown: &str) -> Vec<Block<'_>> {
    let (mut blocks, mut open, mut before) = (Vec::new(), None, String::new());
    for line in markdown.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block { language, lines: Vec::new(), before: std::mem::take(&mut before) });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line),
            (None, None) => before.push_str(line),
        }
    }
    blocks
}

/// What was typed at `prompt`, each with the lines that were printed.
fn typed<'a>(block: &Block<'a>, prompt: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut typed: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in &block.lines {
        match (line.strip_prefix(prompt), typed.last_mut()) {
            (Some(statement), _) => typed.push((statement, Vec::new())),
            (None, Some((_, printed))) => printed.push(line.trim_end()),
            (None, None) => {}
        }
    }
    typed
}

fn printed(mut command: std::process::Command) -> Vec<String> {
    let output = command.output().unwrap();
    text(&output).lines().map(|l| l.trim_end().to_owned()).filter(|l| !l.is_empty() && !l.contains("NOTICE:")).collect()
}

/// Repeats `run` until it prints `expected`: what is read follows what was written by an epoch or a checkpoint.
fn until_printed(what: &str, expected: &[&str], run: impl Fn() -> Vec<String>) {
    let until = Instant::now() + PATIENCE;
    loop {
        let given = run();
        if given == expected {
            return;
        }
        assert!(Instant::now() < until, "{what}\nprints\n{}\ninstead of\n{}", given.join("\n"), expected.join("\n"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn tour(weir: &mut Weir, readme: &str, late: &Path) {
    let late = late.to_str().unwrap();
    let mut compared = 0;
    for block in blocks(readme) {
        if block.before.contains("kill -9") {
            weir.kill();
            weir.run();
        }
        let sql = |weir: &Weir, statement: &str| {
            let mut command = psql(weir);
            command.args(["-c", &statement.replace("/tmp/late", late)]);
            printed(command)
        };
        if block.language == "sql" {
            let said = sql(weir, &block.lines.join("\n")).join("\n");
            assert!(!said.contains("ERROR"), "{said}");
        }
        for (statement, expected) in typed(&block, "weir=> ") {
            if expected.is_empty() || statement.contains("weir.checkpoints") {
                // Checkpoints come by time and their sizes change from version to version; that the words are there is enough.
                let said = sql(weir, statement).join("\n");
                assert!(!said.contains("ERROR"), "{statement}\n{said}");
                assert!(expected.is_empty() || said.contains("of state inside the manifest"), "{statement}\n{said}");
                continue;
            }
            if statement.starts_with("SELECT") || expected[0].starts_with("ERROR") {
                until_printed(statement, &expected, || sql(weir, statement));
            } else {
                assert_eq!(sql(weir, statement), expected, "{statement}");
            }
            compared += 1;
        }
        for (line, expected) in typed(&block, "$ ") {
            until_printed(line, &expected, || {
                let mut shell = std::process::Command::new("sh");
                shell.args(["-c", &line.replace("/tmp/late", late)]);
                printed(shell)
            });
            compared += 1;
        }
    }
    assert!(compared >= 7, "only {compared} outputs were found in the README");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tour_prints_what_the_readme_says() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::new(&directory.path().join("data")).started_in(&root().join("sql-examples"));
    weir.run();
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let late = directory.path().join("late");
    tokio::task::block_in_place(|| tour(&mut weir, &readme, &late));
}
