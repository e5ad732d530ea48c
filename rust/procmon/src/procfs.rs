//! Reading one process.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::error::ProcError;
use crate::memory::{SmapsRollup, Status, StatusMemory};

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

    /// A file below `/proc/<pid>/`. Names of tasks may be any bytes; they are read lossily.
    pub(crate) fn read(&self, pid: u32, file: &'static str) -> Result<String, ProcError> {
        let folder = self.root.join(pid.to_string());
        let path = folder.join(file);
        match fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(source) => Err(match (source.kind(), source.raw_os_error()) {
                (_, Some(libc::ESRCH)) => ProcError::Vanished { pid },
                (io::ErrorKind::NotFound, _) if folder.exists() => {
                    ProcError::NoSuchFile { pid, file }
                }
                (io::ErrorKind::NotFound, _) => ProcError::Vanished { pid },
                (io::ErrorKind::PermissionDenied, _) => ProcError::Denied { pid, file },
                _ => ProcError::Io {
                    file: path.display().to_string(),
                    source,
                },
            }),
        }
    }
}
