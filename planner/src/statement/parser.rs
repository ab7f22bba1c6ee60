//! Which statement it is: the first words decide, and the family's file reads the rest.

use sqlparser::tokenizer::Token;

use super::cursor::{Cursor, Source};
use super::{ObjectKind, Parsed, QueryAction, Statement, create, dml, query, savepoint, session, show};
use crate::error::{Result, SqlError, nearest};

/// First words of statements, for "did you mean".
const STARTS: &[&str] = &[
    "CREATE",
    "DROP",
    "ALTER",
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "SHOW",
    "DESCRIBE",
    "EXPLAIN",
    "SET",
    "RESET",
    "SUBSCRIBE",
    "COPY",
    "CHECKPOINT",
    "RESTORE",
    "DECLARE",
    "FETCH",
    "CLOSE",
    "BEGIN",
    "START",
    "COMMIT",
    "ROLLBACK",
    "DISCARD",
    "DEALLOCATE",
    "VALUES",
    "TABLE",
    "WITH",
];

/// Reads a script: any number of statements with semicolons between them.
pub fn parse(sql: &str) -> Result<Vec<Parsed>> {
    let source = Source::new(sql)?;
    source.statements().into_iter().map(|range| parse_statement(source.cursor(range))).collect()
}

/// Reads one statement to the cursor's end.
pub(super) fn parse_statement(cursor: Cursor<'_>) -> Result<Parsed> {
    let (sql, offset) = (cursor.text().to_owned(), cursor.start());
    Ok(Parsed { sql, offset, statement: dispatch(cursor)? })
}

fn dispatch(mut cursor: Cursor<'_>) -> Result<Statement> {
    let position = cursor.position();
    let first = match cursor.peek() {
        Some(Token::Word(word)) if word.quote_style.is_none() => word.value.to_uppercase(),
        Some(Token::LParen) => "SELECT".to_owned(),
        _ => return Err(cursor.expected("a statement")),
    };
    match first.as_str() {
        "SELECT" | "WITH" | "VALUES" | "TABLE" | "FROM" => return query::statement(cursor),
        "INSERT" => return dml::insert(cursor),
        "UPDATE" => return dml::update(cursor),
        "DELETE" => return dml::delete(cursor),
        _ => cursor.next(),
    };
    match first.as_str() {
        "CREATE" if cursor.eat("SAVEPOINT") => savepoint::create(cursor),
        "CREATE" => create::create(cursor),
        "DROP" if cursor.eat("SAVEPOINT") => savepoint::drop(cursor),
        "DROP" => show::drop(cursor),
        "RESTORE" => savepoint::restore(cursor),
        "ALTER" => alter(cursor),
        "CHECKPOINT" => {
            // QUERY is a name too: `CHECKPOINT query` alone.
            if cursor.remaining() > 1 {
                cursor.eat("QUERY");
            }
            let query = cursor.name("the name of a query")?;
            done(&cursor, Statement::Checkpoint { query })
        }
        "SHOW" => show::show(cursor),
        "DESCRIBE" | "DESC" => {
            let name = cursor.name("the name of a relation")?;
            done(&cursor, Statement::Describe { name })
        }
        "EXPLAIN" => explain(cursor),
        "SUBSCRIBE" => Ok(Statement::Subscribe(query::subscribe(cursor)?)),
        "COPY" => query::copy(cursor),
        "DECLARE" => query::declare(cursor),
        "FETCH" => query::fetch(cursor),
        "CLOSE" => {
            let name = if cursor.eat("ALL") { None } else { Some(cursor.ident("the name of a cursor")?) };
            done(&cursor, Statement::CloseCursor { name })
        }
        "SET" => session::set(cursor),
        "RESET" => session::reset(cursor),
        "BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" => session::transaction(&first, cursor),
        "DISCARD" => {
            cursor.expect("ALL")?;
            done(&cursor, Statement::DiscardAll)
        }
        "DEALLOCATE" => {
            cursor.eat("PREPARE");
            let name = if cursor.eat("ALL") { None } else { Some(cursor.ident("the name of a prepared statement")?) };
            done(&cursor, Statement::Deallocate { name })
        }
        other => Err(unknown(other).at(position)),
    }
}

fn unknown(first: &str) -> SqlError {
    let instead = match first {
        "TRUNCATE" => Some("DELETE FROM table takes all its rows"),
        "MERGE" | "UPSERT" | "REPLACE" => Some("UPDATE the rows that stand, and INSERT the others"),
        "PREPARE" | "EXECUTE" => Some("prepare through the driver (the extended query protocol)"),
        "GRANT" | "REVOKE" => Some("privileges do not exist in this version"),
        "VACUUM" | "ANALYZE" | "REINDEX" | "CLUSTER" => Some("nothing has to be maintained by hand"),
        "USE" => Some("there is one database, weir, with one schema, public"),
        "KILL" | "STOP" | "CANCEL" => Some("ALTER QUERY name PAUSE stops a query for a while, DROP for good"),
        "LISTEN" | "NOTIFY" | "UNLISTEN" => Some("SUBSCRIBE TO relation follows its changes"),
        _ => None,
    };
    match instead {
        Some(instead) => SqlError::unsupported(format!("there is no {first} statement")).hint(instead),
        None => {
            let near = nearest(first, STARTS.iter().copied()).map(|near| format!("did you mean {near}?"));
            SqlError::syntax(format!("\"{first}\" does not start a statement"))
                .hint("statements start with CREATE, SELECT, INSERT, SHOW, DROP, …")
                .maybe_hint(near)
        }
    }
}

fn done(cursor: &Cursor<'_>, statement: Statement) -> Result<Statement> {
    cursor.finish()?;
    Ok(statement)
}

fn alter(mut cursor: Cursor<'_>) -> Result<Statement> {
    if !cursor.eat("QUERY") {
        let given = cursor.found();
        return Err(SqlError::unsupported(format!("ALTER {} is not available", given.to_uppercase()))
            .hint("ALTER QUERY name PAUSE | RESUME | STOP WITH SAVEPOINT; to change a relation, DROP and CREATE it")
            .at(cursor.position()));
    }
    let name = cursor.name("the name of a query")?;
    let action = if cursor.eat("PAUSE") {
        QueryAction::Pause
    } else if cursor.eat("RESUME") {
        QueryAction::Resume
    } else if cursor.eat("STOP") {
        savepoint::stop(&mut cursor)?
    } else {
        return Err(cursor.expected("PAUSE, RESUME or STOP WITH SAVEPOINT"));
    };
    done(&cursor, Statement::AlterQuery { name, action })
}

fn explain(mut cursor: Cursor<'_>) -> Result<Statement> {
    let mut analyze = cursor.eat("ANALYZE");
    cursor.eat("VERBOSE");
    if cursor.peek() == Some(&Token::LParen) && !cursor.is_word(1, "SELECT") && !cursor.is_word(1, "WITH") {
        // PostgreSQL's list of options; only ANALYZE means anything.
        while !cursor.eat_token(&Token::RParen) {
            if cursor.is_done() {
                return Err(cursor.expected("\")\""));
            }
            analyze |= cursor.is_word(0, "ANALYZE") && !cursor.is_word(1, "FALSE");
            cursor.next();
        }
    }
    if cursor.is_done() {
        return Err(cursor.expected("a statement"));
    }
    Ok(Statement::Explain { analyze, statement: Box::new(parse_statement(cursor)?) })
}

/// The kind of object named at the cursor.
pub(super) fn object_kind(cursor: &mut Cursor<'_>) -> Option<ObjectKind> {
    [
        ("MATERIALIZED VIEW", ObjectKind::View),
        ("VIEW", ObjectKind::View),
        ("STREAM", ObjectKind::Stream),
        ("TABLE", ObjectKind::Table),
        ("SINK", ObjectKind::Sink),
        ("QUERY", ObjectKind::Query),
    ]
    .into_iter()
    .find_map(|(words, kind)| cursor.eat(words).then_some(kind))
}
