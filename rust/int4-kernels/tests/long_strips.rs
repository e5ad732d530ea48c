//! The driver around kernels that take more rows at once than others: several segments, several blocks of M
//! with parts for three threads, and a last strip of any length. Each row has the bits that it has alone.

mod tensors;

use half::bf16;
use int4_kernels::dispatch::EMULATED;
use int4_kernels::{
    Activations, IsaSet, Outputs, PackedTensor, Parallel, ScopedThreads, SegmentSpec, Serial,
    ZeroKind, linear_with_kernel,
};
use tensors::{Aligned, Random, spec};

#[test]
fn long_strips_are_cut_like_short_ones() {
    for kernel in EMULATED.into_iter().flatten() {
        if !IsaSet::detect().contains(kernel.isa) {
            continue;
        }
        for (m, k) in [(5, 40), (64, 100), (130, 264), (300, 2600)] {
            let specs = [
                spec(35, k, kernel.bits, Some(32)),
                SegmentSpec {
                    permuted: true,
                    zero_kind: ZeroKind::U8,
                    ..spec(17, k, kernel.bits, Some(128))
                },
            ];
            let packed = Aligned::random(&specs, 18);
            let tensor = PackedTensor::parse(packed.bytes()).unwrap();
            let mut random = Random::new(19);
            let x: Vec<bf16> = (0..m * k)
                .map(|_| bf16::from_f32(2.0 * random.unit()))
                .collect();
            let run = |x: &[bf16], m: usize, parallel: &dyn Parallel| {
                let mut y = vec![f32::NAN; m * tensor.n()];
                let (x, out) = (Activations::Bf16(x), Outputs::F32(&mut y));
                linear_with_kernel(kernel.name, &tensor, x, k, m, None, out, 128, parallel)
                    .unwrap();
                y
            };
            let whole = run(&x, m, &Serial);
            assert_eq!(whole, run(&x, m, &ScopedThreads(3)), "{} {m}", kernel.name);
            for row in (0..m).step_by(7).chain([m - 1]) {
                let alone = run(&x[row * k..(row + 1) * k], 1, &Serial);
                let found = &whole[row * tensor.n()..(row + 1) * tensor.n()];
                assert_eq!(found, alone, "{} row {row} of {m}", kernel.name);
            }
        }
    }
}
