//! The packer. Shapes, groups, widths, zero-points and scales of any kind: it packs exactly when everything fits
//! the specification, and then unpacking gives back every bit; otherwise it states an error and writes nothing.

#![no_main]

mod exact;
mod segment;

use exact::{Exact, multiply};
use int4_kernels::pack::UnpackedZeros;
use int4_kernels::{CodeKind, PackedTensor, SegmentSpec, Unpacked, ZeroKind, unpack};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use segment::{any_content, any_spec, pack};

/// Bytes and codes of a segment at most.
const LARGEST: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    // An input that ends early is no case.
    let _ = try_to_pack(&mut Unstructured::new(data));
});

fn try_to_pack(input: &mut Unstructured<'_>) -> Result<()> {
    let spec = any_spec(input)?;
    let size = spec.packed_bytes();
    assert_eq!(size.is_ok(), is_valid(&spec), "{spec:?}");
    let size = match size {
        Ok(size) if size <= LARGEST => size,
        // Refused for its shape, or for a buffer that is too small for it; never a panic or a large allocation.
        _ => {
            let content = Unpacked {
                codes: vec![],
                scales: vec![],
                zeros: UnpackedZeros::None,
                permutation: None,
            };
            assert!(pack(&mut [], &spec, &content).is_err());
            return Ok(());
        }
    };
    let mut content = any_content(&spec, input)?;
    let fits = if input.ratio(1, 3)? {
        damage(&spec, &mut content, input)?
    } else {
        true
    };
    let extra = if input.ratio(1, 16)? {
        input.int_in_range(1..=64)?
    } else {
        0
    };
    let mut out = vec![0xee; size + extra];
    match pack(&mut out, &spec, &content) {
        Ok(()) => {
            assert!(fits && extra == 0, "{spec:?}");
            let out = Exact::new(&out, 0);
            let tensor = PackedTensor::parse(out.bytes()).expect("just packed");
            tensor.verify().expect("just packed");
            assert_eq!(
                (tensor.n(), tensor.k(), tensor.segments().len()),
                (spec.n, spec.k, 1)
            );
            assert_eq!(tensor.segments()[0].spec(), &spec);
            assert_eq!(unpack(&tensor.segments()[0]), Ok(content));
            multiply(&tensor).expect("just packed");
        }
        Err(error) => {
            assert!(!fits || extra > 0, "{spec:?}: {error}");
            assert!(out.iter().all(|byte| *byte == 0xee), "{spec:?}: {error}");
        }
    }
    Ok(())
}

/// What the documentation of the layout admits, and what has a size at all.
fn is_valid(spec: &SegmentSpec) -> bool {
    let (n, k) = (spec.n as u128, spec.k as u128);
    let group = spec.group_size.map_or(k, |group| k.min(group as u128));
    let is_admitted = n >= 1
        && k >= 1
        && matches!(spec.bits, 4 | 8)
        && spec
            .group_size
            .is_none_or(|group| group >= 8 && group % 8 == 0)
        && spec.code_kind == CodeKind::Affine
        && !(spec.permuted && k > u128::from(u32::MAX));
    if !is_admitted {
        return false;
    }
    let padded = |bytes: u128| bytes.div_ceil(64) * 64;
    let panels = n.div_ceil(16);
    // Each factor is below 2^64; their product may reach 2^128.
    let codes = (panels * k.div_ceil(if spec.bits == 4 { 8 } else { 4 })).saturating_mul(64);
    let entries = panels * k.div_ceil(group) * 16;
    if codes > isize::MAX as u128 {
        return false;
    }
    let zeros = match spec.zero_kind {
        ZeroKind::None => 0,
        ZeroKind::U8 => padded(entries),
        ZeroKind::Offset => padded(2 * entries),
    };
    let permutation = if spec.permuted { padded(4 * k) } else { 0 };
    128 + codes + padded(2 * entries) + zeros + permutation <= isize::MAX as u128
}

/// Changes one thing; whether the content still fits.
fn damage(
    spec: &SegmentSpec,
    content: &mut Unpacked,
    input: &mut Unstructured<'_>,
) -> Result<bool> {
    Ok(match input.int_in_range(0u8..=6)? {
        0 => {
            let at = input.choose_index(content.codes.len())?;
            content.codes[at] = input.arbitrary()?;
            spec.bits == 8 || content.codes[at] <= 15
        }
        1 => content.codes.pop().is_none(),
        2 => {
            content.scales.push(0);
            false
        }
        3 => {
            let (zeros, offsets) = (vec![0; content.scales.len()], vec![0; content.scales.len()]);
            content.zeros = match content.zeros {
                UnpackedZeros::None => UnpackedZeros::U8(zeros),
                UnpackedZeros::U8(_) => UnpackedZeros::Offset(offsets),
                UnpackedZeros::Offset(_) => UnpackedZeros::None,
            };
            false
        }
        4 => match &mut content.zeros {
            UnpackedZeros::None => true,
            UnpackedZeros::U8(zeros) => zeros.pop().is_none(),
            UnpackedZeros::Offset(offsets) => offsets.pop().is_none(),
        },
        5 => match &mut content.permutation {
            Some(order) => {
                let at = input.choose_index(order.len())?;
                let before = std::mem::replace(&mut order[at], input.arbitrary()?);
                order[at] == before
            }
            None => {
                content.permutation = Some(vec![0; spec.k]);
                false
            }
        },
        _ => content.permutation.take().is_none(),
    })
}
