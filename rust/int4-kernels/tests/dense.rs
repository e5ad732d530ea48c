//! Unquantized weights: every kernel of the dense table against an oracle in f64, and the driver around it.
//!
//! Tolerance of an output, with eps = 2^-23: `eps * (K + 1) * max|w| * max|x|`, and what rounding to the
//! output's type adds.

mod tensors;
mod typed_buffer;

use int4_kernels::dense::dispatch::{by_name, select};
use int4_kernels::{
    Activations, DENSE_KERNELS, DenseKernel, DenseWeight, Dtype, Int4Error, Isa, IsaLevel, IsaSet,
    Outputs, Parallel, ScopedThreads, Serial, dense_linear, dense_linear_with_kernel, dense_rows,
};
use tensors::Random;
use typed_buffer::{Buffer, rounding};

const EPS: f64 = f32::EPSILON as f64;
const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];
/// Around a block of four rows and a panel of sixteen.
const N: [usize; 8] = [1, 3, 4, 5, 15, 16, 17, 35];
/// Around registers and cache lines of every element.
const K: [usize; 13] = [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 100, 257];

/// A weight `[n][k]` and activations `[m][k]` with their strides; gaps are NaN, so that no kernel may use them.
struct Case {
    n: usize,
    k: usize,
    m: usize,
    stride: usize,
    x_stride: usize,
    w: Buffer,
    x: Buffer,
}

impl Case {
    fn new(shape: [usize; 3], gaps: [usize; 2], w: Dtype, x: Dtype, seed: u64) -> Self {
        let [n, k, m] = shape;
        let mut random = Random::new(seed);
        let mut rows = |dtype, rows: usize, stride: usize| {
            let random = &mut random;
            let values = (0..rows * stride).map(move |at| {
                if at % stride < k {
                    2.0 * random.unit()
                } else {
                    f32::NAN
                }
            });
            Buffer::new(dtype, values)
        };
        let (stride, x_stride) = (k + gaps[0], k + gaps[1]);
        Self {
            n,
            k,
            m,
            stride,
            x_stride,
            w: rows(w, n, stride),
            x: rows(x, m, x_stride),
        }
    }

    fn weight(&self) -> DenseWeight<'_> {
        DenseWeight::new(self.w.view(), self.stride, self.n, self.k).unwrap()
    }

    /// With a kernel by name, into fp32.
    fn run(&self, kernel: &DenseKernel, m: usize, parallel: &dyn Parallel) -> Vec<f32> {
        let mut y = vec![f32::NAN; m * self.n];
        dense_linear_with_kernel(
            kernel.name,
            &self.weight(),
            self.x.view(),
            self.x_stride,
            m,
            None,
            Outputs::F32(&mut y),
            parallel,
        )
        .unwrap();
        y
    }

    /// Expected value and tolerance of an output, without bias and rounding.
    fn expected(&self, w: &[f32], x: &[f32], row: usize, n: usize) -> (f64, f64) {
        let w = &w[n * self.stride..][..self.k];
        let x = &x[row * self.x_stride..][..self.k];
        let dot = w
            .iter()
            .zip(x)
            .map(|(w, x)| f64::from(*w) * f64::from(*x))
            .sum();
        let most = |values: &[f32]| {
            values
                .iter()
                .fold(0.0f64, |most, v| most.max(f64::from(v.abs())))
        };
        (dot, EPS * (self.k + 1) as f64 * most(w) * most(x))
    }

    fn check(&self, y: &[f32], rows: impl Iterator<Item = usize>, what: &str) {
        let (w, x) = (self.w.wide(), self.x.wide());
        for row in rows {
            for n in 0..self.n {
                let (expected, tolerance) = self.expected(&w, &x, row, n);
                let found = f64::from(y[row * self.n + n]);
                // Written so that NaN fails.
                assert!(
                    (found - expected).abs() <= tolerance,
                    "{what} n={} k={} m={} row {row} n {n}: {found} instead of {expected} (tolerance \
                     {tolerance:e})",
                    self.n,
                    self.k,
                    self.m,
                );
            }
        }
    }
}

/// Each kernel of this machine with every pair of types that it takes.
fn each_kernel(mut f: impl FnMut(&'static DenseKernel, Dtype, Dtype)) {
    let machine = IsaSet::detect();
    let mut checked = 0;
    for kernel in DENSE_KERNELS {
        if !machine.contains(kernel.isa) {
            eprintln!(
                "skipped (this machine lacks {}): {}",
                kernel.isa, kernel.name
            );
            continue;
        }
        for w in DTYPES {
            for x in DTYPES {
                if kernel.takes(x, w) {
                    f(kernel, w, x);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked >= 9, "the portable kernels take every pair");
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn every_kernel_agrees_with_the_oracle() {
    each_kernel(|kernel, w, x| {
        for n in N {
            for k in K {
                let case = Case::new([n, k, 9], [0, 0], w, x, (n * 1000 + k) as u64);
                let alone = case.run(kernel, 1, &Serial);
                for m in 1..=9 {
                    let y = case.run(kernel, m, &Serial);
                    case.check(&y, 0..m, kernel.name);
                    // One row does not depend on the others.
                    assert!(
                        same_bits(&alone, &y[..n]),
                        "{} n={n} k={k} m={m}",
                        kernel.name
                    );
                }
            }
        }
    });
}

#[test]
fn rows_may_have_gaps_between_them() {
    each_kernel(|kernel, w, x| {
        for gaps in [[1, 0], [0, 3], [7, 31], [32, 64]] {
            for k in [5, 32, 70] {
                let case = Case::new([21, k, 7], gaps, w, x, 3);
                case.check(&case.run(kernel, 7, &Serial), 0..7, kernel.name);
            }
        }
    });
}

#[test]
fn x_rows_may_be_the_same() {
    each_kernel(|kernel, w, x| {
        let mut case = Case::new([17, 40, 1], [0, 0], w, x, 4);
        let alone = case.run(kernel, 1, &Serial);
        case.x_stride = 0;
        let y = case.run(kernel, 5, &Serial);
        assert!(
            y.chunks(17).all(|row| same_bits(row, &alone)),
            "{}",
            kernel.name
        );
    });
}

/// Several blocks of M, several ranges of panels, parts of M where panels are few; one and three threads.
#[test]
fn neither_threads_nor_blocks_change_bits() {
    each_kernel(|kernel, w, x| {
        for shape in [[40, 3000, 201], [9, 700, 130], [3000, 576, 2], [5, 64, 50]] {
            let case = Case::new(shape, [0, 0], w, x, 5);
            let m = case.m;
            let y = case.run(kernel, m, &Serial);
            assert!(same_bits(&y, &case.run(kernel, m, &ScopedThreads(3))));
            assert!(same_bits(&y[..case.n], &case.run(kernel, 1, &Serial)));
            case.check(
                &y,
                (0..m).step_by(m.div_ceil(5)).chain([m - 1]),
                kernel.name,
            );
        }
    });
}

#[test]
fn every_output_and_bias_is_rounded_once() {
    let machine = IsaSet::detect();
    for w in DTYPES {
        for x in DTYPES {
            for y_dtype in DTYPES {
                for bias_dtype in [None, Some(Dtype::Bf16), Some(Dtype::F16), Some(Dtype::F32)] {
                    let case = Case::new([35, 72, 3], [0, 0], w, x, 6);
                    let bias =
                        bias_dtype.map(|dtype| Buffer::random(dtype, 35, &mut Random::new(7)));
                    let mut y = Buffer::nan(y_dtype, 3 * 35);
                    let kernel = dense_linear(
                        &case.weight(),
                        case.x.view(),
                        72,
                        3,
                        bias.as_ref().map(Buffer::view),
                        y.view_mut(),
                        machine,
                        &ScopedThreads(2),
                    )
                    .unwrap()
                    .unwrap();
                    assert_eq!(kernel.name, select(machine, x, w).name);
                    let bias = bias.map(|bias| bias.wide());
                    let (wide_w, wide_x) = (case.w.wide(), case.x.wide());
                    for (at, found) in y.wide().into_iter().enumerate() {
                        let (row, n) = (at / 35, at % 35);
                        let b = bias.as_ref().map_or(0.0, |bias| f64::from(bias[n]));
                        let (dot, tolerance) = case.expected(&wide_w, &wide_x, row, n);
                        let (expected, found) = (dot + b, f64::from(found));
                        let tolerance =
                            tolerance + EPS * b.abs() + rounding(y_dtype) * 1.01 * expected.abs();
                        assert!(
                            (found - expected).abs() <= tolerance,
                            "{} row {row} n {n}: {found} instead of {expected}",
                            kernel.name
                        );
                    }
                }
            }
        }
    }
}

/// What is not finite gives what the formula gives, where it stands, and nothing elsewhere.
#[test]
fn values_that_are_not_finite_stay_in_their_row_and_column() {
    each_kernel(|kernel, w, x| {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for column in [0, 33, 71] {
                let clean = Case::new([18, 72, 7], [0, 0], w, x, 8);
                let expected = clean.run(kernel, 7, &Serial);
                let mut case = Case::new([18, 72, 7], [0, 0], w, x, 8);
                case.x.set(2 * 72 + column, bad);
                case.w.set(5 * 72 + column, bad);
                // Infinity times zero.
                case.w.set(6 * 72 + column, 0.0);
                let y = case.run(kernel, 7, &Serial);
                let (wide_w, wide_x) = (case.w.wide(), case.x.wide());
                for (at, (found, clean)) in y.iter().zip(&expected).enumerate() {
                    let (row, n) = (at / 18, at % 18);
                    let (oracle, _) = case.expected(&wide_w, &wide_x, row, n);
                    if row == 2 || n == 5 {
                        assert!(!oracle.is_finite());
                        assert!(
                            found.is_nan() && oracle.is_nan() || f64::from(*found) == oracle,
                            "{} {bad} column {column} row {row} n {n}: {found} instead of {oracle}",
                            kernel.name
                        );
                    } else if n != 6 {
                        assert_eq!(found, clean, "{} {bad} row {row} n {n}", kernel.name);
                    }
                }
            }
        }
    });
}

#[test]
fn every_level_selects_what_it_has() {
    let machine = IsaSet::detect();
    for level in [IsaLevel::Scalar, IsaLevel::Avx2, IsaLevel::Avx512] {
        let Ok(isa) = machine.forced_to(level) else {
            eprintln!("skipped (this machine lacks {level})");
            continue;
        };
        for w in DTYPES {
            for x in DTYPES {
                let case = Case::new([19, 50, 3], [0, 0], w, x, 9);
                let mut y = vec![f32::NAN; 3 * 19];
                let kernel = dense_linear(
                    &case.weight(),
                    case.x.view(),
                    50,
                    3,
                    None,
                    Outputs::F32(&mut y),
                    isa,
                    &Serial,
                )
                .unwrap()
                .unwrap();
                assert!(isa.contains(kernel.isa) && kernel.isa.level() == level);
                case.check(&y, 0..3, kernel.name);
            }
        }
    }
}

#[test]
fn rows_are_the_stored_bits_or_rounded_once() {
    for w in DTYPES {
        for (n, k, gap) in [(50, 33, 0), (300, 520, 7)] {
            let case = Case::new([n, k, 1], [gap, 0], w, Dtype::F32, 10);
            let ids: Vec<i64> = (0..301).map(|at| (at * 37) % n as i64).collect();
            let wide = case.w.wide();
            for y_dtype in DTYPES {
                let mut y = Buffer::nan(y_dtype, ids.len() * k);
                dense_rows(&case.weight(), &ids, y.view_mut(), &ScopedThreads(3)).unwrap();
                let chosen = ids
                    .iter()
                    .flat_map(|id| &wide[*id as usize * case.stride..][..k]);
                let expected = Buffer::new(y_dtype, chosen.copied());
                assert!(same_bits(&y.wide(), &expected.wide()), "{w:?} {y_dtype:?}");
            }
        }
    }
}

#[test]
fn nothing_to_compute_runs_no_kernel() {
    let isa = IsaSet::detect();
    let x = [1.0f32; 8];
    let of = |n, k| DenseWeight::new(Activations::F32(&x), k, n, k).unwrap();
    let call = |w: &DenseWeight<'_>, m, y: &mut [f32]| {
        let (x, y) = (Activations::F32(&x), Outputs::F32(y));
        dense_linear(w, x, w.k(), m, None, y, isa, &Serial)
            .unwrap()
            .is_some()
    };
    assert!(!call(&of(2, 4), 0, &mut []));
    assert!(!call(&of(0, 4), 2, &mut []));
    let mut y = [f32::NAN; 4];
    assert!(call(&of(2, 0), 2, &mut y));
    assert_eq!(y, [0.0; 4]);
    assert!(dense_rows(&of(2, 4), &[], Outputs::F32(&mut []), &Serial).is_ok());
}

#[test]
fn calls_that_do_not_fit_are_refused_and_write_nothing() {
    let elements = [1.0f32; 32];
    let wrong = |what, expected, found| {
        Some(Int4Error::WrongLength {
            what,
            expected,
            found,
        })
    };
    let weight = |stride, n, k| DenseWeight::new(Activations::F32(&elements), stride, n, k);
    assert_eq!(weight(16, 3, 16).err(), wrong("weight", 48, 32));
    assert_eq!(weight(17, 2, 16).err(), wrong("weight", 33, 32));
    assert_eq!(
        weight(usize::MAX, 3, 16).err(),
        wrong("weight", usize::MAX, 32)
    );
    let w = weight(16, 2, 16).unwrap();
    let mut y = [7.0f32; 4];
    let call = |x: &[f32], stride, m, bias: Option<&[f32]>, y: &mut [f32], isa| {
        let (x, bias, y) = (
            Activations::F32(x),
            bias.map(Activations::F32),
            Outputs::F32(y),
        );
        dense_linear(&w, x, stride, m, bias, y, isa, &Serial).err()
    };
    let isa = IsaSet::detect();
    assert_eq!(
        call(&elements[..31], 16, 2, None, &mut y, isa),
        wrong("activations", 32, 31)
    );
    assert_eq!(
        call(&elements, 17, 2, None, &mut y, isa),
        wrong("activations", 33, 32)
    );
    assert_eq!(
        call(&elements, 16, 2, None, &mut y[..3], isa),
        wrong("output", 4, 3)
    );
    assert_eq!(
        call(&elements, 16, 2, Some(&[0.0; 3]), &mut y, isa),
        wrong("bias", 2, 3)
    );
    if let Some(missing) = IsaSet::of(&Isa::ALL).first_missing_in(isa) {
        assert_eq!(
            call(&elements, 16, 2, None, &mut y, IsaSet::of(&Isa::ALL)),
            Some(Int4Error::UnsupportedIsa { missing })
        );
    }
    for name in ["scalar-f32w16", "avx512_bf16-bf16w16", "nonsense"] {
        let (x, out) = (Activations::F32(&elements), Outputs::F32(&mut y));
        let error = dense_linear_with_kernel(name, &w, x, 16, 2, None, out, &Serial).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(by_name("scalar-f32w16").is_some());
    for id in [-1, 2, i64::MAX] {
        let mut rows = [7.0f32; 32];
        let error = dense_rows(&w, &[0, id], Outputs::F32(&mut rows), &Serial).unwrap_err();
        let expected = Int4Error::IdOutOfRange {
            position: 1,
            id,
            n: 2,
        };
        assert_eq!(error, expected);
        assert_eq!(rows, [7.0; 32]);
    }
    assert_eq!(y, [7.0; 4]);
}
