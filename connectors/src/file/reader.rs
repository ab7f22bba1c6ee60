//! Reads the splits of one subtask in turn.
//!
//! Some splits are read side by side, a batch of each in turn, so that files which cover the same time advance
//! together and windows over them close. A watched file that has no more lines is put aside and looked at again after
//! the watch interval.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use weir_runtime::Result;
use weir_runtime::source::{SourceEvent, SourceReader, SplitId, SplitState};

use super::rows::RowSplit;
use super::source::Shared;
use super::split::Split;
use super::text::{Step, TextSplit, has_grown};
use crate::format::Format;

/// How many splits are read side by side.
const ACTIVE: usize = 8;

enum Active {
    Text(Box<TextSplit>),
    Rows(Box<RowSplit>),
}

impl Active {
    async fn next(&mut self) -> Result<Step> {
        match self {
            Self::Text(split) => split.next().await,
            Self::Rows(split) => split.next().await,
        }
    }
}

/// A watched file that had nothing new.
struct Parked {
    id: SplitId,
    position: serde_json::Value,
    look_again: Instant,
}

/// The reader of one subtask.
pub(crate) struct FileReader {
    shared: Arc<Shared>,
    queue: VecDeque<SplitState>,
    active: Vec<(SplitId, Active)>,
    turn: usize,
    parked: VecDeque<Parked>,
}

impl FileReader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, queue: VecDeque::new(), active: Vec::new(), turn: 0, parked: VecDeque::new() }
    }

    /// Bring quiet files back whose time has come, and begin waiting splits.
    fn activate(&mut self) -> Result<()> {
        let now = Instant::now();
        let interval = self.shared.options.watch.unwrap_or(Duration::from_secs(1));
        for _ in 0..self.parked.len() {
            let Some(mut parked) = self.parked.pop_front() else { break };
            if parked.look_again <= now {
                if has_grown(&Split::parse(&parked.id).url, &parked.position) {
                    self.queue.push_back(SplitState { id: parked.id, position: parked.position, finished: false });
                    continue;
                }
                parked.look_again = now + interval;
            }
            self.parked.push_back(parked);
        }
        while self.active.len() < ACTIVE
            && let Some(split) = self.queue.pop_front()
        {
            let (shared, id) = (Arc::clone(&self.shared), split.id.clone());
            let active = match self.shared.options.format {
                Format::Parquet => Active::Rows(Box::new(RowSplit::new(shared, id, split.position)?)),
                Format::Csv(_) | Format::Json { .. } => {
                    Active::Text(Box::new(TextSplit::new(shared, id, split.position)))
                }
            };
            self.active.push((split.id, active));
        }
        Ok(())
    }
}

#[async_trait]
impl SourceReader for FileReader {
    async fn next(&mut self) -> Result<SourceEvent> {
        loop {
            self.activate()?;
            if self.active.is_empty() {
                let now = Instant::now();
                return Ok(
                    match (self.parked.iter().map(|parked| parked.look_again).min(), self.shared.options.watch) {
                        (Some(at), _) => {
                            SourceEvent::Idle(at.saturating_duration_since(now).max(Duration::from_millis(1)))
                        }
                        (None, Some(interval)) => SourceEvent::Idle(interval),
                        (None, None) => SourceEvent::End,
                    },
                );
            }
            self.turn %= self.active.len();
            let (id, active) = &mut self.active[self.turn];
            match active.next().await? {
                Step::Rows(event) => {
                    self.turn += 1;
                    return Ok(event);
                }
                Step::Finished => {
                    let split = id.clone();
                    self.active.remove(self.turn);
                    return Ok(SourceEvent::SplitFinished { split });
                }
                Step::CaughtUp(position) => {
                    let interval = self.shared.options.watch.unwrap_or(Duration::from_secs(1));
                    self.parked.push_back(Parked { id: id.clone(), position, look_again: Instant::now() + interval });
                    self.active.remove(self.turn);
                }
            }
        }
    }

    async fn add_splits(&mut self, splits: Vec<SplitState>) -> Result<()> {
        self.queue.extend(splits.into_iter().filter(|split| !split.finished));
        Ok(())
    }
}
