//! A process and all its descendants.

use std::collections::{HashMap, HashSet};

use crate::error::ProcError;
use crate::memory::{SmapsRollup, StatusMemory};
use crate::procfs::{Detail, ProcessMemory, Procfs};

/// Memory of a process tree. Processes are read one after another while they run: a page that moves or is
/// freed in between may be counted twice or not at all.
#[derive(Clone, Debug)]
pub struct TreeMemory {
    /// The root first, then its descendants level by level.
    pub processes: Vec<ProcessMemory>,
    /// Processes that ended between being listed and being read. Their memory is in no sum.
    pub vanished: usize,
    /// Processes or files that could not be read. Their memory is in no sum.
    pub problems: Vec<Problem>,
}

/// Something of one process that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The process.
    pub pid: u32,
    /// Why, as a sentence.
    pub why: String,
}

impl TreeMemory {
    /// Sums of the `status` lines over the tree. File and shared-memory pages that several processes map
    /// are counted once for each.
    #[must_use]
    pub fn status(&self) -> StatusMemory {
        self.processes
            .iter()
            .fold(StatusMemory::default(), |sum, process| {
                sum.plus(&process.status)
            })
    }

    /// Sums of the `smaps_rollup` lines over the tree. `None` unless every process in the tree could be
    /// read: a sum with a hole is not the tree's.
    #[must_use]
    pub fn rollup(&self) -> Option<SmapsRollup> {
        if !self.problems.is_empty() {
            return None;
        }
        self.processes
            .iter()
            .map(|process| process.rollup)
            .try_fold(SmapsRollup::EMPTY, |sum, rollup| Some(sum.plus(&rollup?)))
    }
}

impl Procfs {
    /// Memory of `root` and of every process that descends from it.
    ///
    /// The tree is found from one pass over the parents of all processes. A process whose parent has ended
    /// belongs to init (or to a subreaper) and is no longer in the tree.
    ///
    /// # Errors
    /// When `root` itself cannot be read. What goes wrong with a descendant is counted in the result.
    pub fn tree_memory(&self, root: u32, detail: Detail) -> Result<TreeMemory, ProcError> {
        let first = self.process_memory(root, detail)?;
        Ok(self.with_descendants(first, &self.children_by_parent()?, detail))
    }

    fn with_descendants(
        &self,
        root: ProcessMemory,
        children: &HashMap<u32, Vec<u32>>,
        detail: Detail,
    ) -> TreeMemory {
        // A process number used again while the parents were read could close a circle.
        let mut seen = HashSet::from([root.pid]);
        let mut level = vec![root.pid];
        let mut tree = TreeMemory {
            processes: vec![root],
            vanished: 0,
            problems: Vec::new(),
        };
        while !level.is_empty() {
            let below: Vec<u32> = level
                .iter()
                .filter_map(|parent| children.get(parent))
                .flatten()
                .copied()
                .filter(|&pid| seen.insert(pid))
                .collect();
            for &pid in &below {
                match self.process_memory(pid, detail) {
                    Ok(process) => tree.processes.push(process),
                    Err(ProcError::Vanished { .. }) => tree.vanished += 1,
                    Err(why) => tree.problems.push(Problem {
                        pid,
                        why: why.to_string(),
                    }),
                }
            }
            level = below;
        }
        for process in &tree.processes {
            if let Some(why) = &process.unreadable {
                tree.problems.push(Problem {
                    pid: process.pid,
                    why: why.clone(),
                });
            }
        }
        tree
    }

    pub(crate) fn children_by_parent(&self) -> Result<HashMap<u32, Vec<u32>>, ProcError> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for pid in self.pids()? {
            // Gone or hidden: not a readable descendant of ours either way.
            if let Ok(stat) = self.read(pid, "stat")
                && let Some(parent) = parse_stat_ppid(&stat)
            {
                children.entry(parent).or_default().push(pid);
            }
        }
        Ok(children)
    }
}

/// The parent in a `/proc/<pid>/stat` text: `pid (name) state ppid …`. The name may hold anything, closing
/// parentheses and blanks included, so the *last* parenthesis ends it.
#[must_use]
pub fn parse_stat_ppid(text: &str) -> Option<u32> {
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_process_that_is_gone_is_counted() {
        let procfs = Procfs::default();
        let me = std::process::id();
        // The kernel's process numbers end at 2^22.
        let children = HashMap::from([(me, vec![u32::MAX, u32::MAX - 1])]);
        let root = procfs.process_memory(me, Detail::Rss).unwrap();
        let tree = procfs.with_descendants(root, &children, Detail::Rss);
        assert_eq!(
            (tree.processes.len(), tree.vanished, tree.problems.len()),
            (1, 2, 0)
        );
    }
}
