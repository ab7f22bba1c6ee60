//! When a sink begins a new file, besides at every checkpoint. Pure.

use std::time::Duration;

/// Limits of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Roll {
    /// Bytes.
    pub(crate) size: u64,
    /// Rows.
    pub(crate) rows: Option<u64>,
    /// Age.
    pub(crate) interval: Option<Duration>,
}

impl Roll {
    /// Whether a file of this size, number of rows and age is to be ended.
    pub(crate) fn is_due(&self, size: u64, rows: u64, age: Duration) -> bool {
        size >= self.size
            || self.rows.is_some_and(|limit| rows >= limit)
            || self.interval.is_some_and(|limit| age >= limit)
    }

    /// How many of `wanted` rows the current file, which has `rows`, may still take.
    pub(crate) fn room(&self, rows: u64, wanted: usize) -> usize {
        self.rows.map_or(wanted, |limit| wanted.min(limit.saturating_sub(rows) as usize)).max(1).min(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolls_by_each_limit() {
        let roll = Roll { size: 100, rows: Some(10), interval: Some(Duration::from_secs(60)) };
        assert!(!roll.is_due(99, 9, Duration::from_secs(59)));
        assert!(roll.is_due(100, 9, Duration::ZERO));
        assert!(roll.is_due(0, 10, Duration::ZERO));
        assert!(roll.is_due(0, 0, Duration::from_secs(60)));
        assert_eq!(roll.room(7, 8), 3);
        assert_eq!(roll.room(0, 8), 8);
    }
}
