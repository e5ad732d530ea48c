//! `procmon` for Python: frozen records and three functions.

use ::procmon::{Detail, ProcError, Procfs, SmapsRollup, StatusMemory};
use pyo3::exceptions::{
    PyFileNotFoundError, PyOSError, PyPermissionError, PyProcessLookupError, PyValueError,
};
use pyo3::prelude::*;

/// Memory of one process at one moment.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct ProcessMemory {
    pid: u32,
    ppid: u32,
    name: String,
    state: char,
    rss_anon_bytes: u64,
    rss_file_bytes: u64,
    rss_shmem_bytes: u64,
    vm_swap_bytes: u64,
    pss_bytes: Option<u64>,
    pss_anon_bytes: Option<u64>,
    pss_file_bytes: Option<u64>,
    pss_shmem_bytes: Option<u64>,
    private_clean_bytes: Option<u64>,
    private_dirty_bytes: Option<u64>,
    swap_pss_bytes: Option<u64>,
    unreadable: Option<String>,
}

/// Sums over a process and all its descendants.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct TreeMemory {
    processes: Vec<Py<ProcessMemory>>,
    vanished: usize,
    problems: Vec<(u32, String)>,
    rss_anon_bytes: u64,
    rss_file_bytes: u64,
    rss_shmem_bytes: u64,
    vm_swap_bytes: u64,
    pss_bytes: Option<u64>,
    pss_anon_bytes: Option<u64>,
    pss_file_bytes: Option<u64>,
    pss_shmem_bytes: Option<u64>,
    private_clean_bytes: Option<u64>,
    private_dirty_bytes: Option<u64>,
    swap_pss_bytes: Option<u64>,
}

/// What `malloc_trim(0)` did to this process.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct TrimResult {
    rss_anon_before_bytes: u64,
    rss_anon_after_bytes: u64,
    elapsed_ns: u64,
    released: bool,
    allocator: String,
    note: Option<String>,
}

#[pymethods]
impl ProcessMemory {
    fn __repr__(&self) -> String {
        format!(
            "ProcessMemory(pid={}, name={:?}, rss_anon_bytes={}, pss_bytes={})",
            self.pid,
            self.name,
            self.rss_anon_bytes,
            or_none(self.pss_bytes)
        )
    }
}

#[pymethods]
impl TreeMemory {
    fn __repr__(&self) -> String {
        format!(
            "TreeMemory(processes={}, rss_anon_bytes={}, pss_bytes={}, vanished={}, problems={})",
            self.processes.len(),
            self.rss_anon_bytes,
            or_none(self.pss_bytes),
            self.vanished,
            self.problems.len()
        )
    }
}

#[pymethods]
impl TrimResult {
    fn __repr__(&self) -> String {
        format!(
            "TrimResult(rss_anon_before_bytes={}, rss_anon_after_bytes={}, elapsed_ns={}, allocator={:?})",
            self.rss_anon_before_bytes, self.rss_anon_after_bytes, self.elapsed_ns, self.allocator
        )
    }
}

/// Memory of process `pid`; with `pss`, `smaps_rollup` is read as well.
#[pyfunction]
#[pyo3(signature = (pid, pss=true))]
fn process_memory(py: Python<'_>, pid: u32, pss: bool) -> PyResult<ProcessMemory> {
    py.detach(|| Procfs::default().process_memory(pid, detail(pss)))
        .map(ProcessMemory::from)
        .map_err(to_py_err)
}

/// Memory of process `pid` and of all its descendants.
#[pyfunction]
#[pyo3(signature = (pid, pss=true))]
fn tree_memory(py: Python<'_>, pid: u32, pss: bool) -> PyResult<TreeMemory> {
    let tree = py
        .detach(|| Procfs::default().tree_memory(pid, detail(pss)))
        .map_err(to_py_err)?;
    let status = tree.status();
    let rollup = tree.rollup();
    let processes = tree
        .processes
        .into_iter()
        .map(|process| Py::new(py, ProcessMemory::from(process)))
        .collect::<PyResult<_>>()?;
    Ok(TreeMemory {
        processes,
        vanished: tree.vanished,
        problems: tree
            .problems
            .into_iter()
            .map(|problem| (problem.pid, problem.why))
            .collect(),
        rss_anon_bytes: status.rss_anon_bytes,
        rss_file_bytes: status.rss_file_bytes,
        rss_shmem_bytes: status.rss_shmem_bytes,
        vm_swap_bytes: status.vm_swap_bytes,
        pss_bytes: rollup.map(|r| r.pss_bytes),
        pss_anon_bytes: rollup.and_then(|r| r.pss_anon_bytes),
        pss_file_bytes: rollup.and_then(|r| r.pss_file_bytes),
        pss_shmem_bytes: rollup.and_then(|r| r.pss_shmem_bytes),
        private_clean_bytes: rollup.map(|r| r.private_clean_bytes),
        private_dirty_bytes: rollup.map(|r| r.private_dirty_bytes),
        swap_pss_bytes: rollup.map(|r| r.swap_pss_bytes),
    })
}

/// Give this process's free heap pages back to the kernel.
#[pyfunction]
fn malloc_trim(py: Python<'_>) -> PyResult<TrimResult> {
    let trim = py.detach(::procmon::malloc_trim).map_err(to_py_err)?;
    Ok(TrimResult {
        rss_anon_before_bytes: trim.rss_anon_before_bytes,
        rss_anon_after_bytes: trim.rss_anon_after_bytes,
        elapsed_ns: trim.elapsed_ns,
        released: trim.released,
        allocator: trim.allocator,
        note: trim.note,
    })
}

/// Add this file's classes and functions to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<ProcessMemory>()?;
    m.add_class::<TreeMemory>()?;
    m.add_class::<TrimResult>()?;
    m.add_function(wrap_pyfunction!(process_memory, m)?)?;
    m.add_function(wrap_pyfunction!(tree_memory, m)?)?;
    m.add_function(wrap_pyfunction!(malloc_trim, m)?)
}

impl From<::procmon::ProcessMemory> for ProcessMemory {
    fn from(process: ::procmon::ProcessMemory) -> Self {
        let StatusMemory {
            rss_anon_bytes,
            rss_file_bytes,
            rss_shmem_bytes,
            vm_swap_bytes,
        } = process.status;
        let rollup = process.rollup;
        let of = |field: fn(&SmapsRollup) -> u64| rollup.as_ref().map(field);
        Self {
            pid: process.pid,
            ppid: process.ppid,
            name: process.name,
            state: process.state,
            rss_anon_bytes,
            rss_file_bytes,
            rss_shmem_bytes,
            vm_swap_bytes,
            pss_bytes: of(|r| r.pss_bytes),
            pss_anon_bytes: rollup.and_then(|r| r.pss_anon_bytes),
            pss_file_bytes: rollup.and_then(|r| r.pss_file_bytes),
            pss_shmem_bytes: rollup.and_then(|r| r.pss_shmem_bytes),
            private_clean_bytes: of(|r| r.private_clean_bytes),
            private_dirty_bytes: of(|r| r.private_dirty_bytes),
            swap_pss_bytes: of(|r| r.swap_pss_bytes),
            unreadable: process.unreadable,
        }
    }
}

fn detail(pss: bool) -> Detail {
    if pss { Detail::Pss } else { Detail::Rss }
}

fn or_none(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "None".to_owned(), |bytes| bytes.to_string())
}

/// Each variant is a kind of `OSError`, but a core that is not there: that is a wrong argument.
pub fn to_py_err(error: ProcError) -> PyErr {
    let line = error.to_string();
    match error {
        ProcError::Vanished { .. } => PyProcessLookupError::new_err(line),
        ProcError::Denied { .. } => PyPermissionError::new_err(line),
        ProcError::NoSuchFile { .. } => PyFileNotFoundError::new_err(line),
        ProcError::NoSuchCore { .. } => PyValueError::new_err(line),
        ProcError::Io { .. } | ProcError::MissingField { .. } | ProcError::BadField { .. } => {
            PyOSError::new_err(line)
        }
    }
}
