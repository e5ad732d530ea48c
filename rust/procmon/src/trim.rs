//! `malloc_trim(0)` with `RssAnon` before and after.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::ProcError;
use crate::os;
use crate::procfs::{Detail, Procfs};

/// What giving free heap pages back did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrimResult {
    /// `RssAnon` of this process before the call.
    pub rss_anon_before_bytes: u64,
    /// `RssAnon` of this process after it. Other threads allocate meanwhile: it may be more than before.
    pub rss_anon_after_bytes: u64,
    /// Time in `malloc_trim` alone.
    pub elapsed_ns: u64,
    /// What `malloc_trim` returned: whether any page was given back.
    pub released: bool,
    /// File name of the library or program whose `malloc` this process uses.
    pub allocator: String,
    /// Why the call can have had no effect, or was not made at all.
    pub note: Option<String>,
}

/// Give this process's free heap pages back to the kernel.
///
/// # Errors
/// When `/proc/self` cannot be read.
pub fn malloc_trim() -> Result<TrimResult, ProcError> {
    let procfs = Procfs::default();
    let pid = std::process::id();
    let rss_anon = || -> Result<u64, ProcError> {
        Ok(procfs
            .process_memory(pid, Detail::Rss)?
            .status
            .rss_anon_bytes)
    };
    let rss_anon_before_bytes = rss_anon()?;
    let start = Instant::now();
    let trim = os::malloc_trim_symbol();
    let released = trim.is_some_and(os::call_malloc_trim);
    let elapsed_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let malloc = os::malloc_provider();
    Ok(TrimResult {
        rss_anon_before_bytes,
        rss_anon_after_bytes: rss_anon()?,
        elapsed_ns,
        released,
        allocator: malloc
            .as_deref()
            .map_or_else(|| "unknown".to_owned(), file_name),
        note: note(malloc, os::malloc_trim_provider()),
    })
}

/// `malloc_trim` works on the heap of the library that defines it, so it is of use only when `malloc`
/// comes from the same one.
fn note(malloc: Option<PathBuf>, trim: Option<PathBuf>) -> Option<String> {
    let Some(trim) = trim else {
        return Some("this C library has no malloc_trim: nothing was called".to_owned());
    };
    match malloc {
        Some(malloc) if malloc == trim => None,
        Some(malloc) => Some(format!(
            "malloc is {}'s, malloc_trim is {}'s: the call does not reach this allocator's free pages",
            file_name(&malloc),
            file_name(&trim),
        )),
        None => Some("the library that provides malloc is unknown".to_owned()),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_says_when_the_allocator_is_not_the_c_librarys() {
        let path = |name: &str| Some(PathBuf::from("/usr/lib").join(name));
        assert_eq!(note(path("libc.so.6"), path("libc.so.6")), None);
        assert_eq!(
            note(path("libtcmalloc.so.4"), path("libc.so.6")).as_deref(),
            Some(
                "malloc is libtcmalloc.so.4's, malloc_trim is libc.so.6's: the call does not reach this \
                 allocator's free pages"
            ),
        );
        assert_eq!(
            note(path("ld-musl-x86_64.so.1"), None).as_deref(),
            Some("this C library has no malloc_trim: nothing was called"),
        );
        assert!(note(None, path("libc.so.6")).is_some());
    }
}
