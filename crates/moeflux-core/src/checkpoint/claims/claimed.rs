//! The tensors that were claimed, and what is checked of each.

use std::collections::BTreeSet;

use super::super::derived::{DerivedTensors, Recipe};
use super::super::{Checkpoint, CheckpointKind, Extent, FormatError, Tensor};
use super::parts::Parts;
use crate::quant::MatrixFormat;

/// The tensors of a checkpoint that were claimed.
#[derive(Debug)]
pub(super) struct Claimed<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    names: BTreeSet<String>,
}

impl<'a> Claimed<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint) -> Claimed<'a> {
        Claimed { checkpoint, names: BTreeSet::new() }
    }

    /// Whether a tensor was claimed.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    pub(super) fn claim(&mut self, name: &str) -> Result<&'a Tensor, FormatError> {
        let Some(tensor) = self.checkpoint.tensors().get(name) else {
            return Err(self.missing(name));
        };
        self.names.insert(name.to_owned());
        Ok(tensor)
    }

    fn missing(&self, name: &str) -> FormatError {
        let path = self.checkpoint.root().to_path_buf();
        let end = format!(".{name}");
        let other = self.checkpoint.tensors().iter().find(|(known, _)| known.ends_with(&end));
        match other.filter(|_| self.checkpoint.kind() == CheckpointKind::Safetensors) {
            Some((_, tensor)) => {
                let stored = tensor.stored_name.clone();
                FormatError::OddPrefix { path, name: name.to_owned(), stored }
            }
            None => FormatError::TensorMissing { path, name: self.checkpoint.shown_name(name) },
        }
    }

    /// The name of a module's tensor, if there is one. Tensors of all experts of a layer are named
    /// with an underscore, and some of them leave `weight` out: `down_proj_packed`.
    pub(super) fn name_of(&self, module: &str, part: &str) -> Option<String> {
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

    /// Claims a part of a module, which may be missing unless it `is_needed`.
    pub(super) fn claim_where(
        &mut self,
        is_needed: bool,
        module: &str,
        part: &str,
    ) -> Result<Option<&'a Tensor>, FormatError> {
        if is_needed {
            self.claim_part(module, part).map(Some)
        } else {
            self.claim_if_stored(module, part)
        }
    }

    /// Whether a module has a weight, in whatever format.
    pub(super) fn has_weight(&self, module: &str) -> bool {
        let is_packed = || {
            let parts = ["weight_packed", "qweight"];
            parts.iter().any(|part| self.name_of(module, part).is_some())
        };
        self.checkpoint.tensors().contains_key(&format!("{module}.weight")) || is_packed()
    }

    /// Where tensors that are computed from others are added.
    pub(super) fn derived(&self) -> &'a DerivedTensors {
        &self.checkpoint.derived
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

pub(super) fn last(tensor: &Tensor) -> usize {
    tensor.shape.last().copied().unwrap_or(0)
}

pub(super) fn wanted(outer: &[usize], inner: &str) -> String {
    let outer: String = outer.iter().map(|n| format!("{n}, ")).collect();
    format!("[{outer}{inner}]")
}
