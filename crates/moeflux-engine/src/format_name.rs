//! Names of weight formats, for people.

use moeflux_core::quant::{Float, MatrixFormat};

/// What people call a weight format.
pub(crate) fn format_name(format: MatrixFormat) -> String {
    match format {
        MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => match float {
            Float::F32 => String::from("f32"),
            Float::F16 => String::from("f16"),
            Float::BF16 => String::from("bf16"),
        },
        MatrixFormat::Affine(it) => format!("{}-bit, groups of {}", it.bits, it.group_size),
        MatrixFormat::Micro(it) => it.mode().unwrap_or("small floats").to_owned(),
        MatrixFormat::Blocks(it) => format!("fp8, blocks of {} × {}", it.block_rows, it.block_cols),
        MatrixFormat::Ggml(it) => it.name().to_owned(),
    }
}
