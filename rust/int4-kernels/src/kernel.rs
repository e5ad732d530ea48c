//! What a microkernel reads and writes, and the row of the kernel table that names it.
//!
//! A microkernel computes `rows` × [`NR`] outputs of one panel over the whole of K. The driver
//! ([`crate::linear`](mod@crate::linear)) brings the activations into the form the kernel wants, walks panels and
//! strips of rows, and writes the results out; the microkernel does nothing but arithmetic:
//!
//! ```text
//! out[r][n] = Σ_g  s[g][n] · ( Σ_{k in g} (q[n][k] − c)·x[r][k]  −  (z[g][n] − c)·Σ_{k in g} x[r][k] )
//!                + m[g][n] · Σ_{k in g} x[r][k]                        (float offsets; there z = 0)
//! ```
//!
//! with c = 8 for 4-bit and c = 128 for 8-bit codes. `q − c` is exact in every form below; products
//! accumulate in fp32 (int32 for the integer forms); the scale is applied in fp32 per group.

use crate::isa::Isa;

/// Output rows (n) per panel: sixteen 32-bit lanes of a 512-bit register.
pub const NR: usize = 16;

/// Bytes of one block: 16 rows × 8 columns of 4 bits, or 16 rows × 4 columns of 8 bits.
pub const BLOCK_BYTES: usize = 64;

/// The most activation rows that a kernel of vectors takes in one call: their sums live in registers.
pub const MAX_ROWS: usize = 8;

/// The most activation rows that any kernel takes in one call ([`Kernel::max_rows`]).
pub const MOST_ROWS: usize = 64;

/// How scales and float offsets are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleType {
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
}

/// The form in which a kernel reads activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationForm {
    /// fp32, plain column order. Any input dtype can be brought into it exactly.
    F32,
    /// bf16 pairs, one `u32` per pair, low half first. Per block of 8 columns (4 bit) the pairs are
    /// (0,2) (4,6) (1,3) (5,7); per block of 4 columns (8 bit) they are (0,2) (1,3).
    Bf16Pairs,
    /// Signed bytes, plain column order, with one fp32 scale per row and chunk (see [`Chunks`]).
    Int8,
    /// 24-bit fixed point: x = scale · (65536·d₂ + 256·d₁ + d₀) with signed bytes d and a power of two as
    /// scale, per row and chunk. Per four columns twelve bytes: four d₂, four d₁, four d₀. Per chunk four
    /// words: the scale, then −c·Σd₂, −c·Σd₁, −c·Σd₀ as int32 (see [`crate::fixed_point`]).
    I24,
}

/// How K is cut. A *group* shares a weight scale; a *chunk* is the part of a group that shares an
/// int8 activation scale. Chunks never cross a group: each group starts a new chunk.
/// All lengths are in blocks; the last group and the last chunk of a group may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Blocks in the whole of K (K padded up to a whole block).
    pub blocks: usize,
    /// Blocks per group.
    pub group_blocks: usize,
    /// Blocks per chunk, at most `group_blocks`. Equal to it for the forms without scales.
    pub chunk_blocks: usize,
}

impl Chunks {
    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.blocks.div_ceil(self.group_blocks)
    }

    /// Chunks in a group of full length. Group `g`'s scales start at `g * chunks_per_group()`.
    pub fn chunks_per_group(&self) -> usize {
        self.group_blocks.div_ceil(self.chunk_blocks)
    }
}

/// Zero-points of one panel: `[groups][NR]`.
#[derive(Clone, Copy, Debug)]
pub enum PanelZeros<'a> {
    /// Every zero-point is c: the correction term vanishes.
    None,
    /// Integer zero-points.
    U8(&'a [u8]),
    /// Float offsets in the scale's type; the integer zero-point is 0.
    Offset(&'a [u16]),
}

/// One panel of a packed segment.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// `blocks * BLOCK_BYTES` bytes, 64-byte aligned when the packed tensor is.
    pub codes: &'a [u8],
    /// `[groups][NR]` scales as stored.
    pub scales: &'a [u16],
    /// Type of `scales` and of float offsets.
    pub scale_type: ScaleType,
    /// Zero-points or offsets.
    pub zeros: PanelZeros<'a>,
}

/// Some rows of prepared activations, at most as many as the kernel takes. Pointers address the first row of the
/// strip;
/// each stride is in elements of the pointed-to type. Columns past K up to the padded width are 0.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    /// First element of the first row: `f32`, `u32` pairs or bytes, as the kernel's form says.
    pub x: *const u8,
    /// Elements (of the form's type) from one row to the next.
    pub x_stride: usize,
    /// `[rows][groups]` Σx per group, of the activations as the kernel sees them (after rounding or
    /// quantization).
    pub sums: *const f32,
    /// Elements between rows of `sums`.
    pub sums_stride: usize,
    /// `[rows][groups * chunks_per_group]` activation scales for [`ActivationForm::Int8`], four words for
    /// each chunk of [`ActivationForm::I24`]; the other forms read none.
    pub scales: *const f32,
    /// Elements between rows of `scales`.
    pub scales_stride: usize,
    /// Rows in this strip, 1 to [`Kernel::max_rows`].
    pub rows: usize,
}

/// `out[r * NR + n]` for `r < strip.rows`; every such element is overwritten.
///
/// # Safety
/// The CPU must have the kernel's ISA. `strip` must have 1 to [`Kernel::max_rows`] rows and be readable for them
/// in the kernel's form and width, `panel` must hold `chunks.blocks` blocks and `chunks.groups()` groups, and
/// `out` must hold `strip.rows * NR` elements.
pub type Microkernel =
    unsafe fn(panel: &Panel<'_>, strip: &Strip, chunks: &Chunks, out: &mut [f32]);

/// One row of the kernel table.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// `{isa}-{activation}{weight}`, for instance `avx512_bf16-bf16q4` or `amx-int8q4`; the same string
    /// appears in logs, summaries and artifacts.
    pub name: &'static str,
    /// What the CPU must have.
    pub isa: Isa,
    /// How activations are read.
    pub form: ActivationForm,
    /// 4 or 8.
    pub bits: u8,
    /// The most rows of a strip.
    pub max_rows: usize,
    /// Rows of a call (not of a strip) from which on the kernel is chosen; 1 for most.
    pub min_rows: usize,
    /// The code.
    pub run: Microkernel,
}
