//! Keyed state: one embedded database for each stateful task subtask.
//!
//! ```text
//!  KeyedState ── table(id) ──► StateTable ── snapshot() ──► TableSnapshot   readers, one consistent cut
//!      │                         get_many · write · scan
//!      └─ snapshot(staging) ──► PendingSnapshot ── upload ──► KeyedSnapshot   into the manifest
//!                                 new SSTs only                  │
//!      ▲                                                         │
//!      └───────────── restore: adopt the files, or copy the key groups of the range
//! ```
//!
//! A database's directory is a cache: durability is the checkpoint's. Therefore there is no write-ahead log, a
//! directory is removed together with its last handle, and whatever a crashed process left is swept at the next start.

mod codec;
mod database;
mod directory;
mod key;
mod order;
mod resources;
mod restore;
mod snapshot;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod upload;
mod uploads;

pub use codec::{EncodedKeys, EncodedRows, KeyEncoder, RowCodec};
pub use database::{Change as StateChange, Visit};
pub use resources::StateResources;
pub use snapshot::{KeyedSnapshot, StateFile};
pub use state::KeyedState;
pub use table::{StateTable, TableSnapshot};
pub use upload::PendingSnapshot;
