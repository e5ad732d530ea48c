//! What can go wrong when `/proc` is read.

use std::fmt;
use std::io;

/// One variant per broken expectation.
#[derive(Debug)]
pub enum ProcError {
    /// The process ended before or while it was read, or never existed.
    Vanished {
        /// The process asked for.
        pid: u32,
    },
    /// The kernel refused: another user's process, or no ptrace rights.
    Denied {
        /// The process asked for.
        pid: u32,
        /// File name below `/proc/<pid>/`.
        file: &'static str,
    },
    /// The kernel does not have this file (`smaps_rollup` came with Linux 4.14).
    NoSuchFile {
        /// The process asked for.
        pid: u32,
        /// File name below `/proc/<pid>/`.
        file: &'static str,
    },
    /// `/proc/stat` has no line for the core.
    NoSuchCore {
        /// The core asked for.
        core: u32,
    },
    /// Any other I/O error.
    Io {
        /// The file, below the root of the file system read.
        file: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A line that every kernel with this file writes is not there.
    MissingField {
        /// File name below `/proc/<pid>/`.
        file: &'static str,
        /// The line's key.
        field: &'static str,
    },
    /// A line is there and does not read as expected.
    BadField {
        /// File name below `/proc/<pid>/`.
        file: &'static str,
        /// The line's key.
        field: &'static str,
        /// What follows the key.
        found: String,
    },
}

impl fmt::Display for ProcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vanished { pid } => write!(f, "process {pid} does not exist or has ended"),
            Self::Denied { pid, file } => {
                write!(f, "no permission to read {file} of process {pid}")
            }
            Self::NoSuchFile { pid, file } => {
                write!(f, "this kernel has no {file} (process {pid})")
            }
            Self::NoSuchCore { core } => {
                write!(f, "core {core} is offline or does not exist")
            }
            Self::Io { file, source } => write!(f, "cannot read {file}: {source}"),
            Self::MissingField { file, field } => {
                write!(
                    f,
                    "{file} has no line {field}: expected on Linux 4.14 or newer"
                )
            }
            Self::BadField { file, field, found } => {
                write!(f, "{file} line {field}: expected a number, found {found:?}")
            }
        }
    }
}

impl std::error::Error for ProcError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
