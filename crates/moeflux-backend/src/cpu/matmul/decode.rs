//! Elements of a matrix as `f32`.

use moeflux_core::quant::{
    BlockType, Float, MatrixFormat, MatrixView, NF4_GROUP, nf4_pair, unpack_group,
};

use super::block_format::BlockFormat;
use super::floats::decode_floats;
use super::integers::Integers;
use super::partials::COLS;
use super::small::{decode_blocks, decode_micro};
use crate::cpu::Isa;
use crate::cpu::isa::{Level, for_every_isa};

/// Elements `col..` of one row; `col` begins a group.
pub(super) fn decode(isa: Isa, weight: &MatrixView<'_>, row: usize, col: usize, out: &mut [f32]) {
    let row_bytes = weight.format.row_bytes(weight.cols);
    let bytes = &weight.weight[row * row_bytes..(row + 1) * row_bytes];
    let bytes = &bytes[weight.format.row_bytes(col)..weight.format.row_bytes(col + out.len())];
    match weight.format {
        MatrixFormat::Dense(float) => decode_dense(isa, float, bytes, out),
        MatrixFormat::Affine(affine) => {
            assert!(affine.is_supported(weight.cols), "no kernel for {affine:?}");
            let mut unpacked = [0; COLS];
            let unpacked = &mut unpacked[..out.len()];
            unpack(isa, affine.bits, bytes, unpacked);
            let first = row * affine.n_groups(weight.cols) + affine.n_groups(col);
            decode_affine(isa, Integers::affine(affine), unpacked, weight, first, out);
        }
        MatrixFormat::Micro(micro) => decode_micro(isa, micro, weight, row, col, bytes, out),
        MatrixFormat::Blocks(blocks) => decode_blocks(isa, blocks, weight, row, col, bytes, out),
        MatrixFormat::Nf4 => {
            let n_groups = |cols: usize| cols / NF4_GROUP;
            let first = row * n_groups(weight.cols) + n_groups(col);
            let mut scales = [0f32; COLS / NF4_GROUP];
            let scales = &mut scales[..n_groups(out.len())];
            for (at, scale) in (first..).zip(&mut *scales) {
                *scale = Float::F32.read(weight.scales, at);
            }
            decode_nf4(isa, bytes, scales, out);
        }
        MatrixFormat::Ggml(block_type) => decode_ggml(isa, block_type, bytes, out),
        MatrixFormat::Transposed(_) => panic!("rows of a transposed matrix"),
    }
}

/// The integers of a piece of a row.
pub(super) fn unpack(isa: Isa, bits: u8, packed: &[u8], out: &mut [u8]) {
    match isa.level() {
        Level::Scalar => unpack_group(bits, packed, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2, FMA and F16C.
        Level::Avx2 | Level::AvxVnni => unsafe {
            super::avx2::unpack_row(bits.into(), packed, out)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe {
            super::avx512::unpack_row(bits.into(), packed, out)
        },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: holding this `Isa` proves that the machine has NEON.
        Level::Neon | Level::Dotprod | Level::I8mm => unsafe {
            super::neon::unpack_row(bits.into(), packed, out)
        },
    }
}

for_every_isa! {
    fn decode_dense(float: Float, bytes: &[u8], out: &mut [f32]) {
        decode_floats(float, bytes, out);
    }
}

for_every_isa! {
    fn decode_nf4(codes: &[u8], scales: &[f32], out: &mut [f32]) {
        let groups = out.as_chunks_mut::<NF4_GROUP>().0.iter_mut();
        let codes = codes.as_chunks::<{ NF4_GROUP / 2 }>().0;
        for ((out, codes), scale) in groups.zip(codes).zip(scales) {
            for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                *out = nf4_pair(*byte).map(|level| level * scale);
            }
        }
    }
}

for_every_isa! {
    /// Whole blocks, at most [`COLS`] columns of them.
    fn decode_ggml(block_type: BlockType, blocks: &[u8], out: &mut [f32]) {
        let (mut codes, mut scales, mut biases) = ([0; COLS], [0f32; COLS / 16], [0f32; COLS / 16]);
        let n_groups = out.len() / block_type.group_cols();
        let (codes, scales) = (&mut codes[..out.len()], &mut scales[..n_groups]);
        let biases = &mut biases[..n_groups];
        block_type.decode(blocks, codes, scales, biases);
        if block_type.group_cols() == 16 {
            scale_groups::<16>(codes, scales, biases, out);
        } else {
            scale_groups::<32>(codes, scales, biases, out);
        }
    }
}

/// `scale * code + bias`, rounded once.
#[inline(always)]
fn scale_groups<const GROUP: usize>(codes: &[u8], scales: &[f32], biases: &[f32], out: &mut [f32]) {
    let groups = out.as_chunks_mut::<GROUP>().0.iter_mut().zip(codes.as_chunks::<GROUP>().0);
    for ((out, codes), (scale, bias)) in groups.zip(scales.iter().zip(biases)) {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = scale.mul_add(f32::from(*code), *bias);
        }
    }
}

for_every_isa! {
    /// `first` is the index of the first group's scale and bias.
    fn decode_affine(
        format: Integers,
        q: &[u8],
        weight: &MatrixView<'_>,
        first: usize,
        out: &mut [f32],
    ) {
        let group_cols = format.group_cols();
        let n = out.len() / group_cols;
        let (mut scales, mut biases) = ([0f32; COLS / 32], [0f32; COLS / 32]);
        let (scales, biases) = (&mut scales[..n], &mut biases[..n]);
        format.params_of_groups(weight, first..first + n, scales, biases);
        let groups = out.chunks_exact_mut(group_cols).zip(q.chunks_exact(group_cols));
        for ((out, q), (scale, bias)) in groups.zip(scales.iter().zip(&*biases)) {
            for (out, q) in out.iter_mut().zip(q) {
                *out = scale.mul_add(f32::from(*q), *bias);
            }
        }
    }
}
