//! How files are cut into splits, and how a split is named. Pure.

use std::ops::Range;

use weir_runtime::source::SplitId;

/// A split: a file or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Split {
    /// The file's URL.
    pub(crate) url: String,
    /// Which part.
    pub(crate) part: Part,
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// The lines that begin in this range of bytes; without an end, all that follow.
    Bytes(u64, Option<u64>),
    /// These row groups of a Parquet file.
    Groups(Range<usize>),
}

const BYTES: &str = "bytes";
const GROUPS: &str = "groups";

impl Split {
    /// The split's stable name: the URL, and the part behind a `#`.
    pub(crate) fn id(&self) -> SplitId {
        SplitId(match &self.part {
            Part::Whole => self.url.clone(),
            Part::Bytes(start, None) => format!("{}#{BYTES}={start}-", self.url),
            Part::Bytes(start, Some(end)) => format!("{}#{BYTES}={start}-{end}", self.url),
            Part::Groups(groups) => format!("{}#{GROUPS}={}-{}", self.url, groups.start, groups.end),
        })
    }

    /// The split that a name stands for.
    pub(crate) fn parse(id: &SplitId) -> Self {
        // A file's name may hold either mark; the part's stands last.
        let parsed = id.0.rsplit_once('#').and_then(|(url, part)| {
            let (kind, range) = part.split_once('=')?;
            let (start, end) = range.split_once('-')?;
            let part = match kind {
                BYTES if end.is_empty() => Part::Bytes(start.parse().ok()?, None),
                BYTES => Part::Bytes(start.parse().ok()?, Some(end.parse().ok()?)),
                GROUPS => Part::Groups(start.parse().ok()?..end.parse().ok()?),
                _ => return None,
            };
            Some(Self { url: url.to_owned(), part })
        });
        parsed.unwrap_or_else(|| Self { url: id.0.clone(), part: Part::Whole })
    }
}

/// How many pieces each of `files` files is cut into: enough that each subtask has one, and no more, because rows of a
/// later piece run ahead of the earlier ones in event time.
pub(crate) fn pieces(files: usize, parallelism: u32) -> u64 {
    u64::from(parallelism).div_ceil(files.max(1) as u64)
}

/// Cut `size` bytes into at most `pieces` ranges of at least `minimum` bytes.
pub(crate) fn cut_bytes(size: u64, pieces: u64, minimum: u64) -> Vec<Part> {
    let pieces = pieces.min(size / minimum.max(1)).max(1);
    if pieces == 1 {
        return vec![Part::Whole];
    }
    let boundary = |index: u64| (u128::from(size) * u128::from(index) / u128::from(pieces)) as u64;
    (0..pieces).map(|index| Part::Bytes(boundary(index), (index + 1 < pieces).then(|| boundary(index + 1)))).collect()
}

/// Cut row groups with these numbers of rows into at most `pieces` ranges of about as many rows each.
pub(crate) fn cut_groups(rows: &[u64], pieces: u64) -> Vec<Part> {
    let pieces = pieces.min(rows.len() as u64).max(1);
    if pieces == 1 {
        return vec![Part::Whole];
    }
    let total: u64 = rows.iter().sum::<u64>().max(1);
    let mut parts = Vec::new();
    let (mut start, mut seen) = (0, 0);
    for (index, count) in rows.iter().enumerate() {
        seen += count;
        // The last part takes the rest.
        let due = (parts.len() as u64) + 1 < pieces && seen * pieces >= total * (parts.len() as u64 + 1);
        if due || index + 1 == rows.len() {
            parts.push(Part::Groups(start..index + 1));
            start = index + 1;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_stand_for_their_splits() {
        for part in [Part::Whole, Part::Bytes(5, None), Part::Bytes(5, Some(9)), Part::Groups(2..4)] {
            let split = Split { url: "file:///data/a#bytes=.csv".to_owned(), part };
            if split.part != Part::Whole {
                assert_eq!(Split::parse(&split.id()), split);
            }
        }
        assert_eq!(Split::parse(&SplitId("s3://b/a.csv".to_owned())).part, Part::Whole);
    }

    #[test]
    fn small_files_stay_whole() {
        assert_eq!(cut_bytes(63, 4, 32), [Part::Whole]);
        assert_eq!(cut_bytes(64, 4, 32), [Part::Bytes(0, Some(32)), Part::Bytes(32, None)]);
        assert_eq!(pieces(1, 4), 4);
        assert_eq!(pieces(3, 4), 2);
        assert_eq!(pieces(4, 4), 1);
    }

    proptest! {
        #[test]
        fn row_groups_are_all_read_once(rows in prop::collection::vec(0u64..1000, 1..30), pieces in 1u64..9) {
            let mut next = 0;
            let parts = cut_groups(&rows, pieces);
            prop_assert!(parts.len() as u64 <= pieces.max(1));
            for part in parts {
                match part {
                    Part::Whole => next = rows.len(),
                    Part::Groups(range) => {
                        prop_assert_eq!(range.start, next);
                        next = range.end;
                    }
                    Part::Bytes(..) => prop_assert!(false),
                }
            }
            prop_assert_eq!(next, rows.len());
        }
    }
}
