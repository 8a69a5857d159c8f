//! What makes rows of patches.

use moeflux_backend::{ActivationPrecision, Backend, Cols, HostMatrix, Weight};
use moeflux_core::quant::{Float, MatrixFormat};

use super::linear::{Linear, Norm, NormKind, load_vector};
use crate::load::{LoadError, Weights};

/// The product of patches, and what follows it.
#[derive(Clone, Debug)]
pub(crate) struct StemPlan {
    /// The module of the product.
    pub(crate) name: &'static str,
    /// Numbers of a patch.
    pub(crate) inputs: usize,
    /// Sizes of the axes of a patch in a weight of more than two axes, as checkpoints store it: channels
    /// first; empty where it is a matrix. Converters may put channels last.
    pub(crate) axes: Vec<usize>,
    pub(crate) has_bias: bool,
    /// A norm of the products, before places are added.
    pub(crate) norm: Option<(&'static str, NormKind)>,
    /// Whether numbers from 0 to 1 become numbers from -1 to 1 first.
    pub(crate) centres: bool,
}

/// A loaded stem.
#[derive(Debug)]
pub(super) struct Stem {
    linear: Linear,
    norm: Option<Norm>,
    centres: bool,
}

impl Stem {
    pub(super) fn load(
        plan: &StemPlan,
        width: usize,
        weights: &mut dyn Weights,
    ) -> Result<Stem, LoadError> {
        let norm = plan.norm.map(|(name, kind)| kind.load(weights, name, width)).transpose()?;
        let linear = if plan.axes.is_empty() {
            Linear::load(weights, plan.name, width, plan.inputs, plan.has_bias)?
        } else {
            let values = read_folded(plan, width, weights)?;
            let weight = load_floats(weights.backend(), width, plan.inputs, &values);
            let bias = plan.has_bias.then(|| format!("{}.bias", plan.name));
            let bias = bias.map(|name| load_vector(weights, &name, width)).transpose()?;
            Linear::of(weight, bias)
        };
        Ok(Stem { linear, norm, centres: plan.centres })
    }

    /// Writes the rows of patches, which are in `patches`' buffer, to `out`.
    pub(super) fn run(&self, backend: &mut dyn Backend, rows: usize, patches: Cols, out: Cols) {
        self.linear.run(backend, rows, patches, out);
        if let Some(norm) = self.norm {
            norm.run(backend, rows, out, out);
        }
    }

    /// Makes of the numbers of a patch those that the product takes.
    pub(super) fn centre(&self, numbers: &mut [f32]) {
        if self.centres {
            for value in numbers {
                *value = 2.0 * (*value - 0.5);
            }
        }
    }
}

/// A weight of more than two axes as a matrix whose columns are in the order of a patch's numbers.
fn read_folded(
    plan: &StemPlan,
    width: usize,
    weights: &mut dyn Weights,
) -> Result<Vec<f32>, LoadError> {
    let channels = plan.axes[0];
    let first = [&[width], &plan.axes[..]].concat();
    let last = [&[width], &plan.axes[1..], &[channels]].concat();
    let stored = weights.vector(&format!("{}.weight", plan.name), &[first.clone(), last])?;
    if stored.shape == first {
        return Ok(stored.values);
    }
    let n_places = plan.inputs / channels;
    let mut values = vec![0.0; stored.values.len()];
    for (from, to) in stored.values.chunks(plan.inputs).zip(values.chunks_mut(plan.inputs)) {
        for (nth, value) in from.iter().enumerate() {
            to[nth % channels * n_places + nth / channels] = *value;
        }
    }
    Ok(values)
}

/// A matrix of these values.
pub(super) fn load_floats(
    backend: &mut dyn Backend,
    rows: usize,
    cols: usize,
    values: &[f32],
) -> Weight {
    let n_bytes = 4 * rows * cols;
    let mut weight = backend.host_alloc(n_bytes);
    for (value, out) in values.iter().zip(weight[..n_bytes].as_chunks_mut::<4>().0) {
        *out = value.to_le_bytes();
    }
    let (format, inputs) = (MatrixFormat::Dense(Float::F32), ActivationPrecision::F32);
    backend.load_matrix(HostMatrix {
        rows,
        cols,
        format,
        inputs,
        weight,
        scales: None,
        biases: None,
    })
}
