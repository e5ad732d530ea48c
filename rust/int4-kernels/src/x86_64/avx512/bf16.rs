//! bf16 activations in pairs: AVX-512 BF16.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{add_up, blocks_of, group_terms, load_block, store};
use crate::kernel::{Chunks, Panel, Strip};
use crate::x86_64::strip::{block_columns, center, debug_check, group_sum};

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `u32` pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn bf16_strip<const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    debug_check(panel, strip, chunks, out);
    // SAFETY: the arguments are passed on under the same contract, ROWS equal to `strip.rows`.
    unsafe {
        match strip.rows {
            1 => bf16_rows::<BITS, 1, 4>(panel, strip, chunks, out),
            2 => bf16_rows::<BITS, 2, 4>(panel, strip, chunks, out),
            3 => bf16_rows::<BITS, 3, 2>(panel, strip, chunks, out),
            4 => bf16_rows::<BITS, 4, 2>(panel, strip, chunks, out),
            5 => bf16_rows::<BITS, 5, 2>(panel, strip, chunks, out),
            6 => bf16_rows::<BITS, 6, 1>(panel, strip, chunks, out),
            7 => bf16_rows::<BITS, 7, 1>(panel, strip, chunks, out),
            8 => bf16_rows::<BITS, 8, 1>(panel, strip, chunks, out),
            rows => unreachable!("a strip has 1 to 8 rows, not {rows}"),
        }
    }
}

/// bf16 bits of `(i mod 16 − base) · factor` for i = 0..32. The values are integers of at most 8
/// significant bits, hence exact. The sixteen entries are there twice, so that VPERMW, which looks
/// at five bits of each lane, ignores the fifth.
pub(in crate::x86_64) const fn nibble_table(base: i32, factor: i32) -> [u16; 32] {
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        table[i] = ((((i as i32 % 16 - base) * factor) as f32).to_bits() >> 16) as u16;
        i += 1;
    }
    table
}

/// Loads a table of [`nibble_table`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::x86_64) fn load_table(table: &[u16; 32]) -> __m512i {
    // SAFETY: the array holds the 64 bytes that are read, at any alignment.
    unsafe { _mm512_loadu_si512(table.as_ptr().cast()) }
}

/// Four registers of bf16 weight pairs from the four nibbles of each 16-bit lane.
///
/// 4 bit: `q − 8` by one table. Nibbles 0..4 of the low and high half of lane n are the columns
/// (0,2) (4,6) (1,3) (5,7): the order in which the activations' pairs are prepared.
///
/// 8 bit: bf16 holds `q − 128` exactly, but no 16-bit lookup or conversion produces it in fewer than
/// three times the instructions. So a code enters as two exact bf16 numbers,
/// `q − 128 = 16·(q_high − 8) + q_low`, each multiplied with the same activations: columns (0,2) by
/// the first two registers, (1,3) by the last two. |16·(q_high − 8)| ≤ 128 and q_low ≤ 15, so the
/// rounding error of the fp32 sums stays within 144/128 of what `q − 128` itself would allow.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack_bf16(v: __m512i, tables: [__m512i; 2]) -> [__m512bh; 4] {
    let [even, odd] = tables;
    [
        as_bf16(_mm512_permutexvar_epi16(v, even)),
        as_bf16(_mm512_permutexvar_epi16(_mm512_srli_epi16::<4>(v), odd)),
        as_bf16(_mm512_permutexvar_epi16(_mm512_srli_epi16::<8>(v), even)),
        as_bf16(_mm512_permutexvar_epi16(_mm512_srli_epi16::<12>(v), odd)),
    ]
}

/// The same bits, seen as bf16 lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn as_bf16(v: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without invalid values.
    unsafe { std::mem::transmute(v) }
}

/// The loop nest of the module's head for bf16 activations: VDPBF16PS multiplies pairs of columns and
/// adds both products to the fp32 sum.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `u32` pairs, `strip.rows == ROWS`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn bf16_rows<const BITS: u8, const ROWS: usize, const ACCS: usize>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    const CENTERED: [u16; 32] = nibble_table(8, 1);
    const LOW: [u16; 32] = nibble_table(0, 1);
    const HIGH: [u16; 32] = nibble_table(8, 16);
    let tables = if BITS == 4 {
        [load_table(&CENTERED), load_table(&CENTERED)]
    } else {
        [load_table(&LOW), load_table(&HIGH)]
    };
    let pairs = block_columns(BITS) / 2;
    let mut x: [*const u32; ROWS] =
        from_fn(|r| strip.x.cast::<u32>().wrapping_add(r * strip.x_stride));
    let mut total = [_mm512_setzero_ps(); ROWS];
    for (g, group) in blocks_of(panel).chunks(chunks.group_blocks).enumerate() {
        let mut acc = [[_mm512_setzero_ps(); ACCS]; ROWS];
        for block in group {
            let w = unpack_bf16(load_block(block), tables);
            for (j, w) in w.into_iter().enumerate() {
                for r in 0..ROWS {
                    // SAFETY: `x[r]` is at this block's first pair, and rows are readable up to the
                    // padded width.
                    let x = unsafe { x[r].add(j * pairs / 4).read() };
                    let x = as_bf16(_mm512_set1_epi32(x as i32));
                    acc[r][j % ACCS] = _mm512_dpbf16_ps(acc[r][j % ACCS], w, x);
                }
            }
            x = x.map(|x| x.wrapping_add(pairs));
        }
        let terms = group_terms::<BITS>(panel, g, center(BITS));
        for r in 0..ROWS {
            // SAFETY: `r` and `g` are inside the strip.
            let sum = unsafe { group_sum(strip, r, g) };
            total[r] = terms.apply(total[r], add_up(&acc[r]), sum);
        }
    }
    store(&total, out);
}
