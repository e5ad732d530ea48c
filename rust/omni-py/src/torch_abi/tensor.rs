//! torch's tensors as slices.

use std::ffi::c_int;
use std::fmt::Display;

use super::{CPU_DEVICE, Handle, torch};

/// Element types that the operators take or give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    U8,
    I32,
    I64,
    F16,
    F32,
    Bf16,
}

impl DType {
    /// `ScalarType`, whose numbers are part of torch's serialized format and of its C ABI.
    fn code(self) -> i32 {
        match self {
            Self::U8 => 0,
            Self::I32 => 3,
            Self::I64 => 4,
            Self::F16 => 5,
            Self::F32 => 6,
            Self::Bf16 => 15,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 => 8,
        }
    }

    fn from_code(code: i32) -> Option<Self> {
        [
            Self::U8,
            Self::I32,
            Self::I64,
            Self::F16,
            Self::F32,
            Self::Bf16,
        ]
        .into_iter()
        .find(|d| d.code() == code)
    }
}

/// torch's name of a `ScalarType`, for messages.
fn dtype_name(code: i32) -> String {
    let names = [
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "bool",
        "qint8",
        "quint8",
        "qint32",
        "bfloat16",
    ];
    usize::try_from(code)
        .ok()
        .and_then(|i| names.get(i))
        .map_or(format!("ScalarType {code}"), |n| n.to_string())
}

/// A Rust type with the memory representation of a [`DType`], valid for every bit pattern.
pub trait Scalar: Copy {
    const DTYPE: DType;
}

macro_rules! scalars { ($($t:ty = $d:ident),*) => { $(impl Scalar for $t { const DTYPE: DType = DType::$d; })* }; }
scalars!(
    u8 = U8,
    i32 = I32,
    i64 = I64,
    half::f16 = F16,
    f32 = F32,
    half::bf16 = Bf16
);

/// `what` is asked for its text in case of failure only: this runs several times per call.
fn done<T: Display>(code: c_int, what: impl FnOnce() -> T) -> Result<(), String> {
    if code == 0 {
        Ok(())
    } else {
        Err(format!("{} failed in torch", what()))
    }
}

/// A tensor this kernel owns a reference to.
pub struct Tensor {
    pub(super) handle: Handle,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the handle is owned and deleted once.
        unsafe { (torch().delete_tensor)(self.handle) };
    }
}

impl Tensor {
    /// A contiguous uninitialized CPU tensor.
    pub fn empty(sizes: &[i64], dtype: DType) -> Result<Self, String> {
        let mut strides = vec![1i64; sizes.len()];
        for d in (1..sizes.len()).rev() {
            strides[d - 1] = strides[d]
                .checked_mul(sizes[d].max(1))
                .ok_or("the result is too large")?;
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: both arrays hold `sizes.len()` numbers, which torch copies.
        let code = unsafe {
            let (s, t) = (sizes.as_ptr(), strides.as_ptr());
            (torch().empty_strided)(
                sizes.len() as i64,
                s,
                t,
                dtype.code(),
                CPU_DEVICE,
                0,
                &mut handle,
            )
        };
        done(code, || {
            format!("allocating {} {sizes:?}", dtype_name(dtype.code()))
        })?;
        Ok(Self { handle })
    }

    /// Hands the reference to the caller of the kernel.
    pub fn into_raw(self) -> u64 {
        let handle = self.handle as u64;
        std::mem::forget(self);
        handle
    }

    /// Shape, type and memory, checked to be on the CPU.
    pub fn view(&self, name: &'static str) -> Result<View<'_>, String> {
        let t = torch();
        let (mut dim, mut code, mut device) = (0i64, 0i32, 0i32);
        let (mut sizes, mut strides, mut data) =
            (std::ptr::null(), std::ptr::null(), std::ptr::null());
        // SAFETY: the handle is alive; each call writes its out parameter or returns an error code.
        let failed = unsafe {
            (t.device_type)(self.handle, &mut device)
                | (t.dim)(self.handle, &mut dim)
                | (t.sizes)(self.handle, &mut sizes)
                | (t.strides)(self.handle, &mut strides)
                | (t.dtype)(self.handle, &mut code)
        };
        done(failed, || format!("reading the shape of {name}"))?;
        if device != CPU_DEVICE {
            return Err(format!("{name}: expected a tensor on the CPU"));
        }
        done(
            // SAFETY: as above; the device is the CPU.
            unsafe { (t.const_data_ptr)(self.handle, &mut data) },
            || format!("reading {name}"),
        )?;
        let dim = dim as usize;
        // SAFETY: torch lends `dim` sizes and strides for as long as the tensor lives unchanged,
        // which the borrow of `self` covers. At dim 0 the pointers may be null.
        let (sizes, strides): (&[i64], &[i64]) = unsafe {
            if dim == 0 {
                (&[], &[])
            } else {
                (
                    std::slice::from_raw_parts(sizes, dim),
                    std::slice::from_raw_parts(strides, dim),
                )
            }
        };
        Ok(View {
            name,
            data: data.cast(),
            code,
            sizes,
            strides,
            tensor: self,
        })
    }

    /// The elements of a contiguous tensor made by [`Tensor::empty`].
    pub fn elements_mut<T: Scalar>(&mut self, count: usize) -> Result<&mut [T], String> {
        let mut data = std::ptr::null_mut();
        done(
            // SAFETY: the handle is alive.
            unsafe { (torch().mutable_data_ptr)(self.handle, &mut data) },
            || "reading the result",
        )?;
        if count == 0 {
            return Ok(&mut []);
        }
        // SAFETY: `empty` allocated `count` elements of T's type, aligned, and nobody else holds
        // them yet. Any bit pattern is a valid T; the kernels overwrite all of them.
        Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), count) })
    }
}

/// A borrowed look at a tensor.
pub struct View<'a> {
    name: &'static str,
    data: *const u8,
    code: i32,
    /// Length of each dimension.
    pub sizes: &'a [i64],
    strides: &'a [i64],
    tensor: &'a Tensor,
}

/// Rows of a matrix: `elements[r * stride..][..columns]`.
pub struct Rows<'a, T> {
    pub elements: &'a [T],
    pub stride: usize,
}

impl<'a> View<'a> {
    /// The element type, or an error naming it.
    pub fn dtype(&self, allowed: &[DType]) -> Result<DType, String> {
        DType::from_code(self.code)
            .filter(|d| allowed.contains(d))
            .ok_or_else(|| {
                let names: Vec<_> = allowed.iter().map(|d| dtype_name(d.code())).collect();
                format!(
                    "{}: expected {}, got {}",
                    self.name,
                    names.join(" or "),
                    dtype_name(self.code)
                )
            })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.sizes.iter().map(|&s| s as usize).product()
    }

    /// The elements in order when they are contiguous in memory and aligned.
    pub fn contiguous<T: Scalar>(&self) -> Option<&'a [T]> {
        let mut expected = 1;
        for (&size, &stride) in self.sizes.iter().zip(self.strides).rev() {
            if size != 1 && stride != expected {
                return None;
            }
            expected *= size.max(1);
        }
        self.slice(self.len())
    }

    /// `columns` at a time over the last dimension, when its elements are adjacent and the leading
    /// dimensions collapse into rows at one stride.
    pub fn rows<T: Scalar>(&self, columns: usize) -> Option<Rows<'a, T>> {
        let (last, leading) = (self.sizes.len() - 1, ..self.sizes.len() - 1);
        if columns > 1 && self.strides[last] != 1 {
            return None;
        }
        let (mut stride, mut next, mut count) = (None, 0, 1usize);
        for (&size, &step) in self.sizes[leading].iter().zip(&self.strides[leading]).rev() {
            count *= size as usize;
            if size == 1 {
                continue;
            }
            if stride.is_some() && step != next {
                return None;
            }
            stride = stride.or(Some(step));
            next = step * size;
        }
        let stride = stride.map_or(columns, |s| s as usize);
        if stride < columns || count == 0 {
            return None;
        }
        if columns == 0 {
            // Such a tensor may have no memory, whatever its strides say.
            return Some(Rows {
                elements: &[],
                stride: 0,
            });
        }
        let elements = self.slice((count - 1) * stride + columns)?;
        Some(Rows { elements, stride })
    }

    /// A contiguous copy of the tensor.
    pub fn copied(&self) -> Result<Tensor, String> {
        let dtype = DType::from_code(self.code).ok_or("copying a tensor of another type")?;
        let copy = Tensor::empty(self.sizes, dtype)?;
        done(
            // SAFETY: two live tensors of the same shape and type.
            unsafe { (torch().copy)(copy.handle, self.tensor.handle, 0) },
            || format!("copying {}", self.name),
        )?;
        Ok(copy)
    }

    fn slice<T: Scalar>(&self, count: usize) -> Option<&'a [T]> {
        debug_assert_eq!(T::DTYPE.bytes(), size_of::<T>());
        if self.code != T::DTYPE.code() || !(self.data as usize).is_multiple_of(align_of::<T>()) {
            return None;
        }
        if count == 0 {
            return Some(&[]);
        }
        // SAFETY: the type is T's, the pointer is aligned, and the callers count elements that the
        // sizes and strides place inside the tensor's storage, alive while the tensor is.
        Some(unsafe { std::slice::from_raw_parts(self.data.cast(), count) })
    }
}
