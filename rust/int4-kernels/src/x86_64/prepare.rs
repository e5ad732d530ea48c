//! The loops of [`crate::prepare`] compiled for wider registers, and its loops over chunks in intrinsics.

use std::arch::x86_64::*;

use crate::element::Element;
use crate::fixed_point::SliceLoops;
use crate::prepare::{Preparation, Width, prepare_row_lanes};
use crate::quantize::{ChunkLoops, PortableLoops};

/// [`crate::prepare::prepare_row`] for every width.
pub(crate) fn prepare_row<E: Element>(
    width: Width,
    preparation: &Preparation<'_>,
    x: &[E],
    wide: &mut [f32],
    row: &mut [u32],
) {
    match width {
        Width::Baseline => prepare_row_lanes::<E, PortableLoops>(preparation, x, wide, row),
        // SAFETY: a `Width` is made from an `IsaSet` that does not exceed the machine's.
        Width::Avx2 => unsafe { prepare_row_avx2(preparation, x, wide, row) },
        // SAFETY: likewise.
        Width::Avx512 => unsafe { prepare_row_avx512(preparation, x, wide, row) },
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn prepare_row_avx2<E: Element>(
    preparation: &Preparation<'_>,
    x: &[E],
    wide: &mut [f32],
    row: &mut [u32],
) {
    prepare_row_lanes::<E, Avx2Loops>(preparation, x, wide, row);
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn prepare_row_avx512<E: Element>(
    preparation: &Preparation<'_>,
    x: &[E],
    wide: &mut [f32],
    row: &mut [u32],
) {
    prepare_row_lanes::<E, Avx512Loops>(preparation, x, wide, row);
}

/// Private to this file: only `prepare_row_avx2` names it, so AVX2 is there when its loops run.
struct Avx2Loops;

impl ChunkLoops for Avx2Loops {
    #[inline(always)]
    fn absmax_bits(chunk: &[f32]) -> u32 {
        // SAFETY: see `Avx2Loops`.
        unsafe { absmax_bits_avx2(chunk) }
    }

    #[inline(always)]
    fn quantize(chunk: &[f32], inverse: f32, bytes: &mut [i8]) -> i32 {
        // SAFETY: see `Avx2Loops`.
        unsafe { quantize_avx2(chunk, inverse, bytes) }
    }
}

impl SliceLoops for Avx2Loops {
    #[inline(always)]
    fn slice(chunk: &[f32], inverse: f32, bytes: &mut [u8]) -> [i32; 3] {
        // SAFETY: see `Avx2Loops`.
        unsafe { slice_avx2(chunk, inverse, bytes) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn absmax_bits_avx2(chunk: &[f32]) -> u32 {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let mut most = _mm256_setzero_si256();
    for eight in chunk.as_chunks::<8>().0 {
        // SAFETY: eight fp32 are 32 bytes.
        let bits = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
        most = _mm256_max_epu32(most, _mm256_and_si256(bits, magnitude));
    }
    let most = _mm_max_epu32(
        _mm256_castsi256_si128(most),
        _mm256_extracti128_si256::<1>(most),
    );
    let most = _mm_max_epu32(most, _mm_shuffle_epi32::<0b01_00_11_10>(most));
    let most = _mm_max_epu32(most, _mm_shuffle_epi32::<0b10_11_00_01>(most));
    _mm_cvtsi128_si32(most).cast_unsigned()
}

#[inline]
#[target_feature(enable = "avx2")]
fn quantize_avx2(chunk: &[f32], inverse: f32, bytes: &mut [i8]) -> i32 {
    let inverse = _mm256_set1_ps(inverse);
    let mut sum = _mm256_setzero_si256();
    for (bytes, eight) in bytes
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(chunk.as_chunks::<8>().0)
    {
        // SAFETY: eight fp32 are 32 bytes.
        let x = unsafe { _mm256_loadu_ps(eight.as_ptr()) };
        let q = _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
        sum = _mm256_add_epi32(sum, q);
        let halves = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
        // SAFETY: eight bytes are written to eight.
        unsafe { _mm_storel_epi64(bytes.as_mut_ptr().cast(), _mm_packs_epi16(halves, halves)) };
    }
    reduce_add_avx2(sum)
}

/// The sum of eight lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn reduce_add_avx2(sum: __m256i) -> i32 {
    let sum = _mm_add_epi32(
        _mm256_castsi256_si128(sum),
        _mm256_extracti128_si256::<1>(sum),
    );
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum));
    _mm_cvtsi128_si32(sum)
}

#[inline]
#[target_feature(enable = "avx2")]
fn slice_avx2(chunk: &[f32], inverse: f32, bytes: &mut [u8]) -> [i32; 3] {
    let inverse = _mm256_set1_ps(inverse);
    let half = _mm256_set1_epi32(128);
    // The low bytes of four lanes into word 0, 1 or 2 of their 128 bits; the other words become 0.
    let low_bytes = |word: usize| {
        let at = |w| if w == word { 0x0c08_0400 } else { -1 };
        _mm256_setr_epi32(at(0), at(1), at(2), -1, at(0), at(1), at(2), -1)
    };
    let (to_word_0, to_word_1, to_word_2) = (low_bytes(0), low_bytes(1), low_bytes(2));
    let six_words = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
    // X, X without its last digit, and d₂.
    let mut sums = [_mm256_setzero_si256(); 3];
    for (bytes, eight) in bytes
        .as_chunks_mut::<24>()
        .0
        .iter_mut()
        .zip(chunk.as_chunks::<8>().0)
    {
        // SAFETY: eight fp32 are 32 bytes.
        let x = unsafe { _mm256_loadu_ps(eight.as_ptr()) };
        let x0 = _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
        let x1 = _mm256_srai_epi32::<8>(_mm256_add_epi32(x0, half));
        let x2 = _mm256_srai_epi32::<8>(_mm256_add_epi32(x1, half));
        for (sum, x) in sums.iter_mut().zip([x0, x1, x2]) {
            *sum = _mm256_add_epi32(*sum, x);
        }
        let digits = _mm256_or_si256(
            _mm256_shuffle_epi8(x2, to_word_0),
            _mm256_or_si256(
                _mm256_shuffle_epi8(x1, to_word_1),
                _mm256_shuffle_epi8(x0, to_word_2),
            ),
        );
        let digits = _mm256_permutevar8x32_epi32(digits, six_words);
        let to = bytes.as_mut_ptr();
        // SAFETY: 16 bytes and 8 behind them are written to 24.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(digits));
            _mm_storel_epi64(to.add(16).cast(), _mm256_extracti128_si256::<1>(digits));
        }
    }
    let [x0, x1, x2] = sums.map(|sum| reduce_add_avx2(sum));
    [x2, x1 - 256 * x2, x0 - 256 * x1]
}

/// Private to this file: only `prepare_row_avx512` names it, so AVX-512 is there when its loops run.
struct Avx512Loops;

impl ChunkLoops for Avx512Loops {
    #[inline(always)]
    fn absmax_bits(chunk: &[f32]) -> u32 {
        // SAFETY: see `Avx512Loops`.
        unsafe { absmax_bits_avx512(chunk) }
    }

    #[inline(always)]
    fn quantize(chunk: &[f32], inverse: f32, bytes: &mut [i8]) -> i32 {
        // SAFETY: see `Avx512Loops`.
        unsafe { quantize_avx512(chunk, inverse, bytes) }
    }
}

impl SliceLoops for Avx512Loops {
    #[inline(always)]
    fn slice(chunk: &[f32], inverse: f32, bytes: &mut [u8]) -> [i32; 3] {
        // SAFETY: see `Avx512Loops`.
        unsafe { slice_avx512(chunk, inverse, bytes) }
    }
}

/// Lanes of the eight columns that a chunk may have behind its last sixteen.
const LAST_EIGHT: u16 = 0x00ff;

#[inline]
#[target_feature(enable = "avx512f")]
fn absmax_bits_avx512(chunk: &[f32]) -> u32 {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let mut most = _mm512_setzero_si512();
    let (sixteens, last) = chunk.as_chunks::<16>();
    for sixteen in sixteens {
        // SAFETY: sixteen fp32 are 64 bytes.
        let bits = unsafe { _mm512_loadu_si512(sixteen.as_ptr().cast()) };
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, magnitude));
    }
    if let Some(eight) = last.first_chunk::<8>() {
        // SAFETY: the mask reads the eight fp32 alone.
        let bits = unsafe { _mm512_maskz_loadu_epi32(LAST_EIGHT, eight.as_ptr().cast()) };
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, magnitude));
    }
    _mm512_reduce_max_epu32(most)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn quantize_avx512(chunk: &[f32], inverse: f32, bytes: &mut [i8]) -> i32 {
    let inverse = _mm512_set1_ps(inverse);
    let mut sum = _mm512_setzero_si512();
    let (byte_sixteens, last_bytes) = bytes.as_chunks_mut::<16>();
    let (sixteens, last) = chunk.as_chunks::<16>();
    for (bytes, sixteen) in byte_sixteens.iter_mut().zip(sixteens) {
        // SAFETY: sixteen fp32 are 64 bytes.
        let x = unsafe { _mm512_loadu_ps(sixteen.as_ptr()) };
        let q = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
        sum = _mm512_add_epi32(sum, q);
        // SAFETY: sixteen bytes are written to sixteen.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q)) };
    }
    if let (Some(bytes), Some(eight)) = (last_bytes.first_chunk_mut::<8>(), last.first_chunk::<8>())
    {
        // SAFETY: the mask reads the eight fp32 alone.
        let x = unsafe { _mm512_maskz_loadu_ps(LAST_EIGHT, eight.as_ptr()) };
        let q = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
        sum = _mm512_add_epi32(sum, q);
        // SAFETY: eight bytes are written to eight.
        unsafe { _mm_storel_epi64(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q)) };
    }
    _mm512_reduce_add_epi32(sum)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn slice_avx512(chunk: &[f32], inverse: f32, bytes: &mut [u8]) -> [i32; 3] {
    let inverse = _mm512_set1_ps(inverse);
    // X, X without its last digit, and d₂.
    let mut sums = [_mm512_setzero_si512(); 3];
    let mut one = |x: __m512, to: *mut u8, words: u16| {
        let half = _mm512_set1_epi32(128);
        let x0 = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
        let x1 = _mm512_srai_epi32::<8>(_mm512_add_epi32(x0, half));
        let x2 = _mm512_srai_epi32::<8>(_mm512_add_epi32(x1, half));
        for (sum, x) in sums.iter_mut().zip([x0, x1, x2]) {
            *sum = _mm512_add_epi32(*sum, x);
        }
        // Words 0 to 3 are d₂ of four columns each, 4 to 7 d₁, 8 to 11 d₀.
        let digits = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(x2));
        let digits = _mm512_inserti32x4::<1>(digits, _mm512_cvtepi32_epi8(x1));
        let digits = _mm512_inserti32x4::<2>(digits, _mm512_cvtepi32_epi8(x0));
        let order = _mm512_setr_epi32(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 0, 0, 0, 0);
        let digits = _mm512_permutexvar_epi32(order, digits);
        // SAFETY: `to` has room for the words that the mask names.
        unsafe { _mm512_mask_storeu_epi32(to.cast(), words, digits) };
    };
    let (byte_sixteens, last_bytes) = bytes.as_chunks_mut::<48>();
    let (sixteens, last) = chunk.as_chunks::<16>();
    for (bytes, sixteen) in byte_sixteens.iter_mut().zip(sixteens) {
        // SAFETY: sixteen fp32 are 64 bytes.
        let x = unsafe { _mm512_loadu_ps(sixteen.as_ptr()) };
        one(x, bytes.as_mut_ptr(), 0x0fff);
    }
    if let (Some(bytes), Some(eight)) =
        (last_bytes.first_chunk_mut::<24>(), last.first_chunk::<8>())
    {
        // SAFETY: the mask reads the eight fp32 alone; the other lanes are 0 and count for nothing.
        let x = unsafe { _mm512_maskz_loadu_ps(LAST_EIGHT, eight.as_ptr()) };
        one(x, bytes.as_mut_ptr(), 0x003f);
    }
    let [x0, x1, x2] = sums.map(|sum| _mm512_reduce_add_epi32(sum));
    [x2, x1 - 256 * x2, x0 - 256 * x1]
}
