//! The driver: `y = x · Wᵀ + bias` over every segment of a packed tensor.
//!
//! ```text
//! parse is done by the caller; plan  → one preparation per distinct (permutation, groups, chunks)
//! per block of M:            prepare → rows of x into scratch, `x | sums | scales` each
//!                            tiles   → (part of the rows) × (range of panels), balanced by bytes
//! per tile:                  panel outer, strips of the kernel's rows inner, so that a panel is read from
//!                            memory once and comes from the cache for every further strip
//! ```
//! A block of M is as long as its prepared rows take `PART_WORDS` per thread. For M = 1 that is one
//! row, prepared on the calling thread, and one parallel region over the panels of all segments.

use half::{bf16, f16};

use crate::dispatch;
use crate::element::Element;
use crate::error::Int4Error;
use crate::isa::IsaSet;
use crate::kernel::{ActivationForm, Kernel, MAX_ROWS, MOST_ROWS, NR, Strip};
use crate::layout::PackedTensor;
use crate::operands::{Activations, Numerics, Outputs, check_length};
use crate::parallel::{Parallel, Serial};
use crate::plan::{Bounds, Choose, Plan, PlannedSegment, even_bounds, smallest_divisor};
use crate::prepare::{Width, prepare_row};
use crate::scratch::{with_prepared, with_widened};
use crate::store::{OutputElement, store_row, widen_bias};
use crate::tiles::{Tile, run_tiles};

/// Prepared words per thread and block of M: 1 MiB, half of the smallest second-level cache in use.
const PART_WORDS: usize = 1 << 18;

/// A task that reads less than this is not worth a thread's attention.
const SMALLEST_TASK_BYTES: usize = 16 << 10;

/// From this much on a task is cut further, so that a thread that falls behind is helped out.
const LARGE_TASK_BYTES: usize = 256 << 10;

/// Tasks per thread at most.
const TASKS_PER_THREAD: usize = 4;

/// Activations below this many elements are prepared on the calling thread.
const SMALLEST_PARALLEL_PREPARATION: usize = 32 << 10;

/// The kernels of one call, each once. The segments of a tensor differ in their width of codes at most, so
/// there are at most two; none when there was no row to compute.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelsRan([Option<&'static Kernel>; 2]);

impl KernelsRan {
    fn of(plan: &Plan<'_>) -> Self {
        let first = plan.segments[0].kernel;
        let others = plan.segments.iter().map(|segment| segment.kernel);
        let second = others.into_iter().find(|kernel| kernel.bits != first.bits);
        Self([Some(first), second])
    }

    /// The kernels, that of the first segment first.
    pub fn iter(&self) -> impl Iterator<Item = &'static Kernel> {
        self.0.into_iter().flatten()
    }
}

/// Computes `y[m][ΣN] = x[m][K] · Wᵀ + bias`, each output rounded once from fp32.
///
/// `x` is `[m][K]` with `x_stride` elements from one row to the next; the bias, of any type, is
/// `[ΣN]`; `y` is contiguous. Returns the kernels that computed it.
///
/// # Errors
/// Lengths that do not fit the tensor, an unusable chunk, an [`IsaSet`] that names more than this
/// machine has, a buffer whose address is not a multiple of 4, a corrupt permutation. `y` is untouched
/// then.
#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one GEMM; a struct would only rename them"
)]
pub fn linear(
    w: &PackedTensor<'_>,
    x: Activations<'_>,
    x_stride: usize,
    m: usize,
    bias: Option<Activations<'_>>,
    y: Outputs<'_>,
    numerics: Numerics,
    isa: IsaSet,
    parallel: &dyn Parallel,
) -> Result<KernelsRan, Int4Error> {
    let dtype = x.dtype();
    let choose = |bits| Ok(dispatch::select(isa, numerics, dtype, bits, m));
    run(&choose, w, x, x_stride, m, bias, y, numerics, isa, parallel)
}

/// [`linear`] with one named kernel, for tests and measurements. The kernel's form decides whether
/// activations are quantized; `max_chunk` matters to int8 only.
///
/// # Errors
/// As [`linear`], and [`Int4Error::UnknownKernel`] when there is no such kernel or a segment has other
/// bits than it takes.
#[allow(clippy::too_many_arguments, reason = "as `linear`")]
pub fn linear_with_kernel(
    name: &str,
    w: &PackedTensor<'_>,
    x: Activations<'_>,
    x_stride: usize,
    m: usize,
    bias: Option<Activations<'_>>,
    y: Outputs<'_>,
    max_chunk: usize,
    parallel: &dyn Parallel,
) -> Result<(), Int4Error> {
    let unknown = || Int4Error::UnknownKernel {
        found: name.to_owned(),
    };
    let kernel = dispatch::by_name(name).ok_or_else(unknown)?;
    let choose = |bits| {
        if kernel.bits == bits {
            Ok(kernel)
        } else {
            Err(unknown())
        }
    };
    let numerics = match kernel.form {
        ActivationForm::Int8 => Numerics::Int8 { max_chunk },
        _ => Numerics::Native,
    };
    let isa = IsaSet::of(&[kernel.isa]);
    run(&choose, w, x, x_stride, m, bias, y, numerics, isa, parallel)?;
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "as `linear`")]
fn run(
    choose: Choose<'_>,
    w: &PackedTensor<'_>,
    x: Activations<'_>,
    x_stride: usize,
    m: usize,
    bias: Option<Activations<'_>>,
    y: Outputs<'_>,
    numerics: Numerics,
    isa: IsaSet,
    parallel: &dyn Parallel,
) -> Result<KernelsRan, Int4Error> {
    numerics.validate()?;
    if let Some(missing) = isa.first_missing() {
        return Err(Int4Error::UnsupportedIsa { missing });
    }
    check_activations(&x, x_stride, m, w.k())?;
    check_length("output", m.saturating_mul(w.n()), y.len())?;
    if let Some(bias) = &bias {
        check_length("bias", w.n(), bias.len())?;
    }
    let plan = Plan::new(choose, w, numerics, Width::of(isa))?;
    let call = Call {
        plan: &plan,
        x_stride,
        m,
        bias: bias.as_ref(),
        parallel,
    };
    match (x, y) {
        (Activations::Bf16(x), Outputs::Bf16(y)) => call.blocks(x, y),
        (Activations::Bf16(x), Outputs::F16(y)) => call.blocks::<bf16, f16>(x, y),
        (Activations::Bf16(x), Outputs::F32(y)) => call.blocks(x, y),
        (Activations::F16(x), Outputs::Bf16(y)) => call.blocks::<f16, bf16>(x, y),
        (Activations::F16(x), Outputs::F16(y)) => call.blocks(x, y),
        (Activations::F16(x), Outputs::F32(y)) => call.blocks(x, y),
        (Activations::F32(x), Outputs::Bf16(y)) => call.blocks(x, y),
        (Activations::F32(x), Outputs::F16(y)) => call.blocks(x, y),
        (Activations::F32(x), Outputs::F32(y)) => call.blocks(x, y),
    }
    Ok(if m == 0 {
        KernelsRan::default()
    } else {
        KernelsRan::of(&plan)
    })
}

fn check_activations(
    x: &Activations<'_>,
    x_stride: usize,
    m: usize,
    k: usize,
) -> Result<(), Int4Error> {
    let expected = match m.checked_sub(1) {
        None => 0,
        Some(rows) => rows.saturating_mul(x_stride).saturating_add(k),
    };
    if x.len() < expected {
        return Err(Int4Error::WrongLength {
            what: "activations",
            expected,
            found: x.len(),
        });
    }
    Ok(())
}

/// One call, after all checks.
struct Call<'c, 'a> {
    plan: &'c Plan<'a>,
    x_stride: usize,
    m: usize,
    bias: Option<&'c Activations<'c>>,
    parallel: &'c dyn Parallel,
}

impl Call<'_, '_> {
    fn blocks<E: Element, T: OutputElement>(&self, x: &[E], y: &mut [T]) {
        if self.m == 0 {
            return;
        }
        let plan = self.plan;
        let threads = self.parallel.threads().max(1);
        let strip_rows = plan.strip_rows();
        let part_rows = (PART_WORDS / plan.row_words / strip_rows).max(1) * strip_rows;
        let parts = smallest_divisor(threads, self.m.div_ceil(part_rows));
        let blocks = self.m.div_ceil(parts * part_rows);
        let block_rows = self
            .m
            .div_ceil(blocks)
            .next_multiple_of(strip_rows)
            .min(self.m);
        with_prepared(block_rows * plan.row_words, |prepared| {
            for first in (0..self.m).step_by(block_rows) {
                let rows = block_rows.min(self.m - first);
                let prepared = &mut prepared[..rows * plan.row_words];
                self.prepare(&x[first * self.x_stride..], rows, prepared);
                let y = &mut y[first * plan.n..(first + rows) * plan.n];
                self.compute(prepared, rows, parts, y);
            }
        });
    }

    fn prepare<E: Element>(&self, x: &[E], rows: usize, prepared: &mut [u32]) {
        let plan = self.plan;
        let elements = rows * plan.k * plan.preparations.len();
        let parallel: &dyn Parallel = if elements < SMALLEST_PARALLEL_PREPARATION {
            &Serial
        } else {
            self.parallel
        };
        let tasks = parallel.threads().clamp(1, rows);
        let row_bounds = even_bounds(rows, tasks, 1);
        run_tiles(
            parallel,
            prepared,
            plan.row_words,
            &row_bounds,
            &[0, plan.row_words],
            &|mut tile| {
                let wide_columns = plan.preparations[0].wide_columns();
                with_widened(wide_columns, |wide| {
                    for row in tile.rows() {
                        let x = &x[row * self.x_stride..][..plan.k];
                        let words = tile.row(row, 0..plan.row_words);
                        for preparation in &plan.preparations {
                            prepare_row(plan.width, preparation, x, wide, words);
                        }
                    }
                });
            },
        );
    }

    fn compute<T: OutputElement>(&self, prepared: &[u32], rows: usize, parts: usize, y: &mut [T]) {
        let plan = self.plan;
        let threads = self.parallel.threads().max(1);
        let strip_rows = plan.strip_rows();
        let parts = parts.min(rows.div_ceil(strip_rows));
        // What a tile does is proportional to the weight bytes and to the rows; eight rows count as one
        // reading of the weights.
        let strips = rows.div_ceil(MAX_ROWS);
        let bytes = plan.bytes.saturating_mul(strips);
        let per_thread = threads.div_ceil(parts);
        let helpful =
            per_thread * (bytes / (threads * LARGE_TASK_BYTES)).clamp(1, TASKS_PER_THREAD);
        let worthwhile = (bytes / SMALLEST_TASK_BYTES / parts).max(1);
        let ranges = helpful.min(worthwhile).min(plan.panels);
        let row_bounds = even_bounds(rows, parts, strip_rows);
        let panel_bounds = plan.panel_bounds(ranges);
        let column_bounds: Bounds = panel_bounds
            .iter()
            .map(|panel| plan.column(*panel))
            .collect();
        run_tiles(
            self.parallel,
            y,
            plan.n,
            &row_bounds,
            &column_bounds,
            &|mut tile| {
                self.tile(prepared, &mut tile);
            },
        );
    }

    fn tile<T: OutputElement>(&self, prepared: &[u32], tile: &mut Tile<'_, T>) {
        let columns = tile.columns();
        for segment in &self.plan.segments {
            let n = segment.view.spec.n;
            let first = columns.start.max(segment.first_column) - segment.first_column;
            let end = columns
                .end
                .min(segment.first_column + n)
                .saturating_sub(segment.first_column);
            // Column bounds are starts of panels; only the end of a segment may be inside one.
            for panel in first.div_ceil(NR)..end.div_ceil(NR) {
                if segment.kernel.max_rows <= MAX_ROWS {
                    self.panel::<T, MAX_ROWS>(segment, panel, prepared, tile);
                } else {
                    self.panel::<T, MOST_ROWS>(segment, panel, prepared, tile);
                }
            }
        }
    }

    /// `ROWS` is at least what the segment's kernel takes in one strip.
    fn panel<T: OutputElement, const ROWS: usize>(
        &self,
        segment: &PlannedSegment<'_>,
        panel: usize,
        prepared: &[u32],
        tile: &mut Tile<'_, T>,
    ) {
        let row_words = self.plan.row_words;
        let preparation = &self.plan.preparations[segment.preparation];
        let len = NR.min(segment.view.spec.n - panel * NR);
        let first = segment.first_column + panel * NR;
        let bias = widen_bias(self.bias, first, len);
        let packed = segment.view.panel(panel);
        let mut out = [[0.0f32; NR]; ROWS];
        let rows = tile.rows();
        let max_rows = segment.kernel.max_rows.min(ROWS);
        for row in rows.clone().step_by(max_rows) {
            let strip_rows = max_rows.min(rows.end - row);
            let words = &prepared[row * row_words..(row + strip_rows) * row_words];
            let strip = Strip {
                x: words[preparation.x_at()..].as_ptr().cast(),
                x_stride: preparation.x_stride(row_words),
                sums: words[preparation.sums_at()..].as_ptr().cast(),
                sums_stride: row_words,
                scales: words[preparation.scales_at()..].as_ptr().cast(),
                scales_stride: row_words,
                rows: strip_rows,
            };
            // SAFETY: `run` has checked that the machine has the instruction sets of the set the
            // kernel was chosen from; the view's panel holds its blocks and groups; `words` holds the
            // prepared rows of the strip in the kernel's form; `out` holds the rows of a strip.
            unsafe {
                (segment.kernel.run)(&packed, &strip, &segment.chunks, out.as_flattened_mut());
            }
            for (r, values) in out[..strip_rows].iter().enumerate() {
                store_row(values, &bias, tile.row(row + r, first..first + len));
            }
        }
    }
}
