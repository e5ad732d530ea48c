//! int8 activations: AVX-VNNI.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{Sums, add_chunk, add_up};
use crate::kernel::{Chunks, Panel, Strip};
use crate::x86_64::avx2::{blocks_of, group_terms, store};
use crate::x86_64::strip::{block_columns, center, debug_check, group_sum};

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `i8`.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn int8_strip<const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    debug_check(panel, strip, chunks, out);
    // SAFETY: the arguments are passed on under the same contract, ROWS equal to `strip.rows`.
    unsafe {
        match strip.rows {
            1 => int8_rows::<BITS, 2, 1, 4>(panel, strip, chunks, out),
            2 => int8_rows::<BITS, 2, 2, 2>(panel, strip, chunks, out),
            3 => int8_rows::<BITS, 2, 3, 1>(panel, strip, chunks, out),
            4 => int8_rows::<BITS, 2, 4, 1>(panel, strip, chunks, out),
            5 => int8_rows::<BITS, 1, 5, 1>(panel, strip, chunks, out),
            6 => int8_rows::<BITS, 1, 6, 1>(panel, strip, chunks, out),
            7 => int8_rows::<BITS, 1, 7, 1>(panel, strip, chunks, out),
            8 => int8_rows::<BITS, 1, 8, 1>(panel, strip, chunks, out),
            rows => unreachable!("a strip has 1 to 8 rows, not {rows}"),
        }
    }
}

/// Exact Σx of `columns` signed bytes, a multiple of 4.
///
/// # Safety
/// `x` must be readable for `columns` bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn byte_sum(x: *const u8, columns: usize) -> i32 {
    let ones = _mm256_set1_epi8(1);
    let mut wide = _mm256_setzero_si256();
    let vectors = columns / 32;
    for i in 0..vectors {
        // SAFETY: the caller's contract; these 32 bytes end at or before `columns`.
        let v = unsafe { _mm256_loadu_si256(x.add(32 * i).cast()) };
        wide = _mm256_dpbusd_avx_epi32(wide, ones, v);
    }
    let mut sum = _mm_add_epi32(
        _mm256_castsi256_si128(wide),
        _mm256_extracti128_si256::<1>(wide),
    );
    for at in (32 * vectors..columns).step_by(4) {
        // SAFETY: the caller's contract; these four bytes end at or before `columns`.
        let quad = unsafe { x.add(at).cast::<i32>().read_unaligned() };
        sum = _mm_dpbusd_avx_epi32(sum, _mm_set1_epi8(1), _mm_cvtsi32_si128(quad));
    }
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum));
    _mm_cvtsi128_si32(sum)
}

/// The loop nest of the module's head with one digit:
///
/// ```text
/// partial[half][r] += xs[r][chunk] · (Σ q·xq − b·Σxq)
/// ```
///
/// b as in the AVX-512 VNNI kernels, and so are the reasons: 0 for 4 bit (c is subtracted in fp32 with the
/// zero-point), 128 for 8 bit (in int32, because in fp32 weights near zero would cancel). The int32 sums end with
/// the chunk: 128 columns as a rule and at most 32,768 ([`crate::Numerics`]), where 255·128 per column still stay
/// below 2^31.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `i8` and `strip.rows == ROWS`.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn int8_rows<const BITS: u8, const HALVES: usize, const ROWS: usize, const ACCS: usize>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let base = if BITS == 4 { 0 } else { center(BITS) };
    let columns = block_columns(BITS);
    let mut x: [*const u8; ROWS] = from_fn(|r| strip.x.wrapping_add(r * strip.x_stride));
    let mut total = [[_mm256_setzero_ps(); ROWS]; 2];
    for (g, group) in blocks_of(panel).chunks(chunks.group_blocks).enumerate() {
        let mut partial = [[_mm256_setzero_ps(); ROWS]; 2];
        let first_scale = g * chunks.chunks_per_group();
        for (c, chunk) in group.chunks(chunks.chunk_blocks).enumerate() {
            let mut based = [_mm256_setzero_si256(); ROWS];
            if base != 0 {
                for r in 0..ROWS {
                    // SAFETY: these are the columns of the chunk's blocks.
                    let x_sum = unsafe { byte_sum(x[r], chunk.len() * columns) };
                    based[r] = _mm256_set1_epi32(-base * x_sum);
                }
            }
            for first_half in (0..2).step_by(HALVES) {
                let mut sums: Sums<HALVES, ROWS, 1, ACCS> =
                    [[[[_mm256_setzero_si256(); ACCS]; 1]; ROWS]; HALVES];
                if base != 0 {
                    for sums in &mut sums {
                        for r in 0..ROWS {
                            sums[r][0][0] = based[r];
                        }
                    }
                }
                // SAFETY: `x` is at the chunk's first column.
                unsafe {
                    add_chunk::<BITS, HALVES, ROWS, 1, ACCS>(&mut sums, chunk, first_half, x);
                }
                for (half, sums) in sums.iter().enumerate() {
                    for r in 0..ROWS {
                        // SAFETY: the row has `chunks_per_group` scales for each group.
                        let x_scale = unsafe {
                            strip
                                .scales
                                .add(r * strip.scales_stride + first_scale + c)
                                .read()
                        };
                        let partial = &mut partial[first_half + half][r];
                        *partial = _mm256_fmadd_ps(
                            _mm256_cvtepi32_ps(add_up(&sums[r][0])),
                            _mm256_set1_ps(x_scale),
                            *partial,
                        );
                    }
                }
            }
            x = x.map(|x| x.wrapping_add(chunk.len() * columns));
        }
        for half in 0..2 {
            let terms = group_terms::<BITS>(panel, g, half, base);
            for r in 0..ROWS {
                // SAFETY: `r` and `g` are inside the strip.
                let sum = unsafe { group_sum(strip, r, g) };
                total[half][r] = terms.apply(total[half][r], partial[half][r], sum);
            }
        }
    }
    store(&total, out);
}
