//! Packed tensors as slices of bytes: parsing, checking, and the views that kernels read.

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Int4Error;
use crate::kernel::{BLOCK_BYTES, NR, Panel, PanelZeros};

use super::header::{Header, field, read_u64};
use super::{ALIGNMENT, HEADER_BYTES, MAGIC, Section, SegmentSpec, ZeroKind};

/// Segments a [`PackedTensor`] holds without allocating.
const INLINE_SEGMENTS: usize = 4;

/// One segment of a packed tensor: its specification and its sections, lengths checked.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    spec: SegmentSpec,
    offset_bytes: usize,
    bytes: &'a [u8],
    panels: &'a [u8],
    scales: &'a [u8],
    zeros: &'a [u8],
    permutation: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Shape and kinds.
    pub const fn spec(&self) -> &SegmentSpec {
        &self.spec
    }

    /// Bytes from the start of the packed tensor to this segment's header.
    pub const fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// The whole segment, header included.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Codes of panel `panel`: `blocks * 64` bytes.
    pub(crate) fn panel_codes(&self, panel: usize) -> &'a [u8] {
        let panel_bytes = self.spec.blocks() * BLOCK_BYTES;
        &self.panels[panel * panel_bytes..(panel + 1) * panel_bytes]
    }

    /// Typed views of the sections, with the permutation's entries checked to be columns.
    ///
    /// # Errors
    /// [`Int4Error::Misaligned`] when the buffer's address is not a multiple of 4, and
    /// [`Int4Error::InvalidPermutation`].
    pub(crate) fn view(&self) -> Result<SegmentView<'a>, Int4Error> {
        let misaligned = || Int4Error::Misaligned {
            expected_bytes: 4,
            found_modulo_64: self.bytes.as_ptr().addr() % ALIGNMENT,
        };
        let halves = |bytes| bytemuck::try_cast_slice::<u8, u16>(bytes).map_err(|_| misaligned());
        let entries = self.spec.panels() * self.spec.groups() * NR;
        let permutation = if self.spec.permuted {
            let words: &[u32] =
                bytemuck::try_cast_slice(self.permutation).map_err(|_| misaligned())?;
            let words = &words[..self.spec.k];
            let largest = words.iter().fold(0, |largest, word| largest.max(*word));
            if largest as usize >= self.spec.k {
                return Err(Int4Error::InvalidPermutation {
                    reason: "expected entries below the number of columns",
                    position: words.iter().position(|word| *word == largest).unwrap_or(0),
                    found: u64::from(largest),
                    k: self.spec.k,
                });
            }
            Some(words)
        } else {
            None
        };
        Ok(SegmentView {
            spec: self.spec,
            panel_bytes: self.spec.blocks() * BLOCK_BYTES,
            panel_entries: self.spec.groups() * NR,
            panels: self.panels,
            scales: &halves(self.scales)?[..entries],
            zeros: match self.spec.zero_kind {
                ZeroKind::None => PanelZeros::None,
                ZeroKind::U8 => PanelZeros::U8(&self.zeros[..entries]),
                ZeroKind::Offset => PanelZeros::Offset(&halves(self.zeros)?[..entries]),
            },
            permutation,
        })
    }

    fn verify(&self, index: usize) -> Result<(), Int4Error> {
        let mismatch = |section| Int4Error::ChecksumMismatch {
            segment: index,
            section,
        };
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&self.bytes[..HEADER_BYTES]);
        if read_u64(&header, field::HEADER_CHECKSUM) != xxh3_64(&header[..field::HEADER_CHECKSUM]) {
            return Err(mismatch(Section::Header));
        }
        for (position, section, bytes) in [
            (0, Section::Panels, self.panels),
            (1, Section::Scales, self.scales),
            (2, Section::Zeros, self.zeros),
            (3, Section::Permutation, self.permutation),
        ] {
            if read_u64(&header, field::SECTION_CHECKSUMS + 8 * position) != xxh3_64(bytes) {
                return Err(mismatch(section));
            }
        }
        if self.spec.permuted {
            let words = self.permutation[..4 * self.spec.k]
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            check_permutation(words, self.spec.k)?;
        }
        Ok(())
    }
}

/// Refuses anything that is not a permutation of `0..k`.
pub(crate) fn check_permutation(
    words: impl ExactSizeIterator<Item = u32>,
    k: usize,
) -> Result<(), Int4Error> {
    if words.len() != k {
        return Err(Int4Error::WrongLength {
            what: "permutation",
            expected: k,
            found: words.len(),
        });
    }
    let mut seen = vec![false; k];
    for (position, word) in words.enumerate() {
        let reason = match seen.get_mut(word as usize) {
            None => "expected entries below the number of columns",
            Some(seen) if *seen => "expected every column once",
            Some(seen) => {
                *seen = true;
                continue;
            }
        };
        return Err(Int4Error::InvalidPermutation {
            reason,
            position,
            found: u64::from(word),
            k,
        });
    }
    Ok(())
}

/// Sections of a segment as the kernels read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentView<'a> {
    pub(crate) spec: SegmentSpec,
    panel_bytes: usize,
    panel_entries: usize,
    panels: &'a [u8],
    scales: &'a [u16],
    zeros: PanelZeros<'a>,
    pub(crate) permutation: Option<&'a [u32]>,
}

impl<'a> SegmentView<'a> {
    /// `[panel][group][NR]` scales as stored.
    pub(crate) const fn scales(&self) -> &'a [u16] {
        self.scales
    }

    /// `[panel][group][NR]` zero-points or offsets.
    pub(crate) const fn zeros(&self) -> PanelZeros<'a> {
        self.zeros
    }

    /// Bytes of codes, scales and zeros that computing one panel reads.
    pub(crate) const fn panel_bytes(&self) -> usize {
        let zeros = match self.zeros {
            PanelZeros::None => 0,
            PanelZeros::U8(_) => self.panel_entries,
            PanelZeros::Offset(_) => 2 * self.panel_entries,
        };
        self.panel_bytes + 2 * self.panel_entries + zeros
    }

    /// Panel `panel` with its scales and zeros.
    pub(crate) fn panel(&self, panel: usize) -> Panel<'a> {
        let (from, to) = (panel * self.panel_entries, (panel + 1) * self.panel_entries);
        Panel {
            codes: &self.panels[panel * self.panel_bytes..(panel + 1) * self.panel_bytes],
            scales: &self.scales[from..to],
            scale_type: self.spec.scale_type,
            zeros: match self.zeros {
                PanelZeros::None => PanelZeros::None,
                PanelZeros::U8(zeros) => PanelZeros::U8(&zeros[from..to]),
                PanelZeros::Offset(offsets) => PanelZeros::Offset(&offsets[from..to]),
            },
        }
    }
}

/// A packed tensor of shape `[n, k]`: one or more segments of the same `k`, stacked in `n`.
#[derive(Clone, Debug)]
pub struct PackedTensor<'a> {
    segments: SmallVec<[Segment<'a>; INLINE_SEGMENTS]>,
    n: usize,
    k: usize,
}

impl<'a> PackedTensor<'a> {
    /// Reads the headers and checks that every field agrees with the others and with the length of
    /// `bytes`; nothing read through the result leaves `bytes`. Checksums are not computed (that is
    /// [`Self::verify`]): this runs at every call of an op. No allocation up to four segments.
    ///
    /// # Errors
    /// The variants of [`Int4Error`] that name a segment, and [`Int4Error::Truncated`],
    /// [`Int4Error::UnsupportedVersion`], [`Int4Error::UnsupportedCodeKind`],
    /// [`Int4Error::InvalidSpec`], [`Int4Error::TooLarge`], [`Int4Error::Empty`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Int4Error> {
        if bytes.is_empty() {
            return Err(Int4Error::Empty);
        }
        let mut segments: SmallVec<[Segment<'a>; INLINE_SEGMENTS]> = SmallVec::new();
        let mut offset = 0;
        let mut n = 0usize;
        while offset < bytes.len() {
            let index = segments.len();
            let rest = &bytes[offset..];
            let truncated = |expected: usize| Int4Error::Truncated {
                expected_bytes: (offset as u64).saturating_add(expected as u64),
                found_bytes: bytes.len() as u64,
            };
            let Some(raw) = rest.first_chunk::<HEADER_BYTES>() else {
                if let Some(found) = rest.first_chunk::<8>()
                    && *found != MAGIC
                {
                    return Err(Int4Error::BadMagic {
                        segment: index,
                        found: u64::from_le_bytes(*found),
                    });
                }
                return Err(truncated(HEADER_BYTES));
            };
            let header = Header::read(raw, index)?;
            if rest.len() < header.sizes.segment {
                return Err(truncated(header.sizes.segment));
            }
            if let Some(first) = segments.first()
                && first.spec.k != header.spec.k
            {
                return Err(Int4Error::SegmentWidthMismatch {
                    segment: index,
                    expected_k: first.spec.k,
                    found_k: header.spec.k,
                });
            }
            let (segment, _) = rest.split_at(header.sizes.segment);
            let [panels, scales, zeros, permutation] = header.split(&segment[HEADER_BYTES..]);
            segments.push(Segment {
                spec: header.spec,
                offset_bytes: offset,
                bytes: segment,
                panels,
                scales,
                zeros,
                permutation,
            });
            // Every row takes at least four bytes of the buffer, so the sum cannot overflow.
            n += header.spec.n;
            offset += header.sizes.segment;
        }
        let k = segments[0].spec.k;
        Ok(Self { segments, n, k })
    }

    /// Computes every checksum, and checks that a stored permutation is one.
    ///
    /// # Errors
    /// [`Int4Error::ChecksumMismatch`] with the segment and the section, or
    /// [`Int4Error::InvalidPermutation`].
    pub fn verify(&self) -> Result<(), Int4Error> {
        self.segments
            .iter()
            .enumerate()
            .try_for_each(|(index, segment)| segment.verify(index))
    }

    /// The segments in order.
    pub fn segments(&self) -> &[Segment<'a>] {
        &self.segments
    }

    /// Output features of all segments together.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub const fn k(&self) -> usize {
        self.k
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ScaleType;
    use crate::layout::CodeKind;
    use crate::pack::{PackZeros, pack_into};

    const SPEC: SegmentSpec = SegmentSpec {
        n: 2,
        k: 8,
        bits: 4,
        group_size: None,
        scale_type: ScaleType::F16,
        zero_kind: ZeroKind::None,
        code_kind: CodeKind::Affine,
        permuted: false,
    };

    fn packed() -> Vec<u8> {
        let mut out = vec![0; SPEC.packed_bytes().unwrap()];
        pack_into(&mut out, &SPEC, &[5; 16], &[1, 2], PackZeros::None, None).unwrap();
        out
    }

    fn with(at: usize, bytes: &[u8]) -> String {
        let mut out = packed();
        out[at..at + bytes.len()].copy_from_slice(bytes);
        PackedTensor::parse(&out)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn header_fields_that_mean_nothing_are_named() {
        assert!(with(0, b"GGUF").starts_with("segment 0: expected magic"));
        assert_eq!(
            with(8, &[2]),
            "packed layout version 2 is not supported (newest supported: 1)"
        );
        assert_eq!(
            with(12, &[64]),
            "segment 0: header field header_bytes: expected 128, found 64"
        );
        assert_eq!(with(16, &[0]), "n: expected at least 1, found 0");
        assert_eq!(
            with(16, &[18]),
            "segment 0: size of panels: expected 128 bytes, found 64"
        );
        assert_eq!(
            with(32, &[4]),
            "group_size: expected a positive multiple of 8, found 4"
        );
        assert_eq!(with(40, &[5]), "bits: expected 4 or 8, found 5");
        assert_eq!(
            with(41, &[2]),
            "segment 0: header field scale_type: expected 0 (f16) or 1 (bf16), found 2"
        );
        assert_eq!(
            with(42, &[3]),
            "segment 0: header field zero_kind: expected 0 (none), 1 (u8) or 2 (offset), found 3"
        );
        assert_eq!(
            with(43, &[1]),
            "code kind 1 (16-entry codebook) is reserved and not supported yet; expected 0 (affine)"
        );
        assert_eq!(with(43, &[2]), "code kind: expected 0 (affine), found 2");
        assert_eq!(
            with(44, &[2]),
            "segment 0: header field permuted: expected 0 or 1, found 2"
        );
        assert_eq!(
            with(46, &[1]),
            "segment 0: header field reserved: expected 0, found 1"
        );
        assert_eq!(
            with(112, &[1]),
            "segment 0: size of segment: expected 256 bytes, found 257"
        );
        assert!(with(16, &[0xff; 8]).contains("does not fit the address space"));
        assert!(with(24, &[0xff; 8]).contains("does not fit the address space"));
    }

    #[test]
    fn lengths_are_checked() {
        let out = packed();
        let parse = |bytes: &[u8]| PackedTensor::parse(bytes).map(|tensor| tensor.n());
        assert_eq!(parse(&[]), Err(Int4Error::Empty));
        for cut in 1..out.len() {
            let expected_bytes = if cut < HEADER_BYTES { 128 } else { 256 };
            assert_eq!(
                parse(&out[..cut]),
                Err(Int4Error::Truncated {
                    expected_bytes,
                    found_bytes: cut as u64
                })
            );
        }
        let mut two = out.clone();
        two.extend_from_slice(&out);
        assert_eq!(parse(&two), Ok(4));
        assert_eq!(
            parse(&two[..300]),
            Err(Int4Error::Truncated {
                expected_bytes: 384,
                found_bytes: 300
            })
        );
        two.truncate(256);
        two.extend_from_slice(&[0; 64]);
        assert!(matches!(
            parse(&two),
            Err(Int4Error::BadMagic {
                segment: 1,
                found: 0
            })
        ));
    }

    #[test]
    fn segments_share_their_width() {
        let mut out = packed();
        let wide = SegmentSpec { k: 16, ..SPEC };
        let mut other = vec![0; wide.packed_bytes().unwrap()];
        pack_into(&mut other, &wide, &[0; 32], &[1, 2], PackZeros::None, None).unwrap();
        out.extend_from_slice(&other);
        assert_eq!(
            PackedTensor::parse(&out)
                .map(|_| ())
                .unwrap_err()
                .to_string(),
            "segment 1: expected k=8 as in segment 0, found k=16"
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let out = packed();
        assert_eq!(PackedTensor::parse(&out).unwrap().verify(), Ok(()));
        for at in 0..out.len() {
            for bit in 0..8 {
                let mut flipped = out.clone();
                flipped[at] ^= 1 << bit;
                let result = PackedTensor::parse(&flipped).and_then(|tensor| tensor.verify());
                let section = match at {
                    0..128 => Section::Header,
                    128..192 => Section::Panels,
                    _ => Section::Scales,
                };
                match result.unwrap_err() {
                    Int4Error::ChecksumMismatch {
                        segment: 0,
                        section: found,
                    } => {
                        // A flipped checksum of a section is in the header.
                        assert_eq!(found, section, "byte {at}");
                    }
                    other => assert!(at < HEADER_BYTES, "byte {at}: {other}"),
                }
            }
        }
    }

    #[test]
    fn an_odd_address_is_refused_by_typed_views_alone() {
        let mut shifted = vec![0u8; SPEC.packed_bytes().unwrap() + 8];
        let skip = shifted.as_ptr().align_offset(4) + 1;
        let out = packed();
        shifted[skip..skip + out.len()].copy_from_slice(&out);
        let tensor = PackedTensor::parse(&shifted[skip..skip + out.len()]).unwrap();
        assert_eq!(tensor.verify(), Ok(()));
        assert!(matches!(
            tensor.segments()[0].view().map(|_| ()),
            Err(Int4Error::Misaligned {
                expected_bytes: 4,
                ..
            })
        ));
    }
}
