//! The CPU's tiles against emulated ones, once per process, before selection may choose them: each tile kernel
//! computes a few small strips and has to give the bits that the same kernel gives on emulated tiles. One that
//! does not takes its instruction set out of what the machine has.
//!
//! The strips need every instruction and register that a kernel is compiled to: 1 to 4 row tiles, the last of
//! which repeats rows; chunks of a tile and a rest, and of a rest alone; the same shape again, and a change.
//! Activations have every sign and, in bf16, so wide a range that sums are rounded. None is subnormal: there
//! the emulator has a limit of its own.

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "no other CPU has tiles to check")
)]

use std::fmt;

use super::lanes::Block;
use super::{MIN_ROWS, STRIP_ROWS, words_per_block};
use crate::isa::{Isa, IsaSet};
use crate::kernel::{ActivationForm, Chunks, Kernel, NR, Panel, PanelZeros, ScaleType, Strip};

/// How a row is cut, in words of activations.
struct Cut {
    row_words: usize,
    group_words: usize,
    chunk_words: usize,
}

impl Cut {
    /// Both have a chunk of a tile and a rest, one with the same rest, before which sums are zeroed, and one with
    /// another, before which tiles are shaped anew; for int8 a group of two chunks, too.
    const fn of(form: ActivationForm) -> Self {
        match form {
            // 16 + 4, 4; 12.
            ActivationForm::Int8 => Self {
                row_words: 36,
                group_words: 24,
                chunk_words: 20,
            },
            // 16 + 4; 16 + 4; 8.
            _ => Self {
                row_words: 48,
                group_words: 20,
                chunk_words: 20,
            },
        }
    }
}

/// The longer of the two rows.
const ROW_WORDS: usize = 48;

/// Words from one row to the next.
const STRIDE_WORDS: usize = 56;

/// Groups of a row, and chunks of a group, at most.
const GROUPS: usize = 3;
const GROUP_CHUNKS: usize = 2;

/// Rows of the strips: one tile that is not full, then two, three and four.
const STRIPS: [usize; 4] = [MIN_ROWS, 29, 45, MOST_ROWS];
const MOST_ROWS: usize = 61;

const _: () = assert!(MOST_ROWS < STRIP_ROWS);

/// A tile kernel that computed something else than it does on emulated tiles.
#[derive(Clone, Copy, Debug)]
pub struct TileFault {
    /// [`Kernel::name`].
    pub kernel: &'static str,
    /// What is not used because of it.
    pub isa: Isa,
    /// Rows of the strip.
    pub rows: usize,
    /// The first row that differs.
    pub row: usize,
    /// The first output of it that differs.
    pub output: usize,
    /// What the CPU computed.
    pub found: f32,
    /// What the emulator did.
    pub expected: f32,
}

impl fmt::Display for TileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            isa,
            rows,
            row,
            output,
            found,
            expected,
        } = self;
        write!(
            f,
            "{isa} is not used: {kernel} computed {found} instead of {expected} (row {row} of {rows}, output {output})"
        )
    }
}

/// The same numbers on every run.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// A bf16 of either sign from 2^-15 to 2.
    fn half(&mut self) -> u32 {
        let bits = self.bits();
        (bits & 0x8000) | (112 + (bits >> 16) % 16) << 7 | (bits & 0x7f)
    }
}

/// What a strip reads, for one form and one width of codes.
struct Operands {
    codes: [Block; ROW_WORDS],
    scales: [u16; GROUPS * NR],
    zeros: [u8; GROUPS * NR],
    x: [[u32; STRIDE_WORDS]; MOST_ROWS],
    x_scales: [[f32; GROUPS * GROUP_CHUNKS]; MOST_ROWS],
    x_sums: [[f32; GROUPS]; MOST_ROWS],
}

impl Operands {
    fn random(form: ActivationForm) -> Self {
        use std::array::from_fn;
        let random = &mut Random(1);
        Self {
            codes: from_fn(|_| from_fn(|_| random.bits() as u8)),
            // 2^-7 to 2^-6, of either sign.
            scales: from_fn(|_| (random.bits() & 0x83ff) as u16 | 0x2000),
            zeros: from_fn(|_| random.bits() as u8 & 15),
            x: from_fn(|_| {
                from_fn(|_| match form {
                    ActivationForm::Int8 => random.bits(),
                    _ => random.half() | random.half() << 16,
                })
            }),
            x_scales: from_fn(|_| from_fn(|_| 0.01 + (random.bits() % 1000) as f32 / 1e5)),
            x_sums: from_fn(|_| from_fn(|_| (random.bits() % 2001) as f32 / 100.0 - 10.0)),
        }
    }

    /// # Safety
    /// The machine must have what `kernel` needs; it must be a tile kernel of the form these are for.
    unsafe fn run(&self, kernel: &Kernel, rows: usize) -> [[f32; NR]; MOST_ROWS] {
        let int8 = kernel.form == ActivationForm::Int8;
        let block_words = words_per_block(int8, kernel.bits);
        let cut = Cut::of(kernel.form);
        let chunks = Chunks {
            blocks: cut.row_words / block_words,
            group_blocks: cut.group_words / block_words,
            chunk_blocks: cut.chunk_words / block_words,
        };
        let panel = Panel {
            codes: self.codes[..chunks.blocks].as_flattened(),
            scales: &self.scales,
            scale_type: ScaleType::F16,
            zeros: PanelZeros::U8(&self.zeros),
        };
        let strip = Strip {
            x: self.x.as_ptr().cast(),
            x_stride: STRIDE_WORDS * if int8 { 4 } else { 1 },
            sums: self.x_sums.as_ptr().cast(),
            sums_stride: GROUPS,
            scales: self.x_scales.as_ptr().cast(),
            scales_stride: GROUPS * GROUP_CHUNKS,
            rows,
        };
        let mut out = [[f32::NAN; NR]; MOST_ROWS];
        // SAFETY: the caller's contract; `rows` is at most `MOST_ROWS`, which every array has, the panel holds
        // the blocks and groups of `chunks`, and a row of x its words.
        unsafe { (kernel.run)(&panel, &strip, &chunks, out[..rows].as_flattened_mut()) };
        out
    }
}

/// Whether `candidate` gives the bits of `oracle`, a tile kernel of the same form and width.
///
/// # Safety
/// The machine must have what both need.
unsafe fn compare(candidate: &Kernel, oracle: &Kernel) -> Result<(), TileFault> {
    assert_eq!(
        (candidate.form, candidate.bits),
        (oracle.form, oracle.bits),
        "{} and {} compute the same",
        candidate.name,
        oracle.name
    );
    let operands = Operands::random(candidate.form);
    for rows in STRIPS {
        // SAFETY: the caller's contract.
        let [found, expected] =
            unsafe { [operands.run(candidate, rows), operands.run(oracle, rows)] };
        let elements = found.as_flattened().iter().zip(expected.as_flattened());
        for (at, (found, expected)) in elements.take(rows * NR).enumerate() {
            if found.to_bits() != expected.to_bits() {
                return Err(TileFault {
                    kernel: candidate.name,
                    isa: candidate.isa,
                    rows,
                    row: at / NR,
                    output: at % NR,
                    found: *found,
                    expected: *expected,
                });
            }
        }
    }
    Ok(())
}

/// `set` without the instruction sets of those of `candidates` that do not give the bits of the oracle of
/// their form and width, and a fault for each of those. Candidates that `set` has no use for do not run.
///
/// # Safety
/// The machine must have `set`, and what the oracles need.
pub(crate) unsafe fn without_faulty(
    set: IsaSet,
    candidates: &[Kernel],
    oracles: &[Kernel],
) -> (IsaSet, Vec<TileFault>) {
    let mut faults = Vec::new();
    for candidate in candidates.iter().filter(|row| set.contains(row.isa)) {
        let oracle = oracles
            .iter()
            .find(|row| (row.form, row.bits) == (candidate.form, candidate.bits))
            .unwrap_or_else(|| panic!("{} has no oracle", candidate.name));
        // SAFETY: the caller's contract; `set` has the candidate's instruction set.
        faults.extend(unsafe { compare(candidate, oracle) }.err());
    }
    let left = faults.iter().fold(set, |set, fault| set.without(fault.isa));
    (left, faults)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::amx::emulator::EmulatedTiles;
    use crate::amx::lanes::PortableLanes;
    use crate::amx::tile_unit::{SumTile, TileConfig, Tiles, WeightTile};
    use crate::amx::{EMULATED, compute, emulate};
    use crate::kernel::Microkernel;

    fn all() -> IsaSet {
        IsaSet::of(&Isa::ALL)
    }

    /// The rows of the kernel table, with the code of these rows.
    fn posing_as_tiles(rows: &[Kernel]) -> Vec<Kernel> {
        rows.iter()
            .map(|row| Kernel {
                isa: match row.form {
                    ActivationForm::Int8 => Isa::AmxInt8,
                    _ => Isa::AmxBf16,
                },
                ..*row
            })
            .collect()
    }

    fn check(candidates: &[Kernel]) -> (IsaSet, Vec<TileFault>) {
        // SAFETY: neither side has an instruction beyond the baseline, whatever the rows are called.
        unsafe { without_faulty(all(), candidates, EMULATED) }
    }

    /// The emulated rows with the code of the one of `form` and `bits` replaced.
    fn with_one(form: ActivationForm, bits: u8, run: Microkernel) -> Vec<Kernel> {
        let mut rows = posing_as_tiles(EMULATED);
        let mut replaced = 0;
        for row in &mut rows {
            if (row.form, row.bits) == (form, bits) {
                row.run = run;
                replaced += 1;
            }
        }
        assert_eq!(replaced, 1);
        rows
    }

    #[test]
    fn emulated_tiles_pass() {
        let start = Instant::now();
        let (left, faults) = check(&posing_as_tiles(EMULATED));
        eprintln!("4 kernels on emulated tiles, twice: {:?}", start.elapsed());
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(left, all());
    }

    /// The real kernels' loops beside emulated tiles, where this machine has AVX-512.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_loops_of_the_real_kernels_pass() {
        if !IsaSet::detect().contains(Isa::Avx512) {
            eprintln!("skipped (this machine lacks avx512): the_loops_of_the_real_kernels_pass");
            return;
        }
        let rows = posing_as_tiles(crate::x86_64::amx::EMULATED);
        let start = Instant::now();
        // SAFETY: the machine has AVX-512, and the tiles are emulated.
        let (left, faults) = unsafe { without_faulty(all(), &rows, EMULATED) };
        eprintln!("4 kernels against the emulated: {:?}", start.elapsed());
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(left, all());
    }

    /// Every row that detection runs has an oracle, and none of them a name that is not its own.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_tile_kernel_has_its_oracle() {
        let tiles = crate::x86_64::amx::KERNELS;
        let of_table = crate::dispatch::KERNELS
            .iter()
            .filter(|row| matches!(row.isa, Isa::AmxInt8 | Isa::AmxBf16));
        assert!(
            of_table
                .map(|row| row.name)
                .eq(tiles.iter().map(|row| row.name))
        );
        for row in tiles {
            let alike = EMULATED
                .iter()
                .filter(|oracle| (oracle.form, oracle.bits) == (row.form, row.bits));
            assert_eq!(alike.count(), 1, "{}", row.name);
        }
    }

    /// One bit, in the last output of the longest strip.
    unsafe fn last_bit_wrong(panel: &Panel<'_>, strip: &Strip, chunks: &Chunks, out: &mut [f32]) {
        // SAFETY: the caller's contract.
        unsafe { emulate::<true, 4>(panel, strip, chunks, out) };
        if let (MOST_ROWS, Some(last)) = (strip.rows, out.last_mut()) {
            *last = f32::from_bits(last.to_bits() ^ 1);
        }
    }

    #[test]
    fn one_wrong_bit_takes_its_instruction_set_away_and_no_other() {
        let (left, faults) = check(&with_one(ActivationForm::Int8, 4, last_bit_wrong));
        let [fault] = faults[..] else {
            panic!("one fault: {faults:?}");
        };
        assert_eq!(
            (fault.kernel, fault.isa),
            ("amx_emulated-int8q4", Isa::AmxInt8)
        );
        assert_eq!(
            (fault.rows, fault.row, fault.output),
            (MOST_ROWS, MOST_ROWS - 1, NR - 1)
        );
        assert_eq!(fault.found.to_bits(), fault.expected.to_bits() ^ 1);
        assert!(left.contains(Isa::AmxBf16) && !left.contains(Isa::AmxInt8));
        assert_eq!(left.with(&[Isa::AmxInt8]), all());
        let text = fault.to_string();
        let start = "amx_int8 is not used: amx_emulated-int8q4 computed ";
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with("(row 60 of 61, output 15)"), "{text}");
    }

    unsafe fn writes_nothing(_: &Panel<'_>, _: &Strip, _: &Chunks, _: &mut [f32]) {}

    #[test]
    fn what_is_not_written_is_a_fault() {
        let (left, faults) = check(&with_one(ActivationForm::Bf16Pairs, 8, writes_nothing));
        assert_eq!(faults.len(), 1);
        assert!(faults[0].found.is_nan());
        assert!(left.contains(Isa::AmxInt8) && !left.contains(Isa::AmxBf16));
    }

    #[test]
    fn what_the_machine_lacks_does_not_run() {
        let rows = with_one(ActivationForm::Int8, 4, last_bit_wrong);
        for set in [
            IsaSet::scalar(),
            all().without(Isa::AmxInt8),
            all().limited_to(crate::isa::IsaLevel::Avx512),
        ] {
            // SAFETY: as in `check`.
            let (left, faults) = unsafe { without_faulty(set, &rows, EMULATED) };
            assert!(faults.is_empty());
            assert_eq!(left, set);
        }
    }

    /// What may be wrong with a tile unit, or with how it is driven.
    const SUMS_ARE_NOT_ZEROED: usize = 0;
    const CODES_ARE_UNSIGNED: usize = 1;
    const OPERANDS_ARE_SWAPPED: usize = 2;
    const ROWS_LIE_SIDE_BY_SIDE: usize = 3;
    const THE_LAST_TILE_IS_ANOTHER: usize = 4;
    const PRODUCTS_STOP_EARLY: usize = 5;
    const SUMMED_BACKWARDS: usize = 6;

    /// Emulated tiles with one of these faults, and the rows of the tile of a rest, to stop before.
    struct FaultyTiles<const FAULT: usize>(EmulatedTiles, TileConfig);

    impl<const FAULT: usize> Tiles for FaultyTiles<FAULT> {
        unsafe fn configured(config: &TileConfig) -> Self {
            // SAFETY: the emulator asks for nothing.
            Self(unsafe { EmulatedTiles::configured(config) }, *config)
        }

        fn configure(&mut self, config: &TileConfig) {
            self.0.configure(config);
            self.1 = *config;
        }

        fn zero<const T: usize>(&mut self) {
            if FAULT != SUMS_ARE_NOT_ZEROED {
                self.0.zero::<T>();
            }
        }

        unsafe fn load_activations<const T: usize>(&mut self, first_row: *const u8, stride: usize) {
            if FAULT == SUMMED_BACKWARDS {
                let mut reversed = [[0u8; 64]; 16];
                for (r, to) in reversed[..self.1.rows[T].into()].iter_mut().enumerate() {
                    let from = first_row.wrapping_add(r * stride);
                    let bytes = self.1.row_bytes[T].into();
                    // SAFETY: the caller's contract: configured rows are readable over their bytes.
                    let row = unsafe { std::slice::from_raw_parts(from, bytes) };
                    let words = row.as_chunks::<4>().0.iter().rev();
                    for (to, word) in to.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                        *to = *word;
                    }
                }
                // SAFETY: sixteen rows of 64 bytes.
                unsafe { self.0.load_activations::<T>(reversed.as_ptr().cast(), 64) };
                return;
            }
            let stride = if FAULT == ROWS_LIE_SIDE_BY_SIDE {
                usize::from(self.1.row_bytes[T])
            } else {
                stride
            };
            // SAFETY: the caller's contract; rows that lie closer end earlier.
            unsafe { self.0.load_activations::<T>(first_row, stride) }
        }

        fn load_weights<const T: usize>(&mut self, from: &WeightTile) {
            let mut from = *from;
            let rows = usize::from(self.1.rows[T]);
            if FAULT == PRODUCTS_STOP_EARLY && rows < 16 {
                from.0[rows - 1].fill(0);
            }
            if FAULT == SUMMED_BACKWARDS {
                from.0[..rows].reverse();
            }
            self.0.load_weights::<T>(&from);
        }

        fn add_signed_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
            // Where the shapes allow it: elsewhere the emulator refuses.
            let square = self.1.rows[A] == 16 && self.1.row_bytes[A] == 64;
            if FAULT == OPERANDS_ARE_SWAPPED && square {
                self.0.add_signed_unsigned::<C, B, A>();
            } else {
                self.0.add_signed_unsigned::<C, A, B>();
            }
        }

        fn add_signed_signed<const C: usize, const A: usize, const B: usize>(&mut self) {
            if FAULT == CODES_ARE_UNSIGNED {
                self.0.add_signed_unsigned::<C, A, B>();
            } else {
                self.0.add_signed_signed::<C, A, B>();
            }
        }

        fn add_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
            self.0.add_bf16::<C, A, B>();
        }

        fn store<const T: usize>(&mut self, to: &mut SumTile) {
            if FAULT == THE_LAST_TILE_IS_ANOTHER && T == 3 {
                self.0.store::<2>(to);
            } else {
                self.0.store::<T>(to);
            }
        }
    }

    unsafe fn faulty<const FAULT: usize, const INT8: bool, const BITS: u8>(
        panel: &Panel<'_>,
        strip: &Strip,
        chunks: &Chunks,
        out: &mut [f32],
    ) {
        // SAFETY: the caller's contract; the tiles and the loops need nothing of the CPU.
        unsafe {
            compute::<FaultyTiles<FAULT>, PortableLanes, INT8, BITS>(panel, strip, chunks, out);
        }
    }

    #[test]
    fn faults_of_the_tile_unit_are_seen() {
        use ActivationForm::{Bf16Pairs, Int8};
        let runs: [(ActivationForm, u8, Microkernel, &str); 8] = [
            (
                Int8,
                4,
                faulty::<SUMS_ARE_NOT_ZEROED, true, 4>,
                "int8 sums are not zeroed",
            ),
            (
                Bf16Pairs,
                8,
                faulty::<SUMS_ARE_NOT_ZEROED, false, 8>,
                "bf16 sums are not zeroed",
            ),
            (
                Int8,
                8,
                faulty::<CODES_ARE_UNSIGNED, true, 8>,
                "TDPBSUD for TDPBSSD",
            ),
            (
                Int8,
                4,
                faulty::<OPERANDS_ARE_SWAPPED, true, 4>,
                "A and B swapped",
            ),
            (
                Bf16Pairs,
                4,
                faulty::<ROWS_LIE_SIDE_BY_SIDE, false, 4>,
                "the stride is not used",
            ),
            (
                Int8,
                4,
                faulty::<THE_LAST_TILE_IS_ANOTHER, true, 4>,
                "tile 2 stored for 3",
            ),
            (
                Int8,
                8,
                faulty::<PRODUCTS_STOP_EARLY, true, 8>,
                "the last word of a rest",
            ),
            (
                Bf16Pairs,
                8,
                faulty::<SUMMED_BACKWARDS, false, 8>,
                "bf16 sums in another order",
            ),
        ];
        for (form, bits, run, what) in runs {
            let (left, faults) = check(&with_one(form, bits, run));
            assert_eq!(faults.len(), 1, "{what}");
            assert_eq!(left, all().without(faults[0].isa), "{what}");
            let int8 = faults[0].isa == Isa::AmxInt8;
            assert_eq!(int8, form == Int8, "{what}");
        }
    }
}
