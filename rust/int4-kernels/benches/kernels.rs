//! Every kernel of the table that this machine runs, for 1, 4, 16 and 128 tokens where the kernel is chosen for so
//! many: bytes of codes per second, on one thread. The tensor stays in the cache, so that this is the kernel's own
//! speed; `make bench-kernels` measures against memory. Results are compared with the oracle's before anything is
//! timed.

#[path = "../tests/tensors/mod.rs"]
mod tensors;

use std::fmt;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use half::bf16;
use int4_kernels::dispatch::available;
use int4_kernels::{
    ActivationForm, Activations, IsaSet, Kernel, Outputs, PackedTensor, Serial, linear_with_kernel,
    reference,
};
use tensors::{Aligned, Random, spec};

/// 512 KiB of 4-bit codes, 1 MiB of 8-bit ones: a second-level cache of 2 MiB holds them.
const N: usize = 512;
const K: usize = 2048;
const GROUP_SIZE: usize = 128;

/// Tokens.
const BATCHES: [usize; 4] = [1, 4, 16, 128];

/// Rows of the activations that the oracle computes, the first ones: it is slow.
const CHECKED_ROWS: usize = 16;

/// One line of the table.
#[derive(Clone, Copy)]
struct Case {
    kernel: &'static Kernel,
    m: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, M = {}", self.kernel.name, self.m)
    }
}

fn cases() -> Vec<Case> {
    let kernels = available(IsaSet::detect());
    kernels
        .flat_map(|kernel| BATCHES.map(|m| Case { kernel, m }))
        .filter(|case| case.m >= case.kernel.min_rows)
        .collect()
}

fn run(case: Case, w: &PackedTensor<'_>, x: &[bf16], y: &mut [f32]) {
    let (x, y) = (Activations::Bf16(x), Outputs::F32(y));
    linear_with_kernel(
        case.kernel.name,
        w,
        x,
        K,
        case.m,
        None,
        y,
        GROUP_SIZE,
        &Serial,
    )
    .expect("the operands fit");
}

/// As `tests/differential.rs`, with its tolerances.
fn check(case: Case, w: &PackedTensor<'_>, x: &[bf16], y: &[f32]) {
    let rows = case.m.min(CHECKED_ROWS);
    let wide: Vec<f32> = x[..rows * K].iter().map(|x| x.to_f32()).collect();
    let order: Vec<usize> = (0..K).collect();
    let seen = match case.kernel.form {
        ActivationForm::Int8 => {
            reference::quantized_activations(&wide, &order, GROUP_SIZE, GROUP_SIZE)
        }
        ActivationForm::I24 => reference::fixed_point_activations(&wide, K, GROUP_SIZE, GROUP_SIZE),
        _ => wide.iter().map(|x| f64::from(*x)).collect(),
    };
    let weights = reference::dequantize(w).expect("a valid tensor");
    let expected = reference::linear(&weights, &seen, None);
    for (at, (y, expected)) in y.iter().zip(&expected).enumerate() {
        let (row, n) = (at / N, at % N);
        let x = &seen[row * K..][..K];
        let magnitudes = &weights.magnitudes[n * K..][..K];
        let bound = if matches!(case.kernel.form, ActivationForm::Int8 | ActivationForm::I24) {
            let sum: f64 = magnitudes.iter().zip(x).map(|(w, x)| w * x.abs()).sum();
            (K / GROUP_SIZE + 4) as f64 * sum
        } else {
            let most = |values: &[f64]| values.iter().fold(0.0f64, |most, v| most.max(v.abs()));
            (K + 1) as f64 * most(magnitudes) * most(x)
        };
        let tolerance = f64::from(f32::EPSILON) * bound;
        // Written so that NaN fails.
        assert!(
            (f64::from(*y) - expected).abs() <= tolerance,
            "{case}: row {row}, n {n}: {y} instead of {expected}"
        );
    }
}

#[divan::bench(args = cases())]
fn linear(bencher: Bencher<'_, '_>, case: Case) {
    let packed = Aligned::random(&[spec(N, K, case.kernel.bits, Some(GROUP_SIZE))], 1);
    let tensor = PackedTensor::parse(packed.bytes()).expect("just packed");
    let mut random = Random::new(2);
    let x: Vec<bf16> = (0..case.m * K)
        .map(|_| bf16::from_f32(random.unit()))
        .collect();
    let mut y = vec![f32::NAN; case.m * N];
    run(case, &tensor, &x, &mut y);
    check(case, &tensor, &x, &y);
    bencher
        .counter(BytesCount::new(N * K * usize::from(case.kernel.bits) / 8))
        .bench_local(|| run(case, black_box(&tensor), black_box(&x), black_box(&mut y)));
}

fn main() {
    divan::main();
}
