//! Rows in flight: what a barrier that overtook left between two tasks, as a part of the checkpoint.
//!
//! ```text
//!   channel ── rows before the barrier ──► format ──► segment of the receiving subtask
//!                                                          │ restore
//!   task ◄── recovered, before any new input ◄── placement ┘
//! ```
//!
//! Rows are named by their channel: the operators at its ends (by uid), the subtasks, and the receiver's input. Rows that
//! a sink's writer had not taken are those of the sink's own input. Watermarks, idleness, ends and epoch marks are not
//! kept: a source repeats the time and the end that it had sent, behind the recovered rows, and the first epoch of a run
//! ends behind them everywhere.

mod format;
mod placement;

use weir_storage::{OperatorUid, Subtask};

use crate::channel::ChannelId;
use crate::message::Chunk;

pub(crate) use format::{decode, encode};
pub(crate) use placement::{Place, may_be_overtaken, place};

/// Rows of one channel, in order.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    pub(crate) channel: ChannelId,
    pub(crate) chunks: Vec<Chunk>,
}

impl InFlight {
    /// Bytes of the rows in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.memory_size() as u64).sum()
    }
}

/// Rows of one channel of a former run.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) from: OperatorUid,
    pub(crate) from_subtask: Subtask,
    pub(crate) to: OperatorUid,
    pub(crate) to_subtask: Subtask,
    pub(crate) input: usize,
    pub(crate) chunks: Vec<Chunk>,
}
