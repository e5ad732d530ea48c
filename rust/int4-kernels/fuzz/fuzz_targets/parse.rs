//! The reader of the packed layout. Bytes of any kind, at any address: parsing, unpacking, looking up rows and
//! multiplying end with a stated error or with a result, and what unpacks packs again into the same.
//!
//! Half of the inputs are the bytes themselves; the other half are up to three packed segments with some bytes
//! overwritten, some cut off.

#![no_main]

mod exact;
mod segment;

use exact::{Exact, multiply};
use int4_kernels::{Int4Error, PackedTensor, unpack};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use segment::{any_content, any_spec, pack};

/// Bytes of a tensor at most.
const MOST_BYTES: usize = 1 << 15;

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let skip = usize::from(choice >> 1) % 9;
    if choice % 2 == 0 {
        read(&Exact::new(rest, skip));
    } else if let Ok(bytes) = overwritten(&mut Unstructured::new(rest)) {
        read(&Exact::new(&bytes, skip));
    }
});

fn overwritten(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..input.int_in_range(1..=3)? {
        let spec = any_spec(input)?;
        let Ok(size) = spec.packed_bytes() else {
            continue;
        };
        if size > MOST_BYTES {
            continue;
        }
        let start = bytes.len();
        bytes.resize(start + size, 0);
        let content = any_content(&spec, input)?;
        pack(&mut bytes[start..], &spec, &content).expect("a valid specification and its content");
    }
    if bytes.is_empty() {
        return Ok(bytes);
    }
    for _ in 0..input.int_in_range(0..=6)? {
        let at = if input.arbitrary()? {
            input.choose_index(bytes.len().min(128))?
        } else {
            input.choose_index(bytes.len())?
        };
        bytes[at] = input.arbitrary()?;
    }
    if input.ratio(1, 8)? {
        bytes.truncate(input.choose_index(bytes.len())?);
    }
    Ok(bytes)
}

fn read(exact: &Exact) {
    let bytes = exact.bytes();
    let Ok(tensor) = PackedTensor::parse(bytes) else {
        return;
    };
    assert_eq!(
        tensor
            .segments()
            .iter()
            .map(|s| s.bytes().len())
            .sum::<usize>(),
        bytes.len()
    );
    let is_intact = tensor.verify().is_ok();
    for segment in tensor.segments() {
        match unpack(segment) {
            Ok(content) => {
                let mut again = vec![0xee; segment.spec().packed_bytes().expect("it was parsed")];
                match pack(&mut again, segment.spec(), &content) {
                    Ok(()) => {
                        let again = Exact::new(&again, 0);
                        let parsed = PackedTensor::parse(again.bytes()).expect("just packed");
                        parsed.verify().expect("just packed");
                        assert_eq!(parsed.segments()[0].spec(), segment.spec());
                        assert_eq!(unpack(&parsed.segments()[0]), Ok(content));
                    }
                    // A column that is stored twice: reading it is harmless, and checksums or `verify` tell.
                    Err(Int4Error::InvalidPermutation { .. }) if !is_intact => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Err(Int4Error::Misaligned { .. }) => {
                assert_ne!(bytes.as_ptr().addr() % 4, 0);
            }
            Err(Int4Error::InvalidPermutation { .. }) => assert!(!is_intact),
            Err(error) => panic!("{error}"),
        }
    }
    match multiply(&tensor) {
        Ok(()) => {}
        Err(Int4Error::Misaligned { .. } | Int4Error::InvalidPermutation { .. }) => {
            assert!(
                tensor
                    .segments()
                    .iter()
                    .any(|segment| unpack(segment).is_err())
            );
        }
        Err(error) => panic!("{error}"),
    }
}
