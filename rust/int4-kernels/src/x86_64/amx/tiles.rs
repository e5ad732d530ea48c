//! The tile instructions. Not verified on hardware.
//!
//! Tile registers exist for the compiler as something inline assembly may clobber, nothing more: it neither
//! allocates them nor emits tile instructions. So they keep, from one block of assembly to the next, what the
//! last block left there, and every block below names all eight as clobbered.

use std::arch::asm;
use std::marker::PhantomData;

use crate::amx::tile_unit::{ROW_WORDS, SumTile, TileConfig, Tiles, WeightTile};

/// Assembly that may change every tile register.
macro_rules! tile_asm {
    ($instruction:literal, $($operands:tt)*) => {
        asm!(
            $instruction,
            $($operands)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags)
        )
    };
}

/// The CPU's tiles, configured as long as this lives; not `Send`, for tiles belong to a thread.
pub(crate) struct AmxTiles(PhantomData<*mut ()>);

impl Drop for AmxTiles {
    /// Back to the initial state, in which the thread has no tile state to save or to stumble over. Also
    /// when a panic unwinds.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `configured` was told that the CPU has AMX; nothing but tile state changes.
        unsafe { tile_asm!("tilerelease",) }
    }
}

impl Tiles for AmxTiles {
    #[inline(always)]
    unsafe fn configured(config: &TileConfig) -> Self {
        let mut tiles = Self(PhantomData);
        tiles.configure(config);
        tiles
    }

    #[inline(always)]
    fn configure(&mut self, config: &TileConfig) {
        // SAFETY: the CPU has AMX (`configured`), and 64 bytes are read, which `TileConfig` has.
        unsafe { tile_asm!("ldtilecfg [{config}]", config = in(reg) std::ptr::from_ref(config),) }
    }

    #[inline(always)]
    fn zero<const T: usize>(&mut self) {
        // SAFETY: the CPU has AMX (`configured`); nothing but tile state changes.
        unsafe { tile_asm!("tilezero tmm{t}", t = const T,) }
    }

    #[inline(always)]
    unsafe fn load_activations<const T: usize>(
        &mut self,
        first_row: *const u8,
        stride_bytes: usize,
    ) {
        // SAFETY: the CPU has AMX (`configured`); the caller has the tile's rows readable.
        unsafe {
            tile_asm!(
                "tileloadd tmm{t}, [{first_row} + {stride}*1]",
                t = const T,
                first_row = in(reg) first_row,
                stride = in(reg) stride_bytes,
            );
        }
    }

    #[inline(always)]
    fn load_weights<const T: usize>(&mut self, from: &WeightTile) {
        // SAFETY: `from` holds 16 rows of 64 bytes, and no tile has more.
        unsafe { self.load_activations::<T>(from.0.as_ptr().cast(), 4 * ROW_WORDS) }
    }

    #[inline(always)]
    fn add_signed_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the CPU has AMX (`configured`); nothing but tile state changes.
        unsafe {
            tile_asm!("tdpbsud tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,);
        }
    }

    #[inline(always)]
    fn add_signed_signed<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the CPU has AMX (`configured`); nothing but tile state changes.
        unsafe {
            tile_asm!("tdpbssd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,);
        }
    }

    #[inline(always)]
    fn add_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: the CPU has AMX (`configured`); nothing but tile state changes.
        unsafe {
            tile_asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,);
        }
    }

    #[inline(always)]
    fn store<const T: usize>(&mut self, to: &mut SumTile) {
        // SAFETY: the CPU has AMX (`configured`); `to` has 16 rows of 64 bytes, and no tile has more.
        unsafe {
            tile_asm!(
                "tilestored [{to} + {stride}*1], tmm{t}",
                t = const T,
                to = in(reg) to.0.as_mut_ptr(),
                stride = in(reg) 4 * ROW_WORDS,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amx::emulator::EmulatedTiles;
    use crate::isa::{Isa, IsaSet};

    /// Whether the machine has it; says so where it has not.
    fn has(isa: Isa, test: &str) -> bool {
        let has = IsaSet::detect().contains(isa);
        if !has {
            eprintln!("skipped (this machine lacks {isa}): {test}");
        }
        has
    }

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

        /// A bf16 that may be subnormal, infinite or NaN one time in sixteen.
        fn half(&mut self) -> u16 {
            if self.bits().is_multiple_of(16) {
                self.bits() as u16
            } else {
                (self.float().to_bits() >> 16) as u16
            }
        }

        fn tile(&mut self, mut word: impl FnMut(&mut Self) -> u32) -> WeightTile {
            let mut tile = WeightTile::ZERO;
            for bytes in tile.0.as_flattened_mut().as_chunks_mut::<4>().0 {
                *bytes = word(self).to_le_bytes();
            }
            tile
        }
    }

    /// One product of random tiles of every shape, on `T`.
    ///
    /// # Safety
    /// The machine must allow `T`.
    unsafe fn product<T: Tiles>(
        form: usize,
        rows: usize,
        words: usize,
        a: &WeightTile,
        b: &WeightTile,
        c: &WeightTile,
    ) -> SumTile {
        let config = TileConfig::new()
            .tile(3, rows, 16)
            .tile(5, rows, words)
            .tile(7, words, 16);
        let mut sums = SumTile([[0xeeee_eeee; 16]; 16]);
        // SAFETY: the caller's contract; the tiles hold 16 rows of 64 bytes.
        unsafe {
            let mut tiles = T::configured(&TileConfig::new().tile(0, 1, 1));
            tiles.configure(&config);
            tiles.load_activations::<5>(a.0.as_ptr().cast(), 64);
            tiles.load_weights::<7>(b);
            tiles.load_weights::<3>(c);
            match form {
                0 => tiles.add_signed_unsigned::<3, 5, 7>(),
                1 => tiles.add_signed_signed::<3, 5, 7>(),
                _ => tiles.add_bf16::<3, 5, 7>(),
            }
            tiles.store::<3>(&mut sums);
        }
        sums
    }

    /// The emulator against the CPU. Only here can it turn out to be wrong.
    #[test]
    fn the_cpu_computes_what_the_emulator_does() {
        for (form, isa) in [(0, Isa::AmxInt8), (1, Isa::AmxInt8), (2, Isa::AmxBf16)] {
            if !has(isa, "the_cpu_computes_what_the_emulator_does") {
                continue;
            }
            let mut random = Random(5);
            for rows in 1..=16 {
                for words in 1..=16 {
                    let mut pairs = |random: &mut Random| {
                        u32::from(random.half()) | u32::from(random.half()) << 16
                    };
                    let (a, b, c) = if form == 2 {
                        (
                            random.tile(&mut pairs),
                            random.tile(&mut pairs),
                            random.tile(|random| random.float().to_bits()),
                        )
                    } else {
                        (
                            random.tile(Random::bits),
                            random.tile(Random::bits),
                            random.tile(Random::bits),
                        )
                    };
                    // SAFETY: the machine has the tiles; the emulator needs nothing.
                    let [found, expected] = unsafe {
                        [
                            product::<AmxTiles>(form, rows, words, &a, &b, &c),
                            product::<EmulatedTiles>(form, rows, words, &a, &b, &c),
                        ]
                    };
                    for (found, expected) in
                        found.0.as_flattened().iter().zip(expected.0.as_flattened())
                    {
                        let nan = |bits: u32| form == 2 && f32::from_bits(bits).is_nan();
                        assert!(
                            found == expected || (nan(*found) && nan(*expected)),
                            "form {form}, {rows} rows of {words} words: {found:#x} instead of {expected:#x}"
                        );
                    }
                }
            }
        }
    }

    /// STTILECFG of a thread without tile state gives 64 zeros.
    fn tile_config_now() -> TileConfig {
        let mut config = TileConfig::new().tile(0, 1, 1);
        // SAFETY: the caller has asked the machine for AMX; 64 bytes are written, which `TileConfig` has.
        unsafe {
            asm!(
                "sttilecfg [{config}]",
                config = in(reg) &raw mut config,
                options(nostack, preserves_flags)
            );
        }
        config
    }

    #[test]
    fn no_tile_state_is_left_behind() {
        if !has(Isa::AmxInt8, "no_tile_state_is_left_behind") {
            return;
        }
        let config = TileConfig::new().tile(2, 16, 16);
        assert_eq!(tile_config_now(), TileConfig::default());
        {
            // SAFETY: the machine has AMX; no other `AmxTiles` lives on this thread.
            let _tiles = unsafe { AmxTiles::configured(&config) };
            assert_eq!(tile_config_now(), config);
        }
        assert_eq!(tile_config_now(), TileConfig::default());
        let unwound = std::panic::catch_unwind(|| {
            // SAFETY: likewise.
            let _tiles = unsafe { AmxTiles::configured(&config) };
            panic!("on purpose");
        });
        assert!(unwound.is_err());
        assert_eq!(tile_config_now(), TileConfig::default());
    }
}
