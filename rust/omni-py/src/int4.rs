//! `int4-kernels` for Python: pack, inspect, and name kernels.

use int4_kernels::{
    CodeKind, DENSE_KERNELS, Isa, PackZeros, PackedTensor, SegmentSpec, ZeroKind, dense, dispatch,
    layout,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::{self, LayoutError, layout_error};
use crate::isa;
use crate::os::{elements, elements_mut, overlaps};
use crate::torch_ops::numerics;

/// One segment of a packed tensor.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct SegmentInfo {
    n: usize,
    k: usize,
    bits: u8,
    group_size: i64,
    scale_type: &'static str,
    zero_kind: &'static str,
    permuted: bool,
    offset: usize,
    nbytes: usize,
}

#[pymethods]
impl SegmentInfo {
    fn __repr__(&self) -> String {
        let Self {
            n,
            k,
            bits,
            group_size,
            scale_type,
            zero_kind,
            permuted,
            offset,
            nbytes,
        } = self;
        format!(
            "SegmentInfo(n={n}, k={k}, bits={bits}, group_size={group_size}, \
             scale_type='{scale_type}', zero_kind='{zero_kind}', permuted={}, offset={offset}, \
             nbytes={nbytes})",
            if *permuted { "True" } else { "False" },
        )
    }
}

/// One row of the kernel table.
#[pyclass(frozen, get_all, module = "vllm_omni._rust")]
struct KernelInfo {
    name: &'static str,
    isa: String,
    form: &'static str,
    bits: u8,
    min_rows: usize,
    available: bool,
}

#[pymethods]
impl KernelInfo {
    fn __repr__(&self) -> String {
        let available = if self.available {
            "available"
        } else {
            "not available"
        };
        format!("<kernel {}: {}>", self.name, available)
    }
}

/// −1 is one group per row.
fn group_size(columns: i64) -> PyResult<Option<usize>> {
    match columns {
        -1 => Ok(None),
        1.. => Ok(Some(columns as usize)),
        _ => Err(LayoutError::new_err(format!(
            "group_size: expected a positive multiple of 8, or -1 for one group per row, got {columns}"
        ))),
    }
}

/// Bytes of a segment.
#[pyfunction]
fn packed_bytes(
    n: usize,
    k: usize,
    bits: u8,
    group_size: i64,
    scale_type: &str,
    zero_kind: &str,
    permuted: bool,
) -> PyResult<usize> {
    SegmentSpec {
        n,
        k,
        bits,
        group_size: self::group_size(group_size)?,
        scale_type: convert::scale_type(scale_type)?,
        zero_kind: convert::zero_kind(zero_kind)?,
        code_kind: CodeKind::Affine,
        permuted,
    }
    .packed_bytes()
    .map_err(layout_error)
}

/// Writes one segment into `out`. Other Python threads run meanwhile.
#[pyfunction]
#[pyo3(signature = (out, codes, scales, zeros, offsets, permutation, *, n, k, bits, group_size, scale_type))]
#[allow(clippy::too_many_arguments, reason = "the Python signature")]
fn pack_into(
    py: Python<'_>,
    mut out: PyBuffer<u8>,
    codes: PyBuffer<u8>,
    scales: PyBuffer<u16>,
    zeros: Option<PyBuffer<u8>>,
    offsets: Option<PyBuffer<u16>>,
    permutation: Option<PyBuffer<u32>>,
    n: usize,
    k: usize,
    bits: u8,
    group_size: i64,
    scale_type: &str,
) -> PyResult<()> {
    let zero_kind = match (&zeros, &offsets) {
        (None, None) => ZeroKind::None,
        (Some(_), None) => ZeroKind::U8,
        (None, Some(_)) => ZeroKind::Offset,
        (Some(_), Some(_)) => {
            return Err(PyValueError::new_err("expected zeros or offsets, got both"));
        }
    };
    let spec = SegmentSpec {
        n,
        k,
        bits,
        group_size: self::group_size(group_size)?,
        scale_type: convert::scale_type(scale_type)?,
        zero_kind,
        code_kind: CodeKind::Affine,
        permuted: permutation.is_some(),
    };
    let shared = [
        ("codes", overlaps(&out, &codes)),
        ("scales", overlaps(&out, &scales)),
        ("zeros", zeros.as_ref().is_some_and(|b| overlaps(&out, b))),
        (
            "offsets",
            offsets.as_ref().is_some_and(|b| overlaps(&out, b)),
        ),
        (
            "permutation",
            permutation.as_ref().is_some_and(|b| overlaps(&out, b)),
        ),
    ];
    if let Some((name, _)) = shared.iter().find(|(_, shares)| *shares) {
        return Err(PyValueError::new_err(format!(
            "out: expected memory of its own, got memory that {name} shares"
        )));
    }
    let out = elements_mut(&mut out, "out")?;
    let codes = elements(&codes, "codes")?;
    let scales = elements(&scales, "scales")?;
    let pack_zeros = match (&zeros, &offsets) {
        (Some(zeros), _) => PackZeros::U8(elements(zeros, "zeros")?),
        (_, Some(offsets)) => PackZeros::Offset(elements(offsets, "offsets")?),
        _ => PackZeros::None,
    };
    let permutation = permutation
        .as_ref()
        .map(|p| elements(p, "permutation"))
        .transpose()?;
    py.detach(|| int4_kernels::pack_into(out, &spec, codes, scales, pack_zeros, permutation))
        .map_err(layout_error)
}

/// The segments of packed bytes; with `verify`, their checksums are computed.
#[pyfunction]
fn segments(py: Python<'_>, packed: PyBuffer<u8>, verify: bool) -> PyResult<Vec<SegmentInfo>> {
    let bytes = elements(&packed, "packed")?;
    let tensor = PackedTensor::parse(bytes).map_err(layout_error)?;
    if verify {
        py.detach(|| tensor.verify()).map_err(layout_error)?;
    }
    let info = |segment: &int4_kernels::Segment<'_>| {
        let spec = segment.spec();
        SegmentInfo {
            n: spec.n,
            k: spec.k,
            bits: spec.bits,
            group_size: spec.group_size.map_or(-1, |columns| columns as i64),
            scale_type: convert::scale_type_name(spec.scale_type),
            zero_kind: spec.zero_kind.name(),
            permuted: spec.permuted,
            offset: segment.offset_bytes(),
            nbytes: segment.bytes().len(),
        }
    };
    Ok(tensor.segments().iter().map(info).collect())
}

/// The kernel table: for one form and one width of codes, the fastest comes first.
#[pyfunction]
fn kernels() -> Vec<KernelInfo> {
    let usable = isa::current();
    let info = |name, isa: Isa, form, bits, min_rows| KernelInfo {
        name,
        isa: isa.to_string(),
        form,
        bits,
        min_rows,
        available: usable.contains(isa),
    };
    let packed = dispatch::KERNELS.iter().map(|kernel| {
        let form = convert::form_name(kernel.form);
        info(kernel.name, kernel.isa, form, kernel.bits, kernel.min_rows)
    });
    let dense = DENSE_KERNELS.iter().map(|kernel| {
        let form = convert::dense_form_name(kernel.form);
        info(kernel.name, kernel.isa, form, kernel.bits, 1)
    });
    packed.chain(dense).collect()
}

/// The name of the kernel that computes a linear layer of so many rows of activations now.
#[pyfunction]
#[pyo3(signature = (dtype, activation, bits, rows = 1))]
fn select_kernel(dtype: &str, activation: i64, bits: u8, rows: usize) -> PyResult<&'static str> {
    if bits != 4 && bits != 8 {
        return Err(PyValueError::new_err(format!(
            "bits: expected 4 or 8, got {bits}"
        )));
    }
    let numerics = numerics(activation).map_err(PyValueError::new_err)?;
    let dtype = convert::dtype(dtype)?;
    Ok(dispatch::select(isa::current(), numerics, dtype, bits, rows).name)
}

/// The name of the kernel that computes with an unquantized weight now.
#[pyfunction]
fn select_dense_kernel(dtype: &str, weight_dtype: &str) -> PyResult<&'static str> {
    let (activations, weights) = (convert::dtype(dtype)?, convert::dtype(weight_dtype)?);
    Ok(dense::dispatch::select(isa::current(), activations, weights).name)
}

/// Adds this module's classes and functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LAYOUT_VERSION", layout::VERSION)?;
    module.add("LayoutError", module.py().get_type::<LayoutError>())?;
    module.add_class::<SegmentInfo>()?;
    module.add_class::<KernelInfo>()?;
    module.add_function(wrap_pyfunction!(packed_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(pack_into, module)?)?;
    module.add_function(wrap_pyfunction!(segments, module)?)?;
    module.add_function(wrap_pyfunction!(kernels, module)?)?;
    module.add_function(wrap_pyfunction!(select_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(select_dense_kernel, module)?)
}
