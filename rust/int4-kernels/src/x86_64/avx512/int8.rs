//! int8 activations: AVX-512 VNNI.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{blocks_of, group_terms, load_block, store};
use crate::kernel::{BLOCK_BYTES, Chunks, Panel, Strip};
use crate::x86_64::strip::{block_columns, center, debug_check, group_sum};

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `i8`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
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
            1 => int8_rows::<BITS, 1, 4>(panel, strip, chunks, out),
            2 => int8_rows::<BITS, 2, 4>(panel, strip, chunks, out),
            3 => int8_rows::<BITS, 3, 2>(panel, strip, chunks, out),
            4 => int8_rows::<BITS, 4, 2>(panel, strip, chunks, out),
            5 => int8_rows::<BITS, 5, 2>(panel, strip, chunks, out),
            6 => int8_rows::<BITS, 6, 2>(panel, strip, chunks, out),
            7 => int8_rows::<BITS, 7, 2>(panel, strip, chunks, out),
            8 => int8_rows::<BITS, 8, 2>(panel, strip, chunks, out),
            rows => unreachable!("a strip has 1 to 8 rows, not {rows}"),
        }
    }
}

/// One block of the int8 form: four columns per VPDPBUSD, which takes the unsigned codes as its
/// first and the signed activations as its second factor and adds four products to each 32-bit lane
/// without saturating.
///
/// `first` is the partial sum the block's first product goes to.
///
/// # Safety
/// `x[r]` must be readable for the columns of one block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn int8_block<const BITS: u8, const ROWS: usize, const ACCS: usize>(
    acc: &mut [[__m512i; ACCS]; ROWS],
    first: usize,
    block: &[u8; BLOCK_BYTES],
    x: &[*const i8; ROWS],
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
        for r in 0..ROWS {
            // SAFETY: the caller's contract: four columns from 4·j on belong to the block.
            let x = unsafe { x[r].add(4 * j).cast::<i32>().read_unaligned() };
            acc[r][a] = _mm512_dpbusd_epi32(acc[r][a], w, _mm512_set1_epi32(x));
        }
    }
}

/// Exact Σx of `columns` signed bytes, 64 at a time, the rest under a mask.
///
/// # Safety
/// `x` must be readable for `columns` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn byte_sum(x: *const i8, columns: usize) -> i32 {
    let mut sum = _mm512_setzero_si512();
    for start in (0..columns).step_by(64) {
        let mask = u64::MAX >> (64 - (columns - start).min(64));
        // SAFETY: the mask ends at `columns`; lanes it leaves out are not read.
        let v = unsafe { _mm512_maskz_loadu_epi8(mask, x.add(start)) };
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), v);
    }
    _mm512_reduce_add_epi32(sum)
}

/// The loop nest of the module's head for int8 activations, with one level more:
///
/// ```text
/// for each chunk of the group:
///     i[r]        = Σ q·xq                      # int32, exact
///     partial[r] += xs[r][chunk] · (i[r] − b·Σxq)
/// total[r] += scale · (partial[r] − (z − b)·Σx) # Σx = Σ over chunks of xs·Σxq, from the strip
/// ```
///
/// VPDPBUSD wants unsigned codes, so c has to be subtracted afterwards, and b decides where:
/// - 4 bit, b = 0: in fp32, together with the zero-point. The sums grow by at most 15/8 against
///   centred codes and so does their rounding error, which is that of any grid with z = 0 or 15.
/// - 8 bit, b = 128: in int32, chunk by chunk. In fp32, weights near zero (codes near 128) would be
///   the difference of two sums 128 times as large and lose seven of the 24 bits. Σxq costs two
///   loads and a reduction per 128 columns.
///
/// The int32 sums end with the chunk: 128 columns as a rule and at most 32,768 ([`crate::Numerics`]),
/// where 255·128 per column still stay below 2^31. Up to 128 columns `i` and `b·Σxq` are below 2^24
/// and convert to fp32 exactly.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `i8` and `strip.rows == ROWS`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn int8_rows<const BITS: u8, const ROWS: usize, const ACCS: usize>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let base = if BITS == 4 { 0 } else { center(BITS) };
    let columns = block_columns(BITS);
    let mut x: [*const i8; ROWS] =
        from_fn(|r| strip.x.cast::<i8>().wrapping_add(r * strip.x_stride));
    let mut total = [_mm512_setzero_ps(); ROWS];
    for (g, group) in blocks_of(panel).chunks(chunks.group_blocks).enumerate() {
        let mut partial = [_mm512_setzero_ps(); ROWS];
        let first_scale = g * chunks.chunks_per_group();
        for (c, chunk) in group.chunks(chunks.chunk_blocks).enumerate() {
            let chunk_start = x;
            let mut acc = [[_mm512_setzero_si512(); ACCS]; ROWS];
            // Two blocks at a time: an 8-bit block has one product per row, too few to use
            // several partial sums.
            let (twos, rest) = chunk.as_chunks::<2>();
            for [one, two] in twos {
                // SAFETY: `x` is at the first column of `one`, whose width leads to `two`.
                unsafe {
                    int8_block::<BITS, ROWS, ACCS>(&mut acc, 0, one, &x);
                    x = x.map(|x| x.wrapping_add(columns));
                    int8_block::<BITS, ROWS, ACCS>(&mut acc, columns / 4, two, &x);
                    x = x.map(|x| x.wrapping_add(columns));
                }
            }
            for block in rest {
                // SAFETY: `x` is at the block's first column.
                unsafe { int8_block::<BITS, ROWS, ACCS>(&mut acc, 0, block, &x) };
                x = x.map(|x| x.wrapping_add(columns));
            }
            for r in 0..ROWS {
                let mut sum = acc[r][0];
                for a in &acc[r][1..] {
                    sum = _mm512_add_epi32(sum, *a);
                }
                if base != 0 {
                    // SAFETY: these are the columns the chunk's blocks have just read.
                    let x_sum = unsafe { byte_sum(chunk_start[r], chunk.len() * columns) };
                    sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(base * x_sum));
                }
                // SAFETY: the row has `chunks_per_group` scales for each group.
                let x_scale = unsafe {
                    strip
                        .scales
                        .add(r * strip.scales_stride + first_scale + c)
                        .read()
                };
                partial[r] =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(x_scale), partial[r]);
            }
        }
        let terms = group_terms::<BITS>(panel, g, base);
        for r in 0..ROWS {
            // SAFETY: `r` and `g` are inside the strip.
            let sum = unsafe { group_sum(strip, r, g) };
            total[r] = terms.apply(total[r], partial[r], sum);
        }
    }
    store(&total, out);
}
