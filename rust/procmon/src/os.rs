//! The C library: symbols found at run time. The only `unsafe` of this crate.

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

/// The C library's `malloc_trim`, when it has one (glibc does, musl does not).
pub(crate) fn malloc_trim_symbol() -> Option<unsafe extern "C" fn(usize) -> c_int> {
    let address = symbol(c"malloc_trim")?;
    // SAFETY: the address is that of glibc's `int malloc_trim(size_t pad)`; no other library exports the
    // name with another signature (allocators that replace malloc either leave it or keep its type).
    Some(unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> c_int>(address)
    })
}

/// Give free heap pages back to the kernel, with no slack kept. `true` when any were.
pub(crate) fn call_malloc_trim(trim: unsafe extern "C" fn(usize) -> c_int) -> bool {
    // SAFETY: malloc_trim is thread-safe (it takes each arena's lock) and has no precondition.
    unsafe { trim(0) == 1 }
}

/// The library or program whose `malloc` this process calls.
pub(crate) fn malloc_provider() -> Option<PathBuf> {
    provider(symbol(c"malloc")?)
}

/// The library or program whose `malloc_trim` would be called.
pub(crate) fn malloc_trim_provider() -> Option<PathBuf> {
    provider(symbol(c"malloc_trim")?)
}

/// First definition of `name` in the process's lookup order, preloaded libraries included.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `name` ends in NUL, and RTLD_DEFAULT is a valid handle at any time.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn provider(address: *mut c_void) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: `info` is a valid place for the answer; any address may be asked about.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr filled in a NUL-terminated path that lives as long as the library stays loaded; it is
    // copied at once, and libraries that provide malloc are never unloaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(path.to_string_lossy().into_owned()))
}
