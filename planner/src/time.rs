//! Event time through the plan: which column carries it, and which columns are the bounds of windows.

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
}

impl Times {
    /// Through a projection: `places[i]` is where input column `i` is found in the output.
    pub(crate) fn project(&self, places: impl Fn(usize) -> Option<usize>) -> Self {
        Self {
            watermark: self.watermark,
            event_time: self.event_time.and_then(&places),
            window_end: self.window_end.iter().filter_map(|i| places(*i)).collect(),
        }
    }

    /// After windows over `time`, whose two columns stand behind the `inputs` columns of the input.
    pub(crate) fn windowed(&self, time: usize, inputs: usize) -> Self {
        let mut times = self.clone();
        if times.watermark && times.event_time == Some(time) {
            times.window_end.push(inputs + 1);
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windowed() -> Times {
        Times { watermark: true, event_time: Some(1), window_end: vec![] }.windowed(1, 3)
    }

    #[test]
    fn a_window_over_event_time_ends_by_the_watermark() {
        assert_eq!(windowed().window_end, vec![4]);
    }

    #[test]
    fn a_window_over_another_column_does_not_end() {
        let times = Times { watermark: true, event_time: Some(1), window_end: vec![] };
        assert!(times.windowed(0, 3).window_end.is_empty());
    }

    #[test]
    fn columns_keep_their_meaning_where_they_move() {
        let times = windowed().project(|i| (i == 4).then_some(0));
        assert_eq!(times, Times { watermark: true, event_time: None, window_end: vec![0] });
    }

    #[test]
    fn a_union_knows_what_both_sides_know() {
        let other = Times { watermark: true, event_time: Some(0), window_end: vec![4] };
        assert_eq!(windowed().union(&other), Times { watermark: true, event_time: None, window_end: vec![4] });
        assert_eq!(windowed().union(&Times::default()), Times::default());
    }
}
