//! AMX: the rows of the kernel table. The kernel is `crate::amx`, on the CPU's tiles (`tiles.rs`) and with the
//! loops of AVX-512 beside them (`lanes.rs`). Not verified on hardware: tests run it on emulated tiles.

mod lanes;
mod tiles;

use crate::amx::emulator::EmulatedTiles;
use crate::amx::tile_unit::Tiles;
use crate::amx::{compute, row};
use crate::isa::Isa;
use crate::kernel::{Chunks, Kernel, Panel, Strip};
use lanes::Avx512Lanes;
use tiles::AmxTiles;

/// Rows of the kernel table that this file provides.
pub(crate) const KERNELS: &[Kernel] = &[
    row(
        "amx-bf16q4",
        Isa::AmxBf16,
        false,
        4,
        strip::<AmxTiles, false, 4>,
    ),
    row(
        "amx-bf16q8",
        Isa::AmxBf16,
        false,
        8,
        strip::<AmxTiles, false, 8>,
    ),
    row(
        "amx-int8q4",
        Isa::AmxInt8,
        true,
        4,
        strip::<AmxTiles, true, 4>,
    ),
    row(
        "amx-int8q8",
        Isa::AmxInt8,
        true,
        8,
        strip::<AmxTiles, true, 8>,
    ),
];

/// The same with emulated tiles: everything of the kernels above but the tile instructions, for tests on
/// machines with AVX-512 and without AMX.
pub(crate) const EMULATED: &[Kernel] = &[
    row(
        "amx_emulated_avx512-bf16q4",
        Isa::Avx512,
        false,
        4,
        strip::<EmulatedTiles, false, 4>,
    ),
    row(
        "amx_emulated_avx512-bf16q8",
        Isa::Avx512,
        false,
        8,
        strip::<EmulatedTiles, false, 8>,
    ),
    row(
        "amx_emulated_avx512-int8q4",
        Isa::Avx512,
        true,
        4,
        strip::<EmulatedTiles, true, 4>,
    ),
    row(
        "amx_emulated_avx512-int8q8",
        Isa::Avx512,
        true,
        8,
        strip::<EmulatedTiles, true, 8>,
    ),
];

/// # Safety
/// As for [`crate::kernel::Microkernel`]; the machine must allow `T`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn strip<T: Tiles, const INT8: bool, const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    // SAFETY: the caller's contract; `Avx512Lanes` needs what this function has enabled.
    unsafe { compute::<T, Avx512Lanes, INT8, BITS>(panel, strip, chunks, out) }
}
