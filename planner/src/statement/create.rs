//! CREATE STREAM, TABLE, MATERIALIZED VIEW and SINK.

use std::collections::BTreeSet;

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::Token;

use super::cursor::{Cursor, keyword};
use super::query::{self, Tail};
use super::{ColumnClause, CreateQuery, CreateRelation, ObjectKind, Statement, WatermarkClause};
use crate::error::{ErrorKind, Result, SqlError};
use crate::types::{SqlType, quote_ident};

pub(super) fn create(mut cursor: Cursor<'_>) -> Result<Statement> {
    let position = cursor.position();
    if cursor.eat("OR REPLACE") {
        return Err(SqlError::unsupported("CREATE OR REPLACE would throw away the state of the query that stands")
            .hint("DROP it first, or use CREATE … IF NOT EXISTS")
            .at(position));
    }
    let kind = kind(&mut cursor)?;
    let if_not_exists = cursor.eat("IF NOT EXISTS");
    let name = cursor.name(&format!("the name of the {}", kind.name()))?;
    match kind {
        ObjectKind::View => view(cursor, name, if_not_exists),
        ObjectKind::Sink => sink(cursor, name, if_not_exists),
        _ => relation(cursor, kind, name, if_not_exists),
    }
}

fn kind(cursor: &mut Cursor<'_>) -> Result<ObjectKind> {
    let position = cursor.position();
    if cursor.is_word(0, "VIEW") {
        return Err(SqlError::unsupported("a view that is not materialized is not available")
            .hint("write CREATE MATERIALIZED VIEW")
            .at(position));
    }
    for (words, kind) in [
        ("STREAM", ObjectKind::Stream),
        ("TABLE", ObjectKind::Table),
        ("MATERIALIZED VIEW", ObjectKind::View),
        ("SINK", ObjectKind::Sink),
    ] {
        if cursor.eat(words) {
            return Ok(kind);
        }
    }
    let hint = match keyword(cursor.peek()) {
        Some(Keyword::INDEX) => "a table or view is always looked up by its key; no index is needed",
        Some(Keyword::TEMPORARY | Keyword::TEMP | Keyword::UNLOGGED | Keyword::EXTERNAL) => {
            "relations are durable; write CREATE STREAM or CREATE TABLE"
        }
        Some(Keyword::SCHEMA | Keyword::DATABASE) => "there is one database, weir, with one schema, public",
        _ => "CREATE STREAM, TABLE, MATERIALIZED VIEW or SINK",
    };
    Err(SqlError::syntax(format!("expected STREAM, TABLE, MATERIALIZED VIEW or SINK, found \"{}\"", cursor.found()))
        .hint(hint)
        .at(position))
}

fn relation(mut cursor: Cursor<'_>, kind: ObjectKind, name: String, if_not_exists: bool) -> Result<Statement> {
    let position = cursor.position();
    if cursor.is_word(0, "AS") {
        return derived(cursor, kind, name, if_not_exists, None);
    }
    if !cursor.eat_token(&Token::LParen) {
        return Err(cursor.expected("\"(\" with the columns, or AS SELECT"));
    }
    let mut list = ColumnList::default();
    loop {
        list.element(&mut cursor)?;
        if cursor.eat_token(&Token::RParen) {
            break;
        }
        if !cursor.eat_token(&Token::Comma) {
            return Err(cursor.expected("\",\" or \")\""));
        }
    }
    if list.columns.is_empty() && cursor.is_word(0, "AS") {
        return derived(cursor, kind, name, if_not_exists, list.watermark);
    }
    let tail = query::cut_tail(&mut cursor)?;
    if cursor.is_word(0, "AS") {
        return Err(SqlError::syntax("a relation with AS SELECT takes its columns from the query")
            .hint("leave out the column list, and cast in the SELECT where a type shall differ")
            .at(cursor.position()));
    }
    if tail.emit.is_some() {
        return Err(SqlError::syntax(format!("EMIT belongs to a query, and a {} has none", kind.name())));
    }
    cursor.finish()?;
    list.check(kind).map_err(|e| if e.position.is_none() { e.at(position) } else { e })?;
    let create = CreateRelation {
        name,
        if_not_exists,
        columns: list.columns,
        primary_key: list.primary_key,
        watermark: list.watermark,
        options: tail.options,
    };
    Ok(if kind == ObjectKind::Table { Statement::CreateTable(create) } else { Statement::CreateStream(create) })
}

fn derived(
    mut cursor: Cursor<'_>,
    kind: ObjectKind,
    name: String,
    if_not_exists: bool,
    watermark: Option<WatermarkClause>,
) -> Result<Statement> {
    if kind == ObjectKind::Table {
        return Err(SqlError::unsupported("CREATE TABLE … AS SELECT is not available")
            .hint("write CREATE MATERIALIZED VIEW … AS SELECT for a result that is kept up to date")
            .at(cursor.position()));
    }
    cursor.expect("AS")?;
    let (query, options) = query::with_tail(cursor)?;
    Ok(Statement::CreateStreamAs(CreateQuery { name, if_not_exists, query, watermark, options }))
}

fn view(mut cursor: Cursor<'_>, name: String, if_not_exists: bool) -> Result<Statement> {
    if cursor.peek() == Some(&Token::LParen) {
        return Err(SqlError::unsupported("a column list of a materialized view is not available")
            .hint("name the columns in the SELECT: expr AS name")
            .at(cursor.position()));
    }
    if !cursor.eat("AS") {
        return Err(cursor.expected("AS SELECT …"));
    }
    let (query, options) = query::with_tail(cursor)?;
    Ok(Statement::CreateMaterializedView(CreateQuery { name, if_not_exists, query, watermark: None, options }))
}

fn sink(mut cursor: Cursor<'_>, name: String, if_not_exists: bool) -> Result<Statement> {
    if cursor.eat("AS") {
        let (query, options) = query::with_tail(cursor)?;
        return Ok(Statement::CreateSink(CreateQuery { name, if_not_exists, query, watermark: None, options }));
    }
    if !cursor.eat("FROM") {
        return Err(cursor.expected("FROM relation or AS SELECT …"));
    }
    let Tail { options, emit } = query::cut_tail(&mut cursor)?;
    let offset = cursor.start();
    let from = cursor.name("the name of a relation")?;
    cursor.finish()?;
    let sql = format!("SELECT * FROM {}", quote_ident(&from));
    let mut query = query::from_text(&sql)?;
    (query.emit, query.offset) = (emit, offset);
    Ok(Statement::CreateSink(CreateQuery { name, if_not_exists, query, watermark: None, options }))
}

#[derive(Default)]
struct ColumnList {
    columns: Vec<ColumnClause>,
    primary_key: Vec<String>,
    watermark: Option<WatermarkClause>,
}

impl ColumnList {
    fn element(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let position = cursor.position();
        if cursor.eat("WATERMARK FOR") {
            let column = cursor.ident("the event-time column")?;
            cursor.expect("AS")?;
            let expr = cursor.expr()?;
            let clause = WatermarkClause { column, expr, position };
            if self.watermark.replace(clause).is_some() {
                return Err(SqlError::syntax("a relation has one WATERMARK").at(position));
            }
            return Ok(());
        }
        if cursor.eat("CONSTRAINT") {
            cursor.ident("the name of the constraint")?;
        }
        if cursor.is_word(0, "PRIMARY") && cursor.is_word(1, "KEY") {
            cursor.eat("PRIMARY KEY");
            cursor.expect_token(&Token::LParen)?;
            let mut columns = Vec::new();
            loop {
                columns.push(cursor.ident("a column of the primary key")?);
                if !cursor.eat_token(&Token::Comma) {
                    break;
                }
            }
            cursor.expect_token(&Token::RParen)?;
            cursor.eat("NOT ENFORCED");
            return self.set_key(columns, position);
        }
        for (word, next) in [("UNIQUE", "("), ("CHECK", "("), ("FOREIGN", "KEY"), ("EXCLUDE", "USING")] {
            if cursor.is_word(0, word)
                && (cursor.is_word(1, next) || cursor.peek_at(1) == Some(&Token::LParen) && next == "(")
            {
                return Err(refused_constraint(word).at(position));
            }
        }
        self.column(cursor)
    }

    fn set_key(&mut self, columns: Vec<String>, position: usize) -> Result<()> {
        if !self.primary_key.is_empty() {
            return Err(SqlError::new(ErrorKind::INVALID_DEFINITION, "a table has one primary key").at(position));
        }
        self.primary_key = columns;
        Ok(())
    }

    fn column(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        let position = cursor.position();
        let name = cursor.ident("the name of a column")?;
        let type_position = cursor.position();
        let mut column = ColumnClause {
            name,
            type_name: type_name(cursor)?,
            not_null: false,
            primary_key: false,
            generated: None,
            default: None,
            position,
        };
        SqlType::parse(&column.type_name).map_err(|e| e.at(type_position))?;
        loop {
            let at = cursor.position();
            if cursor.eat("NOT NULL") {
                column.not_null = true;
            } else if cursor.eat("NULL") {
                column.not_null = false;
            } else if cursor.eat("PRIMARY KEY") {
                column.primary_key = true;
                self.set_key(vec![column.name.clone()], at)?;
            } else if cursor.eat("DEFAULT") {
                column.default = Some(cursor.expr()?);
            } else if cursor.eat("GENERATED") {
                if !cursor.eat("ALWAYS AS") || cursor.peek() != Some(&Token::LParen) {
                    return Err(cursor.expected("ALWAYS AS (expression)"));
                }
                cursor.expect_token(&Token::LParen)?;
                column.generated = Some(cursor.expr()?);
                cursor.expect_token(&Token::RParen)?;
                if !cursor.eat("STORED") {
                    cursor.eat("VIRTUAL");
                }
            } else if let Some(word) =
                ["UNIQUE", "CHECK", "REFERENCES", "COLLATE"].into_iter().find(|w| cursor.is_word(0, w))
            {
                return Err(refused_constraint(word).at(at));
            } else {
                break;
            }
        }
        self.columns.push(column);
        Ok(())
    }

    fn check(&self, kind: ObjectKind) -> Result<()> {
        let invalid = |message: String| SqlError::new(ErrorKind::INVALID_DEFINITION, message);
        if self.columns.is_empty() {
            return Err(invalid(format!("a {} needs a column", kind.name())));
        }
        let mut names = BTreeSet::new();
        for column in &self.columns {
            if !names.insert(column.name.as_str()) {
                let message = format!("column \"{}\" is declared twice", column.name);
                return Err(SqlError::new(ErrorKind::DUPLICATE_COLUMN, message).at(column.position));
            }
            if column.generated.is_some() && column.default.is_some() {
                return Err(invalid(format!("column \"{}\" is generated and cannot have a DEFAULT", column.name))
                    .at(column.position));
            }
        }
        for name in self.primary_key.iter().chain(self.watermark.iter().map(|w| &w.column)) {
            if !names.contains(name.as_str()) {
                let near = crate::error::nearest(name, names.iter().copied());
                return Err(SqlError::new(ErrorKind::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"))
                    .maybe_hint(near.map(|near| format!("did you mean \"{near}\"?"))));
            }
        }
        match kind {
            ObjectKind::Table if self.primary_key.is_empty() => Err(invalid("a table needs a PRIMARY KEY".into())
                .hint("write PRIMARY KEY behind a column, or CREATE STREAM for rows without a key")),
            ObjectKind::Stream if !self.primary_key.is_empty() => {
                Err(invalid("a stream has no primary key: it only ever adds rows".into())
                    .hint("write CREATE TABLE for rows that UPDATE and DELETE change by key"))
            }
            ObjectKind::Table if self.watermark.is_some() => {
                Err(invalid("a table has no watermark: its rows change".into())
                    .hint("declare the WATERMARK on a stream"))
            }
            _ => Ok(()),
        }
    }
}

fn refused_constraint(word: &str) -> SqlError {
    SqlError::unsupported(format!(
        "{word} is not available: Weir does not check constraints other than NOT NULL and PRIMARY KEY"
    ))
    .hint("leave it out, and filter in the query that reads the relation")
}

/// Takes the tokens of a type, up to a constraint or the end of the column.
fn type_name(cursor: &mut Cursor<'_>) -> Result<String> {
    const ENDS: &[&str] =
        &["NOT", "NULL", "PRIMARY", "UNIQUE", "GENERATED", "DEFAULT", "CHECK", "REFERENCES", "COLLATE", "CONSTRAINT"];
    let (start, mut depth) = (cursor.start(), 0_i32);
    if !matches!(cursor.peek(), Some(Token::Word(_))) {
        return Err(cursor.expected("a type"));
    }
    while let Some(token) = cursor.peek() {
        let outside = depth == 0;
        match token {
            Token::LParen | Token::Lt | Token::LBracket => depth += 1,
            Token::RParen if outside => break,
            Token::Comma if outside => break,
            Token::RParen | Token::Gt | Token::RBracket => depth -= 1,
            Token::ShiftRight => depth -= 2,
            Token::Word(_) if outside && ENDS.iter().any(|end| cursor.is_word(0, end)) => break,
            _ => {}
        }
        cursor.next();
    }
    Ok(cursor.text_since(start).to_owned())
}
