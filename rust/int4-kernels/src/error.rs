//! One variant per broken contract.

use std::fmt;

use crate::isa::{Isa, IsaLevel};
use crate::layout::Section;

/// Why a packed tensor, a specification or a call was refused. The text is one line and says what
/// was expected and what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Int4Error {
    /// A field of a [`crate::layout::SegmentSpec`] (or of a header) is outside what the layout holds.
    InvalidSpec {
        /// The field's name.
        field: &'static str,
        /// What the layout holds.
        expected: &'static str,
        /// What came.
        found: u64,
    },
    /// The packed size does not fit the address space.
    TooLarge {
        /// Output features.
        n: u64,
        /// Input features.
        k: u64,
    },
    /// A buffer has the wrong number of elements.
    WrongLength {
        /// The buffer's name.
        what: &'static str,
        /// Elements expected.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// A code does not fit its width.
    CodeOutOfRange {
        /// Output row.
        n: usize,
        /// Column.
        k: usize,
        /// The code.
        code: u8,
        /// The width it has to fit.
        bits: u8,
    },
    /// The zero-points handed in are not of the kind the specification names.
    ZeroKindMismatch {
        /// Kind in the specification.
        expected: &'static str,
        /// Kind handed in.
        found: &'static str,
    },
    /// The permutation is not one of 0..k, or is present when it should not be (or the reverse).
    InvalidPermutation {
        /// What is wrong with it.
        reason: &'static str,
        /// Position of the offending entry.
        position: usize,
        /// The entry.
        found: u64,
        /// Columns it has to permute.
        k: usize,
    },
    /// No segment at all.
    Empty,
    /// A segment does not start with the magic.
    BadMagic {
        /// Segment index.
        segment: usize,
        /// The eight bytes found, little endian.
        found: u64,
    },
    /// Written by a newer (or unknown) version of the layout.
    UnsupportedVersion {
        /// Version in the header.
        found: u32,
        /// Newest version this library reads.
        newest: u32,
    },
    /// A reserved or unknown way of coding values.
    UnsupportedCodeKind {
        /// The header's code kind.
        found: u8,
    },
    /// A header field holds something the layout does not define.
    MalformedHeader {
        /// Segment index.
        segment: usize,
        /// The field's name.
        field: &'static str,
        /// What the layout holds.
        expected: &'static str,
        /// What came.
        found: u64,
    },
    /// A section size in the header is not the one that follows from n, k, bits and group size.
    SectionSizeMismatch {
        /// Segment index.
        segment: usize,
        /// The section.
        section: Section,
        /// Bytes that follow from the other fields.
        expected_bytes: u64,
        /// Bytes in the header.
        found_bytes: u64,
    },
    /// The buffer ends before the packed tensor does.
    Truncated {
        /// Bytes needed, counted from the start of the tensor.
        expected_bytes: u64,
        /// Bytes there are.
        found_bytes: u64,
    },
    /// A section does not have the checksum stored for it.
    ChecksumMismatch {
        /// Segment index.
        segment: usize,
        /// The section.
        section: Section,
    },
    /// The segments of one tensor have different input widths.
    SegmentWidthMismatch {
        /// Segment index.
        segment: usize,
        /// K of segment 0.
        expected_k: usize,
        /// K of this segment.
        found_k: usize,
    },
    /// The buffer's address is not a multiple of what typed views of it need.
    Misaligned {
        /// Alignment needed.
        expected_bytes: usize,
        /// Address modulo the layout's alignment.
        found_modulo_64: usize,
    },
    /// A row id is outside the table.
    IdOutOfRange {
        /// Position in the list of ids.
        position: usize,
        /// The id.
        id: i64,
        /// Rows of the table.
        n: usize,
    },
    /// The chunk length asked of int8 activations is not usable.
    InvalidChunk {
        /// Columns asked for.
        found: usize,
    },
    /// The instruction sets asked for are not all there on this machine.
    UnsupportedIsa {
        /// The first one that is missing.
        missing: Isa,
    },
    /// The level asked for is above what this machine has.
    UnsupportedIsaLevel {
        /// Level asked for.
        asked: IsaLevel,
        /// Highest level this machine has.
        highest: IsaLevel,
    },
    /// Not the name of a level.
    UnknownIsaLevel {
        /// What came.
        found: String,
    },
    /// No kernel of that name, or one that cannot take this tensor.
    UnknownKernel {
        /// The name asked for.
        found: String,
    },
}

impl fmt::Display for Int4Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidSpec {
                field,
                expected,
                found,
            } => {
                write!(f, "{field}: expected {expected}, found {found}")
            }
            Self::TooLarge { n, k } => {
                write!(
                    f,
                    "packed size of n={n}, k={k} does not fit the address space"
                )
            }
            Self::WrongLength {
                what,
                expected,
                found,
            } => {
                write!(f, "{what}: expected {expected} elements, found {found}")
            }
            Self::CodeOutOfRange { n, k, code, bits } => write!(
                f,
                "code at n={n}, k={k}: expected 0 to {}, found {code}",
                (1u16 << bits.min(&8)) - 1
            ),
            Self::ZeroKindMismatch { expected, found } => {
                write!(f, "zero-points: expected {expected}, found {found}")
            }
            Self::InvalidPermutation {
                reason,
                position,
                found,
                k,
            } => write!(
                f,
                "permutation of {k} columns: {reason} (entry {position} is {found})"
            ),
            Self::Empty => write!(
                f,
                "packed tensor: expected at least one segment, found 0 bytes"
            ),
            Self::BadMagic { segment, found } => write!(
                f,
                "segment {segment}: expected magic \"OMNIPK\\r\\n\", found bytes {:02x?}",
                found.to_le_bytes()
            ),
            Self::UnsupportedVersion { found, newest } => write!(
                f,
                "packed layout version {found} is not supported (newest supported: {newest})"
            ),
            Self::UnsupportedCodeKind { found: 1 } => write!(
                f,
                "code kind 1 (16-entry codebook) is reserved and not supported yet; expected 0 (affine)"
            ),
            Self::UnsupportedCodeKind { found } => {
                write!(f, "code kind: expected 0 (affine), found {found}")
            }
            Self::MalformedHeader {
                segment,
                field,
                expected,
                found,
            } => {
                write!(
                    f,
                    "segment {segment}: header field {field}: expected {expected}, found {found}"
                )
            }
            Self::SectionSizeMismatch {
                segment,
                section,
                expected_bytes,
                found_bytes,
            } => write!(
                f,
                "segment {segment}: size of {section}: expected {expected_bytes} bytes, found {found_bytes}"
            ),
            Self::Truncated {
                expected_bytes,
                found_bytes,
            } => write!(
                f,
                "packed tensor is truncated: expected at least {expected_bytes} bytes, found {found_bytes}"
            ),
            Self::ChecksumMismatch { segment, section } => {
                write!(
                    f,
                    "segment {segment}: checksum of {section} does not match its bytes"
                )
            }
            Self::SegmentWidthMismatch {
                segment,
                expected_k,
                found_k,
            } => write!(
                f,
                "segment {segment}: expected k={expected_k} as in segment 0, found k={found_k}"
            ),
            Self::Misaligned {
                expected_bytes,
                found_modulo_64,
            } => write!(
                f,
                "packed tensor: expected an address that is a multiple of {expected_bytes}, \
                 found one that is {found_modulo_64} modulo 64"
            ),
            Self::IdOutOfRange { position, id, n } => {
                write!(
                    f,
                    "ids[{position}]: expected 0 to {}, found {id}",
                    n.saturating_sub(1)
                )
            }
            Self::InvalidChunk { found } => write!(
                f,
                "int8 activation chunk: expected a multiple of 8 from 8 to 32768 columns, found {found}"
            ),
            Self::UnsupportedIsa { missing } => {
                write!(f, "this machine lacks {missing}")
            }
            Self::UnsupportedIsaLevel { asked, highest } => write!(
                f,
                "ISA level {asked} is not available on this machine (highest available: {highest})"
            ),
            Self::UnknownIsaLevel { found } => {
                write!(
                    f,
                    "ISA level: expected scalar, avx2, avx_vnni, avx512 or amx, found {found:?}"
                )
            }
            Self::UnknownKernel { found } => write!(
                f,
                "kernel {found:?}: expected the name of a kernel for the tensor's bits"
            ),
        }
    }
}

impl std::error::Error for Int4Error {}
