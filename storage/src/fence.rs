//! One owner of a store.
//!
//! ```text
//!   fence/00…01.json   released, expired, or its process is dead ─► fence/00…02.json   created conditionally
//! ```
//!
//! Whoever creates generation *n + 1* owns the store, and *n* is fenced: it finds out at its next [`Fence::check`]. A
//! living owner renews its lease; a dead one is taken over at once when it ran on this machine, and after the lease
//! has expired otherwise.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::Generation;
use crate::checkpoint::seal::{sealed, unsealed};
use crate::error::{Result, StorageError};
use crate::store::Store;

/// How long an owner is believed to be alive after its last renewal. Renew about four times as often.
pub const LEASE: Duration = Duration::from_secs(10);
/// Generations that stay in the store, the current one included.
const KEEP: usize = 2;

/// Leases that this process holds or is about to create, by their nonce, so that one that was dropped is not mistaken
/// for a living owner.
static HELD: LazyLock<Mutex<HashSet<uuid::Uuid>>> = LazyLock::new(Mutex::default);

/// Who owns a store, precisely enough to tell from the same machine whether it still runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerInfo {
    /// Host name, for people.
    pub host: String,
    /// Process id.
    pub pid: i32,
    /// The kernel's boot id: process ids mean nothing across boots.
    pub boot_id: String,
    /// The namespace of the process id: two containers may share a host name and a boot.
    #[serde(default)]
    pub pid_namespace: String,
    /// When the process started, in clock ticks since boot: process ids are used again.
    #[serde(default)]
    pub process_start: u64,
    /// When the process started to use the store, in milliseconds since 1970.
    pub started_ms: i64,
}

impl OwnerInfo {
    /// This process.
    pub fn current() -> Self {
        let line = |path: &str| std::fs::read_to_string(path).map(|s| s.trim().to_owned()).unwrap_or_default();
        let pid = std::process::id() as i32;
        Self {
            host: line("/proc/sys/kernel/hostname"),
            pid,
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            pid_namespace: std::fs::read_link("/proc/self/ns/pid")
                .map(|link| link.to_string_lossy().into_owned())
                .unwrap_or_default(),
            process_start: process_start(pid).unwrap_or_default(),
            started_ms: now_ms(),
        }
    }
}

impl std::fmt::Display for OwnerInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = chrono::DateTime::from_timestamp_millis(self.started_ms).unwrap_or_default();
        write!(f, "process {} on host {} since {}", self.pid, self.host, since.format("%Y-%m-%d %H:%M:%S UTC"))
    }
}

/// A generation's object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Lease {
    format: u32,
    owner: OwnerInfo,
    /// Makes the object's content unique to its writer.
    nonce: uuid::Uuid,
    expires_ms: i64,
    released: bool,
}

/// What may be done about a former owner.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Decision {
    TakeOver(&'static str),
    Refuse,
}

/// Whether a former owner's process runs, as far as this machine can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    Dead,
    /// It ran elsewhere.
    Unknown,
}

/// Decide over a former owner's lease.
fn decide(lease: &Lease, life: Life, now_ms: i64) -> Decision {
    match life {
        _ if lease.released => Decision::TakeOver("it was released"),
        Life::Dead => Decision::TakeOver("its process does not run any more"),
        // A living process on this machine may only be slow: its pause must not cost it the store.
        Life::Running => Decision::Refuse,
        Life::Unknown if now_ms >= lease.expires_ms => Decision::TakeOver("its lease has expired"),
        Life::Unknown => Decision::Refuse,
    }
}

/// Whether the process `former` runs, judged from `me`'s machine. `start_of` gives a process's start, `None` if there
/// is no such process.
fn life_of(former: &OwnerInfo, me: &OwnerInfo, start_of: impl Fn(i32) -> Option<u64>, held: bool) -> Life {
    if former.host != me.host || former.boot_id.is_empty() {
        return Life::Unknown;
    }
    if former.boot_id != me.boot_id {
        // The same host name, but another boot: a restarted machine, or another one of the same name.
        return Life::Unknown;
    }
    if former.pid_namespace != me.pid_namespace {
        return Life::Unknown;
    }
    if former.pid == me.pid && former.process_start == me.process_start {
        return if held { Life::Running } else { Life::Dead };
    }
    match start_of(former.pid) {
        Some(start) if former.process_start == 0 || start == former.process_start => Life::Running,
        _ => Life::Dead,
    }
}

/// A process's start in clock ticks since boot; `None` if it does not run (a zombie does not).
fn process_start(pid: i32) -> Option<u64> {
    let gone = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) == Err(nix::errno::Errno::ESRCH);
    if gone {
        return None;
    }
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => {
            // The command's name stands in parentheses and may contain anything.
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let state = fields.next()?;
            if state == "Z" || state == "X" { None } else { fields.nth(18)?.parse().ok() }
        }
        // Without /proc, being signalled is all there is to know.
        Err(_) => Some(0),
    }
}

fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

/// Ownership of a store. Dropping it without [`Fence::release`] leaves the lease to expire (or, within this machine,
/// to be taken over at once).
#[derive(Debug)]
pub struct Fence {
    store: Store,
    generation: Generation,
    owner: OwnerInfo,
    nonce: uuid::Uuid,
    /// When the last successful renewal began; `None` once released.
    renewed: Mutex<Option<Instant>>,
}

impl Fence {
    /// Become the owner of `store`, or fail with [`StorageError::InUse`] if another process owns it.
    pub async fn acquire(store: &Store, owner: OwnerInfo) -> Result<Self> {
        loop {
            let former = newest(store).await?;
            let next = match &former {
                None => Generation(1),
                Some((generation, lease)) => {
                    let held = HELD.lock().contains(&lease.nonce);
                    let life = life_of(&lease.owner, &owner, process_start, held);
                    match decide(lease, life, now_ms()) {
                        Decision::Refuse => return Err(in_use(store, &lease.owner)),
                        Decision::TakeOver(reason) => {
                            tracing::info!(store = store.url(), former = %lease.owner, reason, "taking the store over");
                        }
                    }
                    Generation(generation.0 + 1)
                }
            };
            let fence = Self::new(store, next, owner.clone());
            if store.create(&path(next), fence.lease(false)).await? {
                fence.delete_old().await?;
                return Ok(fence);
            }
            // Someone else was faster: look again, and most likely find it alive.
        }
    }

    fn new(store: &Store, generation: Generation, owner: OwnerInfo) -> Self {
        let nonce = uuid::Uuid::new_v4();
        HELD.lock().insert(nonce);
        Self { store: store.clone(), generation, owner, nonce, renewed: Mutex::new(Some(Instant::now())) }
    }

    /// The number of this ownership; a higher one fences it.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Fail with [`StorageError::Fenced`] if another process took the store over.
    pub async fn check(&self) -> Result<()> {
        let next = Generation(self.generation.0 + 1);
        if self.store.exists(&path(next)).await? {
            return Err(self.fenced(next));
        }
        Ok(())
    }

    /// As [`Fence::check`], but without a request while the lease is fresh, when nobody may have taken over: for
    /// writes that are frequent and that a successor would notice anyway.
    pub async fn check_lease(&self) -> Result<()> {
        let fresh = self.renewed.lock().is_some_and(|renewed| renewed.elapsed() < LEASE / 2);
        if fresh { Ok(()) } else { self.check().await }
    }

    /// Renew the lease; to be called every 2 to 3 seconds.
    pub async fn renew(&self) -> Result<()> {
        let begin = Instant::now();
        self.check().await?;
        // Synced: an empty lease after a power loss would have to be removed by hand.
        self.store.put(&path(self.generation), self.lease(false)).await?;
        if let Some(renewed) = self.renewed.lock().as_mut() {
            *renewed = begin;
        }
        Ok(())
    }

    /// Give the store up, so that the next process need not wait.
    pub async fn release(&self) -> Result<()> {
        *self.renewed.lock() = None;
        self.check().await?;
        self.store.put(&path(self.generation), self.lease(true)).await
    }

    fn lease(&self, released: bool) -> bytes::Bytes {
        let expires_ms = now_ms() + LEASE.as_millis() as i64;
        let lease = Lease { format: 1, owner: self.owner.clone(), nonce: self.nonce, expires_ms, released };
        // A struct of strings and numbers has no way not to be JSON.
        sealed(serde_json::to_vec_pretty(&lease).unwrap_or_default())
    }

    fn fenced(&self, theirs: Generation) -> StorageError {
        StorageError::Fenced { url: self.store.url().to_owned(), ours: self.generation, theirs }
    }

    async fn delete_old(&self) -> Result<()> {
        let generations = generations(&self.store).await?;
        let old = generations.len().saturating_sub(KEEP);
        self.store.delete_many(generations[..old].iter().map(|generation| path(*generation)).collect()).await
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        HELD.lock().remove(&self.nonce);
    }
}

fn in_use(store: &Store, owner: &OwnerInfo) -> StorageError {
    StorageError::InUse { url: store.url().to_owned(), owner: owner.to_string() }
}

fn path(generation: Generation) -> String {
    format!("fence/{:020}.json", generation.0)
}

async fn generations(store: &Store) -> Result<Vec<Generation>> {
    let objects = store.list("fence").await?;
    let number = |path: &str| path.strip_prefix("fence/")?.strip_suffix(".json")?.parse().ok();
    Ok(objects.iter().filter_map(|object| number(&object.path).map(Generation)).collect())
}

async fn newest(store: &Store) -> Result<Option<(Generation, Lease)>> {
    loop {
        let Some(generation) = generations(store).await?.last().copied() else { return Ok(None) };
        let path = path(generation);
        // Taken over and removed while we looked: look again.
        let Some(bytes) = store.get_if_exists(&path).await? else { continue };
        let url = store.absolute(&path);
        let lease = serde_json::from_slice(unsealed(&bytes, &url)?)
            .map_err(|e| StorageError::Corrupt { url, reason: e.to_string() })?;
        return Ok(Some((generation, lease)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn owner(host: &str, pid: i32) -> OwnerInfo {
        OwnerInfo {
            host: host.into(),
            pid,
            boot_id: "boot".into(),
            pid_namespace: "pid:[1]".into(),
            process_start: 100,
            started_ms: 1_750_000_000_000,
        }
    }

    fn lease(owner: OwnerInfo, expires_ms: i64, released: bool) -> Lease {
        Lease { format: 1, owner, nonce: uuid::Uuid::nil(), expires_ms, released }
    }

    #[test]
    fn a_lease_is_taken_over_only_when_its_owner_cannot_be_alive() {
        let taken = |life, expires, released| {
            matches!(decide(&lease(owner("a", 1), expires, released), life, 1_000), Decision::TakeOver(_))
        };
        assert!(taken(Life::Running, 9_999, true));
        assert!(taken(Life::Dead, 9_999, false));
        assert!(!taken(Life::Running, 0, false), "a paused process on this machine keeps the store");
        assert!(taken(Life::Unknown, 1_000, false));
        assert!(!taken(Life::Unknown, 1_001, false));
    }

    #[test]
    fn life_is_judged_only_on_the_same_boot_and_namespace() {
        let me = owner("a", 1);
        let running = |pid| (pid == 2).then_some(100);
        assert_eq!(life_of(&owner("a", 2), &me, running, false), Life::Running);
        assert_eq!(life_of(&owner("a", 3), &me, running, false), Life::Dead);
        assert_eq!(life_of(&owner("b", 3), &me, running, false), Life::Unknown);
        let reused = OwnerInfo { process_start: 99, ..owner("a", 2) };
        assert_eq!(life_of(&reused, &me, running, false), Life::Dead);
        let rebooted = OwnerInfo { boot_id: "earlier".into(), ..owner("a", 2) };
        assert_eq!(life_of(&rebooted, &me, running, false), Life::Unknown);
        let container = OwnerInfo { pid_namespace: "pid:[2]".into(), ..owner("a", 3) };
        assert_eq!(life_of(&container, &me, running, false), Life::Unknown);
        assert_eq!(life_of(&me, &me, running, true), Life::Running);
        assert_eq!(life_of(&me, &me, running, false), Life::Dead);
    }

    #[test]
    fn this_process_runs_and_a_reaped_one_does_not() {
        let me = OwnerInfo::current();
        assert_eq!(process_start(me.pid), Some(me.process_start));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        child.wait().unwrap();
        assert_eq!(process_start(pid), None);
    }

    #[tokio::test]
    async fn one_owner_at_a_time() {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let first = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
        assert_eq!(first.generation(), Generation(1));
        let refused = Fence::acquire(&store, OwnerInfo::current()).await.unwrap_err();
        assert!(matches!(refused, StorageError::InUse { .. }), "{refused}");
        assert!(refused.to_string().contains(&format!("process {} on host", std::process::id())), "{refused}");

        first.renew().await.unwrap();
        first.release().await.unwrap();
        let second = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
        assert_eq!(second.generation(), Generation(2));
        for fenced in [first.check().await, first.renew().await, first.release().await] {
            let (ours, theirs) = (Generation(1), Generation(2));
            assert!(matches!(fenced, Err(StorageError::Fenced { ours: o, theirs: t, .. }) if o == ours && t == theirs));
        }
        second.check().await.unwrap();
    }

    #[tokio::test]
    async fn a_dead_owner_on_this_machine_is_taken_over_at_once() {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let dead = OwnerInfo { pid: i32::MAX, ..OwnerInfo::current() };
        let fence = Fence::acquire(&store, dead).await.unwrap();
        let next = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
        assert!(fence.check().await.is_err());
        // Dropped without a release, as a crash within one process would.
        drop(next);
        for generation in 3..8 {
            let fence = Fence::acquire(&store, OwnerInfo::current()).await.unwrap();
            assert_eq!(fence.generation(), Generation(generation));
        }
        let left: Vec<_> = store.list("fence").await.unwrap().into_iter().map(|o| o.path).collect();
        assert_eq!(left, [path(Generation(6)), path(Generation(7))]);
    }

    #[tokio::test]
    async fn of_many_contenders_one_wins() {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let contenders = (0..8).map(|_| Fence::acquire(&store, OwnerInfo::current()));
        let results = futures::future::join_all(contenders).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    }

    #[tokio::test]
    async fn another_host_waits_for_the_lease() {
        let store = Store::open("memory:", &BTreeMap::new()).unwrap();
        let _far = Fence::acquire(&store, owner("far-away", 7)).await.unwrap();
        let refused = Fence::acquire(&store, OwnerInfo::current()).await.unwrap_err().to_string();
        assert!(refused.contains("process 7 on host far-away since 2025-06-15 15:06:40 UTC"), "{refused}");
    }
}
