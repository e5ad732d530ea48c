//! The packed layout: what the bytes of a packed tensor mean. `docs/layouts.md` draws it.
//!
//! A packed tensor is a sequence of segments, each `header | panels | scales | zeros | permutation`.
//! Every section starts at a multiple of 64 bytes and is padded with zeros to one; the sizes in the
//! header are the padded sizes, so a section's size and what its checksum covers are the same bytes.
//!
//! # Panels: the only statement of the nibble order
//! Sixteen output rows make a panel (`r` = 0..16); the panel's blocks follow each other in K.
//! ```text
//! 4 bit, block c of 64 bytes:  byte 4*r + b   low nibble  = column 8c + b
//!                                             high nibble = column 8c + 4 + b      b = 0..4
//! 8 bit, block c of 64 bytes:  byte 4*r + b             = column 4c + b            b = 0..4
//! ```
//! Codes are unsigned. Columns past K hold code 0 and meet zero activations; rows past N hold code 0,
//! scale 0, offset 0 and zero-point 0.
//!
//! # Scales and zeros
//! `[panel][group][16]`: 16-bit scales (f16 or bf16, as stored); zeros are absent, one byte each, or
//! 16-bit float offsets of the scale's type. The permutation is `[K]` u32: packed column `j` holds
//! original column `p[j]`.

mod header;
mod tensor;

use std::fmt;

use crate::error::Int4Error;
use crate::kernel::{BLOCK_BYTES, NR, ScaleType};

pub(crate) use header::Header;
pub use tensor::{PackedTensor, Segment};
pub(crate) use tensor::{SegmentView, check_permutation};

/// First bytes of every segment.
pub const MAGIC: [u8; 8] = *b"OMNIPK\r\n";

/// Version this library writes, and the newest it reads.
pub const VERSION: u32 = 1;

/// Bytes of a segment header.
pub const HEADER_BYTES: usize = 128;

/// Every section starts at a multiple of this, and is padded to one.
pub const ALIGNMENT: usize = 64;

/// How zero-points are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroKind {
    /// Symmetric: the zero-point is 8 (4 bit) or 128 (8 bit) everywhere.
    None,
    /// One byte: `w = s * (q - z)`.
    U8,
    /// A 16-bit float of the scale's type: `w = s * q + m`.
    Offset,
}

impl ZeroKind {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::U8 => "u8",
            Self::Offset => "offset",
        }
    }
}

/// How a code stands for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeKind {
    /// `s * (q - z)` or `s * q + m`.
    Affine,
    /// Reserved: `s * codebook[q]` with sixteen entries. No kernel reads it; parsing refuses it.
    Codebook16,
}

/// A part of a segment, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Section {
    /// The 128 bytes in front.
    Header,
    /// The codes.
    Panels,
    /// The scales.
    Scales,
    /// Zero-points or offsets.
    Zeros,
    /// The column permutation.
    Permutation,
    /// Header and sections together.
    Segment,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "header",
            Self::Panels => "panels",
            Self::Scales => "scales",
            Self::Zeros => "zeros",
            Self::Permutation => "permutation",
            Self::Segment => "segment",
        })
    }
}

/// The shape and the kinds of one segment; everything else follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpec {
    /// Output features, at least 1.
    pub n: usize,
    /// Input features, at least 1.
    pub k: usize,
    /// 4 or 8.
    pub bits: u8,
    /// Columns per scale, a multiple of 8; `None` means one group for the whole row.
    pub group_size: Option<usize>,
    /// Type of scales and offsets.
    pub scale_type: ScaleType,
    /// How zero-points are stored.
    pub zero_kind: ZeroKind,
    /// How codes stand for values.
    pub code_kind: CodeKind,
    /// Whether a column permutation is stored.
    pub permuted: bool,
}

/// Padded section sizes of a segment in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectionSizes {
    pub(crate) panels: usize,
    pub(crate) scales: usize,
    pub(crate) zeros: usize,
    pub(crate) permutation: usize,
    pub(crate) segment: usize,
}

impl SegmentSpec {
    /// Refuses what the layout does not hold.
    ///
    /// # Errors
    /// [`Int4Error::InvalidSpec`] or [`Int4Error::UnsupportedCodeKind`].
    pub fn validate(&self) -> Result<(), Int4Error> {
        let refuse = |field, expected, found: usize| {
            Err(Int4Error::InvalidSpec {
                field,
                expected,
                found: found as u64,
            })
        };
        if self.n == 0 {
            return refuse("n", "at least 1", 0);
        }
        if self.k == 0 {
            return refuse("k", "at least 1", 0);
        }
        if self.bits != 4 && self.bits != 8 {
            return refuse("bits", "4 or 8", usize::from(self.bits));
        }
        if let Some(group_size) = self.group_size
            && (group_size == 0 || !group_size.is_multiple_of(8))
        {
            return refuse("group_size", "a positive multiple of 8", group_size);
        }
        if self.permuted && u32::try_from(self.k).is_err() {
            return refuse("k", "at most 4294967295 with a permutation", self.k);
        }
        match self.code_kind {
            CodeKind::Affine => Ok(()),
            CodeKind::Codebook16 => Err(Int4Error::UnsupportedCodeKind { found: 1 }),
        }
    }

    /// Columns per block: 8 for 4 bit, 4 for 8 bit.
    pub const fn block_columns(&self) -> usize {
        if self.bits == 4 { 8 } else { 4 }
    }

    /// Blocks per panel, the last one padded.
    pub const fn blocks(&self) -> usize {
        self.k.div_ceil(self.block_columns())
    }

    /// Panels, the last one padded.
    pub const fn panels(&self) -> usize {
        self.n.div_ceil(NR)
    }

    /// Columns per group, at most K.
    pub const fn group_columns(&self) -> usize {
        match self.group_size {
            Some(group_size) if group_size < self.k => group_size,
            _ => self.k,
        }
    }

    /// Blocks per group, at most [`Self::blocks`].
    pub const fn group_blocks(&self) -> usize {
        self.group_columns().div_ceil(self.block_columns())
    }

    /// Groups per row, the last one possibly short.
    pub const fn groups(&self) -> usize {
        self.k.div_ceil(self.group_columns())
    }

    /// c of the kernel formula: 8 for 4 bit, 128 for 8 bit.
    pub const fn code_center(&self) -> u8 {
        if self.bits == 4 { 8 } else { 128 }
    }

    /// Bytes of the whole segment, header included; a multiple of 64.
    ///
    /// # Errors
    /// As [`Self::validate`], and [`Int4Error::TooLarge`].
    pub fn packed_bytes(&self) -> Result<usize, Int4Error> {
        Ok(self.section_sizes()?.segment)
    }

    pub(crate) fn section_sizes(&self) -> Result<SectionSizes, Int4Error> {
        self.validate()?;
        self.checked_section_sizes().ok_or(Int4Error::TooLarge {
            n: self.n as u64,
            k: self.k as u64,
        })
    }

    fn checked_section_sizes(&self) -> Option<SectionSizes> {
        let panels = self
            .panels()
            .checked_mul(self.blocks())?
            .checked_mul(BLOCK_BYTES)?;
        let entries = self.panels().checked_mul(self.groups())?.checked_mul(NR)?;
        let scales = padded(entries.checked_mul(2)?)?;
        let zeros = match self.zero_kind {
            ZeroKind::None => 0,
            ZeroKind::U8 => padded(entries)?,
            ZeroKind::Offset => scales,
        };
        let permutation = if self.permuted {
            padded(self.k.checked_mul(4)?)?
        } else {
            0
        };
        let segment = HEADER_BYTES
            .checked_add(panels)?
            .checked_add(scales)?
            .checked_add(zeros)?
            .checked_add(permutation)?;
        isize::try_from(segment).ok()?;
        Some(SectionSizes {
            panels,
            scales,
            zeros,
            permutation,
            segment,
        })
    }
}

fn padded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn sizes_follow_from_the_specification() {
        let bytes = |spec: SegmentSpec| spec.packed_bytes().unwrap();
        assert_eq!(bytes(SPEC), 128 + 64 + 64);
        assert_eq!(bytes(SegmentSpec { n: 17, ..SPEC }), 128 + 2 * 64 + 64);
        assert_eq!(bytes(SegmentSpec { k: 9, ..SPEC }), 128 + 2 * 64 + 64);
        assert_eq!(bytes(SegmentSpec { bits: 8, ..SPEC }), 128 + 2 * 64 + 64);
        assert_eq!(
            bytes(SegmentSpec {
                zero_kind: ZeroKind::U8,
                ..SPEC
            }),
            128 + 64 + 64 + 64
        );
        assert_eq!(
            bytes(SegmentSpec {
                permuted: true,
                ..SPEC
            }),
            128 + 64 + 64 + 64
        );
        // 40 columns in groups of 16: 16, 16 and 8. Three groups of sixteen 16-bit scales.
        let groups = SegmentSpec {
            k: 40,
            group_size: Some(16),
            ..SPEC
        };
        assert_eq!(groups.groups(), 3);
        assert_eq!(bytes(groups), 128 + 5 * 64 + 128);
        // A group longer than the row is the row.
        let long = SegmentSpec {
            group_size: Some(1 << 40),
            ..SPEC
        };
        assert_eq!((long.groups(), long.group_blocks()), (1, 1));
    }

    #[test]
    fn specifications_outside_the_layout_are_refused() {
        let refuse = |spec: SegmentSpec| spec.packed_bytes().unwrap_err().to_string();
        assert_eq!(
            refuse(SegmentSpec { n: 0, ..SPEC }),
            "n: expected at least 1, found 0"
        );
        assert_eq!(
            refuse(SegmentSpec { k: 0, ..SPEC }),
            "k: expected at least 1, found 0"
        );
        assert_eq!(
            refuse(SegmentSpec { bits: 3, ..SPEC }),
            "bits: expected 4 or 8, found 3"
        );
        for group_size in [0, 1, 12] {
            assert_eq!(
                refuse(SegmentSpec {
                    group_size: Some(group_size),
                    ..SPEC
                }),
                format!("group_size: expected a positive multiple of 8, found {group_size}")
            );
        }
        assert!(
            refuse(SegmentSpec {
                code_kind: CodeKind::Codebook16,
                ..SPEC
            })
            .contains("codebook")
        );
        for (n, k) in [
            (usize::MAX, 8),
            (8, usize::MAX),
            (1 << 40, 1 << 40),
            (1 << 61, 1),
        ] {
            assert!(
                refuse(SegmentSpec { n, k, ..SPEC }).contains("does not fit"),
                "{n} {k}"
            );
        }
    }
}
