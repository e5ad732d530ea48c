//! Activations as 24-bit fixed point in three signed bytes: AVX-VNNI.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{Sums, add_chunk, add_up};
use crate::fixed_point::{CHUNK_WORDS, COLUMN_BYTES};
use crate::kernel::{Chunks, Panel, Strip};
use crate::x86_64::avx2::{blocks_of, group_terms, store};
use crate::x86_64::strip::{block_columns, center, debug_check, group_sum};

/// Digits of an activation.
const DIGITS: usize = COLUMN_BYTES;

/// Rows of a strip at most: three sums each, of one half, and codes fill the sixteen registers.
pub(super) const MAX_ROWS: usize = 4;

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses the bytes of the form.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn i24_strip<const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    debug_check(panel, strip, chunks, out);
    // SAFETY: the arguments are passed on under the same contract, ROWS equal to `strip.rows`.
    unsafe {
        match strip.rows {
            1 => i24_rows::<BITS, 2, 1, 2>(panel, strip, chunks, out),
            2 => i24_rows::<BITS, 1, 2, 2>(panel, strip, chunks, out),
            3 => i24_rows::<BITS, 1, 3, 1>(panel, strip, chunks, out),
            4 => i24_rows::<BITS, 1, 4, 1>(panel, strip, chunks, out),
            rows => unreachable!("a strip has 1 to 4 rows, not {rows}"),
        }
    }
}

/// The loop nest of the module's head with three digits:
///
/// ```text
/// i[d]              = −c·Σd + Σ q·d                             # int32, exact
/// partial[half][r] += scale[r][chunk] · (65536·i[2] + 256·i[1] + i[0])
/// ```
///
/// A chunk has at most 128 columns: every i is below 2^23 and converts to fp32 exactly. The arithmetic is that of
/// the AVX-512 VNNI kernels.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses the bytes of the form and `strip.rows == ROWS`.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn i24_rows<const BITS: u8, const HALVES: usize, const ROWS: usize, const ACCS: usize>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let columns = block_columns(BITS);
    let mut x: [*const u8; ROWS] = from_fn(|r| strip.x.wrapping_add(r * strip.x_stride));
    let mut total = [[_mm256_setzero_ps(); ROWS]; 2];
    for (g, group) in blocks_of(panel).chunks(chunks.group_blocks).enumerate() {
        let mut partial = [[_mm256_setzero_ps(); ROWS]; 2];
        let first_chunk = g * chunks.chunks_per_group();
        for (c, chunk) in group.chunks(chunks.chunk_blocks).enumerate() {
            let words: [*const i32; ROWS] = from_fn(|r| {
                let at = r * strip.scales_stride + (first_chunk + c) * CHUNK_WORDS;
                strip.scales.wrapping_add(at).cast()
            });
            for first_half in (0..2).step_by(HALVES) {
                let mut sums: Sums<HALVES, ROWS, DIGITS, ACCS> =
                    [[[[_mm256_setzero_si256(); ACCS]; DIGITS]; ROWS]; HALVES];
                for sums in &mut sums {
                    for (sums, words) in sums.iter_mut().zip(words) {
                        for (d, sums) in sums.iter_mut().enumerate() {
                            // SAFETY: the row has four words for each chunk.
                            sums[0] = _mm256_set1_epi32(unsafe { words.add(1 + d).read() });
                        }
                    }
                }
                // SAFETY: `x` is at the chunk's first column.
                unsafe {
                    add_chunk::<BITS, HALVES, ROWS, DIGITS, ACCS>(&mut sums, chunk, first_half, x);
                }
                for (half, sums) in sums.iter().enumerate() {
                    for r in 0..ROWS {
                        let [i2, i1, i0] =
                            std::array::from_fn(|d| _mm256_cvtepi32_ps(add_up(&sums[r][d])));
                        let low = _mm256_fmadd_ps(i1, _mm256_set1_ps(256.0), i0);
                        let sum = _mm256_fmadd_ps(i2, _mm256_set1_ps(65_536.0), low);
                        // SAFETY: as above; the first word is the scale.
                        let scale = f32::from_bits(unsafe { words[r].read() }.cast_unsigned());
                        let partial = &mut partial[first_half + half][r];
                        *partial = _mm256_fmadd_ps(sum, _mm256_set1_ps(scale), *partial);
                    }
                }
            }
            x = x.map(|x| x.wrapping_add(DIGITS * chunk.len() * columns));
        }
        for half in 0..2 {
            let terms = group_terms::<BITS>(panel, g, half, center(BITS));
            for r in 0..ROWS {
                // SAFETY: `r` and `g` are inside the strip.
                let sum = unsafe { group_sum(strip, r, g) };
                total[half][r] = terms.apply(total[half][r], partial[half][r], sum);
            }
        }
    }
    store(&total, out);
}
