//! Durable data of Weir: keyed state on RocksDB, and the checkpoint store on an object store.
//!
//! ```text
//!                      one URL (file:, s3:, gs:, az:) holds everything durable
//!  catalog/00…17.json            one small object a change, created conditionally
//!  fence/00…03.json              one object a generation: who owns the store
//!  logs/<relation>/00…42         a relation's committed log, entry by entry
//!  jobs/<name>-<id>/chk-13/_metadata     the manifest: written last, its presence is the checkpoint
//!  jobs/<name>-<id>/data/<object>        merged file: segments of many subtasks, footer index, CRCs
//!  jobs/<name>-<id>/LATEST               hint for people; recovery lists chk-* itself
//!
//!   keyed/       KeyedState ── StateTable ── snapshot ──┐        a node's disk is a cache
//!   checkpoint/  JobStore ── CheckpointWriter ◄─────────┘ segments, manifest, clean-up, verify
//!   log/         Log: append, read, trim
//!   store.rs     open and probe a URL         fence.rs  one owner       catalog.rs  ordered changes
//! ```
//!
//! The crate knows no SQL and no dataflow. Decisions (what a manifest keeps alive, what may be deleted, whether a
//! lease may be taken) are pure functions; the I/O stands around them.

mod catalog;
pub mod checkpoint;
mod error;
mod fence;
mod ids;
mod keyed;
mod log;
mod store;

pub use catalog::CatalogLog;
pub use checkpoint::{
    CheckpointInfo, CheckpointWriter, JobStore, Located, Manifest, MergeOptions, OperatorState, RowCounts,
    SavepointAbout, SavepointPlace, Segment, SegmentBody, SubtaskState, locate,
};
pub use error::{Result, StorageError};
pub use fence::{Fence, OwnerInfo};
pub use ids::*;
pub use keyed::{
    EncodedKeys, EncodedRows, KeyEncoder, KeyedSnapshot, KeyedState, PendingSnapshot, RowCodec, StateChange, StateFile,
    StateResources, StateTable, TableSnapshot, Visit,
};
pub use log::{
    Log, LogAppender, LogBatch, LogEntry, LogEntryKind, LogEntryMeta, LogExtent, LogPart, LogRetention, LogSeq,
    OldEntry, decide_trim, decode_rows, encode_rows,
};
pub use store::{ObjectInfo, Store};
