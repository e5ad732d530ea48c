//! The instruction set level in use: what the machine has, or a lower one that was asked for.

use std::sync::atomic::{AtomicU8, Ordering};

use int4_kernels::{IsaLevel, IsaSet};
use pyo3::prelude::*;

use crate::convert;

/// Index into `IsaLevel::ALL`: the highest level kernels may use.
static HIGHEST: AtomicU8 = AtomicU8::new(IsaLevel::ALL.len() as u8 - 1);

/// The instruction sets that kernels may use now.
pub fn current() -> IsaSet {
    let highest = IsaLevel::ALL[usize::from(HIGHEST.load(Ordering::Relaxed))];
    IsaSet::detect().limited_to(highest)
}

/// The level in use: `scalar`, `avx2`, `avx_vnni`, `avx512` or `amx`.
#[pyfunction]
fn isa_level() -> String {
    current().level().to_string()
}

/// Use no instruction set above `level`, from the next call on and in the whole process.
#[pyfunction]
fn set_isa_level(level: &str) -> PyResult<()> {
    let level: IsaLevel = level.parse().map_err(convert::value_error)?;
    IsaSet::detect()
        .forced_to(level)
        .map_err(convert::value_error)?;
    HIGHEST.store(level as u8, Ordering::Relaxed);
    Ok(())
}

/// Adds this module's functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(isa_level, module)?)?;
    module.add_function(wrap_pyfunction!(set_isa_level, module)?)
}
