//! Small floats as `f32`, in loops that compilers vectorise.

use moeflux_core::quant::{
    MatrixView, MicroScaled, ScaledBlocks, SmallFloat, e2m1_to_f32, e4m3_to_f32,
};

use super::partials::{LANES, Partials, ROWS};
use crate::cpu::Isa;

#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Level;
use crate::cpu::isa::for_every_isa;

/// Elements `col..` of one row, whose bytes are `packed`; `col` begins a group.
pub(super) fn decode_micro(
    isa: Isa,
    micro: MicroScaled,
    weight: &MatrixView<'_>,
    row: usize,
    col: usize,
    packed: &[u8],
    out: &mut [f32],
) {
    assert!(micro.is_supported(weight.cols), "no kernel for {micro:?}");
    let first = row * micro.n_groups(weight.cols) + micro.n_groups(col);
    let scales = &weight.scales[first..first + micro.n_groups(out.len())];
    match micro.element {
        SmallFloat::E2M1 => decode_e2m1(isa, micro, packed, scales, out),
        SmallFloat::E4M3 => decode_e4m3(isa, micro, packed, scales, out),
    }
}

/// Adds the products of some rows of E2M1 with one of activations, column by
/// column, to their lanes.
pub(super) fn multiply_e2m1(
    isa: Isa,
    micro: MicroScaled,
    packed: [&[u8]; ROWS],
    scales: [&[u8]; ROWS],
    x: &[f32],
    sums: &mut Partials,
) {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2 and FMA.
        Level::Avx2 | Level::AvxVnni => unsafe {
            super::avx2::multiply_e2m1(micro, packed, scales, x, sums);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe {
            super::avx512::multiply_e2m1(micro, packed, scales, x, sums);
        },
        _ => plain_products(isa, micro, packed, scales, x, sums),
    }
}

for_every_isa! {
    /// The definition of [`multiply_e2m1`].
    fn plain_products(
        micro: MicroScaled,
        packed: [&[u8]; ROWS],
        scales: [&[u8]; ROWS],
        x: &[f32],
        sums: &mut Partials,
    ) {
        for r in 0..ROWS {
            let groups = x.chunks_exact(micro.group_size).zip(scales[r]);
            let packed = packed[r].chunks_exact(micro.group_size / 2);
            for ((x, scale), packed) in groups.zip(packed) {
                let scale = micro.scale.to_f32(*scale);
                let (x, packed) = (x.as_chunks::<LANES>().0, packed.as_chunks::<{ LANES / 2 }>().0);
                for (x, packed) in x.iter().zip(packed) {
                    for (lane, x) in x.iter().enumerate() {
                        let code = packed[lane / 2] >> (4 * (lane % 2));
                        let w = e2m1_to_f32(u32::from(code)) * scale;
                        sums[r][lane] = w.mul_add(*x, sums[r][lane]);
                    }
                }
            }
        }
    }
}

fn decode_e2m1(isa: Isa, micro: MicroScaled, packed: &[u8], scales: &[u8], out: &mut [f32]) {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2.
        Level::Avx2 | Level::AvxVnni => unsafe {
            super::avx2::decode_e2m1(micro, packed, scales, out);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe {
            super::avx512::decode_e2m1(micro, packed, scales, out);
        },
        _ => plain_e2m1(isa, micro, packed, scales, out),
    }
}

for_every_isa! {
    /// The definition of [`decode_e2m1`].
    fn plain_e2m1(micro: MicroScaled, packed: &[u8], scales: &[u8], out: &mut [f32]) {
        let groups = out.chunks_exact_mut(micro.group_size);
        let packed = packed.chunks_exact(micro.group_size / 2);
        for ((out, packed), scale) in groups.zip(packed).zip(scales) {
            let scale = micro.scale.to_f32(*scale);
            for ([first, second], byte) in out.as_chunks_mut().0.iter_mut().zip(packed) {
                *first = e2m1_to_f32(u32::from(*byte)) * scale;
                *second = e2m1_to_f32(u32::from(*byte >> 4)) * scale;
            }
        }
    }
}

for_every_isa! {
    fn decode_e4m3(micro: MicroScaled, packed: &[u8], scales: &[u8], out: &mut [f32]) {
        let groups = out.chunks_exact_mut(micro.group_size);
        let packed = packed.chunks_exact(micro.group_size);
        for ((out, packed), scale) in groups.zip(packed).zip(scales) {
            let scale = micro.scale.to_f32(*scale);
            for (out, code) in out.iter_mut().zip(packed) {
                *out = e4m3_to_f32(*code) * scale;
            }
        }
    }
}

/// Elements `col..` of one row, whose bytes are `stored`.
pub(super) fn decode_blocks(
    isa: Isa,
    blocks: ScaledBlocks,
    weight: &MatrixView<'_>,
    row: usize,
    col: usize,
    stored: &[u8],
    out: &mut [f32],
) {
    let mut at = 0;
    while at < out.len() {
        let col = col + at;
        let n = (blocks.block_cols - col % blocks.block_cols).min(out.len() - at);
        let scale = blocks.scale_index(row, col, weight.cols);
        let scale = blocks.scales.read(weight.scales, scale);
        decode_scaled(isa, &stored[at..at + n], scale, &mut out[at..at + n]);
        at += n;
    }
}

for_every_isa! {
    fn decode_scaled(stored: &[u8], scale: f32, out: &mut [f32]) {
        for (out, code) in out.iter_mut().zip(stored) {
            *out = e4m3_to_f32(*code) * scale;
        }
    }
}

/// Adds the products of some rows of E4M3, a scale each, with one of activations, column by column, to
/// their lanes. There are as many columns as `x` has. Returns false where some codes
/// are no numbers and the kernel cannot take these: sums are unchanged, and [`plain_e4m3`] is for
/// those.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only x86-64 has kernels"))]
pub(super) fn multiply_e4m3(
    isa: Isa,
    codes: [&[u8]; ROWS],
    scales: [f32; ROWS],
    x: &[f32],
    sums: &mut Partials,
) -> bool {
    let mut n = 0;
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        Level::Avx2 | Level::AvxVnni if stay_finite(scales, super::avx2::E4M3_UNIT) => {
            n = x.len() / LANES * LANES;
            // SAFETY: holding this `Isa` proves that the machine has AVX2.
            if !unsafe { super::avx2::are_numbers(codes) } {
                return false;
            }
            // SAFETY: holding this `Isa` proves that the machine has AVX2, FMA and F16C.
            unsafe { super::avx2::multiply_e4m3(codes, scales, x, sums) };
        }
        Level::Avx512 | Level::Amx if stay_finite(scales, super::avx512::E4M3_UNIT) => {
            n = x.len() / LANES * LANES;
            // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
            unsafe { super::avx512::multiply_e4m3(codes, scales, x, sums) };
        }
        _ => {}
    }
    if n < x.len() {
        let rest = codes.map(|codes| &codes[n..]);
        plain_e4m3(isa, rest, scales, &x[n..], sums);
    }
    true
}

/// Whether kernels can multiply scales by `unit` first.
#[cfg(target_arch = "x86_64")]
fn stay_finite(scales: [f32; ROWS], unit: f32) -> bool {
    scales.iter().all(|scale| (scale * unit).is_finite())
}

for_every_isa! {
    /// The definition of [`multiply_e4m3`].
    pub(super) fn plain_e4m3(
        codes: [&[u8]; ROWS],
        scales: [f32; ROWS],
        x: &[f32],
        sums: &mut Partials,
    ) {
        for r in 0..ROWS {
            for (codes, x) in codes[r].chunks(LANES).zip(x.chunks(LANES)) {
                for ((code, x), sum) in codes.iter().zip(x).zip(&mut sums[r]) {
                    *sum = (e4m3_to_f32(*code) * scales[r]).mul_add(*x, *sum);
                }
            }
        }
    }
}
