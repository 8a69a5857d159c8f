//! Matches the declarations of a family with the tensors of a checkpoint: each declared tensor is
//! found with the right shape, and none is left over.

mod constants;
mod fp4;
mod fp8;
mod integers;
mod nf4;
mod source;
mod stored;
mod tables;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use source::{MatrixBytes, MatrixSource, VectorSource};
pub(super) use stored::{Parts, Stored};

use super::derived::DerivedTensors;
use super::{Checkpoint, Dtype, FormatError, Tensor};
use crate::manifest::{ExpertsDecl, MatrixDecl, VectorDecl};
use crate::quant::{Float, MatrixFormat};
use crate::{ExpertBank, LayerBank, RowBank, SourceFile};

/// The tensors of a checkpoint, which are claimed one declaration after another.
#[derive(Debug)]
pub struct Claims<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) claimed: BTreeSet<String>,
    pub(super) bank: ExpertBank,
    rows: RowBank,
}

impl<'a> Claims<'a> {
    /// Starts with no tensor claimed.
    pub fn new(checkpoint: &'a Checkpoint) -> Claims<'a> {
        let bank = ExpertBank { files: checkpoint.files().to_vec(), layers: Vec::new() };
        let rows = RowBank { files: checkpoint.files().to_vec(), tables: Vec::new() };
        Claims { checkpoint, claimed: BTreeSet::new(), bank, rows }
    }

    /// Claims a matrix, or a stack of matrices that together have the declared number of rows. A
    /// matrix may be claimed twice, as for tied embeddings.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a format that is not supported.
    pub fn matrix(&mut self, decl: &MatrixDecl) -> Result<MatrixSource, FormatError> {
        let outer = self.outer_shape(decl);
        let stored = self.stored(&decl.name, &outer, decl.cols)?;
        self.add_derived_file();
        let (rows, cols, format) = (decl.rows, decl.cols, stored.format);
        let path = self.checkpoint.path_of(stored.tensor);
        let apart =
            || FormatError::unsupported(path, format!("{}, a stack that is converted,", decl.name));
        let whole = |parts: &Parts| parts.whole().ok_or_else(apart);
        let weight = whole(&stored.weight)?;
        let part = |parts: &Option<Parts>| parts.as_ref().map_or(Ok(weight.empty()), whole);
        let (scales, biases) = (part(&stored.scales)?, part(&stored.biases)?);
        if scales.len != format.scale_bytes(rows, cols) {
            // If the blocks of scales end with each matrix of a stack, the stack is not one matrix.
            let what = format!("{} of {outer:?} rows, in blocks that these cut", decl.name);
            return Err(FormatError::unsupported(self.checkpoint.path_of(stored.tensor), what));
        }
        Ok(MatrixSource { rows, cols, format, weight, scales, biases })
    }

    /// The shape of a matrix without its columns: its rows, or the heads and rows of a stack
    /// (`embed_q` in MLX's latent attention).
    fn outer_shape(&self, decl: &MatrixDecl) -> Vec<usize> {
        let tensor = self.checkpoint.tensors().get(&format!("{}.weight", decl.name));
        match tensor.map(|tensor| &tensor.shape[..]) {
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
        let stored = match tensor.dtype {
            Dtype::Float(float) => Some((tensor.extent, float)),
            Dtype::F8E4M3 => None,
            _ => return Err(self.unsupported_dtype(tensor)),
        };
        if !decl.shapes.contains(&tensor.shape) {
            let shapes: Vec<String> =
                decl.shapes.iter().map(|shape| format!("{shape:?}")).collect();
            return Err(self.wrong_shape(tensor, shapes.join(" or ")));
        }
        let (extent, float) = match stored {
            Some(stored) => stored,
            None => (self.decoded_fp8(&decl.name, tensor)?, Float::F32),
        };
        self.add_derived_file();
        Ok(VectorSource { extent, float, shape: tensor.shape.clone() })
    }

    /// Claims the routed experts of a layer.
    ///
    /// # Errors
    /// If tensors or files are missing, or have other shapes or sizes. A layer file that does not
    /// exist is not an error here: the store decides about it.
    pub fn experts(&mut self, decl: &ExpertsDecl) -> Result<LayerBank, FormatError> {
        let layer = self.locate_experts(decl)?;
        self.add_derived_file();
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
        let names: Vec<&str> =
            left().take(3).map(|(_, tensor)| tensor.stored_name.as_str()).collect();
        let path = self.checkpoint.root().to_path_buf();
        Err(FormatError::Unclaimed { path, n, names: names.join(", ") })
    }

    /// The experts claimed so far. The first files of the bank are those of the checkpoint, then
    /// that of derived tensors.
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

    /// Where tensors that are computed from others are added.
    fn derived(&self) -> &'a DerivedTensors {
        &self.checkpoint.derived
    }

    /// Adds the file of derived tensors to the bank if there are any. It follows the files of the
    /// checkpoint, as their extents say: checkpoints with such tensors have no files of layers.
    fn add_derived_file(&mut self) {
        let n_files = self.checkpoint.files().len();
        if self.bank.files.len() == n_files && !self.checkpoint.derived.is_empty() {
            let derived = Arc::clone(&self.checkpoint.derived);
            self.bank.files.push(SourceFile::derived(self.checkpoint.root(), derived));
        }
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
    let outer: String = outer.iter().map(|n| format!("{n}, ")).collect();
    format!("[{outer}{inner}]")
}
