//! Matches the declarations of a family with the tensors of a checkpoint: each declared tensor is
//! found with the right shape, and none is left over.

mod claimed;
mod constants;
mod experts;
mod fp4;
mod fp8;
mod indices;
mod integers;
mod nf4;
mod parts;
mod source;
mod stored;
mod tables;

use std::sync::Arc;

pub use indices::IndicesSource;
pub use source::{MatrixBytes, MatrixSource, VectorSource};

use self::claimed::Claimed;
use self::parts::Parts;
use super::{Checkpoint, Dtype, FormatError, Tensor};
use crate::manifest::{ConstantsDecl, ExpertsDecl, IndicesDecl, MatrixDecl, TableDecl, VectorDecl};
use crate::quant::Float;
use crate::{ExpertBank, LayerBank, RowBank, RowTable, SourceFile};

/// The tensors of a checkpoint, which are claimed one declaration after another.
#[derive(Debug)]
pub struct Claims<'a> {
    claimed: Claimed<'a>,
    bank: ExpertBank,
    rows: RowBank,
}

impl<'a> Claims<'a> {
    /// Starts with no tensor claimed.
    pub fn new(checkpoint: &'a Checkpoint) -> Claims<'a> {
        let bank = ExpertBank { files: checkpoint.files().to_vec(), layers: Vec::new() };
        let rows = RowBank { files: checkpoint.files().to_vec(), tables: Vec::new() };
        Claims { claimed: Claimed::new(checkpoint), bank, rows }
    }

    /// Claims a matrix, or a stack of matrices that together have the declared number of rows. A
    /// matrix may be claimed twice, as for tied embeddings.
    ///
    /// # Errors
    /// If it is missing, has another shape, or has a format that is not supported.
    pub fn matrix(&mut self, decl: &MatrixDecl) -> Result<MatrixSource, FormatError> {
        let outer = self.outer_shape(decl);
        let stored = stored::stored(&mut self.claimed, &decl.name, &outer, decl.cols)?;
        self.add_derived_file();
        let (rows, cols, format) = (decl.rows, decl.cols, stored.format);
        let path = self.claimed.checkpoint.path_of(stored.tensor);
        let apart =
            || FormatError::unsupported(path, format!("{}, a stack that is converted,", decl.name));
        let whole = |parts: &Parts| parts.whole().ok_or_else(apart);
        let weight = whole(&stored.weight)?;
        let part = |parts: &Option<Parts>| parts.as_ref().map_or(Ok(weight.empty()), whole);
        let (scales, biases) = (part(&stored.scales)?, part(&stored.biases)?);
        if scales.len != format.scale_bytes(rows, cols) {
            // If the blocks of scales end with each matrix of a stack, the stack is not one matrix.
            let what = format!("{} of {outer:?} rows, in blocks that these cut", decl.name);
            return Err(FormatError::unsupported(
                self.claimed.checkpoint.path_of(stored.tensor),
                what,
            ));
        }
        Ok(MatrixSource { rows, cols, format, weight, scales, biases })
    }

    /// The shape of a matrix without its columns: its rows, or the heads and rows of a stack
    /// (`embed_q` in MLX's latent attention).
    fn outer_shape(&self, decl: &MatrixDecl) -> Vec<usize> {
        let tensor = self.claimed.checkpoint.tensors().get(&format!("{}.weight", decl.name));
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
        let tensor = self.claimed.claim(&decl.name)?;
        let stored = match tensor.dtype {
            Dtype::Float(float) => Some((tensor.extent, float)),
            Dtype::F8E4M3 => None,
            _ => return Err(self.claimed.unsupported_dtype(tensor)),
        };
        if !decl.shapes.contains(&tensor.shape) {
            let shapes: Vec<String> =
                decl.shapes.iter().map(|shape| format!("{shape:?}")).collect();
            return Err(self.claimed.wrong_shape(tensor, shapes.join(" or ")));
        }
        let (extent, float) = match stored {
            Some(stored) => stored,
            None => (fp8::decoded(&mut self.claimed, &decl.name, tensor)?, Float::F32),
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
        let layer = experts::locate(&mut self.claimed, &mut self.bank.files, decl)?;
        self.add_derived_file();
        let n_layers = self.bank.layers.len().max(decl.layer.idx() + 1);
        self.bank.layers.resize(n_layers, None);
        self.bank.layers[decl.layer.idx()] = Some(layer.clone());
        Ok(layer)
    }

    /// Claims a resident table of whole numbers, of 32 bits or of 64.
    ///
    /// # Errors
    /// If it is missing, or has another type or shape.
    pub fn indices(&mut self, decl: &IndicesDecl) -> Result<IndicesSource, FormatError> {
        indices::indices(&mut self.claimed, decl)
    }

    /// Claims a tensor of 64-bit integers, where there is one, and compares it with the declared
    /// values.
    ///
    /// # Errors
    /// If it cannot be read, or has another type, shape or value.
    pub fn constants(&mut self, decl: &ConstantsDecl) -> Result<(), FormatError> {
        constants::constants(&mut self.claimed, decl)
    }

    /// Claims a table: one tensor, or shards `shard_0`, `shard_1` and so on, whose rows follow each
    /// other.
    ///
    /// # Errors
    /// If a shard is missing or has another width, if all together have another number of rows, or
    /// if elements have a type that is not supported.
    pub fn table(&mut self, decl: &TableDecl) -> Result<RowTable, FormatError> {
        let table = tables::table(&mut self.claimed, decl)?;
        self.rows.tables.push(table.clone());
        Ok(table)
    }

    /// The claimed tables.
    pub fn row_bank(&self) -> &RowBank {
        &self.rows
    }

    /// Checks that all tensors were claimed.
    ///
    /// # Errors
    /// If tensors were not claimed; the error names up to three of them.
    pub fn finish(&self) -> Result<(), FormatError> {
        let tensors = self.claimed.checkpoint.tensors();
        let is_left =
            |name: &str| !self.claimed.has(name) && !self.claimed.checkpoint.is_optional(name);
        // Modules of size zero have tensors without elements, which need not be claimed.
        let is_left = |(name, tensor): &(&String, &Tensor)| is_left(name) && tensor.extent.len > 0;
        let left = || tensors.iter().filter(is_left);
        let n = left().count();
        if n == 0 {
            return Ok(());
        }
        let names: Vec<&str> =
            left().take(3).map(|(_, tensor)| tensor.stored_name.as_str()).collect();
        let path = self.claimed.checkpoint.root().to_path_buf();
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
        let n_layers = self.claimed.checkpoint.config().usize("num_hidden_layers").unwrap_or(0);
        bank.layers.resize(n_layers.max(bank.layers.len()), None);
        bank
    }

    /// Adds the file of derived tensors to the bank if there are any. It follows the files of the
    /// checkpoint, as their extents say: checkpoints with such tensors have no files of layers.
    fn add_derived_file(&mut self) {
        let n_files = self.claimed.checkpoint.files().len();
        if self.bank.files.len() == n_files && !self.claimed.checkpoint.derived.is_empty() {
            let derived = Arc::clone(&self.claimed.checkpoint.derived);
            self.bank.files.push(SourceFile::derived(self.claimed.checkpoint.root(), derived));
        }
    }
}
