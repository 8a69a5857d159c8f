//! Where the experts of a layer are stored, for each way in which checkpoints store them.

use std::ops::Range;
use std::sync::Arc;

use super::super::container::LayerOfFile;
use super::super::opened::ExpertFiles;
use super::super::record::record_layout;
use super::super::{CheckpointKind, Dtype, Extent, FormatError, prepared};
use super::claimed::Claimed;
use super::parts::{Parts, Stored};
use super::stored;
use crate::manifest::{ExpertMatrices, ExpertsDecl, FusedOrder};
use crate::quant::{MatrixFormat, MicroScaled};
use crate::{
    ExpertLayout, ExpertParts, ExtentSource, FileIdx, GateUp, LayerBank, MatrixLayout, PartSpan,
    ShapedPart, SourceFile,
};

/// Names of MLX's module with all experts (`SwitchGLU`).
const STACKED_BLOCKS: [&str; 3] = ["switch_mlp", "experts", "experts.switch_glu"];

/// Names in MLX's module with experts of two matrices (`SwitchMLP`).
const STACKED_TWO: ExpertParts<&str> = ExpertParts { gate: None, up: "fc1", down: "fc2" };

/// Names of modules with the rows of gate and of up of all experts, and of those of down, below the
/// block: of GGUF's second layout in each of [`STACKED_BLOCKS`].
const HALF_STACKED: [[&str; 2]; 3] = [
    ["switch_mlp.gate_up_proj", "switch_mlp.down_proj"],
    ["experts.gate_up_proj", "experts.down_proj"],
    ["experts.switch_glu.gate_up_proj", "experts.switch_glu.down_proj"],
];

/// Claims a fused tensor of all experts. It takes the name of the tensor, with the shape that it has of
/// an expert.
type ClaimFused<'a> = fn(
    &mut Claimed<'a>,
    &ExpertsDecl,
    FusedOrder,
    ShapedPart<&str>,
) -> Result<Stored<'a>, FormatError>;

/// Claims the experts of a layer. A file that has them is added to `files`.
pub(super) fn locate(
    claimed: &mut Claimed<'_>,
    files: &mut Vec<SourceFile>,
    decl: &ExpertsDecl,
) -> Result<LayerBank, FormatError> {
    let checkpoint = claimed.checkpoint;
    let layer = match &checkpoint.expert_files {
        ExpertFiles::Tensors => return experts_in_tensors(claimed, decl),
        ExpertFiles::Prepared(dir) => {
            let (file, formats) = prepared::layer_file(dir, decl)?;
            let layout = record_layout(decl.hidden, decl.intermediate, formats);
            let stride = layout.record_bytes() as u64;
            LayerOfFile { file, layout, stride, checksums: None }
        }
        ExpertFiles::Packed(container) => container.layer(checkpoint.root(), decl)?,
    };
    let LayerOfFile { file, layout, stride, checksums } = layer;
    files.push(file);
    let file = FileIdx(u32::try_from(files.len() - 1).expect("few files"));
    let sources = vec![ExtentSource::Strided { file, base: 0, stride }];
    Ok(LayerBank { n_experts: decl.n_experts, layout: Arc::new(layout), sources, checksums })
}

fn experts_in_tensors(
    claimed: &mut Claimed<'_>,
    decl: &ExpertsDecl,
) -> Result<LayerBank, FormatError> {
    let prefix = &decl.prefix;
    let has = |name: &str| claimed.checkpoint.tensors().contains_key(name);
    if let ExpertMatrices::Three { fused, .. } = decl.matrices {
        let joined = &claimed.checkpoint.joined_experts;
        for names in HALF_STACKED.into_iter().chain(joined.iter().copied()) {
            if claimed.has_weight(&format!("{prefix}.{}", names[0])) {
                return experts_half_stacked(claimed, decl, names);
            }
        }
        if has(&format!("{prefix}.experts.gate_up_proj")) {
            return experts_fused(claimed, decl, fused, fused_tensor);
        }
        if has(&format!("{prefix}.experts.gate_up_proj_blocks")) {
            return experts_fused(claimed, decl, fused, fused_mxfp4);
        }
    }
    let (stacked, listed) = (decl.matrices.stacked_names(), decl.matrices.names());
    let of_two = matches!(decl.matrices, ExpertMatrices::Two { .. }).then_some(STACKED_TWO);
    for names in [stacked].into_iter().chain(of_two) {
        for block in STACKED_BLOCKS {
            if claimed.has_weight(&format!("{prefix}.{block}.{}", first(names))) {
                return experts_stacked(claimed, decl, block, names);
            }
        }
    }
    if claimed.has_weight(&format!("{prefix}.experts.0.{}", first(listed))) {
        return experts_listed(claimed, decl);
    }
    let path = claimed.checkpoint.root().to_path_buf();
    let stacked = format!("{prefix}.switch_mlp.{}.weight", first(stacked));
    if claimed.checkpoint.kind() == CheckpointKind::Gguf {
        let name = claimed.checkpoint.shown_name(&stacked);
        return Err(FormatError::TensorMissing { path, name });
    }
    let fused = match decl.matrices {
        ExpertMatrices::Two { .. } => String::new(),
        ExpertMatrices::Three { .. } => format!("{prefix}.experts.gate_up_proj, or "),
    };
    let name = format!("{stacked} (or {fused}{prefix}.experts.0.{}.weight)", first(listed));
    Err(FormatError::TensorMissing { path, name })
}

/// The name of an expert's first matrix.
fn first(names: ExpertParts<&'static str>) -> &'static str {
    names.gate.unwrap_or(names.up)
}

/// MLX: one tensor for each projection of all experts.
fn experts_stacked(
    claimed: &mut Claimed<'_>,
    decl: &ExpertsDecl,
    block: &str,
    names: ExpertParts<&'static str>,
) -> Result<LayerBank, FormatError> {
    let mut pieces = Pieces::default();
    let parts = names.shaped(decl.hidden, decl.intermediate).try_map(|part| {
        let ShapedPart { part, rows, cols } = part;
        let module = format!("{}.{block}.{part}", decl.prefix);
        let stored = stored::stored(claimed, &module, &[decl.n_experts, rows], cols)?;
        Ok::<_, FormatError>(pieces.stacked(&stored, decl.n_experts, rows, cols))
    })?;
    Ok(pieces.bank(decl, |extents| ExpertLayout::of_parts(extents, parts)))
}

/// One tensor for the gate rows of all experts, those of an expert before its up rows, and one
/// for down.
fn experts_half_stacked(
    claimed: &mut Claimed<'_>,
    decl: &ExpertsDecl,
    names: [&str; 2],
) -> Result<LayerBank, FormatError> {
    let ExpertsDecl { prefix, n_experts, hidden, intermediate, .. } = decl;
    let mut pieces = Pieces::default();
    let mut matrix = |name: &str, rows: usize, cols: usize| -> Result<_, FormatError> {
        let stored =
            stored::stored(claimed, &format!("{prefix}.{name}"), &[*n_experts, rows], cols)?;
        Ok(pieces.stacked(&stored, *n_experts, rows, cols))
    };
    let both = matrix(names[0], 2 * intermediate, *hidden)?;
    let down = matrix(names[1], *hidden, *intermediate)?;
    let gate_up = GateUp::Split {
        gate: rows_of(&both, 0, *intermediate),
        up: rows_of(&both, *intermediate, *intermediate),
    };
    Ok(pieces.bank(decl, |extents| ExpertLayout { extents, gate_up, down }))
}

/// Hugging Face: one tensor for the gate and up rows of all experts, and one for down.
fn experts_fused<'a>(
    claimed: &mut Claimed<'a>,
    decl: &ExpertsDecl,
    fused: FusedOrder,
    claim: ClaimFused<'a>,
) -> Result<LayerBank, FormatError> {
    let ExpertsDecl { prefix, n_experts, hidden, intermediate, .. } = decl;
    let mut pieces = Pieces::default();
    let mut matrix = |name: &str, rows: usize, cols: usize| -> Result<_, FormatError> {
        let name = format!("{prefix}.experts.{name}");
        let stored = claim(claimed, decl, fused, ShapedPart { part: &name, rows, cols })?;
        Ok(pieces.stacked(&stored, *n_experts, rows, cols))
    };
    let both = matrix("gate_up_proj", 2 * intermediate, *hidden)?;
    let down = matrix("down_proj", *hidden, *intermediate)?;
    let gate_up = match (fused, both.format) {
        (FusedOrder::Alternating, _) => {
            if both.biases.len != both.format.bias_bytes(both.rows, both.cols) {
                let what = format!("{prefix}.experts.gate_up_proj with two scales an expert");
                return Err(FormatError::unsupported(claimed.checkpoint.root(), what));
            }
            GateUp::Alternating(both)
        }
        (_, MatrixFormat::Transposed(_)) => GateUp::Joined(both),
        _ => GateUp::Split {
            gate: rows_of(&both, 0, *intermediate),
            up: rows_of(&both, *intermediate, *intermediate),
        },
    };
    Ok(pieces.bank(decl, |extents| ExpertLayout { extents, gate_up, down }))
}

/// Claims a fused tensor. Outputs come before inputs, except of floats in some families.
fn fused_tensor<'a>(
    claimed: &mut Claimed<'a>,
    decl: &ExpertsDecl,
    fused: FusedOrder,
    part: ShapedPart<&str>,
) -> Result<Stored<'a>, FormatError> {
    let ShapedPart { part: name, rows, cols } = part;
    let tensor = claimed.claim(name)?;
    let has_outputs_first = match fused {
        FusedOrder::GateThenUp => true,
        FusedOrder::GateThenUpByShape => has_outputs_first(claimed, decl)?,
        FusedOrder::Alternating => false,
    };
    // Packed tensors have another shape.
    if has_outputs_first || !matches!(tensor.dtype, Dtype::Float(_)) {
        return stored::stored_weight(claimed, name, tensor, &[decl.n_experts, rows], cols);
    }
    let Dtype::Float(float) = tensor.dtype else {
        return Err(claimed.unsupported_dtype(tensor));
    };
    claimed.expect_shape(tensor, &[decl.n_experts, cols], rows)?;
    Ok(Stored::plain(MatrixFormat::Transposed(float), tensor))
}

/// Whether the fused tensors of a layer have outputs before inputs.
///
/// # Errors
/// Where the tensor of gate and up is square and that of down has inputs first. transformers 5 turns each
/// tensor round by its own shape and leaves the square one as it is, so programs that turn both, or none,
/// read other weights.
fn has_outputs_first(claimed: &Claimed<'_>, decl: &ExpertsDecl) -> Result<bool, FormatError> {
    let ExpertsDecl { prefix, n_experts, hidden, intermediate, .. } = decl;
    let fits = |name: &str, rows: usize, cols: usize| {
        let tensor = claimed.checkpoint.tensors().get(&format!("{prefix}.experts.{name}"));
        tensor.filter(|tensor| tensor.shape == [*n_experts, rows, cols])
    };
    let both = fits("gate_up_proj", 2 * intermediate, *hidden);
    let has_down = fits("down_proj", *hidden, *intermediate).is_some();
    match both {
        Some(square) if !has_down && 2 * intermediate == *hidden => {
            let what = format!(
                "{}, whose shape {:?} fits inputs and outputs in either order (save it with outputs \
                 first, as down_proj too),",
                square.stored_name, square.shape
            );
            Err(FormatError::unsupported(claimed.checkpoint.path_of(square), what))
        }
        both => Ok(both.is_some() && has_down),
    }
}

/// Claims a fused tensor of gpt-oss as published: `[experts, rows, groups, 16]` bytes, and one
/// scale per group.
fn fused_mxfp4<'a>(
    claimed: &mut Claimed<'a>,
    decl: &ExpertsDecl,
    _fused: FusedOrder,
    part: ShapedPart<&str>,
) -> Result<Stored<'a>, FormatError> {
    let ShapedPart { part: name, rows, cols } = part;
    const MXFP4: MicroScaled = MicroScaled::MXFP4;
    let weight = claimed.claim(&format!("{name}_blocks"))?;
    let scales = claimed.claim(&format!("{name}_scales"))?;
    if let Some(odd) = [weight, scales].into_iter().find(|tensor| tensor.dtype != Dtype::U8) {
        return Err(claimed.unsupported_dtype(odd));
    }
    let n_groups = cols.div_ceil(MXFP4.group_size);
    claimed.expect_shape(weight, &[decl.n_experts, rows, n_groups], MXFP4.group_size / 2)?;
    claimed.expect_shape(scales, &[decl.n_experts, rows], n_groups)?;
    let format = MatrixFormat::Micro(MXFP4);
    if !format.is_supported(cols) {
        let what = format!("{name} with {cols} columns in groups of {}", MXFP4.group_size);
        return Err(FormatError::unsupported(claimed.checkpoint.path_of(weight), what));
    }
    claimed.check_rule(name, weight, &format)?;
    let (parts, scales) = (Parts::Whole(weight.extent), Some(Parts::Whole(scales.extent)));
    Ok(Stored { format, tensor: weight, weight: parts, scales, biases: None })
}

/// One tensor for each projection of each expert.
fn experts_listed(claimed: &mut Claimed<'_>, decl: &ExpertsDecl) -> Result<LayerBank, FormatError> {
    let mut pieces = Pieces::default();
    let names = decl.matrices.names().shaped(decl.hidden, decl.intermediate);
    let parts = names.try_map(|part| {
        let ShapedPart { part, rows, cols } = part;
        let mut stored = Vec::with_capacity(decl.n_experts);
        for e in 0..decl.n_experts {
            let module = format!("{}.experts.{e}.{part}", decl.prefix);
            stored.push(stored::stored(claimed, &module, &[rows], cols)?);
        }
        let format = stored[0].format;
        if let Some(odd) = stored.iter().find(|other| other.format != format) {
            let what = format!("{} stored unlike its siblings", odd.tensor.stored_name);
            let path = claimed.checkpoint.path_of(odd.tensor);
            return Err(FormatError::unsupported(path, what));
        }
        let mut piece = |part: fn(&Stored<'_>) -> Option<Extent>| {
            // The experts have one format, so all have scales if one has.
            let extents: Option<Vec<Extent>> = stored.iter().map(part).collect();
            extents.map_or(NOTHING, |extents| pieces.listed(&extents))
        };
        let weight = piece(|expert| expert.weight.whole());
        let scales = piece(|expert| expert.scales.as_ref()?.whole());
        let biases = piece(|expert| expert.biases.as_ref()?.whole());
        Ok::<_, FormatError>(MatrixLayout { rows, cols, format, weight, scales, biases })
    })?;
    Ok(pieces.bank(decl, |extents| ExpertLayout::of_parts(extents, parts)))
}

fn strided(extent: Extent, len: usize) -> ExtentSource {
    ExtentSource::Strided { file: extent.file, base: extent.offset, stride: len as u64 }
}

/// The layout of gate (`start` 0) or of up, which are `n` rows each of a matrix with contiguous rows.
///
/// Scales of blocks are those of the fused matrix, in which a block may have rows of both, or those of two
/// matrices that were quantised apart and then joined. Where the number of scales fits both, they are read as
/// those of two: experts are published one by one more often than fused.
fn rows_of(whole: &MatrixLayout, start: usize, n: usize) -> MatrixLayout {
    let [weight, mut scales, mut biases] = whole.format.row_ranges(start, n, whole.cols);
    let mut format = whole.format.from_row(start);
    let scales_of_half = whole.format.scale_bytes(n, whole.cols);
    if whole.scales.len == 2 * scales_of_half {
        let first = if start > 0 { scales_of_half } else { 0 };
        (scales, format) = (first..first + scales_of_half, whole.format);
    }
    // Gate and up rows may have a scale each where other matrices have one for all rows.
    let has_halves = whole.biases.len == 2 * whole.format.bias_bytes(whole.rows, whole.cols);
    if has_halves && start > 0 {
        biases = biases.end..whole.biases.len;
    }
    let part = |span: PartSpan, range: Range<usize>| PartSpan {
        offset: span.offset + range.start,
        len: range.len(),
        ..span
    };
    MatrixLayout {
        rows: n,
        cols: whole.cols,
        format,
        weight: part(whole.weight, weight),
        scales: part(whole.scales, scales),
        biases: part(whole.biases, biases),
    }
}

/// Collects the extents of a record, one for each part of a matrix, and the layouts of its
/// matrices.
#[derive(Default)]
struct Pieces {
    extents: Vec<usize>,
    sources: Vec<ExtentSource>,
}

impl Pieces {
    /// Experts that have these extents, and the layout of them.
    fn bank(
        self,
        decl: &ExpertsDecl,
        layout: impl FnOnce(Vec<usize>) -> ExpertLayout,
    ) -> LayerBank {
        LayerBank {
            n_experts: decl.n_experts,
            layout: Arc::new(layout(self.extents)),
            sources: self.sources,
            checksums: None,
        }
    }

    fn push(&mut self, len: usize, source: ExtentSource) -> PartSpan {
        self.extents.push(len);
        self.sources.push(source);
        PartSpan { extent: self.extents.len() - 1, offset: 0, len }
    }

    /// Adds a part that each expert has at a place of its own.
    fn listed(&mut self, extents: &[Extent]) -> PartSpan {
        let entries = extents.iter().map(|extent| (extent.file, extent.offset));
        self.push(extents[0].len, ExtentSource::Listed(entries.collect()))
    }

    /// Adds the matrix of one expert, from tensors that hold those of all experts.
    fn stacked(
        &mut self,
        stored: &Stored<'_>,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> MatrixLayout {
        let mut piece = |parts: &Parts| match parts {
            Parts::Whole(extent) => {
                let len = extent.len / n_experts;
                self.push(len, strided(*extent, len))
            }
            Parts::Each(extents) => self.listed(extents),
        };
        let weight = piece(&stored.weight);
        let scales = stored.scales.as_ref().map_or(NOTHING, &mut piece);
        let biases = stored.biases.as_ref().map_or(NOTHING, &mut piece);
        MatrixLayout { rows, cols, format: stored.format, weight, scales, biases }
    }
}

const NOTHING: PartSpan = PartSpan { extent: 0, offset: 0, len: 0 };
