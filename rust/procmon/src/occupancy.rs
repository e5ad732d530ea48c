//! Whether cores are free: what each did over a window, and which processes ran there.
//!
//! | number | file, field |
//! |---|---|
//! | `busy`, `steal` | `/proc/stat`, `cpuN` lines: `user + nice + system + irq + softirq`; `steal` |
//! | `share` | `/proc/<pid>/stat` and `/proc/<pid>/task/<tid>/stat`: `utime + stime`, at `processor` |
//! | `foreign` | `busy` less what own processes used there |
//!
//! All come in kernel clock ticks, 10 ms as a rule: one tick is 1.3 % of a window of 0.75 s. Most kernels
//! build `/proc/stat` by looking at the clock tick who runs, but tasks' times from exact running time, so the
//! two differ by a tick or so. Interrupts are in `busy` and belong to no process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::cpu_stat::CoreTicks;
use crate::error::ProcError;
use crate::os;
use crate::procfs::Procfs;
use crate::task_ledger::TaskLedger;

/// Tasks are looked at this often within a window, so that moving between cores is seen.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// One core over a window: shares of it, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoreUse {
    /// Something ran.
    pub busy: f64,
    /// Something wanted to run and the hypervisor ran somebody else.
    pub steal: f64,
    /// Something ran that is not an own process.
    pub foreign: f64,
}

/// A process on a core.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessUse {
    /// The process.
    pub pid: u32,
    /// Its main thread's name: at most 15 bytes.
    pub name: String,
    /// The core.
    pub core: u32,
    /// How much of the core its threads used, 0 to 1.
    pub share: f64,
}

impl fmt::Display for ProcessUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}) {:.0} % of core {}",
            self.name,
            self.pid,
            100.0 * self.share,
            self.core
        )
    }
}

/// What cores did over a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Occupancy {
    /// The cores asked for.
    pub cores: BTreeMap<u32, CoreUse>,
    /// Processes that are not own and used at least a tick on one of the cores, busiest first.
    pub processes: Vec<ProcessUse>,
    /// The window.
    pub window_s: f64,
    /// CPU time that looking took.
    pub cpu_ns: u64,
}

/// Watches `cores` for `window`. Processes in `own_roots` and below are own. Blocks.
///
/// # Errors
/// [`ProcError::NoSuchCore`] for a core that is offline or absent, and when `/proc` cannot be read.
pub fn occupancy(
    procfs: &Procfs,
    cores: &[u32],
    window: Duration,
    own_roots: &[u32],
) -> Result<Occupancy, ProcError> {
    let mut observation = Observation::begin(procfs, cores, own_roots)?;
    let looks = (window.as_nanos() / LOOK_EVERY.as_nanos()).clamp(1, 1000) as u32;
    for _ in 0..looks {
        sleep(window / looks);
        observation.look()?;
    }
    Ok(observation.result())
}

/// A window that is being watched.
pub struct Observation {
    procfs: Procfs,
    cores: Vec<u32>,
    before: BTreeMap<u32, CoreTicks>,
    now: BTreeMap<u32, CoreTicks>,
    ledger: TaskLedger,
    start: Instant,
    cpu_before_ns: u64,
    window: Duration,
}

impl Observation {
    /// Begins a window. It is looked at from the thread that begins it.
    ///
    /// # Errors
    /// As [`occupancy()`].
    pub fn begin(procfs: &Procfs, cores: &[u32], own_roots: &[u32]) -> Result<Self, ProcError> {
        let cpu_before_ns = os::thread_cpu_ns();
        let mut ledger = TaskLedger::new(procfs.clone(), own_roots);
        ledger.scan(&BTreeSet::new())?;
        let before = selected(procfs, cores)?;
        Ok(Self {
            procfs: procfs.clone(),
            cores: cores.to_vec(),
            now: before.clone(),
            before,
            ledger,
            start: Instant::now(),
            cpu_before_ns,
            window: Duration::ZERO,
        })
    }

    /// Sees who ran since the last look.
    ///
    /// # Errors
    /// As [`occupancy()`].
    pub fn look(&mut self) -> Result<(), ProcError> {
        self.ledger.scan(&BTreeSet::new())?;
        self.now = selected(&self.procfs, &self.cores)?;
        self.window = self.start.elapsed();
        Ok(())
    }

    /// What was seen up to the last look.
    #[must_use]
    pub fn result(&self) -> Occupancy {
        let spent: BTreeMap<u32, CoreTicks> = self
            .now
            .iter()
            .map(|(core, ticks)| (*core, ticks.since(&self.before[core])))
            .collect();
        let cores = spent
            .iter()
            .map(|(core, ticks)| {
                let own = share(self.ledger.own_ticks(*core), ticks.total());
                let busy = share(ticks.busy, ticks.total());
                let usage = CoreUse {
                    busy,
                    steal: share(ticks.steal, ticks.total()),
                    foreign: (busy - own).max(0.0),
                };
                (*core, usage)
            })
            .collect();
        Occupancy {
            cores,
            processes: busiest_first(&self.ledger, |core| spent.get(&core).map(CoreTicks::total)),
            window_s: self.window.as_secs_f64(),
            cpu_ns: os::thread_cpu_ns().saturating_sub(self.cpu_before_ns),
        }
    }
}

/// The ticks of the cores asked for.
pub(crate) fn selected(
    procfs: &Procfs,
    cores: &[u32],
) -> Result<BTreeMap<u32, CoreTicks>, ProcError> {
    let all = procfs.cores()?;
    cores
        .iter()
        .map(|core| match all.get(core) {
            Some(ticks) => Ok((*core, *ticks)),
            None => Err(ProcError::NoSuchCore { core: *core }),
        })
        .collect()
}

/// Foreign processes on the cores that `total_ticks` knows.
pub(crate) fn busiest_first(
    ledger: &TaskLedger,
    total_ticks: impl Fn(u32) -> Option<u64>,
) -> Vec<ProcessUse> {
    let mut processes: Vec<ProcessUse> = ledger
        .foreign()
        .filter_map(|(pid, name, core, ticks)| {
            Some(ProcessUse {
                pid,
                name: name.to_owned(),
                core,
                share: share(ticks, total_ticks(core)?),
            })
        })
        .collect();
    processes.sort_by(|a, b| {
        b.share
            .total_cmp(&a.share)
            .then((a.core, a.pid).cmp(&(b.core, b.pid)))
    });
    processes
}

/// A part of a whole that is measured in another way: at most all of it.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        (part as f64 / whole as f64).min(1.0)
    }
}
