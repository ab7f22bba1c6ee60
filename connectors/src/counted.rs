//! What `datagen` and `nexmark` share: a source whose rows are a pure function of a counter.
//!
//! Counters are dealt out in turn: of P splits, split k has the counters k, k + P, k + 2P, … A split's position is the
//! number of counters it has used up, so that a restored source goes on with exactly the rows that it owes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use serde_json::json;
use tokio::time::Instant;
use weir_runtime::source::{Source, SourceEvent, SourceReader, SplitId, SplitState};
use weir_runtime::{Result, RuntimeError};

/// Makes rows from counters.
pub(crate) trait Generate: Send + Sync + 'static {
    /// Name of the splits.
    fn name(&self) -> &str;
    /// How many counters there are; `None`: no end.
    fn total(&self) -> Option<u64>;
    /// How many counters a second are used up over all splits; `None`: as fast as they are asked for.
    fn per_second(&self) -> Option<f64>;
    /// How many counters make a batch of a good size.
    fn per_batch(&self) -> u64;
    /// The rows of `count` counters: `first`, `first + stride`, …
    fn batch(&self, first: u64, stride: u64, count: u64) -> Result<RecordBatch>;
}

/// The source of a [`Generate`].
pub(crate) struct CountedSource<G>(pub(crate) Arc<G>);

#[async_trait]
impl<G: Generate> Source for CountedSource<G> {
    async fn discover(&self, known: &[SplitState], parallelism: u32) -> Result<Vec<SplitState>> {
        if !known.is_empty() {
            return Ok(Vec::new());
        }
        let splits = parallelism.max(1);
        Ok((0..splits)
            .map(|index| SplitState {
                id: SplitId(format!("{}#{index}/{splits}", self.0.name())),
                position: serde_json::Value::Null,
                finished: false,
            })
            .collect())
    }

    fn discovery_interval(&self) -> Option<Duration> {
        None
    }

    fn is_bounded(&self) -> bool {
        self.0.total().is_some()
    }

    async fn reader(&self, splits: Vec<SplitState>) -> Result<Box<dyn SourceReader>> {
        let mut reader = CountedReader { generate: Arc::clone(&self.0), splits: VecDeque::new() };
        reader.add_splits(splits).await?;
        Ok(Box::new(reader))
    }
}

struct CountedSplit {
    id: SplitId,
    index: u64,
    stride: u64,
    /// Counters used up.
    used: u64,
    /// Since when, and from how many on, the rate is kept.
    since: Instant,
    from: u64,
}

struct CountedReader<G> {
    generate: Arc<G>,
    splits: VecDeque<CountedSplit>,
}

/// What a split may do now.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Count(u64),
    Wait(Duration),
    Finished,
}

/// How many counters a split may use now: bounded by the batch, the end and the rate. Pure.
fn due(used: u64, from: u64, elapsed: Duration, share: Option<u64>, per_second: Option<f64>, per_batch: u64) -> Due {
    let left = share.map_or(u64::MAX, |share| share.saturating_sub(used));
    if left == 0 {
        return Due::Finished;
    }
    let wanted = left.min(per_batch.max(1));
    let Some(rate) = per_second else { return Due::Count(wanted) };
    let allowed = (elapsed.as_secs_f64() * rate) as u64;
    let done = used - from;
    if allowed > done {
        return Due::Count(wanted.min(allowed - done));
    }
    let next = Duration::try_from_secs_f64((done + 1) as f64 / rate).unwrap_or(Duration::MAX);
    Due::Wait(next.saturating_sub(elapsed).clamp(Duration::from_millis(1), Duration::from_secs(1)))
}

#[async_trait]
impl<G: Generate> SourceReader for CountedReader<G> {
    async fn next(&mut self) -> Result<SourceEvent> {
        let mut wait: Option<Duration> = None;
        for _ in 0..self.splits.len() {
            let Some(mut split) = self.splits.pop_front() else { break };
            // Of the counters 0..total, this split has every `stride`th.
            let share = self.generate.total().map(|total| total.saturating_sub(split.index).div_ceil(split.stride));
            let rate = self.generate.per_second().map(|rate| rate / split.stride as f64);
            match due(split.used, split.from, split.since.elapsed(), share, rate, self.generate.per_batch()) {
                Due::Finished => return Ok(SourceEvent::SplitFinished { split: split.id }),
                Due::Wait(time) => wait = Some(wait.map_or(time, |wait| wait.min(time))),
                Due::Count(count) => {
                    let first = split.index + split.used * split.stride;
                    let batch = self.generate.batch(first, split.stride, count)?;
                    split.used += count;
                    let (id, position) = (split.id.clone(), json!({ "used": split.used }));
                    self.splits.push_back(split);
                    return Ok(SourceEvent::Rows { split: id, batch, ops: None, position, bad: Vec::new() });
                }
            }
            self.splits.push_back(split);
        }
        Ok(match wait {
            Some(wait) => SourceEvent::Idle(wait),
            None => SourceEvent::End,
        })
    }

    async fn add_splits(&mut self, splits: Vec<SplitState>) -> Result<()> {
        for split in splits.into_iter().filter(|split| !split.finished) {
            let broken = || RuntimeError::Internal {
                place: "generated source",
                reason: format!("the split \"{}\" at {} is unreadable", split.id.0, split.position),
            };
            let (_, part) = split.id.0.rsplit_once('#').ok_or_else(broken)?;
            let (index, stride) = part.split_once('/').ok_or_else(broken)?;
            let used = match &split.position {
                serde_json::Value::Null => 0,
                position => position.get("used").and_then(serde_json::Value::as_u64).ok_or_else(broken)?,
            };
            let (index, stride) = (index.parse().map_err(|_| broken())?, stride.parse().map_err(|_| broken())?);
            self.splits.push_back(CountedSplit {
                id: split.id,
                index,
                stride,
                used,
                since: Instant::now(),
                from: used,
            });
        }
        Ok(())
    }
}

/// A small, fast random generator whose whole sequence follows from its seed (SplitMix64, Steele et al. 2014).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator for item `number` of series `series`.
    pub(crate) fn new(seed: u64, series: u64, number: u64) -> Self {
        let mut random =
            Self(seed ^ series.wrapping_mul(0xA24B_AED4_963E_E407) ^ number.wrapping_mul(0x9FB2_1C65_1E98_DF25));
        random.next();
        random
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound` (which is at least 1).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in 0..1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `count` lower-case letters, appended.
    pub(crate) fn letters(&mut self, count: usize, out: &mut Vec<u8>) {
        let mut left = count;
        while left > 0 {
            let mut bits = self.next();
            for _ in 0..left.min(8) {
                out.push(b'a' + (((bits & 0xFF) * 26) >> 8) as u8);
                bits >>= 8;
            }
            left -= left.min(8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_and_the_end_are_kept() {
        let second = Duration::from_secs(1);
        assert_eq!(due(0, 0, second, None, None, 100), Due::Count(100));
        assert_eq!(due(95, 0, second, Some(100), None, 100), Due::Count(5));
        assert_eq!(due(100, 0, second, Some(100), None, 100), Due::Finished);
        assert_eq!(due(0, 0, second, None, Some(10.0), 100), Due::Count(10));
        assert_eq!(due(10, 0, second, None, Some(10.0), 100), Due::Wait(Duration::from_millis(100)));
        assert_eq!(due(1010, 1000, second, None, Some(10.0), 100), Due::Wait(Duration::from_millis(100)));
    }
}
