//! How a matrix is stored, found from the tensors of its module. Configs only say what tensors leave
//! open: in published checkpoints their lists of exceptions are often wrong.

use super::super::derived::Recipe;
use super::super::{Dtype, Extent, FormatError, Tensor};
use super::{Claims, last, wanted};
use crate::quant::{Affine, BlockType, Float, MatrixFormat, MicroScaled};

/// A matrix, or a stack of matrices: how it is stored, and where its parts are.
pub(in super::super) struct Stored<'a> {
    pub(in super::super) format: MatrixFormat,
    /// The tensor that messages name.
    pub(in super::super) tensor: &'a Tensor,
    pub(in super::super) weight: Parts,
    pub(in super::super) scales: Option<Parts>,
    pub(in super::super) biases: Option<Parts>,
}

/// Where the weights, the scales or the biases of a stack of matrices are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Parts {
    /// One after the other.
    Whole(Extent),
    /// Those of each matrix for themselves.
    Each(Vec<Extent>),
}

impl Parts {
    /// The extent of all; `None` if they are apart.
    pub(in super::super) fn whole(&self) -> Option<Extent> {
        match self {
            Parts::Whole(extent) => Some(*extent),
            Parts::Each(extents) if extents.len() == 1 => Some(extents[0]),
            Parts::Each(_) => None,
        }
    }
}

impl<'a> Stored<'a> {
    /// A matrix in one tensor.
    pub(in super::super) fn plain(format: MatrixFormat, tensor: &'a Tensor) -> Stored<'a> {
        let weight = Parts::Whole(tensor.extent);
        Stored { format, tensor, weight, scales: None, biases: None }
    }
}

/// Matrices of a stack whose outer shape ends with the rows of one.
pub(super) fn stack_of(outer: &[usize]) -> usize {
    outer.split_last().map_or(1, |(_, stack)| stack.iter().product())
}

/// Whether each matrix of a stack has the gate rows of an expert before its up rows.
pub(super) fn has_halves(module: &str, outer: &[usize]) -> bool {
    outer.len() == 2 && outer[1].is_multiple_of(2) && module.ends_with("gate_up_proj")
}

impl<'a> Claims<'a> {
    /// Claims the tensors of a module whose weight has the shape `outer + [cols]`.
    pub(in super::super) fn stored(
        &mut self,
        module: &str,
        outer: &[usize],
        cols: usize,
    ) -> Result<Stored<'a>, FormatError> {
        if let Some(name) = self.name_of(module, "weight_packed") {
            return self.stored_compressed(module, &name, outer, cols);
        }
        if let Some(name) = self.name_of(module, "qweight") {
            return self.stored_by_columns(module, &name, outer, cols);
        }
        let weight = self.claim(&format!("{module}.weight"))?;
        self.stored_weight(module, weight, outer, cols)
    }

    /// Claims what belongs to a tensor with the elements of a module.
    pub(in super::super) fn stored_weight(
        &mut self,
        module: &str,
        weight: &'a Tensor,
        outer: &[usize],
        cols: usize,
    ) -> Result<Stored<'a>, FormatError> {
        let float = match weight.dtype {
            Dtype::Float(float) => float,
            Dtype::U32 => return self.stored_packed(module, weight, outer, cols),
            Dtype::F8E4M3 => return self.stored_fp8(module, weight, outer, cols),
            Dtype::I8 => return self.stored_signed_bytes(module, weight, outer, cols),
            Dtype::Ggml(block_type) => {
                self.expect_shape(weight, outer, cols)?;
                if block_type == BlockType::NVFP4 && self.name_of(module, "scale").is_some() {
                    return self.stored_ggml_nvfp4(module, weight, outer, cols);
                }
                return self.stored_ggml(module, weight, block_type, cols);
            }
            // A container's own tensors, whose headers have no name for these types.
            Dtype::U8 if let Some(block_type) = self.checkpoint.rules.ggml_type_of(module) => {
                let row_bytes = MatrixFormat::Ggml(block_type).row_bytes(cols);
                self.expect_shape(weight, outer, row_bytes)?;
                return self.stored_ggml(module, weight, block_type, cols);
            }
            Dtype::U8 if self.checkpoint.rules.is_nf4(module) => {
                return self.stored_nf4(module, weight, outer, cols);
            }
            Dtype::U8 if self.name_of(module, ABSMAX).is_some() => {
                return self.stored_bitsandbytes(module, weight, outer, cols);
            }
            Dtype::U8 if self.name_of(module, "weight_scale").is_some() => {
                return self.stored_fp4(module, weight, outer, cols);
            }
            Dtype::U8 | Dtype::I32 | Dtype::F8E8M0 | Dtype::Other(_) => {
                return Err(self.unsupported_dtype(weight));
            }
        };
        self.expect_shape(weight, outer, cols)?;
        for part in ["scales", "weight_scale_inv", "weight_scale"] {
            if self.name_of(module, part).is_some() {
                let what = format!("{module} has {} weights and {part}", weight.dtype.name());
                return Err(FormatError::unsupported(self.checkpoint.path_of(weight), what));
            }
        }
        Ok(Stored::plain(MatrixFormat::Dense(float), weight))
    }

    /// The name of a module's tensor, if there is one. Tensors of all experts of a layer are named
    /// with an underscore, and some of them leave `weight` out: `down_proj_packed`.
    pub(in super::super) fn name_of(&self, module: &str, part: &str) -> Option<String> {
        let short = part.strip_prefix("weight_").map(|part| format!("{module}_{part}"));
        let names = [format!("{module}.{part}"), format!("{module}_{part}")];
        names.into_iter().chain(short).find(|name| self.checkpoint.tensors().contains_key(name))
    }

    /// Claims a module's tensor.
    pub(super) fn claim_part(
        &mut self,
        module: &str,
        part: &str,
    ) -> Result<&'a Tensor, FormatError> {
        let name = self.name_of(module, part).unwrap_or_else(|| format!("{module}.{part}"));
        self.claim(&name)
    }

    /// Claims a module's tensor, if there is one.
    pub(super) fn claim_if_stored(
        &mut self,
        module: &str,
        part: &str,
    ) -> Result<Option<&'a Tensor>, FormatError> {
        self.name_of(module, part).map(|name| self.claim(&name)).transpose()
    }

    /// Tensors that are computed from those of a stack of `n` matrices: for each of them `recipe`
    /// makes `len` bytes.
    pub(super) fn derive(
        &self,
        name: &str,
        n: usize,
        len: usize,
        inputs: &[Extent],
        recipe: &Recipe,
    ) -> Parts {
        let each = (0..n).map(|idx| {
            let slice = |extent: &Extent| {
                let len = extent.len / n;
                extent.slice(idx * len, len)
            };
            let inputs = inputs.iter().map(slice).collect();
            self.derived().add(&format!("{name}.{idx}"), len, inputs, recipe.clone())
        });
        Parts::Each(each.collect())
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
        Ok(Stored::plain(format, weight))
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
        let bits = words.checked_mul(32).filter(|bits| bits.is_multiple_of(cols));
        let bits = bits.and_then(|bits| u8::try_from(bits / cols).ok());
        let n_groups = last(scales);
        let group_size = (n_groups > 0 && cols.is_multiple_of(n_groups)).then(|| cols / n_groups);
        let (Some(bits), Some(group_size)) = (bits, group_size) else {
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
            Dtype::Float(params) => self.affine_of_mlx(module, bits, group_size, params, outer)?,
            Dtype::U8 => {
                let has_global_scale = self.name_of(module, GLOBAL_SCALE).is_some();
                let micro = MicroScaled::MODES.iter().map(|(_, micro)| *micro).find(|micro| {
                    micro.element.bits() == usize::from(bits)
                        && micro.group_size == group_size
                        && micro.has_global_scale == has_global_scale
                });
                let format = MatrixFormat::Micro(micro.ok_or_else(unsupported)?);
                (format, self.claim_if_stored(module, GLOBAL_SCALE)?)
            }
            _ => return Err(self.unsupported_dtype(scales)),
        };
        if !format.is_supported(cols) {
            return Err(unsupported());
        }
        self.check_rule(module, weight, &format)?;
        Ok(Stored {
            format,
            tensor: weight,
            weight: Parts::Whole(weight.extent),
            scales: Some(Parts::Whole(scales.extent)),
            biases: biases.map(|biases| Parts::Whole(biases.extent)),
        })
    }

    /// The format of integers, and their biases if they are stored.
    fn affine_of_mlx(
        &mut self,
        module: &str,
        bits: u8,
        group_size: usize,
        params: Float,
        outer: &[usize],
    ) -> Result<(MatrixFormat, Option<&'a Tensor>), FormatError> {
        if self.checkpoint.rules.is_symmetric(module) {
            let affine = Affine::symmetric(bits, group_size, params);
            return Ok((MatrixFormat::Affine(affine), None));
        }
        let biases = self.claim(&format!("{module}.biases"))?;
        let n_groups = last(biases);
        self.expect_shape(biases, outer, n_groups)?;
        if biases.dtype != Dtype::Float(params) {
            let what = format!("{module} has {} biases", biases.dtype.name());
            return Err(FormatError::unsupported(self.checkpoint.path_of(biases), what));
        }
        Ok((MatrixFormat::Affine(Affine::new(bits, group_size, params)), Some(biases)))
    }
}

/// The scales of bitsandbytes: the largest magnitudes of blocks.
pub(super) const ABSMAX: &str = "weight.absmax";

/// The scale that all of a matrix shares, as containers name it.
pub(in super::super) const GLOBAL_SCALE: &str = "global_scale";
