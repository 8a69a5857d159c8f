//! Matches the declarations of a family with the tensors of a checkpoint: each declared tensor is
//! found with the right shape, and none is left over.

use std::collections::BTreeSet;

use super::{Checkpoint, Dtype, Extent, FileReader, FormatError, Tensor};
use crate::manifest::{ExpertsDecl, MatrixDecl, VectorDecl};
use crate::quant::{Affine, BlockType, Float, MatrixFormat, MatrixView, MicroScaled, ScaledBlocks};
use crate::{ExpertBank, LayerBank};

/// The tensors of a checkpoint, which are claimed one declaration after another.
#[derive(Debug)]
pub struct Claims<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) claimed: BTreeSet<String>,
    pub(super) bank: ExpertBank,
}

/// Where a resident matrix is stored, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixSource {
    /// Rows: outputs.
    pub rows: usize,
    /// Columns: inputs.
    pub cols: usize,
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// The elements, row-major.
    pub weight: Extent,
    /// The scales; empty for formats without scales.
    pub scales: Extent,
    /// One bias per group and row; empty for formats without biases.
    pub biases: Extent,
}

/// Where a resident vector is stored, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorSource {
    /// The bytes of the elements.
    pub extent: Extent,
    /// The type of the elements.
    pub float: Float,
    /// The shape in the checkpoint, one of those declared.
    pub shape: Vec<usize>,
}

/// The bytes of a matrix, or of some of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixBytes {
    /// The elements.
    pub weight: Vec<u8>,
    /// The scales.
    pub scales: Vec<u8>,
    /// The biases.
    pub biases: Vec<u8>,
}

impl MatrixSource {
    /// The source of the rows `start..start + n`, as a matrix.
    pub fn rows(&self, start: usize, n: usize) -> MatrixSource {
        assert!(start <= self.rows && n <= self.rows - start, "rows of a matrix");
        let [weight, scales, biases] = self.format.row_ranges(start, n, self.cols);
        MatrixSource {
            rows: n,
            cols: self.cols,
            format: self.format.from_row(start),
            weight: self.weight.slice(weight.start, weight.len()),
            scales: self.scales.slice(scales.start, scales.len()),
            biases: self.biases.slice(biases.start, biases.len()),
        }
    }

    /// Reads the bytes of the matrix.
    ///
    /// # Errors
    /// If a file cannot be opened or ends too early.
    pub fn read(&self, reader: &FileReader) -> Result<MatrixBytes, FormatError> {
        Ok(MatrixBytes {
            weight: reader.read(self.weight)?,
            scales: reader.read(self.scales)?,
            biases: reader.read(self.biases)?,
        })
    }
}

impl MatrixBytes {
    /// A view of these bytes as the matrix `source`.
    pub fn view(&self, source: &MatrixSource) -> MatrixView<'_> {
        MatrixView {
            rows: source.rows,
            cols: source.cols,
            format: source.format,
            weight: &self.weight,
            scales: &self.scales,
            biases: &self.biases,
        }
    }
}

impl VectorSource {
    /// Reads the elements, in the order in which they are stored.
    ///
    /// # Errors
    /// If the file cannot be opened or ends too early.
    pub fn read_f32(&self, reader: &FileReader) -> Result<Vec<f32>, FormatError> {
        let bytes = reader.read(self.extent)?;
        Ok((0..bytes.len() / self.float.bytes()).map(|i| self.float.read(&bytes, i)).collect())
    }
}

/// The tensors of a weight and of its scales and biases.
pub(super) struct Stored<'a> {
    pub(super) format: MatrixFormat,
    pub(super) weight: &'a Tensor,
    pub(super) scales: Option<&'a Tensor>,
    pub(super) biases: Option<&'a Tensor>,
}

impl Stored<'_> {
    pub(super) fn dense(float: Float, weight: &Tensor) -> Stored<'_> {
        Stored { format: MatrixFormat::Dense(float), weight, scales: None, biases: None }
    }
}

impl<'a> Claims<'a> {
    /// Starts with no tensor claimed.
    pub fn new(checkpoint: &'a Checkpoint) -> Claims<'a> {
        let bank = ExpertBank { files: checkpoint.files().to_vec(), layers: Vec::new() };
        Claims { checkpoint, claimed: BTreeSet::new(), bank }
    }

    /// Claims a matrix, or a stack of matrices that together have the declared number of rows. A
    /// matrix may be claimed twice, as for tied embeddings.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a format that is not supported.
    pub fn matrix(&mut self, decl: &MatrixDecl) -> Result<MatrixSource, FormatError> {
        let outer = self.outer_shape(decl);
        let stored = self.stored(&decl.name, &outer, decl.cols)?;
        let weight = stored.weight.extent;
        let part = |tensor: Option<&Tensor>| tensor.map_or(weight.empty(), |it| it.extent);
        let (scales, biases) = (part(stored.scales), part(stored.biases));
        let (rows, cols, format) = (decl.rows, decl.cols, stored.format);
        if scales.len != format.scale_bytes(rows, cols) {
            // If the blocks of scales end with each matrix of a stack, the stack is not one matrix.
            let what = format!("{} of {outer:?} rows, in blocks that these cut", decl.name);
            return Err(FormatError::unsupported(self.checkpoint.path_of(stored.weight), what));
        }
        Ok(MatrixSource { rows, cols, format, weight, scales, biases })
    }

    /// The shape of a matrix without its columns: its rows, or the heads and rows of a stack
    /// (`embed_q` in MLX's latent attention).
    fn outer_shape(&self, decl: &MatrixDecl) -> Vec<usize> {
        let tensor = self.checkpoint.tensors().get(&format!("{}.weight", decl.name));
        match tensor.map(|it| &it.shape[..]) {
            Some([n, rows, _]) if n.checked_mul(*rows) == Some(decl.rows) => vec![*n, *rows],
            _ => vec![decl.rows],
        }
    }

    /// Claims a vector.
    ///
    /// # Errors
    /// If it is missing, has none of the declared shapes, or has no float type.
    pub fn vector(&mut self, decl: &VectorDecl) -> Result<VectorSource, FormatError> {
        let tensor = self.claim(&decl.name)?;
        let Dtype::Float(float) = tensor.dtype else {
            return Err(self.unsupported_dtype(tensor));
        };
        if !decl.shapes.contains(&tensor.shape) {
            let shapes: Vec<String> = decl.shapes.iter().map(|it| format!("{it:?}")).collect();
            return Err(self.wrong_shape(tensor, shapes.join(" or ")));
        }
        Ok(VectorSource { extent: tensor.extent, float, shape: tensor.shape.clone() })
    }

    /// Claims the routed experts of a layer.
    ///
    /// # Errors
    /// If tensors or files are missing, or have other shapes or sizes. A layer file that does not
    /// exist is not an error here: the store decides about it.
    pub fn experts(&mut self, decl: &ExpertsDecl) -> Result<LayerBank, FormatError> {
        let layer = self.locate_experts(decl)?;
        let n_layers = self.bank.layers.len().max(decl.layer.idx() + 1);
        self.bank.layers.resize(n_layers, None);
        self.bank.layers[decl.layer.idx()] = Some(layer.clone());
        Ok(layer)
    }

    /// Checks that all tensors were claimed.
    ///
    /// # Errors
    /// If tensors were not claimed; the error names up to three of them.
    pub fn finish(&self) -> Result<(), FormatError> {
        let tensors = self.checkpoint.tensors();
        let is_left =
            |name: &str| !self.claimed.contains(name) && !self.checkpoint.is_optional(name);
        // Modules of size zero have tensors without elements, which need not be claimed.
        let is_left = |(name, tensor): &(&String, &Tensor)| is_left(name) && tensor.extent.len > 0;
        let left = || tensors.iter().filter(is_left);
        let n = left().count();
        if n == 0 {
            return Ok(());
        }
        let names: Vec<&str> = left().take(3).map(|(_, it)| it.stored_name.as_str()).collect();
        let path = self.checkpoint.root().to_path_buf();
        Err(FormatError::Unclaimed { path, n, names: names.join(", ") })
    }

    /// The experts claimed so far. The first files of the bank are those of the checkpoint.
    pub fn bank(&self) -> &ExpertBank {
        &self.bank
    }

    /// The bank of the claimed experts.
    pub fn into_bank(self) -> ExpertBank {
        let mut bank = self.bank;
        let n_layers = self.checkpoint.config().usize("num_hidden_layers").unwrap_or(0);
        bank.layers.resize(n_layers.max(bank.layers.len()), None);
        bank
    }

    pub(super) fn claim(&mut self, name: &str) -> Result<&'a Tensor, FormatError> {
        let Some(tensor) = self.checkpoint.tensors().get(name) else {
            let path = self.checkpoint.root().to_path_buf();
            let name = self.checkpoint.shown_name(name);
            return Err(FormatError::TensorMissing { path, name });
        };
        self.claimed.insert(name.to_owned());
        Ok(tensor)
    }

    /// Claims `module.weight` of shape `outer + [cols]` and, if it is quantised, its scales and
    /// biases.
    pub(super) fn stored(
        &mut self,
        module: &str,
        outer: &[usize],
        cols: usize,
    ) -> Result<Stored<'a>, FormatError> {
        let weight = self.claim(&format!("{module}.weight"))?;
        let float = match weight.dtype {
            Dtype::Float(float) => float,
            Dtype::U32 => return self.stored_packed(module, weight, outer, cols),
            Dtype::F8E4M3 => return self.stored_blocks(module, weight, outer, cols),
            Dtype::Ggml(block_type) => {
                self.expect_shape(weight, outer, cols)?;
                return self.stored_ggml(module, weight, block_type, cols);
            }
            // A container's own tensors, whose headers have no name for these types.
            Dtype::U8 if let Some(block_type) = self.checkpoint.rules.ggml_type_of(module) => {
                let row_bytes = MatrixFormat::Ggml(block_type).row_bytes(cols);
                self.expect_shape(weight, outer, row_bytes)?;
                return self.stored_ggml(module, weight, block_type, cols);
            }
            Dtype::U8 | Dtype::Other(_) => return Err(self.unsupported_dtype(weight)),
        };
        self.expect_shape(weight, outer, cols)?;
        for part in ["scales", "weight_scale_inv", "weight_scale"] {
            if self.checkpoint.tensors().contains_key(&format!("{module}.{part}")) {
                let what = format!("{module} has {} weights and {part}", weight.dtype.name());
                return Err(FormatError::unsupported(self.checkpoint.path_of(weight), what));
            }
        }
        Ok(Stored::dense(float, weight))
    }

    /// A matrix of blocks of ggml.
    fn stored_ggml(
        &self,
        module: &str,
        weight: &'a Tensor,
        block_type: BlockType,
        cols: usize,
    ) -> Result<Stored<'a>, FormatError> {
        let format = MatrixFormat::Ggml(block_type);
        if !format.is_supported(cols) {
            let (name, block) = (block_type.name(), block_type.block_cols());
            let what = format!("{module} with {cols} columns of {name}, in blocks of {block},");
            return Err(FormatError::unsupported(self.checkpoint.path_of(weight), what));
        }
        Ok(Stored { format, weight, scales: None, biases: None })
    }

    /// Claims a matrix in a format of MLX: packed words of integers with scales and biases, or of
    /// small floats with scales of one byte.
    fn stored_packed(
        &mut self,
        module: &str,
        weight: &'a Tensor,
        outer: &[usize],
        cols: usize,
    ) -> Result<Stored<'a>, FormatError> {
        let scales = self.claim(&format!("{module}.scales"))?;
        let words = last(weight);
        let bits = words.checked_mul(32).filter(|it| it.is_multiple_of(cols)).map(|it| it / cols);
        let n_groups = last(scales);
        let group_size = (n_groups > 0 && cols.is_multiple_of(n_groups)).then(|| cols / n_groups);
        let (Some(bits), Some(group_size)) =
            (bits.and_then(|it| u8::try_from(it).ok()), group_size)
        else {
            return Err(self.wrong_shape(weight, wanted(outer, "columns × bits / 32")));
        };
        self.expect_shape(weight, outer, words)?;
        self.expect_shape(scales, outer, n_groups)?;
        let path = self.checkpoint.path_of(weight);
        let unsupported = || {
            let what = format!("{module} with {bits} bits in groups of {group_size}");
            FormatError::unsupported(path, what)
        };
        let (format, biases) = match scales.dtype {
            Dtype::Float(params) => {
                let biases = self.claim(&format!("{module}.biases"))?;
                self.expect_shape(biases, outer, n_groups)?;
                if biases.dtype != scales.dtype {
                    let what = format!("{module} has {} biases", biases.dtype.name());
                    return Err(FormatError::unsupported(path, what));
                }
                (MatrixFormat::Affine(Affine { bits, group_size, params }), Some(biases))
            }
            Dtype::U8 => {
                let micro = MicroScaled::MODES.iter().map(|it| it.1).find(|it| {
                    (it.element.bits(), it.group_size) == (usize::from(bits), group_size)
                });
                (MatrixFormat::Micro(micro.ok_or_else(unsupported)?), None)
            }
            _ => return Err(self.unsupported_dtype(scales)),
        };
        if !format.is_supported(cols) {
            return Err(unsupported());
        }
        self.check_rule(module, weight, &format)?;
        Ok(Stored { format, weight, scales: Some(scales), biases })
    }

    /// Claims a matrix of E4M3 with a scale for each block (DeepSeek-V3), for each row, or for the
    /// whole matrix. The last entry of `outer` is the number of rows.
    fn stored_blocks(
        &mut self,
        module: &str,
        weight: &'a Tensor,
        outer: &[usize],
        cols: usize,
    ) -> Result<Stored<'a>, FormatError> {
        self.expect_shape(weight, outer, cols)?;
        let inverse = format!("{module}.weight_scale_inv");
        let other = format!("{module}.weight_scale");
        let has_other = self.checkpoint.tensors().contains_key(&other)
            && !self.checkpoint.tensors().contains_key(&inverse);
        let scales = self.claim(if has_other { &other } else { &inverse })?;
        let Dtype::Float(float) = scales.dtype else {
            return Err(self.unsupported_dtype(scales));
        };
        if let Some(format) = self.scaled_whole(module, scales, float, outer, cols) {
            if !format.is_supported(cols) {
                let what = format!("{module} with one scale for {outer:?} rows of {cols}");
                return Err(FormatError::unsupported(self.checkpoint.path_of(weight), what));
            }
            return Ok(Stored { format, weight, scales: Some(scales), biases: None });
        }
        let (block_rows, block_cols) = self.checkpoint.rules.block_of(module);
        let blocks = ScaledBlocks::new(block_rows, block_cols, float);
        let mut outer = outer.to_vec();
        if let Some(rows) = outer.last_mut() {
            *rows = blocks.n_row_blocks(*rows);
        }
        self.expect_shape(scales, &outer, blocks.n_col_blocks(cols))?;
        let format = MatrixFormat::Blocks(blocks);
        self.check_rule(module, weight, &format)?;
        Ok(Stored { format, weight, scales: Some(scales), biases: None })
    }

    /// The format of an E4M3 matrix with one scale in all or one per row, found from the shape of
    /// the scales; `None` if the scales are those of blocks.
    fn scaled_whole(
        &self,
        module: &str,
        scales: &Tensor,
        float: Float,
        outer: &[usize],
        cols: usize,
    ) -> Option<MatrixFormat> {
        let &[rows] = outer else { return None };
        let (block_rows, block_cols) = self.checkpoint.rules.block_of(module);
        let blocks = ScaledBlocks::new(block_rows, block_cols, float);
        let is_grid = scales.shape == [blocks.n_row_blocks(rows), blocks.n_col_blocks(cols)];
        let (block_rows, block_cols) = match scales.shape[..] {
            _ if is_grid => return None,
            [] | [1] | [1, 1] => (rows, cols),
            [n] | [n, 1] if n == rows => (1, cols),
            _ => return None,
        };
        Some(MatrixFormat::Blocks(ScaledBlocks::new(block_rows, block_cols, float)))
    }

    pub(super) fn check_rule(
        &self,
        module: &str,
        weight: &Tensor,
        format: &MatrixFormat,
    ) -> Result<(), FormatError> {
        let path = self.checkpoint.path_of(weight);
        let rules = &self.checkpoint.rules;
        rules.check(module, format).map_err(|what| FormatError::malformed(path, what))
    }

    pub(super) fn expect_shape(
        &self,
        tensor: &Tensor,
        outer: &[usize],
        inner: usize,
    ) -> Result<(), FormatError> {
        let shape = tensor.shape.split_last();
        if shape.is_some_and(|(last, rest)| *last == inner && rest == outer) {
            return Ok(());
        }
        Err(self.wrong_shape(tensor, wanted(outer, &inner.to_string())))
    }

    pub(super) fn wrong_shape(&self, tensor: &Tensor, want: String) -> FormatError {
        FormatError::Shape {
            path: self.checkpoint.path_of(tensor).to_path_buf(),
            name: tensor.stored_name.clone(),
            have: tensor.shape.clone(),
            want,
        }
    }

    pub(super) fn unsupported_dtype(&self, tensor: &Tensor) -> FormatError {
        let what = format!("dtype {} of {}", tensor.dtype.name(), tensor.stored_name);
        FormatError::unsupported(self.checkpoint.path_of(tensor), what)
    }
}

fn last(tensor: &Tensor) -> usize {
    tensor.shape.last().copied().unwrap_or(0)
}

fn wanted(outer: &[usize], inner: &str) -> String {
    let outer: String = outer.iter().map(|it| format!("{it}, ")).collect();
    format!("[{outer}{inner}]")
}
