//! Loops of nothing but multiply-adds.
//!
//! Each call does some microseconds of work and says how many multiply-adds
//! that were. Accumulators are as many as hide the latency of the instruction.

use std::hint::black_box;

use crate::cpu::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Level;
#[cfg(target_arch = "x86_64")]
use crate::cpu::matmul::Tiles;

/// Rounds of a call.
const ROUNDS: usize = 20_000;

/// Fused multiply-adds of `f32`.
pub(super) fn floats(isa: Isa) -> u64 {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2 and FMA.
        Level::Avx2 | Level::AvxVnni => unsafe { x86::floats_avx2() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX-512 F.
        Level::Avx512 | Level::Amx => unsafe { x86::floats_avx512() },
        _ => plain_floats(),
    }
}

/// Products of unsigned and signed bytes, added up in 32 bits.
pub(super) fn integers(isa: Isa) -> u64 {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2.
        Level::Avx2 => unsafe { x86::integers_avx2() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX-VNNI.
        Level::AvxVnni => unsafe { x86::integers_avxvnni() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX-512 F and VNNI.
        Level::Avx512 => unsafe { x86::integers_avx512() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that this process may use AMX.
        Level::Amx => unsafe { integers_amx() },
        _ => plain_integers(),
    }
}

/// Products of tiles, four sums at a time; no operand is loaded.
///
/// # Safety
/// This process may use AMX.
#[cfg(target_arch = "x86_64")]
unsafe fn integers_amx() -> u64 {
    // SAFETY: passed on to the caller, and this thread has no other tiles here.
    let mut tiles = unsafe { Tiles::new(64) };
    tiles.clear();
    for _ in 0..ROUNDS {
        tiles.multiply_loaded();
    }
    (ROUNDS * 4 * 16 * 16 * 64) as u64
}

fn plain_floats() -> u64 {
    const LANES: usize = 64;
    let (a, b) = black_box(([1.0f32; LANES], [0.5f32; LANES]));
    let mut sums = [0.0f32; LANES];
    for _ in 0..ROUNDS {
        for ((sum, a), b) in sums.iter_mut().zip(&a).zip(&b) {
            *sum += a * b;
        }
    }
    black_box(sums);
    (ROUNDS * LANES) as u64
}

fn plain_integers() -> u64 {
    const LANES: usize = 64;
    let (a, b) = black_box(([3u8; LANES], [-5i8; LANES]));
    let mut sums = [0i32; LANES];
    for round in 0..ROUNDS {
        for ((sum, a), b) in sums.iter_mut().zip(&a).zip(&b) {
            *sum = sum.wrapping_add(i32::from(*a) * i32::from(*b));
        }
        // What the compiler cannot see it cannot multiply out.
        if round % 64 == 0 {
            black_box(&mut sums);
        }
    }
    black_box(sums);
    (ROUNDS * LANES) as u64
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::ROUNDS;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn floats_avx2() -> u64 {
        let (a, b) = black_box((_mm256_set1_ps(0.5), _mm256_set1_ps(1e-3)));
        let mut sums = [_mm256_setzero_ps(); 12];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
        (ROUNDS * sums.len() * 8) as u64
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn floats_avx512() -> u64 {
        let (a, b) = black_box((_mm512_set1_ps(0.5), _mm512_set1_ps(1e-3)));
        let mut sums = [_mm512_setzero_ps(); 16];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
        (ROUNDS * sums.len() * 16) as u64
    }

    /// Pairs are added in 16 bits, as weights of four bits allow, and widened
    /// after four products.
    #[target_feature(enable = "avx2")]
    pub(super) fn integers_avx2() -> u64 {
        const WEIGHTS: usize = 4;
        const CHAINS: usize = 5;
        let q: [__m256i; WEIGHTS] = black_box([_mm256_set1_epi8(15); WEIGHTS]);
        let ones = black_box(_mm256_set1_epi16(1));
        let mut x = black_box([_mm256_set1_epi8(-127); CHAINS]);
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..ROUNDS {
            for (sum, x) in sums.iter_mut().zip(&mut x) {
                let pair = |i: usize| _mm256_maddubs_epi16(q[i], *x);
                let half = |i: usize| _mm256_add_epi16(pair(i), pair(i + 1));
                let quads = _mm256_madd_epi16(_mm256_add_epi16(half(0), half(2)), ones);
                *sum = _mm256_add_epi32(*sum, quads);
                // Other operands each time, or the product would leave the loop.
                *x = _mm256_xor_si256(*x, *sum);
            }
        }
        black_box(sums);
        (ROUNDS * sums.len() * WEIGHTS * 32) as u64
    }

    #[target_feature(enable = "avxvnni")]
    pub(super) fn integers_avxvnni() -> u64 {
        let (q, x) = black_box((_mm256_set1_epi8(15), _mm256_set1_epi8(-127)));
        let mut sums = [_mm256_setzero_si256(); 12];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, q, x);
            }
        }
        black_box(sums);
        (ROUNDS * sums.len() * 32) as u64
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn integers_avx512() -> u64 {
        let (q, x) = black_box((_mm512_set1_epi8(15), _mm512_set1_epi8(-127)));
        let mut sums = [_mm512_setzero_si512(); 16];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, q, x);
            }
        }
        black_box(sums);
        (ROUNDS * sums.len() * 64) as u64
    }
}
