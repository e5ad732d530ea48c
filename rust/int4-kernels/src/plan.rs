//! What a call of [`crate::linear`](mod@crate::linear) does: which kernel each segment gets, which
//! preparations of activations are shared, and how the work is cut.

use smallvec::SmallVec;

use crate::error::Int4Error;
use crate::kernel::{ActivationForm, Chunks, Kernel, NR};
use crate::layout::{PackedTensor, SegmentView};
use crate::operands::Numerics;
use crate::prepare::{Preparation, Width};

/// Words of a cache line.
const LINE_WORDS: usize = 16;

/// Columns that share a power of two as their fixed-point scale. A multiple of 8; sums over it are exact.
const I24_CHUNK_COLUMNS: usize = 128;

/// Bounds of consecutive ranges, one more than there are ranges.
pub(crate) type Bounds = SmallVec<[usize; 72]>;

/// The kernel for segments of so many bits.
pub(crate) type Choose<'c> = &'c dyn Fn(u8) -> Result<&'static Kernel, Int4Error>;

/// A segment with all that follows from it, the kernel and the numerics.
pub(crate) struct PlannedSegment<'a> {
    pub(crate) view: SegmentView<'a>,
    pub(crate) kernel: &'static Kernel,
    pub(crate) chunks: Chunks,
    /// Index into the plan's preparations.
    pub(crate) preparation: usize,
    pub(crate) first_panel: usize,
    pub(crate) panels: usize,
    pub(crate) first_column: usize,
    pub(crate) panel_bytes: usize,
}

/// What a call does, before any arithmetic.
pub(crate) struct Plan<'a> {
    pub(crate) segments: SmallVec<[PlannedSegment<'a>; 4]>,
    pub(crate) preparations: SmallVec<[Preparation<'a>; 2]>,
    pub(crate) width: Width,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) panels: usize,
    /// Weight bytes that one pass over the tensor reads.
    pub(crate) bytes: usize,
    /// Words of a prepared row.
    pub(crate) row_words: usize,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        choose: Choose<'_>,
        w: &PackedTensor<'a>,
        numerics: Numerics,
        width: Width,
    ) -> Result<Self, Int4Error> {
        let mut plan = Self {
            segments: SmallVec::new(),
            preparations: SmallVec::new(),
            width,
            n: 0,
            k: w.k(),
            panels: 0,
            bytes: 0,
            row_words: 0,
        };
        for segment in w.segments() {
            let view = segment.view()?;
            plan.push(view, choose(view.spec.bits)?, numerics);
        }
        // An odd number of cache lines from row to row: the rows of a strip do not share cache sets.
        plan.row_words += LINE_WORDS * usize::from(plan.row_words.is_multiple_of(2 * LINE_WORDS));
        Ok(plan)
    }

    fn push(&mut self, view: SegmentView<'a>, kernel: &'static Kernel, numerics: Numerics) {
        let spec = &view.spec;
        let block_columns = spec.block_columns();
        let group_columns = spec.group_columns();
        let chunk_columns = match numerics {
            Numerics::Native if kernel.form == ActivationForm::I24 => {
                group_columns.min(I24_CHUNK_COLUMNS)
            }
            Numerics::Native => group_columns,
            Numerics::Int8 { max_chunk } => group_columns.min(max_chunk),
        };
        let preparation = Preparation::new(
            kernel.form,
            block_columns,
            spec.k,
            group_columns,
            chunk_columns,
            view.permutation,
            self.row_words,
        );
        let known = self
            .preparations
            .iter()
            .position(|known| known.same_as(&preparation));
        let index = known.unwrap_or_else(|| {
            self.row_words = preparation.end();
            self.preparations.push(preparation);
            self.preparations.len() - 1
        });
        let panels = spec.panels();
        let panel_bytes = view.panel_bytes();
        self.segments.push(PlannedSegment {
            kernel,
            chunks: Chunks {
                blocks: spec.blocks(),
                group_blocks: spec.group_blocks(),
                chunk_blocks: chunk_columns.div_ceil(block_columns),
            },
            preparation: index,
            first_panel: self.panels,
            panels,
            first_column: self.n,
            panel_bytes,
            view,
        });
        self.n += spec.n;
        self.panels += panels;
        self.bytes += panels * panel_bytes;
    }

    /// Rows of the longest strip that any segment's kernel takes; a multiple of the others.
    pub(crate) fn strip_rows(&self) -> usize {
        let rows = self.segments.iter().map(|segment| segment.kernel.max_rows);
        rows.max().unwrap_or(1)
    }

    /// Output column at which panel `panel` (counted over all segments) starts.
    pub(crate) fn column(&self, panel: usize) -> usize {
        self.segments
            .iter()
            .rev()
            .find(|segment| {
                segment.first_panel <= panel && panel < segment.first_panel + segment.panels
            })
            .map_or(self.n, |segment| {
                segment.first_column + (panel - segment.first_panel) * NR
            })
    }

    /// Panel bounds of `ranges` ranges of about the same bytes.
    pub(crate) fn panel_bounds(&self, ranges: usize) -> Bounds {
        let mut bounds = Bounds::with_capacity(ranges + 1);
        bounds.push(0);
        let mut segments = self.segments.iter();
        let mut segment = segments.next();
        let mut before = 0;
        for range in 1..ranges {
            let target = (self.bytes as u128 * range as u128 / ranges as u128) as usize;
            let mut bound = self.panels;
            while let Some(current) = segment {
                let bytes = current.panels * current.panel_bytes;
                if target < before + bytes {
                    bound = current.first_panel
                        + (target - before + current.panel_bytes / 2) / current.panel_bytes;
                    break;
                }
                before += bytes;
                segment = segments.next();
            }
            bounds.push(bound);
        }
        bounds.push(self.panels);
        bounds
    }
}

/// The smallest divisor of `threads` that is at least `wanted`, or `threads`: parts of M times ranges
/// of panels then share the team evenly.
pub(crate) fn smallest_divisor(threads: usize, wanted: usize) -> usize {
    (wanted.min(threads)..=threads)
        .find(|parts| threads.is_multiple_of(*parts))
        .unwrap_or(threads)
}

/// `parts` even pieces of `0..len`, cut at multiples of `unit`; pieces at the end may be empty.
pub(crate) fn even_bounds(len: usize, parts: usize, unit: usize) -> Bounds {
    let step = len.div_ceil(parts).next_multiple_of(unit);
    (0..=parts).map(|part| (part * step).min(len)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch;
    use crate::isa::IsaSet;
    use crate::kernel::ScaleType;
    use crate::layout::{CodeKind, SegmentSpec, ZeroKind};
    use crate::operands::Dtype;
    use crate::pack::{PackZeros, pack_into};

    fn spec(n: usize, bits: u8, group_size: Option<usize>) -> SegmentSpec {
        SegmentSpec {
            n,
            k: 64,
            bits,
            group_size,
            scale_type: ScaleType::F16,
            zero_kind: ZeroKind::None,
            code_kind: CodeKind::Affine,
            permuted: false,
        }
    }

    /// Plans over zero codes at an address typed views accept.
    fn with_plan(specs: &[SegmentSpec], check: impl FnOnce(&Plan<'_>)) {
        let mut bytes = Vec::new();
        for spec in specs {
            let at = bytes.len();
            bytes.resize(at + spec.packed_bytes().unwrap(), 0);
            let (codes, scales) = (vec![0; spec.n * spec.k], vec![0; spec.n * spec.groups()]);
            pack_into(
                &mut bytes[at..],
                spec,
                &codes,
                &scales,
                PackZeros::None,
                None,
            )
            .unwrap();
        }
        let mut words = vec![0u32; bytes.len() / 4];
        bytemuck::cast_slice_mut(&mut words).copy_from_slice(&bytes);
        let tensor = PackedTensor::parse(bytemuck::cast_slice(&words)).unwrap();
        let choose = |bits| {
            Ok(dispatch::select(
                IsaSet::scalar(),
                Numerics::Native,
                Dtype::F32,
                bits,
                1,
            ))
        };
        check(&Plan::new(&choose, &tensor, Numerics::Native, Width::Baseline).unwrap());
    }

    #[test]
    fn segments_of_the_same_groups_share_a_preparation() {
        let specs = [
            spec(16, 4, Some(32)),
            spec(8, 8, Some(32)),
            spec(16, 4, None),
        ];
        with_plan(&specs, |plan| {
            let shared: Vec<usize> = plan
                .segments
                .iter()
                .map(|segment| segment.preparation)
                .collect();
            assert_eq!(shared, [0, 0, 1]);
            assert_eq!(plan.preparations.len(), 2);
            assert_eq!(plan.row_words / LINE_WORDS % 2, 1);
        });
    }

    #[test]
    fn ranges_are_cut_by_bytes_at_panels_of_all_segments() {
        // Four panels of 4 bit, the last one short, and two of 8 bit, each of about twice the bytes.
        let specs = [spec(52, 4, None), spec(32, 8, None)];
        with_plan(&specs, |plan| {
            assert_eq!((plan.panels, plan.n), (6, 84));
            assert_eq!(plan.panel_bounds(1)[..], [0, 6]);
            assert_eq!(plan.panel_bounds(2)[..], [0, 4, 6]);
            assert_eq!(plan.panel_bounds(4)[..], [0, 2, 4, 5, 6]);
            let columns: Vec<usize> = (0..=6).map(|panel| plan.column(panel)).collect();
            assert_eq!(columns, [0, 16, 32, 48, 52, 68, 84]);
            for ranges in 1..20 {
                let bounds = plan.panel_bounds(ranges);
                assert_eq!(
                    (bounds.len(), bounds[0], bounds[ranges]),
                    (ranges + 1, 0, 6)
                );
                assert!(bounds.is_sorted(), "{bounds:?}");
            }
        });
    }

    #[test]
    fn parts_divide_the_team() {
        let parts = |threads, wanted| smallest_divisor(threads, wanted);
        assert_eq!(
            [
                parts(1, 1),
                parts(1, 9),
                parts(8, 1),
                parts(8, 3),
                parts(8, 5)
            ],
            [1, 1, 1, 4, 8]
        );
        assert_eq!(
            [parts(6, 2), parts(6, 4), parts(7, 2), parts(12, 100)],
            [2, 6, 7, 12]
        );
    }

    #[test]
    fn even_pieces_end_at_whole_strips() {
        assert_eq!(even_bounds(100, 3, 8)[..], [0, 40, 80, 100]);
        assert_eq!(even_bounds(9, 3, 8)[..], [0, 8, 9, 9]);
        assert_eq!(even_bounds(5, 2, 1)[..], [0, 3, 5]);
    }
}
