//! Reading memory as fast as the machine can: the ceiling that a GEMV is measured against.
//!
//! Decode reads every packed byte once and does little with it, so its speed is a fraction of what
//! reading alone would reach. [`read_ceiling`] reads with the widest loads the machine has, prefetches
//! like the microkernels, runs on the same team of threads, and keeps the compiler honest by returning
//! a checksum.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::parallel::Parallel;

/// What one step reads: four cache lines, one accumulator each.
pub(crate) const STEP_BYTES: usize = 256;

/// Parts per thread: a thread that is held up leaves its share to the others, as in the driver.
const PARTS_PER_THREAD: usize = 4;

/// Reads all of `bytes` once and returns the wrapping sum of its little-endian 64-bit words (the last
/// one filled up with zeros), which does not depend on the machine or the number of threads.
pub fn read_ceiling(bytes: &[u8], parallel: &dyn Parallel) -> u64 {
    let (steps, rest) = bytes.as_chunks::<STEP_BYTES>();
    let part = steps
        .len()
        .div_ceil(parallel.threads() * PARTS_PER_THREAD)
        .max(1);
    let parts: Vec<_> = steps.chunks(part).collect();
    let sum = AtomicU64::new(sum_bytes(rest));
    parallel.run(parts.len(), &|i| {
        // Addition on atomics wraps.
        sum.fetch_add(sum_steps(parts[i]), Ordering::Relaxed);
    });
    sum.into_inner()
}

#[cfg(target_arch = "x86_64")]
use crate::x86_64::read_ceiling::sum_steps;

#[cfg(not(target_arch = "x86_64"))]
fn sum_steps(steps: &[[u8; STEP_BYTES]]) -> u64 {
    sum_bytes(steps.as_flattened())
}

/// The same sum without any instruction set.
pub(crate) fn sum_bytes(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0, |sum: u64, word| {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        sum.wrapping_add(u64::from_le_bytes(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::{ScopedThreads, Serial};

    #[test]
    fn the_sum_is_that_of_all_words() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for start in [0, 1, 7, 64] {
            for len in [0, 1, 8, 255, 256, 257, 1024, 4900] {
                let bytes = &bytes[start..start + len];
                let expected = sum_bytes(bytes);
                assert_eq!(read_ceiling(bytes, &Serial), expected, "{start} {len}");
                assert_eq!(
                    read_ceiling(bytes, &ScopedThreads(3)),
                    expected,
                    "{start} {len}"
                );
            }
        }
        assert_eq!(read_ceiling(&[1, 0, 0, 0, 0, 0, 0, 0, 2], &Serial), 3);
    }
}
