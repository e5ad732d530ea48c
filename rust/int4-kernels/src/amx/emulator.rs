//! The tile unit in portable code, as Intel's manual (SDM, volume 2; ISE reference, chapter 3) defines it.
//!
//! For tests on machines without AMX: the kernels that run on it are in a table of their own
//! ([`crate::dispatch::EMULATED`]) that selection never looks at. What the CPU answers with #GP or #UD is a
//! panic here that names the exception.
//!
//! Limit: a bf16 product or sum whose exact value lies within half a unit in the last place below 2^-126
//! is given as 2^-126, where the CPU, which looks before it rounds to that exponent, gives 0.

use super::tile_unit::{ROW_WORDS, SumTile, TILE_COUNT, TILE_ROWS, TileConfig, Tiles, WeightTile};

const ROW_BYTES: usize = 4 * ROW_WORDS;

type Tile = [[u8; ROW_BYTES]; TILE_ROWS];

/// Eight tiles of 16 × 64 bytes and their configuration.
pub(crate) struct EmulatedTiles {
    config: TileConfig,
    tiles: [Tile; TILE_COUNT],
}

/// The fault LDTILECFG raises for a configuration.
fn config_fault(config: &TileConfig) -> Option<&'static str> {
    if config.palette > 1 {
        return Some("#GP: a palette above 1");
    }
    if config.palette == 0 {
        return None;
    }
    let beyond = config.row_bytes[TILE_COUNT..].iter().any(|&b| b != 0)
        || config.rows[TILE_COUNT..].iter().any(|&r| r != 0);
    if beyond || config.reserved.iter().any(|&b| b != 0) {
        return Some("#GP: reserved bytes are not zero");
    }
    for tile in 0..TILE_COUNT {
        let (rows, bytes) = (config.rows[tile], config.row_bytes[tile]);
        if usize::from(rows) > TILE_ROWS || usize::from(bytes) > ROW_BYTES {
            return Some("#GP: a tile of more than 16 rows or 64 bytes a row");
        }
        if (rows == 0) != (bytes == 0) {
            return Some("#GP: rows without bytes, or bytes without rows");
        }
    }
    None
}

impl EmulatedTiles {
    fn with(config: &TileConfig) -> Self {
        if let Some(fault) = config_fault(config) {
            panic!("{fault}");
        }
        let mut config = *config;
        if config.palette == 0 {
            config = TileConfig::default();
        }
        Self {
            config,
            tiles: [[[0; ROW_BYTES]; TILE_ROWS]; TILE_COUNT],
        }
    }

    /// Rows and bytes per row of a tile that may be used.
    fn shape(&self, tile: usize) -> (usize, usize) {
        assert_eq!(self.config.palette, 1, "#UD: tiles are not configured");
        assert!(tile < TILE_COUNT, "#UD: there is no such tile");
        let shape = (
            usize::from(self.config.rows[tile]),
            usize::from(self.config.row_bytes[tile]),
        );
        assert_ne!(shape.0, 0, "#UD: tile {tile} is not configured");
        shape
    }

    /// Fills the configured rows, and everything behind them with zeros. `row(r, to)` fills `to`.
    fn load(&mut self, tile: usize, row: impl Fn(usize, &mut [u8])) {
        let (rows, bytes) = self.shape(tile);
        self.tiles[tile] = [[0; ROW_BYTES]; TILE_ROWS];
        for (r, to) in self.tiles[tile][..rows].iter_mut().enumerate() {
            row(r, &mut to[..bytes]);
        }
    }

    /// `C += A · B`, row by row: `row(sums, a, b)` takes sixteen sums, the words of a row of A, and the rows
    /// of B.
    fn product(
        &mut self,
        [c, a, b]: [usize; 3],
        row: impl Fn(&mut [u32; ROW_WORDS], &[u32], &[[u32; ROW_WORDS]]),
    ) {
        assert!(
            c != a && a != b && b != c,
            "#UD: a tile is named twice: {c} {a} {b}"
        );
        let [(c_rows, c_bytes), (a_rows, a_bytes), (b_rows, b_bytes)] =
            [c, a, b].map(|tile| self.shape(tile));
        assert!(
            [c_bytes, a_bytes, b_bytes]
                .iter()
                .all(|bytes| bytes % 4 == 0),
            "#UD: a row of part of a word"
        );
        assert_eq!(c_rows, a_rows, "#UD: rows of C and A");
        assert_eq!(c_bytes, b_bytes, "#UD: bytes of C and B");
        assert_eq!(a_bytes / 4, b_rows, "#UD: words of A and rows of B");
        let words = |tile: &Tile| tile.map(|row| words_of(&row));
        let (sums, factors, weights) = (
            words(&self.tiles[c]),
            words(&self.tiles[a]),
            words(&self.tiles[b]),
        );
        self.tiles[c] = [[0; ROW_BYTES]; TILE_ROWS];
        for (r, to) in self.tiles[c][..c_rows].iter_mut().enumerate() {
            let mut sums = sums[r];
            row(&mut sums, &factors[r][..a_bytes / 4], &weights[..b_rows]);
            for (bytes, sum) in to[..c_bytes].as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                *bytes = sum.to_le_bytes();
            }
        }
    }

    fn int8_product(&mut self, tiles: [usize; 3], multiply: impl Fn(u8, u8) -> i32) {
        self.product(tiles, |sums, a, b| {
            for (a, b) in a.iter().zip(b) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
                    for (a, b) in products {
                        *sum = sum.wrapping_add(multiply(a, b).cast_unsigned());
                    }
                }
            }
        });
    }
}

fn words_of(row: &[u8; ROW_BYTES]) -> [u32; ROW_WORDS] {
    std::array::from_fn(|w| {
        u32::from_le_bytes([row[4 * w], row[4 * w + 1], row[4 * w + 2], row[4 * w + 3]])
    })
}

/// A subnormal number counts as zero, as an input and as a result.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0.0f32.copysign(x)
    } else {
        x
    }
}

/// The bf16 in the low (0) or high (1) half of a word.
fn half(word: u32, half: usize) -> f32 {
    flush(f32::from_bits(if half == 0 {
        word << 16
    } else {
        word & 0xffff_0000
    }))
}

/// `a · b + c`, rounded once. A product of two bf16 has 16 significant bits, so that fp32 holds it exactly
/// unless it leaves the range; only then is the (slow, without FMA) fused operation needed.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let product = a * b;
    if product.is_normal() || a == 0.0 || b == 0.0 {
        product + c
    } else {
        a.mul_add(b, c)
    }
}

/// One row of TDPBF16PS: products of even and of odd columns are summed apart by fused multiply-adds from
/// zero, then added to each other, then to C. Nearest even; MXCSR is not consulted.
fn bf16_row(sums: &mut [u32; ROW_WORDS], a: &[u32], b: &[[u32; ROW_WORDS]]) {
    let mut parts = [[0.0f32; 2]; ROW_WORDS];
    for (a, b) in a.iter().zip(b) {
        for (parts, b) in parts.iter_mut().zip(b) {
            for (column, part) in parts.iter_mut().enumerate() {
                *part = flush(fused(half(*a, column), half(*b, column), *part));
            }
        }
    }
    for (sum, [even, odd]) in sums.iter_mut().zip(parts) {
        let both = flush(even + odd);
        *sum = flush(flush(f32::from_bits(*sum)) + both).to_bits();
    }
}

impl Tiles for EmulatedTiles {
    unsafe fn configured(config: &TileConfig) -> Self {
        Self::with(config)
    }

    fn configure(&mut self, config: &TileConfig) {
        *self = Self::with(config);
    }

    fn zero<const T: usize>(&mut self) {
        self.shape(T);
        self.tiles[T] = [[0; ROW_BYTES]; TILE_ROWS];
    }

    unsafe fn load_activations<const T: usize>(
        &mut self,
        first_row: *const u8,
        stride_bytes: usize,
    ) {
        self.load(T, |r, to| {
            let from = first_row.wrapping_add(r * stride_bytes);
            // SAFETY: the caller's contract: configured rows are readable over their configured bytes.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(from, to.len()) });
        });
    }

    fn load_weights<const T: usize>(&mut self, from: &WeightTile) {
        self.load(T, |r, to| to.copy_from_slice(&from.0[r][..to.len()]));
    }

    fn add_signed_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.int8_product([C, A, B], |a, b| i32::from(a.cast_signed()) * i32::from(b));
    }

    fn add_signed_signed<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.int8_product([C, A, B], |a, b| {
            i32::from(a.cast_signed()) * i32::from(b.cast_signed())
        });
    }

    fn add_bf16<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.product([C, A, B], bf16_row);
    }

    fn store<const T: usize>(&mut self, to: &mut SumTile) {
        let (rows, bytes) = self.shape(T);
        for (to, row) in to.0[..rows].iter_mut().zip(&self.tiles[T]) {
            to[..bytes / 4].copy_from_slice(&words_of(row)[..bytes / 4]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    /// C = tile 0 of `rows` × 16 words, A = tile 1 of `rows` × `words`, B = tile 2 of `words` × 16.
    fn config(rows: usize, words: usize) -> TileConfig {
        TileConfig::new()
            .tile(0, rows, 16)
            .tile(1, rows, words)
            .tile(2, words, 16)
    }

    /// A's rows of bytes, and B's.
    fn loaded(a: &[Vec<u8>], b: &WeightTile, words: usize) -> EmulatedTiles {
        let mut tiles = EmulatedTiles::with(&config(a.len(), words));
        let flat: Vec<u8> = a.concat();
        // SAFETY: `flat` holds the rows of `4 * words` bytes, one behind the other.
        unsafe { tiles.load_activations::<1>(flat.as_ptr(), 4 * words) };
        tiles.load_weights::<2>(b);
        tiles
    }

    fn bytes(seed: u32, len: usize) -> Vec<u8> {
        (0..len as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
            .collect()
    }

    fn weights(seed: u32) -> WeightTile {
        let mut tile = WeightTile::ZERO;
        for (r, row) in tile.0.iter_mut().enumerate() {
            row.copy_from_slice(&bytes(seed + r as u32, ROW_BYTES));
        }
        tile
    }

    fn message(panic: Box<dyn std::any::Any + Send>) -> String {
        match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic
                .downcast::<&str>()
                .map_or_else(|_| String::new(), |text| text.to_string()),
        }
    }

    fn fault(f: impl FnOnce() + std::panic::UnwindSafe) -> String {
        message(catch_unwind(f).expect_err("a fault"))
    }

    #[test]
    fn configurations_that_the_cpu_refuses() {
        let good = config(3, 5);
        assert_eq!(config_fault(&good), None);
        assert_eq!(config_fault(&TileConfig::default()), None);
        let mut bad = [good; 7];
        bad[0].palette = 2;
        bad[1].reserved[13] = 1;
        bad[2].rows[8] = 1;
        bad[3].row_bytes[15] = 4;
        bad[4].rows[1] = 17;
        bad[5].row_bytes[1] = 65;
        bad[6].rows[2] = 0;
        for config in bad {
            assert!(config_fault(&config).unwrap().starts_with("#GP"));
            let found = fault(move || {
                EmulatedTiles::with(&config);
            });
            assert!(found.starts_with("#GP"), "{found}");
        }
    }

    #[test]
    fn products_of_shapes_that_do_not_fit_are_faults() {
        fn product(config: TileConfig) -> String {
            fault(move || EmulatedTiles::with(&config).add_signed_unsigned::<0, 1, 2>())
        }
        let shapes = |c: [usize; 2], a: [usize; 2], b: [usize; 2]| {
            TileConfig::new()
                .tile(0, c[0], c[1])
                .tile(1, a[0], a[1])
                .tile(2, b[0], b[1])
        };
        for (config, expected) in [
            (shapes([4, 16], [5, 8], [8, 16]), "#UD: rows of C and A"),
            (shapes([4, 15], [4, 8], [8, 16]), "#UD: bytes of C and B"),
            (
                shapes([4, 16], [4, 8], [9, 16]),
                "#UD: words of A and rows of B",
            ),
            (
                shapes([4, 16], [4, 8], [0, 16]),
                "#UD: tile 2 is not configured",
            ),
            (TileConfig::default(), "#UD: tiles are not configured"),
        ] {
            let found = product(config);
            assert!(found.contains(expected), "{found} instead of {expected}");
        }
        let mut odd = shapes([4, 16], [4, 8], [8, 16]);
        odd.row_bytes[1] = 33;
        assert!(product(odd).contains("#UD: a row of part of a word"));
        let twice = fault(|| EmulatedTiles::with(&config(4, 16)).add_bf16::<0, 1, 1>());
        assert!(twice.contains("#UD: a tile is named twice"));
        let store = fault(|| {
            let mut to = SumTile::ZERO;
            EmulatedTiles::with(&config(4, 16)).store::<3>(&mut to);
        });
        assert!(store.contains("#UD: tile 3 is not configured"));
    }

    #[test]
    fn loads_zero_what_lies_behind_the_shape_and_configuring_zeroes_everything() {
        let full = TileConfig::new().tile(1, 16, 16);
        let mut tiles = EmulatedTiles::with(&full);
        tiles.load_weights::<1>(&WeightTile([[7; ROW_BYTES]; TILE_ROWS]));
        assert_eq!(tiles.tiles[1], [[7; ROW_BYTES]; TILE_ROWS]);
        tiles.configure(&full);
        assert_eq!(tiles.tiles[1], [[0; ROW_BYTES]; TILE_ROWS]);
        let small = TileConfig::new().tile(1, 3, 2);
        tiles.configure(&small);
        tiles.tiles[1] = [[9; ROW_BYTES]; TILE_ROWS];
        let from: Vec<u8> = (0..30).collect();
        // SAFETY: three rows of 8 bytes, 10 apart, lie in 28 bytes.
        unsafe { tiles.load_activations::<1>(from.as_ptr(), 10) };
        for (r, row) in tiles.tiles[1].iter().enumerate() {
            let mut expected = [0; ROW_BYTES];
            if r < 3 {
                expected[..8].copy_from_slice(&from[10 * r..10 * r + 8]);
            }
            assert_eq!(*row, expected, "row {r}");
        }
        let mut to = SumTile([[u32::MAX; ROW_WORDS]; TILE_ROWS]);
        tiles.store::<1>(&mut to);
        assert_eq!(to.0[0][..3], [0x0302_0100, 0x0706_0504, u32::MAX]);
        assert_eq!(to.0[3], [u32::MAX; ROW_WORDS]);
        tiles.zero::<1>();
        assert_eq!(tiles.tiles[1], [[0; ROW_BYTES]; TILE_ROWS]);
    }

    /// Against sums over columns, written from the definition of a matrix product.
    #[test]
    fn int8_products_are_matrix_products() {
        for (rows, words) in [(16, 16), (1, 1), (5, 8), (16, 3)] {
            let a: Vec<Vec<u8>> = (0..rows).map(|r| bytes(91 * r as u32, 4 * words)).collect();
            let b = weights(17);
            for signed in [false, true] {
                let mut tiles = loaded(&a, &b, words);
                let twice = |tiles: &mut EmulatedTiles| {
                    for _ in 0..2 {
                        if signed {
                            tiles.add_signed_signed::<0, 1, 2>();
                        } else {
                            tiles.add_signed_unsigned::<0, 1, 2>();
                        }
                    }
                };
                twice(&mut tiles);
                let mut sums = SumTile::ZERO;
                tiles.store::<0>(&mut sums);
                for (r, a) in a.iter().enumerate() {
                    for n in 0..ROW_WORDS {
                        let mut expected = 0i64;
                        for (k, a) in a.iter().enumerate() {
                            let b = b.0[k / 4][4 * n + k % 4];
                            let b = if signed {
                                i64::from(b as i8)
                            } else {
                                i64::from(b)
                            };
                            expected += 2 * i64::from(*a as i8) * b;
                        }
                        assert_eq!(i64::from(sums.0[r][n] as i32), expected, "{rows} {words}");
                    }
                }
            }
        }
    }

    #[test]
    fn int32_sums_wrap() {
        let mut tiles = loaded(&[vec![127; 64]], &WeightTile([[255; 64]; 16]), 16);
        for _ in 0..2000 {
            tiles.add_signed_unsigned::<0, 1, 2>();
        }
        let mut sums = SumTile::ZERO;
        tiles.store::<0>(&mut sums);
        let exact = 2000i64 * 64 * 127 * 255;
        assert!(exact > i64::from(i32::MAX));
        assert_eq!(sums.0[0][0], exact as u32);
    }

    fn pair(low: f32, high: f32) -> [u8; 4] {
        let bits = |x: f32| x.to_bits() >> 16;
        (bits(low) | bits(high) << 16).to_le_bytes()
    }

    /// One row of A, and output 0 of B: both as pairs.
    fn bf16_sum(a: &[(f32, f32)], b: &[(f32, f32)], times: usize) -> f32 {
        let row: Vec<u8> = a.iter().flat_map(|(x, y)| pair(*x, *y)).collect();
        let mut tile = WeightTile::ZERO;
        for (to, (x, y)) in tile.0.iter_mut().zip(b) {
            to[..4].copy_from_slice(&pair(*x, *y));
        }
        let mut tiles = loaded(&[row], &tile, a.len());
        for _ in 0..times {
            tiles.add_bf16::<0, 1, 2>();
        }
        let mut sums = SumTile::ZERO;
        tiles.store::<0>(&mut sums);
        f32::from_bits(sums.0[0][0])
    }

    #[test]
    fn even_and_odd_columns_are_summed_apart() {
        let ones = [(1.0, 1.0); 2];
        let (a, b) = ([(1.5, -2.0), (3.0, 4.0)], [(2.0, 5.0), (1.0, 0.25)]);
        assert_eq!(bf16_sum(&a, &b, 1), -3.0);
        assert_eq!(bf16_sum(&a, &b, 5), -15.0);
        // In one chain, 2^30 + 1 − 2^30 + 1 would be 1.
        let big = f32::powi(2.0, 30);
        assert_eq!(bf16_sum(&[(big, 1.0), (-big, 1.0)], &ones, 1), 2.0);
        // In one chain, 2^30 − 2^30 + 1 + 1 would be 2.
        assert_eq!(bf16_sum(&[(big, -big), (1.0, 1.0)], &ones, 1), 0.0);
    }

    #[test]
    fn multiply_and_add_are_fused_and_rounded_to_even() {
        // −2^127 + 2^128 is finite; 2^128 alone is not.
        let power = |e| f32::powi(2.0, e);
        let a = [(-power(64), 0.0), (power(64), 0.0)];
        let b = [(power(63), 0.0), (power(64), 0.0)];
        assert_eq!(bf16_sum(&a, &b, 1), power(127));
        // 2^24 + 1 is half way to 2^24 + 2, and so is 2^24 + 3.
        assert_eq!(bf16_sum(&[(4096.0, 1.0)], &[(4096.0, 1.0)], 1), power(24));
        let found = bf16_sum(&[(4096.0, 3.0)], &[(4096.0, 1.0)], 1);
        assert_eq!(found, power(24) + 4.0);
    }

    #[test]
    fn subnormal_numbers_count_as_zero() {
        let subnormal = f32::from_bits(0x0040_0000);
        let smallest = f32::MIN_POSITIVE;
        // As inputs, though the products would be normal.
        assert_eq!(
            bf16_sum(&[(subnormal, 0.0)], &[(f32::powi(2.0, 100), 0.0)], 1),
            0.0
        );
        assert_eq!(
            bf16_sum(&[(f32::powi(2.0, 100), 0.0)], &[(subnormal, 0.0)], 1),
            0.0
        );
        // As results.
        assert_eq!(bf16_sum(&[(smallest, 0.0)], &[(0.5, 0.0)], 1), 0.0);
        assert_eq!(bf16_sum(&[(smallest, 0.0)], &[(1.0, 0.0)], 1), smallest);
        // 1.5 · 2^-126 − 2^-126 is subnormal, whether in a chain or between the two.
        let both = [(1.5 * smallest, -smallest)];
        assert_eq!(bf16_sum(&both, &[(1.0, 1.0)], 1), 0.0);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(bf16_sum(&[(bad, 1.0)], &[(0.0, 1.0)], 1).is_nan());
            assert!(!bf16_sum(&[(1.0, bad)], &[(1.0, 2.0)], 2).is_finite());
        }
    }
}
