//! Up to when groups are closed.
//!
//! One watermark, except after a change of parallelism: the subtasks of a run that was checkpointed within an epoch had
//! come to different times. What one of them had closed must not be opened again, and what another had still open must not
//! be lost, so until the watermark has passed them all each range of key groups has its own.

use weir_storage::{KeyGroup, KeyGroupRange};

/// First byte: one watermark.
const ONE: u8 = 1;
/// First byte: a watermark, then later ones of ranges of key groups.
const RANGES: u8 = 2;
/// Bytes of one range: start, end, watermark.
const RANGE: usize = 12;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    watermark: i64,
    /// Ranges of key groups that are closed up to a later time.
    later: Vec<(KeyGroupRange, i64)>,
}

impl Closed {
    /// Nothing is closed.
    pub(super) fn new() -> Self {
        Self { watermark: i64::MIN, later: Vec::new() }
    }

    /// The time up to which all groups are closed.
    pub(super) fn watermark(&self) -> i64 {
        self.watermark
    }

    /// Whether some groups are closed up to a later time.
    pub(super) fn differs(&self) -> bool {
        !self.later.is_empty()
    }

    /// The time up to which groups of this key group are closed.
    pub(super) fn of(&self, group: KeyGroup) -> i64 {
        let later = self.later.iter().filter(|(range, _)| range.contains(group)).map(|(_, watermark)| *watermark);
        later.fold(self.watermark, i64::max)
    }

    pub(super) fn advance(&mut self, watermark: i64) {
        self.watermark = self.watermark.max(watermark);
        self.later.retain(|(_, later)| *later > self.watermark);
    }

    /// The persisted form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![if self.later.is_empty() { ONE } else { RANGES }];
        bytes.extend_from_slice(&self.watermark.to_le_bytes());
        for (range, watermark) in &self.later {
            bytes.extend_from_slice(&range.start.to_le_bytes());
            bytes.extend_from_slice(&range.end.to_le_bytes());
            bytes.extend_from_slice(&watermark.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (format, rest) = bytes.split_first()?;
        let (watermark, mut rest) = rest.split_first_chunk::<8>()?;
        let mut closed = Self { watermark: i64::from_le_bytes(*watermark), later: Vec::new() };
        while let Some((range, after)) = rest.split_first_chunk::<RANGE>() {
            let [a, b, c, d, watermark @ ..] = *range;
            let range = KeyGroupRange { start: u16::from_le_bytes([a, b]), end: u16::from_le_bytes([c, d]) };
            closed.later.push((range, i64::from_le_bytes(watermark)));
            rest = after;
        }
        let known = matches!((*format, closed.later.len()), (ONE, 0) | (RANGES, 1..));
        (known && rest.is_empty()).then_some(closed)
    }

    /// What subtasks had closed that shared out all key groups among them, as far as it matters to the owner of `own`.
    /// None if a state cannot be read.
    pub(super) fn restore(states: &[Vec<u8>], own: KeyGroupRange, max_parallelism: u16) -> Option<Self> {
        let overlaps = |range: &KeyGroupRange| range.start < own.end && own.start < range.end;
        let mut all: Vec<(KeyGroupRange, i64)> = Vec::new();
        let mut earliest: Option<i64> = None;
        for (index, state) in states.iter().enumerate() {
            let former = Self::decode(state)?;
            let range = KeyGroupRange::of(index as u32, states.len() as u32, max_parallelism);
            if overlaps(&range) {
                earliest = Some(earliest.map_or(former.watermark, |earliest| earliest.min(former.watermark)));
                all.push((range, former.watermark));
                all.extend(former.later.into_iter().filter(|(range, _)| overlaps(range)));
            }
        }
        let mut closed = Self { watermark: earliest.unwrap_or(i64::MIN), later: all };
        closed.advance(i64::MIN);
        Some(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 16 };

    fn state(watermark: i64) -> Vec<u8> {
        Closed { watermark, later: Vec::new() }.encode()
    }

    #[test]
    fn bytes_are_fixed_for_good() {
        assert_eq!(state(5), [1, 5, 0, 0, 0, 0, 0, 0, 0]);
        let closed = Closed { watermark: 5, later: vec![(KeyGroupRange { start: 8, end: 16 }, 7)] };
        assert_eq!(closed.encode(), [2, 5, 0, 0, 0, 0, 0, 0, 0, 8, 0, 16, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Closed::decode(&closed.encode()), Some(closed.clone()));
        for bytes in [&[][..], &[3, 0, 0, 0, 0, 0, 0, 0, 0], &closed.encode()[..20], &[1, 5]] {
            assert_eq!(Closed::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn each_former_range_is_closed_as_far_as_it_was() {
        let closed = Closed::restore(&[state(10), state(5)], ALL, 16).unwrap();
        assert_eq!((closed.watermark(), closed.of(KeyGroup(0)), closed.of(KeyGroup(8))), (5, 10, 5));
        // A checkpoint taken meanwhile keeps that, at another parallelism too.
        let own = KeyGroupRange { start: 0, end: 8 };
        let mut again = Closed::restore(&[closed.encode()], own, 16).unwrap();
        assert_eq!((again.watermark(), again.of(KeyGroup(0)), again.differs()), (5, 10, true));
        again.advance(9);
        assert_eq!((again.of(KeyGroup(0)), again.differs()), (10, true));
        again.advance(10);
        assert!(!again.differs());
        let upper = Closed::restore(&[state(10), state(5)], KeyGroupRange { start: 8, end: 16 }, 16).unwrap();
        assert_eq!((upper.watermark(), upper.differs()), (5, false));
    }

    #[test]
    fn those_that_had_come_to_one_time_have_one() {
        let closed = Closed::restore(&[state(7), state(7), state(7)], ALL, 16).unwrap();
        assert_eq!(closed, Closed { watermark: 7, later: vec![] });
    }
}
