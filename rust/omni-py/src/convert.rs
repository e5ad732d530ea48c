//! Errors and names between Rust and Python.

use int4_kernels::{ActivationForm, DenseForm, Dtype, Int4Error, ScaleType, ZeroKind};
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

create_exception!(
    vllm_omni._rust,
    LayoutError,
    PyValueError,
    "Packed bytes, or a request to pack, that the layout does not allow."
);

/// An `Int4Error` about packed bytes or about packing.
pub fn layout_error(error: Int4Error) -> PyErr {
    LayoutError::new_err(error.to_string())
}

/// An `Int4Error` about an argument that is not packed data.
pub fn value_error(error: Int4Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn unknown(what: &str, expected: &str, found: &str) -> PyErr {
    PyValueError::new_err(format!("{what}: expected {expected}, got {found:?}"))
}

/// `f16` or `bf16`.
pub fn scale_type(name: &str) -> PyResult<ScaleType> {
    match name {
        "f16" => Ok(ScaleType::F16),
        "bf16" => Ok(ScaleType::Bf16),
        _ => Err(unknown("scale_type", "f16 or bf16", name)),
    }
}

/// The name that [`scale_type`] reads.
pub fn scale_type_name(scale_type: ScaleType) -> &'static str {
    match scale_type {
        ScaleType::F16 => "f16",
        ScaleType::Bf16 => "bf16",
    }
}

/// `none`, `u8` or `offset`.
pub fn zero_kind(name: &str) -> PyResult<ZeroKind> {
    [ZeroKind::None, ZeroKind::U8, ZeroKind::Offset]
        .into_iter()
        .find(|kind| kind.name() == name)
        .ok_or_else(|| unknown("zero_kind", "none, u8 or offset", name))
}

/// `bf16`, `f16` or `f32`.
pub fn dtype(name: &str) -> PyResult<Dtype> {
    match name {
        "bf16" => Ok(Dtype::Bf16),
        "f16" => Ok(Dtype::F16),
        "f32" => Ok(Dtype::F32),
        _ => Err(unknown("dtype", "bf16, f16 or f32", name)),
    }
}

/// `f32` or `bf16`: how a dense kernel reads activations.
pub fn dense_form_name(form: DenseForm) -> &'static str {
    match form {
        DenseForm::F32 => "f32",
        DenseForm::Bf16 => "bf16",
    }
}

/// `f32`, `bf16`, `int8` or `i24`: how a kernel reads activations.
pub fn form_name(form: ActivationForm) -> &'static str {
    match form {
        ActivationForm::F32 => "f32",
        ActivationForm::Bf16Pairs => "bf16",
        ActivationForm::Int8 => "int8",
        ActivationForm::I24 => "i24",
    }
}
