//! Limits that control groups put on a process, of version 1, version 2 and both mounted side by side.
//!
//! | number | version 2 | version 1 |
//! |---|---|---|
//! | CPU quota | `cpu.max` | `cpu.cfs_quota_us / cpu.cfs_period_us` |
//! | memory limit | `memory.max` | `memory.limit_in_bytes` |
//! | cores | `cpuset.cpus.effective` | `cpuset.effective_cpus`, else `cpuset.cpus` |
//! | throttled time | `cpu.stat`, `throttled_usec` | `cpu.stat`, `throttled_time` |
//!
//! A limit of any ancestor binds as well, so quota and memory limit are the smallest on the way up to the
//! mount. What lies above the mount (outside a container) is not seen.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::ProcError;
use crate::procfs::Procfs;

/// From here on version 1 means "no limit": the largest number of pages there is.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// What binds a process. `None` is no limit, or none that can be seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupLimits {
    /// The version whose hierarchy controls CPU or memory; `None` when neither does.
    pub version: Option<u8>,
    /// Cores' worth of CPU time that the group may use.
    pub cpu_quota_cores: Option<f64>,
    /// Bytes of memory, page cache included.
    pub memory_limit_bytes: Option<u64>,
    /// Cores that the group may use, as the kernel lists them: `0-3,8`.
    pub cpuset: Option<String>,
}

/// Where control groups are read: `/proc/self` for the mounts, the mounts below `root`.
#[derive(Clone, Debug)]
pub struct Cgroups {
    procfs: Procfs,
    root: PathBuf,
}

impl Default for Cgroups {
    fn default() -> Self {
        Self::at(Procfs::default(), "/")
    }
}

/// The group of a process in one hierarchy.
struct Group {
    version: u8,
    controllers: Vec<String>,
    /// Of the mount itself: walking up ends there.
    top: PathBuf,
    folder: PathBuf,
}

impl Cgroups {
    /// With this proc file system, and mount points below `root`.
    pub fn at(procfs: Procfs, root: impl Into<PathBuf>) -> Self {
        Self {
            procfs,
            root: root.into(),
        }
    }

    /// What binds process `pid`.
    ///
    /// # Errors
    /// When `/proc/<pid>/cgroup` cannot be read. Without control groups nothing is limited.
    pub fn limits(&self, pid: u32) -> Result<CgroupLimits, ProcError> {
        let groups = self.groups(pid)?;
        let with = |name: &str| {
            groups
                .iter()
                .find(|group| group.controllers.iter().any(|found| found == name))
        };
        let (cpu, memory) = (with("cpu"), with("memory"));
        Ok(CgroupLimits {
            version: cpu.or(memory).map(|group| group.version),
            cpu_quota_cores: cpu.and_then(|group| {
                group
                    .upwards()
                    .filter_map(|folder| quota(group.version, folder))
                    .min_by(f64::total_cmp)
            }),
            memory_limit_bytes: memory.and_then(|group| {
                let file = if group.version == 2 {
                    "memory.max"
                } else {
                    "memory.limit_in_bytes"
                };
                group
                    .upwards()
                    .filter_map(|folder| line(folder, file)?.parse::<u64>().ok())
                    .filter(|bytes| *bytes < NO_LIMIT_BYTES)
                    .min()
            }),
            cpuset: with("cpuset").and_then(|group| {
                let files: &[&str] = if group.version == 2 {
                    &["cpuset.cpus.effective"]
                } else {
                    &["cpuset.effective_cpus", "cpuset.cpus"]
                };
                group
                    .upwards()
                    .flat_map(|folder| files.iter().filter_map(move |file| line(folder, file)))
                    .find(|cores| !cores.is_empty())
            }),
        })
    }

    /// Time that the groups of process `pid` had to wait for their quota, since they exist, summed over the
    /// way up. The kernel adds up the waiting of all cores. `None` where no group accounts for it.
    ///
    /// # Errors
    /// As [`Cgroups::limits`].
    pub fn throttled_ns(&self, pid: u32) -> Result<Option<u64>, ProcError> {
        let groups = self.groups(pid)?;
        let Some(group) = groups
            .iter()
            .find(|group| group.controllers.iter().any(|name| name == "cpu"))
        else {
            return Ok(None);
        };
        let (key, unit_ns) = if group.version == 2 {
            ("throttled_usec", 1000)
        } else {
            ("throttled_time", 1)
        };
        Ok(group
            .upwards()
            .filter_map(|folder| {
                let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
                let found = text
                    .lines()
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
                Some(found.trim().parse::<u64>().ok()?.saturating_mul(unit_ns))
            })
            .reduce(u64::saturating_add))
    }

    fn groups(&self, pid: u32) -> Result<Vec<Group>, ProcError> {
        let memberships = self.procfs.read(pid, "cgroup")?;
        // The mounts as this process sees them: it is the one that reads below them.
        let mounts = self.procfs.read_own("mountinfo")?;
        let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
        Ok(memberships
            .lines()
            .filter_map(|membership| {
                let mut parts = membership.splitn(3, ':');
                let (_, named, path) = (parts.next()?, parts.next()?, parts.next()?);
                let mount = mounts.iter().find(|mount| mount.holds(named))?;
                let top = self.root.join(mount.point.trim_start_matches('/'));
                let folder = top.join(mount.below(path));
                // A path from outside this container: what is mounted is all there is to see.
                let folder = if folder.is_dir() { folder } else { top.clone() };
                let controllers = if mount.version == 2 {
                    let listed = fs::read_to_string(top.join("cgroup.controllers"));
                    listed
                        .unwrap_or_default()
                        .split_whitespace()
                        .map(str::to_owned)
                        .collect()
                } else {
                    named.split(',').map(str::to_owned).collect()
                };
                Some(Group {
                    version: mount.version,
                    controllers,
                    top,
                    folder,
                })
            })
            .collect())
    }
}

impl Group {
    /// This group, its parent, and so on to the mount.
    fn upwards(&self) -> impl Iterator<Item = &Path> {
        self.folder
            .ancestors()
            .take_while(|folder| folder.starts_with(&self.top))
    }
}

/// One hierarchy's line of `mountinfo`.
struct Mount<'a> {
    version: u8,
    /// The group that is mounted.
    root: &'a str,
    point: &'a str,
    /// Of version 1: `rw,cpu,cpuacct`.
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// `id parent device root point options… - type source super-options`.
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let version = match after.next()? {
            "cgroup2" => 2,
            "cgroup" => 1,
            _ => return None,
        };
        Some(Self {
            version,
            root,
            point,
            options: after.nth(1).unwrap_or(""),
        })
    }

    /// Whether this is the hierarchy that a line of `/proc/<pid>/cgroup` names: by its controllers in
    /// version 1, by nothing in version 2.
    fn holds(&self, named: &str) -> bool {
        match (self.version, named) {
            (2, "") => true,
            (1, named) if !named.is_empty() => named
                .split(',')
                .all(|name| self.options.split(',').any(|option| option == name)),
            _ => false,
        }
    }

    /// A group's path, relative to the mount point.
    fn below(&self, path: &'a str) -> &'a str {
        let below = if self.root == "/" {
            path
        } else {
            path.strip_prefix(self.root)
                .filter(|rest| rest.is_empty() || rest.starts_with('/'))
                .unwrap_or("")
        };
        // `/..` is a group above the root of this namespace.
        if below.split('/').any(|part| part == "..") {
            ""
        } else {
            below.trim_start_matches('/')
        }
    }
}

fn quota(version: u8, folder: &Path) -> Option<f64> {
    let (quota, period) = if version == 2 {
        let text = line(folder, "cpu.max")?;
        let (quota, period) = text.split_once(' ')?;
        (quota.to_owned(), period.to_owned())
    } else {
        (
            line(folder, "cpu.cfs_quota_us")?,
            line(folder, "cpu.cfs_period_us")?,
        )
    };
    // `max` and -1 are no quota.
    let quota: f64 = quota.parse::<u64>().ok()? as f64;
    let period: f64 = period.parse::<u64>().ok().filter(|us| *us > 0)? as f64;
    Some(quota / period)
}

fn line(folder: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    Some(text.trim().to_owned())
}
