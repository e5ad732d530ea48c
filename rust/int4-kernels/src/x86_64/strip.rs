//! What the microkernels of every instruction set know about panels and strips.

use crate::kernel::{BLOCK_BYTES, Chunks, NR, Panel, Strip};

/// How far ahead of the block in work codes are brought into the second-level cache: well over the
/// latency of memory times the bandwidth of one core, so that it also spans the start of the hardware
/// prefetcher on a new page. Past the end of the tensor a prefetch is a hint that never faults.
pub(super) const PREFETCH_L2_BYTES: usize = 8192;

/// How far ahead codes are brought from there into the first-level cache, whose few fill buffers must
/// not be held for the whole latency of memory.
pub(super) const PREFETCH_L1_BYTES: usize = 1024;

/// Columns of a block.
pub(super) const fn block_columns(bits: u8) -> usize {
    BLOCK_BYTES * 8 / (NR * bits as usize)
}

/// The code that stands for zero in a symmetric grid.
pub(super) const fn center(bits: u8) -> i32 {
    1 << (bits - 1)
}

/// What the microkernels' loads trust; the driver establishes it (see [`crate::kernel::Microkernel`]).
pub(super) fn debug_check(panel: &Panel<'_>, strip: &Strip, chunks: &Chunks, out: &[f32]) {
    debug_assert_eq!(panel.codes.len(), chunks.blocks * BLOCK_BYTES);
    debug_assert!(panel.scales.len() >= chunks.groups() * NR);
    debug_assert!(out.len() >= strip.rows * NR);
}

/// Σx of row `r` in group `g`.
///
/// # Safety
/// `strip` must describe readable memory (see [`crate::kernel::Microkernel`]), with `r` and `g`
/// inside it.
#[inline]
pub(super) unsafe fn group_sum(strip: &Strip, r: usize, g: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe { strip.sums.add(r * strip.sums_stride + g).read() }
}
