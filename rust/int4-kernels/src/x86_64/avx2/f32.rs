//! fp32 activations: AVX2 and FMA.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{blocks_of, group_terms, load_half, store};
use crate::kernel::{Chunks, Panel, Strip};
use crate::x86_64::strip::{block_columns, center, debug_check, group_sum};

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `f32`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn f32_strip<const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    debug_check(panel, strip, chunks, out);
    // SAFETY: the arguments are passed on under the same contract, ROWS equal to `strip.rows`.
    unsafe {
        match strip.rows {
            1 => f32_rows::<BITS, 1, 4>(panel, strip, chunks, out),
            2 => f32_rows::<BITS, 2, 4>(panel, strip, chunks, out),
            3 => f32_rows::<BITS, 3, 1>(panel, strip, chunks, out),
            4 => f32_rows::<BITS, 4, 1>(panel, strip, chunks, out),
            5 => f32_rows::<BITS, 5, 1>(panel, strip, chunks, out),
            6 => f32_rows::<BITS, 6, 1>(panel, strip, chunks, out),
            7 => f32_rows::<BITS, 7, 1>(panel, strip, chunks, out),
            8 => f32_rows::<BITS, 8, 1>(panel, strip, chunks, out),
            rows => unreachable!("a strip has 1 to 8 rows, not {rows}"),
        }
    }
}

/// How many codes of a 32-bit lane [`unpack_f32`] reads in place before it shifts by 16 bits.
const fn in_place(bits: u8) -> usize {
    16 / bits as usize
}

/// Column of the code at bit `BITS·i` of a lane: bytes are columns; with 4 bits, the high nibble of
/// byte b is column 4 + b.
const fn column_of(bits: u8, i: usize) -> usize {
    if bits == 4 { i / 2 + 4 * (i % 2) } else { i }
}

/// `2^-(BITS·(i mod in_place))`: undoes the factor by which code i is too large in [`unpack_f32`].
const fn unscale(bits: u8, i: usize) -> f32 {
    1.0 / (1u32 << (bits as usize * (i % in_place(bits)))) as f32
}

/// `(q − c)·2^t` of every code of a lane, from the lowest bits up, t = BITS·(i mod in_place).
///
/// A code is not shifted down to bit 0: masked at bit t it is the integer `q·2^t`; subtracting
/// `c·2^t` centres it; at most 20 bits, it converts exactly. The upper half of the lane is brought
/// down by one shift, which keeps t below 16. The power of two leaves again by a multiplication that
/// is exact: of each weight ([`f32_rows`] with one partial sum), or of the whole partial sum (with
/// four: then codes of equal t share one).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_f32<const BITS: u8>(v: __m256i) -> [__m256; 8] {
    let words = [v, _mm256_srli_epi32::<16>(v)];
    let mut w = [_mm256_setzero_ps(); 8];
    for i in 0..block_columns(BITS) {
        let t = BITS as usize * (i % in_place(BITS));
        let mask = _mm256_set1_epi32(((1 << BITS) - 1) << t);
        let centers = _mm256_set1_epi32(center(BITS) << t);
        let q = _mm256_and_si256(words[i / in_place(BITS)], mask);
        w[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(q, centers));
    }
    w
}

/// The loop nest of the module's head for fp32 activations: one fused multiply-add per row and column.
///
/// `ACCS` = 4 (few rows): four partial sums per row hide the latency of the multiply-add and save
/// the multiplication of every weight by [`unscale`]; partial sums carry a factor of up to 2^12, so
/// they overflow 2^12 times earlier than fp32 would, at |Σ (q−c)·x| > 2^115.
/// `ACCS` = 1: the multiplication is shared by the rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `f32` and `strip.rows == ROWS`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn f32_rows<const BITS: u8, const ROWS: usize, const ACCS: usize>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let columns = block_columns(BITS);
    let mut group_x: [*const f32; ROWS] =
        from_fn(|r| strip.x.cast::<f32>().wrapping_add(r * strip.x_stride));
    let mut total = [[_mm256_setzero_ps(); ROWS]; 2];
    for (g, group) in blocks_of(panel).chunks(chunks.group_blocks).enumerate() {
        for (half, total) in total.iter_mut().enumerate() {
            let mut x = group_x;
            let mut acc = [[_mm256_setzero_ps(); ACCS]; ROWS];
            for block in group {
                let w = unpack_f32::<BITS>(load_half(block, half));
                for i in 0..columns {
                    let w = if ACCS == 1 {
                        _mm256_mul_ps(w[i], _mm256_set1_ps(unscale(BITS, i)))
                    } else {
                        w[i]
                    };
                    for r in 0..ROWS {
                        // SAFETY: `x[r]` is at this block's first column, and rows are readable up
                        // to the padded width.
                        let x = unsafe { x[r].add(column_of(BITS, i)).read() };
                        acc[r][i % ACCS] = _mm256_fmadd_ps(w, _mm256_set1_ps(x), acc[r][i % ACCS]);
                    }
                }
                x = x.map(|x| x.wrapping_add(columns));
            }
            let terms = group_terms::<BITS>(panel, g, half, center(BITS));
            for r in 0..ROWS {
                let mut partial = acc[r][0];
                for (i, a) in acc[r].iter().enumerate().skip(1) {
                    // i = 0 has factor 1; with four sums, sum i holds codes of the same t as code i.
                    partial = _mm256_fmadd_ps(*a, _mm256_set1_ps(unscale(BITS, i)), partial);
                }
                // SAFETY: `r` and `g` are inside the strip.
                let sum = unsafe { group_sum(strip, r, g) };
                total[r] = terms.apply(total[r], partial, sum);
            }
        }
        group_x = group_x.map(|x| x.wrapping_add(group.len() * columns));
    }
    store(&total, out);
}
