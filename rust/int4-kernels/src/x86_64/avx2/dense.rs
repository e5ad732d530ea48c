//! Dense microkernels of AVX2 (with FMA and F16C): row-major weights of 16 or 32 bits against fp32.
//!
//! ```text
//! for each block of four rows n of the panel, for up to three rows r of x at a time:
//!     sum[r][n] = 0                                      # eight lanes each
//!     for each 64 bytes of the four rows:                # prefetches: one block of rows ahead, and near
//!         for each eight columns, for each n:
//!             w = widen(row n)
//!             for each r: sum[r][n] += w · x[r]          # x as memory operand
//!     out[r][n] = the lanes of sum[r][n], added up as a tree
//! ```
//!
//! Sixteen registers hold twelve sums, a weight and what widening it takes. More rows of x find the block,
//! which is a few KiB, in the first- or second-level cache.

use std::arch::x86_64::*;

use crate::dense::kernel::{
    BLOCK_ROWS, DenseForm, DenseKernel, DensePanel, DenseStrip, debug_check,
};
use crate::isa::Isa;
use crate::kernel::NR;
use crate::operands::{Activations, Dtype};
use crate::x86_64::dense::{BF16, F16, F32, LINE_BYTES, PanelRows, element_bytes, strip_start};

/// Rows of the dense kernel table that this file provides.
pub(crate) const KERNELS: [DenseKernel; 2] = [
    DenseKernel {
        name: "avx2-f32w16",
        isa: Isa::Avx2,
        form: DenseForm::F32,
        weights: &[Dtype::Bf16, Dtype::F16],
        bits: 16,
        run: f32_panel,
    },
    DenseKernel {
        name: "avx2-f32w32",
        isa: Isa::Avx2,
        form: DenseForm::F32,
        weights: &[Dtype::F32],
        bits: 32,
        run: f32_panel,
    },
];

/// Columns of a register.
const LANES: usize = 8;

/// Picks the instance for the weight's type.
///
/// # Safety
/// As for [`crate::dense::kernel::DenseMicrokernel`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn f32_panel(panel: &DensePanel<'_>, strip: &DenseStrip<'_>, out: &mut [f32]) {
    debug_check(panel, strip, DenseForm::F32, out);
    // SAFETY: the arguments are passed on under the same contract, DTYPE equal to the rows' type.
    unsafe {
        match panel.rows {
            Activations::Bf16(_) => f32_blocks::<BF16>(panel, strip, out),
            Activations::F16(_) => f32_blocks::<F16>(panel, strip, out),
            Activations::F32(_) => f32_blocks::<F32>(panel, strip, out),
        }
    }
}

/// # Safety
/// As for [`crate::dense::kernel::DenseMicrokernel`]; the rows' type is `DTYPE`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn f32_blocks<const DTYPE: u8>(
    panel: &DensePanel<'_>,
    strip: &DenseStrip<'_>,
    out: &mut [f32],
) {
    let rows = PanelRows::of(panel);
    for first in (0..panel.count).step_by(BLOCK_ROWS) {
        let block = rows.block(first);
        // SAFETY: each call gets the block, and rows of the strip beside their part of `out`.
        unsafe {
            match strip.rows {
                1 => f32_block::<DTYPE, 1>(&rows, block, strip, 0, &mut out[first..]),
                2 => f32_block::<DTYPE, 2>(&rows, block, strip, 0, &mut out[first..]),
                3 => f32_block::<DTYPE, 3>(&rows, block, strip, 0, &mut out[first..]),
                4 => {
                    f32_block::<DTYPE, 2>(&rows, block, strip, 0, &mut out[first..]);
                    f32_block::<DTYPE, 2>(&rows, block, strip, 2, &mut out[2 * NR + first..]);
                }
                5 => {
                    f32_block::<DTYPE, 3>(&rows, block, strip, 0, &mut out[first..]);
                    f32_block::<DTYPE, 2>(&rows, block, strip, 3, &mut out[3 * NR + first..]);
                }
                6 => {
                    f32_block::<DTYPE, 3>(&rows, block, strip, 0, &mut out[first..]);
                    f32_block::<DTYPE, 3>(&rows, block, strip, 3, &mut out[3 * NR + first..]);
                }
                rows => unreachable!("a strip has 1 to 6 rows, not {rows}"),
            }
        }
    }
}

/// The loop nest of the file's head for rows `r0..r0 + ROWS` of the strip; `out[r * NR..][..4]`.
///
/// # Safety
/// The CPU must have AVX2, FMA and F16C; `block` must address rows of `rows.k` elements of `DTYPE`, and the
/// strip must hold these rows in fp32, zero from K up to a multiple of eight.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn f32_block<const DTYPE: u8, const ROWS: usize>(
    rows: &PanelRows,
    block: [*const u8; BLOCK_ROWS],
    strip: &DenseStrip<'_>,
    r0: usize,
    out: &mut [f32],
) {
    let bytes = element_bytes(DTYPE);
    let line_columns = LINE_BYTES / bytes;
    let x: *const f32 = strip_start(strip, r0).cast();
    let mut sums = [[_mm256_setzero_ps(); BLOCK_ROWS]; ROWS];
    let whole = rows.k - rows.k % LANES;
    for column in (0..whole).step_by(LANES) {
        for (n, row) in block.iter().enumerate() {
            // SAFETY: eight columns from `column` on are in the row, and in each row of the strip.
            unsafe {
                let from = row.add(column * bytes);
                if column % line_columns == 0 {
                    rows.prefetch(from);
                }
                let w = load::<DTYPE>(from);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = _mm256_loadu_ps(x.add(r * strip.stride + column));
                    sums[n] = _mm256_fmadd_ps(w, x, sums[n]);
                }
            }
        }
    }
    if whole < rows.k {
        for (n, row) in block.iter().enumerate() {
            // SAFETY: the rest of the row is in it; the strip's rows are zero behind K.
            unsafe {
                let w = load_first::<DTYPE>(row.add(whole * bytes), rows.k - whole);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = _mm256_loadu_ps(x.add(r * strip.stride + whole));
                    sums[n] = _mm256_fmadd_ps(w, x, sums[n]);
                }
            }
        }
    }
    for (sums, out) in sums.iter().zip(out.chunks_mut(NR)) {
        let four: &mut [f32; BLOCK_ROWS] = out.first_chunk_mut().expect("a block of the row");
        // SAFETY: `four` holds the 16 bytes that are written, at any alignment.
        unsafe { _mm_storeu_ps(four.as_mut_ptr(), add_lanes(sums)) };
    }
}

/// Eight elements as fp32, exactly.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const DTYPE: u8>(from: *const u8) -> __m256 {
    // SAFETY: the caller's contract; the loads take any alignment.
    unsafe {
        match DTYPE {
            BF16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(
                _mm_loadu_si128(from.cast()),
            ))),
            F16 => _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            _ => _mm256_loadu_ps(from.cast()),
        }
    }
}

/// The first `count` (at most eight) elements, and zeros. Nothing behind them is read.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_first<const DTYPE: u8>(from: *const u8, count: usize) -> __m256 {
    let mut elements = [0u8; 32];
    // SAFETY: `count` elements are at most the 32 bytes of the array, all of which `load` may read.
    unsafe {
        let bytes = count * element_bytes(DTYPE);
        std::ptr::copy_nonoverlapping(from, elements.as_mut_ptr(), bytes);
        load::<DTYPE>(elements.as_ptr())
    }
}

/// The sums of the lanes of four registers, each added up in the same order: in each half lanes 2 apart,
/// then 1, then the halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::x86_64) fn add_lanes(sums: &[__m256; BLOCK_ROWS]) -> __m128 {
    let [a, b, c, d] = *sums;
    // In each half: a0+a2, b0+b2, a1+a3, b1+b3.
    let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    let even = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
    let odd = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
    let abcd = _mm256_add_ps(even, odd);
    _mm_add_ps(
        _mm256_castps256_ps128(abcd),
        _mm256_extractf128_ps::<1>(abcd),
    )
}
