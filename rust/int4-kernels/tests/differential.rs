//! Every kernel in the table against the oracle, over the shapes around the edges of panels, blocks,
//! groups, strips and tiles. Tile kernels run on emulated tiles too, on every machine.
//!
//! Tolerances, with eps = 2^-23 and w, x as the oracle sees them:
//! - float forms: `eps * (K + 1) * max|w| * max|x|`;
//! - int8 and fixed point: the oracle gets the quantized activations, products are exact, and what is left is
//!   the fp32 arithmetic of scales: `eps * (chunks + 4) * Σ|w||x|`. Fixed point is off by at most 2^-22 of a
//!   chunk's largest activation before that.
//!
//! `|w|` is the largest magnitude among the terms of the kernel formula (`s*q`, `s*z`, `s*c`, `m`), not
//! the weight itself: `s*(q - z)` may cancel, and the error does not.

mod tensors;

use half::bf16;
use int4_kernels::dispatch::{EMULATED, KERNELS, by_name};
use int4_kernels::{
    ActivationForm, Activations, Isa, IsaLevel, IsaSet, Kernel, Outputs, PackedTensor, ScaleType,
    SegmentSpec, Serial, ZeroKind, linear_with_kernel, reference,
};
use tensors::{Aligned, Random, spec};

const GROUPS: [Option<usize>; 5] = [Some(8), Some(32), Some(128), None, Some(24)];
const N: [usize; 5] = [1, 15, 16, 17, 35];
const K: [usize; 7] = [1, 7, 8, 9, 40, 100, 256];
/// Rows of one tile of 16, of two, and of more than a strip of 64.
const TILE_ROWS: [usize; 4] = [1, 8, 17, 65];
const EPS: f64 = f32::EPSILON as f64;

/// Columns that share a scale in fixed point.
const FIXED_POINT_CHUNK: usize = 128;

/// The specifications of the matrix for one width of codes.
fn specs(bits: u8) -> Vec<SegmentSpec> {
    let mut specs = Vec::new();
    for zero_kind in [ZeroKind::None, ZeroKind::U8, ZeroKind::Offset] {
        for scale_type in [ScaleType::F16, ScaleType::Bf16] {
            for group_size in GROUPS {
                for n in N {
                    for k in K {
                        let base = spec(n, k, bits, group_size);
                        specs.push(SegmentSpec {
                            zero_kind,
                            scale_type,
                            ..base
                        });
                    }
                }
            }
        }
    }
    specs
}

/// Numbers of rows to call a kernel with: each that a strip of vectors may have, or those around tiles.
fn row_counts(kernel: &Kernel) -> Vec<usize> {
    if kernel.max_rows <= 8 {
        (1..=kernel.max_rows).collect()
    } else {
        TILE_ROWS.to_vec()
    }
}

/// Every kernel that this machine can run, those on emulated tiles included.
fn runnable() -> impl Iterator<Item = &'static Kernel> {
    let machine = IsaSet::detect();
    KERNELS
        .iter()
        .chain(EMULATED.into_iter().flatten())
        .filter(move |kernel| machine.contains(kernel.isa))
}

/// The oracle's outputs, and how far a kernel may be from each.
struct Expected {
    y: Vec<f64>,
    tolerance: Vec<f64>,
}

fn expect(
    form: ActivationForm,
    spec: &SegmentSpec,
    tensor: &PackedTensor<'_>,
    x: &[f32],
    max_chunk: usize,
) -> Expected {
    let weights = reference::dequantize(tensor).unwrap();
    let group = spec.group_columns();
    let max_chunk = if form == ActivationForm::I24 {
        FIXED_POINT_CHUNK
    } else {
        max_chunk
    };
    let x: Vec<f64> = match form {
        ActivationForm::Int8 => {
            let order: Vec<usize> = (0..spec.k).collect();
            reference::quantized_activations(x, &order, group, group.min(max_chunk))
        }
        ActivationForm::I24 => {
            reference::fixed_point_activations(x, spec.k, group, group.min(max_chunk))
        }
        ActivationForm::F32 | ActivationForm::Bf16Pairs => {
            x.iter().map(|x| f64::from(*x)).collect()
        }
    };
    let chunks = spec.groups() * spec.group_columns().div_ceil(max_chunk);
    let mut tolerance = Vec::new();
    for x in x.chunks(spec.k) {
        for magnitudes in weights.magnitudes.chunks(spec.k) {
            tolerance.push(
                if matches!(form, ActivationForm::Int8 | ActivationForm::I24) {
                    let sum: f64 = magnitudes.iter().zip(x).map(|(w, x)| w * x.abs()).sum();
                    EPS * (chunks + 4) as f64 * sum
                } else {
                    let most =
                        |values: &[f64]| values.iter().fold(0.0f64, |most, v| most.max(v.abs()));
                    EPS * (spec.k + 1) as f64 * most(magnitudes) * most(x)
                },
            );
        }
    }
    Expected {
        y: reference::linear(&weights, &x, None),
        tolerance,
    }
}

/// bf16 values, which the float forms take without a rounding of their own. `wild` ones span 26 binades and
/// hold outliers.
fn activations(random: &mut Random, len: usize, wild: bool) -> Vec<bf16> {
    let mut x: Vec<bf16> = (0..len)
        .map(|_| {
            let small = if wild {
                (-26.0 * random.unit().abs()).exp2()
            } else {
                1.0
            };
            bf16::from_f32(3.0 * random.unit() * small)
        })
        .collect();
    if wild {
        for x in x.iter_mut().skip(3).step_by(257) {
            *x = bf16::from_f32(32_768.0 * random.unit());
        }
    }
    x
}

fn check_kernel(kernel: &Kernel, max_chunk: usize) {
    let mut cases = 0;
    let row_counts = row_counts(kernel);
    let most_rows = row_counts.iter().copied().max().unwrap_or(0);
    for (seed, spec) in specs(kernel.bits).iter().enumerate() {
        let packed = Aligned::random(&[*spec], seed as u64);
        let tensor = PackedTensor::parse(packed.bytes()).unwrap();
        // The float forms lose the small ones in sums that hold the large ones, in an order of their own.
        let wild = seed % 2 == 1 && matches!(kernel.form, ActivationForm::I24);
        let x = activations(&mut Random::new(!(seed as u64)), most_rows * spec.k, wild);
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let expected = expect(kernel.form, spec, &tensor, &wide, max_chunk);
        for m in row_counts.iter().copied() {
            let mut y = vec![f32::NAN; m * spec.n];
            linear_with_kernel(
                kernel.name,
                &tensor,
                Activations::Bf16(&x[..m * spec.k]),
                spec.k,
                m,
                None,
                Outputs::F32(&mut y),
                max_chunk,
                &Serial,
            )
            .unwrap();
            for (at, y) in y.iter().enumerate() {
                let error = (f64::from(*y) - expected.y[at]).abs();
                // Written so that NaN fails.
                assert!(
                    error <= expected.tolerance[at],
                    "{} {spec:?} seed {seed} m={m} chunk {max_chunk} row {} n {}: {y} instead of {}, \
                     error {error:e} over {:e}",
                    kernel.name,
                    at / spec.n,
                    at % spec.n,
                    expected.y[at],
                    expected.tolerance[at],
                );
            }
            cases += 1;
        }
    }
    eprintln!("{}: {cases} cases", kernel.name);
}

/// Runs the matrix over the kernels of one instruction set; one that the machine lacks is counted.
fn check_isa(isa: Isa) {
    let machine = IsaSet::detect();
    let mut skipped = 0;
    for kernel in KERNELS.iter().filter(|kernel| kernel.isa == isa) {
        if !machine.contains(kernel.isa) {
            eprintln!("skipped (this machine lacks {isa}): {}", kernel.name);
            skipped += 1;
            continue;
        }
        check_kernel(kernel, 128);
        if kernel.form == ActivationForm::Int8 {
            check_kernel(kernel, 32);
        }
    }
    eprintln!("{isa}: {skipped} kernels skipped");
}

#[test]
fn scalar_kernels() {
    check_isa(Isa::Scalar);
}

#[test]
fn avx2_kernels() {
    check_isa(Isa::Avx2);
}

#[test]
fn avx_vnni_kernels() {
    check_isa(Isa::AvxVnni);
}

#[test]
fn avx512_kernels() {
    check_isa(Isa::Avx512);
}

#[test]
fn avx512_vnni_kernels() {
    check_isa(Isa::Avx512Vnni);
}

#[test]
fn avx512_bf16_kernels() {
    check_isa(Isa::Avx512Bf16);
}

#[test]
fn amx_int8_kernels() {
    check_isa(Isa::AmxInt8);
}

#[test]
fn amx_bf16_kernels() {
    check_isa(Isa::AmxBf16);
}

/// The same kernels without the instructions. Int8 once more with short chunks, as above.
fn check_emulated(form: ActivationForm) {
    let mut checked = 0;
    for kernel in EMULATED.into_iter().flatten() {
        if kernel.form == form && IsaSet::detect().contains(kernel.isa) {
            check_kernel(kernel, 128);
            if form == ActivationForm::Int8 {
                check_kernel(kernel, 32);
            }
            checked += 1;
        }
    }
    // At least those whose other loops are portable, for 4 and for 8 bit.
    assert!(checked >= 2, "{checked}");
}

#[test]
fn emulated_amx_int8_kernels() {
    check_emulated(ActivationForm::Int8);
}

#[test]
fn emulated_amx_bf16_kernels() {
    check_emulated(ActivationForm::Bf16Pairs);
}

#[test]
fn the_tests_above_leave_no_kernel_out() {
    let tested = Isa::ALL
        .iter()
        .map(|isa| KERNELS.iter().filter(|row| row.isa == *isa).count());
    assert_eq!(tested.sum::<usize>(), KERNELS.len());
    assert_eq!(Isa::ALL.len(), 8);
}

/// What the machine lacks is not tested on it: said by name, and refused where `tools/test-isa` has promised a
/// machine that has it.
#[test]
fn kernels_that_this_machine_cannot_run_are_counted() {
    let machine = IsaSet::detect();
    let skipped: Vec<&str> = KERNELS
        .iter()
        .filter(|kernel| !machine.contains(kernel.isa))
        .map(|kernel| kernel.name)
        .collect();
    eprintln!(
        "skipped on this machine ({}): {} of {} kernels: {}",
        machine.level(),
        skipped.len(),
        KERNELS.len(),
        skipped.join(", ")
    );
    let emulated = EMULATED.into_iter().flatten().map(|kernel| kernel.name);
    let (emulated, real): (Vec<&str>, Vec<&str>) = runnable()
        .map(|kernel| kernel.name)
        .partition(|name| emulated.clone().any(|other| other == *name));
    assert_eq!(real.len() + skipped.len(), KERNELS.len());
    assert!(emulated.len() >= 4, "{emulated:?}");
    if let Some(promised) = option_env!("KERNEL_TESTS_ISA") {
        let promised: IsaLevel = promised.parse().unwrap();
        assert!(
            machine.forced_to(promised).is_ok(),
            "KERNEL_TESTS_ISA={promised}, and this machine has {}",
            machine.level()
        );
        let lacking: Vec<&str> = KERNELS
            .iter()
            .filter(|kernel| kernel.isa.level() == promised && !machine.contains(kernel.isa))
            .map(|kernel| kernel.name)
            .collect();
        assert!(
            lacking.is_empty(),
            "KERNEL_TESTS_ISA={promised}, and this machine cannot run {lacking:?}"
        );
    }
}

/// Two encodings of one instruction: the sums are the same integers, and what follows is rounded alike.
#[test]
fn both_widths_of_vnni_give_the_same_bits() {
    let machine = IsaSet::detect();
    for isa in [Isa::AvxVnni, Isa::Avx512Vnni] {
        if !machine.contains(isa) {
            eprintln!("skipped (this machine lacks {isa}): both_widths_of_vnni_give_the_same_bits");
            return;
        }
    }
    let narrow: Vec<&Kernel> = runnable().filter(|row| row.isa == Isa::AvxVnni).collect();
    assert_eq!(narrow.len(), 4);
    for narrow in narrow {
        let same_as = |row: &&Kernel| (row.form, row.bits) == (narrow.form, narrow.bits);
        let wide = runnable()
            .filter(|row| row.isa == Isa::Avx512Vnni)
            .find(same_as)
            .unwrap();
        for (seed, spec) in specs(narrow.bits)
            .iter()
            .enumerate()
            .filter(|(_, spec)| spec.n == 17)
        {
            let packed = Aligned::random(&[*spec], seed as u64);
            let tensor = PackedTensor::parse(packed.bytes()).unwrap();
            let x = activations(&mut Random::new(seed as u64), 11 * spec.k, seed % 2 == 1);
            for m in [1, 11] {
                let x = &x[..m * spec.k];
                let [found, expected] = [narrow, wide].map(|kernel| run(kernel, &tensor, x, m));
                let mut pairs = found.iter().zip(&expected);
                assert!(
                    pairs.all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{} {spec:?} m={m}",
                    narrow.name
                );
            }
        }
    }
}

/// From some number of rows on tiles take over from vectors. With int8 activations nobody can tell: the sums
/// are the same integers, and what follows is rounded alike.
#[test]
fn int8_tiles_give_the_bits_of_int8_vectors() {
    if !IsaSet::detect().contains(Isa::Avx512Vnni) {
        eprintln!(
            "skipped (this machine lacks avx512_vnni): int8_tiles_give_the_bits_of_int8_vectors"
        );
        return;
    }
    for (bits, vectors) in [(4, "avx512_vnni-int8q4"), (8, "avx512_vnni-int8q8")] {
        let vectors = by_name(vectors).unwrap();
        let tiles: Vec<&Kernel> = runnable()
            .filter(|row| row.max_rows > vectors.max_rows && row.bits == bits)
            .filter(|row| row.form == ActivationForm::Int8)
            .collect();
        assert!(tiles.len() >= 2);
        for (seed, spec) in specs(bits)
            .iter()
            .enumerate()
            .filter(|(_, spec)| spec.n == 17)
        {
            let packed = Aligned::random(&[*spec], seed as u64);
            let tensor = PackedTensor::parse(packed.bytes()).unwrap();
            let x = activations(&mut Random::new(seed as u64), 37 * spec.k, false);
            for max_chunk in [32, 128] {
                let expected = run_chunked(vectors, &tensor, &x, 37, max_chunk);
                for kernel in &tiles {
                    let found = run_chunked(kernel, &tensor, &x, 37, max_chunk);
                    let same = found.iter().zip(&expected);
                    assert!(
                        same.clone().all(|(a, b)| a.to_bits() == b.to_bits()),
                        "{} {spec:?} chunk {max_chunk}",
                        kernel.name
                    );
                }
            }
        }
    }
}

/// A row of a batch has the bits that it has alone, whichever tile and place in it the row comes to.
#[test]
fn rows_in_tiles_do_not_depend_on_each_other() {
    for kernel in runnable().filter(|row| row.max_rows > 8) {
        for spec in [
            spec(19, 300, kernel.bits, Some(32)),
            spec(19, 300, kernel.bits, None),
        ] {
            let packed = Aligned::random(&[spec], 9);
            let tensor = PackedTensor::parse(packed.bytes()).unwrap();
            let x = activations(&mut Random::new(10), 90 * spec.k, false);
            let alone: Vec<f32> = x
                .chunks(spec.k)
                .flat_map(|x| run(kernel, &tensor, x, 1))
                .collect();
            for m in [2, 15, 16, 17, 31, 50, 64, 65, 90] {
                let y = run(kernel, &tensor, &x[..m * spec.k], m);
                for (at, (y, alone)) in y.iter().zip(&alone).enumerate() {
                    let (row, n) = (at / spec.n, at % spec.n);
                    assert_eq!(
                        y.to_bits(),
                        alone.to_bits(),
                        "{} m={m} row {row} n {n}",
                        kernel.name
                    );
                }
            }
        }
    }
}

/// What the integer forms give for a row does not depend on the rows beside it, bit for bit.
#[test]
fn integer_forms_give_a_row_the_same_in_every_batch() {
    const MOST_ROWS: usize = 8;
    for kernel in runnable() {
        if !matches!(kernel.form, ActivationForm::Int8 | ActivationForm::I24) {
            continue;
        }
        let spec = spec(35, 328, kernel.bits, Some(32));
        let packed = Aligned::random(&[spec], 9);
        let tensor = PackedTensor::parse(packed.bytes()).unwrap();
        let x = activations(&mut Random::new(10), MOST_ROWS * spec.k, true);
        let all = run(kernel, &tensor, &x, MOST_ROWS);
        for m in 1..MOST_ROWS {
            assert_eq!(
                run(kernel, &tensor, &x[..m * spec.k], m),
                all[..m * spec.n],
                "{}",
                kernel.name
            );
        }
    }
}

/// NaN and infinities in one row poison that row and no other, in every form.
#[test]
fn non_finite_activations_never_give_a_plausible_number() {
    for kernel in runnable() {
        for zero_kind in [ZeroKind::None, ZeroKind::U8, ZeroKind::Offset] {
            let spec = SegmentSpec {
                zero_kind,
                ..spec(17, 72, kernel.bits, Some(32))
            };
            let packed = Aligned::random(&[spec], 5);
            let tensor = PackedTensor::parse(packed.bytes()).unwrap();
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for column in [0, 33, 71] {
                    let mut x = activations(&mut Random::new(6), 3 * spec.k, false);
                    let clean = run(kernel, &tensor, &x, 3);
                    x[spec.k + column] = bf16::from_f32(bad);
                    let y = run(kernel, &tensor, &x, 3);
                    assert!(clean.iter().all(|y| y.is_finite()));
                    for (n, (y, clean)) in y.iter().zip(&clean).enumerate() {
                        if n / spec.n == 1 {
                            assert!(!y.is_finite(), "{} {zero_kind:?} {bad} n={n}", kernel.name);
                        } else {
                            assert_eq!(y, clean, "{} {zero_kind:?} {bad} n={n}", kernel.name);
                        }
                    }
                }
            }
        }
    }
}

fn run(kernel: &Kernel, tensor: &PackedTensor<'_>, x: &[bf16], m: usize) -> Vec<f32> {
    run_chunked(kernel, tensor, x, m, 128)
}

fn run_chunked(
    kernel: &Kernel,
    tensor: &PackedTensor<'_>,
    x: &[bf16],
    m: usize,
    max_chunk: usize,
) -> Vec<f32> {
    let mut y = vec![f32::NAN; m * tensor.n()];
    let (x, out) = (Activations::Bf16(x), Outputs::F32(&mut y));
    linear_with_kernel(
        kernel.name,
        tensor,
        x,
        tensor.k(),
        m,
        None,
        out,
        max_chunk,
        &Serial,
    )
    .unwrap();
    y
}

/// Codes, zero-points and activations at their ends, K long enough that narrow accumulators would
/// saturate or wrap: 16-bit sums of byte pairs on AVX2, 32-bit sums of a long chunk.
#[test]
fn extreme_codes_do_not_saturate() {
    for bits in [4, 8] {
        let highest = if bits == 4 { 15 } else { 255 };
        for (code, zero, sign) in [
            (highest, 0, 1.0),
            (0, 255, 1.0),
            (highest, 0, -1.0),
            (0, 0, -1.0),
        ] {
            let spec = SegmentSpec {
                zero_kind: ZeroKind::U8,
                ..spec(2, 40_000, bits, None)
            };
            let mut parts = tensors::Parts::random(&spec, &mut Random::new(7));
            parts.codes.fill(code);
            parts.zeros.fill(zero);
            let packed = Aligned::new(&parts.pack(&spec));
            let tensor = PackedTensor::parse(packed.bytes()).unwrap();
            let x = vec![bf16::from_f32(sign); spec.k];
            let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
            for kernel in runnable().filter(|row| row.bits == bits) {
                for max_chunk in [128, 32_768] {
                    let expected = expect(kernel.form, &spec, &tensor, &wide, max_chunk);
                    let mut y = vec![f32::NAN; spec.n];
                    let (x, out) = (Activations::Bf16(&x), Outputs::F32(&mut y));
                    linear_with_kernel(
                        kernel.name,
                        &tensor,
                        x,
                        spec.k,
                        1,
                        None,
                        out,
                        max_chunk,
                        &Serial,
                    )
                    .unwrap();
                    for (n, y) in y.iter().enumerate() {
                        let error = (f64::from(*y) - expected.y[n]).abs();
                        assert!(
                            error <= expected.tolerance[n],
                            "{} code {code} zero {zero} x {sign} chunk {max_chunk}: {y} instead of {}",
                            kernel.name,
                            expected.y[n]
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_kernel_that_does_not_fit_is_refused() {
    let packed = Aligned::random(&[spec(3, 8, 4, None), spec(3, 8, 8, None)], 8);
    let tensor = PackedTensor::parse(packed.bytes()).unwrap();
    assert!(by_name("scalar-f32q4").is_some());
    for name in ["scalar-f32q4", "scalar-f32q8", "nonsense"] {
        let mut y = [7.0; 6];
        let (x, out) = (Activations::F32(&[1.0; 8]), Outputs::F32(&mut y));
        let error =
            linear_with_kernel(name, &tensor, x, 8, 1, None, out, 128, &Serial).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(y, [7.0; 6]);
    }
}
