//! Portable dense microkernels: no intrinsics. The inner loops run over lanes of independent sums, which the
//! compiler turns into vectors of whatever width the baseline has.

use half::{bf16, f16};

use crate::dense::kernel::{
    DenseForm, DenseKernel, DensePanel, DenseStrip, MAX_DENSE_ROWS, debug_check,
};
use crate::element::Element;
use crate::isa::Isa;
use crate::kernel::NR;
use crate::operands::{Activations, Dtype};

/// Columns at a time, and independent sums of an output.
const LANES: usize = 16;

pub(crate) const KERNELS: [DenseKernel; 2] = [
    DenseKernel {
        name: "scalar-f32w16",
        isa: Isa::Scalar,
        form: DenseForm::F32,
        weights: &[Dtype::Bf16, Dtype::F16],
        bits: 16,
        run: f32_form,
    },
    DenseKernel {
        name: "scalar-f32w32",
        isa: Isa::Scalar,
        form: DenseForm::F32,
        weights: &[Dtype::F32],
        bits: 32,
        run: f32_form,
    },
];

fn f32_form(panel: &DensePanel<'_>, strip: &DenseStrip<'_>, out: &mut [f32]) {
    debug_check(panel, strip, DenseForm::F32, out);
    match panel.rows {
        Activations::Bf16(rows) => sweep::<bf16>(rows, panel, strip, out),
        Activations::F16(rows) => sweep::<f16>(rows, panel, strip, out),
        Activations::F32(rows) => sweep::<f32>(rows, panel, strip, out),
    }
}

fn sweep<E: Element>(rows: &[E], panel: &DensePanel<'_>, strip: &DenseStrip<'_>, out: &mut [f32]) {
    let x: &[f32] = bytemuck::cast_slice(strip.words);
    for n in 0..panel.count {
        let row = &rows[n * panel.stride..][..panel.k];
        let mut sums = [[0.0f32; LANES]; MAX_DENSE_ROWS];
        for (chunk, weights) in row.chunks(LANES).enumerate() {
            let mut wide = [0.0f32; LANES];
            E::widen(weights, &mut wide[..weights.len()]);
            for (r, sums) in sums[..strip.rows].iter_mut().enumerate() {
                let x = &x[r * strip.stride + chunk * LANES..][..LANES];
                for lane in 0..LANES {
                    sums[lane] += wide[lane] * x[lane];
                }
            }
        }
        for (r, sums) in sums[..strip.rows].iter().enumerate() {
            out[r * NR + n] = sums.iter().sum();
        }
    }
}
