//! Reading one process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use crate::cpu_stat::{CoreTicks, parse_cores};
use crate::error::ProcError;
use crate::memory::{SmapsRollup, Status, StatusMemory};
use crate::task_stat::TaskStat;

/// How much is read of each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// `status` only: microseconds.
    Rss,
    /// `status` and `smaps_rollup`: walks the page tables.
    Pss,
}

/// A mounted proc file system.
#[derive(Clone, Debug)]
pub struct Procfs {
    root: PathBuf,
}

impl Default for Procfs {
    fn default() -> Self {
        Self::at("/proc")
    }
}

/// Memory of one process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The process.
    pub pid: u32,
    /// Its parent.
    pub ppid: u32,
    /// The task's name.
    pub name: String,
    /// One letter, as in [`Status::state`].
    pub state: char,
    /// All zero for a zombie or a kernel thread: they hold none.
    pub status: StatusMemory,
    /// `None` when not asked for or not readable; then `unreadable` says why.
    pub rollup: Option<SmapsRollup>,
    /// Why `smaps_rollup` was asked for and could not be read.
    pub unreadable: Option<String>,
}

impl Procfs {
    /// The proc file system mounted at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Memory of process `pid`.
    ///
    /// # Errors
    /// [`ProcError::Vanished`] when it does not exist or ends while it is read, and whatever makes
    /// `status` unreadable. An unreadable `smaps_rollup` is not an error but a field of the result.
    pub fn process_memory(&self, pid: u32, detail: Detail) -> Result<ProcessMemory, ProcError> {
        let status = Status::parse(&self.read(pid, "status")?)?;
        let (rollup, unreadable) = match (detail, status.memory) {
            (Detail::Rss, _) => (None, None),
            // Without memory there is nothing to share; the kernel answers ESRCH for these.
            (Detail::Pss, None) => (Some(SmapsRollup::EMPTY), None),
            (Detail::Pss, Some(_)) => match self.rollup(pid) {
                Ok(rollup) => (Some(rollup), None),
                Err(ended @ ProcError::Vanished { .. }) => return Err(ended),
                Err(why) => (None, Some(why.to_string())),
            },
        };
        Ok(ProcessMemory {
            pid,
            ppid: status.ppid,
            name: status.name,
            state: status.state,
            status: status.memory.unwrap_or_default(),
            rollup,
            unreadable,
        })
    }

    /// `smaps_rollup` of process `pid`.
    ///
    /// # Errors
    /// As [`Procfs::process_memory`], and [`ProcError::Denied`] without ptrace rights.
    pub fn rollup(&self, pid: u32) -> Result<SmapsRollup, ProcError> {
        SmapsRollup::parse(&self.read(pid, "smaps_rollup")?)
    }

    /// Numeric entries: the processes that are there now.
    pub(crate) fn pids(&self) -> Result<Vec<u32>, ProcError> {
        let failed = |source| ProcError::Io {
            file: self.root.display().to_string(),
            source,
        };
        let mut pids = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            pids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(pids)
    }

    /// `stat` of process `pid`: times are of all its threads.
    ///
    /// # Errors
    /// As [`Procfs::process_memory`].
    pub fn process_stat(&self, pid: u32) -> Result<TaskStat, ProcError> {
        TaskStat::parse(&self.read(pid, "stat")?)
    }

    /// `stat` of each thread of process `pid` that is there when it is read.
    ///
    /// # Errors
    /// When the threads cannot be listed.
    pub(crate) fn thread_stats(&self, pid: u32) -> Result<Vec<TaskStat>, ProcError> {
        let folder = self.root.join(pid.to_string()).join("task");
        let failed = |source| self.failed(pid, "task", source);
        let mut threads = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path().join("stat");
            // A thread that has ended meanwhile is left out.
            if let Ok(bytes) = fs::read(path)
                && let Ok(stat) = TaskStat::parse(&String::from_utf8_lossy(&bytes))
            {
                threads.push(stat);
            }
        }
        Ok(threads)
    }

    /// What every core did since boot.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read or parsed.
    pub fn cores(&self) -> Result<BTreeMap<u32, CoreTicks>, ProcError> {
        parse_cores(&self.read_global("stat")?)
    }

    /// `loadavg`, open; `None` where there is none.
    pub(crate) fn open_loadavg(&self) -> Option<fs::File> {
        fs::File::open(self.root.join("loadavg")).ok()
    }

    /// A file below `/proc/<pid>/`, open. It stays this process's: when the process ends, reading fails, even
    /// when its number is used again.
    pub(crate) fn open(&self, pid: u32, file: &'static str) -> Result<fs::File, ProcError> {
        fs::File::open(self.root.join(pid.to_string()).join(file))
            .map_err(|source| self.failed(pid, file, source))
    }

    /// A file below `/proc/<pid>/`. Names of tasks may be any bytes; they are read lossily.
    pub(crate) fn read(&self, pid: u32, file: &'static str) -> Result<String, ProcError> {
        match fs::read(self.root.join(pid.to_string()).join(file)) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(source) => Err(self.failed(pid, file, source)),
        }
    }

    /// A file below `/proc/self/`.
    pub(crate) fn read_own(&self, file: &str) -> Result<String, ProcError> {
        self.read_global(&format!("self/{file}"))
    }

    fn read_global(&self, file: &str) -> Result<String, ProcError> {
        let path = self.root.join(file);
        fs::read_to_string(&path).map_err(|source| ProcError::Io {
            file: path.display().to_string(),
            source,
        })
    }

    /// Why `file` of process `pid` could not be read.
    pub(crate) fn failed(&self, pid: u32, file: &'static str, source: io::Error) -> ProcError {
        let folder = self.root.join(pid.to_string());
        match (source.kind(), source.raw_os_error()) {
            (_, Some(libc::ESRCH)) => ProcError::Vanished { pid },
            (io::ErrorKind::NotFound, _) if folder.exists() => ProcError::NoSuchFile { pid, file },
            (io::ErrorKind::NotFound, _) => ProcError::Vanished { pid },
            (io::ErrorKind::PermissionDenied, _) => ProcError::Denied { pid, file },
            _ => ProcError::Io {
                file: folder.join(file).display().to_string(),
                source,
            },
        }
    }
}
