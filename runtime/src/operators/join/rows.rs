//! The rows of one side that share a join key: mostly one or two, sometimes very many.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

/// More rows than this are found by hash instead of one by one.
const INDEXED: usize = 16;

/// A row of one side.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    /// How often it is there. 0 only until the table has been told.
    pub(super) weight: i64,
    /// Sum of the weights of its partners; kept for preserved sides.
    pub(super) degree: i64,
    /// Whether the table does not have it as it is.
    pub(super) dirty: bool,
    /// Whether the table has it at all.
    pub(super) stored: bool,
}

/// Encoded rows with what is known of each, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<(Box<[u8]>, Held)>,
    index: Option<HashTable<usize>>,
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn bytes(&self, row: usize) -> &[u8] {
        &self.rows[row].0
    }

    pub(super) fn held(&mut self, row: usize) -> &mut Held {
        &mut self.rows[row].1
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&[u8], &mut Held)> {
        self.rows.iter_mut().map(|(bytes, held)| (&**bytes, held))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.rows.iter().map(|(bytes, _)| bytes.as_ref())
    }

    pub(super) fn find(&self, bytes: &[u8]) -> Option<usize> {
        match &self.index {
            None => self.rows.iter().position(|(held, _)| held.as_ref() == bytes),
            Some(index) => index.find(xxh3_64(bytes), |row| self.rows[*row].0.as_ref() == bytes).copied(),
        }
    }

    /// Adds a row that is not there.
    pub(super) fn push(&mut self, bytes: &[u8], held: Held) -> usize {
        let row = self.rows.len();
        self.rows.push((bytes.into(), held));
        match &mut self.index {
            Some(index) => {
                let rows = &self.rows;
                index.insert_unique(xxh3_64(bytes), row, |row| xxh3_64(&rows[*row].0));
            }
            None if self.rows.len() > INDEXED => self.build_index(),
            None => {}
        }
        row
    }

    /// Forgets the rows that are not there; others may get another number.
    pub(super) fn forget_gone(&mut self) {
        let before = self.rows.len();
        self.rows.retain(|(_, held)| held.weight != 0);
        if self.rows.len() < before {
            self.index = None;
            if self.rows.len() > INDEXED {
                self.build_index();
            }
        }
    }

    fn build_index(&mut self) {
        let mut index = HashTable::with_capacity(self.rows.len());
        for (row, (bytes, _)) in self.rows.iter().enumerate() {
            index.insert_unique(xxh3_64(bytes), row, |row: &usize| xxh3_64(&self.rows[*row].0));
        }
        self.index = Some(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_value_however_many_there_are() {
        let mut rows = Rows::default();
        for number in 0..100u32 {
            let row = rows.push(&number.to_be_bytes(), Held { weight: i64::from(number % 3), ..Held::default() });
            assert_eq!(rows.find(&number.to_be_bytes()), Some(row));
        }
        assert_eq!(rows.find(b"none"), None);
        rows.forget_gone();
        assert_eq!(rows.len(), 66);
        assert_eq!(rows.find(&3u32.to_be_bytes()), None);
        for number in [1u32, 2, 98] {
            let row = rows.find(&number.to_be_bytes()).expect("a row");
            assert_eq!(rows.bytes(row), number.to_be_bytes());
        }
    }
}
