//! Weir's errors and notices as PostgreSQL's fields.

use datafusion::error::DataFusionError;
use pgwire::error::{ErrorInfo, PgWireError};
use weir_planner::SqlError;

use crate::error::from_datafusion;

/// A statement's error. Weir's own code goes in the routine field, which psql shows with `\set VERBOSITY verbose`.
pub(super) fn statement_error(error: SqlError) -> PgWireError {
    PgWireError::UserError(Box::new(error_info("ERROR", error)))
}

/// An error that ends the connection.
pub(super) fn fatal(sqlstate: &str, message: String, hint: Option<String>) -> PgWireError {
    let mut info = ErrorInfo::new("FATAL".to_owned(), sqlstate.to_owned(), message);
    info.severity_nonlocalized = Some("FATAL".to_owned());
    info.hint = hint;
    PgWireError::UserError(Box::new(info))
}

/// A protocol violation or a statement that cannot be run as it was sent.
pub(super) fn refused(sqlstate: &str, message: impl Into<String>) -> PgWireError {
    let mut info = ErrorInfo::new("ERROR".to_owned(), sqlstate.to_owned(), message.into());
    info.severity_nonlocalized = Some("ERROR".to_owned());
    PgWireError::UserError(Box::new(info))
}

/// An error that came with the rows.
pub(super) fn row_error(error: DataFusionError) -> PgWireError {
    statement_error(from_datafusion(error))
}

fn error_info(severity: &str, error: SqlError) -> ErrorInfo {
    let mut info = ErrorInfo::new(severity.to_owned(), error.sqlstate.to_owned(), error.message);
    info.severity_nonlocalized = Some(severity.to_owned());
    info.hint = error.hint;
    info.detail = error.detail;
    info.position = error.position.map(|position| position.to_string());
    info.routine = Some(error.code.to_owned());
    info
}

/// A notice: one sentence that the user should know.
pub(super) fn notice(message: String) -> ErrorInfo {
    let mut info = ErrorInfo::new("NOTICE".to_owned(), "00000".to_owned(), message);
    info.severity_nonlocalized = Some("NOTICE".to_owned());
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_an_error_arrives() {
        let error = SqlError::syntax("\"selct\" is no statement").hint("did you mean SELECT?").detail("line 1").at(3);
        let PgWireError::UserError(info) = statement_error(error) else { unreachable!() };
        assert_eq!(info.code, "42601");
        assert_eq!(info.message, "\"selct\" is no statement");
        assert_eq!(info.hint.as_deref(), Some("did you mean SELECT?"));
        assert_eq!(info.detail.as_deref(), Some("line 1"));
        assert_eq!(info.position.as_deref(), Some("3"));
        assert_eq!(info.routine.as_deref(), Some("WEIR-1001"));
        assert!(!info.is_fatal());
    }
}
