//! Which tensors a synthetic checkpoint has, and what each is filled with.

use moeflux_core::ShapedPart;
use moeflux_core::checkpoint::{Dtype, PartFormats};
use moeflux_core::manifest::{ExpertsDecl, IndicesDecl, Manifest, MatrixDecl, Role, VectorDecl};
use moeflux_core::quant::{Affine, Float, MatrixFormat, MicroScaled};

use super::fill::{Fill, Indices, Noise, vector};
use crate::files::TensorEntry;
use crate::pack::plan::matrix_entries;
use crate::synth::options::SynthOptions;

/// A tensor, and how to make it.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) entry: TensorEntry,
    pub(super) fill: Fill,
    pub(super) noise: Noise,
}

/// Bits of routers and of the gate of the shared expert, whatever the others.
pub(super) const GATE_BITS: u8 = 8;

/// Whether MLX keeps this module at more bits.
pub(super) fn is_gate(name: &str) -> bool {
    let ends = [
        ".mlp.gate",
        ".block_sparse_moe.gate",
        ".mlp.router",
        ".router.gate",
        ".router.proj",
        ".shared_expert_gate",
    ];
    ends.iter().any(|end| name.ends_with(end))
}

/// The format of rows of `cols` columns; 16 bits mean BF16.
pub(super) fn format(options: &SynthOptions, bits: u8, cols: usize) -> MatrixFormat {
    let affine = Affine::new(bits, options.group_size, Float::BF16);
    if bits != 16 && affine.is_supported(cols) {
        MatrixFormat::Affine(affine)
    } else {
        MatrixFormat::Dense(Float::BF16)
    }
}

/// The format of a resident matrix.
pub(super) fn matrix_format(options: &SynthOptions, decl: &MatrixDecl) -> MatrixFormat {
    let is_wide = options.bits != 16 && is_gate(&decl.name);
    format(options, if is_wide { GATE_BITS } else { options.bits }, decl.cols)
}

/// The format of an expert's matrix of that many columns.
fn expert_format(options: &SynthOptions, cols: usize) -> MatrixFormat {
    let mxfp4 = MicroScaled::MXFP4;
    if options.has_mxfp4_experts && mxfp4.is_supported(cols) {
        MatrixFormat::Micro(mxfp4)
    } else {
        format(options, options.bits, cols)
    }
}

/// The formats of an expert's matrices.
pub(super) fn expert_formats(options: &SynthOptions, decl: &ExpertsDecl) -> PartFormats {
    let parts = decl.matrices.names().shaped(decl.hidden, decl.intermediate);
    parts.map(|part| expert_format(options, part.cols))
}

/// Resident tensors in the manifest's order, under their canonical names.
pub(super) fn resident(manifest: &Manifest, options: &SynthOptions) -> Vec<Made> {
    let matrices = manifest.matrices.iter().flat_map(|decl| matrix(decl, options));
    let vectors = manifest.vectors.iter().map(|vector| small(vector, options.seed));
    let indices = manifest.indices.iter().map(|decl| indices(decl, options.seed));
    matrices.chain(vectors).chain(indices).collect()
}

/// The tensors of a vision tower under the names of its plan.
pub(super) fn tower(manifest: &Manifest, seed: u64) -> Vec<Made> {
    let format = MatrixFormat::Dense(Float::BF16);
    let matrix = |decl: &MatrixDecl| {
        let entries = matrix_entries(&decl.name, &[decl.rows], decl.cols, format);
        made(entries, format, 1.0 / (decl.cols as f32).sqrt(), seed, &decl.name)
    };
    let matrices = manifest.matrices.iter().flat_map(matrix);
    matrices.chain(manifest.vectors.iter().map(|vector| small(vector, seed))).collect()
}

/// The standard deviation of a matrix's products with inputs of 1. Embedded tokens have elements
/// around one; logits of heads and routers spread enough that one token and some experts stand out.
pub(super) fn gain(decl: &MatrixDecl) -> f32 {
    match decl.role {
        Role::Embedding => (decl.cols as f32).sqrt(),
        Role::Head => 2.0,
        // Gemma divides the inputs of its routers by the root of their size.
        _ if decl.name.ends_with(".router.proj") => 3.0 * (decl.cols as f32).sqrt(),
        _ if is_gate(&decl.name) => 3.0,
        _ => 1.0,
    }
}

fn matrix(decl: &MatrixDecl, options: &SynthOptions) -> Vec<Made> {
    let format = matrix_format(options, decl);
    let entries = matrix_entries(&decl.name, &[decl.rows], decl.cols, format);
    let std = gain(decl) / (decl.cols as f32).sqrt();
    made(entries, format, std, options.seed, &decl.name)
}

pub(super) fn made(
    entries: Vec<TensorEntry>,
    format: MatrixFormat,
    std: f32,
    seed: u64,
    name: &str,
) -> Vec<Made> {
    let noise = Noise::of(seed, name);
    let fills = Fill::matrix(format, std, noise);
    entries.into_iter().zip(fills).map(|(entry, fill)| Made { entry, fill, noise }).collect()
}

pub(super) fn small(decl: &VectorDecl, seed: u64) -> Made {
    // Of a convolution's shapes MLX's, (channels, kernel, 1), which also says
    // that norms are stored as they multiply.
    let is_mlx = |list: &&Vec<usize>| list.len() == 3 && list[2] == 1;
    let shape = decl.shapes.iter().find(is_mlx).or(decl.shapes.first()).cloned();
    let shape = shape.unwrap_or_default();
    let wide =
        ["A_log", "correction_bias", "expert_bias"].iter().any(|end| decl.name.ends_with(end));
    let float = if wide { Float::F32 } else { Float::BF16 };
    let noise = Noise::of(seed, &decl.name);
    let bytes = vector(&decl.name, shape.iter().product(), float, noise);
    let entry = TensorEntry { name: decl.name.clone(), dtype: Dtype::Float(float), shape };
    Made { entry, fill: Fill::cycle(bytes), noise }
}

/// A table of whole numbers, in 64 bits as such tables are published.
pub(super) fn indices(decl: &IndicesDecl, seed: u64) -> Made {
    let IndicesDecl { name, rows, cols, below } = decl.clone();
    let noise = Noise::of(seed, &name);
    let fill = Fill::Indices(Indices { cols, below, width: 8 });
    let entry = TensorEntry { name, dtype: Dtype::I64, shape: vec![rows, cols] };
    Made { entry, fill, noise }
}

/// The experts of a layer as MLX stacks them.
pub(super) fn stacked(decl: &ExpertsDecl, options: &SynthOptions) -> Vec<Made> {
    // Where the experts are no part of an MLP, their module has a name of its own.
    let is_mlp = ["mlp", "moe"].iter().any(|end| decl.prefix.ends_with(end));
    let block = if is_mlp { "switch_mlp" } else { "experts.switch_glu" };
    let parts = decl.matrices.stacked_names().shaped(decl.hidden, decl.intermediate);
    let of_part = |ShapedPart { part, rows, cols }| {
        let format = expert_format(options, cols);
        let module = format!("{}.{block}.{part}", decl.prefix);
        let entries = matrix_entries(&module, &[decl.n_experts, rows], cols, format);
        made(entries, format, 1.0 / (cols as f32).sqrt(), options.seed, &module)
    };
    parts.into_iter().flat_map(of_part).collect()
}

/// One expert's record: its matrices, each weights, scales, biases.
pub(super) fn record(decl: &ExpertsDecl, options: &SynthOptions) -> Vec<Made> {
    let parts = decl.matrices.names().shaped(decl.hidden, decl.intermediate);
    let of_part = |ShapedPart { part, rows, cols }| {
        let format = expert_format(options, cols);
        let module = format!("{}.experts.{part}", decl.prefix);
        let entries = matrix_entries(&module, &[rows], cols, format);
        made(entries, format, 1.0 / (cols as f32).sqrt(), options.seed, &module)
    };
    parts.into_iter().flat_map(of_part).collect()
}
