//! INSERT, UPDATE and DELETE: sqlparser reads them; clauses that Weir does not have are refused.

use sqlparser::ast;

use super::cursor::{Cursor, name_window_inputs, unqualify};
use super::{Delete, Insert, Statement, Update};
use crate::error::{Result, SqlError};
use crate::types::fold;

fn parsed(cursor: &mut Cursor<'_>) -> Result<ast::Statement> {
    let statement = cursor.parse(|parser| parser.parse_statement())?;
    cursor.finish()?;
    Ok(statement)
}

fn refuse(clause: &str, hint: &str, position: usize) -> SqlError {
    SqlError::unsupported(format!("{clause} is not available")).hint(hint).at(position)
}

pub(super) fn insert(mut cursor: Cursor<'_>) -> Result<Statement> {
    let position = cursor.position();
    let ast::Statement::Insert(mut insert) = parsed(&mut cursor)? else {
        return Err(SqlError::syntax("expected INSERT INTO table").at(position));
    };
    if insert.on.is_some() {
        return Err(refuse("ON CONFLICT", "UPDATE the rows that stand, and INSERT the others", position));
    }
    if insert.returning.is_some() {
        return Err(refuse("RETURNING", "SELECT the rows afterwards", position));
    }
    if insert.overwrite || insert.partitioned.is_some() || !insert.assignments.is_empty() {
        return Err(refuse("this form of INSERT", "write INSERT INTO table (columns) VALUES … or SELECT …", position));
    }
    let ast::TableObject::TableName(name) = &insert.table else {
        return Err(SqlError::syntax("expected the name of a stream or table").at(position));
    };
    if let Some(source) = &mut insert.source {
        name_window_inputs(source);
    }
    let source_sql = insert.source.as_ref().map(ToString::to_string).unwrap_or_default();
    Ok(Statement::Insert(Insert {
        table: object_name(name, position)?,
        columns: insert.columns.iter().map(|name| object_name(name, position)).collect::<Result<_>>()?,
        source: insert.source,
        source_sql,
    }))
}

pub(super) fn update(mut cursor: Cursor<'_>) -> Result<Statement> {
    let position = cursor.position();
    let ast::Statement::Update(update) = parsed(&mut cursor)? else {
        return Err(SqlError::syntax("expected UPDATE table SET …").at(position));
    };
    if update.from.is_some() || !update.table.joins.is_empty() {
        return Err(refuse("UPDATE … FROM", "read the other table in a subquery in SET or WHERE", position));
    }
    if update.returning.is_some() {
        return Err(refuse("RETURNING", "SELECT the rows afterwards", position));
    }
    let mut assignments = Vec::new();
    for assignment in update.assignments {
        let ast::AssignmentTarget::ColumnName(name) = &assignment.target else {
            return Err(refuse("SET (a, b) = …", "write SET a = …, b = …", position));
        };
        assignments.push((object_name(name, position)?, assignment.value));
    }
    let table = table_name(&update.table.relation, position)?;
    Ok(Statement::Update(Update { table, assignments, selection: update.selection }))
}

pub(super) fn delete(mut cursor: Cursor<'_>) -> Result<Statement> {
    let position = cursor.position();
    let ast::Statement::Delete(delete) = parsed(&mut cursor)? else {
        return Err(SqlError::syntax("expected DELETE FROM table").at(position));
    };
    if delete.using.is_some() || !delete.tables.is_empty() {
        return Err(refuse("DELETE … USING", "read the other table in a subquery in WHERE", position));
    }
    if delete.returning.is_some() {
        return Err(refuse("RETURNING", "SELECT the rows before", position));
    }
    if !delete.order_by.is_empty() || delete.limit.is_some() {
        return Err(refuse("DELETE … ORDER BY and LIMIT", "name the rows in WHERE", position));
    }
    let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = delete.from;
    match from.as_slice() {
        [one] if one.joins.is_empty() => {
            let table = table_name(&one.relation, position)?;
            Ok(Statement::Delete(Delete { table, selection: delete.selection }))
        }
        _ => Err(refuse("DELETE from several tables", "write one DELETE for each", position)),
    }
}

fn table_name(factor: &ast::TableFactor, position: usize) -> Result<String> {
    match factor {
        ast::TableFactor::Table { name, alias: None, args: None, .. } => object_name(name, position),
        ast::TableFactor::Table { alias: Some(_), .. } => {
            Err(refuse("an alias of the table that is changed", "write its name before the columns", position))
        }
        _ => Err(SqlError::syntax("expected the name of a table").at(position)),
    }
}

fn object_name(name: &ast::ObjectName, position: usize) -> Result<String> {
    let parts: Option<Vec<String>> = name.0.iter().map(|part| part.as_ident().map(fold)).collect();
    match parts {
        Some(parts) => unqualify(&parts).map_err(|e| e.at(position)),
        None => Err(SqlError::syntax(format!("\"{name}\" is not a name")).at(position)),
    }
}
