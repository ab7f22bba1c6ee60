//! Savepoints: taken, dropped, and gone on from.

use sqlparser::tokenizer::Token;

use super::cursor::Cursor;
use super::{DropSavepoint, QueryAction, SavepointTarget, Statement};
use crate::error::{Result, SqlError};

/// `CREATE SAVEPOINT [name] FOR QUERY q [TO 'url']`, after SAVEPOINT.
pub(super) fn create(mut cursor: Cursor<'_>) -> Result<Statement> {
    let name = match cursor.is_word(0, "FOR") {
        true => None,
        false => Some(cursor.ident("the name of the savepoint, or FOR QUERY")?),
    };
    let query = query(&mut cursor)?;
    let url = to(&mut cursor)?;
    cursor.finish()?;
    Ok(Statement::CreateSavepoint { query, target: SavepointTarget { name, url } })
}

/// `DROP SAVEPOINT name FOR QUERY q` and `DROP SAVEPOINT 'url'`, after SAVEPOINT.
pub(super) fn drop(mut cursor: Cursor<'_>) -> Result<Statement> {
    let if_exists = cursor.eat("IF EXISTS");
    let savepoint = match cursor.peek() {
        Some(Token::SingleQuotedString(url)) => {
            cursor.next();
            DropSavepoint::Url(url.clone())
        }
        _ => {
            let name = cursor.ident("the name of a savepoint, or its URL in quotes")?;
            DropSavepoint::Named { name, query: query(&mut cursor)? }
        }
    };
    cursor.finish()?;
    Ok(Statement::DropSavepoint { savepoint, if_exists })
}

/// `STOP WITH SAVEPOINT [name] [TO 'url'] [DRAIN]`, after STOP.
pub(super) fn stop(cursor: &mut Cursor<'_>) -> Result<QueryAction> {
    if cursor.is_done() {
        let message = "STOP needs WITH SAVEPOINT";
        return Err(SqlError::syntax(message)
            .hint("ALTER QUERY name PAUSE stops it for a while, DROP for good")
            .at(cursor.position()));
    }
    cursor.expect("WITH SAVEPOINT")?;
    let name = match cursor.is_done() || cursor.is_word(0, "TO") || cursor.is_word(0, "DRAIN") {
        true => None,
        false => Some(cursor.ident("the name of the savepoint, TO or DRAIN")?),
    };
    let url = to(cursor)?;
    let drain = cursor.eat("DRAIN");
    Ok(QueryAction::StopWithSavepoint { target: SavepointTarget { name, url }, drain })
}

/// `RESTORE QUERY q FROM 'url' [CLAIM | NO CLAIM]`, after RESTORE.
pub(super) fn restore(mut cursor: Cursor<'_>) -> Result<Statement> {
    cursor.expect("QUERY")?;
    let query = cursor.name("the name of a query")?;
    cursor.expect("FROM")?;
    let url = string(&mut cursor)?;
    let claim = cursor.eat("CLAIM");
    if !claim && !cursor.eat("NO CLAIM") {
        // Flink writes it so.
        cursor.eat("NO_CLAIM");
    }
    cursor.finish()?;
    Ok(Statement::RestoreQuery { query, url, claim })
}

fn query(cursor: &mut Cursor<'_>) -> Result<String> {
    cursor.expect("FOR QUERY")?;
    cursor.name("the name of a query")
}

fn to(cursor: &mut Cursor<'_>) -> Result<Option<String>> {
    if cursor.eat("TO") { string(cursor).map(Some) } else { Ok(None) }
}

fn string(cursor: &mut Cursor<'_>) -> Result<String> {
    match cursor.peek() {
        Some(Token::SingleQuotedString(url)) => {
            cursor.next();
            Ok(url.clone())
        }
        _ => Err(cursor.expected("a URL in quotes, such as 's3://bucket/savepoints/one'")),
    }
}
