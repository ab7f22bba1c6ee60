//! Event time through the plan: which column carries it, and which columns are the bounds of windows.

use crate::changelog::Key;

/// What a node's output says about event time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// Whether the watermark that passes with the rows speaks about them: no row follows with an event time below it,
    /// late ones excepted. False after a join or an updating aggregate, whose rows may be as old as their state.
    pub(crate) watermark: bool,
    /// The event-time column.
    pub(crate) event_time: Option<usize>,
    /// Columns that are the end of a window over the event time.
    pub(crate) window_end: Vec<usize>,
    /// Whether there is or was a window over the event time, be its columns still there or not.
    pub(crate) windowed: bool,
    /// Columns that are start and end of the same window: one follows from the other.
    pub(crate) bounds: Vec<(usize, usize)>,
}

impl Times {
    /// Through a projection: `places[i]` is where input column `i` is found in the output.
    pub(crate) fn project(&self, places: impl Fn(usize) -> Option<usize>) -> Self {
        Self {
            watermark: self.watermark,
            windowed: self.windowed,
            event_time: self.event_time.and_then(&places),
            window_end: self.window_end.iter().filter_map(|i| places(*i)).collect(),
            bounds: self.bounds.iter().filter_map(|(s, e)| Some((places(*s)?, places(*e)?))).collect(),
        }
    }

    /// After windows over `time`, whose two columns stand behind the `inputs` columns of the input.
    pub(crate) fn windowed(&self, time: usize, inputs: usize) -> Self {
        let mut times = self.clone();
        times.bounds.push((inputs, inputs + 1));
        if times.watermark && times.event_time == Some(time) {
            times.window_end.push(inputs + 1);
            times.windowed = true;
        }
        times
    }

    /// Of rows from two inputs: what holds for both.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let watermark = self.watermark && other.watermark;
        Self {
            watermark,
            event_time: self.event_time.filter(|i| watermark && other.event_time == Some(*i)),
            window_end: self.window_end.iter().copied().filter(|i| watermark && other.window_end.contains(i)).collect(),
            windowed: watermark && self.windowed && other.windowed,
            bounds: Vec::new(),
        }
    }

    /// A key without the bound of a window that a projection drops, when the other bound is in the key and stays.
    pub(crate) fn shorter_key(&self, key: &Key, places: impl Fn(usize) -> Option<usize>) -> Key {
        let mut key = key.clone()?;
        for (start, end) in &self.bounds {
            for (dropped, kept) in [(end, start), (start, end)] {
                if places(*dropped).is_none() && places(*kept).is_some() && key.contains(kept) {
                    key.retain(|column| column != dropped);
                }
            }
        }
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Times {
        Times { watermark: true, event_time: Some(1), ..Times::default() }
    }

    fn windowed() -> Times {
        stream().windowed(1, 3)
    }

    #[test]
    fn the_start_of_a_window_stands_for_its_end_in_a_key() {
        let key = Some(vec![0, 3, 4]);
        assert_eq!(windowed().shorter_key(&key, |i| (i != 4).then_some(i)), Some(vec![0, 3]));
        assert_eq!(windowed().shorter_key(&key, |i| (i != 3).then_some(i)), Some(vec![0, 4]));
        assert_eq!(windowed().shorter_key(&key, |i| (i < 3).then_some(i)), key);
        assert_eq!(windowed().shorter_key(&key, Some), key);
    }

    #[test]
    fn a_window_over_event_time_ends_by_the_watermark() {
        assert_eq!(windowed().window_end, vec![4]);
    }

    #[test]
    fn a_window_over_another_column_does_not_end() {
        assert!(stream().windowed(0, 3).window_end.is_empty());
    }

    #[test]
    fn columns_keep_their_meaning_where_they_move() {
        let times = windowed().project(|i| (i == 4).then_some(0));
        assert_eq!(times, Times { watermark: true, windowed: true, window_end: vec![0], ..Times::default() });
    }

    #[test]
    fn a_union_knows_what_both_sides_know() {
        let other = Times { watermark: true, event_time: Some(0), window_end: vec![4], windowed: true, bounds: vec![] };
        assert_eq!(
            windowed().union(&other),
            Times { watermark: true, windowed: true, window_end: vec![4], ..Times::default() }
        );
        assert_eq!(windowed().union(&Times::default()), Times::default());
    }
}
