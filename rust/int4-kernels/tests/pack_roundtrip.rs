//! Packing loses nothing, and what is not a packed tensor is refused without harm.

mod tensors;

use int4_kernels::pack::UnpackedZeros;
use int4_kernels::{
    CodeKind, Int4Error, IsaSet, Numerics, Outputs, PackedTensor, ScaleType, SegmentSpec, Serial,
    ZeroKind, linear, reference, rows, unpack,
};
use proptest::prelude::*;
use tensors::{Aligned, Parts, Random, spec};

prop_compose! {
    fn any_spec()(
        n in 1usize..40,
        k in 1usize..80,
        wide in any::<bool>(),
        group in 0usize..6,
        scale in any::<bool>(),
        zero in 0usize..3,
        permuted in any::<bool>(),
    ) -> SegmentSpec {
        SegmentSpec {
            n,
            k,
            bits: if wide { 8 } else { 4 },
            group_size: [None, Some(8), Some(16), Some(24), Some(64), Some(128)][group],
            scale_type: if scale { ScaleType::F16 } else { ScaleType::Bf16 },
            zero_kind: [ZeroKind::None, ZeroKind::U8, ZeroKind::Offset][zero],
            code_kind: CodeKind::Affine,
            permuted,
        }
    }
}

/// Whatever parsing accepts, every reader has to survive.
fn exercise(bytes: &[u8]) -> Result<(), Int4Error> {
    let tensor = PackedTensor::parse(bytes)?;
    let x = vec![half::bf16::ONE; tensor.k()];
    let mut y = vec![0.0; tensor.n()];
    let x = int4_kernels::Activations::Bf16(&x);
    let y = Outputs::F32(&mut y);
    linear(
        &tensor,
        x,
        0,
        1,
        None,
        y,
        Numerics::Native,
        IsaSet::detect(),
        &Serial,
    )?;
    let mut row = vec![0.0; tensor.k()];
    rows(
        &tensor,
        &[tensor.n() as i64 - 1],
        Outputs::F32(&mut row),
        &Serial,
    )?;
    for segment in tensor.segments() {
        unpack(segment)?;
    }
    tensor.verify()
}

proptest! {
    #[test]
    fn unpacking_gives_back_what_was_packed(spec in any_spec(), seed in any::<u64>()) {
        let parts = Parts::random(&spec, &mut Random::new(seed));
        let packed = Aligned::new(&parts.pack(&spec));
        let tensor = PackedTensor::parse(packed.bytes()).unwrap();
        prop_assert_eq!((tensor.n(), tensor.k(), tensor.segments().len()), (spec.n, spec.k, 1));
        prop_assert_eq!(tensor.verify(), Ok(()));
        let segment = &tensor.segments()[0];
        prop_assert_eq!(segment.spec(), &spec);
        prop_assert_eq!(segment.bytes().len(), spec.packed_bytes().unwrap());
        let unpacked = unpack(segment).unwrap();
        prop_assert_eq!(unpacked.codes, parts.codes);
        prop_assert_eq!(unpacked.scales, parts.scales);
        prop_assert_eq!(unpacked.permutation, parts.permutation);
        match spec.zero_kind {
            ZeroKind::None => prop_assert_eq!(unpacked.zeros, UnpackedZeros::None),
            ZeroKind::U8 => prop_assert_eq!(unpacked.zeros, UnpackedZeros::U8(parts.zeros)),
            ZeroKind::Offset => prop_assert_eq!(unpacked.zeros, UnpackedZeros::Offset(parts.offsets)),
        }
    }

    #[test]
    fn rows_are_the_oracle_s_weights(first in any_spec(), second in any_spec(), seed in any::<u64>()) {
        let second = SegmentSpec { k: first.k, ..second };
        let packed = Aligned::random(&[first, second], seed);
        let tensor = PackedTensor::parse(packed.bytes()).unwrap();
        let weights = reference::dequantize(&tensor).unwrap();
        let ids: Vec<i64> = (0..tensor.n() as i64).rev().chain([0, 0]).collect();
        let mut y = vec![f32::NAN; ids.len() * first.k];
        rows(&tensor, &ids, Outputs::F32(&mut y), &Serial).unwrap();
        for (id, y) in ids.iter().zip(y.chunks(first.k)) {
            let expected = &weights.values[*id as usize * first.k..][..first.k];
            for (y, expected) in y.iter().zip(expected) {
                prop_assert_eq!(*y, *expected as f32);
            }
        }
    }

    #[test]
    fn a_flipped_byte_is_noticed(spec in any_spec(), seed in any::<u64>(), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut packed = Parts::random(&spec, &mut Random::new(seed)).pack(&spec);
        let at = at.index(packed.len());
        packed[at] ^= flip;
        let packed = Aligned::new(&packed);
        let noticed = PackedTensor::parse(packed.bytes()).and_then(|tensor| tensor.verify());
        prop_assert!(noticed.is_err(), "byte {}", at);
        prop_assert!(exercise(packed.bytes()).is_err());
    }

    #[test]
    fn a_truncated_tensor_is_refused(spec in any_spec(), cut in any::<prop::sample::Index>()) {
        let packed = Parts::random(&spec, &mut Random::new(1)).pack(&spec);
        let cut = cut.index(packed.len());
        let error = PackedTensor::parse(&packed[..cut]).map(|_| ()).unwrap_err();
        let expected = matches!(error, Int4Error::Truncated { .. }) || (cut == 0 && error == Int4Error::Empty);
        prop_assert!(expected, "{}", error);
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(exercise(Aligned::new(&bytes).bytes()).is_err());
    }

    /// Headers with the magic and the version right and everything else wild.
    #[test]
    fn wild_headers_do_no_harm(
        fields in prop::array::uniform14(any::<u64>()),
        small in any::<bool>(),
        kinds in prop::array::uniform5(0u8..4),
        behind in 0usize..2000,
    ) {
        let mut bytes = vec![0x5a; 128 + behind];
        bytes[..16].copy_from_slice(b"OMNIPK\r\n\x01\0\0\0\x80\0\0\0");
        for (at, field) in fields.iter().enumerate() {
            let value = if small { field % 200 } else { *field };
            bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&value.to_le_bytes());
        }
        bytes[40..45].copy_from_slice(&kinds);
        bytes[40] = [4, 8, 0, 255][kinds[0] as usize];
        bytes[45..48].fill(0);
        prop_assert!(exercise(Aligned::new(&bytes).bytes()).is_err());
    }

    /// Valid headers with a few bytes changed; sizes mostly stay consistent, contents do not.
    #[test]
    fn mutated_tensors_do_no_harm(
        spec in any_spec(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        in_header in any::<bool>(),
    ) {
        let mut packed = Parts::random(&spec, &mut Random::new(2)).pack(&spec);
        for (at, value) in changes {
            let at = at.index(if in_header { 128 } else { packed.len() });
            packed[at] = value;
        }
        // Either refused, or (when a change wrote what was there already) unharmed.
        let _ = exercise(Aligned::new(&packed).bytes());
    }
}

#[test]
fn a_permutation_entry_outside_the_columns_is_refused_at_the_call() {
    let spec = SegmentSpec {
        permuted: true,
        ..spec(3, 8, 4, None)
    };
    let mut packed = Parts::random(&spec, &mut Random::new(3)).pack(&spec);
    let at = packed.len() - 64;
    packed[at..at + 4].copy_from_slice(&8u32.to_le_bytes());
    let error = exercise(Aligned::new(&packed).bytes()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "permutation of 8 columns: expected entries below the number of columns (entry 0 is 8)"
    );
}

#[test]
fn ids_outside_the_table_are_refused_before_anything_is_written() {
    let packed = Aligned::random(&[spec(3, 8, 4, None), spec(2, 8, 8, None)], 4);
    let tensor = PackedTensor::parse(packed.bytes()).unwrap();
    for id in [-1, 5, i64::MAX, i64::MIN] {
        let mut y = [7.0; 16];
        let error = rows(&tensor, &[4, id], Outputs::F32(&mut y), &Serial).unwrap_err();
        assert_eq!(
            error,
            Int4Error::IdOutOfRange {
                position: 1,
                id,
                n: 5
            }
        );
        assert_eq!(y, [7.0; 16]);
    }
    let mut y = [7.0; 15];
    assert!(rows(&tensor, &[0, 1], Outputs::F32(&mut y), &Serial).is_err());
    rows(&tensor, &[], Outputs::F32(&mut []), &Serial).unwrap();
}
