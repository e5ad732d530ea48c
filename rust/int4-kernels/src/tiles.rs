//! A row-major matrix that the tasks of a parallel region write tile by tile.
//!
//! Tiles are the cells of a grid of row and column bounds, so they cannot overlap; a cell is handed
//! out at most once, whatever the team of threads does. That makes the whole thing safe to call.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;

use crate::parallel::Parallel;

/// One cell of the grid: exclusive access to `rows` × `columns` of the matrix.
pub(crate) struct Tile<'a, T> {
    start: *mut T,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    owner: PhantomData<&'a mut T>,
}

impl<T> Tile<'_, T> {
    /// Rows of the matrix that belong to the tile.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Columns of the matrix that belong to the tile.
    pub(crate) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Elements `columns` of row `row`, both counted in the matrix.
    ///
    /// # Panics
    /// When they are not in the tile.
    pub(crate) fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [T] {
        assert!(
            self.rows.contains(&row)
                && self.columns.start <= columns.start
                && columns.start <= columns.end
                && columns.end <= self.columns.end,
            "row {row}, columns {columns:?} of tile {:?} x {:?}",
            self.rows,
            self.columns
        );
        // SAFETY: the element range lies in the matrix, because the tile does and the assertion puts
        // it in the tile; no other tile holds it (`run_tiles`), and `&mut self` borrows this one.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.add(row * self.width + columns.start),
                columns.len(),
            )
        }
    }
}

struct Start<T>(*mut T);

// SAFETY: the pointer is only used to make tiles, which no two threads share (`run_tiles`); moving
// the access to elements between threads is what `T: Send` allows.
unsafe impl<T: Send> Sync for Start<T> {}

/// Calls `f` once for every cell of the grid that the bounds make, in parallel. Bounds ascend, from
/// the first row (column) of the first cell to the end of the last one.
///
/// # Panics
/// When the bounds do not ascend or leave the matrix, or when `parallel` leaves a task out.
pub(crate) fn run_tiles<T: Send>(
    parallel: &dyn Parallel,
    matrix: &mut [T],
    width: usize,
    row_bounds: &[usize],
    column_bounds: &[usize],
    f: &(dyn Fn(Tile<'_, T>) + Sync),
) {
    let (Some(last_row), Some(last_column)) = (row_bounds.last(), column_bounds.last()) else {
        return;
    };
    assert!(
        row_bounds.is_sorted() && column_bounds.is_sorted(),
        "bounds ascend"
    );
    assert!(
        *last_column <= width
            && last_row
                .checked_mul(width)
                .is_some_and(|end| end <= matrix.len()),
        "bounds end inside the matrix"
    );
    let (parts, ranges) = (row_bounds.len() - 1, column_bounds.len() - 1);
    let tasks = parts * ranges;
    let start = Start(matrix.as_mut_ptr());
    let tile = |task: usize| {
        let start = &start;
        let (part, range) = (task / ranges, task % ranges);
        Tile {
            start: start.0,
            width,
            rows: row_bounds[part]..row_bounds[part + 1],
            columns: column_bounds[range]..column_bounds[range + 1],
            owner: PhantomData,
        }
    };
    if tasks <= 1 || parallel.threads() <= 1 {
        (0..tasks).for_each(|task| f(tile(task)));
        return;
    }
    let claimed: SmallVec<[AtomicU64; 8]> =
        (0..tasks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicUsize::new(0);
    parallel.run(tasks, &|task| {
        let bit = 1 << (task % 64);
        if task < tasks && claimed[task / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            f(tile(task));
            done.fetch_add(1, Ordering::Release);
        }
    });
    assert_eq!(done.load(Ordering::Acquire), tasks, "every task runs");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::{ScopedThreads, Serial};

    fn paint(parallel: &dyn Parallel) -> Vec<usize> {
        let mut matrix = vec![0; 5 * 7];
        run_tiles(
            parallel,
            &mut matrix,
            7,
            &[0, 2, 5],
            &[0, 3, 3, 6],
            &|mut tile| {
                let mark = 10 * (1 + tile.rows().start) + tile.columns().start;
                for row in tile.rows() {
                    let columns = tile.columns();
                    for element in tile.row(row, columns) {
                        *element += mark;
                    }
                }
            },
        );
        matrix
    }

    #[test]
    fn every_cell_is_visited_once() {
        #[rustfmt::skip]
        let expected = vec![
            10, 10, 10, 13, 13, 13, 0,
            10, 10, 10, 13, 13, 13, 0,
            30, 30, 30, 33, 33, 33, 0,
            30, 30, 30, 33, 33, 33, 0,
            30, 30, 30, 33, 33, 33, 0,
        ];
        assert_eq!(paint(&Serial), expected);
        assert_eq!(paint(&ScopedThreads(3)), expected);
    }

    /// Runs every task twice, and one that does not exist.
    struct Twice;

    impl Parallel for Twice {
        fn threads(&self) -> usize {
            2
        }

        fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
            (0..=tasks).chain(0..tasks).for_each(f);
        }
    }

    #[test]
    fn a_team_that_repeats_tasks_changes_nothing() {
        assert_eq!(paint(&Twice), paint(&Serial));
    }

    struct Lazy;

    impl Parallel for Lazy {
        fn threads(&self) -> usize {
            2
        }

        fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
            (1..tasks).for_each(f);
        }
    }

    #[test]
    #[should_panic(expected = "every task runs")]
    fn a_team_that_leaves_a_task_out_is_caught() {
        paint(&Lazy);
    }

    #[test]
    #[should_panic(expected = "of tile")]
    fn a_tile_does_not_reach_outside_itself() {
        let mut matrix = [0; 6];
        run_tiles(&Serial, &mut matrix, 3, &[0, 1, 2], &[0, 2], &|mut tile| {
            tile.row(0, 0..3).fill(1);
        });
    }
}
