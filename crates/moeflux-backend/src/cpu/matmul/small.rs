//! Small floats as `f32`, in loops that compilers vectorise.

use moeflux_core::quant::{
    MatrixView, MicroScaled, ScaledBlocks, SmallFloat, e2m1_to_f32, e4m3_to_f32, unpack_group,
};

use super::full::{COLS, unpack};
use crate::cpu::Isa;
use crate::cpu::isa::for_every_isa;

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
        SmallFloat::E2M1 => {
            let mut codes = [0; COLS];
            let codes = &mut codes[..out.len()];
            unpack_codes(isa, packed, codes);
            decode_e2m1(isa, micro, codes, scales, out);
        }
        SmallFloat::E4M3 => decode_e4m3(isa, micro, packed, scales, out),
    }
}

/// The codes of a piece of a row, one a byte.
fn unpack_codes(isa: Isa, packed: &[u8], out: &mut [u8]) {
    // Kernels take 32 columns at a time, groups may have 16.
    let whole = out.len() / 32 * 32;
    let (out, out_rest) = out.split_at_mut(whole);
    let (packed, packed_rest) = packed.split_at(whole / 2);
    unpack(isa, 4, packed, out);
    unpack_group(4, packed_rest, out_rest);
}

for_every_isa! {
    fn decode_e2m1(micro: MicroScaled, codes: &[u8], scales: &[u8], out: &mut [f32]) {
        let groups = out.chunks_exact_mut(micro.group_size);
        let codes = codes.chunks_exact(micro.group_size);
        for ((out, codes), scale) in groups.zip(codes).zip(scales) {
            let scale = micro.scale.to_f32(*scale);
            for (out, code) in out.iter_mut().zip(codes) {
                *out = e2m1_to_f32(u32::from(*code)) * scale;
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
