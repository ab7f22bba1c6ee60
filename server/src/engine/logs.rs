//! Keeps relations' logs short: entries that no query may ask for any more, and that no history is kept for, go.
//!
//! ```text
//!   checkpoint of a reader ─► old ones removed ─► LogSource::release ─► LogReaders ─┐
//!   catalog: who reads what, `retention` of a stream ───────────────────────────────┴─► decide_trim ─► Log::trim
//! ```
//!
//! A table's input log is read by the table's own query only. A stream's history also belongs to queries that are yet
//! to come, as far as its `retention` says. The log of changes of a view or table is kept whole: a query that comes to
//! read it later learns the rows from nowhere else.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_connectors::log::RetainedPositions;
use weir_planner::options::Retention;
use weir_planner::{Catalog, Entry, Options, RelationKind, SqlError};
use weir_runtime::graph::OperatorSpec;
use weir_storage::{JobId, Log, LogRetention, LogSeq, decide_trim};

use super::{Engine, is_connector};
use crate::error::from_storage;

/// How long after a checkpoint logs are trimmed: those of other queries come at about the same time.
const GATHER: Duration = Duration::from_millis(500);
/// How often logs are looked at when no checkpoint was taken: history grows old by itself.
const LOOK: Duration = Duration::from_secs(10);

/// Which queries read which logs, and what their retained checkpoints need of them.
#[derive(Default)]
pub(super) struct LogReaders {
    by_log: Mutex<HashMap<String, Vec<Reader>>>,
    moved: Arc<Notify>,
}

/// A source of a running query. It is gone with that run.
struct Reader {
    query: String,
    positions: Weak<RetainedPositions>,
}

impl LogReaders {
    /// A query opens a log.
    pub(super) fn read_by(&self, log: &Log, query: &str) -> Arc<RetainedPositions> {
        let positions = Arc::new(RetainedPositions::new(Arc::clone(&self.moved)));
        let reader = Reader { query: query.to_owned(), positions: Arc::downgrade(&positions) };
        let mut by_log = self.by_log.lock();
        let readers = by_log.entry(log.url()).or_default();
        readers.retain(|reader| reader.positions.strong_count() > 0);
        readers.push(reader);
        positions
    }

    /// A log is gone.
    pub(super) fn forget(&self, log: &Log) {
        self.by_log.lock().remove(&log.url());
    }

    /// Where the retained checkpoints of a query stand in a log, which its dataflow reads in so many places. Empty if
    /// that is not known of each of them: then nothing may go.
    fn positions(&self, log: &Log, query: &str, places: usize) -> Vec<LogSeq> {
        let by_log = self.by_log.lock();
        let readers = by_log.get(&log.url()).map(Vec::as_slice).unwrap_or_default();
        let own = readers.iter().filter(|reader| reader.query == query);
        let known: Vec<Option<Vec<LogSeq>>> =
            own.filter_map(|reader| reader.positions.upgrade()).map(|positions| positions.get()).collect();
        if places == 0 || known.len() < places {
            return Vec::new();
        }
        known.into_iter().collect::<Option<Vec<_>>>().unwrap_or_default().concat()
    }
}

/// A log that may be trimmed.
struct Trimmable {
    log: Log,
    relation: String,
    readers: Vec<String>,
    retention: LogRetention,
}

/// Trims logs until the engine is gone.
pub(super) async fn keep_logs_short(engine: Weak<Engine>) {
    loop {
        let Some((moved, stopping)) =
            engine.upgrade().map(|engine| (Arc::clone(&engine.logs.moved), engine.stopping.clone()))
        else {
            return;
        };
        tokio::select! {
            () = stopping.cancelled() => return,
            () = moved.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(GATHER) => {}
        }
        let Some(engine) = engine.upgrade() else { return };
        if engine.health().is_err() {
            return;
        }
        for relation in engine.catalog().iter().map(|relation| relation.name.clone()).collect::<Vec<_>>() {
            if let Err(error) = engine.trim_log_of(&relation).await {
                // What stays is removed by the next round.
                tracing::warn!(relation, %error, "its log could not be trimmed");
            }
        }
    }
}

impl Engine {
    async fn trim_log_of(&self, relation: &str) -> Result<(), SqlError> {
        // A query that is created meanwhile begins to read after this.
        let _turn = self.queries.turn.lock().await;
        let catalog = self.catalog.current();
        let Some(entry) = catalog.entry(relation) else { return Ok(()) };
        let Some(Trimmable { log, relation, readers, retention }) = self.trimmable(&catalog, entry)? else {
            return Ok(());
        };
        let positions: Vec<Vec<LogSeq>> = readers
            .iter()
            .map(|query| self.logs.positions(&log, query, self.places_that_read(query, &relation)))
            .collect();
        if positions.iter().any(Vec::is_empty) {
            return Ok(());
        }
        let in_detail = matches!(retention, LogRetention::Age(_) | LogRetention::Bytes(_));
        let extent = log.extent(in_detail).await.map_err(from_storage)?;
        let before = decide_trim(&extent, &positions, retention, chrono::Utc::now().timestamp_millis());
        if before > extent.first {
            let entries = log.trim(&self.fence, before).await.map_err(from_storage)?;
            tracing::debug!(relation, log = log.url(), entries, %before, "log trimmed");
        }
        Ok(())
    }

    /// The log of a relation of which something may go some day; none if all of it is kept.
    fn trimmable(&self, catalog: &Catalog, entry: &Entry) -> Result<Option<Trimmable>, SqlError> {
        let relation = &entry.relation;
        let Some(job) = entry.job.clone().map(JobId) else { return Ok(None) };
        let (log, readers, retention) = match relation.kind {
            RelationKind::Table => (self.input_log(&job), vec![relation.name.clone()], LogRetention::Consumed),
            RelationKind::Stream if !is_connector(relation) => {
                let retention = match Options::from_changed(&relation.options)?.retention()? {
                    Retention::Forever => return Ok(None),
                    Retention::Age(age) => LogRetention::Age(age),
                    Retention::Bytes(bytes) => LogRetention::Bytes(bytes),
                };
                (self.log_of(&job), catalog.dependents_of(&relation.name), retention)
            }
            _ => return Ok(None),
        };
        Ok(Some(Trimmable { log, relation: relation.name.clone(), readers, retention }))
    }

    /// How many sources of a running query read `relation`.
    fn places_that_read(&self, query: &str, relation: &str) -> usize {
        let reads =
            |spec: &OperatorSpec| matches!(spec, OperatorSpec::Source(source) if source.request.relation == relation);
        self.queries
            .get(query)
            .map_or(0, |query| query.handle.graph().nodes.iter().filter(|node| reads(&node.spec)).count())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use weir_connectors::log::LogSource;
    use weir_runtime::source::{Source, SourceRequest, SplitId, SplitState};
    use weir_storage::Store;

    use super::*;

    fn source(log: &Log, positions: Arc<RetainedPositions>) -> LogSource {
        let declared = Arc::new(arrow::datatypes::Schema::empty());
        let request = SourceRequest { relation: "r".to_owned(), declared, projection: Vec::new() };
        LogSource::new(log.clone(), request).keeping(positions)
    }

    fn at(entry: u64) -> Vec<SplitState> {
        let position = serde_json::json!({ "entry": entry });
        vec![SplitState { id: SplitId("log".to_owned()), position, finished: false }]
    }

    #[test]
    fn what_a_query_needs_is_known_when_each_of_its_sources_has_told() {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let (log, readers) = (Log::new(&store, "r"), LogReaders::default());
        assert!(readers.positions(&log, "q", 1).is_empty(), "it has not been started");
        let first = source(&log, readers.read_by(&log, "q"));
        first.release(&[at(7), at(9)]);
        assert_eq!(readers.positions(&log, "q", 1), [LogSeq(7), LogSeq(9)]);
        assert!(readers.positions(&log, "q", 2).is_empty(), "it reads the log twice");
        let second = source(&log, readers.read_by(&log, "q"));
        assert!(readers.positions(&log, "q", 2).is_empty(), "the other has no checkpoint yet");
        second.release(&[at(3)]);
        assert_eq!(readers.positions(&log, "q", 2), [LogSeq(7), LogSeq(9), LogSeq(3)]);
        assert!(readers.positions(&log, "other", 1).is_empty());
        drop((first, second));
        assert!(readers.positions(&log, "q", 2).is_empty(), "its run is over");
    }
}
