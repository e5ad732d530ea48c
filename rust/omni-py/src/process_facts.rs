//! Identity, mappings, limits and memory policy of processes, for Python.

use std::io;

use ::procmon::{Cgroups, Procfs};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::procmon::to_py_err;

/// What control groups allow a process.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct CgroupLimits {
    version: Option<u8>,
    cpu_quota_cores: Option<f64>,
    memory_limit_bytes: Option<u64>,
    cpuset: Option<String>,
}

#[pymethods]
impl CgroupLimits {
    fn __repr__(&self) -> String {
        format!(
            "<cgroup limits: version {:?}, cpu_quota_cores {:?}, memory_limit_bytes {:?}, cpuset {:?}>",
            self.version, self.cpu_quota_cores, self.memory_limit_bytes, self.cpuset
        )
    }
}

/// All mappings of one name.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct Mapping {
    kind: &'static str,
    name: String,
    mappings: usize,
    size_bytes: u64,
    rss_bytes: u64,
    pss_bytes: u64,
    anon_bytes: u64,
    swap_bytes: u64,
}

#[pymethods]
impl Mapping {
    fn __repr__(&self) -> String {
        format!(
            "Mapping(kind='{}', name={:?}, rss_bytes={}, pss_bytes={}, anon_bytes={})",
            self.kind, self.name, self.rss_bytes, self.pss_bytes, self.anon_bytes
        )
    }
}

/// What control groups allow process `pid`.
#[pyfunction]
fn cgroup_limits(py: Python<'_>, pid: u32) -> PyResult<CgroupLimits> {
    let limits = py
        .detach(|| Cgroups::default().limits(pid))
        .map_err(to_py_err)?;
    Ok(CgroupLimits {
        version: limits.version,
        cpu_quota_cores: limits.cpu_quota_cores,
        memory_limit_bytes: limits.memory_limit_bytes,
        cpuset: limits.cpuset,
    })
}

/// Time that the control groups of process `pid` waited for their quota.
#[pyfunction]
fn cgroup_throttled_ns(py: Python<'_>, pid: u32) -> PyResult<Option<u64>> {
    py.detach(|| Cgroups::default().throttled_ns(pid))
        .map_err(to_py_err)
}

/// When process `pid` began, in clock ticks since boot.
#[pyfunction]
fn process_start_ticks(py: Python<'_>, pid: u32) -> PyResult<u64> {
    py.detach(|| Procfs::default().process_stat(pid))
        .map(|stat| stat.start_ticks)
        .map_err(to_py_err)
}

/// The mappings of process `pid`, summed by name.
#[pyfunction]
fn smaps_ledger(py: Python<'_>, pid: u32) -> PyResult<Vec<Mapping>> {
    let mappings = py
        .detach(|| Procfs::default().smaps(pid))
        .map_err(to_py_err)?;
    Ok(mappings
        .into_iter()
        .map(|mapping| Mapping {
            kind: mapping.kind.name(),
            name: mapping.name,
            mappings: mapping.mappings,
            size_bytes: mapping.size_bytes,
            rss_bytes: mapping.rss_bytes,
            pss_bytes: mapping.pss_bytes,
            anon_bytes: mapping.anon_bytes,
            swap_bytes: mapping.swap_bytes,
        })
        .collect())
}

/// Binds the calling thread's future memory to nodes.
#[pyfunction]
fn bind_memory_to_nodes(nodes: Vec<u32>) -> PyResult<()> {
    ::procmon::bind_memory_to_nodes(&nodes).map_err(os_error)
}

/// Gives the calling thread the default memory policy.
#[pyfunction]
fn unbind_memory() -> PyResult<()> {
    ::procmon::unbind_memory().map_err(os_error)
}

/// With its `errno`, which also decides the subclass.
fn os_error(error: io::Error) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), error.to_string()))
}

/// Adds this file's classes and functions to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<CgroupLimits>()?;
    m.add_class::<Mapping>()?;
    m.add_function(wrap_pyfunction!(cgroup_limits, m)?)?;
    m.add_function(wrap_pyfunction!(cgroup_throttled_ns, m)?)?;
    m.add_function(wrap_pyfunction!(process_start_ticks, m)?)?;
    m.add_function(wrap_pyfunction!(smaps_ledger, m)?)?;
    m.add_function(wrap_pyfunction!(bind_memory_to_nodes, m)?)?;
    m.add_function(wrap_pyfunction!(unbind_memory, m)?)
}
