//! torch's threads as the kernels' team.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::torch;

/// torch's own intra-op threads: the one team of the process, whichever OpenMP runtime it is.
pub struct TorchThreads;

/// Tasks that the members of the team take one by one: torch cuts its range once, evenly, so a thread
/// that the kernel takes off its core would hold up the others with what is left of its share.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    panicked: AtomicBool,
}

impl Job<'_> {
    fn take_tasks(&self) {
        loop {
            let taken = self.next.fetch_add(1, Ordering::Relaxed);
            if taken >= self.tasks {
                return;
            }
            (self.task)(taken);
        }
    }
}

unsafe extern "C" fn run_tasks(_begin: i64, _end: i64, context: *mut c_void) {
    // SAFETY: `context` is the Job that `run` keeps alive until torch_parallel_for returns.
    let job = unsafe { &*context.cast::<Job<'_>>() };
    if catch_unwind(AssertUnwindSafe(|| job.take_tasks())).is_err() {
        job.panicked.store(true, Ordering::Relaxed);
    }
}

impl int4_kernels::Parallel for TorchThreads {
    fn threads(&self) -> usize {
        let mut threads = 1;
        // SAFETY: writes one number.
        if unsafe { (torch().num_threads)(&mut threads) } != 0 {
            return 1;
        }
        threads as usize
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 {
            (0..tasks).for_each(task);
            return;
        }
        let job = Job {
            task,
            tasks,
            next: 0.into(),
            panicked: false.into(),
        };
        let members = self.threads().min(tasks) as i64;
        let context = (&raw const job).cast_mut().cast();
        // SAFETY: the callback matches, catches panics, and reads `job` only, which outlives the call.
        let code = unsafe { (torch().parallel_for)(0, members, 1, run_tasks, context) };
        assert!(code == 0, "torch_parallel_for failed");
        assert!(!job.panicked.into_inner(), "a task of the kernel panicked");
    }
}
