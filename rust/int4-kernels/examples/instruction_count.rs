//! What callgrind counts: one call of one kernel, as GEMV or as GEMM, of one fixed shape. With the name of a
//! kernel and a number of rows it makes that call; without them it prints a line `{kernel} {rows}` for each that
//! this machine runs (`tools/instruction_count.py` goes through them and compares).

#[path = "../tests/tensors/mod.rs"]
mod tensors;

use std::hint::black_box;
use std::io::Write;

use half::bf16;
use int4_kernels::dispatch::{available, by_name};
use int4_kernels::{
    Activations, IsaSet, Kernel, Outputs, PackedTensor, SegmentSpec, Serial, ZeroKind,
    linear_with_kernel,
};
use tensors::{Aligned, Random, spec};

/// Outputs and inputs: whole panels and groups, small enough for the portable kernels under emulation.
const N: usize = 128;
const K: usize = 1024;
const GROUP_SIZE: usize = 128;

/// GEMV, and two full strips of rows.
const BATCHES: [usize; 2] = [1, 16];

fn call(kernel: &Kernel, w: &PackedTensor<'_>, x: &[bf16], y: &mut [f32]) {
    let m = x.len() / w.k();
    let (x, y) = (Activations::Bf16(x), Outputs::F32(y));
    linear_with_kernel(kernel.name, w, x, K, m, None, y, GROUP_SIZE, &Serial).expect("it fits");
}

/// Its instructions, and those of what it calls, are what is counted: callgrind finds it by its name. Never the
/// same code as `call`: the compiler makes one function of two that are equal.
#[inline(never)]
fn counted_call(kernel: &Kernel, w: &PackedTensor<'_>, x: &[bf16], y: &mut [f32]) {
    call(kernel, w, x, y);
    black_box(());
}

fn main() -> std::io::Result<()> {
    let mut asked = std::env::args().skip(1);
    let (Some(name), Some(m)) = (asked.next(), asked.next()) else {
        let mut names = std::io::stdout().lock();
        for kernel in available(IsaSet::detect()) {
            for m in BATCHES.into_iter().filter(|m| *m >= kernel.min_rows) {
                writeln!(names, "{} {m}", kernel.name)?;
            }
        }
        return Ok(());
    };
    let kernel = by_name(&name).expect("a kernel of the table");
    let m: usize = m.parse().expect("a number of rows");
    let spec = SegmentSpec {
        zero_kind: ZeroKind::U8,
        ..spec(N, K, kernel.bits, Some(GROUP_SIZE))
    };
    let packed = Aligned::random(&[spec], 1);
    let tensor = PackedTensor::parse(packed.bytes()).expect("just packed");
    let mut random = Random::new(2);
    let x: Vec<bf16> = (0..m * K).map(|_| bf16::from_f32(random.unit())).collect();
    let mut y = vec![f32::NAN; m * N];
    // Makes the scratch buffers as large as they have to be, and detects the CPU, outside of what is counted.
    call(kernel, &tensor, &x, &mut y);
    let warm = y.clone();
    y.fill(f32::NAN);
    counted_call(kernel, &tensor, &x, &mut y);
    assert_eq!(black_box(y), warm, "{}", kernel.name);
    Ok(())
}
