//! Occupancy of cores for Python.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::procmon::{Cgroups, Procfs};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::procmon::to_py_err;
use crate::tree_sampler::{not_running, seconds};

/// Shares of one core over a window.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct CoreUse {
    busy: f64,
    steal: f64,
    foreign: f64,
}

/// A foreign process on a core.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct ProcessUse {
    pid: u32,
    name: String,
    core: u32,
    share: f64,
}

/// What cores did over a window.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct Occupancy {
    cores: BTreeMap<u32, Py<CoreUse>>,
    processes: Vec<Py<ProcessUse>>,
    window_s: f64,
    cpu_ns: u64,
}

/// What disturbed a program on its cores.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct WatchResult {
    steal: f64,
    foreign: f64,
    foreign_by_core: BTreeMap<u32, f64>,
    processes: Vec<String>,
    throttled_s: f64,
    samples: u64,
    cpu_ns: u64,
    wall_s: f64,
}

/// Watches cores from a Rust thread while a program runs on them.
#[pyclass(frozen, module = "vllm_omni._rust")]
struct OccupancyWatch {
    cores: Vec<u32>,
    own_root_pid: u32,
    interval: Duration,
    running: Mutex<Option<::procmon::OccupancyWatch>>,
}

#[pymethods]
impl CoreUse {
    fn __repr__(&self) -> String {
        format!(
            "CoreUse(busy={:.3}, steal={:.3}, foreign={:.3})",
            self.busy, self.steal, self.foreign
        )
    }
}

#[pymethods]
impl ProcessUse {
    fn __repr__(&self) -> String {
        format!(
            "ProcessUse(pid={}, name={:?}, core={}, share={:.3})",
            self.pid, self.name, self.core, self.share
        )
    }

    /// As in the list of a `WatchResult`.
    fn __str__(&self) -> String {
        ::procmon::ProcessUse {
            pid: self.pid,
            name: self.name.clone(),
            core: self.core,
            share: self.share,
        }
        .to_string()
    }
}

#[pymethods]
impl WatchResult {
    fn __repr__(&self) -> String {
        format!(
            "WatchResult(steal={:.3}, foreign={:.3}, processes={:?}, throttled_s={}, samples={}, \
             cpu_ns={}, wall_s={:.2})",
            self.steal,
            self.foreign,
            self.processes,
            self.throttled_s,
            self.samples,
            self.cpu_ns,
            self.wall_s
        )
    }
}

#[pymethods]
impl OccupancyWatch {
    #[new]
    #[pyo3(signature = (cores, own_root_pid, interval_s=0.5))]
    fn new(cores: Vec<u32>, own_root_pid: u32, interval_s: f64) -> PyResult<Self> {
        Ok(Self {
            cores,
            own_root_pid,
            interval: seconds("interval_s", interval_s)?,
            running: Mutex::new(None),
        })
    }

    /// Takes what later rounds are compared with and starts the thread.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        if self.running().is_some() {
            return Err(PyRuntimeError::new_err("the watch is running already"));
        }
        let started = py
            .detach(|| {
                ::procmon::OccupancyWatch::start(
                    &Procfs::default(),
                    Cgroups::default(),
                    &self.cores,
                    self.own_root_pid,
                    self.interval,
                )
            })
            .map_err(to_py_err)?;
        *self.running() = Some(started);
        Ok(())
    }

    /// Takes the last round and ends the thread.
    fn stop(&self, py: Python<'_>) -> PyResult<WatchResult> {
        let running = self.running().take().ok_or_else(not_running)?;
        let result = py.detach(|| running.stop());
        Ok(WatchResult {
            steal: result.steal,
            foreign: result.foreign,
            foreign_by_core: result.foreign_by_core,
            processes: result
                .processes
                .iter()
                .map(::procmon::ProcessUse::to_string)
                .collect(),
            throttled_s: result.throttled_s,
            samples: result.samples,
            cpu_ns: result.cpu_ns,
            wall_s: result.wall_s,
        })
    }
}

impl OccupancyWatch {
    fn running(&self) -> MutexGuard<'_, Option<::procmon::OccupancyWatch>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What `cores` did over the next `window_s`; processes of `own_pids` and below are own. Other Python threads
/// run meanwhile.
#[pyfunction]
#[pyo3(signature = (cores, window_s=0.75, own_pids=Vec::new()))]
fn occupancy(
    py: Python<'_>,
    cores: Vec<u32>,
    window_s: f64,
    own_pids: Vec<u32>,
) -> PyResult<Occupancy> {
    let window = seconds("window_s", window_s)?;
    let seen = py
        .detach(|| ::procmon::occupancy(&Procfs::default(), &cores, window, &own_pids))
        .map_err(to_py_err)?;
    Ok(Occupancy {
        cores: seen
            .cores
            .iter()
            .map(|(core, usage)| {
                let ::procmon::CoreUse {
                    busy,
                    steal,
                    foreign,
                } = *usage;
                Ok((
                    *core,
                    Py::new(
                        py,
                        CoreUse {
                            busy,
                            steal,
                            foreign,
                        },
                    )?,
                ))
            })
            .collect::<PyResult<_>>()?,
        processes: seen
            .processes
            .into_iter()
            .map(|process| {
                Py::new(
                    py,
                    ProcessUse {
                        pid: process.pid,
                        name: process.name,
                        core: process.core,
                        share: process.share,
                    },
                )
            })
            .collect::<PyResult<_>>()?,
        window_s: seen.window_s,
        cpu_ns: seen.cpu_ns,
    })
}

/// Adds this file's classes and function to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<CoreUse>()?;
    m.add_class::<ProcessUse>()?;
    m.add_class::<Occupancy>()?;
    m.add_class::<WatchResult>()?;
    m.add_class::<OccupancyWatch>()?;
    m.add_function(wrap_pyfunction!(occupancy, m)?)
}
