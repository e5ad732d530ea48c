//! A made-up proc file system in a temporary folder.
//!
//! A file of it that is emptied reads like that of a process that has ended: what is open stays open.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed at the end.
pub struct MadeProc(PathBuf);

/// One process or thread to be written.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    pub pid: u32,
    pub ppid: u32,
    pub name: &'a str,
    pub state: char,
    /// `None`: no memory of its own.
    pub anon_kib: Option<u64>,
    pub threads: u32,
    pub ticks: u64,
    pub waited_ticks: u64,
    pub start: u64,
    pub core: u32,
    pub allowed: &'a str,
}

/// Process 10, child of 1.
pub const TASK: Task<'static> = Task {
    pid: 10,
    ppid: 1,
    name: "x) y",
    state: 'S',
    anon_kib: Some(1000),
    threads: 1,
    ticks: 0,
    waited_ticks: 0,
    start: 1,
    core: 0,
    allowed: "0-1",
};

impl Task<'_> {
    fn status(&self, tgid: u32) -> String {
        let memory = self.anon_kib.map_or_else(String::new, |anon| {
            format!(
                "VmRSS:\t{} kB\nRssAnon:\t{anon} kB\nRssFile:\t     20 kB\nRssShmem:\t      3 kB\n\
                 VmSwap:\t      1 kB\n",
                anon + 23
            )
        });
        format!(
            "Name:\t{}\nUmask:\t0022\nState:\t{} (some)\nTgid:\t{tgid}\nNgid:\t0\nPid:\t{}\nPPid:\t{}\n\
             {memory}Threads:\t{}\nCpus_allowed:\t3\nCpus_allowed_list:\t{}\n",
            self.name.replace('\n', "\\n"),
            self.state,
            self.pid,
            self.ppid,
            self.threads,
            self.allowed
        )
    }

    fn stat(&self) -> String {
        // Fields 5 to 13, then 23 to 38, are not looked at.
        format!(
            "{} ({}) {} {} {}{} 0 {} 0 20 0 {} 0 {} {}{} 0 0 0 0\n",
            self.pid,
            self.name,
            self.state,
            self.ppid,
            "7 ".repeat(9),
            self.ticks,
            self.waited_ticks,
            self.threads,
            self.start,
            "8 ".repeat(16),
            self.core,
        )
    }
}

impl MadeProc {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("made-proc-{}-{number}", std::process::id()));
        fs::create_dir(&root).unwrap();
        Self(root)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and the folders above it, in place: who has it open reads the new text.
    pub fn write(&self, file: &str, text: &str) -> &Self {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Writes or rewrites a process with one thread.
    pub fn process(&self, task: Task<'_>) -> &Self {
        self.write(&format!("{}/status", task.pid), &task.status(task.pid));
        self.write(&format!("{}/stat", task.pid), &task.stat());
        self.thread(task.pid, task)
    }

    /// Writes or rewrites a thread: only its own files below the process.
    pub fn thread(&self, process: u32, task: Task<'_>) -> &Self {
        self.write(&format!("{process}/task/{}/stat", task.pid), &task.stat());
        if process != task.pid {
            // The kernel opens a thread's number like a process's, though no listing shows it.
            self.write(&format!("{}/status", task.pid), &task.status(process));
        }
        self
    }

    /// Ends a process: what is open reads nothing, its folder is gone.
    pub fn end(&self, pid: u32) -> &Self {
        for file in ["status", "stat"] {
            self.write(&format!("{pid}/{file}"), "");
        }
        fs::remove_dir_all(self.0.join(pid.to_string())).unwrap();
        self
    }

    /// The number given out last.
    pub fn newest(&self, pid: u32) -> &Self {
        self.write("loadavg", &format!("0.14 0.30 0.84 1/91 {pid}\n"))
    }

    /// `/proc/stat` of cores that were busy, idle and stolen for so many ticks.
    pub fn cores(&self, cores: &[(u32, [u64; 3])]) -> &Self {
        let mut text = String::from("cpu  9 9 9 9 9 9 9 9 0 0\n");
        for (core, [busy, idle, steal]) in cores {
            text += &format!("cpu{core} {busy} 0 0 {idle} 0 0 0 {steal} 0 0\n");
        }
        self.write("stat", &(text + "intr 5 0 1\nctxt 7\nprocesses 3\n"))
    }
}

impl Drop for MadeProc {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}
