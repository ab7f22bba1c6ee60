//! The cases of `tests/cases/*.slt`: SQL with its answer, run as a batch, as streams, and as streams with crashes and
//! changes of parallelism.
//!
//! ```text
//!   joins.slt ──► records ─┬─ batch.rs    DataFusion over the same files
//!                          ├─ stream      one server; each query a view, created first and compared at the end
//!                          ├─ crash       the same, killed while the views come to be
//!                          └─ rescale     the same, and started with another parallelism each time
//! ```
//!
//! The files are sqllogictest's, with cells parted by ` | `, `(empty)` for an empty text, and two variables: `$DATA` is
//! `tests/cases/data`, `$SAMPLES` is `sql-examples/data`. `# batch: <sql>` in the comment above a record is what
//! the batch runs instead (EMIT and TUMBLE mean nothing to it); `# batch: skip` leaves the record out there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqllogictest::{ColumnType, Record};

use crate::rows::difference;
use crate::{Row, root};

/// What parts the cells of an answer's line.
pub const SEPARATOR: &str = " | ";

/// What a column holds, as one letter of `query TIN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `B`
    Boolean,
    /// `I`: smallint, int, bigint
    Integer,
    /// `R`: real, double precision
    Float,
    /// `N`
    Numeric,
    /// `T`: text and what is carried as text
    Text,
    /// `D`
    Date,
    /// `C`: clock
    Time,
    /// `P`: point in time without zone
    Timestamp,
    /// `Z`: with zone
    TimestampTz,
    /// `V`
    Interval,
    /// `X`: hexadecimal
    Bytes,
    /// `A`
    Array,
    /// `?`: a struct, or anything
    Other,
}

const KINDS: &[(char, Kind)] = &[
    ('B', Kind::Boolean),
    ('I', Kind::Integer),
    ('R', Kind::Float),
    ('N', Kind::Numeric),
    ('T', Kind::Text),
    ('D', Kind::Date),
    ('C', Kind::Time),
    ('P', Kind::Timestamp),
    ('Z', Kind::TimestampTz),
    ('V', Kind::Interval),
    ('X', Kind::Bytes),
    ('A', Kind::Array),
    ('?', Kind::Other),
];

impl ColumnType for Kind {
    fn from_char(value: char) -> Option<Self> {
        KINDS.iter().find(|(c, _)| *c == value).map(|(_, kind)| *kind)
    }

    fn to_char(&self) -> char {
        KINDS.iter().find(|(_, kind)| kind == self).map_or('?', |(c, _)| *c)
    }
}

/// A record and what the batch runs instead of its text.
#[derive(Debug, Clone)]
pub struct Item {
    /// As the file has it.
    pub record: Record<Kind>,
    /// From `# batch:`.
    pub batch: Option<String>,
}

/// A file of cases.
#[derive(Debug, Clone)]
pub struct CaseFile {
    /// Where it is.
    pub path: PathBuf,
    /// In order.
    pub items: Vec<Item>,
}

impl CaseFile {
    /// Its name without directory and extension.
    pub fn name(&self) -> &str {
        self.path.file_stem().unwrap().to_str().unwrap()
    }

    /// Reads and parses a file.
    pub fn read(path: &Path) -> Self {
        let records = sqllogictest::parse_file(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut batch = None;
        let mut items = Vec::new();
        for record in records {
            match &record {
                Record::Comment(lines) => batch = override_of(lines),
                Record::Newline => {}
                _ => {
                    items.push(Item { record, batch: batch.take() });
                    continue;
                }
            }
            items.push(Item { record, batch: None });
        }
        Self { path: path.to_path_buf(), items }
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.items.iter().filter(|item| matches!(item.record, Record::Query { .. })).count()
    }
}

/// The SQL behind `batch:`, which may go on over the comment's following lines.
fn override_of(lines: &[String]) -> Option<String> {
    let start = lines.iter().position(|line| line.trim_start().starts_with("batch:"))?;
    let first = lines[start].trim_start().trim_start_matches("batch:");
    let rest = lines[start + 1..].iter().map(String::as_str);
    Some(std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n").trim().to_owned())
}

/// All files, those only whose name holds `WEIR_CASES` if that is set.
pub fn files() -> Vec<CaseFile> {
    let wanted = std::env::var("WEIR_CASES").unwrap_or_default();
    let directory = root().join("tests/cases");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "slt") && p.to_string_lossy().contains(&wanted));
    paths.sort();
    paths.iter().map(|path| CaseFile::read(path)).collect()
}

/// `$DATA` and `$SAMPLES` replaced.
pub fn substituted(sql: &str) -> String {
    let data = root().join("tests/cases/data");
    let samples = root().join("sql-examples/data");
    sql.replace("$DATA", data.to_str().unwrap()).replace("$SAMPLES", samples.to_str().unwrap())
}

/// Cells as they stand in a file.
pub fn written(rows: &[Row]) -> Vec<Vec<String>> {
    let cell = |cell: &Option<String>| match cell.as_deref() {
        None => "NULL".to_owned(),
        Some("") => "(empty)".to_owned(),
        Some(text) => text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t"),
    };
    rows.iter().map(|row| row.iter().map(cell).collect()).collect()
}

fn read_back(cell: &str) -> Option<String> {
    (cell != "NULL").then(|| cell.to_owned())
}

/// The runner's validator: same rows in any order, floats within a tolerance.
pub fn same_rows(_: sqllogictest::Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    let actual = actual.iter().map(|row| row.iter().map(|cell| read_back(cell)).collect()).collect();
    let expected = expected.iter().map(|line| line.split(SEPARATOR).map(read_back).collect()).collect();
    difference(actual, expected).is_none()
}

/// The runner's validator of column types.
#[allow(clippy::ptr_arg)]
pub fn same_kinds(actual: &Vec<Kind>, expected: &Vec<Kind>) -> bool {
    actual.len() == expected.len()
        && actual.iter().zip(expected).all(|(a, e)| a == e || *e == Kind::Other || *a == Kind::Other)
}

/// An error of a database under test.
#[derive(Debug, Clone)]
pub struct CaseError {
    /// SQLSTATE, if there is one.
    pub state: Option<String>,
    /// SQLSTATE, message and hint.
    pub text: Arc<str>,
}

impl CaseError {
    /// From anything that tells itself.
    pub fn new(error: impl std::fmt::Display) -> Self {
        Self { state: None, text: error.to_string().into() }
    }
}

impl From<tokio_postgres::Error> for CaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self { state: error.code().map(|c| c.code().to_owned()), text: crate::process::describe(&error).into() }
    }
}

impl std::fmt::Display for CaseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CaseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_a_missing_and_a_superfluous_row_are_noticed() {
        let same = |actual: &[&[&str]], expected: &[&str]| {
            let actual: Vec<Vec<String>> = actual.iter().map(|r| r.iter().map(|c| (*c).to_owned()).collect()).collect();
            let expected: Vec<String> = expected.iter().map(|r| (*r).to_owned()).collect();
            same_rows(|s| s.clone(), &actual, &expected)
        };
        assert!(same(&[&["b", "2.0"], &["a", "NULL"]], &["a | NULL", "b | 2.0000000000001"]));
        assert!(!same(&[&["a", "2"]], &["a | 3"]));
        assert!(!same(&[&["a", "2"]], &["a | 2", "a | 2"]));
        assert!(!same(&[&["a", "2"], &["a", "2"]], &["a | 2"]));
        assert!(!same(&[&["a", "(empty)"]], &["a | NULL"]));
        assert!(!same(&[&["a", "2.0"]], &["a | 2.0001"]));
    }

    #[test]
    fn every_letter_names_one_kind() {
        for (letter, kind) in KINDS {
            assert_eq!((Kind::from_char(*letter), kind.to_char()), (Some(*kind), *letter));
        }
        assert!(!same_kinds(&vec![Kind::Integer], &vec![Kind::Numeric]));
        assert!(!same_kinds(&vec![Kind::Integer], &vec![]));
    }

    #[test]
    fn the_batch_text_is_taken_from_the_comment() {
        let lines = ["a window", " batch: SELECT 1", "   FROM t"].map(str::to_owned);
        assert_eq!(override_of(&lines).as_deref(), Some("SELECT 1\n   FROM t"));
        assert_eq!(override_of(&lines[..1]), None);
    }
}
