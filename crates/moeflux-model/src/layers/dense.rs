//! Multilayer perceptrons that every row gets: `down(activation(gate(x), up(x)))`, or without a gate.

use moeflux_backend::{Cols, GatedActivation, Mlp, PlainActivation};

use super::expert_shape::Activation;
use crate::layers::builder::Builder;
use crate::load::LoadError;
use crate::step::Step;

/// Activations between the matrices, which all MLPs of a width share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MlpScratch {
    Gated { activation: GatedActivation, gate: Cols, up: Cols, activated: Cols },
    Plain { activation: PlainActivation, up: Cols },
}

impl MlpScratch {
    pub(crate) fn alloc(intermediate: usize, builder: &mut Builder<'_, '_>) -> MlpScratch {
        match builder.outline.activation {
            Activation::Gated(activation) => {
                let [gate, up] = builder.build.cols_together([intermediate, intermediate]);
                let activated = builder.build.cols(intermediate);
                MlpScratch::Gated { activation, gate, up, activated }
            }
            Activation::Plain(activation) => {
                MlpScratch::Plain { activation, up: builder.build.cols(intermediate) }
            }
        }
    }

    /// The MLP called `name`.
    pub(crate) fn load(self, name: &str, builder: &mut Builder<'_, '_>) -> Result<Mlp, LoadError> {
        let hidden = builder.outline.hidden;
        let mut load = |part, rows, cols| builder.projection(&format!("{name}.{part}"), rows, cols);
        Ok(match self {
            MlpScratch::Gated { activation, gate, up, activated } => Mlp::Gated {
                gate_proj: load("gate_proj", gate.len, hidden)?,
                up_proj: load("up_proj", up.len, hidden)?,
                down_proj: load("down_proj", hidden, activated.len)?,
                activation,
                gate,
                up,
                activated,
            },
            MlpScratch::Plain { activation, up } => Mlp::Plain {
                up_proj: load("up_proj", up.len, hidden)?,
                down_proj: load("down_proj", hidden, up.len)?,
                activation,
                up,
            },
        })
    }
}

/// The MLP of a layer without routed experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    mlp: Mlp,
    /// What it gives, before it joins the residual stream.
    out: Cols,
}

impl Dense {
    /// The MLP called `name`.
    pub(crate) fn load(
        scratch: MlpScratch,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Dense, LoadError> {
        Ok(Dense { mlp: scratch.load(name, builder)?, out: builder.residual.mixed })
    }

    /// `mlp(x)`, and where it is.
    pub(crate) fn forward(&self, step: &mut Step<'_>, x: Cols) -> Cols {
        let rows = step.rows();
        self.mlp.run_parts(step.backend, rows, x, self.out);
        self.out
    }
}
