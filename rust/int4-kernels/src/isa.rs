//! Instruction sets as values, so that choosing a kernel can be tested on any machine.

use std::fmt;
use std::str::FromStr;

use crate::error::Int4Error;

/// What a kernel needs of the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Nothing beyond the baseline.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-VNNI (256-bit int8 dot products without AVX-512) on top of [`Isa::Avx2`].
    AvxVnni,
    /// AVX-512 F, BW, VL and DQ (and everything of [`Isa::Avx2`]).
    Avx512,
    /// AVX-512 VNNI on top of [`Isa::Avx512`].
    Avx512Vnni,
    /// AVX-512 BF16 on top of [`Isa::Avx512`].
    Avx512Bf16,
    /// AMX tiles with int8 products, and [`Isa::Avx512`], which brings codes into tiles.
    AmxInt8,
    /// AMX tiles with bf16 products, and [`Isa::Avx512`] likewise.
    AmxBf16,
}

impl Isa {
    /// Every instruction set, lowest first.
    pub const ALL: [Self; 8] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
        Self::AmxInt8,
        Self::AmxBf16,
    ];

    const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The level a user names to get this instruction set.
    pub const fn level(self) -> IsaLevel {
        match self {
            Self::Scalar => IsaLevel::Scalar,
            Self::Avx2 => IsaLevel::Avx2,
            Self::AvxVnni => IsaLevel::AvxVnni,
            Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 => IsaLevel::Avx512,
            Self::AmxInt8 | Self::AmxBf16 => IsaLevel::Amx,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx_vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512_vnni",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::AmxInt8 => "amx_int8",
            Self::AmxBf16 => "amx_bf16",
        })
    }
}

/// What a user may force. Each level includes those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IsaLevel {
    /// Portable code only.
    Scalar,
    /// Up to AVX2 with FMA and F16C.
    Avx2,
    /// Up to AVX-VNNI. Not every CPU with a higher level has it.
    AvxVnni,
    /// Up to everything AVX-512 the machine has.
    Avx512,
    /// Up to AMX tiles.
    Amx,
}

impl IsaLevel {
    /// Every level, lowest first.
    pub const ALL: [Self; 5] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Amx,
    ];
}

impl fmt::Display for IsaLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx_vnni",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        })
    }
}

impl FromStr for IsaLevel {
    type Err = Int4Error;

    fn from_str(s: &str) -> Result<Self, Int4Error> {
        match s {
            "scalar" => Ok(Self::Scalar),
            "avx2" => Ok(Self::Avx2),
            "avx_vnni" => Ok(Self::AvxVnni),
            "avx512" => Ok(Self::Avx512),
            "amx" => Ok(Self::Amx),
            _ => Err(Int4Error::UnknownIsaLevel {
                found: s.to_owned(),
            }),
        }
    }
}

/// Of an [`IsaSet`]: bf16 dot products issue as fast as int8 ones.
const FULL_RATE_BF16: u32 = 1 << 31;

/// A set of instruction sets. [`Isa::Scalar`] is always in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IsaSet(u32);

impl IsaSet {
    /// What this machine and its operating system have ([`crate::cpu_features`]). Found out once; a later
    /// call costs a load. Where tiles can be used the first call asks for them, for the whole process, and has
    /// them compared with emulated ones ([`crate::dispatch::tiles_left_out`]).
    pub fn detect() -> Self {
        detect()
    }

    /// `detect().limited_to(level)`, and below [`IsaLevel::Amx`] tiles are not asked for, and no tile
    /// instruction is executed: a machine on which they fault can do without.
    pub fn detect_up_to(level: IsaLevel) -> Self {
        let set = if level < IsaLevel::Amx {
            vectors()
        } else {
            detect()
        };
        set.limited_to(level)
    }

    /// Portable code only.
    pub const fn scalar() -> Self {
        Self(Isa::Scalar.bit())
    }

    /// The set of these instruction sets (and the baseline). It may name more than the machine has:
    /// [`crate::dispatch::select`] only looks at the value, and [`crate::linear::linear`] refuses it.
    pub fn of(isas: &[Isa]) -> Self {
        Self(
            isas.iter()
                .fold(Isa::Scalar.bit(), |bits, isa| bits | isa.bit()),
        )
    }

    /// The set on a CPU whose bf16 dot products issue as fast as its int8 ones.
    #[must_use]
    pub const fn with_full_rate_bf16(self) -> Self {
        Self(self.0 | FULL_RATE_BF16)
    }

    /// Whether bf16 dot products issue as fast as int8 ones: taken to hold on AMD (not measured). On the Intel
    /// machine of record they do not.
    pub const fn has_full_rate_bf16(self) -> bool {
        self.0 & FULL_RATE_BF16 != 0
    }

    /// The set and these instruction sets.
    pub fn with(self, isas: &[Isa]) -> Self {
        Self(self.0 | Self::of(isas).0)
    }

    /// The set without that instruction set.
    #[must_use]
    pub fn without(self, isa: Isa) -> Self {
        Self(self.0 & !isa.bit() | Isa::Scalar.bit())
    }

    /// Whether a kernel that needs `isa` can run.
    pub const fn contains(self, isa: Isa) -> bool {
        self.0 & isa.bit() != 0
    }

    /// The part of the set that belongs to `level` or lower.
    pub fn limited_to(self, level: IsaLevel) -> Self {
        let kept = Self::of_bits(|isa| self.contains(isa) && isa.level() <= level);
        Self(kept.0 | self.0 & FULL_RATE_BF16)
    }

    /// The highest level that has anything in the set.
    pub fn level(self) -> IsaLevel {
        Isa::ALL
            .into_iter()
            .filter(|isa| self.contains(*isa))
            .map(Isa::level)
            .max()
            .unwrap_or(IsaLevel::Scalar)
    }

    /// `limited_to(level)`, or the error a user gets who forces a level of which the machine has nothing.
    pub fn forced_to(self, level: IsaLevel) -> Result<Self, Int4Error> {
        if self.limited_to(level).level() != level {
            return Err(Int4Error::UnsupportedIsaLevel {
                asked: level,
                highest: self.level(),
            });
        }
        Ok(self.limited_to(level))
    }

    /// The first instruction set of `self` that `other` lacks.
    pub fn first_missing_in(self, other: Self) -> Option<Isa> {
        if self.0 & !other.0 == 0 {
            return None;
        }
        Isa::ALL
            .into_iter()
            .find(|isa| self.contains(*isa) && !other.contains(*isa))
    }

    /// The first instruction set of `self` that this machine lacks.
    pub fn first_missing(self) -> Option<Isa> {
        self.first_missing_in(Self::detect_up_to(self.level()))
    }

    fn of_bits(keep: impl Fn(Isa) -> bool) -> Self {
        Isa::ALL
            .into_iter()
            .filter(|isa| keep(*isa))
            .fold(Self::scalar(), |set, isa| Self(set.0 | isa.bit()))
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> IsaSet {
    crate::x86_64::cpu_state::checked().set
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> IsaSet {
    crate::x86_64::cpu_state::vectors()
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> IsaSet {
    IsaSet::scalar()
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> IsaSet {
    IsaSet::scalar()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_cut_the_set() {
        let all = IsaSet::of(&Isa::ALL);
        assert_eq!(all.level(), IsaLevel::Amx);
        let avx2 = all.limited_to(IsaLevel::Avx2);
        assert!(avx2.contains(Isa::Avx2) && avx2.contains(Isa::Scalar));
        assert!(!avx2.contains(Isa::Avx512) && !avx2.contains(Isa::Avx512Vnni));
        assert!(!avx2.contains(Isa::AvxVnni));
        assert_eq!(avx2.level(), IsaLevel::Avx2);
        let avx_vnni = all.limited_to(IsaLevel::AvxVnni);
        assert_eq!(avx_vnni, IsaSet::of(&[Isa::Avx2, Isa::AvxVnni]));
        assert_eq!(avx_vnni.level(), IsaLevel::AvxVnni);
        assert_eq!(all.limited_to(IsaLevel::Scalar), IsaSet::scalar());
        let avx512 = all.limited_to(IsaLevel::Avx512);
        assert!(avx512.contains(Isa::Avx512Bf16) && !avx512.contains(Isa::AmxInt8));
        assert_eq!(avx512.level(), IsaLevel::Avx512);
        assert_eq!(all.limited_to(IsaLevel::Amx), all);
    }

    #[test]
    fn forcing_a_level_the_machine_lacks_is_refused() {
        let avx2 = IsaSet::of(&[Isa::Avx2]);
        assert_eq!(
            avx2.forced_to(IsaLevel::Avx512),
            Err(Int4Error::UnsupportedIsaLevel {
                asked: IsaLevel::Avx512,
                highest: IsaLevel::Avx2
            })
        );
        assert_eq!(avx2.forced_to(IsaLevel::Scalar), Ok(IsaSet::scalar()));
        let avx512 = IsaSet::of(&[Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni, Isa::Avx512Bf16]);
        // A level in between that this CPU lacks.
        assert_eq!(
            avx512.forced_to(IsaLevel::AvxVnni),
            Err(Int4Error::UnsupportedIsaLevel {
                asked: IsaLevel::AvxVnni,
                highest: IsaLevel::Avx512
            })
        );
        let error = avx512.forced_to(IsaLevel::Amx).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ISA level amx is not available on this machine (highest available: avx512)"
        );
    }

    #[test]
    fn missing_instruction_sets_are_named() {
        let have = IsaSet::of(&[Isa::Avx2, Isa::Avx512]);
        let want = IsaSet::of(&[Isa::Avx2, Isa::Avx512Vnni]);
        assert_eq!(want.first_missing_in(have), Some(Isa::Avx512Vnni));
        assert_eq!(have.first_missing_in(have), None);
        assert_eq!(IsaSet::scalar().first_missing_in(have), None);
    }

    #[test]
    fn one_instruction_set_can_be_left_out() {
        let all = IsaSet::of(&Isa::ALL).with_full_rate_bf16();
        for isa in Isa::ALL {
            assert_eq!(all.without(isa).contains(isa), isa == Isa::Scalar);
            assert_eq!(all.without(isa).with(&[isa]), all);
        }
    }

    #[test]
    fn detection_up_to_a_level_is_what_is_left_of_all_of_it() {
        let machine = IsaSet::detect();
        for level in IsaLevel::ALL {
            let set = IsaSet::detect_up_to(level);
            assert_eq!(set, machine.limited_to(level), "{level}");
            assert_eq!(set.first_missing(), None);
        }
        let all = IsaSet::of(&Isa::ALL);
        assert_eq!(all.first_missing(), all.first_missing_in(machine));
    }

    #[test]
    fn level_names_round_trip() {
        for level in IsaLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!("AVX2".parse::<IsaLevel>().is_err());
    }

    #[test]
    fn detection_is_closed_downwards() {
        let set = IsaSet::detect();
        assert!(set.contains(Isa::Scalar));
        for above in [Isa::Avx512Vnni, Isa::Avx512Bf16, Isa::AmxInt8, Isa::AmxBf16] {
            assert!(!set.contains(above) || set.contains(Isa::Avx512));
        }
        for above in [Isa::Avx512, Isa::AvxVnni] {
            assert!(!set.contains(above) || set.contains(Isa::Avx2));
        }
    }
}
