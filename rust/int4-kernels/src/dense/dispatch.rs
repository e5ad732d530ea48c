//! The table of dense kernels, and choosing from it.

use crate::dense::kernel::DenseKernel;
use crate::dense::scalar;
use crate::isa::IsaSet;
use crate::operands::Dtype;
#[cfg(target_arch = "x86_64")]
use crate::x86_64::{avx2, avx512};

/// How many dense kernels there are.
pub const DENSE_KERNEL_COUNT: usize = ALL.len();

#[cfg(target_arch = "x86_64")]
const ALL: [DenseKernel; 7] = {
    let [bf16, wide16, wide32] = avx512::dense::KERNELS;
    let [narrow16, narrow32] = avx2::dense::KERNELS;
    let [scalar16, scalar32] = scalar::KERNELS;
    [bf16, wide16, wide32, narrow16, narrow32, scalar16, scalar32]
};
#[cfg(not(target_arch = "x86_64"))]
const ALL: [DenseKernel; 2] = scalar::KERNELS;

/// Every dense kernel there is. For one type of activations and one of weights, the fastest comes first.
pub static DENSE_KERNELS: &[DenseKernel] = &ALL;

/// The kernel of that name.
pub fn by_name(name: &str) -> Option<&'static DenseKernel> {
    DENSE_KERNELS.iter().find(|kernel| kernel.name == name)
}

/// The place of a kernel in [`DENSE_KERNELS`].
///
/// # Panics
/// When `kernel` is not one of them.
pub fn position(kernel: &'static DenseKernel) -> usize {
    DENSE_KERNELS
        .iter()
        .position(|row| std::ptr::eq(row, kernel))
        .expect("a row of the table")
}

/// The fastest kernel for activations and weights of these types: bf16 products where both are bf16 and the
/// machine has them, and fp32 (exact for all types) elsewhere.
pub fn select(set: IsaSet, activations: Dtype, weights: Dtype) -> &'static DenseKernel {
    DENSE_KERNELS
        .iter()
        .find(|kernel| set.contains(kernel.isa) && kernel.takes(activations, weights))
        .expect("the portable kernels take every type")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_machine_gets_its_fastest_kernel() {
        for (has, both_bf16, others) in [
            (&[][..], Isa::Scalar, Isa::Scalar),
            (&[Isa::Avx2], Isa::Avx2, Isa::Avx2),
            (&[Isa::Avx2, Isa::Avx512], Isa::Avx512, Isa::Avx512),
            (
                &[Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16],
                Isa::Avx512Bf16,
                Isa::Avx512,
            ),
        ] {
            let set = IsaSet::of(has);
            for activations in DTYPES {
                for weights in DTYPES {
                    let kernel = select(set, activations, weights);
                    let expected = if (activations, weights) == (Dtype::Bf16, Dtype::Bf16) {
                        both_bf16
                    } else {
                        others
                    };
                    assert_eq!(kernel.isa, expected, "{has:?} {activations:?} {weights:?}");
                    assert_eq!(kernel.bits, if weights == Dtype::F32 { 32 } else { 16 });
                }
            }
        }
    }

    #[test]
    fn names_are_unique_and_say_what_a_kernel_is() {
        for (place, kernel) in DENSE_KERNELS.iter().enumerate() {
            let name = kernel.name;
            assert_eq!(by_name(name).map(position), Some(place), "{name}");
            assert!(name.starts_with(&format!("{}-", kernel.isa)), "{name}");
            assert!(name.ends_with(&format!("w{}", kernel.bits)), "{name}");
        }
    }
}
