//! Activations → the form a kernel reads: fp32, bf16 pairs, fixed point or int8, with Σx per group.
//!
//! One prepared row is one run of 32-bit words, `x | sums | scales`, each part starting at a cache
//! line. The loops are written once, over eight lanes, and compiled three times: for the baseline here
//! and with wider registers in `x86_64/prepare.rs`. Those over the chunks of the integer forms are too short
//! for the compiler's vectors and have intrinsics there ([`ChunkLoops`]). Nothing contracts or reorders
//! floating point, so all three give the same bits.

use crate::element::{Element, bf16_bits};
use crate::fixed_point::{CHUNK_WORDS, COLUMN_BYTES, SliceLoops, slice_row};
use crate::isa::{Isa, IsaSet};
use crate::kernel::ActivationForm;
use crate::quantize::{ChunkLoops, PortableLoops, quantize_row};

/// Columns are padded to a whole block of the widest kind, so 4- and 8-bit segments share a row.
const PAD_COLUMNS: usize = 8;

/// Lanes of the reductions; every span has a multiple of as many columns.
const LANES: usize = 8;

/// Words of a cache line.
const LINE_WORDS: usize = 16;

/// Which compilation of the loops to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Baseline,
    Avx2,
    Avx512,
}

impl Width {
    /// `set` must not exceed what the machine has.
    pub(crate) fn of(set: IsaSet) -> Self {
        if set.contains(Isa::Avx512) {
            Self::Avx512
        } else if set.contains(Isa::Avx2) {
            Self::Avx2
        } else {
            Self::Baseline
        }
    }
}

/// What distinguishes one prepared form of a row from another, and where its parts lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preparation<'a> {
    permutation: Option<&'a [u32]>,
    form: ActivationForm,
    /// Columns per block where the form depends on it (the order of bf16 pairs, c in fixed point), else 0.
    block_columns: usize,
    k: usize,
    padded_k: usize,
    group_columns: usize,
    chunk_columns: usize,
    groups: usize,
    chunks_per_group: usize,
    /// First word in the prepared row.
    start: usize,
    sums: usize,
    scales: usize,
    end: usize,
}

impl<'a> Preparation<'a> {
    /// `group_columns` and `chunk_columns` are multiples of 8, or `k`. The parts are laid out from
    /// word `start` on.
    pub(crate) fn new(
        form: ActivationForm,
        block_columns: usize,
        k: usize,
        group_columns: usize,
        chunk_columns: usize,
        permutation: Option<&'a [u32]>,
        start: usize,
    ) -> Self {
        let padded_k = k.next_multiple_of(PAD_COLUMNS);
        let groups = k.div_ceil(group_columns);
        let chunks_per_group = group_columns.div_ceil(chunk_columns);
        let x_words = match form {
            ActivationForm::F32 => padded_k,
            ActivationForm::Bf16Pairs => padded_k / 2,
            ActivationForm::Int8 => padded_k / 4,
            ActivationForm::I24 => padded_k / 4 * COLUMN_BYTES,
        };
        let scale_words = match form {
            ActivationForm::Int8 => groups * chunks_per_group,
            ActivationForm::I24 => groups * chunks_per_group * CHUNK_WORDS,
            _ => 0,
        };
        let sums = start + x_words.next_multiple_of(LINE_WORDS);
        let scales = sums + groups.next_multiple_of(LINE_WORDS);
        let end = scales + scale_words.next_multiple_of(LINE_WORDS);
        Self {
            permutation,
            form,
            block_columns: match form {
                ActivationForm::Bf16Pairs | ActivationForm::I24 => block_columns,
                ActivationForm::F32 | ActivationForm::Int8 => 0,
            },
            k,
            padded_k,
            group_columns,
            chunk_columns,
            groups,
            chunks_per_group,
            start,
            sums,
            scales,
            end,
        }
    }

    /// Whether both give the same row, so that one will do.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.form == other.form
            && self.block_columns == other.block_columns
            && self.k == other.k
            && self.group_columns == other.group_columns
            && self.chunk_columns == other.chunk_columns
            && self.permutation == other.permutation
    }

    /// fp32 of scratch that preparing a row takes.
    pub(crate) const fn wide_columns(&self) -> usize {
        self.padded_k
    }

    /// First word of x in a prepared row.
    pub(crate) const fn x_at(&self) -> usize {
        self.start
    }

    /// First word of the sums.
    pub(crate) const fn sums_at(&self) -> usize {
        self.sums
    }

    /// First word of the chunk scales.
    pub(crate) const fn scales_at(&self) -> usize {
        self.scales
    }

    /// Word behind the last.
    pub(crate) const fn end(&self) -> usize {
        self.end
    }

    /// Elements of x (fp32, pairs or bytes) in a row of `row_words` words.
    pub(crate) const fn x_stride(&self, row_words: usize) -> usize {
        match self.form {
            ActivationForm::F32 | ActivationForm::Bf16Pairs => row_words,
            ActivationForm::Int8 | ActivationForm::I24 => 4 * row_words,
        }
    }
}

/// Prepares one row: `x` has K elements, `row` is the prepared row that all preparations share, and
/// `wide` is scratch of [`Preparation::wide_columns`].
pub(crate) fn prepare_row<E: Element>(
    width: Width,
    preparation: &Preparation<'_>,
    x: &[E],
    wide: &mut [f32],
    row: &mut [u32],
) {
    match width {
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 | Width::Avx512 => {
            crate::x86_64::prepare::prepare_row(width, preparation, x, wide, row);
        }
        _ => prepare_row_lanes::<E, PortableLoops>(preparation, x, wide, row),
    }
}

/// The body of [`prepare_row`]; inlined into each of its compilations.
#[inline(always)]
pub(crate) fn prepare_row_lanes<E: Element, L: ChunkLoops + SliceLoops>(
    preparation: &Preparation<'_>,
    x: &[E],
    wide: &mut [f32],
    row: &mut [u32],
) {
    let (words, sums, scales) = parts(preparation, row);
    match preparation.form {
        ActivationForm::F32 => {
            let to = &mut bytemuck::cast_slice_mut(words)[..preparation.padded_k];
            widen(preparation, x, to);
            group_sums(preparation, to, sums);
        }
        ActivationForm::Bf16Pairs => {
            let wide = &mut wide[..preparation.padded_k];
            widen(preparation, x, wide);
            for value in wide.iter_mut() {
                *value = f32::from_bits(u32::from(bf16_bits(*value)) << 16);
            }
            group_sums(preparation, wide, sums);
            pairs(preparation.block_columns, wide, words);
        }
        ActivationForm::Int8 => {
            let wide = &mut wide[..preparation.padded_k];
            widen(preparation, x, wide);
            quantize_row::<L>(
                group_spans(preparation, wide),
                preparation.chunk_columns.next_multiple_of(PAD_COLUMNS),
                preparation.chunks_per_group,
                bytemuck::cast_slice_mut(words),
                sums,
                scales,
            );
        }
        ActivationForm::I24 => {
            let wide = &mut wide[..preparation.padded_k];
            widen(preparation, x, wide);
            slice_row::<L>(
                group_spans(preparation, wide),
                preparation.chunk_columns.next_multiple_of(PAD_COLUMNS),
                preparation.chunks_per_group,
                center(preparation.block_columns),
                bytemuck::cast_slice_mut(words),
                sums,
                bytemuck::cast_slice_mut(scales),
            );
        }
    }
}

/// c of the codes whose blocks have so many columns.
const fn center(block_columns: usize) -> i32 {
    if block_columns == 8 { 8 } else { 128 }
}

/// x, sums and chunk scales of a prepared row.
#[inline(always)]
fn parts<'r>(
    preparation: &Preparation<'_>,
    row: &'r mut [u32],
) -> (&'r mut [u32], &'r mut [f32], &'r mut [f32]) {
    let (before_sums, rest) = row.split_at_mut(preparation.sums);
    let (sums, scales) = rest.split_at_mut(preparation.scales - preparation.sums);
    let scale_count = match preparation.form {
        ActivationForm::Int8 => preparation.groups * preparation.chunks_per_group,
        ActivationForm::I24 => preparation.groups * preparation.chunks_per_group * CHUNK_WORDS,
        _ => 0,
    };
    (
        &mut before_sums[preparation.start..],
        &mut bytemuck::cast_slice_mut(sums)[..preparation.groups],
        &mut bytemuck::cast_slice_mut(scales)[..scale_count],
    )
}

#[inline(always)]
fn widen<E: Element>(preparation: &Preparation<'_>, x: &[E], to: &mut [f32]) {
    let (to, padding) = to.split_at_mut(preparation.k);
    match preparation.permutation {
        None => E::widen(x, to),
        Some(permutation) => {
            for (to, column) in to.iter_mut().zip(permutation) {
                *to = x[*column as usize].to_f32();
            }
        }
    }
    padding.fill(0.0);
}

#[inline(always)]
fn group_sums(preparation: &Preparation<'_>, x: &[f32], sums: &mut [f32]) {
    for (sum, group) in sums.iter_mut().zip(group_spans(preparation, x)) {
        let mut lanes = [0.0f32; LANES];
        for eight in group.as_chunks::<LANES>().0 {
            for (lane, value) in lanes.iter_mut().zip(eight) {
                *lane += value;
            }
        }
        *sum = lanes.iter().sum();
    }
}

/// Groups of a padded row; the last one takes the padding.
#[inline(always)]
fn group_spans<'x>(preparation: &Preparation<'_>, x: &'x [f32]) -> impl Iterator<Item = &'x [f32]> {
    // A group that is a whole row of K columns also takes the padding behind it.
    x.chunks(preparation.group_columns.next_multiple_of(PAD_COLUMNS))
}

/// bf16 values, widened, to pairs in the kernels' order (see [`ActivationForm::Bf16Pairs`]).
#[inline(always)]
fn pairs(pair_columns: usize, wide: &[f32], words: &mut [u32]) {
    // Four columns as halves of a word, then the middle two swapped: (0,2) (1,3).
    let swapped = |four: &[f32; 4]| {
        let [c0, c1, c2, c3] = four.map(|value| u64::from(value.to_bits() >> 16));
        c0 | c2 << 16 | c1 << 32 | c3 << 48
    };
    let words: &mut [u64] = bytemuck::cast_slice_mut(words);
    let (fours, _) = wide.as_chunks::<4>();
    if pair_columns == 8 {
        let (eights, _) = fours.as_chunks::<2>();
        for ([even, odd], [first, second]) in words.as_chunks_mut::<2>().0.iter_mut().zip(eights) {
            let (first, second) = (swapped(first), swapped(second));
            *even = (first & 0xffff_ffff) | second << 32;
            *odd = first >> 32 | (second & !0xffff_ffff);
        }
    } else {
        for (word, four) in words.iter_mut().zip(fours) {
            *word = swapped(four);
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    const WIDTHS: [(Width, Isa); 3] = [
        (Width::Baseline, Isa::Scalar),
        (Width::Avx2, Isa::Avx2),
        (Width::Avx512, Isa::Avx512),
    ];

    /// x as words, sums and scales of one prepared row; every width the machine has gives the same.
    fn prepare<E: Element>(
        preparation: &Preparation<'_>,
        x: &[E],
    ) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
        let machine = IsaSet::detect();
        let mut rows = WIDTHS
            .iter()
            .filter(|(_, isa)| machine.contains(*isa))
            .map(|(width, _)| {
                let mut row = vec![0; preparation.end()];
                let mut wide = vec![f32::NAN; preparation.wide_columns()];
                prepare_row(*width, preparation, x, &mut wide, &mut row);
                row
            });
        let mut row = rows.next().unwrap();
        assert!(rows.all(|other| other == row));
        let (words, sums, scales) = parts(preparation, &mut row);
        (words.to_vec(), sums.to_vec(), scales.to_vec())
    }

    fn form(
        form: ActivationForm,
        columns: usize,
        k: usize,
        group: usize,
        chunk: usize,
    ) -> Preparation<'static> {
        Preparation::new(form, columns, k, group, chunk, None, 0)
    }

    fn iota(k: usize) -> Vec<f32> {
        (0..k).map(|x| x as f32).collect()
    }

    #[test]
    fn fp32_is_copied_padded_and_summed_by_group() {
        let preparation = form(ActivationForm::F32, 8, 19, 8, 8);
        let (words, sums, scales) = prepare(&preparation, &iota(19));
        let mut expected = iota(19);
        expected.resize(24, 0.0);
        assert_eq!(bytemuck::cast_slice::<u32, f32>(&words)[..24], expected);
        assert_eq!(sums, [28.0, 92.0, 51.0]);
        assert!(scales.is_empty());
    }

    #[test]
    fn bf16_pairs_come_in_the_order_of_the_kernels() {
        let halves = |words: &[u32]| -> Vec<f32> {
            let halves: &[u16] = bytemuck::cast_slice(words);
            halves
                .iter()
                .map(|bits| bf16::from_bits(*bits).to_f32())
                .collect()
        };
        let x: Vec<bf16> = iota(9).into_iter().map(bf16::from_f32).collect();
        let (words, sums, _) = prepare(&form(ActivationForm::Bf16Pairs, 8, 9, 9, 9), &x);
        assert_eq!(
            halves(&words[..8]),
            [
                0., 2., 4., 6., 1., 3., 5., 7., 8., 0., 0., 0., 0., 0., 0., 0.
            ]
        );
        assert_eq!(sums, [36.0]);
        let (words, ..) = prepare(&form(ActivationForm::Bf16Pairs, 4, 9, 9, 9), &x);
        assert_eq!(
            halves(&words[..8]),
            [
                0., 2., 1., 3., 4., 6., 5., 7., 8., 0., 0., 0., 0., 0., 0., 0.
            ]
        );
    }

    #[test]
    fn int8_has_a_scale_per_chunk_and_sums_of_what_was_quantized() {
        // A group of 24 in chunks of 16 and 8, then a short group of 3.
        let mut x = vec![127.0; 16];
        x.extend([-254.0, 1.0, 3.0, 0.0, 5.0, 254.0, 2.0, -1.0]);
        x.extend([0.0, 0.0, 0.0]);
        let (words, sums, scales) = prepare(&form(ActivationForm::Int8, 8, 27, 24, 16), &x);
        let bytes: &[i8] = bytemuck::cast_slice(&words);
        assert_eq!(bytes[..16], [127; 16]);
        // Halves round to even: 0.5 to 0, 1.5 to 2, 2.5 to 2.
        assert_eq!(bytes[16..24], [-127, 0, 2, 0, 2, 127, 1, 0]);
        assert_eq!(bytes[24..32], [0; 8]);
        assert_eq!(scales, [1.0, 2.0, 0.0, 0.0]);
        assert_eq!(sums, [127.0 * 16.0 + 2.0 * 5.0, 0.0]);
    }

    #[test]
    fn fixed_point_has_three_digits_a_power_of_two_and_sums_of_what_was_kept() {
        // A group of 16 and one of 8. The largest of the first is in [4, 8): X = x · 2^19.
        let mut x = vec![0.0f32; 24];
        (x[0], x[5], x[9]) = (-7.5, 1.0, 2.0f32.powi(-20));
        x[16..].fill(3.0);
        for (block_columns, c) in [(8, 8), (4, 128)] {
            let (words, sums, scales) =
                prepare(&form(ActivationForm::I24, block_columns, 24, 16, 16), &x);
            let bytes: &[i8] = bytemuck::cast_slice(&words);
            let value = |column: usize| {
                let four = 12 * (column / 4) + column % 4;
                let [d2, d1, d0] = [0, 4, 8].map(|digit| i32::from(bytes[four + digit]));
                65_536 * d2 + 256 * d1 + d0
            };
            assert_eq!(value(0), -(15 << 18));
            assert_eq!(value(5), 1 << 19);
            // Half of the last place rounds to even.
            assert_eq!(value(9), 0);
            assert_eq!(value(16), 3 << 20);
            assert_eq!(sums, [-6.5, 24.0]);
            let ints: &[i32] = bytemuck::cast_slice(&scales);
            assert_eq!((scales[0], scales[4]), (2.0f32.powi(-19), 2.0f32.powi(-20)));
            assert_eq!(ints[1..4], [c * 52, 0, 0]);
            assert_eq!(ints[5..8], [-c * 384, 0, 0]);
        }
    }

    #[test]
    fn every_width_keeps_the_same_digits() {
        // Twenty-six binades, halves of the last place, lengths with and without a last eight.
        let x: Vec<f32> = (0..1000u32)
            .map(|i| {
                let bits = i.wrapping_mul(2_654_435_761);
                let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
                sign * (1.0 + (bits >> 9) as f32 / (1 << 23) as f32) * 2.0f32.powi(-(i as i32 % 26))
            })
            .collect();
        for (group, chunk) in [(128, 128), (24, 24), (1000, 128), (8, 8)] {
            // `prepare` compares the widths.
            let (_, sums, _) = prepare(&form(ActivationForm::I24, 8, 1000, group, chunk), &x);
            let exact: f64 = x[..group].iter().map(|x| f64::from(*x)).sum();
            assert!((f64::from(sums[0]) - exact).abs() <= 1e-5 * group as f64);
        }
    }

    #[test]
    fn what_is_not_finite_poisons_its_chunk_alone() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut x = iota(32);
            x[20] = bad;
            let (_, sums, words) = prepare(&form(ActivationForm::I24, 8, 32, 16, 8), &x);
            assert_eq!((sums[0].is_finite(), sums[1].is_nan()), (true, true));
            assert_eq!((words[0].is_nan(), words[8].is_nan()), (false, true));
            let (_, sums, scales) = prepare(&form(ActivationForm::Int8, 8, 32, 16, 8), &x);
            assert_eq!((sums[0].is_finite(), sums[1].is_nan()), (true, true));
            assert_eq!(
                scales.iter().map(|s| s.is_nan()).collect::<Vec<_>>(),
                [false, false, true, false]
            );
        }
    }

    #[test]
    fn chunks_too_small_to_invert_count_as_zero() {
        for (value, zero) in [
            (1e-38, true),
            (f32::from_bits(1), true),
            (1e-36, false),
            (3e38, false),
        ] {
            let (words, sums, scales) =
                prepare(&form(ActivationForm::Int8, 8, 8, 8, 8), &[value; 8]);
            let bytes: &[i8] = bytemuck::cast_slice(&words);
            assert_eq!(bytes[..8], [if zero { 0 } else { 127 }; 8], "{value:e}");
            assert_eq!((scales[0] == 0.0, sums[0] == 0.0), (zero, zero));
            assert!(sums[0].is_finite() || value > 1e38);
        }
    }

    #[test]
    fn permuted_columns_are_gathered() {
        let permutation = [3, 0, 2, 1];
        let preparation = Preparation::new(ActivationForm::F32, 4, 4, 4, 4, Some(&permutation), 0);
        let (words, ..) = prepare(&preparation, &[10.0, 11.0, 12.0, 13.0].map(f16::from_f32));
        assert_eq!(
            bytemuck::cast_slice::<u32, f32>(&words)[..4],
            [13.0, 10.0, 12.0, 11.0]
        );
    }

    #[test]
    fn equal_preparations_are_shared_and_parts_start_at_cache_lines() {
        let a = form(ActivationForm::F32, 8, 100, 32, 32);
        assert!(a.same_as(&form(ActivationForm::F32, 4, 100, 32, 32)));
        assert!(!a.same_as(&form(ActivationForm::F32, 8, 100, 64, 64)));
        let pairs = form(ActivationForm::Bf16Pairs, 8, 100, 32, 32);
        assert!(!pairs.same_as(&form(ActivationForm::Bf16Pairs, 4, 100, 32, 32)));
        let (p, q) = ([0, 1], [1, 0]);
        let permuted = |p| Preparation::new(ActivationForm::F32, 8, 2, 2, 2, Some(p), 0);
        assert!(!permuted(&p).same_as(&permuted(&q)));
        assert!(permuted(&p).same_as(&permuted(&p.clone())));
        let next = Preparation::new(ActivationForm::Int8, 8, 100, 32, 32, None, a.end());
        for at in [
            a.x_at(),
            a.sums_at(),
            a.scales_at(),
            a.end(),
            next.sums_at(),
            next.scales_at(),
        ] {
            assert_eq!(at % LINE_WORDS, 0);
        }
        assert_eq!(next.x_at(), a.end());
    }
}
