//! Codes, scales and zeros → the packed bytes, and back. Lossless both ways; no arithmetic on values.

use crate::error::Int4Error;
use crate::kernel::{BLOCK_BYTES, NR, PanelZeros};
use crate::layout::{HEADER_BYTES, Header, Segment, SegmentSpec, ZeroKind, check_permutation};
use crate::operands::check_length;

/// Zero-points or offsets to pack, `[N][groups]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackZeros<'a> {
    /// Symmetric.
    None,
    /// Integer zero-points, any byte.
    U8(&'a [u8]),
    /// Bits of 16-bit floats of the scale's type.
    Offset(&'a [u16]),
}

impl PackZeros<'_> {
    /// The kind a specification has to name for these.
    pub const fn kind(&self) -> ZeroKind {
        match self {
            Self::None => ZeroKind::None,
            Self::U8(_) => ZeroKind::U8,
            Self::Offset(_) => ZeroKind::Offset,
        }
    }
}

/// What a segment holds, unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// `[N][K]`, in packed column order.
    pub codes: Vec<u8>,
    /// `[N][groups]`, bits as stored.
    pub scales: Vec<u16>,
    /// `[N][groups]`.
    pub zeros: UnpackedZeros,
    /// `[K]`: packed column `j` holds original column `p[j]`.
    pub permutation: Option<Vec<u32>>,
}

/// Zero-points or offsets, unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnpackedZeros {
    /// Symmetric.
    None,
    /// Integer zero-points.
    U8(Vec<u8>),
    /// Bits of 16-bit floats.
    Offset(Vec<u16>),
}

/// Writes one segment, every byte of it, header and checksums included.
///
/// `out`: exactly [`SegmentSpec::packed_bytes`]. `codes`: `[N][K]` in packed column order, 0 to 15 or
/// 0 to 255. `scales`: `[N][groups]` bits of `spec.scale_type`. `permutation`: `[K]`, packed column `j`
/// holds original column `permutation[j]`; given exactly when `spec.permuted`.
///
/// # Errors
/// Any mismatch with `spec`, a code that does not fit, or an entry list that is no permutation.
/// Nothing is written then.
pub fn pack_into(
    out: &mut [u8],
    spec: &SegmentSpec,
    codes: &[u8],
    scales: &[u16],
    zeros: PackZeros<'_>,
    permutation: Option<&[u32]>,
) -> Result<(), Int4Error> {
    let sizes = spec.section_sizes()?;
    let entries = spec.n * spec.groups();
    check_length("packed output", sizes.segment, out.len())?;
    // n * k fits: the packed size holds at least half a byte for each code.
    check_length("codes", spec.n * spec.k, codes.len())?;
    check_length("scales", entries, scales.len())?;
    if zeros.kind() != spec.zero_kind {
        return Err(Int4Error::ZeroKindMismatch {
            expected: spec.zero_kind.name(),
            found: zeros.kind().name(),
        });
    }
    match zeros {
        PackZeros::None => {}
        PackZeros::U8(zeros) => check_length("zeros", entries, zeros.len())?,
        PackZeros::Offset(offsets) => check_length("offsets", entries, offsets.len())?,
    }
    match permutation {
        Some(permutation) if spec.permuted => {
            check_permutation(permutation.iter().copied(), spec.k)?;
        }
        None if !spec.permuted => {}
        other => {
            return Err(Int4Error::WrongLength {
                what: "permutation",
                expected: if spec.permuted { spec.k } else { 0 },
                found: other.map_or(0, <[u32]>::len),
            });
        }
    }
    if spec.bits == 4
        && let Some(at) = codes.iter().position(|code| *code > 15)
    {
        let (n, k) = (at / spec.k, at % spec.k);
        return Err(Int4Error::CodeOutOfRange {
            n,
            k,
            code: codes[at],
            bits: 4,
        });
    }

    let (panels_out, rest) = out[HEADER_BYTES..].split_at_mut(sizes.panels);
    let (scales_out, rest) = rest.split_at_mut(sizes.scales);
    let (zeros_out, permutation_out) = rest.split_at_mut(sizes.zeros);
    pack_panels(panels_out, spec, codes);
    pack_halves(scales_out, spec, scales);
    match zeros {
        PackZeros::None => {}
        PackZeros::U8(zeros) => pack_bytes(zeros_out, spec, zeros),
        PackZeros::Offset(offsets) => pack_halves(zeros_out, spec, offsets),
    }
    permutation_out.fill(0);
    if let Some(permutation) = permutation {
        for (bytes, column) in permutation_out.chunks_exact_mut(4).zip(permutation) {
            bytes.copy_from_slice(&column.to_le_bytes());
        }
    }
    Header { spec: *spec, sizes }.write(out);
    Ok(())
}

fn pack_panels(out: &mut [u8], spec: &SegmentSpec, codes: &[u8]) {
    out.fill(0);
    let panel_bytes = spec.blocks() * BLOCK_BYTES;
    for (n, row) in codes.chunks_exact(spec.k).enumerate() {
        let panel = &mut out[n / NR * panel_bytes..][..panel_bytes];
        let lane = 4 * (n % NR);
        for (columns, block) in row
            .chunks(spec.block_columns())
            .zip(panel.chunks_exact_mut(BLOCK_BYTES))
        {
            let bytes = &mut block[lane..lane + 4];
            for (column, code) in columns.iter().enumerate() {
                bytes[column % 4] |= code << (4 * (column / 4));
            }
        }
    }
}

/// Where entry `(n, group)` stands in `[panel][group][NR]`.
fn entry(spec: &SegmentSpec, n: usize, group: usize) -> usize {
    (n / NR * spec.groups() + group) * NR + n % NR
}

fn pack_halves(out: &mut [u8], spec: &SegmentSpec, values: &[u16]) {
    out.fill(0);
    for (n, row) in values.chunks_exact(spec.groups()).enumerate() {
        for (group, value) in row.iter().enumerate() {
            let at = 2 * entry(spec, n, group);
            out[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
}

fn pack_bytes(out: &mut [u8], spec: &SegmentSpec, values: &[u8]) {
    out.fill(0);
    for (n, row) in values.chunks_exact(spec.groups()).enumerate() {
        for (group, value) in row.iter().enumerate() {
            out[entry(spec, n, group)] = *value;
        }
    }
}

/// The inverse of [`pack_into`].
///
/// # Errors
/// [`Int4Error::InvalidPermutation`] when a stored entry is no column, [`Int4Error::Misaligned`] when
/// the buffer's address is not a multiple of 4.
pub fn unpack(segment: &Segment<'_>) -> Result<Unpacked, Int4Error> {
    let spec = segment.spec();
    let view = segment.view()?;
    let mut codes = vec![0; spec.n * spec.k];
    for (n, row) in codes.chunks_exact_mut(spec.k).enumerate() {
        let panel = segment.panel_codes(n / NR);
        let lane = 4 * (n % NR);
        for (columns, block) in row
            .chunks_mut(spec.block_columns())
            .zip(panel.chunks_exact(BLOCK_BYTES))
        {
            let bytes = &block[lane..lane + 4];
            for (column, code) in columns.iter_mut().enumerate() {
                *code = if spec.bits == 4 {
                    (bytes[column % 4] >> (4 * (column / 4))) & 0xf
                } else {
                    bytes[column]
                };
            }
        }
    }
    Ok(Unpacked {
        codes,
        scales: gather(spec, view.scales()),
        zeros: match view.zeros() {
            PanelZeros::None => UnpackedZeros::None,
            PanelZeros::U8(zeros) => UnpackedZeros::U8(gather(spec, zeros)),
            PanelZeros::Offset(offsets) => UnpackedZeros::Offset(gather(spec, offsets)),
        },
        permutation: view.permutation.map(<[u32]>::to_vec),
    })
}

fn gather<T: Copy>(spec: &SegmentSpec, packed: &[T]) -> Vec<T> {
    (0..spec.n)
        .flat_map(|n| (0..spec.groups()).map(move |group| packed[entry(spec, n, group)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ScaleType;
    use crate::layout::{CodeKind, PackedTensor};

    fn spec(n: usize, k: usize, bits: u8) -> SegmentSpec {
        SegmentSpec {
            n,
            k,
            bits,
            group_size: None,
            scale_type: ScaleType::F16,
            zero_kind: ZeroKind::None,
            code_kind: CodeKind::Affine,
            permuted: false,
        }
    }

    fn packed(
        spec: &SegmentSpec,
        codes: &[u8],
        scales: &[u16],
        zeros: PackZeros<'_>,
        permutation: Option<&[u32]>,
    ) -> Vec<u8> {
        // Every byte has to be written, so start from something else than zero.
        let mut out = vec![0xee; spec.packed_bytes().unwrap()];
        pack_into(&mut out, spec, codes, scales, zeros, permutation).unwrap();
        out
    }

    #[test]
    fn four_bit_blocks_hold_columns_b_and_4_plus_b_in_a_byte() {
        // Row 0 counts up, row 1 counts down, ten columns: two blocks, the second one padded.
        let codes = [
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
            [15, 14, 13, 12, 11, 10, 9, 8, 7, 6],
        ];
        let out = packed(
            &spec(2, 10, 4),
            codes.as_flattened(),
            &[1, 2],
            PackZeros::None,
            None,
        );
        assert_eq!(out.len(), 128 + 2 * 64 + 64);
        let block = |at: usize| &out[128 + 64 * at..128 + 64 * (at + 1)];
        assert_eq!(
            block(0)[..8],
            [0x40, 0x51, 0x62, 0x73, 0xbf, 0xae, 0x9d, 0x8c]
        );
        assert_eq!(
            block(1)[..8],
            [0x08, 0x09, 0x00, 0x00, 0x07, 0x06, 0x00, 0x00]
        );
        assert!(
            block(0)[8..]
                .iter()
                .chain(&block(1)[8..])
                .all(|byte| *byte == 0)
        );
    }

    #[test]
    fn eight_bit_blocks_hold_four_columns_a_row() {
        let codes = [[0, 1, 2, 3, 4], [250, 251, 252, 253, 254]];
        let out = packed(
            &spec(2, 5, 8),
            codes.as_flattened(),
            &[1, 2],
            PackZeros::None,
            None,
        );
        assert_eq!(out.len(), 128 + 2 * 64 + 64);
        assert_eq!(out[128..136], [0, 1, 2, 3, 250, 251, 252, 253]);
        assert_eq!(out[192..200], [4, 0, 0, 0, 254, 0, 0, 0]);
    }

    #[test]
    fn scales_and_zeros_are_ordered_panel_group_row() {
        // 17 rows make two panels, 9 columns in groups of 8 make two groups.
        let spec = SegmentSpec {
            group_size: Some(8),
            zero_kind: ZeroKind::U8,
            ..spec(17, 9, 4)
        };
        let scales: Vec<u16> = (0..34).collect(); // row n has scales 2n and 2n + 1
        let zeros: Vec<u8> = (100..134).collect();
        let out = packed(&spec, &[0; 17 * 9], &scales, PackZeros::U8(&zeros), None);
        let tensor = PackedTensor::parse(&out).unwrap();
        let scales_at = 128 + 2 * 2 * 64;
        let zeros_at = scales_at + 2 * 2 * 16 * 2;
        let scale = |entry: usize| {
            u16::from_le_bytes([out[scales_at + 2 * entry], out[scales_at + 2 * entry + 1]])
        };
        // Panel 0, group 0: the even scales; group 1: the odd ones.
        assert_eq!(
            (0..16).map(scale).collect::<Vec<_>>(),
            (0..32).step_by(2).collect::<Vec<_>>()
        );
        assert_eq!(
            (16..32).map(scale).collect::<Vec<_>>(),
            (1..32).step_by(2).collect::<Vec<_>>()
        );
        // Panel 1 has one row of its own; the fifteen padded ones are 0.
        assert_eq!(
            (32..64)
                .map(scale)
                .filter(|scale| *scale != 0)
                .collect::<Vec<_>>(),
            [32, 33]
        );
        assert_eq!(scale(32), 32);
        assert_eq!(scale(48), 33);
        assert_eq!(out[zeros_at..zeros_at + 3], [100, 102, 104]);
        assert_eq!(out[zeros_at + 16..zeros_at + 19], [101, 103, 105]);
        assert_eq!(tensor.segments()[0].bytes().len(), zeros_at + 64);
    }

    #[test]
    fn the_header_is_the_table_in_the_documentation() {
        let spec = SegmentSpec {
            group_size: Some(8),
            scale_type: ScaleType::Bf16,
            zero_kind: ZeroKind::Offset,
            permuted: true,
            ..spec(3, 9, 4)
        };
        let permutation = [8, 0, 1, 2, 3, 4, 5, 6, 7];
        let out = packed(
            &spec,
            &[1; 27],
            &[1; 6],
            PackZeros::Offset(&[2; 6]),
            Some(&permutation),
        );
        let u64_at = |at: usize| u64::from_le_bytes(out[at..at + 8].try_into().unwrap());
        assert_eq!(out[..16], *b"OMNIPK\r\n\x01\0\0\0\x80\0\0\0");
        assert_eq!([u64_at(16), u64_at(24), u64_at(32)], [3, 9, 8]);
        assert_eq!(out[40..48], [4, 1, 2, 0, 1, 0, 0, 0]);
        assert_eq!([48, 56, 64, 72].map(u64_at), [128, 64, 64, 64]);
        let xxh3 = xxhash_rust::xxh3::xxh3_64;
        assert_eq!(u64_at(80), xxh3(&out[128..256]));
        assert_eq!(u64_at(88), xxh3(&out[256..320]));
        assert_eq!(u64_at(96), xxh3(&out[320..384]));
        assert_eq!(u64_at(104), xxh3(&out[384..448]));
        assert_eq!(u64_at(112), 448);
        assert_eq!(u64_at(120), xxh3(&out[..120]));
        assert_eq!(out[384..392], [8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out.len(), 448);
    }

    #[test]
    fn what_does_not_fit_the_specification_is_refused_and_nothing_is_written() {
        let spec4 = spec(2, 8, 4);
        let permuted = SegmentSpec {
            permuted: true,
            ..spec4
        };
        let zeros = SegmentSpec {
            zero_kind: ZeroKind::U8,
            ..spec4
        };
        let refuse = |spec: &SegmentSpec,
                      codes: &[u8],
                      scales: &[u16],
                      zeros: PackZeros<'_>,
                      permutation: Option<&[u32]>| {
            let mut out = vec![0xee; spec.packed_bytes().unwrap()];
            let error = pack_into(&mut out, spec, codes, scales, zeros, permutation).unwrap_err();
            assert!(out.iter().all(|byte| *byte == 0xee), "{error}");
            error.to_string()
        };
        let codes = [0; 16];
        assert_eq!(
            refuse(&spec4, &codes[1..], &[0; 2], PackZeros::None, None),
            "codes: expected 16 elements, found 15"
        );
        assert_eq!(
            refuse(&spec4, &codes, &[0; 3], PackZeros::None, None),
            "scales: expected 2 elements, found 3"
        );
        assert_eq!(
            refuse(&spec4, &codes, &[0; 2], PackZeros::U8(&[0; 2]), None),
            "zero-points: expected none, found u8"
        );
        assert_eq!(
            refuse(&zeros, &codes, &[0; 2], PackZeros::U8(&[0; 4]), None),
            "zeros: expected 2 elements, found 4"
        );
        assert_eq!(
            refuse(&permuted, &codes, &[0; 2], PackZeros::None, None),
            "permutation: expected 8 elements, found 0"
        );
        assert_eq!(
            refuse(&spec4, &codes, &[0; 2], PackZeros::None, Some(&[0; 8])),
            "permutation: expected 0 elements, found 8"
        );
        assert_eq!(
            refuse(
                &permuted,
                &codes,
                &[0; 2],
                PackZeros::None,
                Some(&[0, 1, 2, 3, 4, 5, 6, 6])
            ),
            "permutation of 8 columns: expected every column once (entry 7 is 6)"
        );
        assert_eq!(
            refuse(
                &permuted,
                &codes,
                &[0; 2],
                PackZeros::None,
                Some(&[0, 1, 2, 3, 4, 5, 6, 8])
            ),
            "permutation of 8 columns: expected entries below the number of columns (entry 7 is 8)"
        );
        let mut large = codes;
        large[13] = 16;
        assert_eq!(
            refuse(&spec4, &large, &[0; 2], PackZeros::None, None),
            "code at n=1, k=5: expected 0 to 15, found 16"
        );
        let mut short = vec![0xee; spec4.packed_bytes().unwrap() - 1];
        let error =
            pack_into(&mut short, &spec4, &codes, &[0; 2], PackZeros::None, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "packed output: expected 256 elements, found 255"
        );
    }
}
