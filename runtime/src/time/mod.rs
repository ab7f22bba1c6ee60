//! Event time: how far it has come, over the splits of a source and over the channels of a task.

mod inputs;
mod splits;

pub use inputs::InputTimes;
pub use splits::SplitTimes;

use crate::message::EventTime;

/// How event time moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It advanced.
    Watermark(EventTime),
    /// There is no data at present, and it shall not hold back others.
    Idle,
}
