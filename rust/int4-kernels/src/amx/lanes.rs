//! What the tile kernels do beside tile products, sixteen outputs at a time: bring codes into tiles, and
//! combine a group's sums with its scale and zero. Portable here, in AVX-512 in `x86_64/amx.rs`; both round
//! alike, so that they give the same bits.

use half::bf16;

use super::tile_unit::WeightTile;
use crate::kernel::{BLOCK_BYTES, NR, Panel, PanelZeros};
use crate::scalar::widen;

/// One block of a panel.
pub(crate) type Block = [u8; BLOCK_BYTES];

/// The code that stands for zero in a symmetric grid.
pub(crate) const fn center(bits: u8) -> i32 {
    1 << (bits - 1)
}

/// Loops over the sixteen outputs of a panel.
pub(crate) trait Lanes {
    /// What a group's partial sums are combined with.
    type Terms;

    /// Terms of group `g`, where partial sums have subtracted `base` from every code.
    fn terms<const BITS: u8>(panel: &Panel<'_>, g: usize, base: i32) -> Self::Terms;

    /// Codes as bytes, four columns to a word in plain order: unsigned for 4 bit (two rows per block), less
    /// 128 and signed for 8 bit (one row per block).
    fn unpack_int8<const BITS: u8>(blocks: &[Block], to: &mut WeightTile);

    /// `q − c` as bf16, in the pairs of [`crate::ActivationForm::Bf16Pairs`]: four rows per block for 4 bit,
    /// two for 8 bit.
    fn unpack_bf16<const BITS: u8>(blocks: &[Block], to: &mut WeightTile);

    /// `partial + sums · x_scale`, with `sums` int32; one rounding after the conversion.
    fn add_chunk(partial: &mut [f32; NR], sums: &[u32; NR], x_scale: f32);

    /// `total + scale·(partial − zero·x_sum) + offset·x_sum`, each product fused with its sum. A term that
    /// is zero for the whole panel is left out.
    fn add_group(terms: &Self::Terms, total: &mut [f32; NR], partial: &[f32; NR], x_sum: f32);
}

/// Without intrinsics.
pub(crate) struct PortableLanes;

/// Terms of [`PortableLanes`]; `None` where a term is zero for the whole panel.
pub(crate) struct PortableTerms {
    scale: [f32; NR],
    zero: Option<[f32; NR]>,
    offset: Option<[f32; NR]>,
}

impl Lanes for PortableLanes {
    type Terms = PortableTerms;

    fn terms<const BITS: u8>(panel: &Panel<'_>, g: usize, base: i32) -> PortableTerms {
        let at = g * NR..(g + 1) * NR;
        let symmetric = center(BITS) - base;
        let (zero, offset) = match panel.zeros {
            PanelZeros::None => ((symmetric != 0).then_some([symmetric as f32; NR]), None),
            PanelZeros::U8(zeros) => {
                let zeros = &zeros[at.clone()];
                let zero = |n: usize| (i32::from(zeros[n]) - base) as f32;
                (Some(std::array::from_fn(zero)), None)
            }
            PanelZeros::Offset(offsets) => {
                let offset = widen(&offsets[at.clone()], panel.scale_type);
                ((base != 0).then_some([-base as f32; NR]), Some(offset))
            }
        };
        PortableTerms {
            scale: widen(&panel.scales[at], panel.scale_type),
            zero,
            offset,
        }
    }

    fn unpack_int8<const BITS: u8>(blocks: &[Block], to: &mut WeightTile) {
        if BITS == 4 {
            let (rows, _) = to.0.as_chunks_mut::<2>();
            for ([low, high], block) in rows.iter_mut().zip(blocks) {
                *low = block.map(|byte| byte & 0x0f);
                *high = block.map(|byte| byte >> 4);
            }
        } else {
            for (row, block) in to.0.iter_mut().zip(blocks) {
                *row = block.map(|byte| byte ^ 0x80);
            }
        }
    }

    fn unpack_bf16<const BITS: u8>(blocks: &[Block], to: &mut WeightTile) {
        let rows_per_block = 16 / usize::from(BITS);
        for (rows, block) in to.0.chunks_exact_mut(rows_per_block).zip(blocks) {
            for (p, row) in rows.iter_mut().enumerate() {
                for (n, pair) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    // Pairs of 4 bit: (0,2) (4,6) (1,3) (5,7); of 8 bit: (0,2) (1,3).
                    let column = if BITS == 4 { p / 2 + 4 * (p % 2) } else { p };
                    let halves = [column, column + 2].map(|column| {
                        let byte = block[4 * n + column % 4];
                        let code = match (BITS, column / 4) {
                            (4, 0) => byte & 0x0f,
                            (4, _) => byte >> 4,
                            _ => byte,
                        };
                        // At most 8 significant bits: exact.
                        bf16::from_f32((i32::from(code) - center(BITS)) as f32).to_le_bytes()
                    });
                    pair.copy_from_slice(halves.as_flattened());
                }
            }
        }
    }

    fn add_chunk(partial: &mut [f32; NR], sums: &[u32; NR], x_scale: f32) {
        for (partial, sum) in partial.iter_mut().zip(sums) {
            *partial = (sum.cast_signed() as f32).mul_add(x_scale, *partial);
        }
    }

    fn add_group(terms: &PortableTerms, total: &mut [f32; NR], partial: &[f32; NR], x_sum: f32) {
        for n in 0..NR {
            let mut partial = partial[n];
            if let Some(zero) = &terms.zero {
                partial = (-zero[n]).mul_add(x_sum, partial);
            }
            total[n] = terms.scale[n].mul_add(partial, total[n]);
            if let Some(offset) = &terms.offset {
                total[n] = offset[n].mul_add(x_sum, total[n]);
            }
        }
    }
}
