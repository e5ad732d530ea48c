//! Which kernels the operators really ran, on how many weights: counted in every process, always.

use int4_kernels::dense::dispatch as dense;
use int4_kernels::dispatch::{KERNEL_COUNT, KERNELS, position};
use int4_kernels::{
    CallCounts, DENSE_KERNEL_COUNT, DENSE_KERNELS, DenseKernel, DenseWeight, KernelsRan,
    PackedTensor,
};
use pyo3::prelude::*;

/// Lookups of rows have no kernel of their own instruction set: one name per width of codes or elements.
const ROWS: [(&str, u8); 4] = [
    ("rows-q4", 4),
    ("rows-q8", 8),
    ("rows-w16", 16),
    ("rows-w32", 32),
];

/// Room for the layers of a model of any size many times over; untouched pages of it cost nothing.
const SLOTS: usize = 8192;

/// Where the counts of dense kernels, and of lookups, begin.
const FIRST_DENSE: usize = KERNEL_COUNT;
const FIRST_ROWS: usize = KERNEL_COUNT + DENSE_KERNEL_COUNT;

static COUNTS: CallCounts<SLOTS, { FIRST_ROWS + ROWS.len() }> = CallCounts::new();

/// What one kernel did since the last reset.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct KernelCalls {
    kernel: &'static str,
    bits: u8,
    layers: usize,
    calls: u64,
    untracked_calls: u64,
}

#[pymethods]
impl KernelCalls {
    fn __repr__(&self) -> String {
        format!(
            "KernelCalls(kernel='{}', bits={}, layers={}, calls={}, untracked_calls={})",
            self.kernel, self.bits, self.layers, self.calls, self.untracked_calls
        )
    }
}

/// Counts one call of a linear layer: once for each kernel that its segments took.
pub fn count_linear(ran: KernelsRan, packed: &[u8]) {
    for kernel in ran.iter() {
        COUNTS.count(position(kernel), packed);
    }
}

/// Counts one lookup: once for each width of codes that the tensor holds, whether or not a row of it was
/// asked for.
pub fn count_rows(tensor: &PackedTensor<'_>, packed: &[u8]) {
    for (kind, (_, bits)) in ROWS.iter().enumerate() {
        if tensor
            .segments()
            .iter()
            .any(|segment| segment.spec().bits == *bits)
        {
            COUNTS.count(FIRST_ROWS + kind, packed);
        }
    }
}

/// Counts one product with an unquantized weight.
pub fn count_dense(ran: Option<&'static DenseKernel>, weight: &DenseWeight<'_>) {
    if let Some(kernel) = ran {
        COUNTS.count(FIRST_DENSE + dense::position(kernel), weight.bytes());
    }
}

/// Counts one lookup in an unquantized table.
pub fn count_dense_rows(weight: &DenseWeight<'_>) {
    for (kind, (_, bits)) in ROWS.iter().enumerate() {
        if *bits == weight.bits() {
            COUNTS.count(FIRST_ROWS + kind, weight.bytes());
        }
    }
}

/// The kernels that ran since the last reset, most calls first.
#[pyfunction]
fn kernel_calls() -> Vec<KernelCalls> {
    let dense_names = DENSE_KERNELS
        .iter()
        .map(|kernel| (kernel.name, kernel.bits));
    let names = KERNELS
        .iter()
        .map(|kernel| (kernel.name, kernel.bits))
        .chain(dense_names)
        .chain(ROWS);
    let mut ran: Vec<KernelCalls> = names
        .enumerate()
        .map(|(place, (kernel, bits))| {
            let counted = COUNTS.of(place);
            KernelCalls {
                kernel,
                bits,
                layers: counted.tensors,
                calls: counted.calls,
                untracked_calls: counted.untracked,
            }
        })
        .filter(|row| row.calls != 0)
        .collect();
    ran.sort_by_key(|row| std::cmp::Reverse(row.calls));
    ran
}

/// Start counting from zero.
#[pyfunction]
fn reset_kernel_calls() {
    COUNTS.reset();
}

/// Adds this module's class and functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KernelCalls>()?;
    module.add_function(wrap_pyfunction!(kernel_calls, module)?)?;
    module.add_function(wrap_pyfunction!(reset_kernel_calls, module)?)
}
