//! Microkernels for x86-64, one file per instruction-set family.

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod avx_vnni;
pub(crate) mod cpu_state;
mod dense;
#[cfg(test)]
mod exact_buffers;
#[cfg(test)]
mod exact_dense_buffers;
pub(crate) mod prepare;
pub(crate) mod read_ceiling;
mod strip;
