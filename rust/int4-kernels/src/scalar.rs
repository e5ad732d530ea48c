//! Portable microkernels: no intrinsics, every form and width. They are also the fallback on machines
//! without AVX2, so the inner loops run over the sixteen outputs of a panel, which the compiler turns
//! into vectors of whatever width the baseline has.

use half::{bf16, f16};

use crate::fixed_point::{CHUNK_WORDS, COLUMN_BYTES};
use crate::isa::Isa;
use crate::kernel::{
    ActivationForm, BLOCK_BYTES, Chunks, Kernel, MAX_ROWS, NR, Panel, PanelZeros, ScaleType, Strip,
};

pub(crate) const KERNELS: &[Kernel] = &[
    row("scalar-f32q4", ActivationForm::F32, 4, f32_form::<4>),
    row("scalar-f32q8", ActivationForm::F32, 8, f32_form::<8>),
    row(
        "scalar-bf16q4",
        ActivationForm::Bf16Pairs,
        4,
        bf16_form::<4>,
    ),
    row(
        "scalar-bf16q8",
        ActivationForm::Bf16Pairs,
        8,
        bf16_form::<8>,
    ),
    row("scalar-i24q4", ActivationForm::I24, 4, i24_form::<4>),
    row("scalar-i24q8", ActivationForm::I24, 8, i24_form::<8>),
    row("scalar-int8q4", ActivationForm::Int8, 4, int8_form::<4>),
    row("scalar-int8q8", ActivationForm::Int8, 8, int8_form::<8>),
];

const fn row(
    name: &'static str,
    form: ActivationForm,
    bits: u8,
    run: crate::kernel::Microkernel,
) -> Kernel {
    Kernel {
        name,
        isa: Isa::Scalar,
        form,
        bits,
        max_rows: MAX_ROWS,
        min_rows: 1,
        run,
    }
}

/// Columns of one block.
const fn columns(bits: u8) -> usize {
    if bits == 4 { 8 } else { 4 }
}

/// `q − c` of column `column` of a block, for the sixteen outputs.
#[inline(always)]
fn decode<const BITS: u8>(lanes: &[u32; NR], column: usize) -> [i32; NR] {
    let (shift, mask, center) = if BITS == 4 {
        (8 * (column % 4) + 4 * (column / 4), 0xf, 8)
    } else {
        (8 * column, 0xff, 128)
    };
    lanes.map(|lane| ((lane >> shift) & mask) as i32 - center)
}

/// The sixteen 32-bit words of a block.
#[inline(always)]
fn lanes(block: &[u8]) -> [u32; NR] {
    std::array::from_fn(|n| {
        u32::from_le_bytes([
            block[4 * n],
            block[4 * n + 1],
            block[4 * n + 2],
            block[4 * n + 3],
        ])
    })
}

pub(crate) fn widen(bits: &[u16], scale_type: ScaleType) -> [f32; NR] {
    std::array::from_fn(|n| match scale_type {
        ScaleType::F16 => f16::from_bits(bits[n]).to_f32(),
        ScaleType::Bf16 => bf16::from_bits(bits[n]).to_f32(),
    })
}

/// Adds one group: `out += s · (dot − (z − c)·Σx) + m·Σx`.
#[inline(always)]
fn add_group<const BITS: u8>(
    out: &mut [f32],
    dot: &[f32; NR],
    panel: &Panel<'_>,
    group: usize,
    sum: f32,
) {
    let at = group * NR..(group + 1) * NR;
    let scales = widen(&panel.scales[at.clone()], panel.scale_type);
    let center = if BITS == 4 { 8.0 } else { 128.0 };
    match panel.zeros {
        PanelZeros::None => {
            for n in 0..NR {
                out[n] += scales[n] * dot[n];
            }
        }
        PanelZeros::U8(zeros) => {
            let zeros = &zeros[at];
            for n in 0..NR {
                out[n] += scales[n] * (dot[n] - (f32::from(zeros[n]) - center) * sum);
            }
        }
        PanelZeros::Offset(offsets) => {
            let offsets = widen(&offsets[at], panel.scale_type);
            for n in 0..NR {
                out[n] += scales[n] * (dot[n] + center * sum) + offsets[n] * sum;
            }
        }
    }
}

/// The float forms. `load(row, block, column)` gives an activation as fp32.
#[inline(always)]
fn float_sweep<const BITS: u8>(
    panel: &Panel<'_>,
    rows: usize,
    chunks: &Chunks,
    out: &mut [f32],
    load: impl Fn(usize, usize, usize) -> f32,
    sum: impl Fn(usize, usize) -> f32,
) {
    out[..rows * NR].fill(0.0);
    let mut codes = panel.codes.chunks_exact(BLOCK_BYTES).enumerate();
    for group in 0..chunks.groups() {
        let mut dots = [[0.0f32; NR]; MAX_ROWS];
        for (block, codes) in codes.by_ref().take(chunks.group_blocks) {
            let lanes = lanes(codes);
            for column in 0..columns(BITS) {
                let weights = decode::<BITS>(&lanes, column).map(|w| w as f32);
                for (r, dot) in dots[..rows].iter_mut().enumerate() {
                    let x = load(r, block, column);
                    for n in 0..NR {
                        dot[n] += weights[n] * x;
                    }
                }
            }
        }
        for (r, dot) in dots[..rows].iter().enumerate() {
            add_group::<BITS>(
                &mut out[r * NR..(r + 1) * NR],
                dot,
                panel,
                group,
                sum(r, group),
            );
        }
    }
}

/// # Safety
/// As [`crate::kernel::Microkernel`].
unsafe fn f32_form<const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let x = strip.x.cast::<f32>();
    float_sweep::<BITS>(
        panel,
        strip.rows,
        chunks,
        out,
        // SAFETY: the caller's strip is readable for its rows over all blocks.
        |r, block, column| unsafe { *x.add(r * strip.x_stride + block * columns(BITS) + column) },
        // SAFETY: likewise for the sums of all groups.
        |r, group| unsafe { *strip.sums.add(r * strip.sums_stride + group) },
    );
}

/// # Safety
/// As [`crate::kernel::Microkernel`].
unsafe fn bf16_form<const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let x = strip.x.cast::<u32>();
    float_sweep::<BITS>(
        panel,
        strip.rows,
        chunks,
        out,
        |r, block, column| {
            let (pair, high) = pair_of::<BITS>(column);
            // SAFETY: the caller's strip is readable for its rows over all blocks; two columns a pair.
            let word = unsafe { *x.add(r * strip.x_stride + block * columns(BITS) / 2 + pair) };
            f32::from_bits(if high { word & 0xffff_0000 } else { word << 16 })
        },
        // SAFETY: likewise for the sums of all groups.
        |r, group| unsafe { *strip.sums.add(r * strip.sums_stride + group) },
    );
}

/// Where a column of a block stands among the block's pairs: (0,2) (4,6) (1,3) (5,7), or (0,2) (1,3).
#[inline(always)]
const fn pair_of<const BITS: u8>(column: usize) -> (usize, bool) {
    let high = column & 2 != 0;
    if BITS == 4 {
        (2 * (column & 1) + column / 4, high)
    } else {
        (column & 1, high)
    }
}

/// The integer forms. `load(row, block, column)` gives an activation, `scale(row, chunk)` what a chunk's sum,
/// which `T` holds exactly, is multiplied with.
///
/// # Safety
/// `strip` must have a sum per row and group.
#[inline(always)]
unsafe fn integer_sweep<const BITS: u8, T: Integer>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
    load: impl Fn(usize, usize, usize) -> T,
    scale: impl Fn(usize, usize) -> f32,
) {
    let rows = strip.rows;
    out[..rows * NR].fill(0.0);
    let mut codes = panel.codes.chunks_exact(BLOCK_BYTES).enumerate();
    for group in 0..chunks.groups() {
        let group_start = group * chunks.group_blocks;
        let group_blocks = chunks.group_blocks.min(chunks.blocks - group_start);
        let mut dots = [[0.0f32; NR]; MAX_ROWS];
        let mut chunk = group * chunks.chunks_per_group();
        let mut left = group_blocks;
        while left > 0 {
            let take = left.min(chunks.chunk_blocks);
            let mut sums = [[T::default(); NR]; MAX_ROWS];
            for (block, codes) in codes.by_ref().take(take) {
                let lanes = lanes(codes);
                for column in 0..columns(BITS) {
                    let weights = decode::<BITS>(&lanes, column).map(T::from);
                    for (r, sum) in sums[..rows].iter_mut().enumerate() {
                        let x = load(r, block, column);
                        for n in 0..NR {
                            sum[n] = sum[n] + weights[n] * x;
                        }
                    }
                }
            }
            for (r, dot) in dots[..rows].iter_mut().enumerate() {
                let scale = scale(r, chunk);
                for n in 0..NR {
                    dot[n] += sums[r][n].to_f32() * scale;
                }
            }
            chunk += 1;
            left -= take;
        }
        for (r, dot) in dots[..rows].iter().enumerate() {
            // SAFETY: the caller's strip has a sum per row and group.
            let sum = unsafe { *strip.sums.add(r * strip.sums_stride + group) };
            add_group::<BITS>(&mut out[r * NR..(r + 1) * NR], dot, panel, group, sum);
        }
    }
}

/// What the integer forms add up in.
trait Integer:
    Copy + Default + From<i32> + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self>
{
    fn to_f32(self) -> f32;
}

impl Integer for i32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
}

impl Integer for i64 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
}

/// # Safety
/// As [`crate::kernel::Microkernel`].
unsafe fn int8_form<const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    let x = strip.x.cast::<i8>();
    // SAFETY: the caller's strip is readable for its rows over all blocks.
    let load = |r: usize, block: usize, column: usize| unsafe {
        i32::from(*x.add(r * strip.x_stride + block * columns(BITS) + column))
    };
    // SAFETY: the caller's strip has a scale per row and chunk.
    let scale =
        |r: usize, chunk: usize| unsafe { *strip.scales.add(r * strip.scales_stride + chunk) };
    // SAFETY: the caller's strip has a sum per row and group.
    unsafe { integer_sweep::<BITS, i32>(panel, strip, chunks, out, load, scale) };
}

/// The formula with integers wide enough for whole products: c is subtracted from the codes, so the chunk's
/// words are not needed for it.
///
/// # Safety
/// As [`crate::kernel::Microkernel`].
unsafe fn i24_form<const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    // SAFETY: the caller's strip is readable for its rows over all blocks, twelve bytes for four columns.
    let load = |r: usize, block: usize, column: usize| unsafe {
        let column = block * columns(BITS) + column;
        let four = strip
            .x
            .add(r * strip.x_stride + COLUMN_BYTES * (column / 4 * 4) + column % 4);
        let [d2, d1, d0] = [0, 4, 8].map(|digit| i64::from(four.add(digit).cast::<i8>().read()));
        65_536 * d2 + 256 * d1 + d0
    };
    // SAFETY: the caller's strip has four words per row and chunk, of which the scale is the first.
    let scale = |r: usize, chunk: usize| unsafe {
        *strip
            .scales
            .add(r * strip.scales_stride + CHUNK_WORDS * chunk)
    };
    // SAFETY: the caller's strip has a sum per row and group.
    unsafe { integer_sweep::<BITS, i64>(panel, strip, chunks, out, load, scale) };
}
