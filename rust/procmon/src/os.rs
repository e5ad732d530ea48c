//! The C library and the kernel: symbols found at run time, clocks, memory policy. The only `unsafe` of this
//! crate.

use std::ffi::{CStr, c_int, c_void};
use std::io;
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

/// Kernel clock ticks per second: the unit of times in `/proc/stat` and `/proc/<pid>/stat`.
pub(crate) fn ticks_per_second() -> u64 {
    // SAFETY: sysconf has no precondition.
    let found = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(found)
        .ok()
        .filter(|ticks| *ticks > 0)
        .unwrap_or(100)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Time since boot, sleep included: what a task's start is counted from.
pub(crate) fn since_boot_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the answer. Both clocks exist on every Linux in use; on failure
    // `time` stays zero.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    u64::try_from(time.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// `set_mempolicy(2)` of the calling thread; `nodes` is a bit mask, empty for the default policy.
pub(crate) fn set_memory_policy(mode: c_int, nodes: &[libc::c_ulong]) -> io::Result<()> {
    let mask = if nodes.is_empty() {
        ptr::null()
    } else {
        nodes.as_ptr()
    };
    // The kernel reads one bit less than it is told.
    let bits = nodes.len() * libc::c_ulong::BITS as usize + 1;
    // SAFETY: `mask` is null or holds at least `bits - 1` bits; the kernel only reads it.
    let code = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) };
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
