//! Queries with their trailing clauses, subscriptions, COPY and cursors.
//!
//! `EMIT …` and `WITH (…)` stand at the end and are cut off by their tokens before sqlparser reads the query: it would
//! take `FROM t WITH (` for table hints.

use sqlparser::ast;
use sqlparser::tokenizer::Token;
use weir_runtime::graph::{ConnectorOptions, Emit};

use super::cursor::{Cursor, Source};
use super::parser::parse_statement;
use super::{Query, Statement, Subscribe, SubscribeTarget};
use crate::error::{ErrorKind, Result, SqlError};

/// The clauses behind a query or a column list.
#[derive(Default)]
pub(super) struct Tail {
    pub(super) emit: Option<Emit>,
    pub(super) options: ConnectorOptions,
}

pub(super) fn statement(cursor: Cursor<'_>) -> Result<Statement> {
    let position = cursor.position();
    let (query, options) = with_tail(cursor)?;
    if !options.is_empty() {
        return Err(SqlError::syntax("WITH (…) belongs to CREATE, and a SELECT has no options").at(position));
    }
    if query.emit == Some(Emit::OnWindowClose) {
        return Err(SqlError::unsupported("EMIT ON WINDOW CLOSE belongs to a view, sink or derived stream")
            .hint("write CREATE MATERIALIZED VIEW v AS SELECT … EMIT ON WINDOW CLOSE, then SUBSCRIBE TO v")
            .at(position));
    }
    Ok(Statement::Query(query))
}

/// A query to the cursor's end, with its EMIT clause, and the options behind it.
pub(super) fn with_tail(mut cursor: Cursor<'_>) -> Result<(Query, ConnectorOptions)> {
    let tail = cut_tail(&mut cursor)?;
    if cursor.is_done() {
        return Err(cursor.expected("a SELECT"));
    }
    let (sql, offset) = (cursor.text().to_owned(), cursor.start());
    let ast = cursor.query()?;
    Ok((Query { sql, ast, emit: tail.emit, offset }, tail.options))
}

/// A query from its text, with its EMIT clause.
pub(super) fn from_text(sql: &str) -> Result<Query> {
    let source = Source::new(sql)?;
    let Some(range) = source.statements().into_iter().next() else {
        return Err(SqlError::syntax("expected a query, found nothing"));
    };
    Ok(with_tail(source.cursor(range))?.0)
}

/// An expression from its text.
pub(crate) fn parse_expr(sql: &str) -> Result<ast::Expr> {
    let source = Source::new(sql)?;
    let Some(range) = source.statements().into_iter().next() else {
        return Err(SqlError::syntax("expected an expression, found nothing"));
    };
    let mut cursor = source.cursor(range);
    let expr = cursor.parse(|parser| parser.parse_expr())?;
    cursor.finish()?;
    Ok(expr)
}

/// Cuts `EMIT …` and `WITH (…)` off the end.
pub(super) fn cut_tail(cursor: &mut Cursor<'_>) -> Result<Tail> {
    let mut tail = Tail::default();
    if let Some(length) = options_length(cursor) {
        let mut options = cursor.tail(length);
        cursor.cut(length);
        options.expect("WITH")?;
        tail.options = parse_options(&mut options)?;
        options.finish()?;
    }
    for (words, emit) in [("EMIT CHANGES", Emit::Changes), ("EMIT ON WINDOW CLOSE", Emit::OnWindowClose)] {
        let count = words.split(' ').count();
        if cursor.remaining() >= count && cursor.tail(count).eat(words) {
            cursor.cut(count);
            tail.emit = Some(emit);
            return Ok(tail);
        }
    }
    if let Some(mut rest) = (1..=4).map(|n| cursor.tail(n)).find(|rest| rest.is_word(0, "EMIT"))
        && rest.remaining() > 1
    {
        rest.next();
        return Err(rest.expected("CHANGES or ON WINDOW CLOSE behind EMIT"));
    }
    Ok(tail)
}

/// How many tokens of the end are `WITH ( … )`.
fn options_length(cursor: &Cursor<'_>) -> Option<usize> {
    if cursor.peek_back(0) != Some(&Token::RParen) {
        return None;
    }
    let (mut depth, mut back) = (0, 0);
    loop {
        match cursor.peek_back(back)? {
            Token::RParen => depth += 1,
            Token::LParen => depth -= 1,
            _ => {}
        }
        back += 1;
        if depth == 0 {
            return super::cursor::is_word(cursor.peek_back(back), "WITH").then_some(back + 1);
        }
    }
}

/// `(name = value, …)`.
pub(super) fn parse_options(cursor: &mut Cursor<'_>) -> Result<ConnectorOptions> {
    cursor.expect_token(&Token::LParen)?;
    let mut options = ConnectorOptions::new();
    if cursor.eat_token(&Token::RParen) {
        return Ok(options);
    }
    loop {
        let position = cursor.position();
        let name = option_name(cursor)?;
        cursor.expect_token(&Token::Eq)?;
        let value = option_value(cursor)?;
        if options.insert(name.clone(), value).is_some() {
            return Err(
                SqlError::new(ErrorKind::INVALID_DEFINITION, format!("option {name} is given twice")).at(position)
            );
        }
        if cursor.eat_token(&Token::RParen) {
            return Ok(options);
        }
        if !cursor.eat_token(&Token::Comma) {
            return Err(cursor.expected("\",\" or \")\""));
        }
    }
}

/// A dotted name, or one in quotes; lower-cased.
pub(super) fn option_name(cursor: &mut Cursor<'_>) -> Result<String> {
    if let Some(Token::SingleQuotedString(name)) = cursor.peek() {
        cursor.next();
        return Ok(name.to_lowercase());
    }
    let start = cursor.start();
    cursor.ident("the name of an option")?;
    // Flink's names have hyphens and dots: `execution.checkpointing.min-pause`.
    while matches!(cursor.peek(), Some(Token::Period | Token::Minus)) {
        cursor.next();
        cursor.ident("the rest of the option's name")?;
    }
    Ok(cursor.text_since(start).replace('"', "").to_lowercase())
}

/// A string, number or word.
pub(super) fn option_value(cursor: &mut Cursor<'_>) -> Result<String> {
    let start = cursor.start();
    match cursor.peek() {
        Some(Token::SingleQuotedString(value) | Token::EscapedStringLiteral(value)) => {
            cursor.next();
            return Ok(value.clone());
        }
        Some(Token::DollarQuotedString(quoted)) => {
            cursor.next();
            return Ok(quoted.value.clone());
        }
        Some(Token::Minus | Token::Plus) if matches!(cursor.peek_at(1), Some(Token::Number(..))) => {
            cursor.next();
            cursor.next();
        }
        Some(Token::Number(..) | Token::Word(_)) => {
            cursor.next();
        }
        _ => return Err(cursor.expected("a value such as 'text', 10 or true")),
    }
    Ok(cursor.text_since(start).trim_matches('"').to_owned())
}

/// Behind SUBSCRIBE: `[TO] relation | (SELECT …) [WITH (…)]`.
pub(super) fn subscribe(mut cursor: Cursor<'_>) -> Result<Subscribe> {
    if !cursor.eat("TO") {
        return Err(cursor.expected("TO relation"));
    }
    let position = cursor.position();
    let mut options = ConnectorOptions::new();
    let mut snapshot = true;
    if cursor.peek_back(0) == Some(&Token::RParen)
        && let Some(length) = options_length(&cursor)
    {
        let mut with = cursor.tail(length);
        cursor.cut(length);
        with.expect("WITH")?;
        options = parse_options(&mut with)?;
    }
    for (words, value) in [("WITH SNAPSHOT", true), ("WITHOUT SNAPSHOT", false), ("WITH NO SNAPSHOT", false)] {
        let count = words.split(' ').count();
        if cursor.remaining() > count && cursor.tail(count).eat(words) {
            cursor.cut(count);
            snapshot = value;
        }
    }
    if let Some(value) = options.remove("snapshot") {
        snapshot = match value.to_lowercase().as_str() {
            "true" | "on" | "yes" => true,
            "false" | "off" | "no" => false,
            _ => {
                return Err(SqlError::new(
                    ErrorKind::INVALID_VALUE,
                    format!("snapshot = '{value}' is not true or false"),
                )
                .at(position));
            }
        };
    }
    let target = if cursor.peek() == Some(&Token::LParen) && cursor.peek_back(0) == Some(&Token::RParen) {
        cursor.next();
        cursor.cut(1);
        SubscribeTarget::Query(with_tail(cursor)?.0)
    } else if cursor.is_word(0, "SELECT") || cursor.is_word(0, "WITH") {
        SubscribeTarget::Query(with_tail(cursor)?.0)
    } else {
        let name = cursor.name("the name of a stream, table or view")?;
        cursor.finish()?;
        SubscribeTarget::Relation(name)
    };
    Ok(Subscribe { target, snapshot, options })
}

/// Behind COPY: `(SUBSCRIBE TO v | SELECT …) TO STDOUT`.
pub(super) fn copy(mut cursor: Cursor<'_>) -> Result<Statement> {
    let position = cursor.position();
    if let Some(length) = options_length(&cursor) {
        cursor.cut(length);
    }
    if cursor.peek() != Some(&Token::LParen) {
        return Err(SqlError::unsupported("COPY table is not available")
            .hint("COPY (SELECT …) TO STDOUT reads; INSERT or a connector writes")
            .at(position));
    }
    if !(cursor.remaining() > 4 && cursor.tail(2).eat("TO STDOUT")) {
        return Err(SqlError::unsupported("COPY writes TO STDOUT only").hint("CREATE SINK writes files").at(position));
    }
    cursor.cut(2);
    cursor.next();
    if cursor.peek_back(0) != Some(&Token::RParen) {
        return Err(cursor.tail(0).expected("\")\""));
    }
    cursor.cut(1);
    if cursor.eat("SUBSCRIBE") {
        return Ok(Statement::CopySubscribe(subscribe(cursor)?));
    }
    match statement(cursor)? {
        Statement::Query(query) => Ok(Statement::CopyQuery(query)),
        other => Ok(other),
    }
}

/// Behind DECLARE: `c [BINARY | INSENSITIVE | NO SCROLL] CURSOR [WITH HOLD] FOR …`.
pub(super) fn declare(mut cursor: Cursor<'_>) -> Result<Statement> {
    let name = cursor.ident("the name of the cursor")?;
    while ["BINARY", "INSENSITIVE", "ASENSITIVE", "NO SCROLL", "SCROLL"].into_iter().any(|words| cursor.eat(words)) {}
    cursor.expect("CURSOR")?;
    if !cursor.eat("WITH HOLD") {
        cursor.eat("WITHOUT HOLD");
    }
    cursor.expect("FOR")?;
    let mut inner = cursor;
    if inner.peek() == Some(&Token::LParen)
        && inner.is_word(1, "SUBSCRIBE")
        && inner.peek_back(0) == Some(&Token::RParen)
    {
        inner.next();
        inner.cut(1);
    }
    let position = inner.position();
    let statement = parse_statement(inner)?;
    if !matches!(statement.statement, Statement::Query(_) | Statement::Subscribe(_)) {
        return Err(SqlError::syntax("a cursor is for SELECT or SUBSCRIBE TO").at(position));
    }
    Ok(Statement::DeclareCursor { name, statement: Box::new(statement) })
}

/// Behind FETCH: `[NEXT | FORWARD] [n | ALL] [FROM | IN] c`.
pub(super) fn fetch(mut cursor: Cursor<'_>) -> Result<Statement> {
    let position = cursor.position();
    if ["PRIOR", "FIRST", "LAST", "BACKWARD", "ABSOLUTE", "RELATIVE"].into_iter().any(|w| cursor.is_word(0, w)) {
        return Err(SqlError::unsupported("a cursor goes forward only").hint("write FETCH n FROM cursor").at(position));
    }
    let next = cursor.eat("NEXT");
    let forward = cursor.eat("FORWARD");
    let count = match cursor.peek() {
        Some(Token::Number(number, _)) if !next => {
            cursor.next();
            let count =
                number.parse().map_err(|_| SqlError::syntax(format!("cannot fetch {number} rows")).at(position))?;
            Some(count)
        }
        _ if cursor.eat("ALL") => None,
        _ if next || forward || cursor.remaining() >= 1 => Some(1),
        _ => return Err(cursor.expected("a number of rows and FROM cursor")),
    };
    if !cursor.eat("FROM") {
        cursor.eat("IN");
    }
    let name = cursor.ident("the name of a cursor")?;
    cursor.finish()?;
    Ok(Statement::Fetch { cursor: name, count })
}
