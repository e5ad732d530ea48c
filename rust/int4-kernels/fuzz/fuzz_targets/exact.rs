//! What both targets do with packed bytes: keep them in an allocation that ends where they end, and multiply.

use int4_kernels::{
    Activations, Int4Error, IsaSet, Numerics, Outputs, PackedTensor, Segment, Serial, linear,
    reference, rows, unpack,
};

/// Rows of activations: one, and more than one.
const BATCHES: [usize; 2] = [1, 3];

/// Bytes that end with their allocation, so that the sanitizer sees a read past them, and start `skip` bytes
/// into it.
pub struct Exact {
    buffer: Box<[u8]>,
    skip: usize,
}

impl Exact {
    pub fn new(content: &[u8], skip: usize) -> Self {
        let mut buffer = vec![0; skip];
        buffer.extend_from_slice(content);
        let buffer = buffer.into_boxed_slice();
        Self { buffer, skip }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.skip..]
    }
}

/// Multiplies with the portable kernels and looks up rows. Every output is written, and a float result is the
/// oracle's where its arithmetic stays inside what fp32 holds.
pub fn multiply(tensor: &PackedTensor<'_>) -> Result<(), Int4Error> {
    let (n, k) = (tensor.n(), tensor.k());
    let expected = reference::dequantize(tensor)?;
    let is_permutation = tensor.segments().iter().all(stores_each_column_once);
    for m in BATCHES {
        let x: Vec<f32> = (0..m * k)
            .map(|at| (at * 37 % 17) as f32 / 8.0 - 1.0)
            .collect();
        for numerics in [Numerics::Native, Numerics::Int8 { max_chunk: 32 }] {
            // A result that was never written shows as this NaN, which no arithmetic makes.
            let unwritten = f32::from_bits(0x7fc1_2345);
            let mut y = vec![unwritten; m * n];
            let (x, isa) = (Activations::F32(&x), IsaSet::scalar());
            let outputs = Outputs::F32(&mut y);
            linear(tensor, x, k, m, None, outputs, numerics, isa, &Serial)?;
            assert!(y.iter().all(|y| y.to_bits() != unwritten.to_bits()));
            if numerics == Numerics::Native && is_permutation {
                check_against(&expected, &y, m);
            }
        }
    }
    let mut y = vec![0.0; 2 * k];
    rows(tensor, &[0, n as i64 - 1], Outputs::F32(&mut y), &Serial)
}

/// Otherwise the kernels read a column twice, and the oracle, which puts columns back, the last of the two.
fn stores_each_column_once(segment: &Segment<'_>) -> bool {
    let content = unpack(segment).expect("the oracle has unpacked it");
    content.permutation.is_none_or(|mut order| {
        order.sort_unstable();
        order.dedup();
        order.len() == segment.spec().k
    })
}

/// The float contract of the kernels: `eps * (K + 1) * max|w| * max|x|`.
fn check_against(weights: &reference::Matrix, y: &[f32], m: usize) {
    let k = weights.k;
    let x: Vec<f64> = (0..m * k)
        .map(|at| (at * 37 % 17) as f64 / 8.0 - 1.0)
        .collect();
    let expected = reference::linear(weights, &x, None);
    for (n, magnitudes) in weights.magnitudes.chunks(k).enumerate() {
        let most = magnitudes.iter().fold(0.0f64, |most, w| most.max(*w));
        // Below, products are subnormal; above, sums overflow; NaN is neither.
        let all_finite = magnitudes.iter().all(|w| w.is_finite());
        if !all_finite || !(1e-25..1e30).contains(&most) {
            continue;
        }
        let tolerance = f64::from(f32::EPSILON) * (k + 1) as f64 * most;
        for row in 0..m {
            let (y, expected) = (
                f64::from(y[row * weights.n + n]),
                expected[row * weights.n + n],
            );
            // Written so that NaN fails.
            assert!(
                (y - expected).abs() <= tolerance,
                "row {row}, n {n}: {y} instead of {expected}, tolerance {tolerance:e}"
            );
        }
    }
}
