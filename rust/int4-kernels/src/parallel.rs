//! Who runs the tasks of a call.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A team of threads. A serving process has its own; the driver never starts threads by itself.
pub trait Parallel: Sync {
    /// Threads in the team, at least 1.
    fn threads(&self) -> usize;

    /// Calls `f(0)`, `f(1)`, … `f(tasks - 1)`, each once, on any thread and in any order, and
    /// returns when all have returned.
    fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync));
}

/// Everything on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

impl Parallel for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(f);
    }
}

/// The calling thread and `n - 1` threads started anew for every call: for tests and for programs
/// without a pool of their own. Starting them costs tens of microseconds.
#[derive(Clone, Copy, Debug)]
pub struct ScopedThreads(pub usize);

impl Parallel for ScopedThreads {
    fn threads(&self) -> usize {
        self.0.max(1)
    }

    fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                f(task);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads().min(tasks) {
                scope.spawn(work);
            }
            work();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 3] {
            for tasks in [0, 1, 2, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                ScopedThreads(threads).run(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts
                        .iter()
                        .all(|count| count.load(Ordering::Relaxed) == 1)
                );
            }
        }
        assert_eq!(ScopedThreads(0).threads(), 1);
    }
}
