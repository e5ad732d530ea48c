//! `vllm_omni._rust`: the Python face of `int4-kernels` and `procmon`, and the native CPU kernels of
//! the torch operators. `vllm_omni/_rust.pyi` documents what Python sees.
//!
//! | file | what |
//! |---|---|
//! | `int4.rs` | pack, inspect, name kernels |
//! | `isa.rs` | the instruction set level in use |
//! | `kernel_calls.rs` | which kernels ran, on how many tensors |
//! | `torch_ops.rs` | what the operators check and call |
//! | `dense_ops.rs` | the same, for unquantized tables |
//! | `torch_abi.rs`, `torch_abi/` | torch's stable C ABI: symbols and errors, tensors, threads |
//! | `read_ceiling.rs` | reading at the speed of memory |
//! | `procmon.rs` | memory of processes |
//! | `tree_sampler.rs` | memory of a process tree over time |
//! | `occupancy.rs` | who runs on which core |
//! | `process_facts.rs` | mappings, control groups, identity, memory policy |
//! | `convert.rs` | errors and names, Rust to Python and back |
//! | `os.rs` | loaded libraries' symbols, Python's buffers |

use pyo3::prelude::*;

mod convert;
mod dense_ops;
mod int4;
mod isa;
mod kernel_calls;
mod occupancy;
mod os;
mod process_facts;
mod procmon;
mod read_ceiling;
mod torch_abi;
mod torch_ops;
mod tree_sampler;

/// Native part of `vllm_omni`.
#[pymodule]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    module.add("BUILD_PROFILE", profile)?;
    int4::register(module)?;
    isa::register(module)?;
    kernel_calls::register(module)?;
    torch_ops::register(module)?;
    read_ceiling::register(module)?;
    procmon::register(module)?;
    tree_sampler::register(module)?;
    occupancy::register(module)?;
    process_facts::register(module)
}
