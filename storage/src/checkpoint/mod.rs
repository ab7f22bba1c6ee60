//! Checkpoints of a job: what they are made of, how they are written, read, verified and removed.
//!
//! ```text
//!   subtasks ──segment()──► CheckpointWriter ──► data/chk-13-…   one merged file, all subtasks of the worker
//!                               │ Segment (inline, or object + range + CRC), once it is durable
//!                               ▼
//!   coordinator ──► Manifest ──► JobStore::complete ──► chk-13/_metadata   conditional; its presence is the checkpoint
//!                                      │
//!                                      ├──► clean_up (pure: what do the retained manifests keep alive?)
//!                                      └──► savepoint: all of it copied to a directory of its own, and back
//! ```

mod clean_up;
mod job_store;
mod manifest;
mod merged_file;
mod savepoint;
pub(crate) mod seal;
mod segment;
mod verify;
mod writer;

pub use clean_up::{CleanUp, CleanUpReport, Listing, SpaceUsage, decide_clean_up, space_usage};
pub use job_store::{CheckpointInfo, JobStore};
pub use manifest::{
    Committable, Durations, MANIFEST_FORMAT, Manifest, OperatorState, RowCounts, SavepointAbout, SubtaskState,
};
pub use merged_file::{MergedFileIndex, MergedSegment};
pub use savepoint::{Located, SavepointPlace, locate};
pub use segment::{Segment, SegmentBody, base64_bytes};
pub use verify::{Problem, VerifyReport, list, show, verify};
pub use writer::{CheckpointWriter, MergeOptions, WriterStats};
