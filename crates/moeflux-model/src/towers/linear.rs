//! Products and norms of towers.

use moeflux_backend::{Backend, Cols, LayerNorm, Projection, RmsNorm, Vector, Weight};
use moeflux_core::manifest::Role;

use crate::load::{LoadError, Weights};

/// A product, and what is added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    weight: Weight,
    bias: Option<Vector>,
}

impl Linear {
    /// The product called `name`, of that many rows and columns.
    pub(super) fn load(
        weights: &mut dyn Weights,
        name: &str,
        rows: usize,
        cols: usize,
        has_bias: bool,
    ) -> Result<Linear, LoadError> {
        let weight = weights.matrix(name, rows, cols, Role::Projection)?;
        let bias = has_bias.then(|| load_vector(weights, &format!("{name}.bias"), rows));
        Ok(Linear { weight, bias: bias.transpose()? })
    }

    /// One of weights that were read already.
    pub(super) fn of(weight: Weight, bias: Option<Vector>) -> Linear {
        Linear { weight, bias }
    }

    /// Writes its product with `x` to `out`.
    pub(super) fn run(self, backend: &mut dyn Backend, rows: usize, x: Cols, out: Cols) {
        backend.project(rows, x, &[Projection { weight: self.weight, out }]);
        if let Some(bias) = self.bias {
            backend.add_bias(rows, out, bias);
        }
    }
}

/// A vector on the device.
pub(super) fn load_vector(
    weights: &mut dyn Weights,
    name: &str,
    len: usize,
) -> Result<Vector, LoadError> {
    let values = weights.vector(name, &[vec![len]])?.values;
    Ok(weights.backend().load_vector(&values))
}

/// A norm of whole rows, or of heads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Norm {
    /// To mean 0 and variance 1.
    Layer { weight: Vector, bias: Vector, eps: f32 },
    /// By the root mean square.
    Rms { weight: Vector, eps: f32 },
}

impl Norm {
    /// Normalises rows.
    pub(super) fn run(self, backend: &mut dyn Backend, rows: usize, out: Cols, x: Cols) {
        let (out, x) = (out.heads(1), x.heads(1));
        match self {
            Norm::Layer { weight, bias, eps } => {
                backend.layer_norm(rows, LayerNorm { out, x, weight, bias, eps });
            }
            Norm::Rms { weight, eps } => backend.rms_norm(rows, RmsNorm { out, x, weight, eps }),
        }
    }
}

/// The kind of a tower's norms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormKind {
    /// Whether the mean is taken away, and a bias added.
    pub(crate) is_layer_norm: bool,
    /// Added to the variance, or to the mean square.
    pub(crate) eps: f32,
}

impl NormKind {
    /// The norm called `name`.
    pub(super) fn load(
        self,
        weights: &mut dyn Weights,
        name: &str,
        len: usize,
    ) -> Result<Norm, LoadError> {
        let eps = self.eps;
        let weight = load_vector(weights, &format!("{name}.weight"), len)?;
        if !self.is_layer_norm {
            return Ok(Norm::Rms { weight, eps });
        }
        let bias = load_vector(weights, &format!("{name}.bias"), len)?;
        Ok(Norm::Layer { weight, bias, eps })
    }
}
