//! What processes hold and who runs where, from Linux `/proc`; `malloc_trim` with before and after.
//!
//! Which kernel field each number comes from:
//!
//! | number | file, line | means |
//! |---|---|---|
//! | `rss_anon_bytes` | `status`, `RssAnon` | resident anonymous pages: heap, stacks, private mappings without a file |
//! | `rss_file_bytes` | `status`, `RssFile` | resident pages of mapped files, counted in full by every process that maps them |
//! | `rss_shmem_bytes` | `status`, `RssShmem` | resident shared memory (tmpfs, `/dev/shm`, shared anonymous), counted in full likewise |
//! | `vm_swap_bytes` | `status`, `VmSwap` | anonymous pages swapped out |
//! | `pss_bytes`, `pss_anon_bytes`, … | `smaps_rollup`, `Pss`, `Pss_Anon`, … | each page divided by the number of processes that map it: sums over a tree without counting twice |
//! | `private_clean_bytes`, … | `smaps_rollup`, `Private_*` | pages that only this process maps |
//!
//! `status` costs microseconds. `smaps_rollup` walks every page table of the process (milliseconds per GiB)
//! and needs ptrace rights; [`Detail`] says whether it is read. After a fork, copy-on-write pages are in
//! `RssAnon` of parent and child both: a sum of `RssAnon` over a tree is an upper bound, a sum of
//! `Pss_Anon` is exact. The counters behind `status` are kept per CPU and may lag by some pages per thread.
//!
//! Time on cores is described in [`occupancy`](mod@occupancy), control groups in [`cgroup`].
//!
//! Parsing takes text and is separate from reading ([`Procfs`]).

mod background;
pub mod cgroup;
mod core_list;
pub mod cpu_stat;
pub mod error;
#[cfg(test)]
#[path = "../tests/made_proc/mod.rs"]
mod made_proc;
mod members;
pub mod memory;
pub mod memory_policy;
pub mod occupancy;
pub mod occupancy_watch;
mod os;
pub mod procfs;
pub mod smaps;
pub mod status_sample;
mod task_ledger;
pub mod task_stat;
pub mod tree;
pub mod tree_sampler;
pub mod trim;

pub use cgroup::{CgroupLimits, Cgroups};
pub use cpu_stat::{CoreTicks, parse_cores};
pub use error::ProcError;
pub use memory::{SmapsRollup, Status, StatusMemory};
pub use memory_policy::{bind_memory_to_nodes, unbind_memory};
pub use occupancy::{CoreUse, Observation, Occupancy, ProcessUse, occupancy};
pub use occupancy_watch::{OccupancyWatch, Watch, WatchResult};
pub use procfs::{Detail, ProcessMemory, Procfs};
pub use smaps::{Mapping, MappingKind, parse_smaps};
pub use status_sample::StatusSample;
pub use task_stat::TaskStat;
pub use tree::{Problem, TreeMemory};
pub use tree_sampler::{TreePoint, TreeSampler, TreeSamples};
pub use trim::{TrimResult, malloc_trim};
