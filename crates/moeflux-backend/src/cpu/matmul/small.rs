//! Small floats as `f32`, in loops that compilers vectorise.

use moeflux_core::quant::{
    MatrixView, MicroScaled, ScaledBlocks, SmallFloat, e2m1_to_f32, e4m3_to_f32,
};

use crate::cpu::Isa;
use crate::cpu::isa::{Level, for_every_isa};

/// Elements `col..` of one row, whose bytes are `packed`; `col` begins a group.
pub(super) fn decode_micro(
    isa: Isa,
    micro: MicroScaled,
    weight: &MatrixView<'_>,
    (row, col): (usize, usize),
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

/// Whether rows of E2M1 are multiplied on their way from memory.
pub(super) fn multiplies_e2m1(isa: Isa) -> bool {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni | Level::Avx512 | Level::Amx => true,
        _ => false,
    }
}

/// Adds the products of some rows of E2M1 with one of activations to their
/// lanes, where [`multiplies_e2m1`].
pub(super) fn multiply_e2m1<const ROWS: usize>(
    isa: Isa,
    micro: MicroScaled,
    (packed, scales): ([&[u8]; ROWS], [&[u8]; ROWS]),
    x: &[f32],
    sums: &mut [[f32; 16]; ROWS],
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
        _ => unreachable!("no kernel for {micro:?}: {packed:?}, {scales:?}, {x:?}, {sums:?}"),
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
    /// The definition.
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
    (row, col): (usize, usize),
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
