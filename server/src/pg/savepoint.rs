//! SAVEPOINT, RELEASE and ROLLBACK TO, which drivers send around their own queries.
//!
//! Each statement of Weir is a transaction of its own, so there is nothing to save; what a savepoint still does is to
//! take a connection out of a failed transaction. That state belongs to the door, and so do these statements.

use pgwire::error::PgWireResult;
use pgwire::messages::response::TransactionStatus;

use super::error::refused;

/// One of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Savepoint {
    Set,
    Release,
    RollBack,
}

impl Savepoint {
    /// Reads one; `None` for any other statement.
    pub(super) fn parse(sql: &str) -> Option<Self> {
        let sql = sql.trim().trim_end_matches(';').trim_end();
        let words: Vec<String> = sql.split_whitespace().take(6).map(str::to_uppercase).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["SAVEPOINT", _] => Some(Self::Set),
            ["RELEASE", "SAVEPOINT", _] | ["RELEASE", _] => Some(Self::Release),
            ["ROLLBACK", rest @ ..] => {
                let rest = match rest {
                    ["WORK" | "TRANSACTION", rest @ ..] => rest,
                    rest => rest,
                };
                matches!(rest, ["TO", "SAVEPOINT", _] | ["TO", _]).then_some(Self::RollBack)
            }
            _ => None,
        }
    }

    /// The command tag.
    pub(super) fn tag(self) -> &'static str {
        match self {
            Self::Set => "SAVEPOINT",
            Self::Release => "RELEASE",
            Self::RollBack => "ROLLBACK",
        }
    }

    /// The state of the transaction after it.
    pub(super) fn apply(self, status: TransactionStatus) -> PgWireResult<TransactionStatus> {
        match (status, self) {
            (TransactionStatus::Idle, _) => {
                Err(refused("25P01", format!("{} can only be used in transaction blocks", self.tag())))
            }
            (TransactionStatus::Error, Self::Set | Self::Release) => Err(aborted()),
            _ => Ok(TransactionStatus::Transaction),
        }
    }
}

/// A statement in a transaction that has failed.
pub(super) fn aborted() -> pgwire::error::PgWireError {
    refused("25P02", "current transaction is aborted, commands ignored until end of transaction block")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_and_no_other() {
        assert_eq!(Savepoint::parse("SAVEPOINT \"_pg3_1\""), Some(Savepoint::Set));
        assert_eq!(Savepoint::parse("release savepoint a;"), Some(Savepoint::Release));
        assert_eq!(Savepoint::parse("ROLLBACK TO SAVEPOINT a"), Some(Savepoint::RollBack));
        assert_eq!(Savepoint::parse("rollback to a ;"), Some(Savepoint::RollBack));
        assert_eq!(Savepoint::parse("ROLLBACK"), None);
        assert_eq!(Savepoint::parse("SELECT 1"), None);
    }

    #[test]
    fn rolling_back_ends_the_failure() {
        let status = Savepoint::RollBack.apply(TransactionStatus::Error).unwrap();
        assert_eq!(status, TransactionStatus::Transaction);
        assert!(Savepoint::Set.apply(TransactionStatus::Error).is_err());
        assert!(Savepoint::Set.apply(TransactionStatus::Idle).is_err());
    }
}
