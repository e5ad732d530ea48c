//! Activations as 24-bit fixed point in three signed bytes, so that integer dot products compute with them.
//!
//! ```text
//! x ≈ 2^(e − 21) · X,   X = round(x · 2^(21 − e)),   X = 65536·d₂ + 256·d₁ + d₀,   −128 ≤ d < 128
//! ```
//!
//! with 2^e ≤ max|x| < 2^(e+1) over the chunk, so |X| ≤ 2^22. A bf16 number has 8 significant bits: it is held
//! exactly while its exponent is at most 14 below the chunk's largest, a fp16 number (11 bits) at most 11
//! below; otherwise it is off by at most 2^-22 of the largest magnitude. An fp32 sum that holds the largest
//! loses a quarter of that for every term; one where the largest is multiplied by a zero weight loses nothing.
//! Products and their sums over a chunk are exact integers.

use crate::quantize::{ChunkLoops, PortableLoops};

/// A chunk whose largest magnitude is below this counts as zero: 2^(21 − e) has to stay finite.
const SMALLEST_EXPONENT: i32 = -100;

/// Bits of X below the leading one.
const FRACTION_BITS: i32 = 21;

/// Words of the prepared row per chunk.
pub(crate) const CHUNK_WORDS: usize = 4;

/// Bytes of the prepared row per column.
pub(crate) const COLUMN_BYTES: usize = 3;

/// The loops over one chunk, whose length is a multiple of 8.
pub(crate) trait SliceLoops {
    /// `bytes` = the digits of round(chunk · inverse), ties to even; gives their sums, d₂ first. Products are
    /// below 2^22 in magnitude.
    fn slice(chunk: &[f32], inverse: f32, bytes: &mut [u8]) -> [i32; 3];
}

impl SliceLoops for PortableLoops {
    #[inline(always)]
    fn slice(chunk: &[f32], inverse: f32, bytes: &mut [u8]) -> [i32; 3] {
        // Adding 1.5 * 2^23 leaves the integer, rounded to even, in the low bits of the mantissa.
        const ROUND: f32 = 12_582_912.0;
        let mut sums = [0; 3];
        let fours = chunk.as_chunks::<4>().0;
        for (bytes, four) in bytes.as_chunks_mut::<12>().0.iter_mut().zip(fours) {
            for (column, value) in four.iter().enumerate() {
                let x = (value * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
                for (digit, at) in digits(x).into_iter().zip([column, 4 + column, 8 + column]) {
                    bytes[at] = digit.cast_unsigned();
                }
                for (sum, digit) in sums.iter_mut().zip(digits(x)) {
                    *sum += i32::from(digit);
                }
            }
        }
        sums
    }
}

/// d₂, d₁, d₀ of |x| ≤ 2^22.
#[inline(always)]
fn digits(x: i32) -> [i8; 3] {
    let above = (x + 128) >> 8;
    [((above + 128) >> 8) as i8, above as i8, x as i8]
}

/// Prepares one row: `bytes`, `sums` (Σx of what was kept, per group) and the words of every chunk. A chunk
/// that holds NaN or an infinity has scale NaN, so that every output that reads it is NaN. `center` is c.
#[inline(always)]
pub(crate) fn slice_row<'x, L: ChunkLoops + SliceLoops>(
    groups: impl Iterator<Item = &'x [f32]>,
    chunk_columns: usize,
    chunks_per_group: usize,
    center: i32,
    bytes: &mut [u8],
    sums: &mut [f32],
    words: &mut [u32],
) {
    debug_assert!(chunk_columns <= 256, "a sum of X fits 32 bits");
    let mut rest = bytes;
    let group_words = words.chunks_mut(chunks_per_group * CHUNK_WORDS);
    for ((group, sum), words) in groups.zip(sums).zip(group_words) {
        *sum = 0.0;
        words.fill(0);
        let chunk_words = words.as_chunks_mut::<CHUNK_WORDS>().0;
        for (chunk, words) in group.chunks(chunk_columns).zip(chunk_words) {
            let (bytes, behind) = rest.split_at_mut(COLUMN_BYTES * chunk.len());
            rest = behind;
            let absmax = f32::from_bits(L::absmax_bits(chunk));
            let exponent = (absmax.to_bits() >> 23) as i32 - 127;
            if !absmax.is_finite() {
                words[0] = f32::NAN.to_bits();
                *sum = f32::NAN;
                bytes.fill(0);
            } else if exponent < SMALLEST_EXPONENT {
                bytes.fill(0);
            } else {
                let [scale, inverse] =
                    [exponent - FRACTION_BITS, FRACTION_BITS - exponent].map(power_of_two);
                let digit_sums = L::slice(chunk, inverse, bytes);
                let [d2, d1, d0] = digit_sums;
                // Exact in i32: at most 2^22 in each of at most 2^8 columns.
                *sum += scale * (65_536 * d2 + 256 * d1 + d0) as f32;
                *words = [
                    scale.to_bits(),
                    (-center * d2).cast_unsigned(),
                    (-center * d1).cast_unsigned(),
                    (-center * d0).cast_unsigned(),
                ];
            }
        }
    }
}

/// 2^exponent, which is a normal number.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) << 23).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_hold_what_is_below_two_to_the_22() {
        for x in (-(1 << 22)..1 << 22)
            .step_by(997)
            .chain([0, 127, 128, -128, -129, (1 << 22) - 1])
        {
            let [d2, d1, d0] = digits(x).map(i32::from);
            assert_eq!(65_536 * d2 + 256 * d1 + d0, x);
        }
    }

    #[test]
    fn powers_of_two() {
        for exponent in [
            SMALLEST_EXPONENT - FRACTION_BITS,
            -1,
            0,
            1,
            FRACTION_BITS - SMALLEST_EXPONENT,
        ] {
            assert_eq!(power_of_two(exponent), 2.0f32.powi(exponent));
        }
    }
}
