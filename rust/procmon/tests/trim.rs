//! `malloc_trim` on this process's own heap.

use procmon::malloc_trim;

const BLOCKS: usize = 4096;
const BLOCK_BYTES: usize = 16 << 10;

/// Blocks below glibc's mmap threshold go to the heap. While the last one is held, the free ones below it
/// cannot go back to the kernel by themselves: only a trim returns them.
#[test]
fn free_heap_pages_are_given_back() {
    let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| vec![1_u8; BLOCK_BYTES]).collect();
    let held = vec![1_u8; BLOCK_BYTES];
    drop(blocks);
    let trim = malloc_trim().unwrap();
    assert_eq!(held.len(), BLOCK_BYTES);
    assert_eq!(
        trim.note, None,
        "the test program uses the C library's malloc"
    );
    assert!(trim.released);
    assert!(trim.elapsed_ns > 0);
    assert!(trim.allocator.starts_with("libc"), "{}", trim.allocator);
    let returned = trim
        .rss_anon_before_bytes
        .saturating_sub(trim.rss_anon_after_bytes);
    assert!(
        returned > (BLOCKS * BLOCK_BYTES / 2) as u64,
        "{returned} bytes came back of {} freed",
        BLOCKS * BLOCK_BYTES
    );
}
