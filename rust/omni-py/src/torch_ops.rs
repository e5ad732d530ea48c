//! The operators' native CPU kernels: what they check, and the call into `int4-kernels`.
//! `vllm_omni/portable.py` states the same contract in Python.

use std::ffi::CStr;

use half::{bf16, f16};
use int4_kernels::{Activations, Numerics, Outputs, PackedTensor};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::dense_ops::{DenseEmbedding, DenseLinear};
use crate::isa;
use crate::kernel_calls;
use crate::torch_abi::{self, DType, Operator, Rows, Scalar, Tensor, TorchThreads, View};

pub(crate) const FLOATS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// An element type of activations, with its variants of the driver's operands.
pub(crate) trait Float: Scalar {
    fn activations(elements: &[Self]) -> Activations<'_>;
    fn outputs(elements: &mut [Self]) -> Outputs<'_>;
}

macro_rules! floats {
    ($($t:ty = $variant:ident),*) => { $(
        impl Float for $t {
            fn activations(elements: &[Self]) -> Activations<'_> {
                Activations::$variant(elements)
            }
            fn outputs(elements: &mut [Self]) -> Outputs<'_> {
                Outputs::$variant(elements)
            }
        }
    )* };
}
floats!(bf16 = Bf16, f16 = F16, f32 = F32);

/// The operator's `activation` argument.
pub fn numerics(activation: i64) -> Result<Numerics, String> {
    match activation {
        0 => Ok(Numerics::Native),
        32 | 128 => Ok(Numerics::Int8 {
            max_chunk: activation as usize,
        }),
        _ => Err(format!(
            "activation: expected 0 (native), 32 or 128 (int8 columns), got {activation}"
        )),
    }
}

/// A packed tensor of the shape that the caller states, and its bytes.
fn packed_tensor<'a>(
    packed: &View<'a>,
    n: i64,
    k: i64,
) -> Result<(PackedTensor<'a>, &'a [u8]), String> {
    packed.dtype(&[DType::U8])?;
    let bytes = packed
        .contiguous::<u8>()
        .filter(|_| packed.sizes.len() == 1)
        .ok_or_else(|| {
            format!(
                "packed: expected one contiguous dimension, got {:?}",
                packed.sizes
            )
        })?;
    let tensor = PackedTensor::parse(bytes).map_err(|e| e.to_string())?;
    let found = [tensor.n() as i64, tensor.k() as i64];
    if found != [n, k] {
        return Err(format!(
            "packed: expected a weight of {:?}, found one of {found:?}",
            [n, k]
        ));
    }
    Ok((tensor, bytes))
}

/// `int4_linear(x, packed, bias, n, k, activation)`.
struct Linear;

impl Operator<3, 3> for Linear {
    const NAME: &'static CStr = c"int4_linear";

    fn call(
        [x, packed, bias]: [Tensor; 3],
        [n, k, activation]: [i64; 3],
    ) -> Result<Tensor, String> {
        let x = x.view("x")?;
        match x.dtype(&FLOATS)? {
            DType::Bf16 => linear::<bf16>(&x, &packed, &bias, n, k, activation),
            DType::F16 => linear::<f16>(&x, &packed, &bias, n, k, activation),
            _ => linear::<f32>(&x, &packed, &bias, n, k, activation),
        }
    }
}

fn linear<T: Float>(
    x: &View<'_>,
    packed: &Tensor,
    bias: &Tensor,
    n: i64,
    k: i64,
    activation: i64,
) -> Result<Tensor, String> {
    let packed = packed.view("packed")?;
    let (weight, packed) = packed_tensor(&packed, n, k)?;
    let numerics = numerics(activation)?;
    let Some((&columns, leading)) = x.sizes.split_last().filter(|(columns, _)| **columns == k)
    else {
        return Err(format!("x: expected [..., {k}], got {:?}", x.sizes));
    };
    let bias = bias.view("bias")?;
    let bias = if bias.len() == 0 {
        None
    } else {
        Some(vector::<T>(&bias, n)?)
    };

    let mut sizes = leading.to_vec();
    sizes.push(n);
    let mut y = Tensor::empty(&sizes, T::DTYPE)?;
    let m: usize = leading.iter().map(|&size| size as usize).product();
    if m == 0 {
        return Ok(y);
    }
    let columns = columns as usize;
    let mut call = |x: Rows<'_, T>| {
        let outputs = T::outputs(y.elements_mut(m * weight.n())?);
        let inputs = T::activations(x.elements);
        let bias = bias.as_ref().map(|bias| T::activations(bias.elements()));
        let isa = isa::current();
        int4_kernels::linear(
            &weight,
            inputs,
            x.stride,
            m,
            bias,
            outputs,
            numerics,
            isa,
            &TorchThreads,
        )
        .map(|ran| kernel_calls::count_linear(ran, packed))
        .map_err(|e| e.to_string())
    };
    match x.rows(columns) {
        Some(rows) => call(rows)?,
        None => {
            let copy = x.copied()?;
            let rows = copy.view("x")?.rows(columns);
            call(rows.ok_or("x: its contiguous copy is not contiguous")?)?
        }
    };
    Ok(y)
}

/// A bias, in place or copied to adjacent elements.
pub(crate) enum Vector<'a, T> {
    Borrowed(&'a [T]),
    Copied(Vec<T>),
}

impl<T> Vector<'_, T> {
    pub(crate) fn elements(&self) -> &[T] {
        match self {
            Self::Borrowed(elements) => elements,
            Self::Copied(elements) => elements,
        }
    }
}

pub(crate) fn vector<'a, T: Float>(bias: &View<'a>, n: i64) -> Result<Vector<'a, T>, String> {
    bias.dtype(&[T::DTYPE])?;
    if bias.sizes != [n] {
        return Err(format!("bias: expected [{n}], got {:?}", bias.sizes));
    }
    copied_if_needed(bias)
}

fn copied_if_needed<'a, T: Scalar>(view: &View<'a>) -> Result<Vector<'a, T>, String> {
    if let Some(elements) = view.contiguous() {
        return Ok(Vector::Borrowed(elements));
    }
    let copy = view.copied()?;
    let elements = copy.view("copy")?.contiguous::<T>().map(<[T]>::to_vec);
    Ok(Vector::Copied(
        elements.ok_or("a contiguous copy is not contiguous")?,
    ))
}

/// Ids of rows, int64 or int32.
pub(crate) fn ids_of<'a>(ids: &View<'a>) -> Result<Vector<'a, i64>, String> {
    Ok(match ids.dtype(&[DType::I64, DType::I32])? {
        DType::I64 => copied_if_needed::<i64>(ids)?,
        _ => {
            let narrow = copied_if_needed::<i32>(ids)?;
            Vector::Copied(narrow.elements().iter().map(|&id| i64::from(id)).collect())
        }
    })
}

/// `int4_embedding(ids, packed, n, k, dtype)`.
struct Embedding;

impl Operator<2, 3> for Embedding {
    const NAME: &'static CStr = c"int4_embedding";

    fn call([ids, packed]: [Tensor; 2], [n, k, dtype]: [i64; 3]) -> Result<Tensor, String> {
        match dtype {
            0 => embedding::<bf16>(&ids, &packed, n, k),
            1 => embedding::<f16>(&ids, &packed, n, k),
            2 => embedding::<f32>(&ids, &packed, n, k),
            _ => Err(format!(
                "dtype: expected 0 (bfloat16), 1 (float16) or 2 (float32), got {dtype}"
            )),
        }
    }
}

fn embedding<T: Float>(ids: &Tensor, packed: &Tensor, n: i64, k: i64) -> Result<Tensor, String> {
    let packed = packed.view("packed")?;
    let (weight, packed) = packed_tensor(&packed, n, k)?;
    let ids = ids.view("ids")?;
    let wide = ids_of(&ids)?;
    let mut sizes = ids.sizes.to_vec();
    sizes.push(k);
    let mut y = Tensor::empty(&sizes, T::DTYPE)?;
    let outputs = T::outputs(y.elements_mut(wide.elements().len() * weight.k())?);
    int4_kernels::rows(&weight, wide.elements(), outputs, &TorchThreads)
        .map_err(|e| e.to_string())?;
    if !wide.elements().is_empty() {
        kernel_calls::count_rows(&weight, packed);
    }
    Ok(y)
}

/// Registers native CPU kernels for operators that have a schema already, named
/// `namespace::…` and the operator's own name.
#[pyfunction]
#[pyo3(signature = (torch_lib_dir, *qualified_names))]
fn register_torch_ops(torch_lib_dir: &str, qualified_names: Vec<String>) -> PyResult<()> {
    torch_abi::bind(torch_lib_dir).map_err(PyRuntimeError::new_err)?;
    for qualified in qualified_names {
        let registered = match qualified.split_once("::") {
            Some((namespace, name)) if name.ends_with("int4_linear") => {
                torch_abi::register::<Linear, 3, 3>(namespace, name)
            }
            Some((namespace, name)) if name.ends_with("int4_embedding") => {
                torch_abi::register::<Embedding, 2, 3>(namespace, name)
            }
            Some((namespace, name)) if name.ends_with("dense_linear") => {
                torch_abi::register::<DenseLinear, 3, 0>(namespace, name)
            }
            Some((namespace, name)) if name.ends_with("dense_embedding") => {
                torch_abi::register::<DenseEmbedding, 2, 1>(namespace, name)
            }
            _ => {
                return Err(PyValueError::new_err(format!(
                    "expected namespace::name of an int4_linear, int4_embedding, dense_linear or \
                     dense_embedding, got {qualified:?}"
                )));
            }
        };
        registered.map_err(PyRuntimeError::new_err)?;
    }
    Ok(())
}

/// Adds this module's function.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(register_torch_ops, module)?)
}
