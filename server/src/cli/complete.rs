//! Editing of statements: when a statement is complete, and what a word may become.

use rustyline::completion::Completer;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Highlighter, Hinter};

/// Words that statements are made of.
const KEYWORDS: &[&str] = &[
    "ALL",
    "ALTER QUERY",
    "AND",
    "AS",
    "ASC",
    "AVG",
    "BETWEEN",
    "BIGINT",
    "BOOLEAN",
    "BY",
    "BYTEA",
    "CASCADE",
    "CASE",
    "CAST",
    "CHECKPOINT",
    "COPY",
    "COUNT",
    "CREATE MATERIALIZED VIEW",
    "CREATE SINK",
    "CREATE STREAM",
    "CREATE TABLE",
    "DATE",
    "DELETE FROM",
    "DESC",
    "DESCRIBE",
    "DESCRIPTOR",
    "DISTINCT",
    "DOUBLE PRECISION",
    "DROP",
    "ELSE",
    "EMIT CHANGES",
    "EMIT ON WINDOW CLOSE",
    "END",
    "EXISTS",
    "EXPLAIN",
    "EXPLAIN ANALYZE",
    "FALSE",
    "FROM",
    "GENERATED ALWAYS AS",
    "GROUP BY",
    "HAVING",
    "HOP",
    "IF EXISTS",
    "IF NOT EXISTS",
    "IN",
    "INNER JOIN",
    "INSERT INTO",
    "INT",
    "INTERVAL",
    "IS NOT NULL",
    "IS NULL",
    "JOIN",
    "JSON",
    "LEFT JOIN",
    "LIKE",
    "LIMIT",
    "MAX",
    "MIN",
    "NOT",
    "NULL",
    "NUMERIC",
    "OFFSET",
    "ON",
    "OR",
    "ORDER BY",
    "PAUSE",
    "PRIMARY KEY",
    "RESET",
    "RESUME",
    "SELECT",
    "SET",
    "SHOW ALL",
    "SHOW CHECKPOINTS",
    "SHOW CREATE",
    "SHOW QUERIES",
    "SHOW SINKS",
    "SHOW STREAMS",
    "SHOW TABLES",
    "SHOW VIEWS",
    "SUBSCRIBE TO",
    "SUM",
    "TABLE",
    "TEXT",
    "THEN",
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "TRUE",
    "TUMBLE",
    "UNION ALL",
    "UPDATE",
    "USING",
    "VALUES",
    "WATERMARK FOR",
    "WHEN",
    "WHERE",
    "WITH",
];

/// What rustyline asks while a statement is typed.
#[derive(Helper, Highlighter, Hinter, Default)]
pub(super) struct Editing {
    /// Names of relations and columns.
    pub(super) names: Vec<String>,
}

impl Completer for Editing {
    type Candidate = String;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(candidates(&self.names, line, position))
    }
}

impl Validator for Editing {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let complete = is_complete(context.input());
        Ok(if complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

/// Where the word at `position` starts, and what it may become. Keywords keep the case in which they were begun.
fn candidates(names: &[String], line: &str, position: usize) -> (usize, Vec<String>) {
    let before = line.get(..position).unwrap_or(line);
    let start = before
        .char_indices()
        .rev()
        .find(|(_, c)| !(c.is_alphanumeric() || *c == '_'))
        .map_or(0, |(index, c)| index + c.len_utf8());
    let word = &before[start..];
    if word.is_empty() {
        return (start, Vec::new());
    }
    let lower = word.to_lowercase();
    let mut found: Vec<String> = names.iter().filter(|name| name.to_lowercase().starts_with(&lower)).cloned().collect();
    let upper_case = word.chars().all(|c| !c.is_lowercase());
    let keywords = KEYWORDS.iter().filter(|keyword| keyword.to_lowercase().starts_with(&lower));
    found.extend(keywords.map(|keyword| if upper_case { (*keyword).to_owned() } else { keyword.to_lowercase() }));
    (start, found)
}

/// Whether what has been typed can be run: nothing, a command of the shell, or statements up to a semicolon that is
/// not inside quotes or a comment.
pub(super) fn is_complete(input: &str) -> bool {
    let trimmed = input.trim();
    if trimmed.is_empty() || trimmed.starts_with('\\') {
        return true;
    }
    let (mut rest, mut ended) = (trimmed, false);
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("--") {
            rest.find('\n').map(|end| end + 1)
        } else if rest.starts_with("/*") {
            rest.find("*/").map(|end| end + 2)
        } else if c == '\'' || c == '"' {
            ended = false;
            rest[1..].find(c).map(|end| end + 2)
        } else if let Some(tag) = dollar_tag(rest) {
            ended = false;
            rest[tag.len()..].find(tag).map(|end| end + 2 * tag.len())
        } else {
            if !c.is_whitespace() {
                ended = c == ';';
            }
            Some(c.len_utf8())
        };
        match skipped {
            Some(length) => rest = &rest[length..],
            // A comment to the end is no part of the statement; an open quote is.
            None => return ended && rest.starts_with("--"),
        }
    }
    ended
}

/// `$$` or `$tag$` at the start.
fn dollar_tag(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('$')?;
    let end = inner.find('$')?;
    let name = &inner[..end];
    let is_tag =
        name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.starts_with(|c: char| c.is_ascii_digit());
    is_tag.then(|| &text[..end + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_ends_at_its_semicolon() {
        for complete in
            ["", "\\d flights", "SELECT 1;", "SELECT ';' ; ", "SELECT 1; -- done", "SELECT $$;$$;", "a;\nb;"]
        {
            assert!(is_complete(complete), "{complete}");
        }
        for open in ["SELECT 1", "SELECT ';", "SELECT \"a;", "SELECT 1 -- ;", "SELECT 1 /* ;", "SELECT $x$;", "a; b"] {
            assert!(!is_complete(open), "{open}");
        }
    }

    #[test]
    fn words_are_completed_in_their_case() {
        let names = ["departures".to_owned(), "dep_delay".to_owned()];
        assert_eq!(candidates(&names, "SELECT dep", 10), (7, names.to_vec()));
        assert_eq!(candidates(&[], "sel", 3), (0, vec!["select".to_owned()]));
        assert_eq!(candidates(&[], "SEL", 3).1, ["SELECT"]);
        assert_eq!(candidates(&names, "SELECT ", 7).1, Vec::<String>::new());
        assert_eq!(candidates(&names, "FROM flights.dep", 16).0, 13);
    }
}
