//! int8 activations: AVX2.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::{Block, blocks_of, group_terms, load_half, store};
use crate::kernel::{Chunks, Panel, Strip};
use crate::x86_64::strip::{block_columns, center, debug_check, group_sum};

/// Picks the instance for the strip's number of rows.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `i8`.
#[target_feature(enable = "avx2,fma,f16c")]
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
            1 => int8_rows::<BITS, 1>(panel, strip, chunks, out),
            2 => int8_rows::<BITS, 2>(panel, strip, chunks, out),
            3 => int8_rows::<BITS, 3>(panel, strip, chunks, out),
            4 => int8_rows::<BITS, 4>(panel, strip, chunks, out),
            5 => int8_rows::<BITS, 5>(panel, strip, chunks, out),
            6 => int8_rows::<BITS, 6>(panel, strip, chunks, out),
            7 => int8_rows::<BITS, 7>(panel, strip, chunks, out),
            8 => int8_rows::<BITS, 8>(panel, strip, chunks, out),
            rows => unreachable!("a strip has 1 to 8 rows, not {rows}"),
        }
    }
}

/// Blocks whose activations are split at a time (8 bit): 128 columns, the longest usual chunk.
const SPLIT_BLOCKS: usize = 32;

/// The four activations of a block as 16-bit pairs.
#[derive(Clone, Copy)]
struct SplitQuad {
    /// Columns 0 and 2, the lower one in the lower half.
    even: i32,
    /// Columns 1 and 3.
    odd: i32,
}

/// Widens four signed bytes into the pairs VPMADDWD takes.
fn split(quad: [i8; 4]) -> SplitQuad {
    let pair = |low: i8, high: i8| (i32::from(high) << 16) | (i32::from(low) & 0xffff);
    SplitQuad {
        even: pair(quad[0], quad[2]),
        odd: pair(quad[1], quad[3]),
    }
}

/// Int32 sums Σ q·xq over 4-bit `blocks` for one half.
///
/// VPMADDUBSW multiplies unsigned codes with signed activations and adds neighbours in 16 bits: at
/// most 2·15·128 = 3840 in magnitude, so nothing saturates, and eight such sums (four blocks) still
/// fit before VPMADDWD by ones widens them to 32 bits.
///
/// # Safety
/// `x[r]` must be readable for the columns of `blocks`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_q4<const ROWS: usize>(
    blocks: &[Block],
    half: usize,
    mut x: [*const i8; ROWS],
) -> [__m256i; ROWS] {
    let low_nibbles = _mm256_set1_epi8(15);
    let mut dot = [_mm256_setzero_si256(); ROWS];
    for four in blocks.chunks(4) {
        let mut narrow = [_mm256_setzero_si256(); ROWS];
        for block in four {
            let v = load_half(block, half);
            let low = _mm256_and_si256(v, low_nibbles);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(v), low_nibbles);
            for r in 0..ROWS {
                // SAFETY: the caller's contract; a block has eight columns.
                let [a, b] = unsafe { x[r].cast::<[i32; 2]>().read_unaligned() };
                let products = _mm256_add_epi16(
                    _mm256_maddubs_epi16(low, _mm256_set1_epi32(a)),
                    _mm256_maddubs_epi16(high, _mm256_set1_epi32(b)),
                );
                narrow[r] = _mm256_add_epi16(narrow[r], products);
            }
            x = x.map(|x| x.wrapping_add(8));
        }
        for r in 0..ROWS {
            let wide = _mm256_madd_epi16(narrow[r], _mm256_set1_epi16(1));
            dot[r] = _mm256_add_epi32(dot[r], wide);
        }
    }
    dot
}

/// Adds to `dot` the int32 sums Σ (q − 128)·xq over 8-bit `blocks` for one half.
///
/// VPMADDUBSW would saturate (2·255·127 > 32767), so both factors are widened to 16 bits. Within a
/// 16-bit lane the even byte is masked out and the odd one shifted down, which leaves the columns of
/// one output in one 32-bit lane; the activations are split the same way. The centre is subtracted in
/// 16 bits, so the sum is the exact one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_q8<const ROWS: usize>(
    dot: &mut [__m256i; ROWS],
    blocks: &[Block],
    half: usize,
    x: &[[SplitQuad; SPLIT_BLOCKS]; ROWS],
) {
    let even_bytes = _mm256_set1_epi16(255);
    let centers = _mm256_set1_epi16(128);
    for (b, block) in blocks.iter().enumerate().take(SPLIT_BLOCKS) {
        let v = load_half(block, half);
        let even = _mm256_sub_epi16(_mm256_and_si256(v, even_bytes), centers);
        let odd = _mm256_sub_epi16(_mm256_srli_epi16::<8>(v), centers);
        for r in 0..ROWS {
            let products = _mm256_add_epi32(
                _mm256_madd_epi16(even, _mm256_set1_epi32(x[r][b].even)),
                _mm256_madd_epi16(odd, _mm256_set1_epi32(x[r][b].odd)),
            );
            dot[r] = _mm256_add_epi32(dot[r], products);
        }
    }
}

/// The loop nest of the module's head for int8 activations, with one level more:
///
/// ```text
/// for each chunk of the group:
///     i[r]        = Σ (q − b)·xq                # int32, exact
///     partial[r] += xs[r][chunk] · i[r]
/// total[r] += scale · (partial[r] − (z − b)·Σx) # Σx = Σ over chunks of xs·Σxq, from the strip
/// ```
///
/// With 4 bits b = 0: VPMADDUBSW needs unsigned codes, and the centre is subtracted in fp32 together
/// with the zero-point. The sums grow by at most 15/8 against centred codes and so does their
/// rounding error. With 8 bits b = 128 is subtracted in integers; in fp32 it would cost weights near
/// zero seven of their 24 bits. The int32 sums end with the chunk: 128 columns as a rule and at most
/// 32,768 ([`crate::Numerics`]), where 255·128 per column still stay below 2^31.
///
/// # Safety
/// As for [`crate::kernel::Microkernel`]; `strip.x` addresses `i8` and `strip.rows == ROWS`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int8_rows<const BITS: u8, const ROWS: usize>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let base = if BITS == 4 { 0 } else { center(BITS) };
    let columns = block_columns(BITS);
    let mut x: [*const i8; ROWS] =
        from_fn(|r| strip.x.cast::<i8>().wrapping_add(r * strip.x_stride));
    let mut splits = [[SplitQuad { even: 0, odd: 0 }; SPLIT_BLOCKS]; ROWS];
    let mut total = [[_mm256_setzero_ps(); ROWS]; 2];
    for (g, group) in blocks_of(panel).chunks(chunks.group_blocks).enumerate() {
        let mut partial = [[_mm256_setzero_ps(); ROWS]; 2];
        let first_scale = g * chunks.chunks_per_group();
        for (c, chunk) in group.chunks(chunks.chunk_blocks).enumerate() {
            let mut dot = [[_mm256_setzero_si256(); ROWS]; 2];
            if BITS == 4 {
                for (half, dot) in dot.iter_mut().enumerate() {
                    // SAFETY: `x` is at the chunk's first column.
                    *dot = unsafe { dot_q4(chunk, half, x) };
                }
                x = x.map(|x| x.wrapping_add(chunk.len() * columns));
            } else {
                for piece in chunk.chunks(SPLIT_BLOCKS) {
                    for r in 0..ROWS {
                        let quads = x[r].cast::<[i8; 4]>();
                        for (b, s) in splits[r].iter_mut().enumerate().take(piece.len()) {
                            // SAFETY: `x` is at the piece's first column; a block has four.
                            *s = split(unsafe { quads.add(b).read() });
                        }
                    }
                    for (half, dot) in dot.iter_mut().enumerate() {
                        dot_q8(dot, piece, half, &splits);
                    }
                    x = x.map(|x| x.wrapping_add(piece.len() * columns));
                }
            }
            for r in 0..ROWS {
                // SAFETY: the row has `chunks_per_group` scales for each group.
                let x_scale = unsafe {
                    strip
                        .scales
                        .add(r * strip.scales_stride + first_scale + c)
                        .read()
                };
                for half in 0..2 {
                    partial[half][r] = _mm256_fmadd_ps(
                        _mm256_cvtepi32_ps(dot[half][r]),
                        _mm256_set1_ps(x_scale),
                        partial[half][r],
                    );
                }
            }
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
