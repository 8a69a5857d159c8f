//! Names of weight formats, for people.

use moeflux_core::ExpertBank;
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

/// How experts are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertFormat {
    /// What people call it, such as `4-bit, groups of 64`, by the first matrix of the first expert.
    pub name: String,
    /// Bits of a weight, scales and biases included, in the mean of the first layer that has experts.
    pub bits: f64,
}

impl ExpertFormat {
    /// Of a bank; `None` where it has no experts.
    pub(crate) fn of(bank: &ExpertBank) -> Option<ExpertFormat> {
        let layout = &bank.layers.iter().flatten().next()?.layout;
        let name = format_name(layout.matrices().next()?.format);
        let (n_bytes, n_weights) = layout.matrices().fold((0, 0), |(bytes, weights), matrix| {
            let (rows, cols) = (matrix.rows, matrix.cols);
            (bytes + matrix.format.matrix_bytes(rows, cols), weights + rows * cols)
        });
        Some(ExpertFormat { name, bits: 8.0 * n_bytes as f64 / n_weights.max(1) as f64 })
    }
}
