//! The key on disk: `key group u16 BE · table id u16 BE · key bytes`. Part of the persisted format, fixed for good.
//!
//! The key group comes first so that a range of key groups is one contiguous range of the database whatever tables it
//! holds: that is what moves when parallelism changes.

use crate::{KeyGroup, TableId};

/// Length of what stands before a key.
pub(crate) const PREFIX: usize = 4;

/// First byte of every encoded key and row: the version of their encoding.
pub(crate) const FORMAT: u8 = 0x01;

/// Above every key: there are at most 32,768 key groups.
pub(crate) const ABOVE_ALL: [u8; 2] = [0xff, 0xff];

/// What stands before every key of `table` in `group`.
pub(crate) fn prefix(group: KeyGroup, table: TableId) -> [u8; PREFIX] {
    let ([a, b], [c, d]) = (group.0.to_be_bytes(), table.0.to_be_bytes());
    [a, b, c, d]
}

/// Appends the key on disk to `buffer`.
pub(crate) fn push(buffer: &mut Vec<u8>, group: KeyGroup, table: TableId, key: &[u8]) {
    buffer.extend_from_slice(&prefix(group, table));
    buffer.extend_from_slice(key);
}

/// The key on disk.
pub(crate) fn full(group: KeyGroup, table: TableId, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREFIX + key.len());
    push(&mut bytes, group, table, key);
    bytes
}

/// The first key of key group `group`, whatever its table.
pub(crate) fn group_start(group: u16) -> [u8; 2] {
    group.to_be_bytes()
}

/// The smallest byte string above all that start with `prefix`; none if `prefix` is all `0xff`.
pub(crate) fn after(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = prefix.last_mut() {
        if *last == u8::MAX {
            prefix.pop();
        } else {
            *last += 1;
            return Some(prefix);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_on_disk_are_fixed_for_good() {
        assert_eq!(full(KeyGroup(0x0102), TableId(0x0304), b"\x01key"), b"\x01\x02\x03\x04\x01key");
        assert_eq!(full(KeyGroup(127), TableId(0), b""), b"\x00\x7f\x00\x00");
        assert_eq!(group_start(128), [0x00, 0x80]);
    }

    #[test]
    fn order_on_disk_is_key_group_then_table_then_key() {
        let keys = [
            full(KeyGroup(0), TableId(9), b"z"),
            full(KeyGroup(1), TableId(0), b""),
            full(KeyGroup(1), TableId(0), b"\xff"),
            full(KeyGroup(1), TableId(1), b""),
            full(KeyGroup(256), TableId(0), b"a"),
        ];
        assert!(keys.is_sorted());
    }

    #[test]
    fn the_end_of_a_prefix_lies_above_all_that_start_with_it() {
        assert_eq!(after(vec![1, 2]), Some(vec![1, 3]));
        assert_eq!(after(vec![1, 0xff, 0xff]), Some(vec![2]));
        assert_eq!(after(vec![0xff, 0xff]), None);
        assert_eq!(after(Vec::new()), None);
    }
}
