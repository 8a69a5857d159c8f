//! Whether this process may use AMX: the processor has it, the system saves
//! its registers, and Linux gave the permission that it wants to be asked for.

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Asks once; the answer holds for all threads of the process.
pub(super) fn is_usable() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| has_tiles() && is_saved() && is_permitted())
}

/// Tiles of 16 rows of 64 bytes, and products of 8-bit integers. `std` does not
/// detect them yet.
fn has_tiles() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const PALETTES: u32 = 0x1d;
    let last_leaf = __cpuid(0).eax;
    if last_leaf < PALETTES || __cpuid_count(7, 0).edx & (TILE | INT8) != TILE | INT8 {
        return false;
    }
    let palette = __cpuid_count(PALETTES, 1);
    let (row_bytes, n_tiles) = (palette.ebx & 0xffff, palette.ebx >> 16);
    row_bytes == 64 && n_tiles == 8 && palette.ecx & 0xffff == 16
}

/// Whether the system saves the tiles when it switches threads.
fn is_saved() -> bool {
    const TILE_CONFIG_AND_DATA: u64 = 0b11 << 17;
    if !is_x86_feature_detected!("xsave") {
        return false;
    }
    // SAFETY: the feature was detected, which includes that the system has enabled it.
    let saved = unsafe { _xgetbv(0) };
    saved & TILE_CONFIG_AND_DATA == TILE_CONFIG_AND_DATA
}

/// Linux gives each process that asks the memory to save its tiles in.
/// Documentation/arch/x86/xstate.rst of Linux.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: this system call touches no memory of the process, and systems that lack it refuse.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}
