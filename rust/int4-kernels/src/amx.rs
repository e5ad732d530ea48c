//! Tile kernels: products of up to 16 rows of activations with a panel's sixteen outputs at a time, from the
//! same panels as every other kernel. Not measured, and not verified, on hardware: each process compares what
//! the CPU computes with the emulator before it uses it (`self_check.rs`).
//!
//! A tile register holds 16 rows of 16 words of 32 bits, a word being four int8 or two bf16 columns:
//!
//! ```text
//! C  0..3   sums       [activation row][output]     one tile per 16 rows of the strip, up to 64 rows
//! A  4, 5   activations [activation row][word]      as prepared, read in place
//! B  6, 7   codes      [word][output]               unpacked into a scratch of 4 KiB
//!
//! for each group g of the panel:
//!     for each chunk of the group (int8; the group itself for bf16):
//!         C = 0
//!         for each 16 words of the chunk:                # tiles 4, 6; the rest of a chunk in tiles 5, 7
//!             B = unpack(blocks)                         # once, for all rows of the strip
//!             for each 16 rows: A = x;  C += A · B       # int32, exact; or fp32
//!         partial[r] += x_scale[r][chunk] · C[r]         # int8; bf16: partial = C
//!     out[r] += scale[g] · (partial[r] − (zero[g] − b)·Σx[r][g]) + offset[g]·Σx[r][g]
//! ```
//!
//! - A chunk need not be whole tiles: a group of 32 int8 columns is 8 words. Tiles 5 and 7 are as long as what
//!   is left over, so that no product reads past the chunk and nothing is masked or padded.
//! - Every row tile of a strip has the same rows. The last of several starts early rather than being
//!   shorter; rows that it repeats are dropped. A row's sums never depend on another row.
//! - int8, 4 bit: activations are signed, codes unsigned (TDPBSUD), b = 0. 8 bit: codes less 128 are signed
//!   bytes (TDPBSSD), b = 128; unsigned ones would need the sum of the quantized activations for every row,
//!   chunk and panel. Both are the integers that the AVX-512 VNNI kernels compute, and what follows rounds
//!   alike: results are the same bits, whichever of the two a call gets.
//! - bf16: products of even and odd columns are summed apart in fp32 (TDPBF16PS), b = c. Subnormal inputs and
//!   sums count as zero, as in the AVX-512 BF16 kernels. Sums are rounded in another order than there.

pub(crate) mod emulator;
pub(crate) mod lanes;
pub(crate) mod self_check;
pub(crate) mod tile_unit;

use std::array::from_fn;

use crate::isa::Isa;
use crate::kernel::{
    ActivationForm, BLOCK_BYTES, Chunks, Kernel, MOST_ROWS, Microkernel, NR, Panel, Strip,
};
use emulator::EmulatedTiles;
use lanes::{Block, Lanes, PortableLanes, center};
use tile_unit::{ROW_WORDS, SumTile, TILE_ROWS, TileConfig, Tiles, WeightTile};

/// From so many rows of a call on tiles are used. Below it a tile is more than half empty, and the vector
/// kernels are bound by memory anyway. An estimate: not measured on hardware.
pub(crate) const MIN_ROWS: usize = 8;

/// Row tiles of a strip.
const MOST_TILES: usize = 4;

/// Rows of a strip at most. More of them share the unpacking of a panel; the sums have four registers.
const STRIP_ROWS: usize = MOST_TILES * TILE_ROWS;

const _: () = assert!(STRIP_ROWS <= MOST_ROWS);

/// Tiles of codes that are unpacked before they are used: one group of 128 bf16 columns.
const SCRATCH_TILES: usize = 4;

/// Tile registers (C has 0 to 3). The second of each pair has the shape of what is left over of a chunk.
const A: usize = 4;
const A_REST: usize = 5;
const B: usize = 6;
const B_REST: usize = 7;

/// The kernels on emulated tiles: for tests on machines without AMX.
pub(crate) const EMULATED: &[Kernel] = &[
    row(
        "amx_emulated-bf16q4",
        Isa::Scalar,
        false,
        4,
        emulate::<false, 4>,
    ),
    row(
        "amx_emulated-bf16q8",
        Isa::Scalar,
        false,
        8,
        emulate::<false, 8>,
    ),
    row(
        "amx_emulated-int8q4",
        Isa::Scalar,
        true,
        4,
        emulate::<true, 4>,
    ),
    row(
        "amx_emulated-int8q8",
        Isa::Scalar,
        true,
        8,
        emulate::<true, 8>,
    ),
];

/// A row of a kernel table.
pub(crate) const fn row(
    name: &'static str,
    isa: Isa,
    int8: bool,
    bits: u8,
    run: Microkernel,
) -> Kernel {
    Kernel {
        name,
        isa,
        form: if int8 {
            ActivationForm::Int8
        } else {
            ActivationForm::Bf16Pairs
        },
        bits,
        max_rows: STRIP_ROWS,
        min_rows: MIN_ROWS,
        run,
    }
}

/// # Safety
/// As [`Microkernel`].
unsafe fn emulate<const INT8: bool, const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    // SAFETY: the caller's contract; the emulator needs nothing of the CPU.
    unsafe { compute::<EmulatedTiles, PortableLanes, INT8, BITS>(panel, strip, chunks, out) }
}

/// Words of activations that a block meets: 8 columns (4 bit) or 4 (8 bit), four or two to a word.
const fn words_per_block(int8: bool, bits: u8) -> usize {
    32 / bits as usize / if int8 { 4 } else { 2 }
}

/// What the codes of a tile have had subtracted: b of the module's head.
const fn base(int8: bool, bits: u8) -> i32 {
    if int8 && bits == 4 { 0 } else { center(bits) }
}

/// The shape of the tiles.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Row tiles.
    tiles: usize,
    /// Rows of each.
    rows: usize,
    /// Words that a chunk has beyond whole tiles.
    rest_words: usize,
}

impl Shape {
    fn config(self) -> TileConfig {
        let sums = (0..self.tiles).fold(TileConfig::new(), |config, tile| {
            config.tile(tile, self.rows, NR)
        });
        let rest_rows = if self.rest_words == 0 { 0 } else { self.rows };
        sums.tile(A, self.rows, ROW_WORDS)
            .tile(B, ROW_WORDS, NR)
            .tile(A_REST, rest_rows, self.rest_words)
            .tile(B_REST, self.rest_words, NR)
    }

    /// First row of a row tile.
    fn first_row(self, tile: usize, strip_rows: usize) -> usize {
        (tile * TILE_ROWS).min(strip_rows - self.rows)
    }
}

/// A microkernel on the tiles `T` with the loops `L`.
///
/// # Safety
/// As [`Microkernel`], with a strip of at most [`STRIP_ROWS`] rows; and the machine must allow `T` and `L`.
#[inline(always)]
pub(crate) unsafe fn compute<T: Tiles, L: Lanes, const INT8: bool, const BITS: u8>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    // SAFETY: the arguments are passed on under the same contract, with as many tiles as the rows need.
    unsafe {
        match strip.rows.div_ceil(TILE_ROWS) {
            1 => compute_tiles::<T, L, INT8, BITS, 1>(panel, strip, chunks, out),
            2 => compute_tiles::<T, L, INT8, BITS, 2>(panel, strip, chunks, out),
            3 => compute_tiles::<T, L, INT8, BITS, 3>(panel, strip, chunks, out),
            4 => compute_tiles::<T, L, INT8, BITS, 4>(panel, strip, chunks, out),
            _ => unreachable!("a strip has 1 to 64 rows, not {}", strip.rows),
        }
    }
}

/// # Safety
/// As [`compute`], with `TILES` row tiles.
#[inline(always)]
unsafe fn compute_tiles<
    T: Tiles,
    L: Lanes,
    const INT8: bool,
    const BITS: u8,
    const TILES: usize,
>(
    panel: &Panel<'_>,
    strip: &Strip,
    chunks: &Chunks,
    out: &mut [f32],
) {
    debug_assert_eq!(panel.codes.len(), chunks.blocks * BLOCK_BYTES);
    debug_assert!(panel.scales.len() >= chunks.groups() * NR);
    let block_words = const { words_per_block(INT8, BITS) };
    let tile_blocks = ROW_WORDS / block_words;
    let stride_bytes = strip.x_stride * if INT8 { 1 } else { 4 };
    let mut shape = Shape {
        tiles: TILES,
        rows: strip.rows.min(TILE_ROWS),
        rest_words: chunks.chunk_blocks.min(chunks.blocks) * block_words % ROW_WORDS,
    };
    let first_rows: [usize; TILES] = from_fn(|tile| shape.first_row(tile, strip.rows));
    let mut x = first_rows.map(|row| strip.x.wrapping_add(row * stride_bytes));
    let totals = &mut out.as_chunks_mut::<NR>().0[..strip.rows];
    totals.fill([0.0; NR]);

    let mut codes = [WeightTile::ZERO; SCRATCH_TILES];
    let mut sums = SumTile::ZERO;
    // int8 groups of several chunks only.
    let mut partials = [[0.0f32; NR]; STRIP_ROWS];
    // SAFETY: the machine allows `T`, and this is the one value of it here.
    let mut tiles = unsafe { T::configured(&shape.config()) };

    let blocks: &[Block] = panel.codes.as_chunks().0;
    for (g, group) in blocks.chunks(chunks.group_blocks).enumerate() {
        let terms = L::terms::<BITS>(panel, g, const { base(INT8, BITS) });
        let last = group.len().div_ceil(chunks.chunk_blocks) - 1;
        for (c, chunk) in group.chunks(chunks.chunk_blocks).enumerate() {
            let rest_words = chunk.len() * block_words % ROW_WORDS;
            if rest_words == shape.rest_words {
                zero_sums::<T, TILES>(&mut tiles);
            } else {
                shape.rest_words = rest_words;
                tiles.configure(&shape.config());
            }
            for batch in chunk.chunks(SCRATCH_TILES * tile_blocks) {
                let parts = || batch.chunks(tile_blocks);
                for (to, part) in codes.iter_mut().zip(parts()) {
                    if INT8 {
                        L::unpack_int8::<BITS>(part, to);
                    } else {
                        L::unpack_bf16::<BITS>(part, to);
                    }
                }
                for (codes, part) in codes.iter().zip(parts()) {
                    // SAFETY: `x` is at the part's first word in the first row of each row tile; the
                    // tiles' rows belong to the strip and their words to the part.
                    unsafe {
                        if part.len() == tile_blocks {
                            tiles.load_weights::<B>(codes);
                            add::<T, INT8, BITS, TILES, A, B>(&mut tiles, &x, stride_bytes);
                        } else {
                            tiles.load_weights::<B_REST>(codes);
                            add::<T, INT8, BITS, TILES, A_REST, B_REST>(
                                &mut tiles,
                                &x,
                                stride_bytes,
                            );
                        }
                    }
                    x = x.map(|x| x.wrapping_add(4 * block_words * part.len()));
                }
            }
            for (tile, &first_row) in first_rows.iter().enumerate() {
                store_sums::<T, TILES>(&mut tiles, tile, &mut sums);
                // The last tile may repeat rows of the one before it.
                let repeated = tile * TILE_ROWS - first_row;
                for r in repeated..shape.rows {
                    let row = first_row + r;
                    let mut partial = [0.0; NR];
                    if INT8 {
                        if c != 0 {
                            partial = partials[row];
                        }
                        let scale = g * chunks.chunks_per_group() + c;
                        // SAFETY: each row of the strip has `chunks_per_group` scales per group.
                        let x_scale =
                            unsafe { strip.scales.add(row * strip.scales_stride + scale).read() };
                        L::add_chunk(&mut partial, &sums.0[r], x_scale);
                        if c != last {
                            partials[row] = partial;
                            continue;
                        }
                    } else {
                        partial = sums.0[r].map(f32::from_bits);
                    }
                    // SAFETY: each row of the strip has a sum per group.
                    let x_sum = unsafe { strip.sums.add(row * strip.sums_stride + g).read() };
                    L::add_group(&terms, &mut totals[row], &partial, x_sum);
                }
            }
        }
    }
}

#[inline(always)]
fn zero_sums<T: Tiles, const TILES: usize>(tiles: &mut T) {
    tiles.zero::<0>();
    if TILES > 1 {
        tiles.zero::<1>();
    }
    if TILES > 2 {
        tiles.zero::<2>();
    }
    if TILES > 3 {
        tiles.zero::<3>();
    }
}

#[inline(always)]
fn store_sums<T: Tiles, const TILES: usize>(tiles: &mut T, tile: usize, to: &mut SumTile) {
    match tile {
        0 => tiles.store::<0>(to),
        1 if TILES > 1 => tiles.store::<1>(to),
        2 if TILES > 2 => tiles.store::<2>(to),
        3 if TILES > 3 => tiles.store::<3>(to),
        _ => unreachable!("row tile {tile} of {TILES}"),
    }
}

/// `C += A · B` for every row tile, with the codes in tile `B`.
///
/// # Safety
/// `x` must be readable for the shape of tile `A`, rows `stride_bytes` apart.
#[inline(always)]
unsafe fn add<
    T: Tiles,
    const INT8: bool,
    const BITS: u8,
    const TILES: usize,
    const A: usize,
    const B: usize,
>(
    tiles: &mut T,
    x: &[*const u8; TILES],
    stride_bytes: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        add_one::<T, INT8, BITS, 0, A, B>(tiles, x[0], stride_bytes);
        if TILES > 1 {
            add_one::<T, INT8, BITS, 1, A, B>(tiles, x[1], stride_bytes);
        }
        if TILES > 2 {
            add_one::<T, INT8, BITS, 2, A, B>(tiles, x[2], stride_bytes);
        }
        if TILES > 3 {
            add_one::<T, INT8, BITS, 3, A, B>(tiles, x[3], stride_bytes);
        }
    }
}

/// # Safety
/// As [`add`], for one row tile.
#[inline(always)]
unsafe fn add_one<
    T: Tiles,
    const INT8: bool,
    const BITS: u8,
    const C: usize,
    const A: usize,
    const B: usize,
>(
    tiles: &mut T,
    x: *const u8,
    stride_bytes: usize,
) {
    // SAFETY: the caller's contract.
    unsafe { tiles.load_activations::<A>(x, stride_bytes) };
    if !INT8 {
        tiles.add_bf16::<C, A, B>();
    } else if BITS == 4 {
        tiles.add_signed_unsigned::<C, A, B>();
    } else {
        tiles.add_signed_signed::<C, A, B>();
    }
}
