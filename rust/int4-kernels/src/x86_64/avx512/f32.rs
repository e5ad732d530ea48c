//! fp32 activations: AVX-512 F.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{add_up, blocks_of, group_terms, load_block, store};
use crate::kernel::{Chunks, Panel, Strip};
use crate::x86_64::strip::{block_columns, center, debug_check, group_sum};

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `f32`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
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
            3 => f32_rows::<BITS, 3, 2>(panel, strip, chunks, out),
            4 => f32_rows::<BITS, 4, 2>(panel, strip, chunks, out),
            5 => f32_rows::<BITS, 5, 2>(panel, strip, chunks, out),
            6 => f32_rows::<BITS, 6, 1>(panel, strip, chunks, out),
            7 => f32_rows::<BITS, 7, 1>(panel, strip, chunks, out),
            8 => f32_rows::<BITS, 8, 1>(panel, strip, chunks, out),
            rows => unreachable!("a strip has 1 to 8 rows, not {rows}"),
        }
    }
}

/// One register of `q − c` per column of the block, in column order.
///
/// 4 bit: lane n holds its eight codes as eight nibbles, columns 0..4 in the low and 4..8 in the
/// high nibble of bytes 0..4. VPERMPS looks up a 16-entry table by the lowest four bits of each lane
/// and ignores the rest, so a shift brings a column into place and nothing has to be masked.
///
/// 8 bit: flipping the top bit of a byte turns `q` into `q − 128` in two's complement; a shift to
/// the top of the lane and an arithmetic shift down sign-extend it; the conversion is exact.
/// (Masking in place and converting costs the same number of instructions on the same ports.)
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack_f32<const BITS: u8>(v: __m512i) -> [__m512; 8] {
    if BITS == 4 {
        let table = _mm512_setr_ps(
            -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
        );
        [
            _mm512_permutexvar_ps(v, table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<8>(v), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<16>(v), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<24>(v), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(v), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<12>(v), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<20>(v), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<28>(v), table),
        ]
    } else {
        let v = _mm512_xor_si512(v, _mm512_set1_epi8(i8::MIN));
        let unused = _mm512_setzero_ps();
        [
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(v))),
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(v))),
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(v))),
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(v)),
            unused,
            unused,
            unused,
            unused,
        ]
    }
}

/// The loop nest of the module's head for fp32 activations: one fused multiply-add per row and column.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `f32` and `strip.rows == ROWS`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn f32_rows<const BITS: u8, const ROWS: usize, const ACCS: usize>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let mut x: [*const f32; ROWS] =
        from_fn(|r| strip.x.cast::<f32>().wrapping_add(r * strip.x_stride));
    let mut total = [_mm512_setzero_ps(); ROWS];
    for (g, group) in blocks_of(panel).chunks(chunks.group_blocks).enumerate() {
        let mut acc = [[_mm512_setzero_ps(); ACCS]; ROWS];
        for block in group {
            let w = unpack_f32::<BITS>(load_block(block));
            for j in 0..block_columns(BITS) {
                for r in 0..ROWS {
                    // SAFETY: `x[r]` is at this block's first column, and rows are readable up to
                    // the padded width.
                    let x = _mm512_set1_ps(unsafe { x[r].add(j).read() });
                    acc[r][j % ACCS] = _mm512_fmadd_ps(w[j], x, acc[r][j % ACCS]);
                }
            }
            x = x.map(|x| x.wrapping_add(block_columns(BITS)));
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
