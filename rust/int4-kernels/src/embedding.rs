//! Rows of a packed tensor as plain numbers: embedding lookup and dequantization.

use half::{bf16, f16};
use smallvec::SmallVec;

use crate::error::Int4Error;
use crate::kernel::{NR, PanelZeros, ScaleType};
use crate::layout::{PackedTensor, SegmentView};
use crate::operands::{Outputs, check_ids, check_length};
use crate::parallel::{Parallel, Serial};
use crate::scratch::with_widened;
use crate::store::OutputElement;
use crate::tiles::run_tiles;

/// Below this many elements a call stays on the calling thread.
const SMALLEST_PARALLEL: usize = 32 << 10;

/// Writes rows `ids` of the tensor to `y[ids][K]`: `s * (q - z)`, exact in fp32, or `s * q + m`,
/// rounded once to fp32; then rounded once to the output type. Columns come in original order.
///
/// # Errors
/// An id outside `0..ΣN`, a wrong output length, [`Int4Error::Misaligned`],
/// [`Int4Error::InvalidPermutation`]. `y` is untouched then.
pub fn rows(
    w: &PackedTensor<'_>,
    ids: &[i64],
    y: Outputs<'_>,
    parallel: &dyn Parallel,
) -> Result<(), Int4Error> {
    check_length("output", ids.len().saturating_mul(w.k()), y.len())?;
    check_ids(ids, w.n())?;
    let mut segments = SmallVec::new();
    for segment in w.segments() {
        segments.push(segment.view()?);
    }
    let lookup = Lookup {
        segments,
        k: w.k(),
        ids,
        parallel,
    };
    match y {
        Outputs::Bf16(y) => lookup.run::<bf16>(y),
        Outputs::F16(y) => lookup.run::<f16>(y),
        Outputs::F32(y) => lookup.run::<f32>(y),
    }
    Ok(())
}

struct Lookup<'c> {
    segments: SmallVec<[SegmentView<'c>; 4]>,
    k: usize,
    ids: &'c [i64],
    parallel: &'c dyn Parallel,
}

impl Lookup<'_> {
    fn run<T: OutputElement>(&self, y: &mut [T]) {
        let count = self.ids.len();
        let parallel: &dyn Parallel = if count * self.k < SMALLEST_PARALLEL {
            &Serial
        } else {
            self.parallel
        };
        let tasks = parallel.threads().clamp(1, count.max(1));
        let bounds: SmallVec<[usize; 72]> = (0..=tasks).map(|task| count * task / tasks).collect();
        run_tiles(parallel, y, self.k, &bounds, &[0, self.k], &|mut tile| {
            with_widened(self.k, |wide| {
                for position in tile.rows() {
                    // The ids were checked to be rows.
                    self.row(self.ids[position] as usize, wide);
                    T::round(wide, tile.row(position, 0..self.k));
                }
            });
        });
    }

    fn row(&self, mut n: usize, wide: &mut [f32]) {
        for segment in &self.segments {
            if n < segment.spec.n {
                return decode_row(segment, n, wide);
            }
            n -= segment.spec.n;
        }
    }
}

fn decode_row(segment: &SegmentView<'_>, n: usize, wide: &mut [f32]) {
    let spec = &segment.spec;
    let panel = segment.panel(n / NR);
    let lane = n % NR;
    let block_columns = spec.block_columns();
    let widen = |bits: u16| match spec.scale_type {
        ScaleType::F16 => f16::from_bits(bits).to_f32(),
        ScaleType::Bf16 => bf16::from_bits(bits).to_f32(),
    };
    if segment.permutation.is_some() {
        // A permutation that names a column twice (bytes that nobody verified) must not let an earlier
        // row shine through.
        wide.fill(0.0);
    }
    for group in 0..spec.groups() {
        let entry = group * NR + lane;
        let scale = widen(panel.scales[entry]);
        let (zero, offset) = match panel.zeros {
            PanelZeros::None => (f32::from(spec.code_center()), 0.0),
            PanelZeros::U8(zeros) => (f32::from(zeros[entry]), 0.0),
            PanelZeros::Offset(offsets) => (0.0, widen(offsets[entry])),
        };
        let first = group * spec.group_columns();
        let end = spec.k.min(first + spec.group_columns());
        for column in first..end {
            let block = column / block_columns * crate::kernel::BLOCK_BYTES;
            let byte = panel.codes[block + 4 * lane + column % 4];
            let code = if spec.bits == 8 {
                byte
            } else if column % 8 < 4 {
                byte & 0xf
            } else {
                byte >> 4
            };
            let value = scale * (f32::from(code) - zero) + offset;
            let to = segment
                .permutation
                .map_or(column, |permutation| permutation[column] as usize);
            wide[to] = value;
        }
    }
}
