//! Every dense kernel, called as the driver calls it, on buffers that end where the contract says the kernel
//! stops reading, at addresses that are multiples of the element alone. Results are compared with the
//! portable kernels'; under `-Zsanitizer=address` a read one byte further is an error.

use half::{bf16, f16};

use super::exact_buffers::{Random, Tail};
use crate::dense::dispatch::DENSE_KERNELS;
use crate::dense::kernel::{DenseForm, DenseKernel, DensePanel, DenseStrip, MAX_DENSE_ROWS};
use crate::isa::{Isa, IsaSet};
use crate::kernel::NR;
use crate::operands::{Activations, Dtype};

/// Around the columns of a register, of a cache line and of a prepared unit.
const COLUMNS: [usize; 15] = [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 100, 257, 1024];

/// Around a block of rows and a panel.
const COUNTS: [usize; 6] = [1, 3, 4, 5, 15, 16];

fn random_element(random: &mut Random) -> f32 {
    bf16::from_f32(random.unit()).to_f32()
}

/// Rows of prepared activations in both forms: the same values, zero behind column `k`.
struct Prepared {
    wide: Tail<u32>,
    wide_stride: usize,
    pairs: Tail<u32>,
    pairs_stride: usize,
}

impl Prepared {
    fn random(k: usize, rows: usize, random: &mut Random) -> Self {
        let (wide_words, pair_words) = (DenseForm::F32.words(k), DenseForm::Bf16.words(k));
        let (wide_stride, pairs_stride) = (wide_words + 3, pair_words + 5);
        let values: Vec<Vec<f32>> = (0..rows)
            .map(|_| (0..k).map(|_| random_element(random)).collect())
            .collect();
        let value = |r: usize, column: usize| values[r].get(column).copied().unwrap_or(0.0);
        let half = |r, column| u32::from(bf16::from_f32(value(r, column)).to_bits());
        let (mut at, len) = (0.., (rows - 1) * wide_stride + wide_words);
        let wide = Tail::new(1, len, || {
            let at = at.next().unwrap_or(0);
            value(at / wide_stride, at % wide_stride).to_bits()
        });
        let (mut at, len) = (0.., (rows - 1) * pairs_stride + pair_words);
        let pairs = Tail::new(3, len, || {
            let at = at.next().unwrap_or(0);
            let (r, column) = (at / pairs_stride, at % pairs_stride * 2);
            half(r, column) | half(r, column + 1) << 16
        });
        Self {
            wide,
            wide_stride,
            pairs,
            pairs_stride,
        }
    }

    fn strip(&self, form: DenseForm, rows: usize) -> DenseStrip<'_> {
        let (words, stride) = match form {
            DenseForm::F32 => (self.wide.get(), self.wide_stride),
            DenseForm::Bf16 => (self.pairs.get(), self.pairs_stride),
        };
        DenseStrip {
            words,
            stride,
            rows,
        }
    }
}

fn check(kernel: &DenseKernel, portable: &DenseKernel, rows: Activations<'_>, shape: [usize; 3]) {
    let [count, k, stride] = shape;
    let panel = DensePanel {
        rows,
        stride,
        count,
        k,
        is_fresh: true,
    };
    for strip_rows in 1..=MAX_DENSE_ROWS {
        let prepared = Prepared::random(k, strip_rows, &mut Random(k as u64));
        let run = |kernel: &DenseKernel| {
            // One element more than is written, to see that it is not.
            let mut out = vec![f32::NAN; strip_rows * NR + 1];
            let strip = prepared.strip(kernel.form, strip_rows);
            // SAFETY: the caller has asked the machine for the kernel's ISA; the rows are of a type that it
            // takes, and every buffer has the length that panel and strip state.
            unsafe { (kernel.run)(&panel, &strip, &mut out) };
            assert!(out[strip_rows * NR].is_nan(), "{}", kernel.name);
            out
        };
        let (found, expected) = (run(kernel), run(portable));
        for r in 0..strip_rows {
            for n in 0..count {
                let (found, expected) = (found[r * NR + n], expected[r * NR + n]);
                // Written so that NaN fails.
                assert!(
                    (found - expected).abs() <= 1e-6 * (k + 1) as f32,
                    "{} {:?} k {k}, row {r} of {strip_rows}, n {n} of {count}: {found} instead of {expected}",
                    kernel.name,
                    rows.dtype(),
                );
            }
        }
    }
}

#[test]
fn kernels_stay_inside_their_buffers_at_any_alignment() {
    let machine = IsaSet::detect();
    let mut random = Random(2);
    let mut checked = 0;
    for kernel in DENSE_KERNELS
        .iter()
        .filter(|kernel| machine.contains(kernel.isa))
    {
        for dtype in kernel.weights {
            let portable = DENSE_KERNELS
                .iter()
                .find(|row| row.isa == Isa::Scalar && row.weights.contains(dtype))
                .expect("the portable kernels take every type");
            for k in COLUMNS {
                for count in COUNTS {
                    let stride = k + 3;
                    let len = (count - 1) * stride + k;
                    let skip = 1 + k % 5;
                    let shape = [count, k, stride];
                    match dtype {
                        Dtype::Bf16 => {
                            let rows = Tail::new(skip, len, || {
                                bf16::from_f32(random_element(&mut random))
                            });
                            check(kernel, portable, Activations::Bf16(rows.get()), shape);
                        }
                        Dtype::F16 => {
                            let rows =
                                Tail::new(skip, len, || f16::from_f32(random_element(&mut random)));
                            check(kernel, portable, Activations::F16(rows.get()), shape);
                        }
                        Dtype::F32 => {
                            let rows = Tail::new(skip, len, || random_element(&mut random));
                            check(kernel, portable, Activations::F32(rows.get()), shape);
                        }
                    }
                }
            }
        }
        // `tools/memcheck` fails without this line for the instruction sets that it promises.
        eprintln!("inside its buffers: {}", kernel.name);
        checked += 1;
    }
    assert!(checked > 0);
}
