//! AVX-512 microkernels: fp32 (F), bf16 pairs (BF16 dot product), int8 and fixed-point (VNNI) activations.
//!
//! One call computes `rows × 16` outputs of a panel; lane n of every 512-bit register belongs to
//! output n of the panel. All forms share one loop nest:
//!
//! ```text
//! total[r] = 0
//! for each group g of the panel:
//!     partial[r] = 0
//!     for each block of the group:                       # 64 bytes, loaded once, aligned or not
//!         w[j] = unpack(block)                           # once per block, used by every row
//!         for each j, for each row r:
//!             partial[r] += w[j] · broadcast(x[r][j])    # one instruction, x as memory operand
//!     total[r] += scale[g] · (partial[r] − zero[g]·Σx[r][g]) + offset[g]·Σx[r][g]
//! out[r] = total[r]
//! ```
//!
//! What is optimised and why:
//! - `ROWS` is a const generic, so all sums of a strip live in registers and the row loop unrolls.
//! - With few rows the chain `partial += …` would be limited by the latency of the multiply-add
//!   (4 to 6 cycles). `ACCS` partial sums per row that are added at the end of the group break it;
//!   `ROWS · ACCS` stays at 4 to 8, above which there is nothing left to hide.
//! - Decode (one row) streams every byte of the panel once. The hardware prefetcher stops at page
//!   bounds and restarts slowly; software prefetches cover that gap, in two steps because one step
//!   straight into the first-level cache runs out of its fill buffers.
//! - Group terms come from `[group][16]` arrays: one load each, no gather, no transposition.
//!
//! The integer forms have one level more, chunks of a group, and their products are exact.
//!
//! Limits: VDPBF16PS treats subnormal bf16 inputs as zero and flushes subnormal results; nothing
//! here depends on a length being a multiple of anything but one block.

pub(super) mod bf16;
pub(crate) mod dense;
mod f32;
mod i24;
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
        name: "avx512_bf16-bf16q4",
        isa: Isa::Avx512Bf16,
        form: ActivationForm::Bf16Pairs,
        bits: 4,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: bf16::bf16_strip::<4>,
    },
    Kernel {
        name: "avx512_bf16-bf16q8",
        isa: Isa::Avx512Bf16,
        form: ActivationForm::Bf16Pairs,
        bits: 8,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: bf16::bf16_strip::<8>,
    },
    Kernel {
        name: "avx512_vnni-i24q4",
        isa: Isa::Avx512Vnni,
        form: ActivationForm::I24,
        bits: 4,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: i24::i24_strip::<4>,
    },
    Kernel {
        name: "avx512_vnni-i24q8",
        isa: Isa::Avx512Vnni,
        form: ActivationForm::I24,
        bits: 8,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: i24::i24_strip::<8>,
    },
    Kernel {
        name: "avx512_vnni-int8q4",
        isa: Isa::Avx512Vnni,
        form: ActivationForm::Int8,
        bits: 4,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: int8::int8_strip::<4>,
    },
    Kernel {
        name: "avx512_vnni-int8q8",
        isa: Isa::Avx512Vnni,
        form: ActivationForm::Int8,
        bits: 8,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: int8::int8_strip::<8>,
    },
    Kernel {
        name: "avx512-f32q4",
        isa: Isa::Avx512,
        form: ActivationForm::F32,
        bits: 4,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: f32::f32_strip::<4>,
    },
    Kernel {
        name: "avx512-f32q8",
        isa: Isa::Avx512,
        form: ActivationForm::F32,
        bits: 8,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: f32::f32_strip::<8>,
    },
];

/// The blocks of a panel.
fn blocks_of<'a>(panel: &Panel<'a>) -> &'a [[u8; BLOCK_BYTES]] {
    panel.codes.as_chunks().0
}

/// Loads one block and prefetches two later ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn load_block(block: &[u8; BLOCK_BYTES]) -> __m512i {
    let start = block.as_ptr();
    // SAFETY: the array holds the 64 bytes that are read, at any alignment; a prefetch of an
    // address that is not mapped does nothing.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(PREFETCH_L2_BYTES).cast());
        _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(PREFETCH_L1_BYTES).cast());
        _mm512_loadu_si512(start.cast())
    }
}

/// Prefetches group `g`'s terms of the next panel, which follow this panel's.
#[inline]
fn prefetch_next<T>(terms: &[T], g: usize) {
    let next = terms.as_ptr().wrapping_add(terms.len() + g * NR);
    // SAFETY: a prefetch of an address that is not mapped does nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(next.cast()) }
}

/// Sixteen stored 16-bit floats as fp32. Exact for both types.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn widen(values: &[u16; NR], scale_type: ScaleType) -> __m512 {
    // SAFETY: the array holds the 32 bytes that are read, at any alignment.
    let v = unsafe { _mm256_loadu_si256(values.as_ptr().cast()) };
    match scale_type {
        ScaleType::F16 => _mm512_cvtph_ps(v),
        ScaleType::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(v))),
    }
}

/// What a group's partial sums are combined with: `scale·(partial − zero·Σx) + offset·Σx`.
pub(super) struct GroupTerms {
    scale: __m512,
    /// Zero-point minus the `base` that `partial` has already subtracted.
    zero: __m512,
    offset: __m512,
    has_zero: bool,
    has_offset: bool,
}

/// Terms of group `g`. `base` is what the partial sums subtract from every code: c where the codes
/// are centred while they are unpacked, 0 where they are not. A term that is zero for the whole
/// panel is left out rather than multiplied, which also keeps 0·∞ out of the sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn group_terms<const BITS: u8>(panel: &Panel<'_>, g: usize, base: i32) -> GroupTerms {
    prefetch_next(panel.scales, g);
    let mut terms = GroupTerms {
        scale: widen(&panel.scales.as_chunks().0[g], panel.scale_type),
        zero: _mm512_set1_ps((center(BITS) - base) as f32),
        offset: _mm512_setzero_ps(),
        has_zero: base != center(BITS),
        has_offset: false,
    };
    match panel.zeros {
        PanelZeros::None => {}
        PanelZeros::U8(zeros) => {
            prefetch_next(zeros, g);
            let zeros: &[u8; NR] = &zeros.as_chunks().0[g];
            // SAFETY: the array holds the 16 bytes that are read, at any alignment.
            let z = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(zeros.as_ptr().cast()) });
            // Both are small integers: the difference is exact in fp32.
            terms.zero = _mm512_cvtepi32_ps(_mm512_sub_epi32(z, _mm512_set1_epi32(base)));
            terms.has_zero = true;
        }
        PanelZeros::Offset(offsets) => {
            prefetch_next(offsets, g);
            terms.zero = _mm512_set1_ps(-base as f32);
            terms.has_zero = base != 0;
            terms.offset = widen(&offsets.as_chunks().0[g], panel.scale_type);
            terms.has_offset = true;
        }
    }
    terms
}

impl GroupTerms {
    /// `total + scale·(partial − zero·sum) + offset·sum`, in fp32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn apply(&self, total: __m512, partial: __m512, sum: f32) -> __m512 {
        let sum = _mm512_set1_ps(sum);
        let partial = if self.has_zero {
            _mm512_fnmadd_ps(self.zero, sum, partial)
        } else {
            partial
        };
        let total = _mm512_fmadd_ps(self.scale, partial, total);
        if self.has_offset {
            _mm512_fmadd_ps(self.offset, sum, total)
        } else {
            total
        }
    }
}

/// Adds a row's independent partial sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_up<const ACCS: usize>(acc: &[__m512; ACCS]) -> __m512 {
    let mut sum = acc[0];
    for a in &acc[1..] {
        sum = _mm512_add_ps(sum, *a);
    }
    sum
}

/// Writes the strip's results.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store<const ROWS: usize>(total: &[__m512; ROWS], out: &mut [f32]) {
    for (row, total) in out.as_chunks_mut::<NR>().0.iter_mut().zip(total) {
        // SAFETY: `row` holds the 16 floats that are written, at any alignment.
        unsafe { _mm512_storeu_ps(row.as_mut_ptr(), *total) }
    }
}
