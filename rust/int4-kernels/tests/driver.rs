//! The driver around the kernels: segments, permutations, bias, strides, types, threads and long M.

mod tensors;
mod typed_buffer;

use half::{bf16, f16};
use int4_kernels::{
    Activations, Dtype, Int4Error, Isa, IsaLevel, IsaSet, Numerics, Outputs, PackedTensor,
    Parallel, ScaleType, ScopedThreads, SegmentSpec, Serial, ZeroKind, linear, reference, rows,
    unpack,
};
use tensors::{Aligned, Random, spec};
use typed_buffer::{Buffer, rounding};

const EPS: f64 = f32::EPSILON as f64;
const INT8: Numerics = Numerics::Int8 { max_chunk: 128 };

struct Case {
    specs: Vec<SegmentSpec>,
    m: usize,
    stride: usize,
    x: Dtype,
    y: Dtype,
    bias: Option<Dtype>,
    numerics: Numerics,
    isa: IsaSet,
}

impl Case {
    fn new(specs: &[SegmentSpec], m: usize) -> Self {
        Self {
            specs: specs.to_vec(),
            m,
            stride: specs[0].k,
            x: Dtype::Bf16,
            y: Dtype::F32,
            bias: None,
            numerics: Numerics::Native,
            isa: IsaSet::detect(),
        }
    }

    /// Runs on one thread and on three, wants the same bits, and compares them with the oracle in the
    /// rows `checked` (the oracle is slow).
    fn check(&self, checked: impl Iterator<Item = usize>) {
        let packed = Aligned::random(&self.specs, 11);
        let tensor = PackedTensor::parse(packed.bytes()).unwrap();
        let (n, k) = (tensor.n(), tensor.k());
        let mut random = Random::new(12);
        let x = Buffer::random(self.x, (self.m - 1) * self.stride + k, &mut random);
        let bias = self.bias.map(|dtype| Buffer::random(dtype, n, &mut random));
        let y = self.run(&tensor, &x, bias.as_ref(), &Serial);
        let again = self.run(&tensor, &x, bias.as_ref(), &ScopedThreads(3));
        assert!(
            y.iter()
                .zip(&again)
                .all(|(a, b)| a.to_bits() == b.to_bits()),
            "threads change bits"
        );

        let wide = x.wide();
        let bias = bias.map(|bias| bias.wide());
        for row in checked {
            let x = &wide[row * self.stride..][..k];
            let mut first = 0;
            for segment in tensor.segments() {
                let spec = segment.spec();
                let one = PackedTensor::parse(segment.bytes()).unwrap();
                let weights = reference::dequantize(&one).unwrap();
                let x: Vec<f64> = match self.numerics {
                    Numerics::Native => x.iter().map(|x| f64::from(*x)).collect(),
                    Numerics::Int8 { max_chunk } => {
                        let order: Vec<usize> = match unpack(segment).unwrap().permutation {
                            Some(permutation) => permutation.iter().map(|j| *j as usize).collect(),
                            None => (0..k).collect(),
                        };
                        let group = spec.group_columns();
                        reference::quantized_activations(x, &order, group, group.min(max_chunk))
                    }
                };
                let expected = reference::linear(&weights, &x, None);
                let most_x = x.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                let rows = weights.magnitudes.chunks(k);
                for ((n, expected), magnitudes) in (first..).zip(expected).zip(rows) {
                    let most_w = magnitudes.iter().fold(0.0f64, |most, w| most.max(*w));
                    let b = bias.as_ref().map_or(0.0, |bias| f64::from(bias[n]));
                    let expected = expected + b;
                    let tolerance = EPS * ((k + 1) as f64 * most_w * most_x + b.abs())
                        + rounding(self.y) * 1.01 * expected.abs();
                    let found = f64::from(y[row * tensor.n() + n]);
                    assert!(
                        (found - expected).abs() <= tolerance,
                        "row {row} n {n}: {found} instead of {expected} (tolerance {tolerance:e})"
                    );
                }
                first += spec.n;
            }
        }
    }

    fn run(
        &self,
        tensor: &PackedTensor<'_>,
        x: &Buffer,
        bias: Option<&Buffer>,
        parallel: &dyn Parallel,
    ) -> Vec<f32> {
        let mut y = Buffer::nan(self.y, self.m * tensor.n());
        linear(
            tensor,
            x.view(),
            self.stride,
            self.m,
            bias.map(Buffer::view),
            y.view_mut(),
            self.numerics,
            self.isa,
            parallel,
        )
        .unwrap();
        y.wide()
    }
}

/// A fused layer of everything: bits, groups, zero kinds, permutations, short panels.
fn mixed(k: usize) -> Vec<SegmentSpec> {
    vec![
        spec(35, k, 4, Some(32)),
        SegmentSpec {
            permuted: true,
            zero_kind: ZeroKind::U8,
            ..spec(17, k, 4, Some(32))
        },
        SegmentSpec {
            scale_type: ScaleType::Bf16,
            zero_kind: ZeroKind::Offset,
            ..spec(1, k, 8, Some(24))
        },
        SegmentSpec {
            permuted: true,
            ..spec(64, k, 8, None)
        },
        spec(20, k, 4, None),
        spec(16, k, 4, Some(128)),
    ]
}

fn levels() -> impl Iterator<Item = IsaSet> {
    let machine = IsaSet::detect();
    IsaLevel::ALL
        .into_iter()
        .filter_map(move |level| machine.forced_to(level).ok())
}

#[test]
fn fused_segments_of_every_kind_at_every_level() {
    for isa in levels() {
        for numerics in [Numerics::Native, INT8, Numerics::Int8 { max_chunk: 32 }] {
            for k in [1, 100, 257] {
                for m in [1, 2, 9, 33] {
                    let case = Case {
                        numerics,
                        isa,
                        bias: Some(Dtype::Bf16),
                        ..Case::new(&mixed(k), m)
                    };
                    case.check(0..m);
                }
            }
        }
    }
}

#[test]
fn every_pair_of_types_with_every_bias() {
    let all = [Dtype::Bf16, Dtype::F16, Dtype::F32];
    for x in all {
        for y in all {
            for bias in [None, Some(Dtype::Bf16), Some(Dtype::F16), Some(Dtype::F32)] {
                for numerics in [Numerics::Native, INT8] {
                    let specs = [spec(35, 72, 4, Some(32)), spec(16, 72, 8, None)];
                    let case = Case {
                        x,
                        y,
                        bias,
                        numerics,
                        ..Case::new(&specs, 3)
                    };
                    case.check(0..3);
                }
            }
        }
    }
}

#[test]
fn rows_of_x_may_be_strided_or_the_same() {
    let specs = [spec(17, 40, 4, Some(8))];
    for stride in [40, 41, 100, 3, 0] {
        for m in [1, 5, 20] {
            Case {
                stride,
                ..Case::new(&specs, m)
            }
            .check(0..m);
        }
    }
}

/// Several blocks of M, parts of M and ranges of panels; K is long enough that a block is short.
#[test]
fn long_m_is_cut_into_blocks() {
    for numerics in [Numerics::Native, INT8] {
        for (m, k) in [(257, 3000), (1000, 1024), (4096, 136)] {
            let specs = [
                SegmentSpec {
                    zero_kind: ZeroKind::U8,
                    ..spec(40, k, 4, Some(128))
                },
                SegmentSpec {
                    permuted: true,
                    ..spec(19, k, 8, None)
                },
            ];
            let case = Case {
                numerics,
                ..Case::new(&specs, m)
            };
            case.check((0..m).step_by(m / 7).chain([m - 1]));
        }
    }
}

#[test]
fn a_wide_decode_row_is_shared_by_the_team() {
    // Enough bytes that the panels of both segments are cut into many ranges.
    let specs = [spec(3000, 576, 4, Some(32)), spec(1001, 576, 8, Some(32))];
    Case::new(&specs, 1).check(0..1);
    Case {
        numerics: INT8,
        ..Case::new(&specs, 2)
    }
    .check(0..2);
}

#[test]
fn all_zero_activations_give_the_bias() {
    let specs = mixed(100);
    let packed = Aligned::random(&specs, 13);
    let tensor = PackedTensor::parse(packed.bytes()).unwrap();
    let x = vec![0.0f32; 100];
    let bias: Vec<f32> = (0..tensor.n()).map(|n| n as f32 + 0.5).collect();
    for numerics in [Numerics::Native, INT8] {
        let mut y = vec![f32::NAN; tensor.n()];
        let (x, out) = (Activations::F32(&x), Outputs::F32(&mut y));
        let b = Some(Activations::F32(&bias));
        linear(
            &tensor,
            x,
            100,
            1,
            b,
            out,
            numerics,
            IsaSet::detect(),
            &Serial,
        )
        .unwrap();
        assert_eq!(y, bias);
    }
}

#[test]
fn a_call_tells_the_kernels_of_all_its_segments() {
    let named = |specs: &[SegmentSpec], m: usize| -> Vec<&str> {
        let packed = Aligned::random(specs, 17);
        let tensor = PackedTensor::parse(packed.bytes()).unwrap();
        let x = vec![0.0f32; 32 * m];
        let mut y = vec![0.0; m * tensor.n()];
        linear(
            &tensor,
            Activations::F32(&x),
            32,
            m,
            None,
            Outputs::F32(&mut y),
            INT8,
            IsaSet::scalar(),
            &Serial,
        )
        .unwrap()
        .iter()
        .map(|kernel| kernel.name)
        .collect()
    };
    let (four, eight) = (spec(5, 32, 4, None), spec(7, 32, 8, None));
    assert_eq!(named(&[four], 1), ["scalar-int8q4"]);
    assert_eq!(named(&[four, four, four], 2), ["scalar-int8q4"]);
    assert_eq!(
        named(&[eight, four, eight], 2),
        ["scalar-int8q8", "scalar-int8q4"]
    );
    assert!(named(&[four], 0).is_empty());
}

/// The loops that prepare activations are compiled for several register widths; scalar kernels read
/// the result of each, so the bits must agree.
#[test]
fn levels_agree_on_what_they_quantize() {
    let specs = [spec(33, 1000, 4, Some(128))];
    let packed = Aligned::random(&specs, 14);
    let tensor = PackedTensor::parse(packed.bytes()).unwrap();
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let x = Buffer::random(dtype, 1000, &mut Random::new(15));
        let results: Vec<Vec<f32>> = levels()
            .map(|isa| {
                let mut y = vec![f32::NAN; 33];
                let out = Outputs::F32(&mut y);
                linear(&tensor, x.view(), 1000, 1, None, out, INT8, isa, &Serial).unwrap();
                y
            })
            .collect();
        for other in &results[1..] {
            for (a, b) in results[0].iter().zip(other) {
                // Same integers and scales; only the order of adding eight groups may differ.
                assert!(
                    (a - b).abs() <= 1e-5 * a.abs().max(1.0),
                    "{dtype:?}: {a} and {b}"
                );
            }
        }
    }
}

#[test]
fn calls_that_do_not_fit_are_refused_and_write_nothing() {
    let packed = Aligned::random(&[spec(5, 16, 4, None)], 16);
    let tensor = PackedTensor::parse(packed.bytes()).unwrap();
    let x = [1.0f32; 32];
    let call = |x: &[f32], stride, m, bias: Option<&[f32]>, out: &mut [f32], numerics, isa| {
        linear(
            &tensor,
            Activations::F32(x),
            stride,
            m,
            bias.map(Activations::F32),
            Outputs::F32(out),
            numerics,
            isa,
            &Serial,
        )
        .map(drop)
    };
    let isa = IsaSet::detect();
    let native = Numerics::Native;
    let mut y = [7.0f32; 10];
    let wrong = |what, expected, found| {
        Err(Int4Error::WrongLength {
            what,
            expected,
            found,
        })
    };
    assert_eq!(
        call(&x[..31], 16, 2, None, &mut y, native, isa),
        wrong("activations", 32, 31)
    );
    assert_eq!(
        call(&x, 17, 2, None, &mut y, native, isa),
        wrong("activations", 33, 32)
    );
    assert_eq!(
        call(&x, usize::MAX, 2, None, &mut y, native, isa),
        wrong("activations", usize::MAX, 32)
    );
    assert_eq!(
        call(&x, 16, 2, None, &mut y[..9], native, isa),
        wrong("output", 10, 9)
    );
    assert_eq!(
        call(&x, 16, 2, Some(&[0.0; 4]), &mut y, native, isa),
        wrong("bias", 5, 4)
    );
    for max_chunk in [0, 12, 32_776] {
        assert_eq!(
            call(&x, 16, 2, None, &mut y, Numerics::Int8 { max_chunk }, isa),
            Err(Int4Error::InvalidChunk { found: max_chunk })
        );
    }
    if let Some(missing) = IsaSet::of(&Isa::ALL).first_missing_in(isa) {
        assert_eq!(
            call(&x, 16, 2, None, &mut y, native, IsaSet::of(&Isa::ALL)),
            Err(Int4Error::UnsupportedIsa { missing })
        );
    }
    assert_eq!(y, [7.0; 10]);
    assert!(call(&[], 16, 0, None, &mut [], native, isa).is_ok());
}

#[test]
fn rows_round_once_and_on_every_thread() {
    let packed = Aligned::random(&mixed(300), 17);
    let tensor = PackedTensor::parse(packed.bytes()).unwrap();
    let ids: Vec<i64> = (0..500).map(|at| (at * 37) % tensor.n() as i64).collect();
    let mut wide = vec![f32::NAN; ids.len() * 300];
    rows(&tensor, &ids, Outputs::F32(&mut wide), &Serial).unwrap();
    let mut bf = vec![bf16::NAN; wide.len()];
    rows(&tensor, &ids, Outputs::Bf16(&mut bf), &ScopedThreads(3)).unwrap();
    let mut half = vec![f16::NAN; wide.len()];
    rows(&tensor, &ids, Outputs::F16(&mut half), &ScopedThreads(2)).unwrap();
    for ((wide, bf), half) in wide.iter().zip(bf).zip(half) {
        assert_eq!(bf16::from_f32(*wide), bf);
        assert_eq!(f16::from_f32(*wide), half);
    }
}
