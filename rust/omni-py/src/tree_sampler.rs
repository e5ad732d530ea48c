//! `procmon`'s tree sampler for Python.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::procmon::{Procfs, TreePoint};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::procmon::to_py_err;

/// Watches the memory of a process tree from a Rust thread.
#[pyclass(frozen, module = "vllm_omni._rust")]
struct TreeSampler {
    pid: u32,
    start_ticks: Option<u64>,
    interval: Duration,
    keep_every: Duration,
    running: Mutex<Option<::procmon::TreeSampler>>,
}

/// What a `TreeSampler` saw.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct TreeSamples {
    points: Vec<(f64, u64, u64, u64, u64, u32)>,
    peak_rss_anon_bytes: u64,
    peak_rss_file_bytes: u64,
    peak_rss_shmem_bytes: u64,
    peak_swap_bytes: u64,
    peak_processes: u32,
    peak_t_s: f64,
    last_rss_anon_bytes: u64,
    last_rss_file_bytes: u64,
    last_rss_shmem_bytes: u64,
    last_swap_bytes: u64,
    last_processes: u32,
    samples: u64,
    cpu_ns: u64,
    wall_s: f64,
    vanished: usize,
    problems: Vec<(u32, String)>,
    max_threads: u32,
    cpu_time_s: f64,
}

#[pymethods]
impl TreeSampler {
    #[new]
    #[pyo3(signature = (pid, interval_s=0.02, keep_every_s=0.1, *, start_ticks=None))]
    fn new(
        pid: u32,
        interval_s: f64,
        keep_every_s: f64,
        start_ticks: Option<u64>,
    ) -> PyResult<Self> {
        Ok(Self {
            pid,
            start_ticks,
            interval: seconds("interval_s", interval_s)?,
            keep_every: seconds("keep_every_s", keep_every_s)?,
            running: Mutex::new(None),
        })
    }

    /// Takes the first sample and starts the thread.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        if self.running().is_some() {
            return Err(PyRuntimeError::new_err("the sampler is running already"));
        }
        let started = py
            .detach(|| {
                ::procmon::TreeSampler::start(
                    Procfs::default(),
                    self.pid,
                    self.start_ticks,
                    self.interval,
                    self.keep_every,
                )
            })
            .map_err(to_py_err)?;
        *self.running() = Some(started);
        Ok(())
    }

    /// What was seen so far; the sampler goes on.
    fn so_far(&self) -> PyResult<TreeSamples> {
        match &*self.running() {
            Some(running) => Ok(running.so_far().into()),
            None => Err(not_running()),
        }
    }

    /// Takes the last sample and ends the thread.
    fn stop(&self, py: Python<'_>) -> PyResult<TreeSamples> {
        let running = self.running().take().ok_or_else(not_running)?;
        Ok(py.detach(|| running.stop()).into())
    }
}

impl TreeSampler {
    fn running(&self) -> MutexGuard<'_, Option<::procmon::TreeSampler>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl TreeSamples {
    fn __repr__(&self) -> String {
        format!(
            "TreeSamples(samples={}, peak_rss_anon_bytes={}, last_rss_anon_bytes={}, problems={})",
            self.samples,
            self.peak_rss_anon_bytes,
            self.last_rss_anon_bytes,
            self.problems.len()
        )
    }
}

impl From<::procmon::TreeSamples> for TreeSamples {
    fn from(samples: ::procmon::TreeSamples) -> Self {
        let TreePoint { memory: peak, .. } = samples.peak;
        let TreePoint { memory: last, .. } = samples.last;
        let point = |point: &TreePoint| {
            let memory = point.memory;
            (
                point.t_s,
                memory.rss_anon_bytes,
                memory.rss_file_bytes,
                memory.rss_shmem_bytes,
                memory.vm_swap_bytes,
                point.processes,
            )
        };
        Self {
            points: samples.points.iter().map(point).collect(),
            peak_rss_anon_bytes: peak.rss_anon_bytes,
            peak_rss_file_bytes: peak.rss_file_bytes,
            peak_rss_shmem_bytes: peak.rss_shmem_bytes,
            peak_swap_bytes: peak.vm_swap_bytes,
            peak_processes: samples.peak.processes,
            peak_t_s: samples.peak.t_s,
            last_rss_anon_bytes: last.rss_anon_bytes,
            last_rss_file_bytes: last.rss_file_bytes,
            last_rss_shmem_bytes: last.rss_shmem_bytes,
            last_swap_bytes: last.vm_swap_bytes,
            last_processes: samples.last.processes,
            samples: samples.samples,
            cpu_ns: samples.cpu_ns,
            wall_s: samples.wall_s,
            vanished: samples.vanished,
            problems: samples
                .problems
                .into_iter()
                .map(|problem| (problem.pid, problem.why))
                .collect(),
            max_threads: samples.max_threads,
            cpu_time_s: samples.cpu_time_s,
        }
    }
}

/// A length of time from Python.
pub fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            PyValueError::new_err(format!("{name}: expected a positive number, got {value}"))
        })
}

pub fn not_running() -> PyErr {
    PyRuntimeError::new_err("not running: call start first")
}

/// Adds this file's classes to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<TreeSampler>()?;
    m.add_class::<TreeSamples>()
}
