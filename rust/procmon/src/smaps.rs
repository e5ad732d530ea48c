//! `/proc/<pid>/smaps`, summed by what is mapped.

use std::collections::BTreeMap;

use crate::error::ProcError;
use crate::procfs::Procfs;

const SMAPS: &str = "smaps";
const KIB: u64 = 1024;

/// What lies behind a mapping, as far as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MappingKind {
    /// A file, or a device.
    File,
    /// `[heap]`: what `brk` gave; glibc's first arena.
    Heap,
    /// `[stack]`: of the main thread. Stacks of other threads are anonymous.
    Stack,
    /// No file: `mmap`ed memory, further arenas, thread stacks, and the `.bss` of libraries.
    Anon,
    /// Shared memory: `/dev/shm`, `memfd`, System V, shared anonymous mappings.
    Shmem,
    /// The kernel's own: `[vdso]`, `[vvar]`, `[vsyscall]`.
    Special,
}

impl MappingKind {
    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::Anon => "anon",
            Self::Shmem => "shmem",
            Self::Special => "special",
        }
    }

    fn of(name: &str) -> Self {
        const SHARED: [&str; 4] = ["/dev/shm/", "/memfd:", "/SYSV", "/dev/zero"];
        match name {
            "" => Self::Anon,
            "[heap]" => Self::Heap,
            "[stack]" => Self::Stack,
            _ if name.starts_with("[anon_shmem:") => Self::Shmem,
            _ if name.starts_with("[anon:") => Self::Anon,
            _ if name.starts_with('[') => Self::Special,
            _ if SHARED.iter().any(|prefix| name.starts_with(prefix)) => Self::Shmem,
            _ => Self::File,
        }
    }
}

/// All mappings of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// What lies behind it.
    pub kind: MappingKind,
    /// The file as the kernel names it (` (deleted)` included), `[heap]`, `[stack]`, `[anon:…]`, or `[anon]`
    /// where the kernel has no name.
    pub name: String,
    /// How many mappings were summed.
    pub mappings: usize,
    /// `Size`: address space.
    pub size_bytes: u64,
    /// `Rss`: resident pages, each in full.
    pub rss_bytes: u64,
    /// `Pss`: resident pages, each divided by the number of processes that map it.
    pub pss_bytes: u64,
    /// `Anonymous`: resident pages that belong to no file, such as written pages of a private file mapping.
    pub anon_bytes: u64,
    /// `Swap`.
    pub swap_bytes: u64,
}

impl Procfs {
    /// The mappings of process `pid`, summed by name, largest `Rss` first. The kernel walks every page table:
    /// milliseconds per GiB.
    ///
    /// # Errors
    /// [`ProcError::Vanished`], [`ProcError::Denied`] without ptrace rights, and whatever does not parse.
    pub fn smaps(&self, pid: u32) -> Result<Vec<Mapping>, ProcError> {
        parse_smaps(&self.read(pid, SMAPS)?)
    }
}

/// Parse the text of `/proc/<pid>/smaps`.
///
/// # Errors
/// [`ProcError::BadField`]. An empty text (a zombie, a kernel thread) is no mapping at all.
pub fn parse_smaps(text: &str) -> Result<Vec<Mapping>, ProcError> {
    let mut by_name: BTreeMap<&str, Mapping> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if line.starts_with(|first: char| first.is_ascii_hexdigit() && !first.is_ascii_uppercase())
        {
            // `from-to permissions offset device inode   name`; the name may hold blanks.
            let mut rest = line;
            for _ in 0..5 {
                rest = rest.trim_start_matches(' ');
                rest = &rest[rest.find(' ').unwrap_or(rest.len())..];
            }
            let name = rest.trim_start_matches(' ');
            let mapping = by_name.entry(name).or_insert_with(|| Mapping {
                kind: MappingKind::of(name),
                name: if name.is_empty() { "[anon]" } else { name }.to_owned(),
                mappings: 0,
                size_bytes: 0,
                rss_bytes: 0,
                pss_bytes: 0,
                anon_bytes: 0,
                swap_bytes: 0,
            });
            mapping.mappings += 1;
            current = Some(name);
            continue;
        }
        let (Some((key, found)), Some(name)) = (line.split_once(':'), current) else {
            continue;
        };
        let Some(mapping) = by_name.get_mut(name) else {
            continue;
        };
        let (field, sum) = match key {
            "Size" => ("Size", &mut mapping.size_bytes),
            "Rss" => ("Rss", &mut mapping.rss_bytes),
            "Pss" => ("Pss", &mut mapping.pss_bytes),
            "Anonymous" => ("Anonymous", &mut mapping.anon_bytes),
            "Swap" => ("Swap", &mut mapping.swap_bytes),
            _ => continue,
        };
        let kib: u64 = found
            .trim()
            .strip_suffix("kB")
            .and_then(|number| number.trim_end().parse().ok())
            .ok_or_else(|| ProcError::BadField {
                file: SMAPS,
                field,
                found: found.trim().to_owned(),
            })?;
        *sum = sum.saturating_add(kib.saturating_mul(KIB));
    }
    let mut mappings: Vec<Mapping> = by_name.into_values().collect();
    mappings.sort_by(|a, b| b.rss_bytes.cmp(&a.rss_bytes).then(a.name.cmp(&b.name)));
    Ok(mappings)
}
