//! Removes the oldest entries of a log.
//!
//! ```text
//!   client keys of what goes ─► KEYS      the beginning ─► HEAD      entries, oldest first, with their objects
//! ```
//!
//! In this order a crash at any moment leaves a log that opens: until HEAD is written nothing has gone, and from then on
//! nobody begins to read there. What an interrupted trim has left is found by the next one.

use futures::{StreamExt, TryStreamExt};

use super::entry::{Header, PartRef};
use super::shared::WriterState;
use super::{CONCURRENCY, Hint, KEYED_ENTRIES, Log, LogExtent, LogSeq, OldEntry};
use crate::error::Result;
use crate::fence::Fence;

/// Entries that are removed at a time.
const STEP: usize = 64;
/// Entries that are looked at for their age and size.
const LOOK_AT: u64 = 1_024;

impl Log {
    /// Remove entries before `before` and the objects that they name; the newest entry always stays. Their client keys
    /// stay known as long as if the entries were there. Returns how many entries went.
    pub async fn trim(&self, fence: &Fence, before: LogSeq) -> Result<u64> {
        let mut state = self.loaded().await?;
        let head = self.shared.head();
        let first = self.first_known(&mut state).await?;
        let before = before.min(head).max(first);
        let mut entries: Vec<LogSeq> = (first.0..before.0).map(LogSeq).collect();
        if !state.swept {
            let left = self.listed().await?.into_iter().filter(|seq| *seq < first);
            entries = left.chain(entries).collect();
        }
        if entries.is_empty() {
            state.swept = true;
            return Ok(0);
        }
        fence.check().await?;
        let headers: Vec<(LogSeq, Option<Header>)> = futures::stream::iter(entries)
            .map(|seq| async move { Ok::<_, crate::StorageError>((seq, self.header(seq).await?)) })
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        if before > first {
            self.keep_keys(&headers, LogSeq(head.0.saturating_sub(KEYED_ENTRIES))).await?;
            self.write_hint(Hint { first: before, head }).await?;
            state.first = Some(before);
        }
        self.shared.forget_before(before);
        for step in headers.chunks(STEP) {
            let parts = step.iter().filter_map(|(_, header)| header.as_ref()).flat_map(|header| &header.parts);
            let objects = parts.filter_map(|part| match part {
                PartRef::Object { path, .. } => Some(format!("{}{path}", self.directory)),
                PartRef::Inline { .. } => None,
            });
            self.store.delete_many(objects.collect()).await?;
            self.store.delete_many(step.iter().map(|(seq, _)| self.entry_path(*seq)).collect()).await?;
        }
        state.swept = true;
        Ok(headers.len() as u64)
    }

    /// What lies in the log, with age and size of its oldest entries if `in_detail`.
    pub async fn extent(&self, in_detail: bool) -> Result<LogExtent> {
        let first = self.first().await?;
        let head = self.shared.head();
        if !in_detail {
            return Ok(LogExtent { first, head, ..LogExtent::default() });
        }
        let objects = self.store.list(self.directory.trim_end_matches('/')).await?;
        let bytes = objects.iter().map(|object| object.size).sum();
        let sizes: std::collections::HashMap<&str, u64> =
            objects.iter().map(|object| (object.path.as_str(), object.size)).collect();
        let last = head.0.min(first.0.saturating_add(LOOK_AT - 1));
        let headers: Vec<Option<Header>> = futures::stream::iter(first.0..=last)
            .map(|seq| self.header(LogSeq(seq)))
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        let oldest = headers.into_iter().enumerate().map_while(|(i, header)| {
            let header = header?;
            let own = sizes.get(self.entry_path(LogSeq(first.0 + i as u64)).as_str()).copied().unwrap_or_default();
            let object = |part: &PartRef| match part {
                PartRef::Object { length, .. } => *length,
                PartRef::Inline { .. } => 0,
            };
            Some(OldEntry { written_ms: header.written_ms, bytes: own + header.parts.iter().map(object).sum::<u64>() })
        });
        Ok(LogExtent { first, head, bytes, oldest: oldest.collect() })
    }

    /// The oldest entry. When what was written down of it is lost, it is where the entries before the head begin.
    pub(super) async fn first_known(&self, state: &mut WriterState) -> Result<LogSeq> {
        if let Some(first) = state.first {
            return Ok(first);
        }
        let first = match self.hint().await? {
            Some(hint) => hint.first,
            None => beginning(&self.listed().await?),
        };
        state.first = Some(first);
        Ok(first)
    }

    /// All entries that there are, in order.
    async fn listed(&self) -> Result<Vec<LogSeq>> {
        let here = self.store.list_here(self.directory.trim_end_matches('/')).await?;
        let number = |path: &str| path.rsplit('/').next()?.parse().ok().map(LogSeq);
        let mut entries: Vec<LogSeq> = here.iter().filter_map(|object| number(&object.path)).collect();
        entries.sort_unstable();
        Ok(entries)
    }

    fn keys_path(&self) -> String {
        format!("{}KEYS", self.directory)
    }

    /// Client keys of entries that were trimmed, in the order of those.
    pub(super) async fn trimmed_keys(&self) -> Result<Vec<(LogSeq, String)>> {
        let path = self.keys_path();
        let Some(bytes) = self.store.get_if_exists(&path).await? else { return Ok(Vec::new()) };
        serde_json::from_slice(&bytes).map_err(|error| crate::StorageError::Corrupt {
            url: self.store.absolute(&path),
            reason: format!("the client keys of the log cannot be read: {error}"),
        })
    }

    /// Client keys that are younger than `since` must be known after their entries have gone.
    async fn keep_keys(&self, going: &[(LogSeq, Option<Header>)], since: LogSeq) -> Result<()> {
        let before = self.trimmed_keys().await?;
        let mut keys = before.clone();
        for (seq, header) in going {
            // An entry that an interrupted trim had reached has its keys here already.
            if keys.last().is_none_or(|(last, _)| last < seq) {
                let own = header.iter().flat_map(|header| &header.client_keys);
                keys.extend(own.map(|key| (*seq, key.clone())));
            }
        }
        keys.retain(|(seq, _)| *seq >= since);
        if keys == before {
            return Ok(());
        }
        let json = serde_json::to_vec(&keys).unwrap_or_default();
        self.store.put(&self.keys_path(), json).await
    }
}

/// Where the unbroken run of entries that ends with the last one begins; 1 without entries.
fn beginning(entries: &[LogSeq]) -> LogSeq {
    let mut first = entries.last().copied().unwrap_or(LogSeq(1));
    for seq in entries.iter().rev().skip(1) {
        if seq.next() != first {
            break;
        }
        first = *seq;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_begins_where_its_entries_have_no_gap_any_more() {
        let beginning = |entries: &[u64]| beginning(&entries.iter().copied().map(LogSeq).collect::<Vec<_>>()).0;
        assert_eq!(beginning(&[]), 1);
        assert_eq!(beginning(&[1, 2, 3]), 1);
        assert_eq!(beginning(&[2, 5, 7, 8, 9]), 7);
        assert_eq!(beginning(&[4]), 4);
    }
}
