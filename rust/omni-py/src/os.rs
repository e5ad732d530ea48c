//! Memory and code that this module does not own: symbols of loaded libraries, and Python's buffers.

use std::ffi::{CStr, CString, c_void};

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A shared library that the process has loaded already. Never closed.
#[derive(Clone, Copy)]
pub struct LoadedLibrary(usize);

impl LoadedLibrary {
    /// The library at `path` if it is loaded. Loads nothing.
    pub fn find(path: &str) -> Option<Self> {
        let path = CString::new(path).ok()?;
        // SAFETY: `path` is NUL-terminated; RTLD_NOLOAD only looks the library up.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        (!handle.is_null()).then_some(Self(handle as usize))
    }

    /// The address of an exported symbol.
    pub fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle came from dlopen and is never closed; dlsym only looks a name up.
        let address = unsafe { libc::dlsym(self.0 as *mut c_void, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

/// The elements of a C-contiguous buffer. `name` is what an error calls it.
///
/// The exporter keeps the memory alive while `buffer` lives. Python may run other threads meanwhile
/// (`Python::detach`): that none of them writes to the memory is what the caller in Python owes, and
/// the stub file says so. Buffers that overlap are refused where one of them is written to.
pub fn elements<'a, T: Element>(buffer: &'a PyBuffer<T>, name: &str) -> PyResult<&'a [T]> {
    let memory = contiguous(buffer, name)?;
    if buffer.item_count() == 0 {
        return Ok(&[]);
    }
    // SAFETY: a C-contiguous buffer of `item_count` aligned elements (PyBuffer checked type and
    // alignment), alive as long as `buffer`.
    Ok(unsafe { std::slice::from_raw_parts(memory, buffer.item_count()) })
}

/// The elements of a writable C-contiguous buffer.
pub fn elements_mut<'a, T: Element>(
    buffer: &'a mut PyBuffer<T>,
    name: &str,
) -> PyResult<&'a mut [T]> {
    if buffer.readonly() {
        return Err(PyValueError::new_err(format!(
            "{name}: expected a writable buffer"
        )));
    }
    let memory = contiguous(buffer, name)?.cast_mut();
    if buffer.item_count() == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `elements`, and writable; callers refuse other buffers over the same memory
    // (`overlaps`).
    Ok(unsafe { std::slice::from_raw_parts_mut(memory, buffer.item_count()) })
}

/// Whether two buffers share memory.
pub fn overlaps<T: Element, U: Element>(a: &PyBuffer<T>, b: &PyBuffer<U>) -> bool {
    let range = |start: *mut c_void, bytes: usize| (start.addr(), start.addr() + bytes);
    let (a_start, a_end) = range(a.buf_ptr(), a.len_bytes());
    let (b_start, b_end) = range(b.buf_ptr(), b.len_bytes());
    a_start < b_end && b_start < a_end
}

fn contiguous<T: Element>(buffer: &PyBuffer<T>, name: &str) -> PyResult<*const T> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err(format!(
            "{name}: expected a C-contiguous buffer"
        )));
    }
    Ok(buffer.buf_ptr().cast_const().cast())
}
