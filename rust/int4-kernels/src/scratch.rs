//! Buffers that live as long as their thread, so that a call in steady state allocates nothing.

use std::cell::Cell;
use std::thread::LocalKey;

/// Words of a cache line: the alignment of what is handed out.
const LINE_WORDS: usize = 16;

thread_local! {
    static PREPARED: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    static WIDENED: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

/// `words` words for prepared activations, aligned to a cache line, contents unspecified.
pub(crate) fn with_prepared<R>(words: usize, f: impl FnOnce(&mut [u32]) -> R) -> R {
    with(&PREPARED, words, f)
}

/// `len` fp32 for one row on its way into a form, aligned to a cache line, contents unspecified.
pub(crate) fn with_widened<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    with(&WIDENED, len, |words| f(bytemuck::cast_slice_mut(words)))
}

/// The buffer is taken out of its cell for the time of the call: a nested call, or a panic, finds an
/// empty one and grows it anew.
fn with<R>(
    buffer: &'static LocalKey<Cell<Vec<u32>>>,
    words: usize,
    f: impl FnOnce(&mut [u32]) -> R,
) -> R {
    let mut owned = buffer.take();
    if owned.len() < words + LINE_WORDS {
        owned = vec![0; words + LINE_WORDS];
    }
    let skip = owned.as_ptr().align_offset(4 * LINE_WORDS);
    let result = f(&mut owned[skip..skip + words]);
    buffer.set(owned);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_reused() {
        let first = with_prepared(100, |words| {
            assert_eq!(words.len(), 100);
            words.as_ptr().addr()
        });
        assert_eq!(first % 64, 0);
        let second = with_prepared(50, |words| words.as_ptr().addr());
        assert_eq!(first, second);
    }

    #[test]
    fn a_nested_call_gets_its_own_buffer() {
        with_prepared(8, |outer| {
            outer.fill(1);
            with_prepared(8, |inner| inner.fill(2));
            assert!(outer.iter().all(|word| *word == 1));
        });
    }
}
