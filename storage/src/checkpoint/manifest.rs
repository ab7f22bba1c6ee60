//! The manifest: a checkpoint's `_metadata`, with everything needed to restore from it.
//!
//! It is JSON that a person can read, one line more (`crc32:xxxxxxxx`, over all bytes before it) and nothing else.
//! Unknown fields are ignored, so that an older Weir reads what a newer one added; a change that this cannot cover
//! raises `format`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::seal::{sealed, unsealed};
use super::segment::{Segment, base64_bytes};
use crate::error::{Result, StorageError};
use crate::keyed::KeyedSnapshot;
use crate::{CheckpointId, Epoch, Generation, JobId, OperatorUid, Subtask};

/// The format that this version writes, and the highest that it reads.
pub const MANIFEST_FORMAT: u32 = 1;

/// A completed checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_FORMAT`] of the writer.
    pub format: u32,
    /// Whose checkpoint it is.
    pub job: JobId,
    /// Its number.
    pub checkpoint: CheckpointId,
    /// Last epoch that it contains; of an unaligned one, a number above those of all epochs before it.
    pub epoch: Epoch,
    /// Whether its barriers were ones that may overtake: state was taken within an epoch, and rows may be in flight.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unaligned: bool,
    /// Generation of the process that wrote it.
    pub generation: Generation,
    /// When it was triggered, in milliseconds since 1970.
    pub triggered_at_ms: i64,
    /// When all of its data was durable.
    pub completed_at_ms: i64,
    /// Whether it is the last one of a job that has read all of its input.
    pub last: bool,
    /// The query, as it was written.
    pub query_sql: String,
    /// Where its time went.
    #[serde(default)]
    pub durations: Durations,
    /// What is said of a savepoint only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub savepoint: Option<SavepointAbout>,
    /// State by operator.
    pub operators: Vec<OperatorState>,
}

/// What a savepoint says besides what it has of the checkpoint that it is a copy of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavepointAbout {
    /// The query that it was taken of.
    pub query: String,
    /// The name that it was given, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it was asked for, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// The logs in which its sources stand: lineage by relation. A relation that was dropped and created anew has
    /// another log, in which the same position means nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, JobId>,
}

/// Where a checkpoint's time went, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// Longest alignment of a subtask.
    pub alignment_ms: u64,
    /// Longest synchronous part of a subtask's snapshot.
    pub snapshot_ms: u64,
    /// From the first upload's begin to the last one's end.
    pub upload_ms: u64,
}

/// One operator's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperatorState {
    /// By which a later run finds it.
    pub uid: OperatorUid,
    /// For people.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u16,
    /// State of each subtask.
    pub subtasks: Vec<SubtaskState>,
}

/// One subtask's state. Parts that it does not have are left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubtaskState {
    /// Which one.
    pub subtask: Subtask,
    /// State without keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_state: Option<Segment>,
    /// State by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyed: Option<KeyedSnapshot>,
    /// Rows that were on their way to or from the subtask (unaligned checkpoints).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<Segment>,
    /// Bytes of these rows in memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overtaken_bytes: u64,
    /// From the first barrier that reached the subtask's task to the last, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub alignment_ms: u64,
    /// What it has counted so far.
    #[serde(default, skip_serializing_if = "RowCounts::is_zero")]
    pub counts: RowCounts,
    /// The newest rows that it rejected, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Segment>,
    /// A source's splits and positions; opaque here.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub source_splits: serde_json::Value,
    /// What a sink has prepared, to be committed once the manifest is durable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub committables: Vec<Committable>,
    /// A sink's own state.
    #[serde(default, skip_serializing_if = "Bytes::is_empty", with = "base64_bytes")]
    pub sink_state: Bytes,
}

/// Rows that a subtask has counted since its query was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCounts {
    /// Received.
    #[serde(default)]
    pub rows_in: u64,
    /// Emitted.
    #[serde(default)]
    pub rows_out: u64,
    /// Come after their window had closed.
    #[serde(default)]
    pub late_rows: u64,
    /// Not readable.
    #[serde(default)]
    pub bad_rows: u64,
}

impl RowCounts {
    /// Whether nothing was counted yet.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl std::iter::Sum for RowCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, one| Self {
            rows_in: sum.rows_in + one.rows_in,
            rows_out: sum.rows_out + one.rows_out,
            late_rows: sum.late_rows + one.late_rows,
            bad_rows: sum.bad_rows + one.bad_rows,
        })
    }
}

/// Bytes that a sink asked to keep until its commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Committable(#[serde(with = "base64_bytes")] pub Bytes);

impl SubtaskState {
    /// A subtask without any state.
    pub fn empty(subtask: Subtask) -> Self {
        Self {
            subtask,
            operator_state: None,
            keyed: None,
            in_flight: None,
            overtaken_bytes: 0,
            alignment_ms: 0,
            counts: RowCounts::default(),
            rejected: None,
            source_splits: serde_json::Value::Null,
            committables: Vec::new(),
            sink_state: Bytes::new(),
        }
    }

    /// All segments that it consists of.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        let own = self.operator_state.iter().chain(&self.in_flight).chain(&self.rejected);
        own.chain(self.keyed.iter().flat_map(KeyedSnapshot::segments))
    }

    /// The same, to be changed.
    fn segments_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        let own = self.operator_state.iter_mut().chain(&mut self.in_flight).chain(&mut self.rejected);
        own.chain(self.keyed.iter_mut().flat_map(|keyed| &mut keyed.files).map(|file| &mut file.segment))
    }

    /// Bytes that stand in the manifest besides segments.
    fn embedded_bytes(&self) -> u64 {
        let committables: usize = self.committables.iter().map(|c| c.0.len()).sum();
        let splits = if self.source_splits.is_null() { 0 } else { self.source_splits.to_string().len() };
        (committables + splits + self.sink_state.len()) as u64
    }
}

impl OperatorState {
    /// Whether anything would be lost if no operator took it up.
    pub fn has_state(&self) -> bool {
        let held = |state: &SubtaskState| {
            let held = state.operator_state.is_some() || state.keyed.is_some() || state.in_flight.is_some();
            held || !state.source_splits.is_null()
        };
        self.subtasks.iter().any(held)
    }
}

impl Manifest {
    /// Bytes of all rows in flight as they are stored.
    pub fn in_flight_bytes(&self) -> u64 {
        let subtasks = self.operators.iter().flat_map(|o| &o.subtasks);
        subtasks.filter_map(|state| state.in_flight.as_ref()).map(Segment::length).sum()
    }

    /// All segments that restoring needs.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.operators.iter().flat_map(|o| &o.subtasks).flat_map(SubtaskState::segments)
    }

    /// The objects that restoring needs, each once, relative to the job's directory.
    pub fn objects(&self) -> BTreeSet<&str> {
        self.segments().filter_map(Segment::object).collect()
    }

    /// Names objects that were copied by their new names.
    pub(super) fn relocate(&mut self, new_names: &BTreeMap<String, String>) {
        let subtasks = self.operators.iter_mut().flat_map(|operator| &mut operator.subtasks);
        for segment in subtasks.flat_map(SubtaskState::segments_mut) {
            if let Segment::Object { path, .. } = segment
                && let Some(new_name) = new_names.get(path)
            {
                path.clone_from(new_name);
            }
        }
    }

    /// Bytes of state inside the manifest itself.
    pub fn inline_bytes(&self) -> u64 {
        let segments = self.segments().filter(|s| s.object().is_none()).map(Segment::length).sum::<u64>();
        segments + self.operators.iter().flat_map(|o| &o.subtasks).map(SubtaskState::embedded_bytes).sum::<u64>()
    }

    /// The persisted form.
    pub fn to_bytes(&self) -> Result<Bytes> {
        let json = serde_json::to_vec_pretty(self);
        json.map(sealed).map_err(|e| StorageError::Corrupt {
            url: format!("{}/chk-{}/_metadata", self.job, self.checkpoint),
            reason: format!("it cannot be written as JSON: {e}"),
        })
    }

    /// Read the persisted form; `url` is where it was found, for errors.
    pub fn from_bytes(bytes: &[u8], url: &str) -> Result<Self> {
        let damaged = |reason: String| StorageError::Corrupt { url: url.to_owned(), reason };
        let json = unsealed(bytes, url)?;
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let format = serde_json::from_slice::<Format>(json).map_err(|e| damaged(e.to_string()))?.format;
        if format > MANIFEST_FORMAT {
            return Err(damaged(format!(
                "it has format {format}, and this version reads up to {MANIFEST_FORMAT}; use the version of Weir that \
                 wrote it or a later one"
            )));
        }
        serde_json::from_slice(json).map_err(|e| damaged(e.to_string()))
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::KeyGroupRange;
    use crate::keyed::StateFile;

    pub(crate) fn example() -> Manifest {
        let object =
            |path: &str, offset| Segment::Object { path: path.into(), offset, length: 100, crc32: 0xdead_beef };
        let source = SubtaskState {
            operator_state: Some(Segment::inline(&b"position"[..])),
            source_splits: serde_json::json!([{"id": "file:///in.csv", "position": {"byte": 17}, "finished": false}]),
            ..SubtaskState::empty(Subtask(0))
        };
        let files = vec![
            StateFile { name: "000009.sst".into(), segment: object("data/chk-12-b", 8) },
            StateFile { name: "CURRENT".into(), segment: Segment::inline(&b"MANIFEST-000004\n"[..]) },
        ];
        let keyed = SubtaskState {
            keyed: Some(KeyedSnapshot {
                files,
                new_bytes: 16,
                shared_bytes: 100,
                ..KeyedSnapshot::empty(KeyGroupRange { start: 0, end: 128 }, uuid::Uuid::from_u128(7))
            }),
            in_flight: Some(object("data/chk-13-a", 108)),
            ..SubtaskState::empty(Subtask(0))
        };
        let sink = SubtaskState {
            committables: vec![Committable(Bytes::from_static(b"part-0"))],
            sink_state: Bytes::from_static(b"\x01"),
            ..SubtaskState::empty(Subtask(0))
        };
        let operator = |uid: &str, name: &str, subtask| OperatorState {
            uid: OperatorUid(uid.into()),
            name: name.into(),
            parallelism: 1,
            max_parallelism: 128,
            subtasks: vec![subtask],
        };
        Manifest {
            format: MANIFEST_FORMAT,
            job: JobId("by_carrier-0197".into()),
            checkpoint: CheckpointId(13),
            epoch: Epoch(65),
            unaligned: false,
            generation: Generation(2),
            triggered_at_ms: 1_750_000_000_000,
            completed_at_ms: 1_750_000_000_042,
            last: false,
            query_sql: "CREATE MATERIALIZED VIEW by_carrier AS SELECT carrier, count(*) FROM flights GROUP BY carrier"
                .into(),
            durations: Durations { alignment_ms: 3, snapshot_ms: 4, upload_ms: 20 },
            savepoint: None,
            operators: vec![
                operator("source-1", "flights", source),
                operator("aggregate-1", "count(*) by carrier", keyed),
                operator("sink-1", "by_carrier", sink),
            ],
        }
    }

    const GOLDEN: &[u8] = include_bytes!("../../tests/golden/manifest-v1.json");

    #[test]
    fn golden_bytes_stay_the_same() {
        let bytes = example().to_bytes().unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(GOLDEN));
        assert_eq!(Manifest::from_bytes(GOLDEN, "golden").unwrap(), example());
    }

    #[test]
    fn counts_and_rejected_rows_have_their_place_and_older_manifests_none() {
        let state = SubtaskState {
            counts: RowCounts { rows_in: 9, rows_out: 7, late_rows: 2, bad_rows: 1 },
            rejected: Some(Segment::inline(&b"{}"[..])),
            ..SubtaskState::empty(Subtask(1))
        };
        let json = r#"{"subtask":1,"counts":{"rows_in":9,"rows_out":7,"late_rows":2,"bad_rows":1},"rejected":{"inline":{"bytes":"e30="}}}"#;
        assert_eq!(serde_json::to_string(&state).unwrap(), json);
        assert_eq!(serde_json::from_str::<SubtaskState>(json).unwrap(), state);
        assert_eq!(state.segments().count(), 1);
        assert_eq!(serde_json::from_str::<SubtaskState>(r#"{"subtask":1}"#).unwrap(), SubtaskState::empty(Subtask(1)));
    }

    #[test]
    fn any_flipped_bit_and_any_truncation_is_found() {
        let bytes = example().to_bytes().unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x10;
            assert!(Manifest::from_bytes(&damaged, "u").is_err(), "flipped byte {at}");
            assert!(Manifest::from_bytes(&bytes[..at], "u").is_err(), "cut at {at}");
        }
    }

    #[test]
    fn newer_formats_are_refused_with_what_to_do() {
        let json = serde_json::to_vec(&serde_json::json!({"format": 9, "something": "else"})).unwrap();
        let error = Manifest::from_bytes(&sealed(json), "s3://b/chk-1/_metadata").unwrap_err().to_string();
        assert!(error.contains("s3://b/chk-1/_metadata") && error.contains("format 9"), "{error}");
    }

    #[test]
    fn what_a_savepoint_says_stands_in_its_manifest_alone() {
        let about = SavepointAbout {
            query: "by_carrier".into(),
            name: None,
            created_at_ms: 5,
            inputs: [("flights".to_owned(), JobId("flights-1".into()))].into(),
        };
        let json = r#"{"query":"by_carrier","created_at_ms":5,"inputs":{"flights":"flights-1"}}"#;
        assert_eq!(serde_json::to_string(&about).unwrap(), json);
        let manifest = Manifest { savepoint: Some(about), ..example() };
        assert_eq!(Manifest::from_bytes(&manifest.to_bytes().unwrap(), "u").unwrap(), manifest);
    }

    #[test]
    fn every_object_takes_its_new_name() {
        let mut manifest = example();
        let names: BTreeMap<String, String> =
            manifest.objects().into_iter().map(|path| (path.to_owned(), format!("{path}-copy"))).collect();
        assert_eq!(names.len(), 2);
        manifest.relocate(&names);
        assert_eq!(manifest.objects(), names.values().map(String::as_str).collect());
    }

    #[test]
    fn counts_what_is_inline() {
        let splits = example().operators[0].subtasks[0].source_splits.to_string().len() as u64;
        assert_eq!(example().inline_bytes(), 8 + 16 + 6 + 1 + splits);
    }
}
