//! Memory of a process tree over time, from a thread of its own.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::background::{Background, Pace};
use crate::error::ProcError;
use crate::members::Members;
use crate::memory::StatusMemory;
use crate::os;
use crate::procfs::Procfs;
use crate::tree::Problem;

/// The tree at one moment. Sums over processes that are read one after another while they run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreePoint {
    /// Since the sampler started.
    pub t_s: f64,
    /// `RssAnon`, `RssFile`, `RssShmem`, `VmSwap` of `status`, summed. Pages that several processes map are
    /// counted once for each (forked ones in `rss_anon_bytes` as well).
    pub memory: StatusMemory,
    /// Processes that hold memory: no zombies.
    pub processes: u32,
}

/// What a [`TreeSampler`] saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreeSamples {
    /// Of each kept interval the sample with the most `rss_anon_bytes`, so that no peak is lost.
    pub points: Vec<TreePoint>,
    /// The most of each number over all samples; each may belong to another moment.
    pub peak: TreePoint,
    /// The last sample of a tree that held memory. A process that is ending gives its memory back bit by bit,
    /// so the last sample of a tree that ended may be low.
    pub last: TreePoint,
    /// Samples taken.
    pub samples: u64,
    /// CPU time of the sampling thread: what watching cost.
    pub cpu_ns: u64,
    /// From start to the last sample.
    pub wall_s: f64,
    /// Processes of the tree that ended meanwhile.
    pub vanished: usize,
    /// What could not be read, each reason of a process once.
    pub problems: Vec<Problem>,
    /// Most threads in the tree at once (`Threads` of `status`, summed).
    pub max_threads: u32,
    /// CPU time of the tree since its processes began: `utime + stime + cutime + cstime` of `stat`, summed.
    /// Ended processes count once their parent has waited for them. Read once per kept interval: of a tree
    /// that ended, up to an interval is missing.
    pub cpu_time_s: f64,
}

/// Watches a tree until it is stopped.
pub struct TreeSampler {
    samples: Arc<Mutex<TreeSamples>>,
    background: Background,
}

impl TreeSampler {
    /// Starts watching `root` and its descendants. With `start_ticks` the root must be the process that began
    /// then, not another that got its number.
    ///
    /// # Errors
    /// When the root cannot be read, or no thread can be started.
    pub fn start(
        procfs: Procfs,
        root: u32,
        start_ticks: Option<u64>,
        interval: Duration,
        keep_every: Duration,
    ) -> Result<Self, ProcError> {
        let members = Members::of(procfs, root, start_ticks)?;
        let samples = Arc::new(Mutex::new(TreeSamples::default()));
        let shared = Arc::clone(&samples);
        let mut watch = Watch {
            members,
            shared,
            start: Instant::now(),
            keep_every,
            kept: 0,
            highest: None,
            ticks_per_second: os::ticks_per_second() as f64,
        };
        // The first sample is there before this returns.
        watch.sample();
        let background = Background::spawn("tree-sampler", interval, move |pace| watch.run(pace))
            .map_err(cannot_start)?;
        Ok(Self {
            samples,
            background,
        })
    }

    /// What was seen so far.
    #[must_use]
    pub fn so_far(&self) -> TreeSamples {
        locked(&self.samples).clone()
    }

    /// Takes a last sample and ends.
    #[must_use]
    pub fn stop(self) -> TreeSamples {
        self.background.stop();
        std::mem::take(&mut *locked(&self.samples))
    }
}

pub(crate) fn cannot_start(source: io::Error) -> ProcError {
    ProcError::Io {
        file: "a thread".to_owned(),
        source,
    }
}

fn locked(samples: &Mutex<TreeSamples>) -> MutexGuard<'_, TreeSamples> {
    samples.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Watch {
    members: Members,
    shared: Arc<Mutex<TreeSamples>>,
    start: Instant,
    keep_every: Duration,
    /// Number of the kept interval that `highest` belongs to.
    kept: u128,
    highest: Option<TreePoint>,
    ticks_per_second: f64,
}

impl Watch {
    fn run(&mut self, mut pace: Pace) {
        let cpu_before = os::thread_cpu_ns();
        let account = |watch: &Self| {
            locked(&watch.shared).cpu_ns = os::thread_cpu_ns().saturating_sub(cpu_before);
        };
        while pace.wait() && !self.members.is_empty() {
            if self.sample() {
                account(self);
            }
        }
        self.sample();
        self.keep();
        account(self);
    }

    /// Whether a kept interval ended with it.
    fn sample(&mut self) -> bool {
        let t = self.start.elapsed();
        let mut point = TreePoint {
            t_s: t.as_secs_f64(),
            ..TreePoint::default()
        };
        let mut threads = 0;
        self.members.each_status(|_, status| {
            threads += status.threads;
            if let Some(memory) = status.memory {
                point.memory = point.memory.plus(&memory);
                point.processes += 1;
            }
        });
        let interval = t.as_nanos() / self.keep_every.as_nanos().max(1);
        let ended = interval != self.kept;
        if ended {
            self.keep();
            self.kept = interval;
        }
        let mut samples = locked(&self.shared);
        samples.wall_s = point.t_s;
        samples.vanished = self.members.ended();
        if self.members.problems().len() != samples.problems.len() {
            samples.problems = self.members.problems().to_vec();
        }
        if point.processes == 0 {
            return ended;
        }
        samples.samples += 1;
        samples.max_threads = samples.max_threads.max(threads);
        samples.last = point;
        let peak = &mut samples.peak;
        if point.memory.rss_anon_bytes > peak.memory.rss_anon_bytes {
            peak.t_s = point.t_s;
        }
        peak.memory = peak.memory.highest(&point.memory);
        peak.processes = peak.processes.max(point.processes);
        if self
            .highest
            .is_none_or(|highest| point.memory.rss_anon_bytes > highest.memory.rss_anon_bytes)
        {
            self.highest = Some(point);
        }
        ended
    }

    /// Ends an interval: keeps its highest sample and reads CPU times.
    fn keep(&mut self) {
        let mut ticks = 0_u64;
        self.members.each_stat(|stat| {
            ticks = ticks
                .saturating_add(stat.cpu_ticks)
                .saturating_add(stat.waited_children_ticks);
        });
        let mut samples = locked(&self.shared);
        samples.points.extend(self.highest.take());
        // What has ended and was not waited for is gone from the sum; it was used nevertheless.
        samples.cpu_time_s = samples.cpu_time_s.max(ticks as f64 / self.ticks_per_second);
    }
}
