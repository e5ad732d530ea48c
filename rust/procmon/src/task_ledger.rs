//! Who ran, how long, and on which core: differences between scans of every task there is.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::error::ProcError;
use crate::os;
use crate::procfs::Procfs;
use crate::task_stat::TaskStat;

/// A task, for as long as the machine runs: number and start.
type Identity = (u32, u64);

/// What a process had used when it was looked at last.
struct Seen {
    ticks: u64,
    /// Of a process with several threads: each thread's. Empty for one with a single thread.
    threads: HashMap<Identity, u64>,
}

/// CPU time that was used between the first scan and the last, by process and core.
///
/// The kernel tells the core a task ran on *last*: the time a task used since the scan before is all put
/// there. A task that moves between cores within one interval is seen on one of them.
pub(crate) struct TaskLedger {
    procfs: Procfs,
    seen: HashMap<Identity, Seen>,
    /// When the last scan began, in ticks since boot; 0 before the first.
    scanned_ticks: u64,
    ran: HashMap<(Identity, u32), u64>,
    names: HashMap<Identity, String>,
    /// Processes that were a given root or below one at any scan.
    own: HashSet<Identity>,
    own_roots: Vec<u32>,
}

impl TaskLedger {
    pub(crate) fn new(procfs: Procfs, own_roots: &[u32]) -> Self {
        Self {
            procfs,
            seen: HashMap::new(),
            scanned_ticks: 0,
            ran: HashMap::new(),
            names: HashMap::new(),
            own: HashSet::new(),
            own_roots: own_roots.to_vec(),
        }
    }

    /// Looks at every process but those in `skipped`. The first scan is what the next ones are compared with.
    /// A process that ends between two scans is not seen; one that cannot be read is left out.
    pub(crate) fn scan(&mut self, skipped: &BTreeSet<u32>) -> Result<(), ProcError> {
        let now_ticks = (u128::from(os::since_boot_ns()) * u128::from(os::ticks_per_second())
            / 1_000_000_000) as u64;
        let mut parents = HashMap::new();
        let mut seen = HashMap::with_capacity(self.seen.len());
        for pid in self.procfs.pids()? {
            if skipped.contains(&pid) {
                continue;
            }
            let Ok(stat) = self.procfs.process_stat(pid) else {
                continue;
            };
            let identity = (pid, stat.start_ticks);
            parents.insert(pid, (identity, stat.ppid));
            let before = self.seen.remove(&identity);
            seen.insert(identity, self.account(identity, &stat, before));
        }
        self.seen = seen;
        self.scanned_ticks = now_ticks;
        self.find_own(&parents);
        Ok(())
    }

    /// Books what a process used since it was seen last, and says what it has used now.
    fn account(&mut self, identity: Identity, stat: &TaskStat, before: Option<Seen>) -> Seen {
        let began = self.began_since(stat);
        let used_before = match &before {
            Some(seen) => seen.ticks,
            None if began => 0,
            None => stat.cpu_ticks,
        };
        let used = stat.cpu_ticks.saturating_sub(used_before);
        if used > 0 {
            self.names.insert(identity, stat.name.clone());
        }
        let mut now = Seen {
            ticks: stat.cpu_ticks,
            threads: HashMap::new(),
        };
        if stat.threads <= 1 {
            self.book(identity, stat.processor, used);
            return now;
        }
        match before {
            // No thread ran: what is known of them stands.
            Some(seen) if used == 0 => now.threads = seen.threads,
            before => {
                let before = before.map(|seen| seen.threads).unwrap_or_default();
                for thread in self.procfs.thread_stats(identity.0).unwrap_or_default() {
                    let key = (thread.id, thread.start_ticks);
                    let used_before = match before.get(&key) {
                        Some(ticks) => *ticks,
                        None if self.began_since(&thread) => 0,
                        // The only thread there was at the last scan.
                        None if thread.id == identity.0 => used_before,
                        None => thread.cpu_ticks,
                    };
                    let used = thread.cpu_ticks.saturating_sub(used_before);
                    self.book(identity, thread.processor, used);
                    now.threads.insert(key, thread.cpu_ticks);
                }
            }
        }
        now
    }

    /// Whether a task began after the last scan: all it used is new.
    fn began_since(&self, stat: &TaskStat) -> bool {
        self.scanned_ticks != 0 && stat.start_ticks >= self.scanned_ticks
    }

    fn book(&mut self, identity: Identity, core: u32, ticks: u64) {
        if ticks > 0 {
            *self.ran.entry((identity, core)).or_default() += ticks;
        }
    }

    fn find_own(&mut self, parents: &HashMap<u32, (Identity, u32)>) {
        for (&pid, &(identity, _)) in parents {
            let mut at = pid;
            // A number used again meanwhile could close a circle.
            for _ in 0..parents.len() {
                if self.own_roots.contains(&at) {
                    self.own.insert(identity);
                    break;
                }
                match parents.get(&at) {
                    Some((_, parent)) => at = *parent,
                    None => break,
                }
            }
        }
    }

    /// Ticks that own processes used on `core`.
    pub(crate) fn own_ticks(&self, core: u32) -> u64 {
        self.ran
            .iter()
            .filter(|((identity, on), _)| *on == core && self.own.contains(identity))
            .map(|(_, ticks)| ticks)
            .sum()
    }

    /// What other processes used: number, name, core, ticks.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = (u32, &str, u32, u64)> {
        self.ran
            .iter()
            .filter(|((identity, _), _)| !self.own.contains(identity))
            .map(|((identity, core), ticks)| {
                let name = self.names.get(identity).map_or("", String::as_str);
                (identity.0, name, *core, *ticks)
            })
    }
}
