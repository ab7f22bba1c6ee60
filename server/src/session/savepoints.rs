//! Savepoints: CREATE, DROP, RESTORE and STOP WITH.

use weir_planner::statement::{DropSavepoint, SavepointTarget};
use weir_planner::{Savepoint, SqlError};

use super::{Outcome, Session};

impl Session {
    /// `CREATE SAVEPOINT [name] FOR QUERY q [TO 'url']`.
    pub(super) async fn create_savepoint(
        &mut self,
        query: &str,
        target: &SavepointTarget,
    ) -> Result<Outcome, SqlError> {
        let savepoint = self.engine.create_savepoint(query, target, &self.options).await?;
        Ok(Outcome::Command { tag: "CREATE SAVEPOINT".to_owned(), notices: vec![place(&savepoint)] })
    }

    /// `ALTER QUERY q STOP WITH SAVEPOINT …`.
    pub(super) async fn stop_with_savepoint(
        &mut self,
        query: &str,
        target: &SavepointTarget,
        drain: bool,
    ) -> Result<Outcome, SqlError> {
        let savepoint = self.engine.stop_with_savepoint(query, target, drain, &self.options).await?;
        let then = match drain {
            true => format!("query \"{query}\" is finished"),
            false => format!("query \"{query}\" is paused there; ALTER QUERY {query} RESUME goes on"),
        };
        Ok(Outcome::Command { tag: "ALTER QUERY".to_owned(), notices: vec![place(&savepoint), then] })
    }

    /// `DROP SAVEPOINT …`.
    pub(super) async fn drop_savepoint(
        &mut self,
        savepoint: &DropSavepoint,
        if_exists: bool,
    ) -> Result<Outcome, SqlError> {
        let mut notices = Vec::new();
        if !self.engine.drop_savepoint(savepoint, if_exists).await? {
            notices.push("there is no such savepoint, nothing was dropped".to_owned());
        }
        Ok(Outcome::Command { tag: "DROP SAVEPOINT".to_owned(), notices })
    }

    /// `RESTORE QUERY q FROM 'url' [CLAIM | NO CLAIM]`.
    pub(super) async fn restore_query(&mut self, query: &str, url: &str, claim: bool) -> Result<Outcome, SqlError> {
        let restored = self.engine.restore_query(query, url, claim).await?;
        let mut notices = vec![format!("query \"{query}\" goes on from a copy of it at {}", restored.url)];
        notices.extend(restored.notices);
        Ok(Outcome::Command { tag: "RESTORE QUERY".to_owned(), notices })
    }
}

fn place(savepoint: &Savepoint) -> String {
    format!("the savepoint of \"{}\" is at {}", savepoint.query, savepoint.url)
}
