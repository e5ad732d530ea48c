//! Which instruction sets may be used, as a function of what the CPU and the operating system say.
//!
//! ```text
//! CPUID     the CPU (or the hypervisor in front of it) knows the instructions
//! XCR0      the operating system saves the registers they use: 0x6 AVX, 0xe0 more AVX-512, 0x60000 tiles
//! tiles     Linux hands out the 8 KiB of tile data per thread only to a process that asks (`arch_prctl`)
//! ```
//! All three have to agree. [`decide`] reads nothing itself, so that every machine can be put to it in a
//! test; `x86_64/cpu_state.rs` reads this machine.

use crate::isa::{Isa, IsaSet};

/// The words of CPUID that matter. A leaf that the CPU does not have is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidWords {
    /// Leaf 0, EBX, EDX and ECX: the vendor's name in twelve letters.
    pub vendor: [u32; 3],
    /// Leaf 1, ECX.
    pub leaf1_ecx: u32,
    /// Leaf 7, subleaf 0, EBX.
    pub leaf7_ebx: u32,
    /// Leaf 7, subleaf 0, ECX.
    pub leaf7_ecx: u32,
    /// Leaf 7, subleaf 0, EDX.
    pub leaf7_edx: u32,
    /// Leaf 7, subleaf 1, EAX.
    pub leaf7_1_eax: u32,
}

/// What the operating system says to a process that wants tile data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TilePermission {
    /// Nobody asked, because [`wants_tiles`] was false.
    NotAsked,
    /// Every thread of the process may use tiles.
    Granted,
    /// No: EINVAL from a kernel that knows no such permission, EPERM from a policy, ENOSPC when a thread's
    /// alternate signal stack is too small to hold tiles.
    Refused {
        /// The error number.
        errno: i32,
    },
}

/// Bits of CPUID, by word.
mod bit {
    pub(super) const FMA: u32 = 1 << 12;
    pub(super) const OSXSAVE: u32 = 1 << 27;
    pub(super) const AVX: u32 = 1 << 28;
    pub(super) const F16C: u32 = 1 << 29;

    pub(super) const AVX2: u32 = 1 << 5;
    pub(super) const AVX512F: u32 = 1 << 16;
    pub(super) const AVX512DQ: u32 = 1 << 17;
    pub(super) const AVX512BW: u32 = 1 << 30;
    pub(super) const AVX512VL: u32 = 1 << 31;

    pub(super) const AVX512_VNNI: u32 = 1 << 11;

    pub(super) const AMX_BF16: u32 = 1 << 22;
    pub(super) const AMX_TILE: u32 = 1 << 24;
    pub(super) const AMX_INT8: u32 = 1 << 25;

    pub(super) const AVX_VNNI: u32 = 1 << 4;
    pub(super) const AVX512_BF16: u32 = 1 << 5;
}

/// The name of a vendor whose bf16 dot products are taken to issue as fast as int8 ones.
const AMD: &[u8; 12] = b"AuthenticAMD";

/// XMM and upper YMM registers.
const XCR0_AVX: u64 = 0x6;

/// Those, the mask registers, and both parts of the ZMM registers.
const XCR0_AVX512: u64 = 0xe6;

/// Tile configuration and tile data.
const XCR0_TILES: u64 = 0x6_0000;

impl CpuidWords {
    /// Whether XGETBV may be executed. Without it nothing beyond SSE is saved, whatever else is claimed.
    pub const fn has_xgetbv(&self) -> bool {
        self.leaf1_ecx & bit::OSXSAVE != 0
    }

    fn is_amd(&self) -> bool {
        self.vendor.map(u32::to_le_bytes).as_flattened() == AMD
    }
}

const fn all(word: u64, wanted: u64) -> bool {
    word & wanted == wanted
}

/// The set without tiles.
fn vector_sets(cpuid: &CpuidWords, xcr0: u64) -> IsaSet {
    let mut has = Vec::with_capacity(Isa::ALL.len());
    let avx2 = cpuid.has_xgetbv()
        && all(xcr0, XCR0_AVX)
        && all(
            cpuid.leaf1_ecx.into(),
            (bit::AVX | bit::FMA | bit::F16C).into(),
        )
        && all(cpuid.leaf7_ebx.into(), bit::AVX2.into());
    if avx2 {
        has.push(Isa::Avx2);
        // VEX encoding: the registers of AVX, whatever else is saved.
        if all(cpuid.leaf7_1_eax.into(), bit::AVX_VNNI.into()) {
            has.push(Isa::AvxVnni);
        }
        let wanted = bit::AVX512F | bit::AVX512DQ | bit::AVX512BW | bit::AVX512VL;
        if all(xcr0, XCR0_AVX512) && all(cpuid.leaf7_ebx.into(), wanted.into()) {
            has.push(Isa::Avx512);
            if all(cpuid.leaf7_ecx.into(), bit::AVX512_VNNI.into()) {
                has.push(Isa::Avx512Vnni);
            }
            if all(cpuid.leaf7_1_eax.into(), bit::AVX512_BF16.into()) {
                has.push(Isa::Avx512Bf16);
            }
        }
    }
    let set = IsaSet::of(&has);
    if set.contains(Isa::Avx512Bf16) && cpuid.is_amd() {
        set.with_full_rate_bf16()
    } else {
        set
    }
}

/// Tile kernels the CPU and XCR0 allow, without the operating system's permission. They also need AVX-512,
/// which brings codes into tiles.
fn tile_sets(cpuid: &CpuidWords, xcr0: u64) -> Vec<Isa> {
    let edx = |wanted: u32| all(cpuid.leaf7_edx.into(), wanted.into());
    if !vector_sets(cpuid, xcr0).contains(Isa::Avx512)
        || !all(xcr0, XCR0_TILES)
        || !edx(bit::AMX_TILE)
    {
        return Vec::new();
    }
    [(bit::AMX_INT8, Isa::AmxInt8), (bit::AMX_BF16, Isa::AmxBf16)]
        .into_iter()
        .filter(|(wanted, _)| edx(*wanted))
        .map(|(_, isa)| isa)
        .collect()
}

/// Whether asking for tile data can lead to anything. A process that has it needs larger signal stacks, so
/// that nobody asks in vain.
pub fn wants_tiles(cpuid: &CpuidWords, xcr0: u64) -> bool {
    !tile_sets(cpuid, xcr0).is_empty()
}

/// The instruction sets that kernels may use. `xcr0` is 0 where XGETBV may not be executed.
///
/// Each needs what it builds on: a hypervisor that masks single bits takes away everything above them.
pub fn decide(cpuid: &CpuidWords, xcr0: u64, tiles: TilePermission) -> IsaSet {
    let vectors = vector_sets(cpuid, xcr0);
    match tiles {
        TilePermission::Granted => vectors.with(&tile_sets(cpuid, xcr0)),
        TilePermission::NotAsked | TilePermission::Refused { .. } => vectors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::IsaLevel;

    const EPERM: TilePermission = TilePermission::Refused { errno: 1 };
    const EINVAL: TilePermission = TilePermission::Refused { errno: 22 };
    const ENOSPC: TilePermission = TilePermission::Refused { errno: 28 };
    const GRANTED: TilePermission = TilePermission::Granted;

    /// A CPU with all of it, and with many bits that do not matter.
    const WHOLE: CpuidWords = CpuidWords {
        vendor: vendor(b"GenuineIntel"),
        leaf1_ecx: 0x7ffe_fbff,
        leaf7_ebx: 0xf3bf_bffb,
        leaf7_ecx: 0x1b41_5f6e,
        leaf7_edx: 0xffc1_4412,
        leaf7_1_eax: 0x0000_1c30,
    };

    const AVX2: &[Isa] = &[Isa::Avx2];
    /// What needs the registers of AVX alone.
    const AVX: &[Isa] = &[Isa::Avx2, Isa::AvxVnni];
    const AVX512: &[Isa] = &[
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512,
        Isa::Avx512Vnni,
        Isa::Avx512Bf16,
    ];

    const fn vendor(name: &[u8; 12]) -> [u32; 3] {
        let [ebx, edx, ecx] = *name.as_chunks::<4>().0 else {
            panic!("twelve bytes are three words");
        };
        [
            u32::from_le_bytes(ebx),
            u32::from_le_bytes(edx),
            u32::from_le_bytes(ecx),
        ]
    }

    fn without(change: impl FnOnce(&mut CpuidWords)) -> CpuidWords {
        let mut words = WHOLE;
        change(&mut words);
        words
    }

    #[test]
    fn what_the_operating_system_saves_limits_the_set() {
        for (xcr0, expected) in [
            (0, IsaSet::scalar()),
            (0x3, IsaSet::scalar()),
            (0x7, IsaSet::of(AVX)),
            // One of the three parts of AVX-512 state missing.
            (0x67, IsaSet::of(AVX)),
            (0xa7, IsaSet::of(AVX)),
            (0xc7, IsaSet::of(AVX)),
            (0xe7, IsaSet::of(AVX512)),
            // Upper halves without the lower ones.
            (0xe3, IsaSet::scalar()),
            // Tiles without AVX-512, and half of the tile state.
            (0x6_0007, IsaSet::of(AVX)),
            (0x2_00e7, IsaSet::of(AVX512)),
            (0x4_00e7, IsaSet::of(AVX512)),
            (0x6_00e7, IsaSet::of(&Isa::ALL)),
            (u64::MAX, IsaSet::of(&Isa::ALL)),
        ] {
            assert_eq!(decide(&WHOLE, xcr0, GRANTED), expected, "XCR0 {xcr0:#x}");
        }
    }

    /// A CPU of cores with and without wide registers, or of small ones: VNNI, and nothing of AVX-512.
    #[test]
    fn avx_vnni_needs_neither_avx512_nor_its_state() {
        let words = without(|words| {
            words.leaf7_ebx &= !(bit::AVX512F | bit::AVX512DQ | bit::AVX512BW | bit::AVX512VL);
            words.leaf7_ecx &= !bit::AVX512_VNNI;
            words.leaf7_edx = 0;
            words.leaf7_1_eax = bit::AVX_VNNI;
        });
        for (xcr0, expected) in [
            (0, IsaSet::scalar()),
            (0x3, IsaSet::scalar()),
            (0x7, IsaSet::of(AVX)),
            (0x207, IsaSet::of(AVX)),
            (0xe7, IsaSet::of(AVX)),
            (0x6_00e7, IsaSet::of(AVX)),
        ] {
            assert_eq!(
                decide(&words, xcr0, TilePermission::NotAsked),
                expected,
                "XCR0 {xcr0:#x}"
            );
        }
    }

    #[test]
    fn without_osxsave_nothing_beyond_the_baseline_is_trusted() {
        let words = without(|words| words.leaf1_ecx &= !bit::OSXSAVE);
        for xcr0 in [0, 0x7, 0xe7, 0x6_00e7] {
            assert_eq!(decide(&words, xcr0, GRANTED), IsaSet::scalar());
            assert!(!wants_tiles(&words, xcr0));
        }
        assert_eq!(
            decide(&CpuidWords::default(), 0x6_00e7, GRANTED),
            IsaSet::scalar()
        );
    }

    #[test]
    fn tiles_need_the_permission() {
        for refused in [TilePermission::NotAsked, EPERM, EINVAL, ENOSPC] {
            assert_eq!(
                decide(&WHOLE, 0x6_00e7, refused),
                IsaSet::of(AVX512),
                "{refused:?}"
            );
        }
        // A permission gives nothing that the CPU or XCR0 does not.
        assert_eq!(decide(&WHOLE, 0xe7, GRANTED), IsaSet::of(AVX512));
        let none = without(|words| words.leaf7_edx = 0);
        assert_eq!(decide(&none, 0x6_00e7, GRANTED), IsaSet::of(AVX512));
    }

    #[test]
    fn tiles_are_asked_for_only_where_they_can_be_used() {
        assert!(wants_tiles(&WHOLE, 0x6_00e7));
        for xcr0 in [0, 0x7, 0xe7, 0x6_0007, 0x2_00e7, 0x4_00e7] {
            assert!(!wants_tiles(&WHOLE, xcr0), "XCR0 {xcr0:#x}");
        }
        for masked in [
            bit::AMX_TILE,
            bit::AMX_TILE | bit::AMX_INT8 | bit::AMX_BF16,
            bit::AMX_INT8 | bit::AMX_BF16,
        ] {
            let words = without(|words| words.leaf7_edx &= !masked);
            assert!(!wants_tiles(&words, 0x6_00e7), "without {masked:#x}");
        }
    }

    /// One bit masked, as hypervisors do it, and what is left of the whole.
    #[test]
    fn a_masked_bit_takes_away_what_builds_on_it() {
        use Isa::{AmxBf16, AmxInt8, Avx2, Avx512, Avx512Bf16, Avx512Vnni, AvxVnni};
        type Mask = fn(&mut CpuidWords);
        let cases: [(&str, Mask, &[Isa]); 16] = [
            ("FMA", |w| w.leaf1_ecx &= !bit::FMA, &[]),
            ("AVX", |w| w.leaf1_ecx &= !bit::AVX, &[]),
            ("F16C", |w| w.leaf1_ecx &= !bit::F16C, &[]),
            ("AVX2", |w| w.leaf7_ebx &= !bit::AVX2, &[]),
            ("AVX512F", |w| w.leaf7_ebx &= !bit::AVX512F, AVX),
            ("AVX512BW", |w| w.leaf7_ebx &= !bit::AVX512BW, AVX),
            ("AVX512VL", |w| w.leaf7_ebx &= !bit::AVX512VL, AVX),
            ("AVX512DQ", |w| w.leaf7_ebx &= !bit::AVX512DQ, AVX),
            (
                "BW, VL and DQ",
                |w| w.leaf7_ebx &= !(bit::AVX512BW | bit::AVX512VL | bit::AVX512DQ),
                AVX,
            ),
            (
                "AVX_VNNI",
                |w| w.leaf7_1_eax &= !bit::AVX_VNNI,
                &[Avx2, Avx512, Avx512Vnni, Avx512Bf16, AmxInt8, AmxBf16],
            ),
            (
                "AVX512_VNNI",
                |w| w.leaf7_ecx &= !bit::AVX512_VNNI,
                &[Avx2, AvxVnni, Avx512, Avx512Bf16, AmxInt8, AmxBf16],
            ),
            (
                "AVX512_BF16",
                |w| w.leaf7_1_eax &= !bit::AVX512_BF16,
                &[Avx2, AvxVnni, Avx512, Avx512Vnni, AmxInt8, AmxBf16],
            ),
            (
                "leaf 7",
                |w| {
                    *w = CpuidWords {
                        leaf1_ecx: w.leaf1_ecx,
                        ..CpuidWords::default()
                    }
                },
                &[],
            ),
            ("AMX_TILE", |w| w.leaf7_edx &= !bit::AMX_TILE, AVX512),
            (
                "AMX_INT8",
                |w| w.leaf7_edx &= !bit::AMX_INT8,
                &[Avx2, AvxVnni, Avx512, Avx512Vnni, Avx512Bf16, AmxBf16],
            ),
            (
                "AMX_BF16",
                |w| w.leaf7_edx &= !bit::AMX_BF16,
                &[Avx2, AvxVnni, Avx512, Avx512Vnni, Avx512Bf16, AmxInt8],
            ),
        ];
        for (masked, mask, left) in cases {
            let found = decide(&without(mask), 0x6_00e7, GRANTED);
            assert_eq!(found, IsaSet::of(left), "{masked} masked");
        }
        assert_eq!(decide(&WHOLE, 0x6_00e7, GRANTED), IsaSet::of(&Isa::ALL));
    }

    /// The vendor alone tells the rate of bf16 dot products, and only where there are any.
    #[test]
    fn amd_has_bf16_dot_products_at_the_full_rate() {
        let of = |name: &[u8; 12]| without(|words| words.vendor = vendor(name));
        let (amd, all, avx512) = (
            of(b"AuthenticAMD"),
            IsaSet::of(&Isa::ALL),
            IsaSet::of(AVX512),
        );
        for (xcr0, expected) in [
            (0, IsaSet::scalar()),
            (0x7, IsaSet::of(AVX)),
            (0xe7, avx512.with_full_rate_bf16()),
            (0x6_00e7, all.with_full_rate_bf16()),
        ] {
            assert_eq!(decide(&amd, xcr0, GRANTED), expected, "XCR0 {xcr0:#x}");
            assert_eq!(
                decide(&amd, xcr0, EPERM),
                expected.limited_to(IsaLevel::Avx512)
            );
        }
        let masked = CpuidWords {
            leaf7_1_eax: 0,
            ..amd
        };
        assert!(!decide(&masked, 0xe7, GRANTED).has_full_rate_bf16());
        for other in [b"GenuineIntel", b"AMDAuthentic", b"HygonGenuine", &[0; 12]] {
            assert_eq!(decide(&of(other), 0xe7, GRANTED), avx512);
        }
    }

    #[test]
    fn a_bit_alone_is_not_enough() {
        // VNNI and tiles claimed, but not what they build on.
        let words = CpuidWords {
            vendor: vendor(b"GenuineIntel"),
            leaf1_ecx: bit::OSXSAVE | bit::AVX | bit::FMA | bit::F16C,
            leaf7_ebx: bit::AVX2,
            leaf7_ecx: bit::AVX512_VNNI,
            leaf7_edx: bit::AMX_TILE | bit::AMX_INT8 | bit::AMX_BF16,
            leaf7_1_eax: bit::AVX512_BF16,
        };
        assert_eq!(decide(&words, 0x6_00e7, GRANTED), IsaSet::of(AVX2));
        assert!(!wants_tiles(&words, 0x6_00e7));
        let words = CpuidWords {
            leaf7_ebx: 0,
            leaf7_1_eax: bit::AVX_VNNI,
            ..words
        };
        assert_eq!(decide(&words, 0x7, GRANTED), IsaSet::scalar());
    }
}
