//! The instruction set level in use: what the machine has, or a lower one that was asked for.

use std::sync::atomic::{AtomicU8, Ordering};

use int4_kernels::cpu_features::TilePermission;
use int4_kernels::{IsaLevel, IsaSet, dispatch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;

/// Index into `IsaLevel::ALL`: the highest level kernels may use.
static HIGHEST: AtomicU8 = AtomicU8::new(IsaLevel::ALL.len() as u8 - 1);

/// The instruction sets that kernels may use now.
pub fn current() -> IsaSet {
    let highest = IsaLevel::ALL[usize::from(HIGHEST.load(Ordering::Relaxed))];
    IsaSet::detect_up_to(highest)
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
    if IsaSet::detect_up_to(level).level() != level {
        // For its message, which names the highest level there is, and why that is no higher.
        if let Err(error) = IsaSet::detect().forced_to(level) {
            let faults = dispatch::tiles_left_out().iter();
            let mut reasons: String = faults.map(|fault| format!("; {fault}")).collect();
            if let TilePermission::Refused { errno } = dispatch::tile_permission() {
                let reason = std::io::Error::from_raw_os_error(errno);
                reasons += &format!("; the operating system refused tiles: {reason}");
            }
            return Err(PyValueError::new_err(format!("{error}{reasons}")));
        }
    }
    HIGHEST.store(level as u8, Ordering::Relaxed);
    Ok(())
}

/// Why tiles that the CPU has are not used: one sentence for each kernel that failed its check. Empty where
/// none did, and at a level below `amx`, where none is checked.
#[pyfunction]
fn tiles_left_out() -> Vec<String> {
    current();
    let faults = dispatch::tiles_left_out().iter();
    faults.map(ToString::to_string).collect()
}

/// Adds this module's functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(isa_level, module)?)?;
    module.add_function(wrap_pyfunction!(set_isa_level, module)?)?;
    module.add_function(wrap_pyfunction!(tiles_left_out, module)?)
}
