//! What a call brings: activations, outputs and the numerics it asks for.

use std::ops::Range;

use half::{bf16, f16};

use crate::error::Int4Error;

/// Element type of activations and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// The upper half of an IEEE single.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Activations `[M][K]` (the row stride travels beside them), a bias `[ΣN]`, or an unquantized weight
/// `[N][K]`.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// bf16 elements.
    Bf16(&'a [bf16]),
    /// f16 elements.
    F16(&'a [f16]),
    /// f32 elements.
    F32(&'a [f32]),
}

impl<'a> Activations<'a> {
    /// Elements in the buffer.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bf16(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::F32(x) => x.len(),
        }
    }

    /// Whether the buffer has no element.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element type.
    pub const fn dtype(&self) -> Dtype {
        match self {
            Self::Bf16(_) => Dtype::Bf16,
            Self::F16(_) => Dtype::F16,
            Self::F32(_) => Dtype::F32,
        }
    }

    /// The elements of a range.
    pub(crate) fn slice(&self, range: Range<usize>) -> Activations<'a> {
        match self {
            Self::Bf16(x) => Activations::Bf16(&x[range]),
            Self::F16(x) => Activations::F16(&x[range]),
            Self::F32(x) => Activations::F32(&x[range]),
        }
    }
}

/// Outputs `[M][ΣN]`, contiguous.
#[derive(Debug)]
pub enum Outputs<'a> {
    /// bf16 elements.
    Bf16(&'a mut [bf16]),
    /// f16 elements.
    F16(&'a mut [f16]),
    /// f32 elements.
    F32(&'a mut [f32]),
}

impl Outputs<'_> {
    /// Elements in the buffer.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bf16(y) => y.len(),
            Self::F16(y) => y.len(),
            Self::F32(y) => y.len(),
        }
    }

    /// Whether the buffer has no element.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element type.
    pub const fn dtype(&self) -> Dtype {
        match self {
            Self::Bf16(_) => Dtype::Bf16,
            Self::F16(_) => Dtype::F16,
            Self::F32(_) => Dtype::F32,
        }
    }
}

/// How activations enter the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// As floats, or as 24-bit fixed point per chunk of columns where that is faster (see
    /// [`crate::dispatch::activation_form`]); groups accumulate in fp32.
    Native,
    /// Symmetric int8 with one scale per row and chunk of columns. A chunk is a weight group, cut
    /// into pieces of `max_chunk` columns where the group is longer.
    Int8 {
        /// A multiple of 8 from 8 to 32768. The bound keeps every int32 sum of a chunk exact.
        max_chunk: usize,
    },
}

impl Numerics {
    /// # Errors
    /// [`Int4Error::InvalidChunk`].
    pub fn validate(self) -> Result<(), Int4Error> {
        match self {
            Self::Int8 { max_chunk }
                if max_chunk == 0 || !max_chunk.is_multiple_of(8) || max_chunk > 32_768 =>
            {
                Err(Int4Error::InvalidChunk { found: max_chunk })
            }
            _ => Ok(()),
        }
    }
}

/// Checks that every id names one of `n` rows.
pub(crate) fn check_ids(ids: &[i64], n: usize) -> Result<(), Int4Error> {
    let outside = |id: &i64| usize::try_from(*id).map_or(true, |id| id >= n);
    match ids.iter().position(outside) {
        None => Ok(()),
        Some(position) => Err(Int4Error::IdOutOfRange {
            position,
            id: ids[position],
            n,
        }),
    }
}

/// Checks that a buffer has exactly `expected` elements.
pub(crate) fn check_length(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), Int4Error> {
    if expected == found {
        Ok(())
    } else {
        Err(Int4Error::WrongLength {
            what,
            expected,
            found,
        })
    }
}
