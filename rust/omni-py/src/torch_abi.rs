//! torch's stable C ABI: the symbols in use, tensors as slices, and errors as torch raises them.
//!
//! torch is loaded by Python with its symbols local, so they are looked up in the libraries' own
//! handles (never linked, never loaded from here). Nothing here knows what an operator computes.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::os::LoadedLibrary;

mod tensor;
mod threads;

pub use tensor::{DType, Rows, Scalar, Tensor, View};
pub use threads::TorchThreads;

/// `AtenTensorHandle`.
type Handle = *mut c_void;

/// A boxed kernel: `stack[0..inputs]` hold the arguments, owned by the kernel, and receive the
/// results. It may raise a C++ exception.
type BoxedKernel = unsafe extern "C-unwind" fn(stack: *mut u64, inputs: u64, outputs: u64);

/// torch 2.10: the oldest ABI relied upon, in torch's own encoding.
const BUILT_FOR: u64 = (2 << 56) | (10 << 48);

const CPU_DEVICE: i32 = 0;

type Callback = unsafe extern "C" fn(begin: i64, end: i64, context: *mut c_void);

macro_rules! symbols {
    ($($field:ident = $name:literal: $signature:ty;)*) => {
        /// The functions in use. Each type is the signature in torch's `shim.h` of that name.
        struct Torch { $($field: $signature,)* }

        impl Torch {
            fn bind(libraries: &[LoadedLibrary]) -> Result<Self, String> {
                let find = |name: &'static CStr| {
                    libraries.iter().find_map(|l| l.symbol(name)).ok_or_else(|| {
                        format!("this torch lacks the symbol {}", name.to_string_lossy())
                    })
                };
                Ok(Self { $(
                    // SAFETY: the field's type is the signature torch declares for this name.
                    $field: unsafe { std::mem::transmute::<*mut c_void, $signature>(find($name)?) },
                )* })
            }
        }
    };
}

symbols! {
    delete_tensor = c"aoti_torch_delete_tensor_object": unsafe extern "C" fn(Handle) -> c_int;
    const_data_ptr = c"torch_get_const_data_ptr": unsafe extern "C" fn(Handle, *mut *const c_void) -> c_int;
    mutable_data_ptr = c"torch_get_mutable_data_ptr": unsafe extern "C" fn(Handle, *mut *mut c_void) -> c_int;
    dim = c"aoti_torch_get_dim": unsafe extern "C" fn(Handle, *mut i64) -> c_int;
    sizes = c"aoti_torch_get_sizes": unsafe extern "C" fn(Handle, *mut *const i64) -> c_int;
    strides = c"aoti_torch_get_strides": unsafe extern "C" fn(Handle, *mut *const i64) -> c_int;
    dtype = c"aoti_torch_get_dtype": unsafe extern "C" fn(Handle, *mut i32) -> c_int;
    device_type = c"aoti_torch_get_device_type": unsafe extern "C" fn(Handle, *mut i32) -> c_int;
    empty_strided = c"aoti_torch_empty_strided": unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> c_int;
    copy = c"aoti_torch_copy_": unsafe extern "C" fn(Handle, Handle, i32) -> c_int;
    parallel_for = c"torch_parallel_for": unsafe extern "C" fn(i64, i64, i64, Callback, *mut c_void) -> c_int;
    num_threads = c"torch_get_num_threads": unsafe extern "C" fn(*mut u32) -> c_int;
    library_init = c"aoti_torch_library_init_impl": unsafe extern "C" fn(*const c_char, *const c_char, *const c_char, u32, *mut *mut c_void) -> c_int;
    library_impl = c"torch_library_impl": unsafe extern "C" fn(*mut c_void, *const c_char, BoxedKernel, u64) -> c_int;
    check_fail = c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_": unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char);
}

static TORCH: OnceLock<Torch> = OnceLock::new();

fn torch() -> &'static Torch {
    TORCH
        .get()
        .expect("kernels are registered only after the symbols were found")
}

/// Whether torch's symbols have been found.
pub fn is_bound() -> bool {
    TORCH.get().is_some()
}

/// Finds torch's symbols in the libraries under `lib_dir`, once per process.
pub fn bind(lib_dir: &str) -> Result<(), String> {
    if TORCH.get().is_some() {
        return Ok(());
    }
    let mut libraries = Vec::new();
    for name in ["libtorch_cpu.so", "libc10.so"] {
        let path = format!("{lib_dir}/{name}");
        let library =
            LoadedLibrary::find(&path).ok_or(format!("{name} is not loaded from {lib_dir}"))?;
        libraries.push(library);
    }
    let bound = Torch::bind(&libraries)?;
    TORCH.get_or_init(|| bound);
    Ok(())
}

/// An operator whose schema takes `T` tensors, then `I` integers, and returns a tensor.
pub trait Operator<const T: usize, const I: usize> {
    /// What an error's origin says.
    const NAME: &'static CStr;

    /// Computes the result. An `Err` becomes Python's RuntimeError.
    fn call(tensors: [Tensor; T], integers: [i64; I]) -> Result<Tensor, String>;
}

thread_local! {
    /// The message of the error being raised: torch copies it out.
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Takes the arguments off the stack, calls the operator, and leaves its result there. An error
/// comes back as its message, valid on this thread until the next one. Never unwinds.
///
/// # Safety
/// `stack` is the stack of a boxed call whose schema is `T` tensors and `I` integers.
unsafe fn call<O: Operator<T, I>, const T: usize, const I: usize>(
    stack: *mut u64,
) -> *const c_char {
    // SAFETY: the caller's promise; the kernel owns the tensors among its arguments.
    let (tensors, integers) = unsafe {
        (
            std::array::from_fn(|i| Tensor {
                handle: *stack.add(i) as Handle,
            }),
            std::array::from_fn(|i| *stack.add(T + i) as i64),
        )
    };
    let outcome =
        catch_unwind(AssertUnwindSafe(|| O::call(tensors, integers))).unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied());
            Err(format!("internal error: {}", text.unwrap_or("panic")))
        });
    match outcome {
        Ok(result) => {
            // SAFETY: slot 0 receives the result; the arguments were taken.
            unsafe { *stack = result.into_raw() };
            std::ptr::null()
        }
        Err(message) => MESSAGE.with_borrow_mut(|slot| {
            *slot = CString::new(message.replace('\0', " ")).unwrap_or_default();
            slot.as_ptr()
        }),
    }
}

/// The boxed kernel of an operator: [`call`], then an error as a C++ exception. This frame holds
/// nothing that needs dropping, so the exception may pass through it.
///
/// # Safety
/// As [`call`].
unsafe extern "C-unwind" fn boxed<O: Operator<T, I>, const T: usize, const I: usize>(
    stack: *mut u64,
    _inputs: u64,
    _outputs: u64,
) {
    // SAFETY: the caller's promise.
    let message = unsafe { call::<O, T, I>(stack) };
    if !message.is_null() {
        // SAFETY: three NUL-terminated strings; torch copies them and throws.
        unsafe {
            (torch().check_fail)(O::NAME.as_ptr(), c"torch_abi.rs".as_ptr(), line!(), message)
        };
    }
}

/// Registers the CPU kernel of `namespace::name`, which Python has given a schema of `T` tensors
/// and `I` integers.
pub fn register<O: Operator<T, I>, const T: usize, const I: usize>(
    namespace: &str,
    name: &str,
) -> Result<(), String> {
    let t = torch();
    let namespace_c = CString::new(namespace).map_err(|e| e.to_string())?;
    let name_c = CString::new(name).map_err(|e| e.to_string())?;
    let mut library = std::ptr::null_mut();
    // SAFETY: the strings are NUL-terminated and torch copies them; the library object is never
    // deleted, so the registration lasts for the process.
    let code = unsafe {
        let (file, line) = (c"torch_abi.rs".as_ptr(), line!());
        match (t.library_init)(
            namespace_c.as_ptr(),
            c"CPU".as_ptr(),
            file,
            line,
            &mut library,
        ) {
            0 => (t.library_impl)(library, name_c.as_ptr(), boxed::<O, T, I>, BUILT_FOR),
            code => code,
        }
    };
    if code != 0 {
        return Err(format!(
            "torch refused the CPU kernel of {namespace}::{name} (error code {code})"
        ));
    }
    Ok(())
}
