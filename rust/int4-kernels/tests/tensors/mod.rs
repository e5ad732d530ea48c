//! Random packed tensors and activations, the same on every run.

#![allow(dead_code, reason = "each test binary uses its part")]

use half::{bf16, f16};
use int4_kernels::{CodeKind, PackZeros, ScaleType, SegmentSpec, ZeroKind, pack_into};

/// A linear congruential generator: enough for test data, and reproducible without a dependency.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    /// Uniform in [-1, 1).
    pub fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }

    /// A permutation of 0..k.
    pub fn permutation(&mut self, k: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..k as u32).collect();
        for at in (1..k).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}

/// What goes into `pack_into` beside the specification.
pub struct Parts {
    pub codes: Vec<u8>,
    pub scales: Vec<u16>,
    pub zeros: Vec<u8>,
    pub offsets: Vec<u16>,
    pub permutation: Option<Vec<u32>>,
}

impl Parts {
    pub fn random(spec: &SegmentSpec, random: &mut Random) -> Self {
        let entries = spec.n * spec.groups();
        let half = |value: f32| match spec.scale_type {
            ScaleType::F16 => f16::from_f32(value).to_bits(),
            ScaleType::Bf16 => bf16::from_f32(value).to_bits(),
        };
        let highest = if spec.bits == 4 { 16 } else { 256 };
        Self {
            codes: (0..spec.n * spec.k)
                .map(|_| random.below(highest) as u8)
                .collect(),
            scales: (0..entries).map(|_| half(0.01 * random.unit())).collect(),
            zeros: (0..entries).map(|_| random.below(highest) as u8).collect(),
            offsets: (0..entries).map(|_| half(0.1 * random.unit())).collect(),
            permutation: spec.permuted.then(|| random.permutation(spec.k)),
        }
    }

    pub fn pack_zeros(&self, kind: ZeroKind) -> PackZeros<'_> {
        match kind {
            ZeroKind::None => PackZeros::None,
            ZeroKind::U8 => PackZeros::U8(&self.zeros),
            ZeroKind::Offset => PackZeros::Offset(&self.offsets),
        }
    }

    pub fn pack(&self, spec: &SegmentSpec) -> Vec<u8> {
        let mut out = vec![0xee; spec.packed_bytes().unwrap()];
        let zeros = self.pack_zeros(spec.zero_kind);
        pack_into(
            &mut out,
            spec,
            &self.codes,
            &self.scales,
            zeros,
            self.permutation.as_deref(),
        )
        .unwrap();
        out
    }
}

/// A packed tensor of these segments at an address that is a multiple of 64, as files map it.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub fn new(content: &[u8]) -> Self {
        let mut bytes = vec![0; content.len() + 64];
        let start = bytes.as_ptr().align_offset(64);
        bytes[start..start + content.len()].copy_from_slice(content);
        Self {
            bytes,
            start,
            len: content.len(),
        }
    }

    pub fn random(specs: &[SegmentSpec], seed: u64) -> Self {
        let mut random = Random::new(seed);
        let packed: Vec<u8> = specs
            .iter()
            .flat_map(|spec| Parts::random(spec, &mut random).pack(spec))
            .collect();
        Self::new(&packed)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

pub fn spec(n: usize, k: usize, bits: u8, group_size: Option<usize>) -> SegmentSpec {
    SegmentSpec {
        n,
        k,
        bits,
        group_size,
        scale_type: ScaleType::F16,
        zero_kind: ZeroKind::None,
        code_kind: CodeKind::Affine,
        permuted: false,
    }
}
