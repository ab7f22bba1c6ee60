//! Which source subtask reads which split: pure.

use std::collections::BTreeMap;

use weir_storage::Subtask;

use crate::message::EventTime;
use crate::source::{SplitId, SplitState};
use crate::source_task::{SplitTable, TableSplit};

/// The whole table of splits of one source operator, by subtask.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assignment {
    subtasks: Vec<BTreeMap<SplitId, TableSplit>>,
    /// What each subtask had sent; by it event time goes on after a restart.
    floors: Vec<Option<EventTime>>,
}

impl Assignment {
    /// The splits of a checkpoint over `parallelism` subtasks. A subtask keeps what it had unless their number changed.
    pub(crate) fn restore(former: Vec<SplitTable>, parallelism: u32) -> Self {
        let count = parallelism as usize;
        let mut assignment = Self { subtasks: vec![BTreeMap::new(); count], floors: vec![None; count] };
        if former.len() == count {
            for (subtask, table) in former.into_iter().enumerate() {
                assignment.floors[subtask] = table.watermark;
                assignment.subtasks[subtask]
                    .extend(table.splits.into_iter().map(|split| (split.state.id.clone(), split)));
            }
            return assignment;
        }
        // What any of them had not yet passed, none of the new ones may have passed.
        let floor = former.iter().filter_map(|table| table.watermark).min();
        assignment.floors.fill(floor);
        former.into_iter().flat_map(|table| table.splits).for_each(|split| {
            assignment.give(split);
        });
        assignment
    }

    /// Gives newly discovered splits to those with the fewest unfinished ones; those known already are left out.
    pub(crate) fn add(&mut self, found: Vec<SplitState>) -> BTreeMap<Subtask, Vec<SplitState>> {
        let mut given: BTreeMap<Subtask, Vec<SplitState>> = BTreeMap::new();
        for state in found {
            if self.subtasks.iter().all(|splits| !splits.contains_key(&state.id)) {
                let subtask = self.give(TableSplit { state: state.clone(), watermark: None });
                given.entry(subtask).or_default().push(state);
            }
        }
        given
    }

    fn give(&mut self, split: TableSplit) -> Subtask {
        let load = |splits: &BTreeMap<SplitId, TableSplit>| {
            (splits.values().filter(|split| !split.state.finished).count(), splits.len())
        };
        let fewest = (0..self.subtasks.len()).min_by_key(|subtask| load(&self.subtasks[*subtask])).unwrap_or(0);
        if let Some(splits) = self.subtasks.get_mut(fewest) {
            splits.insert(split.state.id.clone(), split);
        }
        Subtask(fewest as u32)
    }

    /// A subtask has acknowledged its part of a checkpoint: the positions it has come to.
    pub(crate) fn acknowledged(&mut self, subtask: Subtask, table: SplitTable) {
        if let Some(splits) = self.subtasks.get_mut(subtask.0 as usize) {
            splits.extend(table.splits.into_iter().map(|split| (split.state.id.clone(), split)));
        }
    }

    /// All splits ever handed out, at their last known positions.
    pub(crate) fn known(&self) -> Vec<SplitState> {
        self.subtasks.iter().flat_map(BTreeMap::values).map(|split| split.state.clone()).collect()
    }

    /// The part of one subtask.
    pub(crate) fn of(&self, subtask: Subtask) -> SplitTable {
        let index = subtask.0 as usize;
        let splits = self.subtasks.get(index).map(|splits| splits.values().cloned().collect()).unwrap_or_default();
        SplitTable { watermark: self.floors.get(index).copied().flatten(), splits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str, finished: bool) -> SplitState {
        SplitState { id: SplitId(name.to_owned()), position: serde_json::json!({ "row": 3 }), finished }
    }

    fn table(watermark: i64, splits: &[(&str, bool)]) -> SplitTable {
        let entry = |(name, finished): &(&str, bool)| TableSplit { state: split(name, *finished), watermark: None };
        SplitTable { watermark: Some(EventTime(watermark)), splits: splits.iter().map(entry).collect() }
    }

    fn names(table: &SplitTable) -> Vec<&str> {
        table.splits.iter().map(|split| split.state.id.0.as_str()).collect()
    }

    #[test]
    fn json_is_fixed_for_good() {
        let mut table = table(7, &[("a", false)]);
        table.splits[0].watermark = Some(EventTime(9));
        let json = r#"{"watermark":7,"splits":[{"id":"a","position":{"row":3},"finished":false,"watermark":9}]}"#;
        assert_eq!(serde_json::to_string(&table).unwrap(), json);
        assert_eq!(serde_json::from_str::<SplitTable>(json).unwrap(), table);
    }

    #[test]
    fn the_same_parallelism_keeps_every_split_where_it_was() {
        let former = vec![table(5, &[("a", true), ("b", false)]), table(9, &[("c", false)])];
        let assignment = Assignment::restore(former.clone(), 2);
        assert_eq!([assignment.of(Subtask(0)), assignment.of(Subtask(1))], former[..]);
    }

    #[test]
    fn another_parallelism_shares_out_all_splits_and_takes_the_earliest_watermark() {
        let former = vec![table(5, &[("a", true), ("b", false), ("d", false)]), table(9, &[("c", false)])];
        for parallelism in 1..6 {
            let assignment = Assignment::restore(former.clone(), parallelism);
            let mut all: Vec<_> = (0..parallelism).flat_map(|subtask| assignment.of(Subtask(subtask)).splits).collect();
            all.sort_by(|left, right| left.state.id.cmp(&right.state.id));
            assert_eq!(names(&SplitTable { watermark: None, splits: all }), ["a", "b", "c", "d"]);
            if parallelism != 2 {
                assert_eq!(assignment.of(Subtask(parallelism - 1)).watermark, Some(EventTime(5)));
            }
            assert_eq!(assignment.known().len(), 4);
        }
    }

    #[test]
    fn new_splits_go_to_those_with_the_fewest_unfinished_and_known_ones_to_nobody() {
        let former = vec![table(5, &[("a", false), ("b", false)]), table(9, &[("c", true)])];
        let mut assignment = Assignment::restore(former, 2);
        let given = assignment.add(vec![split("a", false), split("c", false), split("d", false), split("e", false)]);
        assert_eq!(given.keys().copied().collect::<Vec<_>>(), [Subtask(1)]);
        assert_eq!(given[&Subtask(1)].len(), 2);
        assert_eq!(assignment.known().len(), 5);
    }
}
