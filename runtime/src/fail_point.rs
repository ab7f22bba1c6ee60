//! Places at which a test may kill the process.
//!
//! `WEIR_FAIL_POINT=before-manifest` kills the process with SIGKILL, as a power cut would, when it reaches the point of
//! that name; `before-manifest:3` when it does so for the third time. Crash tests start a real server with it, then
//! start it again without and compare what it answers with the oracle.
//!
//! | point | reached |
//! | --- | --- |
//! | `before-snapshot`, `after-snapshot` | by each task around the synchronous part of its snapshot |
//! | `before-upload`, `after-upload` | by each task around its upload, before it acknowledges |
//! | `before-manifest`, `after-manifest` | by the driver, all tasks having acknowledged |
//! | `before-sink-commit`, `after-sink-commit` | by the driver, the manifest being durable |
//! | `before-clean-up`, `after-clean-up` | by the driver, the checkpoint having completed |
//! | `in-recovery` | the manifest having been read, before anything else |
//! | `before-savepoint`, `after-savepoint` | by the statement, its checkpoint having completed; before it is listed |
//! | `in-recovery-after-recommit` | its output having been committed again, before tasks start |

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that arms a point.
pub const ENVIRONMENT: &str = "WEIR_FAIL_POINT";

/// The points that every checkpoint passes, in order.
pub const OF_A_CHECKPOINT: [&str; 10] = [
    "before-snapshot",
    "after-snapshot",
    "before-upload",
    "after-upload",
    "before-manifest",
    "after-manifest",
    "before-sink-commit",
    "after-sink-commit",
    "before-clean-up",
    "after-clean-up",
];

struct Armed {
    name: String,
    nth: u64,
    hits: AtomicU64,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// The process dies here if the environment says so. Costs one load otherwise.
pub fn hit(name: &str) {
    let armed = ARMED.get_or_init(|| std::env::var(ENVIRONMENT).ok().and_then(|text| parse(&text)));
    let Some(armed) = armed else { return };
    if armed.name == name && armed.hits.fetch_add(1, Ordering::Relaxed) + 1 == armed.nth {
        tracing::warn!(point = name, "killing this process: {ENVIRONMENT} says so");
        // If the signal could not be sent the test that asked for it fails by itself.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    }
}

fn parse(text: &str) -> Option<Armed> {
    let (name, nth) = match text.split_once(':') {
        Some((name, nth)) => (name, nth.trim().parse().ok().filter(|nth| *nth > 0)?),
        None => (text, 1),
    };
    let name = name.trim();
    (!name.is_empty()).then(|| Armed { name: name.to_owned(), nth, hits: AtomicU64::new(0) })
}

/// The points of one job. Beside the process-wide ones, tests of this crate make a point of one job fail with an error.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailPoints {
    #[cfg(test)]
    armed: std::sync::Arc<parking_lot::Mutex<std::collections::HashMap<&'static str, u64>>>,
}

impl FailPoints {
    /// Passes the point `name`.
    pub(crate) fn hit(&self, name: &'static str) -> crate::Result<()> {
        hit(name);
        #[cfg(test)]
        {
            let mut armed = self.armed.lock();
            if let Some(left) = armed.get_mut(name) {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    armed.remove(name);
                    return Err(crate::error::internal("fail point", name));
                }
            }
        }
        Ok(())
    }

    /// Lets the `nth` passing of `name` from now on fail.
    #[cfg(test)]
    pub(crate) fn arm(&self, name: &'static str, nth: u64) {
        self.armed.lock().insert(name, nth);
    }

    /// Whether every armed point has failed.
    #[cfg(test)]
    pub(crate) fn all_fired(&self) -> bool {
        self.armed.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_name_and_maybe_a_count() {
        let parsed = |text| parse(text).map(|armed| (armed.name, armed.nth));
        assert_eq!(parsed("before-upload"), Some(("before-upload".to_owned(), 1)));
        assert_eq!(parsed("before-upload:3"), Some(("before-upload".to_owned(), 3)));
        assert_eq!(parsed("before-upload:0"), None);
        assert_eq!(parsed(""), None);
    }
}
