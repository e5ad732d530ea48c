//! What a dense microkernel reads and writes, and the row of the dense kernel table that names it.
//!
//! ```text
//! out[r][n] = Σ_k  w[n][k] · x[r][k]        products and sums in fp32
//! ```
//!
//! The weight lies row by row as a checkpoint stores it. A panel is up to [`NR`] of its rows, read in
//! place; nothing behind column K of a row is touched. In every kernel each output is summed over k in one
//! fixed order, whatever the number of rows of the panel or of the strip.

use crate::isa::Isa;
use crate::kernel::NR;
use crate::operands::{Activations, Dtype};

/// The most activation rows one microkernel call takes: with the four rows of a weight that it works on at
/// a time, 24 sums stay in the 32 registers of AVX-512.
pub const MAX_DENSE_ROWS: usize = 6;

/// Rows of the weight that a microkernel works on at a time: as many independent chains of multiply-adds.
/// It divides [`NR`].
pub(crate) const BLOCK_ROWS: usize = 4;

/// Prepared activations are zero from K up to a multiple of this.
pub(crate) const COLUMN_UNIT: usize = 32;

/// The form in which a dense kernel reads activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenseForm {
    /// fp32. Any type can be brought into it exactly.
    F32,
    /// bf16, two columns to a word, the lower one in its low half: for bf16 activations and weights.
    Bf16,
}

impl DenseForm {
    /// Words of a prepared row of `k` columns.
    pub(crate) const fn words(self, k: usize) -> usize {
        let columns = k.next_multiple_of(COLUMN_UNIT);
        match self {
            Self::F32 => columns,
            Self::Bf16 => columns / 2,
        }
    }
}

/// Up to [`NR`] adjacent rows of a weight.
#[derive(Clone, Copy, Debug)]
pub struct DensePanel<'a> {
    /// From the first row to column `k` of the last one.
    pub rows: Activations<'a>,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Rows, 1 to [`NR`].
    pub count: usize,
    /// Columns.
    pub k: usize,
    /// Whether the panel comes from memory rather than from a cache: only then is it worth to prefetch what is
    /// behind it.
    pub is_fresh: bool,
}

/// Up to [`MAX_DENSE_ROWS`] rows of prepared activations, columns from K up to the next multiple of 32 zero.
#[derive(Clone, Copy, Debug)]
pub struct DenseStrip<'a> {
    /// From the first row to the end of the last one.
    pub words: &'a [u32],
    /// Words from one row to the next.
    pub stride: usize,
    /// Rows, 1 to [`MAX_DENSE_ROWS`].
    pub rows: usize,
}

/// `out[r * NR + n]` for `r < strip.rows` and `n < panel.count`; what stands at other n is unspecified.
///
/// # Safety
/// The CPU must have the kernel's ISA. `panel` must hold its rows in a type that the kernel takes, `strip`
/// its rows in the kernel's form, and `out` `strip.rows * NR` elements.
pub type DenseMicrokernel =
    unsafe fn(panel: &DensePanel<'_>, strip: &DenseStrip<'_>, out: &mut [f32]);

/// One row of the dense kernel table.
#[derive(Clone, Copy, Debug)]
pub struct DenseKernel {
    /// `{isa}-{activation}w{bits}`, for instance `avx512_bf16-bf16w16`; the same string appears in logs,
    /// summaries and artifacts.
    pub name: &'static str,
    /// What the CPU must have.
    pub isa: Isa,
    /// How activations are read.
    pub form: DenseForm,
    /// Element types of weights that it takes, all of `bits` bits.
    pub weights: &'static [Dtype],
    /// 16 or 32.
    pub bits: u8,
    /// The code.
    pub run: DenseMicrokernel,
}

impl DenseKernel {
    /// Whether the kernel computes with activations and weights of these types.
    pub fn takes(&self, activations: Dtype, weights: Dtype) -> bool {
        let fits = match self.form {
            DenseForm::F32 => true,
            DenseForm::Bf16 => activations == Dtype::Bf16,
        };
        fits && self.weights.contains(&weights)
    }
}

/// What the loads of the microkernels trust; the driver establishes it.
pub(crate) fn debug_check(
    panel: &DensePanel<'_>,
    strip: &DenseStrip<'_>,
    form: DenseForm,
    out: &[f32],
) {
    debug_assert!((1..=NR).contains(&panel.count));
    debug_assert!(panel.rows.len() >= (panel.count - 1) * panel.stride + panel.k);
    debug_assert!((1..=MAX_DENSE_ROWS).contains(&strip.rows));
    debug_assert!(strip.words.len() >= (strip.rows - 1) * strip.stride + form.words(panel.k));
    debug_assert!(out.len() >= strip.rows * NR);
}
