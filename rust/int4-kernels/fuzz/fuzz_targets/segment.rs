//! Segments out of fuzzed bytes: a specification and what belongs into it.

use int4_kernels::pack::UnpackedZeros;
use int4_kernels::{
    CodeKind, Int4Error, PackZeros, ScaleType, SegmentSpec, Unpacked, ZeroKind, pack_into,
};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

/// Codes of a segment at most: an execution stays below a millisecond or so.
const MOST_CODES: usize = 1 << 12;

/// Any shape, small ones mostly; any group, width of codes and kind, valid ones mostly.
pub fn any_spec(input: &mut Unstructured<'_>) -> Result<SegmentSpec> {
    let is_wild = input.ratio(1, 16)?;
    let (n, k) = if is_wild {
        (input.arbitrary()?, input.arbitrary()?)
    } else {
        let k = input.int_in_range(0..=300)?;
        (input.int_in_range(0..=(MOST_CODES / (k + 1)).min(50))?, k)
    };
    Ok(SegmentSpec {
        n,
        k,
        bits: match input.int_in_range(0u8..=15)? {
            0 => input.arbitrary()?,
            choice if choice % 2 == 0 => 4,
            _ => 8,
        },
        group_size: match input.int_in_range(0u8..=15)? {
            0 => Some(input.arbitrary()?),
            1..=3 => None,
            _ => Some(8 * input.int_in_range(1..=24)?),
        },
        scale_type: *input.choose(&[ScaleType::F16, ScaleType::Bf16])?,
        zero_kind: *input.choose(&[ZeroKind::None, ZeroKind::U8, ZeroKind::Offset])?,
        code_kind: if input.ratio(1, 32)? {
            CodeKind::Codebook16
        } else {
            CodeKind::Affine
        },
        permuted: input.ratio(1, 4)?,
    })
}

/// Codes, scales (any bits: NaN, infinities and subnormals among them), zeros and permutation of the lengths
/// that `spec` asks for. When the input ends, what is missing is 0.
pub fn any_content(spec: &SegmentSpec, input: &mut Unstructured<'_>) -> Result<Unpacked> {
    let entries = spec.n * spec.groups();
    let mut codes = vec![0; spec.n * spec.k];
    let highest = if spec.bits == 4 { 15 } else { 255 };
    // One byte seeds a pattern, so that the input's length does not bound the shape.
    let (seed, step) = (input.arbitrary::<u8>()?, input.arbitrary::<u8>()?);
    for (at, code) in codes.iter_mut().enumerate() {
        *code = seed.wrapping_add((at as u8).wrapping_mul(step)) & highest;
    }
    let permutation = if spec.permuted {
        let mut order: Vec<u32> = (0..spec.k as u32).collect();
        for _ in 0..input.int_in_range(0..=8)? {
            let (a, b) = (input.choose_index(spec.k)?, input.choose_index(spec.k)?);
            order.swap(a, b);
        }
        Some(order)
    } else {
        None
    };
    let mut halves = |len: usize| -> Result<Vec<u16>> {
        let different: [u16; 4] = input.arbitrary()?;
        Ok((0..len)
            .map(|at| different[at % 4].wrapping_add((at / 4) as u16))
            .collect())
    };
    let scales = halves(entries)?;
    let zeros = match spec.zero_kind {
        ZeroKind::None => UnpackedZeros::None,
        ZeroKind::U8 => {
            UnpackedZeros::U8(halves(entries)?.iter().map(|half| *half as u8).collect())
        }
        ZeroKind::Offset => UnpackedZeros::Offset(halves(entries)?),
    };
    Ok(Unpacked {
        codes,
        scales,
        zeros,
        permutation,
    })
}

/// `pack_into` for what `unpack` gives.
pub fn pack(
    out: &mut [u8],
    spec: &SegmentSpec,
    content: &Unpacked,
) -> std::result::Result<(), Int4Error> {
    let zeros = match &content.zeros {
        UnpackedZeros::None => PackZeros::None,
        UnpackedZeros::U8(zeros) => PackZeros::U8(zeros),
        UnpackedZeros::Offset(offsets) => PackZeros::Offset(offsets),
    };
    let permutation = content.permutation.as_deref();
    pack_into(
        out,
        spec,
        &content.codes,
        &content.scales,
        zeros,
        permutation,
    )
}
