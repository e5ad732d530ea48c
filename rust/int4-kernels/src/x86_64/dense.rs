//! What the dense microkernels of every instruction set know about panels and strips.

use std::arch::x86_64::*;

use crate::dense::kernel::{BLOCK_ROWS, DensePanel, DenseStrip};
use crate::operands::Activations;
use crate::x86_64::strip::{PREFETCH_L1_BYTES, PREFETCH_L2_BYTES};

/// Element types of weights as const parameters.
pub(super) const BF16: u8 = 0;
pub(super) const F16: u8 = 1;
pub(super) const F32: u8 = 2;

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// Bytes of an element.
pub(super) const fn element_bytes(dtype: u8) -> usize {
    if dtype == F32 { 4 } else { 2 }
}

/// A panel as addresses.
pub(super) struct PanelRows {
    start: *const u8,
    stride_bytes: usize,
    count: usize,
    /// Columns.
    pub(super) k: usize,
    /// How far ahead of each row of a block weights are brought into the second-level cache. At least a
    /// block of rows: the four streams then prefetch all of the next block, each line once.
    ahead_bytes: usize,
    is_fresh: bool,
}

impl PanelRows {
    pub(super) fn of(panel: &DensePanel<'_>) -> Self {
        let start: *const u8 = match panel.rows {
            Activations::Bf16(rows) => rows.as_ptr().cast(),
            Activations::F16(rows) => rows.as_ptr().cast(),
            Activations::F32(rows) => rows.as_ptr().cast(),
        };
        let stride_bytes = panel.stride * panel.rows.dtype().bytes();
        Self {
            start,
            stride_bytes,
            count: panel.count,
            k: panel.k,
            ahead_bytes: PREFETCH_L2_BYTES.max(BLOCK_ROWS * stride_bytes),
            is_fresh: panel.is_fresh,
        }
    }

    /// Prefetches, of a fresh panel, a later line of the row at `from` and the line one block of rows ahead.
    #[inline(always)]
    pub(super) fn prefetch(&self, from: *const u8) {
        if self.is_fresh {
            // SAFETY: a prefetch is part of the baseline, and of an address that is not mapped does nothing.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(self.ahead_bytes).cast());
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH_L1_BYTES).cast());
            }
        }
    }

    /// The four rows from `first` on. Where the panel has fewer the last one stands for them, so that no
    /// kernel needs an instance for them.
    pub(super) fn block(&self, first: usize) -> [*const u8; BLOCK_ROWS] {
        std::array::from_fn(|n| {
            let row = (first + n).min(self.count - 1);
            self.start.wrapping_add(row * self.stride_bytes)
        })
    }
}

/// First word of row `row` of a strip.
pub(super) fn strip_start(strip: &DenseStrip<'_>, row: usize) -> *const u32 {
    strip.words[row * strip.stride..].as_ptr()
}
