//! Activations as int8: one scale per chunk of columns.

/// Chunks whose largest magnitude is below this count as zero: 127 / absmax has to stay finite.
const SMALLEST_ABSMAX: f32 = f32::from_bits(0x0380_0000); // 2^-120

/// Symmetric int8: scale = absmax / 127 per chunk, ties to even. A chunk of zeros has scale 0; one
/// that holds NaN or an infinity has scale NaN, so that every output that reads it is NaN. Columns of a
/// chunk are a multiple of 8; `sums` takes a group's sum of what was quantized.
#[inline(always)]
pub(crate) fn quantize_row<'x, L: ChunkLoops>(
    groups: impl Iterator<Item = &'x [f32]>,
    chunk_columns: usize,
    chunks_per_group: usize,
    bytes: &mut [i8],
    sums: &mut [f32],
    scales: &mut [f32],
) {
    let mut rest = bytes;
    for ((group, sum), scales) in groups.zip(sums).zip(scales.chunks_mut(chunks_per_group)) {
        *sum = 0.0;
        scales.fill(0.0);
        for (chunk, scale) in group.chunks(chunk_columns).zip(scales) {
            let (bytes, behind) = rest.split_at_mut(chunk.len());
            rest = behind;
            let absmax = f32::from_bits(L::absmax_bits(chunk));
            if !absmax.is_finite() {
                *scale = f32::NAN;
                *sum = f32::NAN;
                bytes.fill(0);
            } else if absmax < SMALLEST_ABSMAX {
                bytes.fill(0);
            } else {
                *scale = absmax / 127.0;
                *sum += *scale * L::quantize(chunk, 127.0 / absmax, bytes) as f32;
            }
        }
    }
}

/// The loops over one int8 chunk, whose length is a multiple of 8.
pub(crate) trait ChunkLoops {
    /// The largest magnitude, as bits. Magnitudes compare as integers, and NaN is above infinity, so
    /// neither can hide.
    fn absmax_bits(chunk: &[f32]) -> u32;

    /// `bytes = round(chunk * inverse)`, ties to even; gives the sum of the integers. Products are
    /// finite and at most 127 in magnitude.
    fn quantize(chunk: &[f32], inverse: f32, bytes: &mut [i8]) -> i32;
}

/// The loops without intrinsics.
pub(crate) struct PortableLoops;

impl ChunkLoops for PortableLoops {
    #[inline(always)]
    fn absmax_bits(chunk: &[f32]) -> u32 {
        chunk
            .iter()
            .fold(0, |absmax, value| absmax.max(value.to_bits() & 0x7fff_ffff))
    }

    #[inline(always)]
    fn quantize(chunk: &[f32], inverse: f32, bytes: &mut [i8]) -> i32 {
        // Adding 1.5 * 2^23 leaves the integer, rounded to even, in the low bits of the mantissa.
        const ROUND: f32 = 12_582_912.0;
        let mut sum = 0;
        for (byte, value) in bytes.iter_mut().zip(chunk) {
            let q = (value * inverse + ROUND).to_bits() as i8;
            *byte = q;
            sum += i32::from(q);
        }
        sum
    }
}
