//! `/proc/<pid>/stat` and `/proc/<pid>/task/<tid>/stat`, parsed.

use crate::error::ProcError;

const STAT: &str = "stat";

/// A process or a thread, as far as it is used. Times are in kernel clock ticks (10 ms as a rule): the
/// kernel scales them so that their sum is the exact running time, rounded down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStat {
    /// Field 1: process or thread number.
    pub id: u32,
    /// Field 2, without its parentheses: any characters.
    pub name: String,
    /// Field 3: `R`, `S`, `D`, `Z`, …
    pub state: char,
    /// Field 4: parent process.
    pub ppid: u32,
    /// Fields 14 and 15, `utime + stime`: of all threads, ended ones included, in a process's file; of one
    /// thread in a thread's.
    pub cpu_ticks: u64,
    /// Fields 16 and 17, `cutime + cstime`: of children that ended and were waited for.
    pub waited_children_ticks: u64,
    /// Field 20: threads of the process.
    pub threads: u32,
    /// Field 22, `starttime`, since boot. With the number it identifies a task for as long as the machine
    /// runs, where the number alone is used again.
    pub start_ticks: u64,
    /// Field 39: the core it ran on last. Of a process's file: its main thread's.
    pub processor: u32,
}

impl TaskStat {
    /// Parse the text of a `stat` file.
    ///
    /// # Errors
    /// [`ProcError::MissingField`] and [`ProcError::BadField`].
    pub fn parse(text: &str) -> Result<Self, ProcError> {
        let missing = |field| ProcError::MissingField { file: STAT, field };
        // The name may hold blanks and parentheses, so the last one ends it.
        let (id, rest) = text.split_once(" (").ok_or(missing("comm"))?;
        let (name, rest) = rest.rsplit_once(')').ok_or(missing("comm"))?;
        let mut fields = rest.split_ascii_whitespace().enumerate();
        let mut next = |number: usize, field: &'static str| {
            // Field 3 is the first behind the name.
            fields
                .find(|(at, _)| at + 3 == number)
                .map(|(_, found)| found)
                .ok_or(missing(field))
        };
        let state = next(3, "state")?;
        let ppid = number(next(4, "ppid")?, "ppid")?;
        let utime: u64 = number(next(14, "utime")?, "utime")?;
        let stime: u64 = number(next(15, "stime")?, "stime")?;
        // Signed in the kernel's format, never negative.
        let cutime: i64 = number(next(16, "cutime")?, "cutime")?;
        let cstime: i64 = number(next(17, "cstime")?, "cstime")?;
        let children = |ticks: i64| u64::try_from(ticks).unwrap_or(0);
        Ok(Self {
            id: number(id, "pid")?,
            name: name.to_owned(),
            state: state.chars().next().ok_or(missing("state"))?,
            ppid,
            cpu_ticks: utime.saturating_add(stime),
            waited_children_ticks: children(cutime).saturating_add(children(cstime)),
            threads: number(next(20, "num_threads")?, "num_threads")?,
            start_ticks: number(next(22, "starttime")?, "starttime")?,
            processor: number(next(39, "processor")?, "processor")?,
        })
    }
}

fn number<T: std::str::FromStr>(found: &str, field: &'static str) -> Result<T, ProcError> {
    found.parse().map_err(|_| ProcError::BadField {
        file: STAT,
        field,
        found: found.to_owned(),
    })
}
