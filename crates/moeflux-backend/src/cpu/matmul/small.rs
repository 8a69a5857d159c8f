//! Small floats as `f32`, in loops that compilers vectorise.

use moeflux_core::quant::{
    MatrixView, MicroScaled, ScaledBlocks, SmallFloat, e2m1_to_f32, e4m3_to_f32,
};

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
        SmallFloat::E2M1 => decode_e2m1(isa, micro, packed, scales, out),
        SmallFloat::E4M3 => decode_e4m3(isa, micro, packed, scales, out),
    }
}

for_every_isa! {
    fn decode_e2m1(micro: MicroScaled, packed: &[u8], scales: &[u8], out: &mut [f32]) {
        let groups = out.chunks_exact_mut(micro.group_size);
        let packed = packed.chunks_exact(micro.group_size / 2);
        for ((out, packed), scale) in groups.zip(packed).zip(scales) {
            let scale = micro.scale.to_f32(*scale);
            let words = packed.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it));
            for (out, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                for (lane, out) in (0..).zip(out.iter_mut()) {
                    *out = e2m1_to_f32(word >> (4 * lane)) * scale;
                }
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
