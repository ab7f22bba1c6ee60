//! Runs dataflow graphs: a query's operators as tasks that exchange rows, keep state, take checkpoints and survive
//! failure.
//!
//! # How a barrier crosses a graph
//!
//! ```text
//!                         job driver ◄───────────── acks ─────────────────────────────┐
//!                 barrier 7 │    ▲ all acks: manifest (chk-7 exists) ─► sinks commit ─► "7 is complete" to all tasks
//!            ┌──────────────┴─┐  │                                                     │
//!            ▼                ▼  │                                                     │
//!      ┌──────────┐     ┌──────────┐   1 the source notes its positions, sends the barrier behind its rows
//!      │ source/0 │     │ source/1 │
//!      └────┬─────┘     └────┬─────┘
//!       ▒▒▒7··│··▒▒▒    ▒▒▒▒▒│7···     2 on each channel it keeps its place between the rows
//!           ▼     ╲    ╱     ▼
//!      ┌──────────┐ ╲╱  ┌──────────┐   3 a channel that has brought it is blocked until all have (aligned)
//!      │ group/0  │ ╱╲  │ group/1  │   4 the chain ends its epoch: every operator emits what it held back
//!      └────┬─────┘     └────┬─────┘   5 operators note their state, keyed state is hard-linked
//!           │7               │7        6 the barrier goes on; the upload runs beside the rows that follow
//!           ▼                ▼
//!      ┌──────────┐     ┌──────────┐
//!      │ sink/0   │     │ sink/1   │   7 the sink prepares its output; when its part is durable each task
//!      └────┬─────┘     └────┬─────┘     acknowledges ─────────────────────────────────┘
//! ```
//!
//! A barrier that **may overtake** (unaligned checkpoints) is known to the receiver when it is sent. The task takes its
//! snapshot as it is, within the epoch, and the rows before each channel's barrier go into the checkpoint (in_flight).
//!
//! An **epoch** mark travels the same way, more often and without a snapshot: what a reader of a view sees is always the
//! state between two marks, over all subtasks.
//!
//! # Where things are
//!
//! ```text
//!   graph message operator source sink rejects    what planner, connectors and operators see
//!   plan ─► build          which operators run in one task; tasks from a graph and a checkpoint
//!   task process_task source_task sink_task chain the loops, and operators that run as one
//!   channel exchange keys alignment/ time/        between tasks
//!   tables upload in_flight/                      a task's part of a checkpoint
//!   coordinator/ (pure) ─ driver                  one run: epochs, checkpoints, its end
//!   job ─ supervisor ─ pins                       a job over its runs: recovery, restarts; checkpoints being copied
//!   view                                          how others read a materialization
//!   operators/                                    what rows go through
//! ```

pub mod alignment;
mod assignment;
mod build;
pub mod chain;
pub mod channel;
mod coordinator;
mod error;
pub mod exchange;
pub mod fail_point;
pub mod graph;
mod in_flight;
pub mod job;
pub mod keys;
pub mod message;
pub mod metrics;
pub mod operator;
pub mod operators;
pub mod options;
pub mod pins;
mod plan;
mod process_task;
pub mod rejects;
mod run;
pub mod sink;
mod sink_task;
pub mod source;
mod source_task;
mod supervisor;
mod tables;
mod task;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod time;
mod upload;
pub mod view;

pub use error::{Result, RuntimeError};
