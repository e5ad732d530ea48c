//! This machine's CPUID, XCR0, and its answer to the request for tiles. What follows from them is decided in
//! [`crate::cpu_features`].

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

use super::amx;
use crate::amx::EMULATED;
use crate::amx::self_check::{TileFault, without_faulty};
use crate::cpu_features::{CpuidWords, TilePermission, decide, wants_tiles};
use crate::isa::IsaSet;

/// What kernels may use, and why not all that is claimed.
pub(crate) struct Checked {
    pub(crate) set: IsaSet,
    pub(crate) tile_faults: Vec<TileFault>,
}

static CHECKED: OnceLock<Checked> = OnceLock::new();

/// What the machine has beside tiles, once. No instruction beyond the baseline is executed, and the operating
/// system is not asked for anything: a process that may use tiles needs larger signal stacks.
pub(crate) fn vectors() -> IsaSet {
    static VECTORS: OnceLock<IsaSet> = OnceLock::new();
    *VECTORS.get_or_init(|| {
        let (cpuid, xcr0) = read();
        decide(&cpuid, xcr0, TilePermission::NotAsked)
    })
}

/// What the answer to the request for tiles was; nobody asked where they could not be used.
pub(crate) fn tile_permission() -> TilePermission {
    static ANSWER: OnceLock<TilePermission> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let (cpuid, xcr0) = read();
        if wants_tiles(&cpuid, xcr0) {
            ask_for_tiles()
        } else {
            TilePermission::NotAsked
        }
    })
}

/// What the machine claims, tiles included, which are asked for; no tile instruction is executed.
pub(crate) fn claimed() -> IsaSet {
    let (cpuid, xcr0) = read();
    decide(&cpuid, xcr0, tile_permission())
}

/// That, without tiles that do not compute what emulated ones do; once. The kernels are called directly: the
/// driver would ask here.
pub(crate) fn checked() -> &'static Checked {
    CHECKED.get_or_init(|| {
        // SAFETY: the machine has what it claims; the oracles need nothing.
        let (set, tile_faults) = unsafe { without_faulty(claimed(), amx::KERNELS, EMULATED) };
        Checked { set, tile_faults }
    })
}

/// What [`checked`] has found; nothing before it has run.
pub(crate) fn tile_faults() -> &'static [TileFault] {
    CHECKED.get().map_or(&[], |checked| &checked.tile_faults)
}

/// CPUID, and XCR0 or 0.
fn read() -> (CpuidWords, u64) {
    let cpuid = cpuid_words();
    let xcr0 = if cpuid.has_xgetbv() {
        // SAFETY: CPUID says that the operating system has enabled XGETBV.
        unsafe { xcr0() }
    } else {
        0
    };
    (cpuid, xcr0)
}

#[allow(
    unused_unsafe,
    reason = "the intrinsics for CPUID are safe from a later standard library on"
)]
fn cpuid_words() -> CpuidWords {
    let mut words = CpuidWords::default();
    // SAFETY: every x86-64 CPU has CPUID, and leaf 0 says which leaves there are.
    unsafe {
        let zero = __cpuid(0);
        let leaves = zero.eax;
        words.vendor = [zero.ebx, zero.edx, zero.ecx];
        if leaves >= 1 {
            words.leaf1_ecx = __cpuid(1).ecx;
        }
        if leaves >= 7 {
            let seven = __cpuid_count(7, 0);
            words.leaf7_ebx = seven.ebx;
            words.leaf7_ecx = seven.ecx;
            words.leaf7_edx = seven.edx;
            if seven.eax >= 1 {
                words.leaf7_1_eax = __cpuid_count(7, 1).eax;
            }
        }
    }
    words
}

/// # Safety
/// CPUID must report OSXSAVE.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller's contract; register 0 exists wherever XGETBV does.
    unsafe { _xgetbv(0) }
}

/// Asks Linux for tile data: for the whole process, and for what it starts by `fork`. Asking twice is the
/// same as once.
#[cfg(target_os = "linux")]
fn ask_for_tiles() -> TilePermission {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let answer: i64;
    // SAFETY: the system call takes two integers, touches no memory of ours, and changes RAX, RCX and R11
    // alone. A kernel that does not know the request answers EINVAL.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    match i32::try_from(-answer) {
        Ok(0) => TilePermission::Granted,
        Ok(errno) => TilePermission::Refused { errno },
        Err(_) => TilePermission::Refused { errno: i32::MAX },
    }
}

/// Elsewhere tiles are not asked for: their use without a permission would be a guess.
#[cfg(not(target_os = "linux"))]
fn ask_for_tiles() -> TilePermission {
    TilePermission::NotAsked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    /// The standard library reads the same machine on its own; what both know they agree on.
    #[test]
    fn the_standard_library_sees_the_same_machine() {
        let found = claimed();
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        for (isa, expected) in [
            (Isa::Scalar, true),
            (Isa::Avx2, avx2),
            (Isa::AvxVnni, avx2 && is_x86_feature_detected!("avxvnni")),
            (Isa::Avx512, avx512),
            (
                Isa::Avx512Vnni,
                avx512 && is_x86_feature_detected!("avx512vnni"),
            ),
            (
                Isa::Avx512Bf16,
                avx512 && is_x86_feature_detected!("avx512bf16"),
            ),
        ] {
            assert_eq!(found.contains(isa), expected, "{isa}");
        }
        eprintln!("{found:?} from {:x?}", cpuid_words());
    }

    /// The request itself, also on a CPU without tiles: an answer, no fault, and the same one twice.
    #[test]
    #[cfg(target_os = "linux")]
    fn asking_for_tiles_is_answered() {
        let answer = ask_for_tiles();
        assert_eq!(ask_for_tiles(), answer);
        eprintln!("tiles: {answer:?}");
        let cpuid = cpuid_words();
        if cpuid.leaf7_edx & 1 << 24 == 0 {
            assert!(matches!(answer, TilePermission::Refused { errno: 1.. }));
        }
    }
}
