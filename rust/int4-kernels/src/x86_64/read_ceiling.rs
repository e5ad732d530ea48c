//! The reading loop of [`crate::read_ceiling`], per instruction set.
//!
//! ```text
//! for each step of 256 bytes: sum[i] += load(step, i)    # independent sums, one load and one add each
//! ```
//!
//! Both loops are limited by memory alone. Loads and prefetches are the microkernels' own: without the
//! prefetches a core reads a few percent less, because the hardware prefetcher restarts at every page.

use std::arch::x86_64::*;

use super::{avx2, avx512};
use crate::isa::{Isa, IsaLevel, IsaSet};
use crate::read_ceiling::{STEP_BYTES, sum_bytes};

/// Wrapping sum of the 64-bit words of `steps`, with the widest loads this machine has.
pub(crate) fn sum_steps(steps: &[[u8; STEP_BYTES]]) -> u64 {
    let machine = IsaSet::detect_up_to(IsaLevel::Avx512);
    if machine.contains(Isa::Avx512) {
        // SAFETY: the machine has AVX-512 F.
        unsafe { sum_avx512(steps) }
    } else if machine.contains(Isa::Avx2) {
        // SAFETY: the machine has AVX2.
        unsafe { sum_avx2(steps) }
    } else {
        sum_bytes(steps.as_flattened())
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sum_avx512(steps: &[[u8; STEP_BYTES]]) -> u64 {
    let mut sums = [_mm512_setzero_si512(); STEP_BYTES / 64];
    for step in steps {
        for (line, sum) in step.as_chunks().0.iter().zip(&mut sums) {
            *sum = _mm512_add_epi64(*sum, avx512::load_block(line));
        }
    }
    let [a, b, c, d] = sums;
    let sum = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
    _mm512_reduce_add_epi64(sum).cast_unsigned()
}

#[target_feature(enable = "avx2,fma,f16c")]
fn sum_avx2(steps: &[[u8; STEP_BYTES]]) -> u64 {
    let mut sums = [[_mm256_setzero_si256(); 2]; STEP_BYTES / 64];
    for step in steps {
        let lines = step.as_chunks().0.as_chunks().0;
        for (line, sums) in lines.iter().zip(&mut sums) {
            for (half, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_add_epi64(*sum, avx2::load_half(line, half));
            }
        }
    }
    let mut words = [0u64; 4];
    for sum in sums.as_flattened() {
        let mut lanes = [0u64; 4];
        // SAFETY: the array holds the 32 bytes that are written, at any alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), *sum) };
        for (word, lane) in words.iter_mut().zip(lanes) {
            *word = word.wrapping_add(lane);
        }
    }
    words.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_gives_the_same_sum() {
        let steps: Vec<[u8; STEP_BYTES]> = (0..9u32)
            .map(|s| std::array::from_fn(|i| (s * 77 + i as u32 * 201) as u8 | 0x80))
            .collect();
        let expected = sum_bytes(steps.as_flattened());
        let machine = IsaSet::detect();
        if machine.contains(Isa::Avx512) {
            // SAFETY: the machine has AVX-512 F.
            assert_eq!(unsafe { sum_avx512(&steps) }, expected);
        }
        if machine.contains(Isa::Avx2) {
            // SAFETY: the machine has AVX2.
            assert_eq!(unsafe { sum_avx2(&steps) }, expected);
        }
        assert_eq!(sum_steps(&steps), expected);
    }
}
