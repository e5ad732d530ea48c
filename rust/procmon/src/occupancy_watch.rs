//! What disturbs a running program on its cores, watched from a thread of its own.
//!
//! Every round reads `/proc/stat` and the own tree, and nothing else: foreign time is what the cores did less
//! what the own tree used. Only when there is some, and at the end, are all tasks looked at for a name, and
//! while the watch lasts that takes a thousandth of the time at most.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::background::{Background, Pace};
use crate::cgroup::Cgroups;
use crate::core_list::parse_core_list;
use crate::cpu_stat::CoreTicks;
use crate::error::ProcError;
use crate::members::Members;
use crate::occupancy::{ProcessUse, busiest_first, selected, share};
use crate::os;
use crate::procfs::Procfs;
use crate::task_ledger::TaskLedger;
use crate::tree_sampler::cannot_start;

/// Foreign time of one round from which on its processes are looked for, in parts of one core.
const NAMED_FROM: f64 = 0.05;

/// Looking at all tasks takes at most this part of the time.
const SCAN_SHARE: u32 = 1000;

/// Processes below this share are not worth a name.
const SMALLEST_SHARE: f64 = 0.01;

/// What happened on the cores while the watch lasted; shares are of the cores' time together, 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchResult {
    /// The hypervisor ran somebody else.
    pub steal: f64,
    /// Time that was neither idle nor stolen nor used by the own tree: other processes and interrupts.
    pub foreign: f64,
    /// Of every core what foreign processes took of it, as far as they were seen by name. Unlike the mean it
    /// shows a single core that is held up, which holds up every parallel region.
    pub foreign_by_core: BTreeMap<u32, f64>,
    /// Foreign processes with at least 1 % of one of the cores, busiest first. One that began and ended
    /// between two looks is in `foreign` alone.
    pub processes: Vec<ProcessUse>,
    /// Time that the control group of the own tree waited for its quota, summed over cores; 0 where no group
    /// accounts for it.
    pub throttled_s: f64,
    /// Rounds taken.
    pub samples: u64,
    /// CPU time of the watching thread.
    pub cpu_ns: u64,
    /// What the shares cover: it ends with the last round at which the own tree's root was there.
    pub wall_s: f64,
}

/// Watches cores until it is stopped.
pub struct OccupancyWatch {
    result: Arc<Mutex<WatchResult>>,
    background: Background,
}

impl OccupancyWatch {
    /// Starts watching `cores`; process `own_root` and its descendants are own.
    ///
    /// # Errors
    /// When the root or a core is not there, or no thread can be started.
    pub fn start(
        procfs: &Procfs,
        cgroups: Cgroups,
        cores: &[u32],
        own_root: u32,
        interval: Duration,
    ) -> Result<Self, ProcError> {
        let watch = Watch::begin(procfs, cgroups, cores, own_root)?;
        let result = Arc::new(Mutex::new(WatchResult::default()));
        let shared = Arc::clone(&result);
        let background = Background::spawn("occupancy-watch", interval, move |pace| {
            let found = watch.run(pace);
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = found;
        })
        .map_err(cannot_start)?;
        Ok(Self { result, background })
    }

    /// Takes a last round and ends.
    #[must_use]
    pub fn stop(self) -> WatchResult {
        self.background.stop();
        std::mem::take(&mut *self.result.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The watch itself, round by round.
pub struct Watch {
    procfs: Procfs,
    cgroups: Cgroups,
    cores: Vec<u32>,
    core_set: BTreeSet<u32>,
    own_root: u32,
    members: Members,
    ledger: TaskLedger,
    first: BTreeMap<u32, CoreTicks>,
    before: BTreeMap<u32, CoreTicks>,
    spent: CoreTicks,
    own: OwnTicks,
    throttled_before_ns: Option<u64>,
    throttled_ns: Option<u64>,
    start: Instant,
    next_scan: Instant,
    samples: u64,
    wall: Duration,
    cpu_ns: u64,
    ended: bool,
}

/// Time of the own tree on the cores.
#[derive(Default)]
struct OwnTicks {
    used: u64,
    /// The most that the tree's processes and their waited-for children had used together. When a child ends,
    /// its time moves to its parent: the sum stands, whatever is read first.
    highest: u64,
    /// Of each thread, kept only while the tree may run elsewhere.
    threads: HashMap<(u32, u64), u64>,
}

impl Watch {
    /// The state that rounds are compared with.
    ///
    /// # Errors
    /// As [`OccupancyWatch::start`].
    pub fn begin(
        procfs: &Procfs,
        cgroups: Cgroups,
        cores: &[u32],
        own_root: u32,
    ) -> Result<Self, ProcError> {
        let cpu_before_ns = os::thread_cpu_ns();
        let mut members = Members::of(procfs.clone(), own_root, None)?;
        let own: BTreeSet<u32> = members.pids().collect();
        let mut ledger = TaskLedger::new(procfs.clone(), &[own_root]);
        ledger.scan(&own)?;
        let before = selected(procfs, cores)?;
        let highest = tree_ticks(&mut members);
        let throttled_before_ns = cgroups.throttled_ns(own_root).ok().flatten();
        let mut watch = Self {
            procfs: procfs.clone(),
            cgroups,
            cores: cores.to_vec(),
            core_set: cores.iter().copied().collect(),
            own_root,
            members,
            ledger,
            first: before.clone(),
            before,
            spent: CoreTicks::default(),
            own: OwnTicks {
                highest,
                ..OwnTicks::default()
            },
            throttled_before_ns,
            throttled_ns: throttled_before_ns,
            start: Instant::now(),
            next_scan: Instant::now(),
            samples: 0,
            wall: Duration::ZERO,
            cpu_ns: 0,
            ended: false,
        };
        watch.thread_ticks(false);
        watch.cpu_ns = os::thread_cpu_ns().saturating_sub(cpu_before_ns);
        Ok(watch)
    }

    fn run(mut self, mut pace: Pace) -> WatchResult {
        let cpu_before_ns = os::thread_cpu_ns();
        while pace.wait() && !self.ended {
            self.round();
        }
        self.round();
        let mut result = self.result();
        result.cpu_ns += os::thread_cpu_ns().saturating_sub(cpu_before_ns);
        result
    }

    /// One round. When the root is gone, the time since the round before is left out: what the own tree used
    /// of it is not known any more.
    pub fn round(&mut self) {
        if self.ended {
            return;
        }
        let (mut pinned, mut root_lives) = (true, false);
        let (core_set, own_root) = (&self.core_set, self.own_root);
        self.members.each_status(|pid, status| {
            root_lives |= pid == own_root && status.state != b'Z';
            pinned &= status.state == b'Z'
                || parse_core_list(status.cores).is_some_and(|allowed| allowed.is_subset(core_set));
        });
        let tree = tree_ticks(&mut self.members);
        // A root that waits to be waited for still tells its time; a gone one does not.
        self.ended = !root_lives;
        if !self.members.pids().any(|pid| pid == own_root) {
            self.name_foreign();
            return;
        }
        let by_thread = self.thread_ticks(pinned);
        let Ok(now) = selected(&self.procfs, &self.cores) else {
            // A core went offline: what was seen before stands.
            self.ended = true;
            self.name_foreign();
            return;
        };
        let grown = tree.saturating_sub(self.own.highest);
        self.own.highest = self.own.highest.max(tree);
        let own = if pinned { grown } else { by_thread };
        self.own.used += own;
        let spent = now.iter().fold(CoreTicks::default(), |sum, (core, ticks)| {
            sum.plus(&ticks.since(&self.before[core]))
        });
        self.spent = self.spent.plus(&spent);
        self.before = now;
        self.samples += 1;
        self.wall = self.start.elapsed();
        if let Ok(Some(throttled)) = self.cgroups.throttled_ns(own_root) {
            self.throttled_ns = Some(throttled);
        }
        let one_core = spent.total() as f64 / self.cores.len().max(1) as f64;
        let foreign = spent.busy.saturating_sub(own) as f64;
        if self.ended || (foreign > NAMED_FROM * one_core && Instant::now() >= self.next_scan) {
            self.name_foreign();
        }
    }

    /// Looks at all tasks but the own ones. A scan that fails leaves `foreign` without names.
    fn name_foreign(&mut self) {
        let start = Instant::now();
        let own: BTreeSet<u32> = self.members.pids().collect();
        let _ = self.ledger.scan(&own);
        let now = Instant::now();
        self.next_scan = now + now.duration_since(start).saturating_mul(SCAN_SHARE);
    }

    /// What the threads of the own tree used on the cores since the last call; 0, and nothing is read, for a
    /// tree that can run nowhere else.
    fn thread_ticks(&mut self, pinned: bool) -> u64 {
        if pinned {
            self.own.threads.clear();
            return 0;
        }
        let first = self.own.threads.is_empty();
        let mut threads = HashMap::new();
        let mut used = 0;
        for pid in self.members.pids() {
            for thread in self.procfs.thread_stats(pid).unwrap_or_default() {
                let key = (thread.id, thread.start_ticks);
                let before = match self.own.threads.get(&key) {
                    Some(ticks) => *ticks,
                    None if first => thread.cpu_ticks,
                    None => 0,
                };
                if self.core_set.contains(&thread.processor) {
                    used += thread.cpu_ticks.saturating_sub(before);
                }
                threads.insert(key, thread.cpu_ticks);
            }
        }
        self.own.threads = threads;
        used
    }

    /// What was seen up to the last round; `cpu_ns` is that of beginning.
    pub fn result(&mut self) -> WatchResult {
        if !self.ended {
            self.name_foreign();
        }
        let total = self.spent.total();
        // Names are looked for until the last scan, which is no earlier than the last round.
        let named = selected(&self.procfs, &self.cores).unwrap_or_else(|_| self.before.clone());
        let mut processes = busiest_first(&self.ledger, |core| {
            Some(named.get(&core)?.since(self.first.get(&core)?).total())
        });
        let mut foreign_by_core: BTreeMap<u32, f64> =
            self.cores.iter().map(|core| (*core, 0.0)).collect();
        for process in &processes {
            if let Some(share) = foreign_by_core.get_mut(&process.core) {
                *share += process.share;
            }
        }
        processes.retain(|process| process.share >= SMALLEST_SHARE);
        let throttled_ns = match (self.throttled_before_ns, self.throttled_ns) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => 0,
        };
        WatchResult {
            steal: share(self.spent.steal, total),
            foreign: share(self.spent.busy.saturating_sub(self.own.used), total),
            foreign_by_core,
            processes,
            throttled_s: throttled_ns as f64 / 1e9,
            samples: self.samples,
            cpu_ns: self.cpu_ns,
            wall_s: self.wall.as_secs_f64(),
        }
    }
}

/// Of all processes in the tree, and of their children that ended and were waited for.
fn tree_ticks(members: &mut Members) -> u64 {
    let mut ticks = 0_u64;
    members.each_stat(|stat| {
        ticks = ticks
            .saturating_add(stat.cpu_ticks)
            .saturating_add(stat.waited_children_ticks);
    });
    ticks
}
