//! How rows and errors are printed.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use weir_planner::SqlError;

/// How rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table with a heading.
    Table,
    /// Comma-separated values with a heading.
    Csv,
    /// One JSON object a row.
    Json,
}

/// A value as text, and whether JSON and tables take it for a number or the like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Null.
    Null,
    /// Text.
    Text(String),
    /// A number, boolean or JSON: as it stands.
    Raw(String),
}

/// Whether values of a PostgreSQL type stand unquoted in JSON.
pub fn is_raw(ty: &pgwire::api::Type) -> bool {
    use pgwire::api::Type;
    [
        Type::BOOL,
        Type::INT2,
        Type::INT4,
        Type::INT8,
        Type::OID,
        Type::FLOAT4,
        Type::FLOAT8,
        Type::NUMERIC,
        Type::JSON,
        Type::JSONB,
    ]
    .contains(ty)
}

impl Value {
    /// From psql's spelling.
    pub fn new(text: Option<String>, ty: &pgwire::api::Type) -> Self {
        use pgwire::api::Type;
        match text {
            None => Self::Null,
            Some(text) if *ty == Type::BOOL => Self::Raw((if text == "t" { "true" } else { "false" }).to_owned()),
            // JSON has no number for these.
            Some(text) if text.contains("NaN") || text.contains("Infinity") => Self::Text(text),
            Some(text) if is_raw(ty) => Self::Raw(text),
            Some(text) => Self::Text(text),
        }
    }

    fn shown(&self) -> &str {
        match self {
            Self::Null => "",
            Self::Text(text) | Self::Raw(text) => text,
        }
    }
}

/// Prints the rows of one result. CSV and JSON go out row by row; a table is printed when its widths are known.
pub struct Printer {
    format: Format,
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
    headed: bool,
    count: usize,
}

impl Printer {
    /// For a result with these columns.
    pub fn new(format: Format, columns: Vec<String>) -> Self {
        Self { format, columns, rows: Vec::new(), headed: false, count: 0 }
    }

    /// Takes a row.
    pub fn row(&mut self, row: Vec<Value>) {
        self.count += 1;
        self.rows.push(row);
    }

    /// Prints what has come, without waiting for more: for results that do not end.
    pub fn flush(&mut self, out: &mut impl Write) -> io::Result<()> {
        let rows = std::mem::take(&mut self.rows);
        match self.format {
            Format::Json => {
                for row in rows {
                    writeln!(out, "{}", self.json(&row))?;
                }
            }
            Format::Csv => {
                let mut writer = csv::WriterBuilder::new().from_writer(&mut *out);
                if !self.headed {
                    writer.write_record(&self.columns)?;
                }
                for row in rows {
                    writer.write_record(row.iter().map(Value::shown))?;
                }
                writer.flush()?;
            }
            Format::Table => {
                if !self.headed {
                    writeln!(out, "{}", self.columns.join(" | "))?;
                }
                for row in rows {
                    let values: Vec<&str> = row.iter().map(Value::shown).collect();
                    writeln!(out, "{}", values.join(" | "))?;
                }
            }
        }
        self.headed = true;
        out.flush()
    }

    /// Prints the rest.
    pub fn finish(mut self, out: &mut impl Write) -> io::Result<()> {
        if self.format != Format::Table || self.headed {
            return self.flush(out);
        }
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(&self.columns);
        for row in &self.rows {
            table.add_row(row.iter().map(Value::shown));
        }
        for index in 0..self.columns.len() {
            let numeric = self.rows.iter().any(|row| matches!(row.get(index), Some(Value::Raw(_))));
            if let (true, Some(column)) = (numeric, table.column_mut(index)) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(out, "{table}")?;
        writeln!(out, "({} row{})", self.count, if self.count == 1 { "" } else { "s" })?;
        out.flush()
    }

    fn json(&self, row: &[Value]) -> String {
        let mut text = String::from("{");
        for (index, (name, value)) in self.columns.iter().zip(row).enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(&quoted(name));
            text.push(':');
            match value {
                Value::Null => text.push_str("null"),
                Value::Raw(raw) => text.push_str(raw),
                Value::Text(string) => text.push_str(&quoted(string)),
            }
        }
        text.push('}');
        text
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

/// What there is to say about an error, wherever it came from.
#[derive(Debug, Clone, Copy, Default)]
pub struct ErrorView<'a> {
    /// The sentence.
    pub message: &'a str,
    /// Weir's code, if it is Weir's error.
    pub code: Option<&'a str>,
    /// PostgreSQL's state.
    pub sqlstate: &'a str,
    /// More about the cause.
    pub detail: Option<&'a str>,
    /// What to write instead.
    pub hint: Option<&'a str>,
    /// Where, in characters from 1.
    pub position: Option<usize>,
}

impl<'a> From<&'a SqlError> for ErrorView<'a> {
    fn from(error: &'a SqlError) -> Self {
        Self {
            message: &error.message,
            code: Some(error.code),
            sqlstate: error.sqlstate,
            detail: error.detail.as_deref(),
            hint: error.hint.as_deref(),
            position: error.position,
        }
    }
}

impl<'a> From<&'a tokio_postgres::error::DbError> for ErrorView<'a> {
    fn from(error: &'a tokio_postgres::error::DbError) -> Self {
        Self {
            message: error.message(),
            code: error.routine().filter(|code| code.starts_with("WEIR-")),
            sqlstate: error.code().code(),
            detail: error.detail(),
            hint: error.hint(),
            position: error.position().and_then(|position| match position {
                tokio_postgres::error::ErrorPosition::Original(at) => usize::try_from(*at).ok(),
                tokio_postgres::error::ErrorPosition::Internal { .. } => None,
            }),
        }
    }
}

/// An error with everything that helps, and a caret under its place in `sql`.
pub fn error_text<'a>(error: impl Into<ErrorView<'a>>, sql: Option<&str>) -> String {
    let error = error.into();
    let mut text = match error.code {
        Some(code) => format!("error: {} ({code}, {})\n", error.message, error.sqlstate),
        None => format!("error: {} ({})\n", error.message, error.sqlstate),
    };
    if let (Some(sql), Some(position)) = (sql, error.position)
        && let Some((line, column)) = place(sql, position)
    {
        text.push_str(&format!("  {line}\n  {}^\n", " ".repeat(column)));
    }
    if let Some(detail) = error.detail {
        text.push_str(&format!("detail: {detail}\n"));
    }
    if let Some(hint) = error.hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    text
}

/// The line of a position (in characters from 1) and the column in it.
pub fn place(sql: &str, position: usize) -> Option<(&str, usize)> {
    let mut start = 0;
    for line in sql.split('\n') {
        let length = line.chars().count();
        if position <= start + length + 1 && position > start {
            return Some((line, position - start - 1));
        }
        start += length + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(format: Format, rows: Vec<Vec<Value>>) -> String {
        let mut printer = Printer::new(format, vec!["a".to_owned(), "n".to_owned()]);
        for row in rows {
            printer.row(row);
        }
        let mut out = Vec::new();
        printer.finish(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn rows() -> Vec<Vec<Value>> {
        vec![
            vec![Value::Text("x,\"y\"".to_owned()), Value::Raw("1".to_owned())],
            vec![Value::Null, Value::Raw("20".to_owned())],
        ]
    }

    #[test]
    fn tables_right_align_numbers() {
        assert_eq!(
            printed(Format::Table, rows()),
            "| a     |  n |\n|-------|----|\n| x,\"y\" |  1 |\n|       | 20 |\n(2 rows)\n"
        );
        assert!(printed(Format::Table, vec![]).ends_with("(0 rows)\n"));
    }

    #[test]
    fn csv_and_json() {
        assert_eq!(printed(Format::Csv, rows()), "a,n\n\"x,\"\"y\"\"\",1\n,20\n");
        assert_eq!(printed(Format::Json, rows()), "{\"a\":\"x,\\\"y\\\"\",\"n\":1}\n{\"a\":null,\"n\":20}\n");
        assert_eq!(printed(Format::Csv, vec![]), "a,n\n");
    }

    #[test]
    fn an_error_points_at_its_place() {
        let error = SqlError::syntax("unexpected \"frm\"").at(10).hint("did you mean FROM?");
        assert_eq!(
            error_text(&error, Some("SELECT\na frm t")),
            "error: unexpected \"frm\" (WEIR-1001, 42601)\n  a frm t\n    ^\nhint: did you mean FROM?\n"
        );
    }

    #[test]
    fn values_of_types() {
        use pgwire::api::Type;
        assert_eq!(Value::new(Some("t".to_owned()), &Type::BOOL), Value::Raw("true".to_owned()));
        assert_eq!(Value::new(Some("NaN".to_owned()), &Type::FLOAT8), Value::Text("NaN".to_owned()));
        assert_eq!(Value::new(Some("1".to_owned()), &Type::TEXT), Value::Text("1".to_owned()));
    }
}
