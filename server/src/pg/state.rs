//! What a connection holds: its session, prepared statements and portals.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::scalar::ScalarValue;
use pgwire::api::Type;
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::extendedquery::Bind;
use weir_planner::{Parsed, SqlError};

use super::error::{refused, statement_error};
use super::parameters::parameter;
use super::rows::Rows;
use super::savepoint::Savepoint;
use super::types::pg_type;
use crate::session::{Description, Session};

/// What a connection has after its start.
pub(super) struct State {
    pub(super) session: Session,
    pub(super) prepared: HashMap<String, Prepared>,
    pub(super) portals: HashMap<String, Portal>,
}

/// What a prepared text says.
#[derive(Clone)]
pub(super) enum Content {
    /// Nothing.
    Empty,
    /// Something about the transaction that the door answers by itself.
    Savepoint(Savepoint),
    /// A statement for the session.
    Statement(Arc<Parsed>),
}

/// A prepared statement.
pub(super) struct Prepared {
    pub(super) content: Content,
    /// Type OIDs as the client gave them, 0 where it left the choice to the server.
    pub(super) declared: Vec<u32>,
    /// Found out when it is first needed.
    pub(super) description: Option<Description>,
}

/// A prepared statement with its parameters, perhaps partly executed.
pub(super) struct Portal {
    pub(super) content: Content,
    pub(super) parameters: Vec<ScalarValue>,
    pub(super) formats: Vec<i16>,
    /// What the client was told the columns are.
    pub(super) described: Option<SchemaRef>,
    pub(super) progress: Progress,
}

pub(super) enum Progress {
    Bound,
    Suspended(Rows),
    /// Done, with its tag for a client that executes it again.
    Finished(String),
}

pub(super) fn not_started() -> PgWireError {
    refused("08P01", "the connection has not been started")
}

pub(super) fn no_portal(name: &str) -> PgWireError {
    refused("34000", format!("portal \"{name}\" does not exist"))
}

pub(super) fn no_statement(name: &str) -> PgWireError {
    refused("26000", format!("prepared statement \"{name}\" does not exist"))
}

/// A client that was told of other columns would read the values wrongly.
pub(super) fn check_same_columns(described: Option<&SchemaRef>, actual: &SchemaRef) -> PgWireResult<()> {
    let Some(described) = described else { return Ok(()) };
    let same = described.fields().len() == actual.fields().len()
        && described.fields().iter().zip(actual.fields()).all(|(a, b)| pg_type(a) == pg_type(b));
    if same { Ok(()) } else { Err(refused("0A000", "cached plan must not change result type")) }
}

pub(super) fn check_formats(formats: &[i16], columns: usize) -> PgWireResult<()> {
    if formats.len() > 1 && formats.len() != columns {
        return Err(refused(
            "08P01",
            format!("bind message has {} result formats but query has {columns} columns", formats.len()),
        ));
    }
    Ok(())
}

impl State {
    /// What a prepared statement will answer.
    pub(super) async fn describe(&mut self, name: &str) -> PgWireResult<(&Prepared, Description)> {
        let prepared = self.prepared.get_mut(name).ok_or_else(|| no_statement(name))?;
        let description = match (&prepared.description, &prepared.content) {
            (Some(known), _) => known.clone(),
            (None, Content::Statement(parsed)) => self.session.describe(parsed).await.map_err(statement_error)?,
            (None, _) => Description { parameters: Vec::new(), columns: None },
        };
        prepared.description = Some(description.clone());
        Ok((prepared, description))
    }

    /// The columns of an SQL cursor, which clients describe as the portal that it is in PostgreSQL.
    pub(super) async fn describe_cursor(&mut self, name: &str) -> Result<Option<SchemaRef>, SqlError> {
        let fetch = format!("FETCH FORWARD 1 FROM \"{}\"", name.replace('"', "\"\""));
        match self.session.parse(&fetch)?.first() {
            Some(parsed) => Ok(self.session.describe(parsed).await?.columns),
            None => Ok(None),
        }
    }

    pub(super) fn bind(
        &self,
        message: &Bind,
        prepared: &Prepared,
        description: Option<&Description>,
    ) -> PgWireResult<Portal> {
        let given = message.parameters.len();
        let formats = &message.parameter_format_codes;
        if formats.len() > 1 && formats.len() != given {
            return Err(refused(
                "08P01",
                format!("bind message has {} parameter formats but {given} parameters", formats.len()),
            ));
        }
        if let Some(wanted) = description.map(|d| d.parameters.len().max(prepared.declared.len()))
            && wanted != given
        {
            let name = message.statement_name.as_deref().unwrap_or_default();
            return Err(refused(
                "08P01",
                format!(
                    "bind message supplies {given} parameters, but prepared statement \"{name}\" requires {wanted}"
                ),
            ));
        }
        let parameters = message
            .parameters
            .iter()
            .enumerate()
            .map(|(index, bytes)| {
                let declared = prepared.declared.get(index).copied();
                let wanted = description.and_then(|d| d.parameters.get(index));
                let format = if formats.len() == 1 { formats.first() } else { formats.get(index) };
                parameter(index, declared, wanted, format == Some(&1), bytes.as_deref()).map_err(statement_error)
            })
            .collect::<PgWireResult<_>>()?;
        Ok(Portal {
            content: prepared.content.clone(),
            parameters,
            formats: message.result_column_format_codes.clone(),
            described: description.and_then(|d| d.columns.clone()),
            progress: Progress::Bound,
        })
    }
}

/// The type of a parameter as a client is told: its own choice, what the statement needs, else text.
pub(super) fn parameter_oid(declared: Option<u32>, wanted: Option<&DataType>) -> u32 {
    match (declared, wanted) {
        (Some(oid), _) if oid != 0 => oid,
        (_, Some(wanted)) if !wanted.is_null() => pg_type(&Field::new("parameter", wanted.clone(), true)).oid(),
        _ => Type::TEXT.oid(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Schema;

    use super::*;

    fn schema(types: &[DataType]) -> SchemaRef {
        let fields: Vec<Field> = types.iter().map(|ty| Field::new("c", ty.clone(), true)).collect();
        Arc::new(Schema::new(fields))
    }

    #[test]
    fn a_changed_result_is_refused() {
        let described = schema(&[DataType::Int32]);
        assert!(check_same_columns(Some(&described), &schema(&[DataType::Int32])).is_ok());
        assert!(check_same_columns(Some(&described), &schema(&[DataType::Utf8])).is_err());
        assert!(check_same_columns(None, &schema(&[DataType::Utf8])).is_ok());
        // What looks the same on the wire is the same.
        assert!(check_same_columns(Some(&schema(&[DataType::Utf8])), &schema(&[DataType::Utf8View])).is_ok());
    }

    #[test]
    fn formats_are_none_one_or_all() {
        assert!(check_formats(&[], 3).is_ok());
        assert!(check_formats(&[1], 3).is_ok());
        assert!(check_formats(&[1, 0, 1], 3).is_ok());
        assert!(check_formats(&[1, 0], 3).is_err());
    }

    #[test]
    fn the_type_of_a_parameter() {
        assert_eq!(parameter_oid(Some(23), Some(&DataType::Int64)), 23);
        assert_eq!(parameter_oid(Some(0), Some(&DataType::Int64)), 20);
        assert_eq!(parameter_oid(None, Some(&DataType::Null)), 25);
    }
}
