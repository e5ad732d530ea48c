//! AVX2 microkernels (with FMA and F16C): fp32 and int8 activations.
//!
//! A register holds eight 32-bit lanes, so a panel of sixteen outputs is two *halves* and a block
//! two registers; lane n of a half is output n of that half. The loop nest:
//!
//! ```text
//! for each group:
//!     for each half:
//!         for each block of the group:
//!             w[j] = unpack(half of the block)           # once per block, used by every row
//!             for each j, for each row r:
//!                 partial[r] += w[j] · broadcast(x[r][j])
//!         total[r][half] += scale · (partial[r] − zero·Σx[r]) + offset·Σx[r]
//! ```
//!
//! What is optimised and why:
//! - One half at a time: sixteen registers hold the partial sums of eight rows, or four independent
//!   ones of a single row, only if the other half waits. A group's second sweep over its blocks (at
//!   most 1 KiB for groups of 128) hits the first-level cache.
//! - A core can start two multiplications, shifts or conversions a cycle but three logical or
//!   integer additions, so unpacking prefers masks and subtractions in place over shifts.
//! - Decode prefetches like the AVX-512 kernels, in the first sweep only.
//!
//! Limits: unpacking is arithmetic on every code, so one core reaches the speed of memory only where
//! memory is slow; there is no bf16 form, bf16 activations come as exact fp32.

pub(crate) mod dense;
mod f32;
mod int8;

use std::arch::x86_64::*;

use crate::isa::Isa;
use crate::kernel::{
    ActivationForm, BLOCK_BYTES, Kernel, MAX_ROWS, NR, Panel, PanelZeros, ScaleType,
};
use crate::x86_64::strip::{PREFETCH_L1_BYTES, PREFETCH_L2_BYTES, center};

/// Rows of the kernel table that this file provides.
pub(crate) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "avx2-f32q4",
        isa: Isa::Avx2,
        form: ActivationForm::F32,
        bits: 4,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: f32::f32_strip::<4>,
    },
    Kernel {
        name: "avx2-f32q8",
        isa: Isa::Avx2,
        form: ActivationForm::F32,
        bits: 8,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: f32::f32_strip::<8>,
    },
    Kernel {
        name: "avx2-int8q4",
        isa: Isa::Avx2,
        form: ActivationForm::Int8,
        bits: 4,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: int8::int8_strip::<4>,
    },
    Kernel {
        name: "avx2-int8q8",
        isa: Isa::Avx2,
        form: ActivationForm::Int8,
        bits: 8,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: int8::int8_strip::<8>,
    },
];

/// Outputs per register.
const HALF: usize = NR / 2;

/// One block as its two halves of 32 bytes.
pub(super) type Block = [[u8; BLOCK_BYTES / 2]; 2];

/// The blocks of a panel.
pub(super) fn blocks_of<'a>(panel: &Panel<'a>) -> &'a [Block] {
    panel.codes.as_chunks().0.as_chunks().0
}

/// Loads half a block; the first half also prefetches two later blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_half(block: &Block, half: usize) -> __m256i {
    // SAFETY: the array holds the 32 bytes that are read, at any alignment; a prefetch of an address
    // that is not mapped does nothing.
    unsafe {
        if half == 0 {
            let start = block.as_ptr().cast::<i8>();
            _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(PREFETCH_L2_BYTES));
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(PREFETCH_L1_BYTES));
        }
        _mm256_loadu_si256(block[half].as_ptr().cast())
    }
}

/// Eight stored 16-bit floats as fp32. Exact for both types.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen(values: &[u16; HALF], scale_type: ScaleType) -> __m256 {
    // SAFETY: the array holds the 16 bytes that are read, at any alignment.
    let v = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    match scale_type {
        ScaleType::F16 => _mm256_cvtph_ps(v),
        ScaleType::Bf16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(v))),
    }
}

/// What a group's partial sums are combined with: `scale·(partial − zero·Σx) + offset·Σx`.
pub(super) struct GroupTerms {
    scale: __m256,
    /// Zero-point minus the `base` that `partial` has already subtracted.
    zero: __m256,
    offset: __m256,
    has_zero: bool,
    has_offset: bool,
}

/// Terms of one half of group `g`. `base` is what the partial sums subtract from every code: c where
/// the codes are centred while they are unpacked, 0 where they are not. A term that is zero for the
/// whole panel is left out rather than multiplied, which also keeps 0·∞ out of the sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn group_terms<const BITS: u8>(
    panel: &Panel<'_>,
    g: usize,
    half: usize,
    base: i32,
) -> GroupTerms {
    let at = 2 * g + half;
    let mut terms = GroupTerms {
        scale: widen(&panel.scales.as_chunks().0[at], panel.scale_type),
        zero: _mm256_set1_ps((center(BITS) - base) as f32),
        offset: _mm256_setzero_ps(),
        has_zero: base != center(BITS),
        has_offset: false,
    };
    match panel.zeros {
        PanelZeros::None => {}
        PanelZeros::U8(zeros) => {
            let zeros: &[u8; HALF] = &zeros.as_chunks().0[at];
            // SAFETY: the array holds the 8 bytes that are read, at any alignment.
            let z = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(zeros.as_ptr().cast()) });
            // Both are small integers: the difference is exact in fp32.
            terms.zero = _mm256_cvtepi32_ps(_mm256_sub_epi32(z, _mm256_set1_epi32(base)));
            terms.has_zero = true;
        }
        PanelZeros::Offset(offsets) => {
            terms.zero = _mm256_set1_ps(-base as f32);
            terms.has_zero = base != 0;
            terms.offset = widen(&offsets.as_chunks().0[at], panel.scale_type);
            terms.has_offset = true;
        }
    }
    terms
}

impl GroupTerms {
    /// `total + scale·(partial − zero·sum) + offset·sum`, in fp32.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn apply(&self, total: __m256, partial: __m256, sum: f32) -> __m256 {
        let sum = _mm256_set1_ps(sum);
        let partial = if self.has_zero {
            _mm256_fnmadd_ps(self.zero, sum, partial)
        } else {
            partial
        };
        let total = _mm256_fmadd_ps(self.scale, partial, total);
        if self.has_offset {
            _mm256_fmadd_ps(self.offset, sum, total)
        } else {
            total
        }
    }
}

/// Writes the strip's results.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn store<const ROWS: usize>(total: &[[__m256; ROWS]; 2], out: &mut [f32]) {
    let [low, high] = total;
    let totals = low.iter().zip(high).flat_map(|(low, high)| [low, high]);
    for (half, total) in out.as_chunks_mut::<HALF>().0.iter_mut().zip(totals) {
        // SAFETY: `half` holds the 8 floats that are written, at any alignment.
        unsafe { _mm256_storeu_ps(half.as_mut_ptr(), *total) }
    }
}
