//! SHOW and DROP.

use sqlparser::tokenizer::Token;

use super::cursor::Cursor;
use super::parser::object_kind;
use super::query::option_name;
use super::{Drop, ObjectKind, Show, Statement};
use crate::error::{Result, SqlError};

pub(super) fn show(mut cursor: Cursor<'_>) -> Result<Statement> {
    let listed = [
        ("STREAMS", ObjectKind::Stream),
        ("TABLES", ObjectKind::Table),
        ("VIEWS", ObjectKind::View),
        ("MATERIALIZED VIEWS", ObjectKind::View),
        ("SINKS", ObjectKind::Sink),
        ("QUERIES", ObjectKind::Query),
    ];
    if let Some((_, kind)) = listed.into_iter().find(|(words, _)| cursor.eat(words)) {
        cursor.finish()?;
        return Ok(Statement::Show(Show::Objects(kind)));
    }
    if cursor.eat("CHECKPOINTS") {
        let query = of_query(&mut cursor)?;
        cursor.finish()?;
        return Ok(Statement::Show(Show::Checkpoints { query }));
    }
    if cursor.eat("SAVEPOINTS") {
        let query = of_query(&mut cursor)?;
        cursor.finish()?;
        return Ok(Statement::Show(Show::Savepoints { query }));
    }
    if cursor.eat("CREATE") {
        let kind = object_kind(&mut cursor);
        let name = cursor.name(&format!("the name of a {}", kind.map_or("relation", ObjectKind::name)))?;
        cursor.finish()?;
        return Ok(Statement::Show(Show::Create { kind, name }));
    }
    if cursor.eat("COLUMNS FROM") || cursor.eat("COLUMNS IN") {
        let relation = cursor.name("the name of a relation")?;
        cursor.finish()?;
        return Ok(Statement::Show(Show::Columns { relation }));
    }
    if cursor.eat("ALL") {
        cursor.finish()?;
        return Ok(Statement::ShowAllOptions);
    }
    if cursor.eat("TIME ZONE") {
        cursor.finish()?;
        return Ok(Statement::ShowOption { name: "timezone".into() });
    }
    if cursor.eat("TRANSACTION ISOLATION LEVEL") {
        cursor.finish()?;
        return Ok(Statement::ShowOption { name: "transaction_isolation".into() });
    }
    if cursor.is_done() {
        return Err(
            cursor.expected("STREAMS, TABLES, VIEWS, SINKS, QUERIES, CHECKPOINTS, SAVEPOINTS, CREATE … or an option")
        );
    }
    let name = option_name(&mut cursor)?;
    cursor.finish()?;
    Ok(Statement::ShowOption { name })
}

/// `[FOR [QUERY] q]`.
fn of_query(cursor: &mut Cursor<'_>) -> Result<Option<String>> {
    if !cursor.eat("FOR") {
        return Ok(None);
    }
    cursor.eat("QUERY");
    cursor.name("the name of a query").map(Some)
}

pub(super) fn drop(mut cursor: Cursor<'_>) -> Result<Statement> {
    let Some(kind) = object_kind(&mut cursor) else {
        return Err(cursor.expected("STREAM, TABLE, MATERIALIZED VIEW, SINK, QUERY or SAVEPOINT"));
    };
    let if_exists = cursor.eat("IF EXISTS");
    let mut names = Vec::new();
    loop {
        let position = cursor.position();
        let name = cursor.name(&format!("the name of a {}", kind.name()))?;
        if names.contains(&name) {
            return Err(SqlError::syntax(format!("\"{name}\" is named twice")).at(position));
        }
        names.push(name);
        if !cursor.eat_token(&Token::Comma) {
            break;
        }
    }
    let cascade = cursor.eat("CASCADE");
    if !cascade {
        cursor.eat("RESTRICT");
    }
    cursor.finish()?;
    Ok(Statement::Drop(Drop { kind, names, if_exists, cascade }))
}
