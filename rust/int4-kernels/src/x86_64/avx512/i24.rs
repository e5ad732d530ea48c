//! Activations as 24-bit fixed point in three signed bytes: AVX-512 VNNI.
//!
//! Three VPDPBUSD per four columns where bf16 takes two VDPBF16PS, and the cheaper unpacking of int8: a gain
//! where VDPBF16PS issues more slowly (see [`crate::isa::IsaSet::has_full_rate_bf16`]).

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{blocks_of, group_terms, load_block, store};
use crate::fixed_point::{CHUNK_WORDS, COLUMN_BYTES};
use crate::kernel::{BLOCK_BYTES, Chunks, Panel, Strip};
use crate::x86_64::strip::{block_columns, center, debug_check, group_sum};

/// Digits of an activation.
const DIGITS: usize = COLUMN_BYTES;

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses the bytes of the form.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
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
            1 => i24_rows::<BITS, 1, 4>(panel, strip, chunks, out),
            2 => i24_rows::<BITS, 2, 2>(panel, strip, chunks, out),
            3 => i24_rows::<BITS, 3, 1>(panel, strip, chunks, out),
            4 => i24_rows::<BITS, 4, 1>(panel, strip, chunks, out),
            5 => i24_rows::<BITS, 5, 1>(panel, strip, chunks, out),
            6 => i24_rows::<BITS, 6, 1>(panel, strip, chunks, out),
            7 => i24_rows::<BITS, 7, 1>(panel, strip, chunks, out),
            8 => i24_rows::<BITS, 8, 1>(panel, strip, chunks, out),
            rows => unreachable!("a strip has 1 to 8 rows, not {rows}"),
        }
    }
}

/// One block: per four columns and digit one VPDPBUSD, unsigned codes times signed digits, four products
/// added to each 32-bit lane without saturating. `first` is the partial sum that the first four columns go to.
///
/// # Safety
/// `x[r]` must be readable for the bytes of the block's columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn i24_block<const BITS: u8, const ROWS: usize, const ACCS: usize>(
    acc: &mut [[[__m512i; ACCS]; DIGITS]; ROWS],
    first: usize,
    block: &[u8; BLOCK_BYTES],
    x: &[*const u8; ROWS],
) {
    let v = load_block(block);
    let low_nibbles = _mm512_set1_epi8(15);
    let w = if BITS == 4 {
        [
            _mm512_and_si512(v, low_nibbles),
            _mm512_and_si512(_mm512_srli_epi16::<4>(v), low_nibbles),
        ]
    } else {
        [v, _mm512_setzero_si512()]
    };
    for (j, w) in w.into_iter().enumerate().take(block_columns(BITS) / 4) {
        let a = (first + j) % ACCS;
        for (acc, x) in acc.iter_mut().zip(x) {
            for (d, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the caller's contract: the twelve bytes of columns 4·j to 4·j + 3 belong to the
                // block.
                let x = unsafe { x.add(4 * (DIGITS * j + d)).cast::<i32>().read_unaligned() };
                acc[a] = _mm512_dpbusd_epi32(acc[a], w, _mm512_set1_epi32(x));
            }
        }
    }
}

/// The loop nest of the module's head, with one level more:
///
/// ```text
/// for each chunk of the group:
///     i[d][r]     = −c·Σd + Σ q·d                                   # int32, exact
///     partial[r] += scale[r][chunk] · (65536·i[2] + 256·i[1] + i[0])
/// total[r] += scale · (partial[r] − (z − c)·Σx)
/// ```
///
/// The sums start at −c·Σd, so centring costs no instruction. A chunk has at most 128 columns: every i is below
/// 2^23 and converts to fp32 exactly.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses the bytes of the form and `strip.rows == ROWS`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn i24_rows<const BITS: u8, const ROWS: usize, const ACCS: usize>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let columns = block_columns(BITS);
    let block_bytes = DIGITS * columns;
    let mut x: [*const u8; ROWS] = from_fn(|r| strip.x.wrapping_add(r * strip.x_stride));
    let mut total = [_mm512_setzero_ps(); ROWS];
    for (g, group) in blocks_of(panel).chunks(chunks.group_blocks).enumerate() {
        let mut partial = [_mm512_setzero_ps(); ROWS];
        let first_chunk = g * chunks.chunks_per_group();
        for (c, chunk) in group.chunks(chunks.chunk_blocks).enumerate() {
            let words: [*const i32; ROWS] = from_fn(|r| {
                let at = r * strip.scales_stride + (first_chunk + c) * CHUNK_WORDS;
                strip.scales.wrapping_add(at).cast()
            });
            let mut acc = [[[_mm512_setzero_si512(); ACCS]; DIGITS]; ROWS];
            for (acc, words) in acc.iter_mut().zip(words) {
                for (d, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: the row has four words for each chunk.
                    acc[0] = _mm512_set1_epi32(unsafe { words.add(1 + d).read() });
                }
            }
            // Two blocks at a time: an 8-bit block has too few products per row to use several partial sums.
            let (twos, rest) = chunk.as_chunks::<2>();
            for [one, two] in twos {
                // SAFETY: `x` is at the first column of `one`, whose width leads to `two`.
                unsafe {
                    i24_block::<BITS, ROWS, ACCS>(&mut acc, 0, one, &x);
                    x = x.map(|x| x.wrapping_add(block_bytes));
                    i24_block::<BITS, ROWS, ACCS>(&mut acc, columns / 4, two, &x);
                    x = x.map(|x| x.wrapping_add(block_bytes));
                }
            }
            for block in rest {
                // SAFETY: `x` is at the block's first column.
                unsafe { i24_block::<BITS, ROWS, ACCS>(&mut acc, 0, block, &x) };
                x = x.map(|x| x.wrapping_add(block_bytes));
            }
            for r in 0..ROWS {
                let [i2, i1, i0] = acc[r].map(|acc| {
                    let sum = acc[1..]
                        .iter()
                        .fold(acc[0], |sum, a| _mm512_add_epi32(sum, *a));
                    _mm512_cvtepi32_ps(sum)
                });
                let low = _mm512_fmadd_ps(i1, _mm512_set1_ps(256.0), i0);
                let sum = _mm512_fmadd_ps(i2, _mm512_set1_ps(65_536.0), low);
                // SAFETY: as above; the first word is the scale.
                let scale = f32::from_bits(unsafe { words[r].read() }.cast_unsigned());
                partial[r] = _mm512_fmadd_ps(sum, _mm512_set1_ps(scale), partial[r]);
            }
        }
        let terms = group_terms::<BITS>(panel, g, center(BITS));
        for r in 0..ROWS {
            // SAFETY: `r` and `g` are inside the strip.
            let sum = unsafe { group_sum(strip, r, g) };
            total[r] = terms.apply(total[r], partial[r], sum);
        }
    }
    store(&total, out);
}
