//! Rows of an unquantized table: embedding lookup.

use half::{bf16, f16};

use crate::dense::DenseWeight;
use crate::element::Element;
use crate::error::Int4Error;
use crate::operands::{Activations, Outputs, check_ids, check_length};
use crate::parallel::{Parallel, Serial};
use crate::plan::even_bounds;
use crate::scratch::with_widened;
use crate::store::OutputElement;
use crate::tiles::run_tiles;

/// Below this many elements a call stays on the calling thread.
const SMALLEST_PARALLEL: usize = 64 << 10;

/// Writes rows `ids` of the table to `y[ids][k]`: the stored bits where `y` has the table's type, rounded
/// once to the type of `y` elsewhere.
///
/// # Errors
/// An id outside `0..n`, a wrong output length. `y` is untouched then.
pub fn dense_rows(
    w: &DenseWeight<'_>,
    ids: &[i64],
    y: Outputs<'_>,
    parallel: &dyn Parallel,
) -> Result<(), Int4Error> {
    check_length("output", ids.len().saturating_mul(w.k()), y.len())?;
    check_ids(ids, w.n())?;
    match (w.elements, y) {
        (Activations::Bf16(rows), Outputs::Bf16(y)) => copy(w, rows, ids, y, parallel),
        (Activations::F16(rows), Outputs::F16(y)) => copy(w, rows, ids, y, parallel),
        (Activations::F32(rows), Outputs::F32(y)) => copy(w, rows, ids, y, parallel),
        (Activations::Bf16(rows), Outputs::F16(y)) => round::<bf16, f16>(w, rows, ids, y, parallel),
        (Activations::Bf16(rows), Outputs::F32(y)) => round(w, rows, ids, y, parallel),
        (Activations::F16(rows), Outputs::Bf16(y)) => round::<f16, bf16>(w, rows, ids, y, parallel),
        (Activations::F16(rows), Outputs::F32(y)) => round(w, rows, ids, y, parallel),
        (Activations::F32(rows), Outputs::Bf16(y)) => round(w, rows, ids, y, parallel),
        (Activations::F32(rows), Outputs::F16(y)) => round(w, rows, ids, y, parallel),
    }
    Ok(())
}

fn copy<T: Copy + Send + Sync>(
    w: &DenseWeight<'_>,
    rows: &[T],
    ids: &[i64],
    y: &mut [T],
    parallel: &dyn Parallel,
) {
    each_row(w, ids, y, parallel, &|id, to| {
        to.copy_from_slice(&rows[id * w.stride..][..w.k]);
    });
}

fn round<E: Element, T: OutputElement>(
    w: &DenseWeight<'_>,
    rows: &[E],
    ids: &[i64],
    y: &mut [T],
    parallel: &dyn Parallel,
) {
    each_row(w, ids, y, parallel, &|id, to| {
        with_widened(w.k, |wide| {
            E::widen(&rows[id * w.stride..][..w.k], wide);
            T::round(wide, to);
        });
    });
}

/// Calls `f` with each id and its row of `y`. The ids were checked to be rows.
fn each_row<T: Send>(
    w: &DenseWeight<'_>,
    ids: &[i64],
    y: &mut [T],
    parallel: &dyn Parallel,
    f: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let count = ids.len();
    let parallel: &dyn Parallel = if count * w.k < SMALLEST_PARALLEL {
        &Serial
    } else {
        parallel
    };
    let bounds = even_bounds(count, parallel.threads().clamp(1, count.max(1)), 1);
    run_tiles(parallel, y, w.k, &bounds, &[0, w.k], &|mut tile| {
        for position in tile.rows() {
            f(ids[position] as usize, tile.row(position, 0..w.k));
        }
    });
}
