//! Who ran where: of a made-up proc file system.

mod made_proc;

use std::collections::BTreeMap;

use made_proc::{MadeProc, TASK, Task};
use procmon::{
    Cgroups, CoreTicks, Observation, ProcError, ProcessUse, Procfs, TaskStat, Watch, parse_cores,
};

/// Later than any boot: a task that began after whatever was seen.
const LATER: u64 = u64::MAX / 2;

#[test]
fn the_fields_of_a_task() {
    let stat = TaskStat::parse(include_str!("fixtures/python_stat.txt")).unwrap();
    assert_eq!((stat.name.as_str(), stat.state), ("a) R (b 1", 'S'));
    assert_eq!(stat.ppid, 7741);
    let line = "7 ((sd-pam)) S 6 7 7 0 -1 1 2 3 4 5 11 22 33 44 20 0 9 0 1359351 1 2 3 4 5 6 7 8 9 10 11 12 13 \
                14 15 17 12 0 0 0 0 0";
    assert_eq!(
        TaskStat::parse(line).unwrap(),
        TaskStat {
            id: 7,
            name: "(sd-pam)".to_owned(),
            state: 'S',
            ppid: 6,
            cpu_ticks: 33,
            waited_children_ticks: 77,
            threads: 9,
            start_ticks: 1_359_351,
            processor: 12,
        }
    );
    let zombie = TaskStat::parse(include_str!("fixtures/zombie_stat.txt")).unwrap();
    assert_eq!(zombie.state, 'Z');
    for broken in ["", "7", "7 (x", "7 (x)", "7 (x) S 1", "x (x) S 1 2"] {
        assert!(TaskStat::parse(broken).is_err(), "{broken}");
    }
    let error = TaskStat::parse(&line.replace(" 11 22 ", " 11 -2 ")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "stat line stime: expected a number, found \"-2\""
    );
}

#[test]
fn the_fields_of_a_core() {
    let text = "cpu  1 1 1 1 1 1 1 1 1 1\ncpu0 100 20 3 4000 500 6 7 80 9 1\ncpu12 1 0 0 2 0 0 0 0 0 0\nintr 5\n";
    let cores = parse_cores(text).unwrap();
    assert_eq!(cores.keys().copied().collect::<Vec<_>>(), [0, 12]);
    assert_eq!(
        cores[&0],
        CoreTicks {
            busy: 136,
            idle: 4500,
            steal: 80
        }
    );
    assert!(matches!(
        parse_cores("cpu0 1 2 x 4 5 6 7 8\n"),
        Err(ProcError::BadField { .. })
    ));
    assert!(parse_cores("cpu0 1 2 3\n").is_err());
    assert!(matches!(
        parse_cores("intr 5\n"),
        Err(ProcError::MissingField { .. })
    ));
}

fn named(processes: &[ProcessUse]) -> Vec<String> {
    processes.iter().map(ToString::to_string).collect()
}

#[test]
fn foreign_processes_are_named_with_core_and_share() {
    let made = MadeProc::new();
    let task = |pid, ppid, name, core| Task {
        pid,
        ppid,
        name,
        core,
        ticks: 1000,
        ..TASK
    };
    let (own, child) = (task(10, 1, "own", 0), task(11, 10, "child", 1));
    let (idle, busy) = (task(20, 1, "idle", 0), task(21, 1, "bu) sy", 1));
    for task in [own, child, idle, busy] {
        made.process(task);
    }
    made.cores(&[(0, [50, 50, 0]), (1, [0, 100, 0]), (2, [0, 0, 0])]);
    let procfs = Procfs::at(made.path());
    let mut seen = Observation::begin(&procfs, &[0, 1], &[10]).unwrap();
    made.process(Task { ticks: 1060, ..own })
        .process(Task {
            ticks: 1020,
            ..child
        })
        .process(Task {
            ticks: 1035,
            ..busy
        })
        // Began after the first look: all it used is of this window.
        .process(Task {
            pid: 22,
            name: "new",
            core: 0,
            ticks: 5,
            start: LATER,
            ..TASK
        })
        // Was there before and could not be read: what it used, nobody knows.
        .process(task(23, 1, "late", 0))
        // On a core that nobody asked about.
        .process(Task {
            pid: 24,
            name: "elsewhere",
            core: 2,
            ticks: 90,
            start: LATER,
            ..TASK
        })
        .cores(&[(0, [120, 70, 10]), (1, [60, 140, 0]), (2, [90, 10, 0])]);
    seen.look().unwrap();
    let result = seen.result();
    assert_eq!(
        named(&result.processes),
        ["bu) sy (21) 35 % of core 1", "new (22) 5 % of core 0"]
    );
    let (zero, one) = (result.cores[&0], result.cores[&1]);
    assert_eq!((zero.busy, zero.steal), (0.7, 0.1));
    assert!((zero.foreign - 0.1).abs() < 1e-9, "{zero:?}");
    assert!((one.foreign - 0.4).abs() < 1e-9, "{one:?}");
    assert_eq!(result.cores.len(), 2);

    // The second look adds to the first.
    made.process(Task {
        ticks: 1095,
        core: 0,
        ..busy
    })
    .end(22)
    .cores(&[(0, [200, 90, 10]), (1, [60, 240, 0])]);
    seen.look().unwrap();
    assert_eq!(
        named(&seen.result().processes),
        [
            "bu) sy (21) 30 % of core 0",
            "bu) sy (21) 18 % of core 1",
            "new (22) 2 % of core 0"
        ]
    );
}

#[test]
fn threads_of_a_process_are_told_apart_by_core() {
    let made = MadeProc::new();
    let main = Task {
        threads: 3,
        ticks: 300,
        ..TASK
    };
    let thread = |pid, core, ticks, start| Task {
        pid,
        core,
        ticks,
        start,
        ..TASK
    };
    made.process(main)
        .thread(10, thread(10, 0, 100, 1))
        .thread(10, thread(100, 0, 100, 1))
        .thread(10, thread(101, 1, 100, 1))
        .cores(&[(0, [0, 0, 0]), (1, [0, 0, 0])]);
    let mut seen = Observation::begin(&Procfs::at(made.path()), &[0, 1], &[]).unwrap();
    made.process(Task { ticks: 450, ..main })
        .thread(10, thread(10, 0, 100, 1))
        .thread(10, thread(100, 0, 130, 1))
        .thread(10, thread(101, 1, 160, 1))
        .thread(10, thread(102, 1, 20, LATER))
        // The number of a thread that ended, given to another.
        .thread(10, thread(103, 1, 20, 5))
        .cores(&[(0, [40, 60, 0]), (1, [90, 10, 0])]);
    seen.look().unwrap();
    assert_eq!(
        named(&seen.result().processes),
        ["x) y (10) 80 % of core 1", "x) y (10) 30 % of core 0"]
    );
}

#[test]
fn a_number_used_again_is_another_process() {
    let made = MadeProc::new();
    made.process(Task { ticks: 500, ..TASK })
        .cores(&[(0, [0, 0, 0])]);
    let mut seen = Observation::begin(&Procfs::at(made.path()), &[0], &[]).unwrap();
    made.process(Task {
        name: "second",
        ticks: 30,
        start: LATER,
        ..TASK
    })
    .cores(&[(0, [50, 50, 0])]);
    seen.look().unwrap();
    assert_eq!(
        named(&seen.result().processes),
        ["second (10) 30 % of core 0"]
    );
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let made = MadeProc::new();
    made.process(TASK).cores(&[(0, [0, 0, 0])]);
    let error = Observation::begin(&Procfs::at(made.path()), &[0, 7], &[])
        .err()
        .unwrap();
    assert_eq!(error.to_string(), "core 7 is offline or does not exist");
}

/// A watch over core 0 and 1, of process 10 and its descendants.
fn watch(made: &MadeProc) -> Watch {
    let procfs = Procfs::at(made.path());
    let cgroups = Cgroups::at(procfs.clone(), made.path().join("mounts"));
    Watch::begin(&procfs, cgroups, &[0, 1], 10).unwrap()
}

fn watched() -> MadeProc {
    let made = MadeProc::new();
    made.process(TASK)
        .newest(10)
        .write("10/cgroup", "0::/\n")
        .write(
            "self/mountinfo",
            "24 1 0:22 / /cg rw shared:9 - cgroup2 cgroup2 rw\n",
        )
        .write("mounts/cg/cgroup.controllers", "cpu memory\n")
        .write("mounts/cg/cpu.stat", "usage_usec 9\nthrottled_usec 1000\n")
        .cores(&[(0, [0, 0, 0]), (1, [0, 0, 0])]);
    made
}

#[test]
fn own_time_of_ended_children_is_not_foreign() {
    let made = watched();
    let mut watch = watch(&made);
    let child = Task {
        pid: 11,
        ppid: 10,
        start: LATER,
        core: 1,
        ..TASK
    };
    made.process(Task { ticks: 10, ..TASK })
        .process(Task { ticks: 60, ..child })
        .newest(11)
        .cores(&[(0, [10, 90, 0]), (1, [60, 30, 10])]);
    watch.round();
    // The child used 30 more, ended, and was waited for.
    made.end(11)
        .process(Task {
            ticks: 20,
            waited_ticks: 90,
            ..TASK
        })
        .write("mounts/cg/cpu.stat", "throttled_usec 251000\n")
        .cores(&[(0, [20, 180, 0]), (1, [90, 100, 10])]);
    watch.round();
    let result = watch.result();
    assert_eq!((result.foreign, result.samples), (0.0, 2), "{result:?}");
    assert_eq!(result.steal, 10.0 / 400.0);
    assert_eq!(result.throttled_s, 0.25);
    assert!(result.processes.is_empty());
}

#[test]
fn foreign_time_is_measured_and_named() {
    let made = watched();
    let other = Task {
        pid: 9,
        name: "cc1plus",
        core: 1,
        ticks: 700,
        ..TASK
    };
    made.process(other);
    let mut watch = watch(&made);
    made.process(Task { ticks: 50, ..TASK })
        .process(Task {
            ticks: 740,
            ..other
        })
        .cores(&[(0, [50, 50, 0]), (1, [45, 55, 0])]);
    watch.round();
    let result = watch.result();
    assert_eq!(result.foreign, 45.0 / 200.0);
    assert_eq!(named(&result.processes), ["cc1plus (9) 40 % of core 1"]);
    assert_eq!(result.foreign_by_core, BTreeMap::from([(0, 0.0), (1, 0.4)]));
}

#[test]
fn a_tree_that_may_run_elsewhere_is_counted_thread_by_thread() {
    let made = watched();
    let own = Task {
        allowed: "0-7",
        ..TASK
    };
    made.process(own);
    let mut watch = watch(&made);
    // 50 ticks on core 5, which nobody watches: they explain nothing on cores 0 and 1.
    made.process(Task {
        ticks: 50,
        core: 5,
        ..own
    })
    .cores(&[(0, [30, 70, 0]), (1, [0, 100, 0])]);
    watch.round();
    made.process(Task {
        ticks: 70,
        core: 1,
        ..own
    })
    .cores(&[(0, [30, 170, 0]), (1, [20, 180, 0])]);
    watch.round();
    assert_eq!(watch.result().foreign, 30.0 / 400.0);
}

#[test]
fn the_time_after_the_last_round_of_a_root_that_ended_is_left_out() {
    let made = watched();
    let mut watch = watch(&made);
    made.process(Task { ticks: 80, ..TASK })
        .cores(&[(0, [80, 20, 0]), (1, [0, 100, 0])]);
    watch.round();
    made.end(10).cores(&[(0, [170, 30, 0]), (1, [90, 110, 0])]);
    watch.round();
    watch.round();
    let result = watch.result();
    assert_eq!((result.foreign, result.samples), (0.0, 1));
}

#[test]
fn a_root_that_waits_to_be_waited_for_ends_the_watch_with_its_last_time() {
    let made = watched();
    let mut watch = watch(&made);
    made.process(Task {
        ticks: 100,
        state: 'Z',
        anon_kib: None,
        ..TASK
    })
    .cores(&[(0, [100, 0, 0]), (1, [0, 100, 0])]);
    watch.round();
    made.cores(&[(0, [100, 100, 0]), (1, [100, 100, 0])]);
    watch.round();
    let result = watch.result();
    assert_eq!((result.foreign, result.samples), (0.0, 1));
}

#[test]
fn this_machines_cores_are_read() {
    let cores: BTreeMap<u32, CoreTicks> = Procfs::default().cores().unwrap();
    assert!(cores.values().all(|core| core.busy + core.idle > 0));
    let me = Procfs::default().process_stat(std::process::id()).unwrap();
    assert!(me.start_ticks > 0 && cores.contains_key(&me.processor));
}
