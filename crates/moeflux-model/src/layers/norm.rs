//! Root-mean-square norms over whole rows, and how checkpoints store their
//! weights.

use moeflux_backend::{Cols, RmsNorm, Vector};

use crate::load::{LoadError, Weights};
use crate::step::Step;

/// How a checkpoint stores the weights of its norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormWeights {
    /// As they multiply.
    Plain,
    /// One less than they multiply.
    ZeroCentred,
}

/// A norm's weight, loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    weight: Vector,
    eps: f32,
}

impl Norm {
    pub(crate) fn load(
        weights: &mut dyn Weights,
        name: &str,
        len: usize,
        stored: NormWeights,
        eps: f32,
    ) -> Result<Norm, LoadError> {
        let mut values = weights.vector(name, &[vec![len]])?.values;
        if stored == NormWeights::ZeroCentred {
            for value in &mut values {
                *value += 1.0;
            }
        }
        Ok(Norm::of_values(weights, &values, eps))
    }

    /// A norm with these weights.
    pub(crate) fn of_values(weights: &mut dyn Weights, values: &[f32], eps: f32) -> Norm {
        Norm { weight: weights.backend().load_vector(values), eps }
    }

    /// The weight, as it multiplies.
    pub(crate) fn weight(self) -> Vector {
        self.weight
    }

    /// The op on heads that share this weight, or that have as many each.
    pub(crate) fn op(self, out: moeflux_backend::Heads, x: moeflux_backend::Heads) -> RmsNorm {
        RmsNorm { out, x, weight: self.weight, eps: self.eps }
    }

    /// Normalises whole rows.
    pub(crate) fn forward(self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let rows = step.rows();
        step.backend.rms_norm(rows, self.op(out.heads(1), x.heads(1)));
    }
}
