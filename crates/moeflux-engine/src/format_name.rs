//! Names of weight formats, for people.

use moeflux_core::quant::{AffineBias, Float, MatrixFormat};

/// What people call a weight format.
pub(crate) fn format_name(format: MatrixFormat) -> String {
    match format {
        MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => match float {
            Float::F32 => String::from("f32"),
            Float::F16 => String::from("f16"),
            Float::BF16 => String::from("bf16"),
        },
        MatrixFormat::Affine(affine) => {
            let symmetric = if affine.bias == AffineBias::Symmetric { ", symmetric" } else { "" };
            format!("{}-bit, groups of {}{symmetric}", affine.bits, affine.group_size)
        }
        MatrixFormat::Micro(micro) => micro.mode().unwrap_or("small floats").to_owned(),
        MatrixFormat::Blocks(fp8) => {
            format!("fp8, blocks of {} × {}", fp8.block_rows, fp8.block_cols)
        }
        MatrixFormat::Nf4 => String::from("nf4"),
        MatrixFormat::Ggml(block_type) => block_type.name().to_owned(),
    }
}
