//! SET, RESET and transactions.

use sqlparser::tokenizer::Token;

use super::Statement;
use super::cursor::Cursor;
use super::query::{option_name, option_value};
use crate::error::Result;

pub(super) fn set(mut cursor: Cursor<'_>) -> Result<Statement> {
    if cursor.eat("TRANSACTION") || cursor.eat("SESSION CHARACTERISTICS AS TRANSACTION") {
        return transaction_mode(cursor);
    }
    if !cursor.eat("SESSION") {
        cursor.eat("LOCAL");
    }
    if cursor.eat("TIME ZONE") {
        let value = if cursor.eat("LOCAL") || cursor.eat("DEFAULT") { None } else { Some(option_value(&mut cursor)?) };
        cursor.finish()?;
        return Ok(Statement::Set { name: "timezone".into(), value });
    }
    if cursor.eat("NAMES") {
        let value = if cursor.eat("DEFAULT") || cursor.is_done() { None } else { Some(option_value(&mut cursor)?) };
        cursor.finish()?;
        return Ok(Statement::Set { name: "client_encoding".into(), value });
    }
    let name = option_name(&mut cursor)?;
    if !cursor.eat_token(&Token::Eq) && !cursor.eat("TO") {
        return Err(cursor.expected("= or TO"));
    }
    if cursor.is_word(0, "DEFAULT") && cursor.remaining() == 1 {
        return Ok(Statement::Set { name, value: None });
    }
    let mut values = vec![option_value(&mut cursor)?];
    while cursor.eat_token(&Token::Comma) {
        values.push(option_value(&mut cursor)?);
    }
    cursor.finish()?;
    Ok(Statement::Set { name, value: Some(values.join(", ")) })
}

/// `ISOLATION LEVEL …`, `READ ONLY`: the last isolation level named is what is set.
fn transaction_mode(mut cursor: Cursor<'_>) -> Result<Statement> {
    let (mut name, mut value) = ("transaction_isolation", None);
    while !cursor.is_done() {
        if cursor.eat("ISOLATION LEVEL") {
            let start = cursor.start();
            let one_word = cursor.eat("SERIALIZABLE");
            if !one_word {
                cursor.ident("an isolation level")?;
                cursor.ident("an isolation level")?;
            }
            (name, value) = ("transaction_isolation", Some(cursor.text_since(start).to_lowercase()));
        } else if cursor.eat("READ ONLY")
            || cursor.eat("READ WRITE")
            || cursor.eat("DEFERRABLE")
            || cursor.eat("NOT DEFERRABLE")
        {
        } else if !cursor.eat_token(&Token::Comma) {
            return Err(cursor.expected("ISOLATION LEVEL, READ ONLY or READ WRITE"));
        }
    }
    Ok(Statement::Set { name: name.into(), value })
}

pub(super) fn reset(mut cursor: Cursor<'_>) -> Result<Statement> {
    let name = if cursor.eat("ALL") { None } else { Some(option_name(&mut cursor)?) };
    cursor.finish()?;
    Ok(Statement::Reset { name })
}

pub(super) fn transaction(first: &str, mut cursor: Cursor<'_>) -> Result<Statement> {
    if first == "START" {
        cursor.expect("TRANSACTION")?;
    } else if !cursor.eat("TRANSACTION") {
        cursor.eat("WORK");
    }
    let statement = match first {
        "BEGIN" | "START" => {
            // The modes say nothing that a stream database could act upon.
            transaction_mode(cursor)?;
            return Ok(Statement::Begin);
        }
        "COMMIT" | "END" => Statement::Commit,
        _ => Statement::Rollback,
    };
    cursor.eat("AND NO CHAIN");
    cursor.finish()?;
    Ok(statement)
}
