//! Unquantized tables: `y = x · Wᵀ + bias` and lookups of rows, on one row-major copy of W.
//!
//! An embedding table and the head that is tied to it are the same bytes, as the checkpoint stores them.
//! [`dense_linear`] reads them in place for one token and for thousands, [`dense_rows`] for lookups.
//!
//! ```text
//! per block of M:  prepare → rows of x into scratch, in the kernel's form, zero from K to whole vectors
//!                  tiles   → ranges of panels (and parts of the rows, where there are fewer panels than
//!                            threads), about the same bytes each
//! per tile:        panel outer, strips of rows inner: a panel is read from memory once per block of M
//! ```
//!
//! | file | what |
//! |---|---|
//! | [`kernel`] | the seam between driver and microkernels |
//! | [`dispatch`] | the table of dense kernels; choosing |
//! | `scalar` | portable microkernels; the others stand in `x86_64` |
//! | `rows` | lookups |

pub mod dispatch;
pub mod kernel;
mod rows;
pub(crate) mod scalar;

use half::slice::HalfFloatSliceExt;

use crate::dense::kernel::{DenseForm, DenseKernel, DensePanel, DenseStrip, MAX_DENSE_ROWS};
use crate::element::Element;
use crate::error::Int4Error;
use crate::isa::IsaSet;
use crate::kernel::NR;
use crate::operands::{Activations, Outputs, check_length};
use crate::parallel::{Parallel, Serial};
use crate::plan::{even_bounds, smallest_divisor};
use crate::scratch::with_prepared;
use crate::store::{OutputElement, store_row, widen_bias};
use crate::tiles::{Tile, run_tiles};

pub use rows::dense_rows;

/// Prepared words per block of M: 512 KiB, so that a block and a panel stay in the second-level cache.
const BLOCK_WORDS: usize = 1 << 17;

/// A task that reads less than this is not worth a thread's attention.
const SMALLEST_TASK_BYTES: usize = 16 << 10;

/// From this much on a task is cut further, so that a thread that falls behind is helped out.
const LARGE_TASK_BYTES: usize = 256 << 10;

/// Tasks per thread at most.
const TASKS_PER_THREAD: usize = 4;

/// Activations below this many elements are prepared on the calling thread.
const SMALLEST_PARALLEL_PREPARATION: usize = 32 << 10;

/// Words of a cache line.
const LINE_WORDS: usize = 16;

/// An unquantized weight `[n][k]`, row by row.
#[derive(Clone, Copy, Debug)]
pub struct DenseWeight<'a> {
    elements: Activations<'a>,
    stride: usize,
    n: usize,
    k: usize,
}

impl<'a> DenseWeight<'a> {
    /// `n` rows of `k` elements, `stride` elements from one row to the next.
    ///
    /// # Errors
    /// [`Int4Error::WrongLength`] when the rows do not end inside `elements`.
    pub fn new(
        elements: Activations<'a>,
        stride: usize,
        n: usize,
        k: usize,
    ) -> Result<Self, Int4Error> {
        check_rows("weight", &elements, stride, n, k)?;
        Ok(Self {
            elements,
            stride,
            n,
            k,
        })
    }

    /// Rows: outputs of [`dense_linear`].
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Columns: inputs of [`dense_linear`].
    pub const fn k(&self) -> usize {
        self.k
    }

    /// The memory that the weight was made of.
    pub fn bytes(&self) -> &'a [u8] {
        match self.elements {
            Activations::Bf16(w) => bytemuck::cast_slice(w.reinterpret_cast()),
            Activations::F16(w) => bytemuck::cast_slice(w.reinterpret_cast()),
            Activations::F32(w) => bytemuck::cast_slice(w),
        }
    }

    /// Bits of an element.
    pub const fn bits(&self) -> u8 {
        8 * self.elements.dtype().bytes() as u8
    }

    fn panel(&self, first: usize) -> DensePanel<'a> {
        let count = NR.min(self.n - first);
        let start = first * self.stride;
        DensePanel {
            rows: self
                .elements
                .slice(start..start + (count - 1) * self.stride + self.k),
            stride: self.stride,
            count,
            k: self.k,
            is_fresh: true,
        }
    }
}

fn check_rows(
    what: &'static str,
    elements: &Activations<'_>,
    stride: usize,
    rows: usize,
    columns: usize,
) -> Result<(), Int4Error> {
    let expected = match rows.checked_sub(1) {
        None => 0,
        Some(steps) => steps.saturating_mul(stride).saturating_add(columns),
    };
    if elements.len() < expected {
        return Err(Int4Error::WrongLength {
            what,
            expected,
            found: elements.len(),
        });
    }
    Ok(())
}

/// Computes `y[m][n] = x[m][k] · Wᵀ + bias`, each output rounded once from fp32.
///
/// `x` is `[m][k]` with `x_stride` elements from one row to the next; the bias, of any type, is `[n]`; `y`
/// is contiguous. Returns the kernel that computed it, or `None` when there was nothing to compute. A kernel
/// gives the same bits for a row of `x` whatever the other rows and the number of threads are.
///
/// # Errors
/// Lengths that do not fit the weight, an [`IsaSet`] that names more than this machine has. `y` is untouched
/// then.
#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one GEMM; a struct would only rename them"
)]
pub fn dense_linear(
    w: &DenseWeight<'_>,
    x: Activations<'_>,
    x_stride: usize,
    m: usize,
    bias: Option<Activations<'_>>,
    y: Outputs<'_>,
    isa: IsaSet,
    parallel: &dyn Parallel,
) -> Result<Option<&'static DenseKernel>, Int4Error> {
    let kernel = dispatch::select(isa, x.dtype(), w.elements.dtype());
    run(kernel, w, x, x_stride, m, bias, y, isa, parallel)
}

/// [`dense_linear`] with one named kernel, for tests and measurements.
///
/// # Errors
/// As [`dense_linear`], and [`Int4Error::UnknownKernel`] when there is no such kernel or it does not take
/// these types.
#[allow(clippy::too_many_arguments, reason = "as `dense_linear`")]
pub fn dense_linear_with_kernel(
    name: &str,
    w: &DenseWeight<'_>,
    x: Activations<'_>,
    x_stride: usize,
    m: usize,
    bias: Option<Activations<'_>>,
    y: Outputs<'_>,
    parallel: &dyn Parallel,
) -> Result<(), Int4Error> {
    let kernel = dispatch::by_name(name)
        .filter(|kernel| kernel.takes(x.dtype(), w.elements.dtype()))
        .ok_or_else(|| Int4Error::UnknownKernel {
            found: name.to_owned(),
        })?;
    let isa = IsaSet::of(&[kernel.isa]);
    run(kernel, w, x, x_stride, m, bias, y, isa, parallel)?;
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "as `dense_linear`")]
fn run(
    kernel: &'static DenseKernel,
    w: &DenseWeight<'_>,
    x: Activations<'_>,
    x_stride: usize,
    m: usize,
    bias: Option<Activations<'_>>,
    y: Outputs<'_>,
    isa: IsaSet,
    parallel: &dyn Parallel,
) -> Result<Option<&'static DenseKernel>, Int4Error> {
    if let Some(missing) = isa.first_missing() {
        return Err(Int4Error::UnsupportedIsa { missing });
    }
    check_rows("activations", &x, x_stride, m, w.k)?;
    check_length("output", m.saturating_mul(w.n), y.len())?;
    if let Some(bias) = &bias {
        check_length("bias", w.n, bias.len())?;
    }
    if m == 0 || w.n == 0 {
        return Ok(None);
    }
    let words = kernel.form.words(w.k);
    let call = Call {
        kernel,
        weight: w,
        x: &x,
        x_stride,
        m,
        bias: bias.as_ref(),
        // An odd number of cache lines from row to row: the rows of a strip do not share cache sets.
        row_words: words + LINE_WORDS * usize::from(words.is_multiple_of(2 * LINE_WORDS)),
        parallel,
    };
    match y {
        Outputs::Bf16(y) => call.blocks(y),
        Outputs::F16(y) => call.blocks(y),
        Outputs::F32(y) => call.blocks(y),
    }
    Ok(Some(kernel))
}

/// One call, after all checks.
struct Call<'c, 'a> {
    kernel: &'static DenseKernel,
    weight: &'c DenseWeight<'a>,
    x: &'c Activations<'c>,
    x_stride: usize,
    m: usize,
    bias: Option<&'c Activations<'c>>,
    /// Words from one prepared row to the next.
    row_words: usize,
    parallel: &'c dyn Parallel,
}

impl Call<'_, '_> {
    fn blocks<T: OutputElement>(&self, y: &mut [T]) {
        let n = self.weight.n;
        let most_rows = (BLOCK_WORDS / self.row_words).max(MAX_DENSE_ROWS);
        let blocks = self.m.div_ceil(most_rows);
        let block_rows = self.m.div_ceil(blocks);
        with_prepared(block_rows * self.row_words, |prepared| {
            for first in (0..self.m).step_by(block_rows) {
                let rows = block_rows.min(self.m - first);
                let prepared = &mut prepared[..rows * self.row_words];
                self.prepare(first, rows, prepared);
                self.compute(prepared, rows, &mut y[first * n..(first + rows) * n]);
            }
        });
    }

    /// Rows `first..first + rows` of x in the kernel's form.
    fn prepare(&self, first: usize, rows: usize, prepared: &mut [u32]) {
        let (k, words) = (self.weight.k, self.kernel.form.words(self.weight.k));
        let parallel: &dyn Parallel = if rows * k < SMALLEST_PARALLEL_PREPARATION {
            &Serial
        } else {
            self.parallel
        };
        let row_bounds = even_bounds(rows, parallel.threads().clamp(1, rows), 1);
        run_tiles(
            parallel,
            prepared,
            self.row_words,
            &row_bounds,
            &[0, self.row_words],
            &|mut tile| {
                for row in tile.rows() {
                    let start = (first + row) * self.x_stride;
                    let x = self.x.slice(start..start + k);
                    prepare_row(self.kernel.form, x, tile.row(row, 0..words));
                }
            },
        );
    }

    fn compute<T: OutputElement>(&self, prepared: &[u32], rows: usize, y: &mut [T]) {
        let DenseWeight { n, k, .. } = *self.weight;
        let threads = self.parallel.threads().max(1);
        let strips = rows.div_ceil(MAX_DENSE_ROWS);
        let panels = n.div_ceil(NR);
        // Every row of the weight has the same bytes, and is read for every strip of rows.
        let row_bytes = k * usize::from(self.weight.bits()) / 8;
        let bytes = n.saturating_mul(row_bytes).saturating_mul(strips);
        let parts = smallest_divisor(threads, threads.div_ceil(panels)).min(strips);
        let helpful = threads.div_ceil(parts)
            * (bytes / (threads * LARGE_TASK_BYTES)).clamp(1, TASKS_PER_THREAD);
        let worthwhile = (bytes / SMALLEST_TASK_BYTES / parts).max(1);
        let ranges = helpful.min(worthwhile).min(panels);
        run_tiles(
            self.parallel,
            y,
            n,
            &even_bounds(rows, parts, 1),
            &even_bounds(n, ranges, NR),
            &|mut tile| self.tile(prepared, &mut tile),
        );
    }

    fn tile<T: OutputElement>(&self, prepared: &[u32], tile: &mut Tile<'_, T>) {
        let (rows, columns) = (tile.rows(), tile.columns());
        let words = self.kernel.form.words(self.weight.k);
        for first in columns.step_by(NR) {
            let mut panel = self.weight.panel(first);
            let bias = widen_bias(self.bias, first, panel.count);
            // Whole strips, then the rest: the first one waits for memory, so it takes as many rows as it can.
            for row in rows.clone().step_by(MAX_DENSE_ROWS) {
                let strip_rows = MAX_DENSE_ROWS.min(rows.end - row);
                let start = row * self.row_words;
                let end = start + (strip_rows - 1) * self.row_words + words;
                let strip = DenseStrip {
                    words: &prepared[start..end],
                    stride: self.row_words,
                    rows: strip_rows,
                };
                let mut out = [[0.0f32; NR]; MAX_DENSE_ROWS];
                // SAFETY: `run` has checked that the machine has the kernel's instruction set, and the
                // kernel was chosen for the weight's type; `panel` and `strip` hold their rows, the strip in
                // the kernel's form; `out` holds MAX_DENSE_ROWS rows.
                unsafe { (self.kernel.run)(&panel, &strip, out.as_flattened_mut()) };
                for (r, values) in out[..strip_rows].iter().enumerate() {
                    store_row(values, &bias, tile.row(row + r, first..first + panel.count));
                }
                panel.is_fresh = false;
            }
        }
    }
}

/// One row of x in the form, with zeros behind its last column.
fn prepare_row(form: DenseForm, x: Activations<'_>, words: &mut [u32]) {
    match (form, x) {
        (DenseForm::Bf16, Activations::Bf16(x)) => {
            let halves: &mut [u16] = bytemuck::cast_slice_mut(words);
            let (columns, behind) = halves.split_at_mut(x.len());
            for (half, x) in columns.iter_mut().zip(x) {
                *half = x.to_bits();
            }
            behind.fill(0);
        }
        (_, x) => {
            let wide: &mut [f32] = bytemuck::cast_slice_mut(words);
            let (columns, behind) = wide.split_at_mut(x.len());
            match x {
                Activations::Bf16(x) => Element::widen(x, columns),
                Activations::F16(x) => Element::widen(x, columns),
                Activations::F32(x) => Element::widen(x, columns),
            }
            behind.fill(0.0);
        }
    }
}
