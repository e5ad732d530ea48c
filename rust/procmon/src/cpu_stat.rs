//! `/proc/stat`, parsed: what each core did since boot.

use std::collections::BTreeMap;

use crate::error::ProcError;

const CPU_STAT: &str = "/proc/stat";

/// Kernel clock ticks of one core since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTicks {
    /// `user + nice + system + irq + softirq`. Guests are in `user` already.
    pub busy: u64,
    /// `idle + iowait`: nothing wanted to run.
    pub idle: u64,
    /// `steal`: something wanted to run and the hypervisor ran somebody else. 0 where the hypervisor does not
    /// tell.
    pub steal: u64,
}

impl CoreTicks {
    /// From `earlier` to this. The kernel lets idle times run backwards now and then: that counts as none.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(earlier.busy),
            idle: self.idle.saturating_sub(earlier.idle),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            busy: self.busy + other.busy,
            idle: self.idle + other.idle,
            steal: self.steal + other.steal,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.busy + self.idle + self.steal
    }
}

/// The `cpuN` lines of `/proc/stat`; a core that is offline has none.
///
/// # Errors
/// [`ProcError::BadField`] for a line that is not numbers, [`ProcError::MissingField`] without any line.
pub fn parse_cores(text: &str) -> Result<BTreeMap<u32, CoreTicks>, ProcError> {
    let mut cores = BTreeMap::new();
    for line in text.lines() {
        let Some((number, ticks)) = line
            .strip_prefix("cpu")
            .and_then(|rest| rest.split_once(' '))
        else {
            // The lines of the cores come first.
            break;
        };
        if number.is_empty() {
            continue;
        }
        let bad = || ProcError::BadField {
            file: CPU_STAT,
            field: "cpu",
            found: line.to_owned(),
        };
        let core: u32 = number.parse().map_err(|_| bad())?;
        let fields = ticks
            .split_ascii_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()
            .map_err(|_| bad())?;
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = fields[..] else {
            return Err(bad());
        };
        cores.insert(
            core,
            CoreTicks {
                busy: user + nice + system + irq + softirq,
                idle: idle + iowait,
                steal,
            },
        );
    }
    if cores.is_empty() {
        return Err(ProcError::MissingField {
            file: CPU_STAT,
            field: "cpu0",
        });
    }
    Ok(cores)
}
