//! Every kernel of the table, and the emulated ones, called as the driver calls it, on buffers that end where the contract
//! says the kernel stops reading, at addresses that are multiples of nothing. Results are compared with
//! the portable kernels'; under `-Zsanitizer=address` a read one byte further is an error.

use crate::dispatch::{EMULATED, KERNELS};
use crate::fixed_point::{CHUNK_WORDS, COLUMN_BYTES};
use crate::isa::{Isa, IsaSet};
use crate::kernel::{
    ActivationForm, BLOCK_BYTES, Chunks, Kernel, NR, Panel, PanelZeros, ScaleType, Strip,
};

/// Blocks of K, per group and per chunk: single, partial last group, partial last chunk, odd counts,
/// whole-row groups in several chunks, and chunks longer than any table in a kernel.
const GEOMETRIES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (2, 16, 16),
    (7, 3, 2),
    (16, 4, 4),
    (33, 8, 8),
    (9, 64, 4),
    (40, 100, 33),
    (48, 32, 16),
    (81, 32, 4),
    (150, 150, 140),
];

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    /// −1 to 1, exact in bf16.
    pub(super) fn unit(&mut self) -> f32 {
        (self.bits() % 255) as f32 / 127.0 - 1.0
    }

    fn scale(&mut self, scale_type: ScaleType) -> u16 {
        let value = 0.1 * self.unit();
        match scale_type {
            ScaleType::F16 => half::f16::from_f32(value).to_bits(),
            ScaleType::Bf16 => half::bf16::from_f32(value).to_bits(),
        }
    }
}

/// Elements that end with their allocation and start `skip` elements into it.
pub(super) struct Tail<T> {
    buffer: Box<[T]>,
    skip: usize,
}

impl<T: Default> Tail<T> {
    pub(super) fn new(skip: usize, len: usize, element: impl FnMut() -> T) -> Self {
        let padding = (0..skip).map(|_| T::default());
        let buffer = padding
            .chain(std::iter::repeat_with(element).take(len))
            .collect();
        Self { buffer, skip }
    }

    pub(super) fn get(&self) -> &[T] {
        &self.buffer[self.skip..]
    }

    fn get_mut(&mut self) -> &mut [T] {
        &mut self.buffer[self.skip..]
    }
}

/// Prepared activations in the form of `kernel`.
enum X {
    F32(Tail<f32>),
    Pairs(Tail<u32>),
    Int8(Tail<i8>),
    I24(Tail<i8>),
}

impl X {
    fn random(
        kernel: &Kernel,
        columns: usize,
        stride: usize,
        rows: usize,
        random: &mut Random,
    ) -> Self {
        match kernel.form {
            ActivationForm::F32 => Self::F32(Tail::new(1, (rows - 1) * stride + columns, || {
                random.unit()
            })),
            ActivationForm::Bf16Pairs => {
                let len = (rows - 1) * stride + columns / 2;
                let mut half = || u32::from(half::bf16::from_f32(random.unit()).to_bits());
                Self::Pairs(Tail::new(1, len, || half() | half() << 16))
            }
            ActivationForm::Int8 => {
                let len = (rows - 1) * stride + columns;
                Self::Int8(Tail::new(3, len, || (random.bits() % 255) as i8))
            }
            ActivationForm::I24 => {
                let len = (rows - 1) * stride + COLUMN_BYTES * columns;
                Self::I24(Tail::new(3, len, || random.bits() as i8))
            }
        }
    }

    fn start(&self) -> *const u8 {
        match self {
            Self::F32(x) => x.get().as_ptr().cast(),
            Self::Pairs(x) => x.get().as_ptr().cast(),
            Self::Int8(x) | Self::I24(x) => x.get().as_ptr().cast(),
        }
    }

    /// The integer of a column, as its digits, highest first; none in the float forms.
    fn digits(&self, stride: usize, row: usize, column: usize) -> Vec<i8> {
        match self {
            Self::Int8(x) => vec![x.get()[row * stride + column]],
            Self::I24(x) => {
                let four = row * stride + COLUMN_BYTES * (column / 4 * 4) + column % 4;
                [0, 4, 8].map(|digit| x.get()[four + digit]).to_vec()
            }
            Self::F32(_) | Self::Pairs(_) => vec![],
        }
    }
}

/// The part of `strip` from row `first` on that `kernel` takes in one call.
fn rows_from(strip: &Strip, kernel: &Kernel, first: usize) -> Strip {
    let element_bytes = match kernel.form {
        ActivationForm::F32 | ActivationForm::Bf16Pairs => 4,
        ActivationForm::Int8 | ActivationForm::I24 => 1,
    };
    Strip {
        x: strip.x.wrapping_add(first * strip.x_stride * element_bytes),
        sums: strip.sums.wrapping_add(first * strip.sums_stride),
        scales: strip.scales.wrapping_add(first * strip.scales_stride),
        rows: kernel.max_rows.min(strip.rows - first),
        ..*strip
    }
}

/// Rows around the edges of what a kernel takes at once: all of them, or those around whole tiles.
fn row_counts(kernel: &Kernel) -> Vec<usize> {
    let edges = [1, 16, 17, 40, 64];
    if kernel.max_rows <= 8 {
        (1..=kernel.max_rows).collect()
    } else {
        edges
            .into_iter()
            .filter(|rows| *rows <= kernel.max_rows)
            .collect()
    }
}

fn check(kernel: &Kernel, portable: &Kernel, chunks: &Chunks, rows: usize, random: &mut Random) {
    let groups = chunks.groups();
    let columns = chunks.blocks * BLOCK_BYTES * 8 / (NR * usize::from(kernel.bits));
    let stride = match kernel.form {
        ActivationForm::I24 => COLUMN_BYTES * columns + 5,
        _ => columns + 5,
    };
    let skip = (random.bits() % 63 + 1) as usize;
    let codes = Tail::new(skip, chunks.blocks * BLOCK_BYTES, || random.bits() as u8);
    let x = X::random(kernel, columns, stride, rows, random);
    let chunk_words = match kernel.form {
        ActivationForm::I24 => CHUNK_WORDS,
        _ => 1,
    };
    let row_scales = groups * chunks.chunks_per_group() * chunk_words;
    let scales_len = (rows - 1) * (row_scales + 2) + row_scales;
    let mut x_scales = Tail::new(1, scales_len, || 0.01 + random.unit().abs() / 100.0);
    let sums_len = (rows - 1) * (groups + 1) + groups;
    let mut sums = Tail::new(1, sums_len, || 4.0 * random.unit());
    if matches!(x, X::Int8(_) | X::I24(_)) {
        // Kernels may subtract c by way of Σx or Σd, so they have to be the sums of these activations.
        let center = if kernel.bits == 4 { 8 } else { 128 };
        sums.get_mut().fill(0.0);
        let mut digit_sums = vec![[0i32; 3]; scales_len];
        for r in 0..rows {
            for column in 0..columns {
                let block = column * chunks.blocks / columns;
                let group = block / chunks.group_blocks;
                let chunk = group * chunks.chunks_per_group()
                    + block % chunks.group_blocks / chunks.chunk_blocks;
                let at = r * (row_scales + 2) + chunk * chunk_words;
                let digits = x.digits(stride, r, column);
                let value = digits
                    .iter()
                    .fold(0, |x, digit| 256 * x + i32::from(*digit));
                sums.get_mut()[r * (groups + 1) + group] += value as f32 * x_scales.get()[at];
                for (sum, digit) in digit_sums[at].iter_mut().zip(digits) {
                    *sum -= center * i32::from(digit);
                }
            }
        }
        if chunk_words > 1 {
            for r in 0..rows {
                for at in (r * (row_scales + 2)..)
                    .step_by(chunk_words)
                    .take(row_scales / chunk_words)
                {
                    for (word, sum) in x_scales.get_mut()[at + 1..].iter_mut().zip(digit_sums[at]) {
                        *word = f32::from_bits(sum.cast_unsigned());
                    }
                }
            }
        }
    }
    let strip = Strip {
        x: x.start(),
        x_stride: stride,
        sums: sums.get().as_ptr(),
        sums_stride: groups + 1,
        scales: x_scales.get().as_ptr(),
        scales_stride: row_scales + 2,
        rows,
    };
    let highest = 1 << kernel.bits;
    let zeros = Tail::new(skip, groups * NR, || (random.bits() % highest) as u8);
    for scale_type in [ScaleType::F16, ScaleType::Bf16] {
        let scales = Tail::new(1, groups * NR, || random.scale(scale_type));
        let offsets = Tail::new(3, groups * NR, || random.scale(scale_type));
        for zeros in [
            PanelZeros::None,
            PanelZeros::U8(zeros.get()),
            PanelZeros::Offset(offsets.get()),
        ] {
            let panel = Panel {
                codes: codes.get(),
                scales: scales.get(),
                scale_type,
                zeros,
            };
            let run = |kernel: &Kernel| {
                // One element more than is written, to see that it is not.
                let mut out = vec![f32::NAN; rows * NR + 1];
                for first in (0..rows).step_by(kernel.max_rows) {
                    let part = rows_from(&strip, kernel, first);
                    let end = (first + part.rows) * NR + 1;
                    // SAFETY: the caller has asked the machine for the kernel's ISA; every buffer has
                    // the length that the strip, the panel and `chunks` state.
                    unsafe { (kernel.run)(&panel, &part, chunks, &mut out[first * NR..end]) };
                    assert!(out[end - 1].is_nan(), "{}", kernel.name);
                }
                out.truncate(rows * NR);
                out
            };
            let (found, expected) = (run(kernel), run(portable));
            // Fixed point: less than the lowest digit contributes, which is 2^-16 of the highest.
            let tolerance = match kernel.form {
                ActivationForm::I24 => 3e-6,
                _ => 1e-4,
            };
            let largest = expected.iter().fold(0.0f32, |most, y| most.max(y.abs()));
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                // Written so that NaN fails.
                assert!(
                    (found - expected).abs() <= tolerance * largest,
                    "{} {chunks:?} {zeros:?} {scale_type:?} row {} of {rows}, n {}: {found} instead of {expected}",
                    kernel.name,
                    at / NR,
                    at % NR,
                );
            }
        }
    }
}

#[test]
fn kernels_stay_inside_their_buffers_at_any_alignment() {
    let machine = IsaSet::detect();
    let mut random = Random(1);
    let mut checked = 0;
    let emulated = EMULATED.iter().copied().flatten();
    let kernels = KERNELS.iter().chain(emulated);
    for kernel in kernels.filter(|kernel| machine.contains(kernel.isa)) {
        let portable = KERNELS
            .iter()
            .find(|row| {
                row.isa == Isa::Scalar && row.form == kernel.form && row.bits == kernel.bits
            })
            .expect("the portable kernels have every form and width");
        for (blocks, group_blocks, chunk_blocks) in GEOMETRIES {
            let chunk_blocks = match kernel.form {
                ActivationForm::Int8 | ActivationForm::I24 => chunk_blocks.min(group_blocks),
                _ => group_blocks,
            };
            let chunks = Chunks {
                blocks,
                group_blocks,
                chunk_blocks,
            };
            for rows in row_counts(kernel) {
                check(kernel, portable, &chunks, rows, &mut random);
            }
        }
        // `tools/memcheck` fails without this line for the instruction sets that it promises.
        eprintln!("inside its buffers: {}", kernel.name);
        checked += 1;
    }
    assert!(checked > 0);
}
