//! `status` again, read in one pass without allocating: it is parsed fifty times a second per process.

use crate::error::ProcError;
use crate::memory::StatusMemory;

const STATUS: &str = "status";

/// What is sampled of `/proc/<pid>/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusSample<'t> {
    /// `State`.
    pub state: u8,
    /// `Tgid`: the process that a thread belongs to.
    pub tgid: u32,
    /// `PPid`.
    pub ppid: u32,
    /// `Threads`.
    pub threads: u32,
    /// `Rss…` and `VmSwap`; `None` for a zombie or a kernel thread.
    pub memory: Option<StatusMemory>,
    /// `Cpus_allowed_list`: where the main thread may run. Empty when the text ends before it.
    pub cores: &'t [u8],
}

impl<'t> StatusSample<'t> {
    /// Parse the text of `/proc/<pid>/status`. The kernel escapes newlines in names, so no name can pose as a
    /// line.
    ///
    /// # Errors
    /// [`ProcError::MissingField`] and [`ProcError::BadField`], as [`crate::Status::parse`].
    pub fn parse(text: &'t [u8]) -> Result<Self, ProcError> {
        let (mut state, mut tgid, mut ppid) = (None, None, None);
        let mut threads = 0;
        let mut cores: &[u8] = b"";
        let mut resident = false;
        let (mut anon, mut file, mut shmem, mut swap) = (None, None, None, None);
        for line in text.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            let found = line[colon + 1..].trim_ascii();
            match &line[..colon] {
                b"State" => state = found.first().copied(),
                b"Tgid" => tgid = Some(plain("Tgid", found)?),
                b"PPid" => ppid = Some(plain("PPid", found)?),
                b"VmRSS" => resident = true,
                b"RssAnon" => anon = Some(bytes("RssAnon", found)?),
                b"RssFile" => file = Some(bytes("RssFile", found)?),
                b"RssShmem" => shmem = Some(bytes("RssShmem", found)?),
                b"VmSwap" => swap = Some(bytes("VmSwap", found)?),
                b"Threads" => threads = plain("Threads", found)?,
                b"Cpus_allowed_list" => {
                    cores = found;
                    break;
                }
                _ => {}
            }
        }
        let missing = |field| ProcError::MissingField {
            file: STATUS,
            field,
        };
        let memory = if resident {
            Some(StatusMemory {
                rss_anon_bytes: anon.ok_or(missing("RssAnon"))?,
                rss_file_bytes: file.ok_or(missing("RssFile"))?,
                rss_shmem_bytes: shmem.ok_or(missing("RssShmem"))?,
                vm_swap_bytes: swap.ok_or(missing("VmSwap"))?,
            })
        } else {
            None
        };
        Ok(Self {
            state: state.ok_or(missing("State"))?,
            tgid: tgid.ok_or(missing("Tgid"))?,
            ppid: ppid.ok_or(missing("PPid"))?,
            threads,
            memory,
            cores,
        })
    }
}

fn plain(field: &'static str, found: &[u8]) -> Result<u32, ProcError> {
    digits(found)
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| bad(field, found))
}

/// `"123 kB"` → bytes.
fn bytes(field: &'static str, found: &[u8]) -> Result<u64, ProcError> {
    found
        .strip_suffix(b" kB")
        .and_then(|number| digits(number.trim_ascii_end()))
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or_else(|| bad(field, found))
}

fn digits(found: &[u8]) -> Option<u64> {
    if found.is_empty() {
        return None;
    }
    found.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

fn bad(field: &'static str, found: &[u8]) -> ProcError {
    ProcError::BadField {
        file: STATUS,
        field,
        found: String::from_utf8_lossy(found).into_owned(),
    }
}
