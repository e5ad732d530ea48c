//! Which kernel read which packed tensor how often: a table of fixed size, counted without a lock.
//!
//! A call costs one multiplication, a load and one atomic addition (two loads more when its slot is shared).
//! A tensor is the address of its first byte: one that is freed and another at the same address count as
//! one, until the counts are reset.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Slots looked at before a call is counted without its tensor.
const PROBES: usize = 16;

/// Bits of a key that hold the kernel.
const KERNEL_BITS: u32 = 8;

/// What one kernel did since the last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Distinct packed tensors. A lower bound when `untracked` is not 0.
    pub tensors: usize,
    /// Calls, the untracked ones included.
    pub calls: u64,
    /// Calls whose tensor found no room in the table.
    pub untracked: u64,
}

struct Slot {
    /// `address / 4 << KERNEL_BITS | kernel`; 0 is free. Written once between two resets, so that counting
    /// needs no lock.
    key: AtomicU64,
    calls: AtomicU64,
}

/// Counts for `KERNELS` kernels (at most 256) and up to `SLOTS` (a power of two) pairs of kernel and tensor.
pub struct CallCounts<const SLOTS: usize, const KERNELS: usize> {
    slots: [Slot; SLOTS],
    untracked: [AtomicU64; KERNELS],
    used: AtomicUsize,
}

impl<const SLOTS: usize, const KERNELS: usize> CallCounts<SLOTS, KERNELS> {
    const VALID: () = assert!(SLOTS.is_power_of_two() && KERNELS <= 1 << KERNEL_BITS);

    /// Nothing counted. All zero, so that a static of it takes no memory until it is used.
    #[must_use]
    #[allow(
        clippy::new_without_default,
        reason = "a table this large belongs in a static, not on a stack"
    )]
    pub const fn new() -> Self {
        const { Self::VALID };
        Self {
            slots: [const {
                Slot {
                    key: AtomicU64::new(0),
                    calls: AtomicU64::new(0),
                }
            }; SLOTS],
            untracked: [const { AtomicU64::new(0) }; KERNELS],
            used: AtomicUsize::new(0),
        }
    }

    /// Counts one call of `kernel` on the tensor that starts at `packed`. Two tensors are told apart when they
    /// start 4 bytes or more from each other.
    #[inline]
    pub fn count(&self, kernel: usize, packed: &[u8]) {
        let address = packed.as_ptr().addr() as u64;
        let key = address >> 2 << KERNEL_BITS | kernel as u64;
        match self.slot(key) {
            Some(slot) => slot.calls.fetch_add(1, Ordering::Relaxed),
            None => self.untracked[kernel].fetch_add(1, Ordering::Relaxed),
        };
    }

    fn slot(&self, key: u64) -> Option<&Slot> {
        // Fibonacci hashing: the upper bits of the product depend on every bit of the key.
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (hash >> 32) as usize;
        for probe in 0..PROBES.min(SLOTS) {
            let slot = &self.slots[(first + probe) % SLOTS];
            let found = slot.key.load(Ordering::Relaxed);
            if found == key {
                return Some(slot);
            }
            if found == 0 {
                match slot
                    .key
                    .compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed)
                {
                    Ok(_) => {
                        self.used.fetch_add(1, Ordering::Relaxed);
                        return Some(slot);
                    }
                    Err(other) if other == key => return Some(slot),
                    Err(_) => {}
                }
            }
        }
        None
    }

    /// What was counted for `kernel`.
    #[must_use]
    pub fn of(&self, kernel: usize) -> Calls {
        let untracked = self.untracked[kernel].load(Ordering::Relaxed);
        let mut found = Calls {
            tensors: 0,
            calls: untracked,
            untracked,
        };
        for slot in &self.slots {
            let calls = slot.calls.load(Ordering::Relaxed);
            let key = slot.key.load(Ordering::Relaxed);
            // A call in flight during a reset may have counted on a slot that is free by now.
            if calls != 0 && key != 0 && key & ((1 << KERNEL_BITS) - 1) == kernel as u64 {
                found.tensors += 1;
                found.calls += calls;
            }
        }
        found
    }

    /// Starts over with an empty table. To be called while no kernel runs: a call in flight may be lost, or
    /// count for the tensor that takes its slot next.
    pub fn reset(&self) {
        for slot in &self.slots {
            // A page of the table that was never written stays unbacked.
            if slot.key.load(Ordering::Relaxed) != 0 || slot.calls.load(Ordering::Relaxed) != 0 {
                slot.key.store(0, Ordering::Relaxed);
                slot.calls.store(0, Ordering::Relaxed);
            }
        }
        for calls in &self.untracked {
            calls.store(0, Ordering::Relaxed);
        }
        self.used.store(0, Ordering::Relaxed);
    }

    /// Pairs of kernel and tensor seen since the last reset.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(tensors: usize, calls: u64, untracked: u64) -> Calls {
        Calls {
            tensors,
            calls,
            untracked,
        }
    }

    #[test]
    fn tensors_and_calls_are_told_apart() {
        static COUNTS: CallCounts<64, 3> = CallCounts::new();
        let memory = vec![0u8; 256];
        for _ in 0..5 {
            COUNTS.count(0, &memory);
            COUNTS.count(0, &memory[64..]);
            COUNTS.count(1, &memory);
        }
        // A shorter view that starts at the same byte is the same tensor.
        COUNTS.count(0, &memory[..64]);
        assert_eq!(COUNTS.of(0), calls(2, 11, 0));
        assert_eq!(COUNTS.of(1), calls(1, 5, 0));
        assert_eq!(COUNTS.of(2), calls(0, 0, 0));
        COUNTS.reset();
        assert_eq!(COUNTS.of(0), calls(0, 0, 0));
        COUNTS.count(0, &memory);
        assert_eq!(COUNTS.of(0), calls(1, 1, 0));
        assert_eq!(COUNTS.used(), 1);
    }

    #[test]
    fn a_full_table_says_so_and_loses_no_call() {
        static COUNTS: CallCounts<8, 1> = CallCounts::new();
        let memory = vec![0u8; 64 * 20];
        for first in (0..20).map(|tensor| 64 * tensor) {
            COUNTS.count(0, &memory[first..]);
        }
        assert_eq!(COUNTS.of(0), calls(8, 20, 12));
        assert_eq!(COUNTS.used(), 8);
        // The tensors of an earlier model take no room from those of the next one.
        COUNTS.reset();
        for first in (8..16).map(|tensor| 64 * tensor) {
            COUNTS.count(0, &memory[first..]);
        }
        assert_eq!(COUNTS.of(0), calls(8, 8, 0));
    }

    #[test]
    fn threads_lose_no_call() {
        static COUNTS: CallCounts<1024, 2> = CallCounts::new();
        let memory = vec![0u8; 64 * 100];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 0..1000 {
                        COUNTS.count(thread % 2, &memory[64 * (round % 100)..]);
                    }
                });
            }
        });
        assert_eq!(COUNTS.of(0), calls(100, 2000, 0));
        assert_eq!(COUNTS.of(1), calls(100, 2000, 0));
        assert_eq!(COUNTS.used(), 200);
    }
}
