//! How a matrix is stored, and where its parts are.

use super::super::{Extent, Tensor};
use crate::quant::MatrixFormat;

/// A matrix, or a stack of matrices: how it is stored, and where its parts are.
pub(super) struct Stored<'a> {
    pub(super) format: MatrixFormat,
    /// The tensor that messages name.
    pub(super) tensor: &'a Tensor,
    pub(super) weight: Parts,
    pub(super) scales: Option<Parts>,
    pub(super) biases: Option<Parts>,
}

/// Where the weights, the scales or the biases of a stack of matrices are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parts {
    /// One after the other.
    Whole(Extent),
    /// Those of each matrix for themselves.
    Each(Vec<Extent>),
}

impl Parts {
    /// The extent of all; `None` if they are apart.
    pub(super) fn whole(&self) -> Option<Extent> {
        match self {
            Parts::Whole(extent) => Some(*extent),
            Parts::Each(extents) if extents.len() == 1 => Some(extents[0]),
            Parts::Each(_) => None,
        }
    }
}

impl<'a> Stored<'a> {
    /// A matrix in one tensor.
    pub(super) fn plain(format: MatrixFormat, tensor: &'a Tensor) -> Stored<'a> {
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
