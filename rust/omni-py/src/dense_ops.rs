//! The native CPU kernels of the operators on unquantized tables: what they check, and the call into
//! `int4-kernels`. `vllm_omni/portable.py` states the same contract in Python.

use std::ffi::CStr;

use half::{bf16, f16};
use int4_kernels::{Activations, DenseWeight};

use crate::isa;
use crate::kernel_calls;
use crate::torch_abi::{DType, Operator, Rows, Tensor, TorchThreads, View};
use crate::torch_ops::{FLOATS, Float, ids_of, vector};

/// `dense_linear(x, weight, bias)`.
pub struct DenseLinear;

impl Operator<3, 0> for DenseLinear {
    const NAME: &'static CStr = c"dense_linear";

    fn call([x, weight, bias]: [Tensor; 3], []: [i64; 0]) -> Result<Tensor, String> {
        let x = x.view("x")?;
        match x.dtype(&FLOATS)? {
            DType::Bf16 => linear::<bf16>(&x, &weight, &bias),
            DType::F16 => linear::<f16>(&x, &weight, &bias),
            _ => linear::<f32>(&x, &weight, &bias),
        }
    }
}

fn linear<T: Float>(x: &View<'_>, weight: &Tensor, bias: &Tensor) -> Result<Tensor, String> {
    let weight = weight.view("weight")?;
    let (weight, [n, k]) = dense_weight(&weight)?;
    let Some((_, leading)) = x.sizes.split_last().filter(|(columns, _)| **columns == k) else {
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
    if m == 0 || n == 0 {
        return Ok(y);
    }
    let mut call = |x: Rows<'_, T>| {
        let outputs = T::outputs(y.elements_mut(m * weight.n())?);
        let inputs = T::activations(x.elements);
        let bias = bias.as_ref().map(|bias| T::activations(bias.elements()));
        int4_kernels::dense_linear(
            &weight,
            inputs,
            x.stride,
            m,
            bias,
            outputs,
            isa::current(),
            &TorchThreads,
        )
        .map(|ran| kernel_calls::count_dense(ran, &weight))
        .map_err(|e| e.to_string())
    };
    match x.rows(weight.k()) {
        Some(rows) => call(rows)?,
        None => {
            let copy = x.copied()?;
            let rows = copy.view("x")?.rows(weight.k());
            call(rows.ok_or("x: its contiguous copy is not contiguous")?)?
        }
    };
    Ok(y)
}

/// A weight in place, and its shape. A copy of a whole table in every call would go unnoticed, so other
/// layouts are refused.
fn dense_weight<'a>(weight: &View<'a>) -> Result<(DenseWeight<'a>, [i64; 2]), String> {
    let dtype = weight.dtype(&FLOATS)?;
    let [n, k] = *weight.sizes else {
        return Err(format!("weight: expected [N, K], got {:?}", weight.sizes));
    };
    let found = match dtype {
        DType::Bf16 => elements::<bf16>(weight, n, k),
        DType::F16 => elements::<f16>(weight, n, k),
        _ => elements::<f32>(weight, n, k),
    };
    let (elements, stride) =
        found.ok_or("weight: expected rows of adjacent elements, one behind the other")?;
    let weight = DenseWeight::new(elements, stride, n as usize, k as usize);
    Ok((weight.map_err(|e| e.to_string())?, [n, k]))
}

fn elements<'a, T: Float + 'a>(
    weight: &View<'a>,
    n: i64,
    k: i64,
) -> Option<(Activations<'a>, usize)> {
    if n == 0 {
        return Some((T::activations(&[]), k as usize));
    }
    let rows = weight.rows::<T>(k as usize)?;
    Some((T::activations(rows.elements), rows.stride))
}

/// `dense_embedding(ids, weight, dtype)`.
pub struct DenseEmbedding;

impl Operator<2, 1> for DenseEmbedding {
    const NAME: &'static CStr = c"dense_embedding";

    fn call([ids, weight]: [Tensor; 2], [dtype]: [i64; 1]) -> Result<Tensor, String> {
        match dtype {
            0 => embedding::<bf16>(&ids, &weight),
            1 => embedding::<f16>(&ids, &weight),
            2 => embedding::<f32>(&ids, &weight),
            _ => Err(format!(
                "dtype: expected 0 (bfloat16), 1 (float16) or 2 (float32), got {dtype}"
            )),
        }
    }
}

fn embedding<T: Float>(ids: &Tensor, weight: &Tensor) -> Result<Tensor, String> {
    let weight = weight.view("weight")?;
    let (weight, [_, k]) = dense_weight(&weight)?;
    let ids = ids.view("ids")?;
    let wide = ids_of(&ids)?;
    let mut sizes = ids.sizes.to_vec();
    sizes.push(k);
    let mut y = Tensor::empty(&sizes, T::DTYPE)?;
    let outputs = T::outputs(y.elements_mut(wide.elements().len() * weight.k())?);
    int4_kernels::dense_rows(&weight, wide.elements(), outputs, &TorchThreads)
        .map_err(|e| e.to_string())?;
    if !wide.elements().is_empty() {
        kernel_calls::count_dense_rows(&weight);
    }
    Ok(y)
}
