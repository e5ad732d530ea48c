//! fp32 results → the output type, with the bias added before the one rounding.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::element::{Element, bf16_bits};
use crate::kernel::NR;
use crate::operands::Activations;

/// An output type.
pub(crate) trait OutputElement: Copy + Send {
    /// Rounds to nearest, ties to even, once.
    fn round(values: &[f32], to: &mut [Self]);
}

impl OutputElement for f32 {
    fn round(values: &[f32], to: &mut [Self]) {
        to.copy_from_slice(values);
    }
}

impl OutputElement for bf16 {
    fn round(values: &[f32], to: &mut [Self]) {
        for (to, value) in to.iter_mut().zip(values) {
            *to = Self::from_bits(bf16_bits(*value));
        }
    }
}

impl OutputElement for f16 {
    fn round(values: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(values);
    }
}

/// Elements `at..at + len` of the bias in fp32; zeros behind them, and zeros without a bias.
pub(crate) fn widen_bias(bias: Option<&Activations<'_>>, at: usize, len: usize) -> [f32; NR] {
    let mut wide = [0.0; NR];
    let to = &mut wide[..len];
    match bias {
        None => {}
        Some(Activations::Bf16(bias)) => bf16::widen(&bias[at..at + len], to),
        Some(Activations::F16(bias)) => f16::widen(&bias[at..at + len], to),
        Some(Activations::F32(bias)) => f32::widen(&bias[at..at + len], to),
    }
    wide
}

/// Writes one row of a panel: `to` has up to [`NR`] elements.
pub(crate) fn store_row<T: OutputElement>(values: &[f32; NR], bias: &[f32; NR], to: &mut [T]) {
    let mut sums = [0.0; NR];
    for n in 0..NR {
        sums[n] = values[n] + bias[n];
    }
    if let Some(whole) = to.first_chunk_mut::<NR>() {
        T::round(&sums, whole);
    } else {
        T::round(&sums[..to.len()], to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bias_is_added_before_the_one_rounding() {
        // 1 + 2^-9 + 2^-9 = 1 + 2^-8 is half way between two bf16 and rounds to even: 1. Rounding
        // 1 + 2^-9 first and adding then also gives 1, but 1 + 3·2^-9 separates the two.
        let values = [1.0 + f32::powi(2.0, -9); NR];
        let bias = [f32::powi(2.0, -8); NR];
        let mut to = [bf16::ZERO; NR];
        store_row(&values, &bias, &mut to);
        assert_eq!(to[0].to_f32(), 1.0 + f32::powi(2.0, -7));
    }

    #[test]
    fn a_short_panel_writes_no_further_than_its_end() {
        let mut to = [f32::NAN; 4];
        store_row(&[2.0; NR], &[1.0; NR], &mut to[..3]);
        assert_eq!(to[..3], [3.0; 3]);
        assert!(to[3].is_nan());
    }

    #[test]
    fn rounding_agrees_with_the_half_library() {
        let values: Vec<f32> = (0..=u16::MAX)
            .map(|upper| {
                f32::from_bits(
                    u32::from(upper) << 16 | u32::from(upper).wrapping_mul(40_503) & 0xffff,
                )
            })
            .collect();
        for sixteen in values.chunks_exact(NR) {
            let mut to = [bf16::ZERO; NR];
            bf16::round(sixteen, &mut to);
            for (to, value) in to.iter().zip(sixteen) {
                assert_eq!(to.to_bits(), bf16::from_f32(*value).to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn the_bias_is_widened_from_every_type() {
        let mut expected = [0.0; NR];
        expected[..2].copy_from_slice(&[2.0, 3.0]);
        let values = [1.0f32, 2.0, 3.0];
        let halves = values.map(f16::from_f32);
        let bf = values.map(bf16::from_f32);
        for bias in [
            Activations::F32(&values),
            Activations::F16(&halves),
            Activations::Bf16(&bf),
        ] {
            assert_eq!(widen_bias(Some(&bias), 1, 2), expected);
        }
        assert_eq!(widen_bias(None, 1, 2), [0.0; NR]);
    }
}
