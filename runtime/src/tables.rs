//! Numbers of state tables, and the frame in which an operator's state stands in a checkpoint.
//!
//! An operator knows its tables by name, the database by a number of two bytes. Numbers are given once for the whole
//! job, so that operators may move between tasks, and each operator's are part of its state in every checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use weir_storage::{KeyedState, OperatorUid, StateTable, TableId};

use crate::error::{Result, internal};
use crate::operator::StateAccess;

/// First byte of a frame.
const FRAME: u8 = 1;

/// What the runtime keeps beside an operator's own state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The operator's tables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tables: BTreeMap<String, TableId>,
    /// The operator in whose part the keyed state of the whole task stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keyed_with: Option<OperatorUid>,
}

/// `1u8 · length of header u32 LE · header (JSON) · state`; nothing at all if there is nothing to keep.
pub(crate) fn frame(header: &Header, state: &[u8]) -> Result<Vec<u8>> {
    if *header == Header::default() && state.is_empty() {
        return Ok(Vec::new());
    }
    let json = serde_json::to_vec(header).map_err(|error| internal("operator state", error.to_string()))?;
    let mut bytes = Vec::with_capacity(5 + json.len() + state.len());
    bytes.push(FRAME);
    bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend_from_slice(state);
    Ok(bytes)
}

/// The two parts of a frame.
pub(crate) fn unframe(bytes: &[u8]) -> Result<(Header, Vec<u8>)> {
    if bytes.is_empty() {
        return Ok((Header::default(), Vec::new()));
    }
    let broken = |reason: &str| internal("operator state", reason);
    let (format, rest) = bytes.split_first().ok_or_else(|| broken("it is empty"))?;
    if *format != FRAME {
        return Err(broken(&format!("its format is {format}, and this version of Weir reads {FRAME}")));
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(|| broken("it is cut off"))?;
    let (header, state) =
        rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(|| broken("it is cut off"))?;
    let header = serde_json::from_slice(header).map_err(|error| broken(&error.to_string()))?;
    Ok((header, state.to_vec()))
}

/// The numbers of all tables of a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableNumbers {
    given: Arc<Mutex<Given>>,
}

#[derive(Debug, Default)]
struct Given {
    by_name: BTreeMap<(OperatorUid, String), TableId>,
    used: BTreeSet<TableId>,
}

impl TableNumbers {
    /// Takes up the numbers that a checkpoint holds.
    pub(crate) fn restore(&self, uid: &OperatorUid, header: &Header) -> Result<()> {
        let mut given = self.given.lock();
        for (name, id) in &header.tables {
            let known = given.by_name.insert((uid.clone(), name.clone()), *id);
            let fresh = given.used.insert(*id);
            if known.map_or(!fresh, |known| known != *id) {
                return Err(internal(
                    "state tables",
                    format!("table {id} was given twice, to \"{name}\" of {uid} at last"),
                ));
            }
        }
        Ok(())
    }

    /// The number of table `name` of `uid`.
    pub(crate) fn number(&self, uid: &OperatorUid, name: &str) -> Result<TableId> {
        let mut given = self.given.lock();
        let key = (uid.clone(), name.to_owned());
        if let Some(id) = given.by_name.get(&key) {
            return Ok(*id);
        }
        let next = given.used.last().map_or(Some(0), |last| last.0.checked_add(1));
        let id = TableId(next.ok_or_else(|| internal("state tables", "all 65,536 numbers are given"))?);
        given.by_name.insert(key, id);
        given.used.insert(id);
        Ok(id)
    }
}

/// The tables of one operator in one task's keyed state.
pub(crate) struct OperatorTables<'a> {
    pub(crate) uid: &'a OperatorUid,
    pub(crate) keyed: Option<&'a KeyedState>,
    pub(crate) numbers: &'a TableNumbers,
    /// Those that were asked for.
    pub(crate) used: BTreeMap<String, TableId>,
}

impl StateAccess for OperatorTables<'_> {
    fn table(&mut self, name: &str) -> Result<StateTable> {
        let Some(keyed) = self.keyed else {
            return Err(internal(
                "state tables",
                format!("{} is not declared stateful and wants \"{name}\"", self.uid),
            ));
        };
        let id = self.numbers.number(self.uid, name)?;
        self.used.insert(name.to_owned(), id);
        Ok(keyed.table(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(name: &str) -> OperatorUid {
        OperatorUid(name.to_owned())
    }

    #[test]
    fn frames_are_fixed_for_good() {
        let tables = BTreeMap::from([("groups".to_owned(), TableId(3))]);
        let header = Header { tables, keyed_with: Some(uid("aggregate-1")) };
        let bytes = frame(&header, b"own").unwrap();
        let expected = b"\x01\x35\0\0\0{\"tables\":{\"groups\":3},\"keyed_with\":\"aggregate-1\"}own";
        assert_eq!(bytes[5..], expected[5..]);
        assert_eq!(bytes[..5], [1, (bytes.len() - 8) as u8, 0, 0, 0]);
        assert_eq!(unframe(&bytes).unwrap(), (header, b"own".to_vec()));
        assert!(frame(&Header::default(), b"").unwrap().is_empty());
        assert_eq!(unframe(b"").unwrap(), (Header::default(), Vec::new()));
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        for bytes in [&b"\x02"[..], b"\x01\x01", b"\x01\xff\0\0\0{}", b"\x01\x02\0\0\0]["] {
            assert!(unframe(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn numbers_are_unique_in_the_job_and_survive_a_restart() {
        let numbers = TableNumbers::default();
        let (a, b) = (numbers.number(&uid("a"), "t").unwrap(), numbers.number(&uid("b"), "t").unwrap());
        assert_eq!((a, b, numbers.number(&uid("a"), "t").unwrap()), (TableId(0), TableId(1), TableId(0)));
        let restarted = TableNumbers::default();
        let header = Header { tables: BTreeMap::from([("t".to_owned(), b)]), keyed_with: None };
        restarted.restore(&uid("b"), &header).unwrap();
        restarted.restore(&uid("b"), &header).unwrap();
        assert_eq!(restarted.number(&uid("b"), "t").unwrap(), b);
        assert_eq!(restarted.number(&uid("a"), "t").unwrap(), TableId(2));
        assert!(restarted.restore(&uid("c"), &header).is_err());
    }
}
