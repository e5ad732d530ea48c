//! Weight-only 4- and 8-bit linear layers for x86-64 CPUs: one packed layout, one kernel table.
//!
//! Pure Rust, no I/O. A weight is packed once ([`pack_into`]) and then read, from the same bytes, by
//! [`linear()`] (one token or thousands) and by [`rows`] (embedding lookup, dequantization).
//!
//! | file | what |
//! |---|---|
//! | [`layout`] | the bytes of a packed tensor; parsing and checksums |
//! | [`pack`] | codes, scales, zeros → packed bytes and back |
//! | [`kernel`] | the seam between driver and microkernels |
//! | [`isa`], [`dispatch`] | instruction sets as values; the kernel table; choosing |
//! | [`cpu_features`] | which instruction sets a machine lets us use |
//! | `element`, `prepare`, `quantize`, `fixed_point` | activations → the form a kernel reads |
//! | `store`, `scratch` | results → outputs; buffers that are reused |
//! | [`operands`] | activations, outputs, numerics of a call |
//! | [`linear`](mod@linear), `plan`, [`embedding`] | the drivers |
//! | [`dense`] | unquantized heads and tables: row-major weights of 16 or 32 bits |
//! | [`call_counts`] | which kernel read which tensor how often |
//! | [`parallel`] | the team of threads a caller lends |
//! | `scalar`, `x86_64` | microkernels |
//! | `amx` | the tile kernels, over tiles that are instructions or emulated |
//! | `tiles` | disjoint parts of one buffer for the tasks of a region |
//! | [`read_ceiling`](mod@read_ceiling) | reading alone: what a GEMV is measured against |
//! | [`reference`](mod@reference) | the slow oracle in f64 |

#[cfg(target_endian = "big")]
compile_error!("the packed layout is little endian and read in place");

mod amx;
pub mod call_counts;
pub mod cpu_features;
pub mod dense;
pub mod dispatch;
mod element;
pub mod embedding;
pub mod error;
pub mod fixed_point;
pub mod isa;
pub mod kernel;
pub mod layout;
pub mod linear;
pub mod operands;
pub mod pack;
pub mod parallel;
mod plan;
mod prepare;
mod quantize;
pub mod read_ceiling;
pub mod reference;
mod scalar;
mod scratch;
mod store;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use call_counts::{CallCounts, Calls};
pub use dense::dispatch::{DENSE_KERNEL_COUNT, DENSE_KERNELS};
pub use dense::kernel::{DenseForm, DenseKernel};
pub use dense::{DenseWeight, dense_linear, dense_linear_with_kernel, dense_rows};
pub use embedding::rows;
pub use error::Int4Error;
pub use isa::{Isa, IsaLevel, IsaSet};
pub use kernel::{ActivationForm, Kernel, ScaleType};
pub use layout::{CodeKind, PackedTensor, Section, Segment, SegmentSpec, ZeroKind};
pub use linear::{KernelsRan, linear, linear_with_kernel};
pub use operands::{Activations, Dtype, Numerics, Outputs};
pub use pack::{PackZeros, Unpacked, pack_into, unpack};
pub use parallel::{Parallel, ScopedThreads, Serial};
pub use read_ceiling::read_ceiling;
