//! The oracle: written from the formula, in f64, never optimised, sharing no code with the kernels or
//! with the driver's preparation of activations.

use half::{bf16, f16};

use crate::error::Int4Error;
use crate::kernel::ScaleType;
use crate::layout::{PackedTensor, Segment};
use crate::pack::{UnpackedZeros, unpack};

/// A matrix `[n][k]` in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Row-major values.
    pub values: Vec<f64>,
    /// For each value the largest magnitude among the terms it is made of: what an fp32 evaluation of
    /// the kernel formula has to carry, and so what its error is relative to.
    pub magnitudes: Vec<f64>,
}

/// The weights of a packed tensor, in original column order.
///
/// # Errors
/// As [`unpack`].
pub fn dequantize(w: &PackedTensor<'_>) -> Result<Matrix, Int4Error> {
    let mut matrix = Matrix {
        n: 0,
        k: w.k(),
        values: Vec::new(),
        magnitudes: Vec::new(),
    };
    for segment in w.segments() {
        append(&mut matrix, segment)?;
    }
    Ok(matrix)
}

fn append(matrix: &mut Matrix, segment: &Segment<'_>) -> Result<(), Int4Error> {
    let spec = segment.spec();
    let unpacked = unpack(segment)?;
    let float = |bits: u16| match spec.scale_type {
        ScaleType::F16 => f16::from_bits(bits).to_f64(),
        ScaleType::Bf16 => bf16::from_bits(bits).to_f64(),
    };
    let center = f64::from(spec.code_center());
    let groups = spec.groups();
    let start = matrix.values.len();
    matrix.values.resize(start + spec.n * spec.k, 0.0);
    matrix.magnitudes.resize(start + spec.n * spec.k, 0.0);
    for n in 0..spec.n {
        for column in 0..spec.k {
            let entry = n * groups + column / spec.group_columns();
            let scale = float(unpacked.scales[entry]);
            let code = f64::from(unpacked.codes[n * spec.k + column]);
            let (zero, offset) = match &unpacked.zeros {
                UnpackedZeros::None => (center, 0.0),
                UnpackedZeros::U8(zeros) => (f64::from(zeros[entry]), 0.0),
                UnpackedZeros::Offset(offsets) => (0.0, float(offsets[entry])),
            };
            let original = unpacked
                .permutation
                .as_ref()
                .map_or(column, |p| p[column] as usize);
            let at = start + n * spec.k + original;
            matrix.values[at] = scale * (code - zero) + offset;
            // Kernels may work with q, with q - c and with c - z, so each counts.
            matrix.magnitudes[at] = scale.abs() * code.max(center).max(zero) * 2.0 + offset.abs();
        }
    }
    matrix.n += spec.n;
    Ok(())
}

/// `y[m][n] = x[m][k] · Wᵀ + bias`.
///
/// # Panics
/// When `x` is not a whole number of rows, or the bias has not `n` entries.
pub fn linear(w: &Matrix, x: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    assert_eq!(x.len() % w.k, 0, "whole rows");
    let mut y = Vec::new();
    for x in x.chunks_exact(w.k) {
        for (n, w) in w.values.chunks_exact(w.k).enumerate() {
            let dot: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
            y.push(dot + bias.map_or(0.0, |bias| bias[n]));
        }
    }
    y
}

/// What int8 activations stand for: each row cut into groups of `group_columns`, those into chunks of
/// `chunk_columns`, each chunk rounded to `scale * [-127, 127]` with scale = absmax / 127 in fp32.
/// `order[j]` is the original column at packed position `j`.
pub fn quantized_activations(
    x: &[f32],
    order: &[usize],
    group_columns: usize,
    chunk_columns: usize,
) -> Vec<f64> {
    let mut values = vec![0.0; x.len()];
    for (row, values) in x.chunks(order.len()).zip(values.chunks_mut(order.len())) {
        for group in order.chunks(group_columns) {
            for chunk in group.chunks(chunk_columns) {
                let absmax = chunk
                    .iter()
                    .fold(0.0f32, |absmax, j| absmax.max(row[*j].abs()));
                for j in chunk {
                    values[*j] = if absmax == 0.0 {
                        0.0
                    } else {
                        let q = (row[*j] * (127.0 / absmax)).round_ties_even();
                        f64::from(q) * f64::from(absmax / 127.0)
                    };
                }
            }
        }
    }
    values
}

/// The activations that a 24-bit fixed-point kernel sees, `x` being `[m][k]`: multiples of 2^(e − 21), ties to
/// even, where 2^e is the power of two at or below the chunk's largest magnitude. Groups start at multiples of
/// `group_columns`, chunks at multiples of `chunk_columns` inside them.
pub fn fixed_point_activations(
    x: &[f32],
    k: usize,
    group_columns: usize,
    chunk_columns: usize,
) -> Vec<f64> {
    let mut values: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for row in values.chunks_mut(k) {
        for group in row.chunks_mut(group_columns) {
            for chunk in group.chunks_mut(chunk_columns) {
                let absmax = chunk.iter().fold(0.0f64, |absmax, x| absmax.max(x.abs()));
                let unit = absmax.log2().floor().exp2() / f64::from(1 << 21);
                if absmax > 0.0 {
                    for x in chunk {
                        *x = (*x / unit).round_ties_even() * unit;
                    }
                }
            }
        }
    }
    values
}
