//! Where the experts of a layer lie, for every way in which checkpoints
//! store them.

use std::sync::Arc;

use super::claims::Stored;
use super::{Claims, ExpertFiles, FormatError, Tensor, prepared};
use crate::manifest::ExpertsDecl;
use crate::quant::MatrixFormat;
use crate::{ExpertLayout, ExtentSource, FileIdx, LayerBank, MatrixLayout, PartSpan, SourceFile};

/// Formats of an expert's gate, up and down projections.
pub type PartFormats = [MatrixFormat; 3];

/// The layout of a record in one piece: gate {weights, scales, biases}, up
/// {…}, down {…}, without padding.
pub fn record_layout(hidden: usize, intermediate: usize, formats: PartFormats) -> ExpertLayout {
    let shapes = part_shapes(hidden, intermediate);
    let mut end = 0;
    let mut span = |len| {
        let offset = end;
        end += len;
        PartSpan { extent: 0, offset, len }
    };
    let mut matrix = |i: usize| {
        let ((rows, cols), format) = (shapes[i], formats[i]);
        let (row, params) = (format.row_bytes(cols), format.param_bytes(cols));
        let (weight, scales, biases) = (span(rows * row), span(rows * params), span(rows * params));
        MatrixLayout { rows, cols, format, weight, scales, biases }
    };
    let (gate, up, down) = (matrix(0), matrix(1), matrix(2));
    ExpertLayout { extents: vec![end], gate, up, down }
}

/// Rows and columns of gate, up and down.
fn part_shapes(hidden: usize, intermediate: usize) -> [(usize, usize); 3] {
    [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
}

/// Collects extents and matrices whose parts have extents of their own.
#[derive(Default)]
struct Pieces {
    extents: Vec<usize>,
    sources: Vec<ExtentSource>,
}

impl Pieces {
    fn push(&mut self, len: usize, source: ExtentSource) -> PartSpan {
        self.extents.push(len);
        self.sources.push(source);
        PartSpan { extent: self.extents.len() - 1, offset: 0, len }
    }
}

const NOTHING: PartSpan = PartSpan { extent: 0, offset: 0, len: 0 };

impl Claims<'_> {
    pub(super) fn locate_experts(&mut self, decl: &ExpertsDecl) -> Result<LayerBank, FormatError> {
        match &self.checkpoint.expert_files {
            ExpertFiles::Tensors => self.experts_in_tensors(decl),
            ExpertFiles::Prepared(dir) => {
                let dir = dir.clone();
                let (file, formats) = prepared::layer_file(&dir, decl)?;
                let layout = record_layout(decl.hidden, decl.intermediate, formats);
                let stride = layout.record_bytes() as u64;
                Ok(self.experts_in_file(decl, file, layout, stride))
            }
            ExpertFiles::Packed(container) => {
                let packed = container.layer(self.checkpoint.root(), decl)?;
                Ok(self.experts_in_file(decl, packed.file, packed.layout, packed.stride))
            }
        }
    }

    fn experts_in_file(
        &mut self,
        decl: &ExpertsDecl,
        file: SourceFile,
        layout: ExpertLayout,
        stride: u64,
    ) -> LayerBank {
        self.bank.files.push(file);
        let file = FileIdx(u32::try_from(self.bank.files.len() - 1).expect("few files"));
        let sources = vec![ExtentSource::Strided { file, base: 0, stride }];
        LayerBank { n_experts: decl.n_experts, layout: Arc::new(layout), sources }
    }

    fn experts_in_tensors(&mut self, decl: &ExpertsDecl) -> Result<LayerBank, FormatError> {
        let ExpertsDecl { prefix, parts, .. } = decl;
        let has = |name: &str| self.checkpoint.tensors().contains_key(name);
        if has(&format!("{prefix}.switch_mlp.{}.weight", parts[0])) {
            return self.experts_stacked(decl);
        }
        if has(&format!("{prefix}.experts.gate_up_proj")) {
            return self.experts_fused(decl);
        }
        if has(&format!("{prefix}.experts.0.{}.weight", parts[0])) {
            return self.experts_listed(decl);
        }
        let path = self.checkpoint.root().to_path_buf();
        let name = format!(
            "{prefix}.switch_mlp.{part}.weight (or {prefix}.experts.gate_up_proj, or \
             {prefix}.experts.0.{part}.weight)",
            part = parts[0]
        );
        Err(FormatError::TensorMissing { path, name })
    }

    /// MLX: each part of all experts in one tensor.
    fn experts_stacked(&mut self, decl: &ExpertsDecl) -> Result<LayerBank, FormatError> {
        let mut pieces = Pieces::default();
        let shapes = part_shapes(decl.hidden, decl.intermediate);
        let mut matrix = |i: usize| -> Result<MatrixLayout, FormatError> {
            let (rows, cols) = shapes[i];
            let module = format!("{}.switch_mlp.{}", decl.prefix, decl.parts[i]);
            let Stored { format, weight, params } =
                self.stored(&module, &[decl.n_experts, rows], cols)?;
            let mut piece = |tensor: &Tensor| {
                let len = tensor.extent.len / decl.n_experts;
                pieces.push(len, strided(tensor, len))
            };
            let weight = piece(weight);
            let (scales, biases) = params.map_or((NOTHING, NOTHING), |(s, b)| (piece(s), piece(b)));
            Ok(MatrixLayout { rows, cols, format, weight, scales, biases })
        };
        let (gate, up, down) = (matrix(0)?, matrix(1)?, matrix(2)?);
        Ok(layer_bank(decl, pieces, [gate, up, down]))
    }

    /// Hugging Face: gate and up rows of all experts in one tensor, down in
    /// another.
    fn experts_fused(&mut self, decl: &ExpertsDecl) -> Result<LayerBank, FormatError> {
        let ExpertsDecl { prefix, n_experts, hidden, intermediate, .. } = decl;
        let gate_up = self.claim(&format!("{prefix}.experts.gate_up_proj"))?;
        let down = self.claim(&format!("{prefix}.experts.down_proj"))?;
        let mut pieces = Pieces::default();
        let mut dense = |tensor: &Tensor, rows: usize, cols: usize| {
            self.expect_shape(tensor, &[*n_experts, rows], cols)?;
            let super::Dtype::Float(float) = tensor.dtype else {
                return Err(self.unsupported_dtype(tensor));
            };
            let format = MatrixFormat::Dense(float);
            let len = tensor.extent.len / n_experts;
            let weight = pieces.push(len, strided(tensor, len));
            Ok(MatrixLayout { rows, cols, format, weight, scales: NOTHING, biases: NOTHING })
        };
        let both = dense(gate_up, 2 * intermediate, *hidden)?;
        let down = dense(down, *hidden, *intermediate)?;
        let half = |start| {
            let len = both.weight.len / 2;
            let weight = PartSpan { offset: start * len, len, ..both.weight };
            MatrixLayout { rows: *intermediate, weight, ..both }
        };
        Ok(layer_bank(decl, pieces, [half(0), half(1), down]))
    }

    /// One tensor for each part of each expert.
    fn experts_listed(&mut self, decl: &ExpertsDecl) -> Result<LayerBank, FormatError> {
        let mut pieces = Pieces::default();
        let shapes = part_shapes(decl.hidden, decl.intermediate);
        let mut matrix = |i: usize| -> Result<MatrixLayout, FormatError> {
            let (rows, cols) = shapes[i];
            let mut stored = Vec::with_capacity(decl.n_experts);
            for e in 0..decl.n_experts {
                let module = format!("{}.experts.{e}.{}", decl.prefix, decl.parts[i]);
                stored.push(self.stored(&module, &[rows], cols)?);
            }
            let format = stored[0].format;
            if let Some(odd) = stored.iter().find(|it| it.format != format) {
                let what = format!("{} stored unlike its siblings", odd.weight.stored_name);
                let path = self.checkpoint.path_of(odd.weight);
                return Err(FormatError::unsupported(path, what));
            }
            let mut piece = |tensors: Vec<&Tensor>| {
                let entries = tensors.iter().map(|it| (it.extent.file, it.extent.offset));
                pieces.push(tensors[0].extent.len, ExtentSource::Listed(entries.collect()))
            };
            let weight = piece(stored.iter().map(|it| it.weight).collect());
            let params: Option<(Vec<&Tensor>, Vec<&Tensor>)> =
                stored.iter().map(|it| it.params).collect();
            let (scales, biases) = params.map_or((NOTHING, NOTHING), |(s, b)| (piece(s), piece(b)));
            Ok(MatrixLayout { rows, cols, format, weight, scales, biases })
        };
        let (gate, up, down) = (matrix(0)?, matrix(1)?, matrix(2)?);
        Ok(layer_bank(decl, pieces, [gate, up, down]))
    }
}

fn strided(tensor: &Tensor, len: usize) -> ExtentSource {
    let Tensor { extent, .. } = tensor;
    ExtentSource::Strided { file: extent.file, base: extent.offset, stride: len as u64 }
}

fn layer_bank(
    decl: &ExpertsDecl,
    pieces: Pieces,
    [gate, up, down]: [MatrixLayout; 3],
) -> LayerBank {
    let layout = ExpertLayout { extents: pieces.extents, gate, up, down };
    LayerBank { n_experts: decl.n_experts, layout: Arc::new(layout), sources: pieces.sources }
}
