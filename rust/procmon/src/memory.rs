//! `status` and `smaps_rollup`, parsed.

use crate::error::ProcError;

const STATUS: &str = "status";
const ROLLUP: &str = "smaps_rollup";

/// `/proc/<pid>/status`, as far as it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The task's name as the kernel escapes it (at most 15 bytes before escaping).
    pub name: String,
    /// One letter: `R`, `S`, `D`, `Z` (ended, not yet waited for), …
    pub state: char,
    /// Parent process.
    pub ppid: u32,
    /// `None` for a task without memory of its own: a zombie or a kernel thread.
    pub memory: Option<StatusMemory>,
}

/// The memory lines of `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusMemory {
    /// `RssAnon`.
    pub rss_anon_bytes: u64,
    /// `RssFile`.
    pub rss_file_bytes: u64,
    /// `RssShmem`.
    pub rss_shmem_bytes: u64,
    /// `VmSwap`.
    pub vm_swap_bytes: u64,
}

impl StatusMemory {
    /// Field by field.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// Field by field, the larger one.
    pub(crate) fn highest(&self, other: &Self) -> Self {
        self.each(other, u64::max)
    }

    fn each(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            rss_anon_bytes: of(self.rss_anon_bytes, other.rss_anon_bytes),
            rss_file_bytes: of(self.rss_file_bytes, other.rss_file_bytes),
            rss_shmem_bytes: of(self.rss_shmem_bytes, other.rss_shmem_bytes),
            vm_swap_bytes: of(self.vm_swap_bytes, other.vm_swap_bytes),
        }
    }
}

impl Status {
    /// Parse the text of `/proc/<pid>/status`.
    ///
    /// # Errors
    /// [`ProcError::MissingField`] and [`ProcError::BadField`]. A kernel that reports `VmRSS` but not
    /// its parts (before 4.5, and some sandboxes) is refused: a zero would be a wrong number.
    pub fn parse(text: &str) -> Result<Self, ProcError> {
        let required = |field| {
            value(text, field).ok_or(ProcError::MissingField {
                file: STATUS,
                field,
            })
        };
        let name = required("Name")?.to_owned();
        let state_text = required("State")?;
        let state = state_text
            .chars()
            .next()
            .ok_or_else(|| bad(STATUS, "State", state_text))?;
        let ppid_text = required("PPid")?;
        let ppid = ppid_text
            .parse()
            .map_err(|_| bad(STATUS, "PPid", ppid_text))?;
        let memory = if value(text, "VmRSS").is_some() {
            let bytes = |field| kb(STATUS, field, required(field)?);
            Some(StatusMemory {
                rss_anon_bytes: bytes("RssAnon")?,
                rss_file_bytes: bytes("RssFile")?,
                rss_shmem_bytes: bytes("RssShmem")?,
                vm_swap_bytes: bytes("VmSwap")?,
            })
        } else {
            None
        };
        Ok(Self {
            name,
            state,
            ppid,
            memory,
        })
    }
}

/// `/proc/<pid>/smaps_rollup`, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmapsRollup {
    /// `Rss`: exact, where `status` may lag.
    pub rss_bytes: u64,
    /// `Pss`.
    pub pss_bytes: u64,
    /// `Pss_Anon`; `None` before Linux 5.4.
    pub pss_anon_bytes: Option<u64>,
    /// `Pss_File`; `None` before Linux 5.4.
    pub pss_file_bytes: Option<u64>,
    /// `Pss_Shmem`; `None` before Linux 5.4.
    pub pss_shmem_bytes: Option<u64>,
    /// `Private_Clean`.
    pub private_clean_bytes: u64,
    /// `Private_Dirty`.
    pub private_dirty_bytes: u64,
    /// `Private_Hugetlb`; huge pages of hugetlbfs are in no other line.
    pub private_hugetlb_bytes: u64,
    /// `SwapPss`.
    pub swap_pss_bytes: u64,
}

impl SmapsRollup {
    /// Of a task without memory, and the start of a sum.
    pub(crate) const EMPTY: Self = Self {
        rss_bytes: 0,
        pss_bytes: 0,
        pss_anon_bytes: Some(0),
        pss_file_bytes: Some(0),
        pss_shmem_bytes: Some(0),
        private_clean_bytes: 0,
        private_dirty_bytes: 0,
        private_hugetlb_bytes: 0,
        swap_pss_bytes: 0,
    };

    /// Parse the text of `/proc/<pid>/smaps_rollup`.
    ///
    /// # Errors
    /// [`ProcError::MissingField`] and [`ProcError::BadField`].
    pub fn parse(text: &str) -> Result<Self, ProcError> {
        let optional = |field| {
            value(text, field)
                .map(|found| kb(ROLLUP, field, found))
                .transpose()
        };
        let required = |field| {
            optional(field)?.ok_or(ProcError::MissingField {
                file: ROLLUP,
                field,
            })
        };
        Ok(Self {
            rss_bytes: required("Rss")?,
            pss_bytes: required("Pss")?,
            pss_anon_bytes: optional("Pss_Anon")?,
            pss_file_bytes: optional("Pss_File")?,
            pss_shmem_bytes: optional("Pss_Shmem")?,
            private_clean_bytes: required("Private_Clean")?,
            private_dirty_bytes: required("Private_Dirty")?,
            private_hugetlb_bytes: required("Private_Hugetlb")?,
            swap_pss_bytes: required("SwapPss")?,
        })
    }

    /// Field by field; a part that one side lacks is lacking in the sum.
    pub(crate) fn plus(&self, b: &Self) -> Self {
        let a = self;
        let both = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Self {
            rss_bytes: a.rss_bytes.saturating_add(b.rss_bytes),
            pss_bytes: a.pss_bytes.saturating_add(b.pss_bytes),
            pss_anon_bytes: both(a.pss_anon_bytes, b.pss_anon_bytes),
            pss_file_bytes: both(a.pss_file_bytes, b.pss_file_bytes),
            pss_shmem_bytes: both(a.pss_shmem_bytes, b.pss_shmem_bytes),
            private_clean_bytes: a.private_clean_bytes.saturating_add(b.private_clean_bytes),
            private_dirty_bytes: a.private_dirty_bytes.saturating_add(b.private_dirty_bytes),
            private_hugetlb_bytes: a
                .private_hugetlb_bytes
                .saturating_add(b.private_hugetlb_bytes),
            swap_pss_bytes: a.swap_pss_bytes.saturating_add(b.swap_pss_bytes),
        }
    }
}

/// What follows `field:` on the first line that starts so. A task's name cannot forge a line: the kernel
/// writes its newlines as `\n`.
fn value<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(str::trim)
}

/// `"123 kB"` → bytes.
fn kb(file: &'static str, field: &'static str, found: &str) -> Result<u64, ProcError> {
    found
        .strip_suffix("kB")
        .and_then(|number| number.trim_end().parse::<u64>().ok())
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or_else(|| bad(file, field, found))
}

fn bad(file: &'static str, field: &'static str, found: &str) -> ProcError {
    ProcError::BadField {
        file,
        field,
        found: found.to_owned(),
    }
}
