//! The kernel table, and choosing from it.

use crate::amx;
pub use crate::amx::self_check::TileFault;
use crate::cpu_features::TilePermission;
use crate::isa::{Isa, IsaSet};
use crate::kernel::{ActivationForm, Kernel};
use crate::operands::{Dtype, Numerics};
use crate::scalar;
#[cfg(target_arch = "x86_64")]
use crate::x86_64::{amx as amx_tiles, avx_vnni, avx2, avx512};

#[cfg(target_arch = "x86_64")]
const TABLES: [&[Kernel]; 5] = [
    amx_tiles::KERNELS,
    avx512::KERNELS,
    avx_vnni::KERNELS,
    avx2::KERNELS,
    scalar::KERNELS,
];
#[cfg(not(target_arch = "x86_64"))]
const TABLES: [&[Kernel]; 1] = [scalar::KERNELS];

/// How many kernels there are.
pub const KERNEL_COUNT: usize = {
    let mut count = 0;
    let mut table = 0;
    while table < TABLES.len() {
        count += TABLES[table].len();
        table += 1;
    }
    count
};

const ALL: [Kernel; KERNEL_COUNT] = {
    let mut all = [scalar::KERNELS[0]; KERNEL_COUNT];
    let mut filled = 0;
    let mut table = 0;
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            all[filled] = TABLES[table][row];
            filled += 1;
            row += 1;
        }
        table += 1;
    }
    all
};

/// Every kernel there is. For one form and one width of codes, the fastest comes first; each from
/// [`Kernel::min_rows`] rows of activations on.
pub static KERNELS: &[Kernel] = &ALL;

/// The tile kernels on emulated tiles: slow, the same arithmetic, for tests on machines without AMX. They
/// are not in [`KERNELS`], and nothing but their name leads to them ([`crate::linear_with_kernel`]).
#[cfg(target_arch = "x86_64")]
pub static EMULATED: [&[Kernel]; 2] = [amx::EMULATED, amx_tiles::EMULATED];
/// The tile kernels on emulated tiles.
#[cfg(not(target_arch = "x86_64"))]
pub static EMULATED: [&[Kernel]; 1] = [amx::EMULATED];

/// Which tile kernels this CPU computed otherwise than emulated tiles do, so that their instruction sets are
/// not in [`IsaSet::detect`]. None where there are no tiles, or before anybody has asked for them.
#[cfg(target_arch = "x86_64")]
pub fn tiles_left_out() -> &'static [TileFault] {
    crate::x86_64::cpu_state::tile_faults()
}
/// Which tile kernels are not used.
#[cfg(not(target_arch = "x86_64"))]
pub fn tiles_left_out() -> &'static [TileFault] {
    &[]
}

/// What the operating system answered to the request for tiles, which this makes.
#[cfg(target_arch = "x86_64")]
pub fn tile_permission() -> TilePermission {
    crate::x86_64::cpu_state::tile_permission()
}
/// Nobody asks where there are no tiles.
#[cfg(not(target_arch = "x86_64"))]
pub fn tile_permission() -> TilePermission {
    TilePermission::NotAsked
}

/// The kernels that can run on a machine with `set`, in the table's order.
pub fn available(set: IsaSet) -> impl Iterator<Item = &'static Kernel> {
    KERNELS
        .iter()
        .filter(move |kernel| set.contains(kernel.isa))
}

/// The kernel of that name, emulated ones included.
pub fn by_name(name: &str) -> Option<&'static Kernel> {
    let emulated = EMULATED.iter().copied().flatten();
    KERNELS
        .iter()
        .chain(emulated)
        .find(|kernel| kernel.name == name)
}

/// The place of a kernel in [`KERNELS`].
///
/// # Panics
/// When `kernel` is not one of them.
pub fn position(kernel: &'static Kernel) -> usize {
    let bytes = std::ptr::from_ref(kernel).addr() - KERNELS.as_ptr().addr();
    let position = bytes / size_of::<Kernel>();
    assert!(std::ptr::eq(&raw const KERNELS[position], kernel));
    position
}

/// The form `m` rows of activations are brought into: int8 when asked for; otherwise, where the activations are
/// bf16, bf16 pairs for so many rows as tiles are used for, and where bf16 dot products are as fast as int8
/// ones or alone; otherwise, for 16-bit floats, fixed point where the machine has int8 dot products; fp32
/// (exact for all three types) elsewhere.
pub fn activation_form(set: IsaSet, numerics: Numerics, dtype: Dtype, m: usize) -> ActivationForm {
    let has_tiles = set.contains(Isa::AmxBf16) && m >= amx::MIN_ROWS;
    let has_pairs = set.contains(Isa::Avx512Bf16)
        && (set.has_full_rate_bf16() || !set.contains(Isa::Avx512Vnni));
    // Without VNNI for them wide registers gain more by fp32 than by fixed point on narrow ones.
    let has_fixed_point =
        set.contains(Isa::Avx512Vnni) || (set.contains(Isa::AvxVnni) && !set.contains(Isa::Avx512));
    match (numerics, dtype) {
        (Numerics::Int8 { .. }, _) => ActivationForm::Int8,
        (Numerics::Native, Dtype::Bf16) if has_tiles || has_pairs => ActivationForm::Bf16Pairs,
        (Numerics::Native, Dtype::Bf16 | Dtype::F16) if has_fixed_point => ActivationForm::I24,
        (Numerics::Native, _) => ActivationForm::F32,
    }
}

/// The fastest kernel of the wanted numerics for `m` rows of `dtype` activations and `bits`-bit codes (4 or
/// 8). Beside `m` the machine's instruction sets decide; `m` only between vectors and tiles.
///
/// # Panics
/// When `bits` is neither 4 nor 8. The portable kernels take every other combination.
pub fn select(
    set: IsaSet,
    numerics: Numerics,
    dtype: Dtype,
    bits: u8,
    m: usize,
) -> &'static Kernel {
    let form = activation_form(set, numerics, dtype, m);
    available(set)
        .find(|kernel| kernel.form == form && kernel.bits == bits && kernel.min_rows <= m.max(1))
        .unwrap_or_else(|| panic!("bits: expected 4 or 8, found {bits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT8: Numerics = Numerics::Int8 { max_chunk: 128 };

    /// What a machine has, and what it runs for (native bf16, f16, f32; int8).
    #[cfg(target_arch = "x86_64")]
    const MACHINES: [(&[Isa], [Isa; 4]); 9] = [
        (&[], [Isa::Scalar; 4]),
        (&[Isa::Avx2], [Isa::Avx2; 4]),
        (
            &[Isa::Avx2, Isa::AvxVnni],
            [Isa::AvxVnni, Isa::AvxVnni, Isa::Avx2, Isa::AvxVnni],
        ),
        // AVX-512 VNNI masked.
        (
            &[Isa::Avx2, Isa::AvxVnni, Isa::Avx512],
            [Isa::Avx512, Isa::Avx512, Isa::Avx512, Isa::AvxVnni],
        ),
        (
            &[Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Avx512Vnni],
            [
                Isa::Avx512Vnni,
                Isa::Avx512Vnni,
                Isa::Avx512,
                Isa::Avx512Vnni,
            ],
        ),
        (
            &[Isa::Avx2, Isa::Avx512],
            [Isa::Avx512, Isa::Avx512, Isa::Avx512, Isa::Avx2],
        ),
        (
            &[Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni],
            [
                Isa::Avx512Vnni,
                Isa::Avx512Vnni,
                Isa::Avx512,
                Isa::Avx512Vnni,
            ],
        ),
        (
            &[Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16],
            [Isa::Avx512Bf16, Isa::Avx512, Isa::Avx512, Isa::Avx2],
        ),
        (
            &[Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni, Isa::Avx512Bf16],
            [
                Isa::Avx512Vnni,
                Isa::Avx512Vnni,
                Isa::Avx512,
                Isa::Avx512Vnni,
            ],
        ),
    ];

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_machine_gets_its_fastest_kernel() {
        let native_form = |isa| match isa {
            Isa::Avx512Vnni | Isa::AvxVnni => ActivationForm::I24,
            Isa::Avx512Bf16 => ActivationForm::Bf16Pairs,
            _ => ActivationForm::F32,
        };
        for (has, [bf16, f16, f32, int8]) in MACHINES {
            let set = IsaSet::of(has);
            for bits in [4, 8] {
                let pick = |numerics, dtype| {
                    let kernel = select(set, numerics, dtype, bits, 1);
                    assert_eq!(kernel.bits, bits);
                    (kernel.isa, kernel.form)
                };
                for (dtype, isa) in [(Dtype::Bf16, bf16), (Dtype::F16, f16), (Dtype::F32, f32)] {
                    assert_eq!(
                        pick(Numerics::Native, dtype),
                        (isa, native_form(isa)),
                        "{has:?} {dtype:?}"
                    );
                    assert_eq!(pick(INT8, dtype), (int8, ActivationForm::Int8), "{has:?}");
                }
            }
        }
    }

    /// All of it, and what is left when a hypervisor masks one of the two sets that lie below tiles.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn tiles_take_over_from_the_stated_number_of_rows() {
        let all = IsaSet::of(&Isa::ALL);
        let masked = IsaSet::of(&[Isa::Avx2, Isa::Avx512, Isa::AmxInt8, Isa::AmxBf16]);
        for bits in [4, 8] {
            for (set, numerics, few, many) in [
                (all, Numerics::Native, Isa::Avx512Vnni, Isa::AmxBf16),
                (
                    all.with_full_rate_bf16(),
                    Numerics::Native,
                    Isa::Avx512Bf16,
                    Isa::AmxBf16,
                ),
                (all, INT8, Isa::Avx512Vnni, Isa::AmxInt8),
                (masked, Numerics::Native, Isa::Avx512, Isa::AmxBf16),
                (masked, INT8, Isa::Avx2, Isa::AmxInt8),
            ] {
                for (m, expected) in [
                    (0, few),
                    (1, few),
                    (amx::MIN_ROWS - 1, few),
                    (amx::MIN_ROWS, many),
                    (4096, many),
                ] {
                    let kernel = select(set, numerics, Dtype::Bf16, bits, m);
                    assert_eq!((kernel.isa, kernel.bits), (expected, bits), "{m} rows");
                    assert!(m.max(1) >= kernel.min_rows);
                }
            }
            // fp16 and fp32 have no tiles of their own.
            for (dtype, isa) in [(Dtype::F16, Isa::Avx512Vnni), (Dtype::F32, Isa::Avx512)] {
                let kernel = select(all, Numerics::Native, dtype, bits, 4096);
                assert_eq!(kernel.isa, isa);
            }
            // A lower level asked for.
            for m in [1, 4096] {
                let set = all.limited_to(crate::isa::IsaLevel::Avx512);
                for numerics in [INT8, Numerics::Native] {
                    let kernel = select(set, numerics, Dtype::Bf16, bits, m);
                    assert_eq!(kernel.isa, Isa::Avx512Vnni);
                }
            }
        }
    }

    /// A machine of which the check has left one kind of tile: the rest stays, and so do the others' kernels.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn one_kind_of_tile_does_without_the_other() {
        let pick = |set, numerics| select(set, numerics, Dtype::Bf16, 4, 4096).isa;
        let without_int8 = IsaSet::of(&Isa::ALL).without(Isa::AmxInt8);
        assert_eq!(pick(without_int8, INT8), Isa::Avx512Vnni);
        assert_eq!(pick(without_int8, Numerics::Native), Isa::AmxBf16);
        let without_bf16 = IsaSet::of(&Isa::ALL).without(Isa::AmxBf16);
        assert_eq!(pick(without_bf16, INT8), Isa::AmxInt8);
        assert_eq!(pick(without_bf16, Numerics::Native), Isa::Avx512Vnni);
    }

    /// A fault is left out, and what is left out has a fault: also on a machine with AMX, whatever it computes.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn what_is_left_out_has_a_reason() {
        let (claimed, found) = (crate::x86_64::cpu_state::claimed(), IsaSet::detect());
        for isa in Isa::ALL {
            let left_out = tiles_left_out().iter().any(|fault| fault.isa == isa);
            let expected = claimed.contains(isa) && !left_out;
            assert_eq!(
                found.contains(isa),
                expected,
                "{isa}: {:?}",
                tiles_left_out()
            );
        }
    }

    #[test]
    fn emulated_kernels_are_never_selected() {
        let emulated: Vec<&Kernel> = EMULATED.iter().copied().flatten().collect();
        for kernel in &emulated {
            assert!(kernel.name.starts_with("amx_emulated"), "{}", kernel.name);
            assert!(KERNELS.iter().all(|real| real.name != kernel.name));
            assert!(std::ptr::eq(by_name(kernel.name).unwrap(), *kernel));
        }
        for bits in [4, 8] {
            for form in [ActivationForm::Bf16Pairs, ActivationForm::Int8] {
                let rows = emulated
                    .iter()
                    .filter(|row| row.form == form && row.bits == bits)
                    .count();
                assert_eq!(rows, EMULATED.len(), "{form:?} {bits}");
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn where_bf16_dot_products_are_as_fast_they_stay() {
        let set = IsaSet::of(&Isa::ALL).with_full_rate_bf16();
        let forms = |set: IsaSet| {
            [Dtype::Bf16, Dtype::F16, Dtype::F32]
                .map(|dtype| activation_form(set, Numerics::Native, dtype, 1))
        };
        use ActivationForm::{Bf16Pairs, F32, I24};
        assert_eq!(forms(set), [Bf16Pairs, I24, F32]);
        assert_eq!(
            forms(set.limited_to(crate::isa::IsaLevel::Avx512)),
            [Bf16Pairs, I24, F32]
        );
        assert_eq!(
            forms(set.limited_to(crate::isa::IsaLevel::AvxVnni)),
            [I24, I24, F32]
        );
        assert_eq!(forms(set.limited_to(crate::isa::IsaLevel::Avx2)), [F32; 3]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_table_has_every_kernel_the_design_names() {
        use ActivationForm::{Bf16Pairs, F32, I24, Int8};
        for bits in [4, 8] {
            for (isa, form) in [
                (Isa::AmxBf16, Bf16Pairs),
                (Isa::AmxInt8, Int8),
                (Isa::Avx512, F32),
                (Isa::Avx512Bf16, Bf16Pairs),
                (Isa::Avx512Vnni, I24),
                (Isa::Avx512Vnni, Int8),
                (Isa::AvxVnni, I24),
                (Isa::AvxVnni, Int8),
                (Isa::Avx2, F32),
                (Isa::Avx2, Int8),
                (Isa::Scalar, F32),
                (Isa::Scalar, Bf16Pairs),
                (Isa::Scalar, I24),
                (Isa::Scalar, Int8),
            ] {
                let rows = KERNELS
                    .iter()
                    .filter(|row| row.isa == isa && row.form == form && row.bits == bits)
                    .count();
                assert_eq!(rows, 1, "{isa} {form:?} {bits}");
            }
        }
    }

    #[test]
    fn names_are_unique_and_start_with_the_instruction_set() {
        for kernel in KERNELS {
            assert_eq!(
                KERNELS
                    .iter()
                    .filter(|other| other.name == kernel.name)
                    .count(),
                1
            );
            // Both kinds of tile products are called AMX; the activation in the name tells them apart.
            let isa = match kernel.isa {
                Isa::AmxInt8 | Isa::AmxBf16 => "amx".to_owned(),
                isa => isa.to_string(),
            };
            assert!(
                kernel.name.starts_with(&format!("{isa}-")),
                "{}",
                kernel.name
            );
            assert!(
                kernel.name.ends_with(&format!("q{}", kernel.bits)),
                "{}",
                kernel.name
            );
            assert_eq!(
                by_name(kernel.name).map(|found| found.isa),
                Some(kernel.isa)
            );
        }
        assert!(by_name("scalar-f32q5").is_none());
        for (place, kernel) in KERNELS.iter().enumerate() {
            assert_eq!(position(kernel), place);
        }
    }

    #[test]
    fn scalar_alone_offers_scalar_kernels_alone() {
        assert!(available(IsaSet::scalar()).all(|kernel| kernel.isa == Isa::Scalar));
        assert_eq!(available(IsaSet::scalar()).count(), 8);
        assert_eq!(available(IsaSet::of(&Isa::ALL)).count(), KERNELS.len());
    }
}
