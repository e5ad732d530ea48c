//! Activations and outputs of a type that is chosen at run time.

#![allow(dead_code, reason = "each test binary uses its part")]

use half::{bf16, f16};
use int4_kernels::{Activations, Dtype, Outputs};

use crate::tensors::Random;

/// A buffer of one of the three types.
#[derive(Clone)]
pub enum Buffer {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Buffer {
    pub fn new(dtype: Dtype, values: impl Iterator<Item = f32>) -> Self {
        match dtype {
            Dtype::Bf16 => Self::Bf16(values.map(bf16::from_f32).collect()),
            Dtype::F16 => Self::F16(values.map(f16::from_f32).collect()),
            Dtype::F32 => Self::F32(values.collect()),
        }
    }

    pub fn random(dtype: Dtype, len: usize, random: &mut Random) -> Self {
        Self::new(dtype, (0..len).map(|_| 2.0 * random.unit()))
    }

    pub fn nan(dtype: Dtype, len: usize) -> Self {
        Self::new(dtype, std::iter::repeat_n(f32::NAN, len))
    }

    pub fn set(&mut self, at: usize, value: f32) {
        match self {
            Self::Bf16(x) => x[at] = bf16::from_f32(value),
            Self::F16(x) => x[at] = f16::from_f32(value),
            Self::F32(x) => x[at] = value,
        }
    }

    pub fn view(&self) -> Activations<'_> {
        match self {
            Self::Bf16(x) => Activations::Bf16(x),
            Self::F16(x) => Activations::F16(x),
            Self::F32(x) => Activations::F32(x),
        }
    }

    pub fn view_mut(&mut self) -> Outputs<'_> {
        match self {
            Self::Bf16(x) => Outputs::Bf16(x),
            Self::F16(x) => Outputs::F16(x),
            Self::F32(x) => Outputs::F32(x),
        }
    }

    pub fn wide(&self) -> Vec<f32> {
        match self {
            Self::Bf16(x) => x.iter().map(|x| x.to_f32()).collect(),
            Self::F16(x) => x.iter().map(|x| x.to_f32()).collect(),
            Self::F32(x) => x.clone(),
        }
    }
}

/// Half a unit in the last place, relative.
pub fn rounding(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Bf16 => 1.0 / 256.0,
        Dtype::F16 => 1.0 / 2048.0,
        Dtype::F32 => 1.0 / 16_777_216.0,
    }
}
