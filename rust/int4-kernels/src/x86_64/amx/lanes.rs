//! The loops beside the tile products in AVX-512: unpacking, and the terms of a group.

use std::arch::x86_64::*;

use crate::amx::lanes::{Block, Lanes};
use crate::amx::tile_unit::{ROW_WORDS, WeightTile};
use crate::kernel::{NR, Panel};
use crate::x86_64::avx512::bf16::{load_table, nibble_table};
use crate::x86_64::avx512::{GroupTerms, group_terms, load_block};

/// Only `strip` of the file above names it, and a test that asks first: AVX-512 is there when its loops run.
pub(super) struct Avx512Lanes;

impl Lanes for Avx512Lanes {
    type Terms = GroupTerms;

    #[inline(always)]
    fn terms<const BITS: u8>(panel: &Panel<'_>, g: usize, base: i32) -> GroupTerms {
        // SAFETY: see `Avx512Lanes`.
        unsafe { group_terms::<BITS>(panel, g, base) }
    }

    #[inline(always)]
    fn unpack_int8<const BITS: u8>(blocks: &[Block], to: &mut WeightTile) {
        // SAFETY: see `Avx512Lanes`.
        unsafe { unpack_int8::<BITS>(blocks, to) }
    }

    #[inline(always)]
    fn unpack_bf16<const BITS: u8>(blocks: &[Block], to: &mut WeightTile) {
        // SAFETY: see `Avx512Lanes`.
        unsafe {
            if BITS == 4 {
                unpack_bf16_4(blocks, to);
            } else {
                unpack_bf16_8(blocks, to);
            }
        }
    }

    #[inline(always)]
    fn add_chunk(partial: &mut [f32; NR], sums: &[u32; NR], x_scale: f32) {
        // SAFETY: see `Avx512Lanes`.
        unsafe { add_chunk(partial, sums, x_scale) }
    }

    #[inline(always)]
    fn add_group(terms: &GroupTerms, total: &mut [f32; NR], partial: &[f32; NR], x_sum: f32) {
        // SAFETY: see `Avx512Lanes`.
        unsafe { add_group(terms, total, partial, x_sum) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_row(row: &mut [u8; 4 * ROW_WORDS], v: __m512i) {
    // SAFETY: `row` holds the 64 bytes that are written, at any alignment.
    unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack_int8<const BITS: u8>(blocks: &[Block], to: &mut WeightTile) {
    if BITS == 4 {
        let nibbles = _mm512_set1_epi8(15);
        let (rows, _) = to.0.as_chunks_mut::<2>();
        for ([low, high], block) in rows.iter_mut().zip(blocks) {
            let v = load_block(block);
            store_row(low, _mm512_and_si512(v, nibbles));
            store_row(high, _mm512_and_si512(_mm512_srli_epi16::<4>(v), nibbles));
        }
    } else {
        let sign = _mm512_set1_epi8(i8::MIN);
        for (row, block) in to.0.iter_mut().zip(blocks) {
            store_row(row, _mm512_xor_si512(load_block(block), sign));
        }
    }
}

/// `q − 8` by a table: nibbles 0 to 3 of each half of a lane are the columns (0,2) (4,6) (1,3) (5,7).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack_bf16_4(blocks: &[Block], to: &mut WeightTile) {
    const CENTERED: [u16; 32] = nibble_table(8, 1);
    let table = load_table(&CENTERED);
    let (rows, _) = to.0.as_chunks_mut::<4>();
    for ([a, b, c, d], block) in rows.iter_mut().zip(blocks) {
        let v = load_block(block);
        store_row(a, _mm512_permutexvar_epi16(v, table));
        store_row(
            b,
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<4>(v), table),
        );
        store_row(
            c,
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<8>(v), table),
        );
        store_row(
            d,
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<12>(v), table),
        );
    }
}

/// `q − 128` by conversion to fp32, whose upper half is the number in bf16: it has at most 8 significant bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack_bf16_8(blocks: &[Block], to: &mut WeightTile) {
    let byte = _mm512_set1_epi32(0xff);
    let (rows, _) = to.0.as_chunks_mut::<2>();
    for ([even, odd], block) in rows.iter_mut().zip(blocks) {
        let v = load_block(block);
        let wide = [
            _mm512_and_si512(v, byte),
            _mm512_and_si512(_mm512_srli_epi32::<8>(v), byte),
            _mm512_and_si512(_mm512_srli_epi32::<16>(v), byte),
            _mm512_srli_epi32::<24>(v),
        ]
        .map(|code| _mm512_sub_epi32(code, _mm512_set1_epi32(128)))
        .map(|code| _mm512_castps_si512(_mm512_cvtepi32_ps(code)));
        let [c0, c1, c2, c3] = wide;
        store_row(even, _mm512_or_si512(_mm512_srli_epi32::<16>(c0), c2));
        store_row(odd, _mm512_or_si512(_mm512_srli_epi32::<16>(c1), c3));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_lanes(lanes: &[f32; NR]) -> __m512 {
    // SAFETY: the array holds the 64 bytes that are read, at any alignment.
    unsafe { _mm512_loadu_ps(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_lanes(lanes: &mut [f32; NR], v: __m512) {
    // SAFETY: the array holds the 64 bytes that are written, at any alignment.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), v) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_chunk(partial: &mut [f32; NR], sums: &[u32; NR], x_scale: f32) {
    // SAFETY: the array holds the 64 bytes that are read, at any alignment.
    let sums = _mm512_cvtepi32_ps(unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) });
    let added = _mm512_fmadd_ps(sums, _mm512_set1_ps(x_scale), load_lanes(partial));
    store_lanes(partial, added);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_group(terms: &GroupTerms, total: &mut [f32; NR], partial: &[f32; NR], x_sum: f32) {
    let added = terms.apply(load_lanes(total), load_lanes(partial), x_sum);
    store_lanes(total, added);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amx::lanes::PortableLanes;
    use crate::isa::{Isa, IsaSet};
    use crate::kernel::{PanelZeros, ScaleType};

    struct Random(u64);

    impl Random {
        fn bits(&mut self) -> u32 {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 32) as u32
        }

        fn float(&mut self) -> f32 {
            (self.bits() as f32 / f32::powi(2.0, 31) - 1.0) * f32::powi(2.0, self.bits() as i32 % 9)
        }
    }

    /// The loops in AVX-512 and in portable code: the same bits, every code and every kind of zero included.
    #[test]
    fn the_loops_agree_bit_for_bit() {
        if !IsaSet::detect().contains(Isa::Avx512) {
            eprintln!("skipped (this machine lacks avx512): the_loops_agree_bit_for_bit");
            return;
        }
        fn unpack<L: Lanes>(blocks: &[Block], form: usize) -> WeightTile {
            let mut tile = WeightTile([[0xee; 64]; 16]);
            match form {
                0 => L::unpack_int8::<4>(&blocks[..blocks.len().min(8)], &mut tile),
                1 => L::unpack_int8::<8>(blocks, &mut tile),
                2 => L::unpack_bf16::<4>(&blocks[..blocks.len().min(4)], &mut tile),
                _ => L::unpack_bf16::<8>(&blocks[..blocks.len().min(8)], &mut tile),
            }
            tile
        }
        let mut random = Random(3);
        for count in 1..=16 {
            // Every byte there is, in the first four blocks.
            let blocks: Vec<Block> = (0..count)
                .map(|b| std::array::from_fn(|i| (64 * b + i) as u8 ^ (b / 4) as u8))
                .collect();
            for form in 0..4 {
                let (found, expected) = (
                    unpack::<Avx512Lanes>(&blocks, form),
                    unpack::<PortableLanes>(&blocks, form),
                );
                assert_eq!(found.0, expected.0, "{count} blocks, form {form}");
            }
        }
        let bits = |lanes: &[f32; NR]| lanes.map(f32::to_bits);
        for _ in 0..1000 {
            let sums: [u32; NR] = std::array::from_fn(|_| random.bits() >> (random.bits() % 32));
            let partial: [f32; NR] = std::array::from_fn(|_| random.float());
            let (x_scale, x_sum) = (random.float(), random.float());
            let (mut found, mut expected) = (partial, partial);
            Avx512Lanes::add_chunk(&mut found, &sums, x_scale);
            PortableLanes::add_chunk(&mut expected, &sums, x_scale);
            assert_eq!(bits(&found), bits(&expected));

            let scale = |random: &mut Random| half::f16::from_f32(random.float()).to_bits();
            let scales: [u16; NR] = std::array::from_fn(|_| scale(&mut random));
            let offsets: [u16; NR] = std::array::from_fn(|_| scale(&mut random));
            let zeros: [u8; NR] = std::array::from_fn(|_| random.bits() as u8);
            for scale_type in [ScaleType::F16, ScaleType::Bf16] {
                for zeros in [
                    PanelZeros::None,
                    PanelZeros::U8(&zeros),
                    PanelZeros::Offset(&offsets),
                ] {
                    for base in [0, 8] {
                        let panel = Panel {
                            codes: &[],
                            scales: &scales,
                            scale_type,
                            zeros,
                        };
                        let mut totals = [partial; 2];
                        let terms = Avx512Lanes::terms::<4>(&panel, 0, base);
                        Avx512Lanes::add_group(&terms, &mut totals[0], &found, x_sum);
                        let terms = PortableLanes::terms::<4>(&panel, 0, base);
                        PortableLanes::add_group(&terms, &mut totals[1], &found, x_sum);
                        assert_eq!(bits(&totals[0]), bits(&totals[1]), "{zeros:?} {base}");
                    }
                }
            }
        }
    }
}
