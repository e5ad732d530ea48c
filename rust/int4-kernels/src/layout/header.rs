//! The 128 bytes in front of a segment.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Int4Error;
use crate::kernel::ScaleType;

use super::{CodeKind, HEADER_BYTES, MAGIC, Section, SectionSizes, SegmentSpec, VERSION, ZeroKind};

/// Byte positions in the header.
pub(super) mod field {
    pub(in crate::layout) const VERSION: usize = 8;
    pub(in crate::layout) const HEADER_BYTES: usize = 12;
    pub(in crate::layout) const N: usize = 16;
    pub(in crate::layout) const K: usize = 24;
    pub(in crate::layout) const GROUP_SIZE: usize = 32;
    pub(in crate::layout) const BITS: usize = 40;
    pub(in crate::layout) const SCALE_TYPE: usize = 41;
    pub(in crate::layout) const ZERO_KIND: usize = 42;
    pub(in crate::layout) const CODE_KIND: usize = 43;
    pub(in crate::layout) const PERMUTED: usize = 44;
    pub(in crate::layout) const RESERVED: std::ops::Range<usize> = 45..48;
    pub(in crate::layout) const PANELS_BYTES: usize = 48;
    pub(in crate::layout) const SCALES_BYTES: usize = 56;
    pub(in crate::layout) const ZEROS_BYTES: usize = 64;
    pub(in crate::layout) const PERMUTATION_BYTES: usize = 72;
    /// Four checksums: panels, scales, zeros, permutation.
    pub(in crate::layout) const SECTION_CHECKSUMS: usize = 80;
    pub(in crate::layout) const SEGMENT_BYTES: usize = 112;
    /// Covers every byte in front of it.
    pub(in crate::layout) const HEADER_CHECKSUM: usize = 120;
}

/// A header without its sections: what a segment is and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) spec: SegmentSpec,
    pub(crate) sizes: SectionSizes,
}

pub(super) fn read_u64(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

fn read_u32(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

impl Header {
    /// Reads a header and checks every field against the others, but no checksum.
    pub(super) fn read(bytes: &[u8; HEADER_BYTES], segment: usize) -> Result<Self, Int4Error> {
        let malformed = |field, expected, found| {
            Err(Int4Error::MalformedHeader {
                segment,
                field,
                expected,
                found,
            })
        };
        if bytes[..8] != MAGIC {
            return Err(Int4Error::BadMagic {
                segment,
                found: read_u64(bytes, 0),
            });
        }
        let version = read_u32(bytes, field::VERSION);
        if version != VERSION {
            return Err(Int4Error::UnsupportedVersion {
                found: version,
                newest: VERSION,
            });
        }
        let header_bytes = read_u32(bytes, field::HEADER_BYTES);
        if header_bytes as usize != HEADER_BYTES {
            return malformed("header_bytes", "128", u64::from(header_bytes));
        }
        let size = |at, field| match usize::try_from(read_u64(bytes, at)) {
            Ok(value) => Ok(value),
            Err(_) => Err(Int4Error::MalformedHeader {
                segment,
                field,
                expected: "a size that fits the address space",
                found: read_u64(bytes, at),
            }),
        };
        let group_size = size(field::GROUP_SIZE, "group_size")?;
        let spec = SegmentSpec {
            n: size(field::N, "n")?,
            k: size(field::K, "k")?,
            bits: bytes[field::BITS],
            group_size: (group_size != 0).then_some(group_size),
            scale_type: match bytes[field::SCALE_TYPE] {
                0 => ScaleType::F16,
                1 => ScaleType::Bf16,
                other => return malformed("scale_type", "0 (f16) or 1 (bf16)", u64::from(other)),
            },
            zero_kind: match bytes[field::ZERO_KIND] {
                0 => ZeroKind::None,
                1 => ZeroKind::U8,
                2 => ZeroKind::Offset,
                other => {
                    return malformed(
                        "zero_kind",
                        "0 (none), 1 (u8) or 2 (offset)",
                        u64::from(other),
                    );
                }
            },
            code_kind: match bytes[field::CODE_KIND] {
                0 => CodeKind::Affine,
                other => return Err(Int4Error::UnsupportedCodeKind { found: other }),
            },
            permuted: match bytes[field::PERMUTED] {
                0 => false,
                1 => true,
                other => return malformed("permuted", "0 or 1", u64::from(other)),
            },
        };
        if let Some(other) = bytes[field::RESERVED].iter().find(|byte| **byte != 0) {
            return malformed("reserved", "0", u64::from(*other));
        }
        let sizes = spec.section_sizes()?;
        for (at, section, expected) in [
            (field::PANELS_BYTES, Section::Panels, sizes.panels),
            (field::SCALES_BYTES, Section::Scales, sizes.scales),
            (field::ZEROS_BYTES, Section::Zeros, sizes.zeros),
            (
                field::PERMUTATION_BYTES,
                Section::Permutation,
                sizes.permutation,
            ),
            (field::SEGMENT_BYTES, Section::Segment, sizes.segment),
        ] {
            let found = read_u64(bytes, at);
            if found != expected as u64 {
                return Err(Int4Error::SectionSizeMismatch {
                    segment,
                    section,
                    expected_bytes: expected as u64,
                    found_bytes: found,
                });
            }
        }
        Ok(Self { spec, sizes })
    }

    /// Writes the header of sections that are already in place behind it.
    pub(crate) fn write(&self, segment: &mut [u8]) {
        let (header, sections) = segment.split_at_mut(HEADER_BYTES);
        let spec = &self.spec;
        header.fill(0);
        header[..8].copy_from_slice(&MAGIC);
        let mut put_u32 = |at: usize, value: u32| {
            header[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        put_u32(field::VERSION, VERSION);
        put_u32(field::HEADER_BYTES, HEADER_BYTES as u32);
        header[field::BITS] = spec.bits;
        header[field::SCALE_TYPE] = match spec.scale_type {
            ScaleType::F16 => 0,
            ScaleType::Bf16 => 1,
        };
        header[field::ZERO_KIND] = match spec.zero_kind {
            ZeroKind::None => 0,
            ZeroKind::U8 => 1,
            ZeroKind::Offset => 2,
        };
        header[field::CODE_KIND] = match spec.code_kind {
            CodeKind::Affine => 0,
            CodeKind::Codebook16 => 1,
        };
        header[field::PERMUTED] = u8::from(spec.permuted);
        let mut put_u64 = |at: usize, value: u64| {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        put_u64(field::N, spec.n as u64);
        put_u64(field::K, spec.k as u64);
        put_u64(field::GROUP_SIZE, spec.group_size.unwrap_or(0) as u64);
        put_u64(field::PANELS_BYTES, self.sizes.panels as u64);
        put_u64(field::SCALES_BYTES, self.sizes.scales as u64);
        put_u64(field::ZEROS_BYTES, self.sizes.zeros as u64);
        put_u64(field::PERMUTATION_BYTES, self.sizes.permutation as u64);
        put_u64(field::SEGMENT_BYTES, self.sizes.segment as u64);
        for (index, section) in self.split(sections).into_iter().enumerate() {
            put_u64(field::SECTION_CHECKSUMS + 8 * index, xxh3_64(section));
        }
        let checksum = xxh3_64(&header[..field::HEADER_CHECKSUM]);
        header[field::HEADER_CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Panels, scales, zeros, permutation of the bytes behind the header.
    pub(super) fn split<'a>(&self, sections: &'a [u8]) -> [&'a [u8]; 4] {
        let (panels, rest) = sections.split_at(self.sizes.panels);
        let (scales, rest) = rest.split_at(self.sizes.scales);
        let (zeros, rest) = rest.split_at(self.sizes.zeros);
        let (permutation, _) = rest.split_at(self.sizes.permutation);
        [panels, scales, zeros, permutation]
    }
}
