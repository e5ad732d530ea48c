//! AVX-VNNI microkernels (with AVX2 and FMA): int8 and fixed-point activations on 256-bit registers, for CPUs
//! that have VPDPBUSD without AVX-512.
//!
//! Panels are read in halves and group terms applied as in [`super::avx2`]; the products are those of the AVX-512
//! VNNI kernels: VPDPBUSD multiplies unsigned codes with signed bytes of activations and adds four products to
//! each 32-bit lane without saturating, so nothing is widened or split. Both forms are one loop nest: an int8
//! activation is a single digit, a fixed-point one is three.
//!
//! ```text
//! for each group:
//!     for each chunk of the group:
//!         for each pass over the chunk's blocks:          # one half of the outputs, or both at once
//!             for each block:
//!                 w[j] = unpack(halves of the block)      # once per block, used by every row and digit
//!                 sum[half][r][d] += w[j] · broadcast(x[r][d][j])
//!         partial[half][r] += scale[r][chunk] · combine(sum[half][r])
//!     total[half][r] += scale · (partial[half][r] − (z − b)·Σx[r])
//! ```
//!
//! What is optimised and why:
//! - The VEX encoding cannot broadcast from memory, so activations take an instruction of their own. Few rows
//!   take both halves in one pass and share it; more would not fit sixteen registers and take two passes, the
//!   second of which finds its codes in the first-level cache.
//! - With few rows `ACCS` partial sums per row, half and digit hide the latency of VPDPBUSD.
//!
//! Limits: CPUs without AVX-512 were not at hand; what is known of speed comes from one that has both.

mod i24;
mod int8;

use std::arch::x86_64::*;

use super::avx2::{Block, load_half};
use super::strip::block_columns;
use crate::isa::Isa;
use crate::kernel::{ActivationForm, Kernel, MAX_ROWS};

/// Rows of the kernel table that this file provides.
pub(crate) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "avx_vnni-i24q4",
        isa: Isa::AvxVnni,
        form: ActivationForm::I24,
        bits: 4,
        max_rows: i24::MAX_ROWS,
        min_rows: 1,
        run: i24::i24_strip::<4>,
    },
    Kernel {
        name: "avx_vnni-i24q8",
        isa: Isa::AvxVnni,
        form: ActivationForm::I24,
        bits: 8,
        max_rows: i24::MAX_ROWS,
        min_rows: 1,
        run: i24::i24_strip::<8>,
    },
    Kernel {
        name: "avx_vnni-int8q4",
        isa: Isa::AvxVnni,
        form: ActivationForm::Int8,
        bits: 4,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: int8::int8_strip::<4>,
    },
    Kernel {
        name: "avx_vnni-int8q8",
        isa: Isa::AvxVnni,
        form: ActivationForm::Int8,
        bits: 8,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run: int8::int8_strip::<8>,
    },
];

/// Int32 sums of a chunk: per half of a pass, row and digit `ACCS` partial ones.
type Sums<const HALVES: usize, const ROWS: usize, const DIGITS: usize, const ACCS: usize> =
    [[[[__m256i; ACCS]; DIGITS]; ROWS]; HALVES];

/// Adds to `sums` the products of one block, its halves from `first_half` on. `first` is the partial sum that
/// the block's first four columns go to.
///
/// # Safety
/// `x[r]` must be readable for the block's columns, `DIGITS` bytes each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn add_block<
    const BITS: u8,
    const HALVES: usize,
    const ROWS: usize,
    const DIGITS: usize,
    const ACCS: usize,
>(
    sums: &mut Sums<HALVES, ROWS, DIGITS, ACCS>,
    first: usize,
    block: &Block,
    first_half: usize,
    x: &[*const u8; ROWS],
) {
    let low_nibbles = _mm256_set1_epi8(15);
    let mut w = [[_mm256_setzero_si256(); 2]; HALVES];
    for (half, w) in w.iter_mut().enumerate() {
        let v = load_half(block, first_half + half);
        if BITS == 4 {
            w[0] = _mm256_and_si256(v, low_nibbles);
            w[1] = _mm256_and_si256(_mm256_srli_epi16::<4>(v), low_nibbles);
        } else {
            w[0] = v;
        }
    }
    for j in 0..block_columns(BITS) / 4 {
        let a = (first + j) % ACCS;
        for (r, x) in x.iter().enumerate() {
            for d in 0..DIGITS {
                // SAFETY: the caller's contract: this digit of columns 4·j to 4·j + 3 belongs to the block.
                let x = unsafe { x.add(4 * (DIGITS * j + d)).cast::<i32>().read_unaligned() };
                let x = _mm256_set1_epi32(x);
                for (sums, w) in sums.iter_mut().zip(&w) {
                    let sum = &mut sums[r][d][a];
                    *sum = _mm256_dpbusd_avx_epi32(*sum, w[j], x);
                }
            }
        }
    }
}

/// Adds to `sums` the products of a chunk. `x[r]` is at the chunk's first column.
///
/// # Safety
/// `x[r]` must be readable for the columns of `chunk`, `DIGITS` bytes each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn add_chunk<
    const BITS: u8,
    const HALVES: usize,
    const ROWS: usize,
    const DIGITS: usize,
    const ACCS: usize,
>(
    sums: &mut Sums<HALVES, ROWS, DIGITS, ACCS>,
    chunk: &[Block],
    first_half: usize,
    mut x: [*const u8; ROWS],
) {
    let columns = block_columns(BITS);
    // Four blocks at a time: one alone has too few products to use several partial sums.
    let (fours, rest) = chunk.as_chunks::<4>();
    for four in fours {
        for (b, block) in four.iter().enumerate() {
            // SAFETY: `x` is at the block's first column.
            unsafe {
                add_block::<BITS, HALVES, ROWS, DIGITS, ACCS>(
                    sums,
                    b * (columns / 4),
                    block,
                    first_half,
                    &x,
                );
            }
            x = x.map(|x| x.wrapping_add(DIGITS * columns));
        }
    }
    for block in rest {
        // SAFETY: `x` is at the block's first column.
        unsafe {
            add_block::<BITS, HALVES, ROWS, DIGITS, ACCS>(sums, 0, block, first_half, &x);
        }
        x = x.map(|x| x.wrapping_add(DIGITS * columns));
    }
}

/// The sum of partial sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn add_up<const ACCS: usize>(acc: &[__m256i; ACCS]) -> __m256i {
    let mut sum = acc[0];
    for a in &acc[1..] {
        sum = _mm256_add_epi32(sum, *a);
    }
    sum
}
