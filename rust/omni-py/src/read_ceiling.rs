//! Reading memory on torch's threads, for the benchmarks of the kernels.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::os::elements;
use crate::torch_abi::{self, TorchThreads};

/// Reads `memory` once and returns the sum of its 64-bit words. Other Python threads run meanwhile.
#[pyfunction]
fn read_ceiling(py: Python<'_>, memory: PyBuffer<u8>) -> PyResult<u64> {
    if !torch_abi::is_bound() {
        return Err(PyRuntimeError::new_err(
            "read_ceiling runs on torch's threads: expected register_torch_ops before it",
        ));
    }
    let bytes = elements(&memory, "memory")?;
    Ok(py.detach(|| int4_kernels::read_ceiling(bytes, &TorchThreads)))
}

/// Adds this module's functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(read_ceiling, module)?)
}
