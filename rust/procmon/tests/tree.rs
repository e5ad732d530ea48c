//! Process trees: of a made-up proc file system, and of real processes.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use procmon::{Detail, Problem, ProcError, Procfs};

const STATUS: &str = include_str!("fixtures/python_status.txt");
const ROLLUP: &str = include_str!("fixtures/python_smaps_rollup.txt");
const OLD_ROLLUP: &str = include_str!("fixtures/container_smaps_rollup.txt");
const ZOMBIE: &str = include_str!("fixtures/zombie_status.txt");

/// A proc file system in a temporary folder, removed at the end.
struct Made(PathBuf);

impl Made {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("procmon-{name}-{}", std::process::id()));
        fs::create_dir(&root).unwrap();
        Self(root)
    }

    fn process(&self, pid: u32, ppid: u32, files: &[(&str, &str)]) -> PathBuf {
        let folder = self.0.join(pid.to_string());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("stat"), format!("{pid} (x) y) S {ppid} 0 0")).unwrap();
        for (file, text) in files {
            fs::write(folder.join(file), text).unwrap();
        }
        folder
    }

    fn procfs(&self) -> Procfs {
        Procfs::at(&self.0)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

const FULL: &[(&str, &str)] = &[("status", STATUS), ("smaps_rollup", ROLLUP)];

#[test]
fn sums_cover_descendants_and_nothing_else() {
    let made = Made::new("sums");
    made.process(10, 1, FULL);
    made.process(11, 10, FULL);
    made.process(12, 11, FULL);
    made.process(13, 1, FULL);
    fs::create_dir(made.0.join("sys")).unwrap();

    let tree = made.procfs().tree_memory(10, Detail::Pss).unwrap();
    let pids: Vec<u32> = tree.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [10, 11, 12]);
    assert_eq!(tree.status().rss_anon_bytes, 3 * 20056 * 1024);
    let rollup = tree.rollup().unwrap();
    assert_eq!(rollup.pss_bytes, 3 * 32811 * 1024);
    assert_eq!(rollup.pss_anon_bytes, Some(3 * 20056 * 1024));
    assert_eq!((tree.vanished, tree.problems.len()), (0, 0));
}

#[test]
fn a_root_that_is_not_there_is_an_error() {
    let made = Made::new("no-root");
    made.process(10, 1, FULL);
    assert!(matches!(
        made.procfs().tree_memory(99, Detail::Rss),
        Err(ProcError::Vanished { pid: 99 })
    ));
}

#[test]
fn what_cannot_be_read_is_reported_and_leaves_no_sum() {
    let made = Made::new("denied");
    made.process(10, 1, FULL);
    made.process(11, 10, &[("status", STATUS)]);
    let tree = made.procfs().tree_memory(10, Detail::Pss).unwrap();
    assert_eq!(
        tree.problems,
        [Problem {
            pid: 11,
            why: "this kernel has no smaps_rollup (process 11)".to_owned()
        }]
    );
    assert_eq!(tree.rollup(), None);
    assert_eq!(tree.status().rss_anon_bytes, 2 * 20056 * 1024);
}

#[test]
fn a_zombie_holds_nothing_and_spoils_no_sum() {
    let made = Made::new("zombie");
    made.process(10, 1, FULL);
    made.process(11, 10, &[("status", ZOMBIE)]);
    let tree = made.procfs().tree_memory(10, Detail::Pss).unwrap();
    assert_eq!(tree.processes[1].state, 'Z');
    assert_eq!(tree.rollup().unwrap().pss_bytes, 32811 * 1024);
}

#[test]
fn a_part_that_one_kernel_line_lacks_is_lacking_in_the_sum() {
    let made = Made::new("parts");
    made.process(10, 1, &[("status", STATUS), ("smaps_rollup", OLD_ROLLUP)]);
    let rollup = made
        .procfs()
        .tree_memory(10, Detail::Pss)
        .unwrap()
        .rollup()
        .unwrap();
    assert_eq!(
        (rollup.pss_bytes, rollup.pss_anon_bytes),
        (32811 * 1024, None)
    );
}

#[test]
fn a_circle_of_parents_ends() {
    let made = Made::new("circle");
    made.process(10, 11, FULL);
    made.process(11, 10, FULL);
    made.process(12, 12, FULL);
    assert_eq!(
        made.procfs()
            .tree_memory(10, Detail::Rss)
            .unwrap()
            .processes
            .len(),
        2
    );
    assert_eq!(
        made.procfs()
            .tree_memory(12, Detail::Rss)
            .unwrap()
            .processes
            .len(),
        1
    );
}

fn sleeper() -> Child {
    Command::new("sleep")
        .arg("60")
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_real_child_comes_and_goes() {
    let me = std::process::id();
    let procfs = Procfs::default();
    let in_tree = |pid: u32| {
        let tree = procfs.tree_memory(me, Detail::Pss).unwrap();
        tree.processes.iter().any(|process| process.pid == pid)
    };
    let mut child = sleeper();
    assert!(in_tree(child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!in_tree(child.id()));
}

#[test]
fn a_process_that_is_not_there_is_named() {
    let mut child = sleeper();
    child.kill().unwrap();
    child.wait().unwrap();
    let error = Procfs::default()
        .process_memory(child.id(), Detail::Pss)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("process {} does not exist or has ended", child.id())
    );
}
