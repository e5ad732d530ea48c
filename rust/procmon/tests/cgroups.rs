//! Limits of control groups: of made-up mounts.

mod made_proc;

use made_proc::MadeProc;
use procmon::{CgroupLimits, Cgroups, ProcError, Procfs};

const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime master:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const UNIFIED_MOUNT: &str =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

fn made(memberships: &str, mounts: &str, files: &[(&str, &str)]) -> MadeProc {
    let made = MadeProc::new();
    made.write("10/cgroup", memberships)
        .write("self/mountinfo", mounts);
    for (file, text) in files {
        made.write(&format!("root/sys/fs/cgroup/{file}"), text);
    }
    made
}

fn of(made: &MadeProc) -> Cgroups {
    Cgroups::at(Procfs::at(made.path()), made.path().join("root"))
}

#[test]
fn version_2_takes_the_smallest_on_the_way_up() {
    let made = made(
        "0::/outer/inner\n",
        UNIFIED_MOUNT,
        &[
            ("cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("outer/cpu.max", "150000 100000\n"),
            ("outer/memory.max", "1073741824\n"),
            ("outer/cpu.stat", "usage_usec 5\nthrottled_usec 40\n"),
            ("outer/cpuset.cpus.effective", "0-7\n"),
            ("outer/inner/cpu.max", "max 100000\n"),
            ("outer/inner/memory.max", "max\n"),
            ("outer/inner/cpu.stat", "nr_throttled 3\nthrottled_usec 2\n"),
            ("outer/inner/cpuset.cpus.effective", "2-3\n"),
        ],
    );
    assert_eq!(
        of(&made).limits(10).unwrap(),
        CgroupLimits {
            version: Some(2),
            cpu_quota_cores: Some(1.5),
            memory_limit_bytes: Some(1 << 30),
            cpuset: Some("2-3".to_owned()),
        }
    );
    assert_eq!(of(&made).throttled_ns(10).unwrap(), Some(42_000));
}

#[test]
fn version_1_beside_an_empty_version_2() {
    let made = made(
        "9:name=systemd:/\n5:memory:/docker/abc/task\n4:cpuset:/\n3:cpu,cpuacct:/job\n0::/\n",
        HYBRID_MOUNTS,
        &[
            ("unified/cgroup.controllers", "\n"),
            ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("cpu,cpuacct/job/cpu.cfs_quota_us", "200000\n"),
            ("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n"),
            (
                "cpu,cpuacct/job/cpu.stat",
                "nr_periods 1\nthrottled_time 77\n",
            ),
            ("cpuset/cpuset.effective_cpus", "0-1\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/task/memory.limit_in_bytes", "4096\n"),
        ],
    );
    assert_eq!(
        of(&made).limits(10).unwrap(),
        CgroupLimits {
            version: Some(1),
            cpu_quota_cores: Some(2.0),
            memory_limit_bytes: Some(4096),
            cpuset: Some("0-1".to_owned()),
        }
    );
    assert_eq!(of(&made).throttled_ns(10).unwrap(), Some(77));
}

#[test]
fn a_group_outside_the_container_is_what_is_mounted() {
    for path in ["/../../elsewhere", "/not/here"] {
        let made = made(
            &format!("0::{path}\n"),
            UNIFIED_MOUNT,
            &[
                ("cgroup.controllers", "cpu memory\n"),
                ("memory.max", "8192\n"),
            ],
        );
        let limits = of(&made).limits(10).unwrap();
        assert_eq!(
            (limits.version, limits.memory_limit_bytes),
            (Some(2), Some(8192))
        );
        assert_eq!((limits.cpu_quota_cores, limits.cpuset), (None, None));
        assert_eq!(of(&made).throttled_ns(10).unwrap(), None);
    }
}

#[test]
fn without_control_groups_nothing_is_limited() {
    let made = made("", "30 23 0:26 / / rw - ext4 /dev/vda rw\n", &[]);
    assert_eq!(of(&made).limits(10).unwrap(), CgroupLimits::default());
    assert_eq!(of(&made).throttled_ns(10).unwrap(), None);
    assert!(matches!(
        of(&made).limits(11),
        Err(ProcError::Vanished { pid: 11 })
    ));
}

#[test]
fn this_process_is_in_some_group_or_none() {
    Cgroups::default().limits(std::process::id()).unwrap();
}
