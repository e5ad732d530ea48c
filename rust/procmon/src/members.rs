//! Which processes are in a tree, followed over time at little cost.
//!
//! Files of members stay open: a number that is used again is never taken for the process that had it.
//! New processes are looked for only after the kernel gave out a number (the last field of `loadavg`), and
//! among those numbers alone; every second or so all of `/proc` is read, for what that may have missed.
//! A process that is in the tree stays until it ends, also when its parent ends before it. One whose parent
//! ended before it was ever seen (a daemon that forks twice within an interval) is not found.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::error::ProcError;
use crate::procfs::Procfs;
use crate::status_sample::StatusSample;
use crate::task_stat::TaskStat;
use crate::tree::Problem;

/// More numbers than this are looked for in a listing of `/proc`.
const MOST_CANDIDATES: u32 = 128;

/// A number is given out shortly before its files appear: so often it is looked for.
const LOOKS: u8 = 3;

/// All of `/proc` is read no more often than this …
const SHORTEST_RESCAN: Duration = Duration::from_secs(1);
/// … and takes at most this part of the time.
const RESCAN_SHARE: u32 = 500;

/// Enough for `status` on the largest machines; what is read lies at its beginning.
const BUFFER_BYTES: usize = 16 << 10;

struct Member {
    pid: u32,
    status: File,
    stat: File,
}

/// The living processes of a tree.
pub(crate) struct Members {
    procfs: Procfs,
    /// Parents before children.
    members: Vec<Member>,
    /// Open: only its last field is read, fifty times a second.
    loadavg: Option<File>,
    newest_pid: Option<u32>,
    unseen: Vec<(u32, u8)>,
    next_rescan: Instant,
    buffer: Vec<u8>,
    ended: usize,
    problems: Vec<Problem>,
}

impl Members {
    /// `root` and its descendants. `start_ticks`, when given, must be the root's.
    pub(crate) fn of(
        procfs: Procfs,
        root: u32,
        start_ticks: Option<u64>,
    ) -> Result<Self, ProcError> {
        let mut members = Self {
            loadavg: procfs.open_loadavg(),
            newest_pid: None,
            procfs,
            members: Vec::new(),
            unseen: Vec::new(),
            next_rescan: Instant::now(),
            buffer: vec![0; BUFFER_BYTES],
            ended: 0,
            problems: Vec::new(),
        };
        let member = members.open(root)?;
        let found = members.stat_of(&member)?.start_ticks;
        if start_ticks.is_some_and(|expected| expected != found) {
            return Err(ProcError::Vanished { pid: root });
        }
        members.members.push(member);
        // Before the listing: what comes after it is looked for.
        members.newest_pid = members.read_newest_pid();
        members.rescan();
        Ok(members)
    }

    /// Processes of the tree that ended while it was followed.
    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// What could not be read, each reason of a process once.
    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether every process of the tree has ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// `status` of every process that is in the tree now, new ones included.
    pub(crate) fn each_status(&mut self, mut visit: impl FnMut(u32, &StatusSample<'_>)) {
        let known = self.members.len();
        self.visit_status(0, known, &mut visit);
        let before = self.members.len();
        self.find_new();
        self.visit_status(before, self.members.len(), &mut visit);
    }

    /// `stat` of every process in the tree, parents before children: a child that is waited for in between is
    /// missed once, not counted twice.
    pub(crate) fn each_stat(&mut self, mut visit: impl FnMut(&TaskStat)) {
        let mut ended = Vec::new();
        for (at, member) in self.members.iter().enumerate() {
            match read(&member.stat, &mut self.buffer) {
                Ok(text) => match TaskStat::parse(&String::from_utf8_lossy(text)) {
                    Ok(stat) => visit(&stat),
                    Err(why) => note(&mut self.problems, member.pid, &why),
                },
                Err(source) => match self.procfs.failed(member.pid, "stat", source) {
                    ProcError::Vanished { .. } => ended.push(at),
                    why => note(&mut self.problems, member.pid, &why),
                },
            }
        }
        self.remove(&ended);
    }

    /// Numbers of the processes in the tree.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.pid)
    }

    fn visit_status(
        &mut self,
        from: usize,
        to: usize,
        visit: &mut impl FnMut(u32, &StatusSample<'_>),
    ) {
        let mut ended = Vec::new();
        for at in from..to {
            let member = &self.members[at];
            match read(&member.status, &mut self.buffer) {
                Ok(text) => match StatusSample::parse(text) {
                    Ok(status) => visit(member.pid, &status),
                    Err(why) => note(&mut self.problems, member.pid, &why),
                },
                Err(source) => match self.procfs.failed(member.pid, "status", source) {
                    ProcError::Vanished { .. } => ended.push(at),
                    why => note(&mut self.problems, member.pid, &why),
                },
            }
        }
        self.remove(&ended);
    }

    fn remove(&mut self, ended: &[usize]) {
        for at in ended.iter().rev() {
            self.members.remove(*at);
            self.ended += 1;
        }
    }

    fn find_new(&mut self) {
        let newest = self.read_newest_pid();
        for (pid, looks) in std::mem::take(&mut self.unseen) {
            self.look_at(pid, looks);
        }
        let candidates = match (self.newest_pid, newest) {
            // An empty range when none was given out.
            (Some(before), Some(now)) if now >= before && now - before <= MOST_CANDIDATES => {
                Some(before + 1..now + 1)
            }
            // Many, or numbers start again from the lowest, or this kernel does not tell.
            _ => None,
        };
        // Without `loadavg` every round would be a rescan: then the clock decides.
        let must_rescan = candidates.is_none() && newest.is_some();
        self.newest_pid = newest;
        for pid in candidates.into_iter().flatten() {
            self.look_at(pid, LOOKS);
        }
        if must_rescan || Instant::now() >= self.next_rescan {
            self.rescan();
        }
    }

    /// The number given to a process or thread last, in the reader's pid namespace: the last field of
    /// `loadavg`. As long as it stands, there is no new process.
    fn read_newest_pid(&mut self) -> Option<u32> {
        let text = read(self.loadavg.as_ref()?, &mut self.buffer).ok()?;
        let last = text.trim_ascii_end().rsplit(|byte| *byte == b' ').next()?;
        std::str::from_utf8(last).ok()?.parse().ok()
    }

    fn look_at(&mut self, pid: u32, looks: u8) {
        match self.adopt(pid) {
            Ok(()) => {}
            Err(ProcError::Vanished { .. }) if looks > 1 => self.unseen.push((pid, looks - 1)),
            Err(ProcError::Vanished { .. }) => {}
            Err(why) => note(&mut self.problems, pid, &why),
        }
    }

    /// Makes `pid` a member when it is a process whose parent is one.
    fn adopt(&mut self, pid: u32) -> Result<(), ProcError> {
        if self.members.iter().any(|member| member.pid == pid) {
            return Ok(());
        }
        let status = match self.procfs.open(pid, "status") {
            Ok(status) => status,
            // Another user's process where those are hidden: whether it is in the tree cannot be told.
            Err(ProcError::Denied { .. }) => return Ok(()),
            Err(why) => return Err(why),
        };
        let text = read(&status, &mut self.buffer)
            .map_err(|source| self.procfs.failed(pid, "status", source))?;
        let sample = StatusSample::parse(text)?;
        let parent = sample.ppid;
        // Threads have numbers of their own, and files under them.
        if sample.tgid != pid || !self.members.iter().any(|member| member.pid == parent) {
            return Ok(());
        }
        let stat = self.procfs.open(pid, "stat")?;
        self.members.push(Member { pid, status, stat });
        Ok(())
    }

    fn open(&self, pid: u32) -> Result<Member, ProcError> {
        Ok(Member {
            pid,
            status: self.procfs.open(pid, "status")?,
            stat: self.procfs.open(pid, "stat")?,
        })
    }

    fn stat_of(&mut self, member: &Member) -> Result<TaskStat, ProcError> {
        let text = read(&member.stat, &mut self.buffer)
            .map_err(|source| self.procfs.failed(member.pid, "stat", source))?;
        TaskStat::parse(&String::from_utf8_lossy(text))
    }

    fn rescan(&mut self) {
        let start = Instant::now();
        match self.procfs.children_by_parent() {
            Ok(children) => {
                let mut at = 0;
                while let Some(member) = self.members.get(at) {
                    for pid in children.get(&member.pid).into_iter().flatten() {
                        // One that has ended since it was listed is none any more.
                        self.look_at(*pid, 1);
                    }
                    at += 1;
                }
            }
            Err(why) => note(&mut self.problems, 0, &why),
        }
        let now = Instant::now();
        let rest = now.duration_since(start).saturating_mul(RESCAN_SHARE);
        self.next_rescan = now + rest.max(SHORTEST_RESCAN);
    }
}

/// The beginning of an open file of `/proc`, generated anew.
fn read<'b>(file: &File, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    let count = file.read_at(buffer, 0)?;
    if count == 0 {
        // What a process that has ended leaves behind in some kernels.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(&buffer[..count])
}

fn note(problems: &mut Vec<Problem>, pid: u32, why: &ProcError) {
    let problem = Problem {
        pid,
        why: why.to_string(),
    };
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made_proc::{MadeProc, TASK, Task};

    fn followed(members: &mut Members) -> Vec<u32> {
        let mut pids = Vec::new();
        members.each_status(|pid, _| pids.push(pid));
        pids
    }

    fn child(pid: u32, ppid: u32) -> Task<'static> {
        Task { pid, ppid, ..TASK }
    }

    #[test]
    fn descendants_are_found_by_the_numbers_given_out() {
        let made = MadeProc::new();
        made.process(TASK).process(child(11, 10)).newest(11);
        let mut members = Members::of(Procfs::at(made.path()), 10, None).unwrap();
        assert_eq!(followed(&mut members), [10, 11]);
        made.process(child(12, 11))
            .process(child(13, 12))
            .process(child(14, 1))
            .newest(14);
        assert_eq!(followed(&mut members), [10, 11, 12, 13]);
        assert_eq!(followed(&mut members), [10, 11, 12, 13]);
    }

    #[test]
    fn numbers_that_start_again_or_jump_are_found_in_a_listing() {
        for newest in [5, 4000] {
            let made = MadeProc::new();
            made.process(TASK).newest(3000);
            let mut members = Members::of(Procfs::at(made.path()), 10, None).unwrap();
            made.process(child(5, 10)).newest(newest);
            assert_eq!(followed(&mut members), [10, 5]);
        }
    }

    #[test]
    fn a_process_whose_files_appear_late_is_found() {
        let made = MadeProc::new();
        made.process(TASK).newest(10);
        let mut members = Members::of(Procfs::at(made.path()), 10, None).unwrap();
        made.newest(11);
        assert_eq!(followed(&mut members), [10]);
        made.process(child(11, 10));
        assert_eq!(followed(&mut members), [10, 11]);
    }

    #[test]
    fn without_loadavg_the_clock_decides() {
        let made = MadeProc::new();
        made.process(TASK);
        let mut members = Members::of(Procfs::at(made.path()), 10, None).unwrap();
        made.process(child(11, 10));
        members.next_rescan = Instant::now();
        assert_eq!(followed(&mut members), [10, 11]);
    }

    #[test]
    fn a_child_stays_when_its_parent_ends() {
        let made = MadeProc::new();
        made.process(TASK)
            .process(child(11, 10))
            .process(child(12, 11))
            .newest(12);
        let mut members = Members::of(Procfs::at(made.path()), 10, None).unwrap();
        made.end(11).process(child(12, 1));
        assert_eq!(followed(&mut members), [10, 12]);
        assert_eq!(members.ended(), 1);
    }

    #[test]
    fn a_number_used_again_is_not_the_process_that_had_it() {
        let made = MadeProc::new();
        made.process(TASK).process(child(11, 10)).newest(11);
        let mut members = Members::of(Procfs::at(made.path()), 10, None).unwrap();
        made.end(11).process(child(11, 1));
        assert_eq!(followed(&mut members), [10]);
        // The same number again, this time in the tree.
        made.process(child(11, 10)).newest(9).newest(11);
        members.next_rescan = Instant::now();
        assert_eq!(followed(&mut members), [10, 11]);
        assert_eq!(members.ended(), 1);
    }

    #[test]
    fn what_cannot_be_read_is_reported_once_and_stays() {
        let made = MadeProc::new();
        made.process(TASK).process(child(11, 10)).newest(11);
        let mut members = Members::of(Procfs::at(made.path()), 10, None).unwrap();
        made.write("11/status", "Name:\tx\n");
        for _ in 0..3 {
            assert_eq!(followed(&mut members), [10]);
        }
        assert_eq!(
            members.problems(),
            [Problem {
                pid: 11,
                why: "status has no line State: expected on Linux 4.14 or newer".to_owned()
            }]
        );
        assert_eq!(members.ended(), 0);
    }

    #[test]
    fn refusals_and_ends_are_told_apart() {
        let procfs = Procfs::at("/nowhere");
        let of = |code| procfs.failed(7, "status", io::Error::from_raw_os_error(code));
        for refused in [libc::EPERM, libc::EACCES] {
            assert!(matches!(of(refused), ProcError::Denied { pid: 7, .. }));
        }
        for ended in [libc::ESRCH, libc::ENOENT] {
            assert!(matches!(of(ended), ProcError::Vanished { pid: 7 }));
        }
        assert!(matches!(of(libc::EMFILE), ProcError::Io { .. }));
    }
}
