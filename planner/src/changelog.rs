//! Which rows a node emits: only additions or also retractions, identified by which columns.

use datafusion::logical_expr::JoinType;
use weir_runtime::graph::JoinKind;

/// The columns that identify a row; `None` when none do.
pub(crate) type Key = Option<Vec<usize>>;

/// The runtime's kind of a join; `None` for those that it does not have.
pub(crate) fn join_kind(join_type: JoinType) -> Option<JoinKind> {
    Some(match join_type {
        JoinType::Inner => JoinKind::Inner,
        JoinType::Left => JoinKind::Left,
        JoinType::Right => JoinKind::Right,
        JoinType::Full => JoinKind::Full,
        JoinType::LeftSemi => JoinKind::LeftSemi,
        JoinType::LeftAnti => JoinKind::LeftAnti,
        _ => return None,
    })
}

/// Whether a join retracts: when an input does, or when a row that stood without a partner may get one.
pub(crate) fn join_retracts(kind: JoinKind, left: bool, right: bool) -> bool {
    left || right || !matches!(kind, JoinKind::Inner | JoinKind::LeftSemi)
}

/// What identifies the rows of a join. `on` holds the equal columns; right columns come `width` behind in the output.
pub(crate) fn join_key(kind: JoinKind, left: &Key, right: &Key, on: &[(usize, usize)], width: usize) -> Key {
    if matches!(kind, JoinKind::LeftSemi | JoinKind::LeftAnti) {
        return left.clone();
    }
    // A side whose key is among the join's columns has at most one partner for each row of the other side.
    let one_left = left.as_ref().is_some_and(|key| key.iter().all(|k| on.iter().any(|(l, _)| l == k)));
    let one_right = right.as_ref().is_some_and(|key| key.iter().all(|k| on.iter().any(|(_, r)| r == k)));
    let moved = |key: &[usize]| key.iter().map(|k| k + width).collect::<Vec<_>>();
    match kind {
        JoinKind::Inner | JoinKind::Left if one_right && left.is_some() => left.clone(),
        JoinKind::Inner | JoinKind::Right if one_left && right.is_some() => right.as_deref().map(moved),
        _ => {
            let (left, right) = (left.as_ref()?, right.as_ref()?);
            Some(left.iter().copied().chain(moved(right)).collect())
        }
    }
}

/// A key through a projection: it survives when all its columns do.
pub(crate) fn project_key(key: &Key, places: impl Fn(usize) -> Option<usize>) -> Key {
    key.as_ref()?.iter().map(|i| places(*i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_by_key_keeps_the_other_sides_key() {
        let (left, right) = (Some(vec![0]), Some(vec![1]));
        let key = |kind, on: &[(usize, usize)]| join_key(kind, &left, &right, on, 3);
        assert_eq!(key(JoinKind::Inner, &[(2, 1)]), Some(vec![0]));
        assert_eq!(key(JoinKind::Left, &[(2, 1)]), Some(vec![0]));
        assert_eq!(key(JoinKind::Right, &[(0, 2)]), Some(vec![4]));
        assert_eq!(key(JoinKind::Inner, &[(2, 2)]), Some(vec![0, 4]));
        assert_eq!(key(JoinKind::Full, &[(2, 1)]), Some(vec![0, 4]));
        assert_eq!(key(JoinKind::LeftAnti, &[(2, 1)]), Some(vec![0]));
        assert_eq!(join_key(JoinKind::Inner, &left, &None, &[(2, 1)], 3), None);
    }

    #[test]
    fn padded_rows_may_be_taken_back() {
        assert!(!join_retracts(JoinKind::Inner, false, false));
        assert!(!join_retracts(JoinKind::LeftSemi, false, false));
        assert!(join_retracts(JoinKind::Left, false, false));
        assert!(join_retracts(JoinKind::LeftAnti, false, false));
        assert!(join_retracts(JoinKind::Inner, false, true));
    }

    #[test]
    fn a_key_survives_whole_or_not_at_all() {
        let place = |i: usize| (i != 2).then_some(i + 1);
        assert_eq!(project_key(&Some(vec![0, 1]), place), Some(vec![1, 2]));
        assert_eq!(project_key(&Some(vec![0, 2]), place), None);
        assert_eq!(project_key(&None, place), None);
    }
}
