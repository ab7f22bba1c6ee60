//! The `weir` server: doors, sessions, query lifecycle.
//!
//! ```text
//!   psql ── pg/ ──┐
//!   REST ── http/ ┼──► Session ──► planner ──► Engine ──► jobs/ ──► runtime ──► storage
//!   CLI ─── cli/ ─┘       │                      │
//!                         └──── serving/ ◄───────┘   views as tables, subscriptions, system relations
//! ```

pub mod cli;
pub mod config;
pub mod engine;
pub mod error;
pub mod http;
pub mod pg;
pub mod rejects;
pub mod serving;
pub mod session;
