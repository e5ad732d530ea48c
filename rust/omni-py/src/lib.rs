//! `vllm_omni._rust`: the Python face of `int4-kernels` and `procmon`, and the native CPU kernels of
//! the torch operators. `vllm_omni/_rust.pyi` documents what Python sees.
//!
//! | file | what |
//! |---|---|
//! | `int4.rs` | pack, inspect, name kernels |
//! | `isa.rs` | the instruction set level in use |
//! | `torch_ops.rs` | what the operators check and call |
//! | `torch_abi.rs`, `torch_abi/` | torch's stable C ABI: symbols and errors, tensors, threads |
//! | `read_ceiling.rs` | reading at the speed of memory |
//! | `procmon.rs` | memory of processes |
//! | `convert.rs` | errors and names, Rust to Python and back |
//! | `os.rs` | loaded libraries' symbols, Python's buffers |

use pyo3::prelude::*;

mod convert;
mod int4;
mod isa;
mod os;
mod procmon;
mod read_ceiling;
mod torch_abi;
mod torch_ops;

/// Native part of `vllm_omni`.
#[pymodule]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    int4::register(module)?;
    isa::register(module)?;
    torch_ops::register(module)?;
    read_ceiling::register(module)?;
    procmon::register(module)
}
