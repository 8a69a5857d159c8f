//! The instruction sets that kernels exist for, detected once.
//!
//! Holding an [`Isa`] is the proof that the machine has it: only
//! [`Isa::detect`] and [`Isa::available`] make one.

use std::fmt;

/// An instruction set of this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

/// The level that kernels match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Plain Rust: the specification.
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-VNNI, the dot products of AVX-512 in vectors of 256 bits, with all of AVX2.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX-512 F, BW, VL, DQ, VNNI and VBMI, with all of AVX2. Kernels that use all of it enable
    /// `avx512vl,avx512dq,avx512vnni,avx512vbmi`, which imply the others.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// That with AMX tiles of 8-bit integers, permitted by the system.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// NEON, which every 64-bit ARM processor has.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The dot products of bytes of ARMv8.4, with NEON.
    #[cfg(target_arch = "aarch64")]
    Dotprod,
    /// The matrix products of bytes of ARMv8.6, with dot products.
    #[cfg(target_arch = "aarch64")]
    I8mm,
}

impl Isa {
    /// The specification, which every machine has.
    pub const SCALAR: Isa = Isa(Level::Scalar);

    /// Names of all that this build has kernels for, slowest first.
    #[cfg(target_arch = "x86_64")]
    pub const BUILT_NAMES: &'static [&'static str] =
        &["scalar", "avx2", "avxvnni", "avx512", "amx"];
    /// Names of all that this build has kernels for, slowest first.
    #[cfg(target_arch = "aarch64")]
    pub const BUILT_NAMES: &'static [&'static str] = &["scalar", "neon", "dotprod", "i8mm"];
    /// Names of all that this build has kernels for, slowest first.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub const BUILT_NAMES: &'static [&'static str] = &["scalar"];

    /// The fastest of this machine.
    pub fn detect() -> Isa {
        Isa::available().pop().unwrap_or(Isa::SCALAR)
    }

    /// All that this machine has, slowest first.
    pub fn available() -> Vec<Isa> {
        let mut found = vec![Isa::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 {
                found.push(Isa(Level::Avx2));
            }
            if avx2 && is_x86_feature_detected!("avxvnni") {
                found.push(Isa(Level::AvxVnni));
            }
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512vbmi");
            if avx2 && avx512 {
                found.push(Isa(Level::Avx512));
            }
            if avx2 && avx512 && super::amx::is_usable() {
                found.push(Isa(Level::Amx));
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected;
            found.push(Isa(Level::Neon));
            let dotprod = is_aarch64_feature_detected!("dotprod");
            if dotprod {
                found.push(Isa(Level::Dotprod));
            }
            if dotprod && is_aarch64_feature_detected!("i8mm") {
                found.push(Isa(Level::I8mm));
            }
        }
        found
    }

    /// The instruction set of that name, if this machine has it.
    pub fn by_name(name: &str) -> Option<Isa> {
        Isa::available().into_iter().find(|isa| isa.name() == name)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => "i8mm",
        }
    }

    pub(crate) fn level(self) -> Level {
        self.0
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Defines a kernel once and compiles it for every instruction set.
///
/// The body is plain Rust. Compilers vectorise it but never reorder or fuse
/// floating-point operations, so all versions give the same bits. Bodies call
/// only `#[inline(always)]` helpers.
macro_rules! for_every_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::cpu::Isa, $($arg: $ty),*) {
            #[inline(always)]
            fn body($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(
                enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi"
            )]
            fn avx512($($arg: $ty),*) {
                body($($arg),*)
            }

            match isa.level() {
                $crate::cpu::isa::Level::Scalar => body($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: holding this `Isa` proves that the machine has AVX2, FMA and F16C.
                $crate::cpu::isa::Level::Avx2 | $crate::cpu::isa::Level::AvxVnni => unsafe {
                    avx2($($arg),*)
                },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
                $crate::cpu::isa::Level::Avx512 | $crate::cpu::isa::Level::Amx => unsafe {
                    avx512($($arg),*)
                },
                // NEON is what compilers take for granted here, and more does not help floats.
                #[cfg(target_arch = "aarch64")]
                _ => body($($arg),*),
            }
        }
    };
}

pub(crate) use for_every_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_name() {
        let available = Isa::available();
        assert_eq!(available[0], Isa::SCALAR, "{available:?}");
        assert!(available.contains(&Isa::detect()));
        for isa in available {
            assert!(Isa::BUILT_NAMES.contains(&isa.name()), "{isa:?}");
            assert_eq!(Isa::by_name(isa.name()), Some(isa));
        }
    }
}
