//! Dense microkernels of AVX-512: row-major weights of 16 or 32 bits, as bf16 products (BF16) or in fp32 (F).
//!
//! ```text
//! for each block of four rows n of the panel:
//!     sum[r][n] = 0                                  # sixteen lanes each
//!     for each 64 bytes of the four rows:            # the last ones under a mask
//!         w[n] = row n                               # prefetches: one block of rows ahead, and near
//!         for each row r of x: sum[r][n] += w[n] · x[r]
//!     out[r][n] = the lanes of sum[r][n], added up as a tree
//! ```
//!
//! What is optimised and why:
//! - Four rows at once: four independent chains of multiply-adds hide their latency at one row of x, and a
//!   load of x serves four products.
//! - One sum per output, whatever the number of rows: the same bits for a token alone and in a batch.
//! - Lanes are added up once per output and four outputs at a time, so that short rows do not pay for it.
//!
//! Limits: VDPBF16PS treats subnormal bf16 inputs as zero and flushes subnormal results.

use std::arch::x86_64::*;
use std::ops::Range;

use super::bf16::as_bf16;
use crate::dense::kernel::{
    BLOCK_ROWS, DenseForm, DenseKernel, DensePanel, DenseStrip, debug_check,
};
use crate::isa::Isa;
use crate::kernel::NR;
use crate::operands::{Activations, Dtype};
use crate::x86_64::avx2::dense::add_lanes;
use crate::x86_64::dense::{BF16, F16, F32, LINE_BYTES, PanelRows, element_bytes, strip_start};

/// Rows of the dense kernel table that this file provides.
pub(crate) const KERNELS: [DenseKernel; 3] = [
    DenseKernel {
        name: "avx512_bf16-bf16w16",
        isa: Isa::Avx512Bf16,
        form: DenseForm::Bf16,
        weights: &[Dtype::Bf16],
        bits: 16,
        run: bf16_panel,
    },
    DenseKernel {
        name: "avx512-f32w16",
        isa: Isa::Avx512,
        form: DenseForm::F32,
        weights: &[Dtype::Bf16, Dtype::F16],
        bits: 16,
        run: f32_panel,
    },
    DenseKernel {
        name: "avx512-f32w32",
        isa: Isa::Avx512,
        form: DenseForm::F32,
        weights: &[Dtype::F32],
        bits: 32,
        run: f32_panel,
    },
];

/// fp32 columns of a register.
const LANES: usize = 16;

/// Columns of fp32 rows that the blocks of a panel take in turn: six rows of x are then 12 KiB. A multiple of the
/// columns of a cache line.
const PIECE_COLUMNS: usize = 512;

/// bf16 columns of a register.
const BF16_COLUMNS: usize = LINE_BYTES / 2;

/// # Safety
/// As for [`crate::dense::kernel::DenseMicrokernel`]; weights and strip are bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn bf16_panel(panel: &DensePanel<'_>, strip: &DenseStrip<'_>, out: &mut [f32]) {
    debug_check(panel, strip, DenseForm::Bf16, out);
    let rows = PanelRows::of(panel);
    for first in (0..panel.count).step_by(BLOCK_ROWS) {
        let block = rows.block(first);
        let out = &mut out[first..];
        // SAFETY: the block's rows and the strip's under the same contract, ROWS equal to `strip.rows`.
        unsafe {
            match strip.rows {
                1 => bf16_block::<1>(&rows, block, strip, out),
                2 => bf16_block::<2>(&rows, block, strip, out),
                3 => bf16_block::<3>(&rows, block, strip, out),
                4 => bf16_block::<4>(&rows, block, strip, out),
                5 => bf16_block::<5>(&rows, block, strip, out),
                6 => bf16_block::<6>(&rows, block, strip, out),
                rows => unreachable!("a strip has 1 to 6 rows, not {rows}"),
            }
        }
    }
}

/// The loop nest of the file's head: VDPBF16PS multiplies pairs of columns and adds both products to the
/// fp32 sum. `out[r * NR..][..4]`.
///
/// # Safety
/// The CPU must have AVX-512 BF16; `block` must address rows of `rows.k` bf16, and the strip must hold
/// `ROWS` rows of bf16, zero from K up to a multiple of 32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn bf16_block<const ROWS: usize>(
    rows: &PanelRows,
    block: [*const u8; BLOCK_ROWS],
    strip: &DenseStrip<'_>,
    out: &mut [f32],
) {
    let x = strip_start(strip, 0);
    let mut sums = [[_mm512_setzero_ps(); BLOCK_ROWS]; ROWS];
    let whole = rows.k - rows.k % BF16_COLUMNS;
    for column in (0..whole).step_by(BF16_COLUMNS) {
        let mut w = [as_bf16(_mm512_setzero_si512()); BLOCK_ROWS];
        for (w, row) in w.iter_mut().zip(block) {
            let from = row.wrapping_add(2 * column);
            rows.prefetch(from);
            // SAFETY: 32 columns from `column` on are in the row.
            *w = as_bf16(unsafe { _mm512_loadu_si512(from.cast()) });
        }
        // SAFETY: 32 columns from `column` on are in each row of the strip.
        unsafe { add_products(&mut sums, &w, x.add(column / 2), strip.stride) };
    }
    if whole < rows.k {
        let mask = u32::MAX >> (BF16_COLUMNS - rows.k % BF16_COLUMNS);
        let mut w = [as_bf16(_mm512_setzero_si512()); BLOCK_ROWS];
        for (w, row) in w.iter_mut().zip(block) {
            // SAFETY: the mask ends with the row; lanes it leaves out are not read.
            *w = as_bf16(unsafe {
                _mm512_maskz_loadu_epi16(mask, row.wrapping_add(2 * whole).cast())
            });
        }
        // SAFETY: the strip's rows are zero behind K, up to a multiple of 32.
        unsafe { add_products(&mut sums, &w, x.add(whole / 2), strip.stride) };
    }
    store(&sums, out);
}

/// `sums[r][n] += w[n] · x[r]` for 32 columns.
///
/// # Safety
/// `x` must address 32 columns of the first of `ROWS` rows, `stride` words apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn add_products<const ROWS: usize>(
    sums: &mut [[__m512; BLOCK_ROWS]; ROWS],
    w: &[__m512bh; BLOCK_ROWS],
    x: *const u32,
    stride: usize,
) {
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        let x = as_bf16(unsafe { _mm512_loadu_si512(x.add(r * stride).cast()) });
        for (sum, w) in sums.iter_mut().zip(w) {
            *sum = _mm512_dpbf16_ps(*sum, *w, x);
        }
    }
}

/// Picks the instance for the weight's type.
///
/// # Safety
/// As for [`crate::dense::kernel::DenseMicrokernel`]; the strip is fp32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn f32_panel(panel: &DensePanel<'_>, strip: &DenseStrip<'_>, out: &mut [f32]) {
    debug_check(panel, strip, DenseForm::F32, out);
    // SAFETY: the arguments are passed on under the same contract, DTYPE equal to the rows' type.
    unsafe {
        match panel.rows {
            Activations::Bf16(_) => f32_typed::<BF16>(panel, strip, out),
            Activations::F16(_) => f32_typed::<F16>(panel, strip, out),
            Activations::F32(_) => f32_typed::<F32>(panel, strip, out),
        }
    }
}

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::dense::kernel::DenseMicrokernel`]; the rows' type is `DTYPE`, the strip is fp32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn f32_typed<const DTYPE: u8>(
    panel: &DensePanel<'_>,
    strip: &DenseStrip<'_>,
    out: &mut [f32],
) {
    // SAFETY: the arguments are passed on under the same contract, ROWS equal to `strip.rows`.
    unsafe {
        match strip.rows {
            1 => f32_rows::<DTYPE, 1>(panel, strip, out),
            2 => f32_rows::<DTYPE, 2>(panel, strip, out),
            3 => f32_rows::<DTYPE, 3>(panel, strip, out),
            4 => f32_rows::<DTYPE, 4>(panel, strip, out),
            5 => f32_rows::<DTYPE, 5>(panel, strip, out),
            6 => f32_rows::<DTYPE, 6>(panel, strip, out),
            rows => unreachable!("a strip has 1 to 6 rows, not {rows}"),
        }
    }
}

/// All blocks of a panel. Rows of fp32 are long: with more than two of x, K is cut into pieces that the blocks
/// of the panel take in turn, so that a piece of x comes from the first-level cache for all blocks but the
/// first. The sums wait in memory meanwhile, unrounded: the order in which they grow does not change.
///
/// # Safety
/// As for [`crate::dense::kernel::DenseMicrokernel`]; the rows' type is `DTYPE`, the strip is fp32,
/// `strip.rows == ROWS`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn f32_rows<const DTYPE: u8, const ROWS: usize>(
    panel: &DensePanel<'_>,
    strip: &DenseStrip<'_>,
    out: &mut [f32],
) {
    let rows = PanelRows::of(panel);
    let piece = if ROWS <= 2 {
        rows.k.max(1)
    } else {
        PIECE_COLUMNS
    };
    let blocks = panel.count.div_ceil(BLOCK_ROWS);
    let mut sums = [[[_mm512_setzero_ps(); BLOCK_ROWS]; ROWS]; NR / BLOCK_ROWS];
    for start in (0..rows.k).step_by(piece) {
        let columns = start..rows.k.min(start + piece);
        for (b, sums) in sums[..blocks].iter_mut().enumerate() {
            let block = rows.block(b * BLOCK_ROWS);
            // SAFETY: the block's rows and the strip's under the same contract.
            unsafe { f32_block::<DTYPE, ROWS>(&rows, block, columns.clone(), strip, sums) };
        }
    }
    for (b, sums) in sums[..blocks].iter().enumerate() {
        store(sums, &mut out[b * BLOCK_ROWS..]);
    }
}

/// The loop nest of the file's head in fp32 over a range of columns, sixteen at a time.
///
/// # Safety
/// The CPU must have AVX-512; `block` must address rows of `columns.end` elements of `DTYPE` or more, and the
/// strip must hold `ROWS` rows of fp32, zero from K up to a multiple of sixteen. Only at K may `columns` end
/// inside a cache line.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn f32_block<const DTYPE: u8, const ROWS: usize>(
    rows: &PanelRows,
    block: [*const u8; BLOCK_ROWS],
    columns: Range<usize>,
    strip: &DenseStrip<'_>,
    sums_so_far: &mut [[__m512; BLOCK_ROWS]; ROWS],
) {
    let bytes = element_bytes(DTYPE);
    let line_columns = LINE_BYTES / bytes;
    let x: *const f32 = strip_start(strip, 0).cast();
    let mut sums = *sums_so_far;
    let whole = columns.end - columns.len() % line_columns;
    for line in (columns.start..whole).step_by(line_columns) {
        for row in block {
            rows.prefetch(row.wrapping_add(line * bytes));
        }
        for column in (line..line + line_columns).step_by(LANES) {
            let mut w = [_mm512_setzero_ps(); BLOCK_ROWS];
            for (w, row) in w.iter_mut().zip(block) {
                // SAFETY: sixteen columns from `column` on are in the row.
                *w = unsafe { load::<DTYPE>(row.wrapping_add(column * bytes)) };
            }
            // SAFETY: sixteen columns from `column` on are in each row of the strip.
            unsafe { multiply_add(&mut sums, &w, x.add(column), strip.stride) };
        }
    }
    for column in (whole..columns.end).step_by(LANES) {
        let count = LANES.min(columns.end - column);
        let mut w = [_mm512_setzero_ps(); BLOCK_ROWS];
        for (w, row) in w.iter_mut().zip(block) {
            // SAFETY: `count` columns from `column` on are in the row.
            *w = unsafe { load_first::<DTYPE>(row.wrapping_add(column * bytes), count) };
        }
        // SAFETY: the strip's rows are zero behind K, up to a multiple of sixteen.
        unsafe { multiply_add(&mut sums, &w, x.add(column), strip.stride) };
    }
    *sums_so_far = sums;
}

/// `sums[r][n] += w[n] · x[r]` for sixteen columns.
///
/// # Safety
/// `x` must address sixteen columns of the first of `ROWS` rows, `stride` words apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn multiply_add<const ROWS: usize>(
    sums: &mut [[__m512; BLOCK_ROWS]; ROWS],
    w: &[__m512; BLOCK_ROWS],
    x: *const f32,
    stride: usize,
) {
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        let x = unsafe { _mm512_loadu_ps(x.add(r * stride)) };
        for (sum, w) in sums.iter_mut().zip(w) {
            *sum = _mm512_fmadd_ps(*w, x, *sum);
        }
    }
}

/// Sixteen elements as fp32, exactly.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn load<const DTYPE: u8>(from: *const u8) -> __m512 {
    // SAFETY: the caller's contract; the loads take any alignment.
    unsafe {
        match DTYPE {
            BF16 => widen_bf16(_mm256_loadu_si256(from.cast())),
            F16 => _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
            _ => _mm512_loadu_ps(from.cast()),
        }
    }
}

/// The first `count` (1 to sixteen) elements, and zeros. Nothing behind them is read.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn load_first<const DTYPE: u8>(from: *const u8, count: usize) -> __m512 {
    let mask = u16::MAX >> (LANES - count);
    // SAFETY: the mask ends at `count`; lanes it leaves out are not read.
    unsafe {
        match DTYPE {
            BF16 => widen_bf16(_mm256_maskz_loadu_epi16(mask, from.cast())),
            F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from.cast())),
            _ => _mm512_maskz_loadu_ps(mask, from.cast()),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn widen_bf16(v: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(v)))
}

/// Adds up the lanes of every sum: `out[r * NR + n]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store<const ROWS: usize>(sums: &[[__m512; BLOCK_ROWS]; ROWS], out: &mut [f32]) {
    for (sums, out) in sums.iter().zip(out.chunks_mut(NR)) {
        let mut halves = [_mm256_setzero_ps(); BLOCK_ROWS];
        for (half, sum) in halves.iter_mut().zip(sums) {
            *half = _mm256_add_ps(
                _mm512_castps512_ps256(*sum),
                _mm512_extractf32x8_ps::<1>(*sum),
            );
        }
        let four: &mut [f32; BLOCK_ROWS] = out.first_chunk_mut().expect("a block of the row");
        // SAFETY: `four` holds the 16 bytes that are written, at any alignment.
        unsafe { _mm_storeu_ps(four.as_mut_ptr(), add_lanes(&halves)) };
    }
}
