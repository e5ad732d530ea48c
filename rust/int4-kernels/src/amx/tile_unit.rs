//! The tile unit as the kernels use it: implemented by the instructions (`x86_64/amx.rs`) and by the
//! emulator, so that one kernel runs on both.

/// Rows of a tile register.
pub(crate) const TILE_ROWS: usize = 16;

/// 32-bit words in a row of a tile register: four int8 or two bf16 columns each.
pub(crate) const ROW_WORDS: usize = 16;

/// Tile registers there are.
pub(crate) const TILE_COUNT: usize = 8;

/// Unpacked codes of one tile: row w holds, for each of the sixteen outputs of a panel, the columns of the
/// activations' word w. Aligned, so that no row crosses a cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightTile(pub(crate) [[u8; 4 * ROW_WORDS]; TILE_ROWS]);

impl WeightTile {
    pub(crate) const ZERO: Self = Self([[0; 4 * ROW_WORDS]; TILE_ROWS]);
}

/// Sums of one tile, `[activation row][output]`: int32, or the bits of fp32.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumTile(pub(crate) [[u32; ROW_WORDS]; TILE_ROWS]);

impl SumTile {
    pub(crate) const ZERO: Self = Self([[0; ROW_WORDS]; TILE_ROWS]);
}

/// The 64 bytes that LDTILECFG reads.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TileConfig {
    /// 1: eight tiles of up to 16 rows × 64 bytes.
    pub(crate) palette: u8,
    /// Where an interrupted load resumes; 0.
    pub(crate) start_row: u8,
    /// 0.
    pub(crate) reserved: [u8; 14],
    /// Bytes per row of each tile; 0 where a tile is not used, and beyond the eighth.
    pub(crate) row_bytes: [u16; 16],
    /// Rows of each tile, likewise.
    pub(crate) rows: [u8; 16],
}

const _: () = assert!(
    size_of::<TileConfig>() == 64
        && std::mem::offset_of!(TileConfig, row_bytes) == 16
        && std::mem::offset_of!(TileConfig, rows) == 48
);

impl TileConfig {
    /// Palette 1 without a tile.
    pub(crate) fn new() -> Self {
        Self {
            palette: 1,
            ..Self::default()
        }
    }

    /// Gives tile `tile` a shape; a tile of no rows or no words is not used.
    pub(crate) fn tile(mut self, tile: usize, rows: usize, words: usize) -> Self {
        debug_assert!(tile < TILE_COUNT && rows <= TILE_ROWS && words <= ROW_WORDS);
        if rows != 0 && words != 0 {
            self.rows[tile] = rows as u8;
            self.row_bytes[tile] = 4 * words as u16;
        }
        self
    }
}

/// Tile registers by number, with a configuration in force from construction to drop. What is dropped leaves
/// no tile state behind: other code of the process that uses tiles finds them as it would without us.
///
/// Products of tiles whose shapes do not fit are a fault of the CPU (and a panic of the emulator).
pub(crate) trait Tiles: Sized {
    /// Loads a configuration; every tile is zero.
    ///
    /// # Safety
    /// The CPU must have AMX and the process its permission ([`crate::Isa::AmxInt8`] or
    /// [`crate::Isa::AmxBf16`] detected); and no other value of this type may live on the thread. The
    /// emulator asks for nothing.
    unsafe fn configured(config: &TileConfig) -> Self;

    /// Loads another configuration; every tile is zero.
    fn configure(&mut self, config: &TileConfig);

    /// Tile `T` to zero.
    fn zero<const T: usize>(&mut self);

    /// Reads the rows of tile `T` from addresses `stride_bytes` apart.
    ///
    /// # Safety
    /// Each of the tile's configured rows must be readable over its configured bytes.
    unsafe fn load_activations<const T: usize>(
        &mut self,
        first_row: *const u8,
        stride_bytes: usize,
    );

    /// Reads the rows of tile `T`.
    fn load_weights<const T: usize>(&mut self, from: &WeightTile);

    /// `C += A · B` with signed bytes in `A`, unsigned ones in `B`: TDPBSUD.
    fn add_signed_unsigned<const C: usize, const A: usize, const B: usize>(&mut self);

    /// `C += A · B` with signed bytes in both: TDPBSSD.
    fn add_signed_signed<const C: usize, const A: usize, const B: usize>(&mut self);

    /// `C += A · B` with pairs of bf16, in fp32: TDPBF16PS.
    fn add_bf16<const C: usize, const A: usize, const B: usize>(&mut self);

    /// Writes the configured rows of tile `T`.
    fn store<const T: usize>(&mut self, to: &mut SumTile);
}
