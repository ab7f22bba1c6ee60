//! The order of a batch's keys on disk, found without comparing whole keys where a few bytes tell them apart.

use crate::KeyGroup;

/// Indices of `count` keys in the order of (key group, key); of equal ones the first comes first.
///
/// The keys of a batch often begin alike (a column's marker, a common word), so what is compared first is the key group
/// and the eight bytes after what they all have in common.
pub(crate) fn sorted<'a>(count: usize, key: impl Fn(usize) -> (KeyGroup, &'a [u8])) -> Vec<u32> {
    if (1..count).all(|index| key(index - 1) <= key(index)) {
        return (0..count as u32).collect();
    }
    let (_, first) = key(0);
    let common = (1..count).fold(first.len(), |common, index| {
        let both = first[..common].iter().zip(key(index).1);
        both.take_while(|(left, right)| left == right).count()
    });
    let mut order: Vec<(u16, u64, u32)> = (0..count)
        .map(|index| {
            let (group, key) = key(index);
            (group.0, head(&key[common..]), index as u32)
        })
        .collect();
    order.sort_unstable_by(|left, right| {
        let heads = (left.0, left.1).cmp(&(right.0, right.1));
        heads
            .then_with(|| key(left.2 as usize).1[common..].cmp(&key(right.2 as usize).1[common..]))
            .then_with(|| left.2.cmp(&right.2))
    });
    order.into_iter().map(|(_, _, index)| index).collect()
}

/// The first eight bytes as a number that sorts like them; missing ones count as zero.
fn head(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    let length = bytes.len().min(8);
    head[..length].copy_from_slice(&bytes[..length]);
    u64::from_be_bytes(head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn order_is_that_of_keys_on_disk(
            keys in prop::collection::vec((0..3u16, prop::collection::vec(0..3u8, 0..12)), 0..60),
            common in prop::collection::vec(any::<u8>(), 0..5),
        ) {
            let keys: Vec<_> = keys.into_iter().map(|(group, key)| (KeyGroup(group), [&common[..], &key].concat())).collect();
            let mut expected: Vec<u32> = (0..keys.len() as u32).collect();
            expected.sort_by_key(|index| &keys[*index as usize]);
            prop_assert_eq!(sorted(keys.len(), |index| (keys[index].0, &keys[index].1[..])), expected);
        }
    }
}
