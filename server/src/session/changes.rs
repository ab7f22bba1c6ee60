//! SUBSCRIBE and SELECT … EMIT CHANGES: rows pushed until the client has enough.

use weir_planner::statement::{Query, Subscribe, SubscribeTarget};
use weir_planner::{RelationKind, SqlError};

use super::{Outcome, Session};
use crate::serving::{follow_graph, view_changes};

impl Session {
    pub(super) async fn subscribe(&mut self, subscribe: &Subscribe) -> Result<Outcome, SqlError> {
        let name = match &subscribe.target {
            SubscribeTarget::Query(query) => return self.follow_query(query).await,
            SubscribeTarget::Relation(name) => name,
        };
        if let Some(option) = subscribe.options.keys().next() {
            return Err(SqlError::unsupported(format!("SUBSCRIBE has no option \"{option}\""))
                .hint("it has one: WITH (snapshot = false) leaves out the rows that stand now"));
        }
        let catalog = self.engine.catalog();
        let relation = catalog.find(name)?;
        match relation.kind {
            RelationKind::View | RelationKind::Table => {
                let Some(view) = self.engine.view(name) else {
                    return Err(self.engine.not_running(name));
                };
                if subscribe.snapshot {
                    self.engine.snapshot(name, &view).await?;
                }
                let rows = view_changes(&view, subscribe.snapshot);
                Ok(Outcome::Rows { schema: rows.schema(), rows, tag: "SUBSCRIBE", endless: true })
            }
            RelationKind::Stream => {
                let quoted = name.replace('"', "\"\"");
                self.follow(&format!("SELECT * FROM \"{quoted}\"")).await
            }
            RelationKind::Sink => Err(SqlError::unsupported(format!("sink \"{name}\" cannot be subscribed to"))
                .hint("subscribe to what it reads, or to a materialized view of the same query")),
        }
    }

    pub(super) async fn follow_query(&mut self, query: &Query) -> Result<Outcome, SqlError> {
        self.follow(&query.sql).await
    }

    async fn follow(&mut self, sql: &str) -> Result<Outcome, SqlError> {
        let planned = self.engine.plan_reader(sql, &self.options)?;
        for read in &planned.reads {
            self.engine.forward_for_reader(read).await?;
        }
        let rows = follow_graph(&self.engine, planned, sql, &self.options).await?;
        Ok(Outcome::Rows { schema: rows.schema(), rows, tag: "SELECT", endless: true })
    }
}
