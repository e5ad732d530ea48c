//! Trees over time. An interval of hours leaves the first sample and the last: nothing depends on timing.

mod made_proc;

use std::time::Duration;

use made_proc::{MadeProc, TASK, Task};
use procmon::{ProcError, Procfs, StatusSample, TreeSampler};

const HOURS: Duration = Duration::from_secs(10_000);
const KIB: u64 = 1024;

fn start(made: &MadeProc) -> TreeSampler {
    TreeSampler::start(Procfs::at(made.path()), 10, None, HOURS, HOURS).unwrap()
}

#[test]
fn the_first_sample_is_there_at_once_and_the_last_sees_what_is_new() {
    let made = MadeProc::new();
    made.process(Task {
        ticks: 100,
        threads: 4,
        ..TASK
    })
    .process(Task { pid: 9, ..TASK })
    .newest(10);
    let sampler = start(&made);
    let first = sampler.so_far();
    assert_eq!((first.samples, first.peak.processes), (1, 1));
    assert_eq!(first.last.memory.rss_anon_bytes, 1000 * KIB);
    assert_eq!(first.last.memory.vm_swap_bytes, KIB);
    made.process(Task {
        pid: 11,
        ppid: 10,
        anon_kib: Some(500),
        ticks: 7,
        waited_ticks: 3,
        ..TASK
    })
    // A process of somebody else, and the root's second thread.
    .process(Task {
        pid: 12,
        ppid: 9,
        ..TASK
    })
    .thread(10, Task { pid: 13, ..TASK })
    .newest(13);
    let samples = sampler.stop();
    assert_eq!(samples.samples, 2);
    assert_eq!(samples.last.processes, 2);
    assert_eq!(samples.last.memory.rss_anon_bytes, 1500 * KIB);
    assert_eq!(samples.peak.memory.rss_file_bytes, 40 * KIB);
    assert_eq!(samples.max_threads, 5);
    assert_eq!(samples.cpu_time_s, 1.10);
    // The kept interval's highest sample.
    assert_eq!(samples.points, [samples.last]);
    assert!(samples.cpu_ns > 0);
    assert_eq!((samples.vanished, samples.problems.len()), (0, 0));
}

#[test]
fn the_peak_stays_and_zombies_hold_nothing() {
    let made = MadeProc::new();
    let child = Task {
        pid: 11,
        ppid: 10,
        anon_kib: Some(64 << 10),
        ..TASK
    };
    made.process(TASK).process(child).newest(11);
    let sampler = start(&made);
    made.process(Task {
        anon_kib: None,
        state: 'Z',
        ..child
    });
    let samples = sampler.stop();
    assert_eq!(samples.peak.memory.rss_anon_bytes, (64 << 20) + 1000 * KIB);
    assert_eq!(samples.last.memory.rss_anon_bytes, 1000 * KIB);
    assert_eq!((samples.peak.processes, samples.last.processes), (2, 1));
    assert_eq!(samples.vanished, 0);
}

#[test]
fn a_tree_that_ended_keeps_its_last_sample() {
    let made = MadeProc::new();
    made.process(TASK).newest(10);
    let sampler = start(&made);
    made.end(10);
    let samples = sampler.stop();
    assert_eq!((samples.samples, samples.vanished), (1, 1));
    assert_eq!(samples.last.memory.rss_anon_bytes, 1000 * KIB);
}

#[test]
fn another_process_with_the_roots_number_is_refused() {
    let made = MadeProc::new();
    made.process(Task { start: 77, ..TASK }).newest(10);
    let of = |start| TreeSampler::start(Procfs::at(made.path()), 10, Some(start), HOURS, HOURS);
    assert!(of(77).is_ok());
    assert!(matches!(of(76), Err(ProcError::Vanished { pid: 10 })));
}

#[test]
fn a_root_that_is_not_there_is_an_error() {
    let made = MadeProc::new();
    made.newest(10);
    let started = TreeSampler::start(Procfs::at(made.path()), 10, None, HOURS, HOURS);
    assert!(matches!(started, Err(ProcError::Vanished { pid: 10 })));
}

#[test]
fn the_sampled_fields_are_those_of_the_slow_parser() {
    for text in [
        include_str!("fixtures/python_status.txt"),
        include_str!("fixtures/container_status.txt"),
        include_str!("fixtures/zombie_status.txt"),
        include_str!("fixtures/kernel_thread_status.txt"),
    ] {
        let slow = procmon::Status::parse(text).unwrap();
        let fast = StatusSample::parse(text.as_bytes()).unwrap();
        assert_eq!(
            (fast.ppid, char::from(fast.state), fast.memory),
            (slow.ppid, slow.state, slow.memory)
        );
    }
    let odd = "Name:\tPPid\\nTgid:\t5\nState:\tR (running)\nTgid:\t6\nPPid:\t7\nThreads:\t2\n\
               Cpus_allowed_list:\t0-3,8\n";
    let status = StatusSample::parse(odd.as_bytes()).unwrap();
    assert_eq!((status.tgid, status.ppid, status.threads), (6, 7, 2));
    assert_eq!((status.memory, status.cores), (None, &b"0-3,8"[..]));
    for broken in [
        "State:\tS\nTgid:\t1\n",
        "State:\tS\nTgid:\t-1\nPPid:\t1\n",
        "State:\tS\nTgid:\t1\nPPid:\t1\nVmRSS:\t1 kB\nRssAnon:\t1 kB\n",
        "State:\tS\nTgid:\t1\nPPid:\t1\nVmRSS:\t1 kB\nRssAnon:\t1 MB\n",
    ] {
        assert!(StatusSample::parse(broken.as_bytes()).is_err(), "{broken}");
    }
}
