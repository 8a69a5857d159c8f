//! Multi-token prediction: one more layer, trained to say from what the model made of a
//! position, and from the token that was chosen there, which token comes after that one.
//!
//! Source: DeepSeek-V3 (2024), section 2.2; names and order as in the reference
//! implementations of vLLM (`qwen3_5_mtp.py`, `deepseek_mtp.py`) and llama.cpp: what the model
//! made of a position is its normalised output, which the head multiplies. The embedding and
//! the head are the model's own, as they are where these models were trained; checkpoints
//! that repeat them hold the same numbers.

use moeflux_backend::{Cols, Projection, Weight};
use moeflux_core::manifest::Role;

use super::norm::Norm;
use crate::layers::builder::{Builder, Residual};
use crate::layers::layer::Layer;
use crate::layers::step::Step;
use crate::load::{LoadError, Weights};

/// What the parts are called.
#[derive(Clone, Debug)]
pub(crate) struct MtpNames {
    embed_norm: String,
    hidden_norm: String,
    joint: String,
    norm: String,
    pub(crate) layer: String,
}

impl MtpNames {
    /// By Qwen.
    pub(crate) fn qwen() -> MtpNames {
        MtpNames {
            embed_norm: "mtp.pre_fc_norm_embedding".to_owned(),
            hidden_norm: "mtp.pre_fc_norm_hidden".to_owned(),
            joint: "mtp.fc".to_owned(),
            norm: "mtp.norm".to_owned(),
            layer: "mtp.layers.0".to_owned(),
        }
    }

    /// By DeepSeek and GLM: a layer past the last.
    pub(crate) fn past_the_last(n_layers: usize) -> MtpNames {
        let layer = format!("layers.{n_layers}");
        MtpNames {
            embed_norm: format!("{layer}.enorm"),
            hidden_norm: format!("{layer}.hnorm"),
            joint: format!("{layer}.eh_proj"),
            norm: format!("{layer}.shared_head.norm"),
            layer,
        }
    }

    /// The same with another name for the norm before the head, inside the layer.
    pub(crate) fn with_norm(self, norm: &str) -> MtpNames {
        MtpNames { norm: format!("{}.{norm}", self.layer), ..self }
    }

    /// Whether a checkpoint has them; some keep a few.
    pub(crate) fn are_in(&self, weights: &dyn Weights) -> bool {
        let MtpNames { embed_norm, hidden_norm, joint, norm, layer } = self;
        let norms =
            ["input_layernorm", "post_attention_layernorm"].map(|name| format!("{layer}.{name}"));
        let all = [embed_norm, hidden_norm, joint, norm].into_iter().chain(&norms);
        all.into_iter().all(|name| weights.holds(&format!("{name}.weight")))
    }
}

/// What stands around that layer.
#[derive(Debug)]
pub(crate) struct Mtp {
    pub(crate) layer: Layer,
    embed_norm: Norm,
    hidden_norm: Norm,
    /// `(hidden, 2 * hidden)`: from both, side by side, to the layer's input.
    joint: Weight,
    /// Before the head.
    pub(crate) norm: Norm,
    /// `2 * hidden` columns.
    joined: Cols,
}

impl Mtp {
    pub(crate) fn load(
        names: &MtpNames,
        layer: Layer,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Mtp, LoadError> {
        let hidden = builder.outline.hidden;
        let joint =
            builder.build.weights.matrix(&names.joint, hidden, 2 * hidden, Role::Projection)?;
        Ok(Mtp {
            layer,
            embed_norm: builder.norm(&names.embed_norm, hidden)?,
            hidden_norm: builder.norm(&names.hidden_norm, hidden)?,
            joint,
            norm: builder.norm(&names.norm, hidden)?,
            joined: builder.build.cols(2 * hidden),
        })
    }

    /// Gives the layer its input, `residual.hidden`, from the tokens of the step and what the
    /// model made of the positions before them, a row of `hidden` floats each.
    pub(crate) fn join(
        &self,
        step: &mut Step<'_>,
        residual: Residual,
        embed_tokens: Weight,
        before: &[f32],
    ) {
        let Residual { hidden, mixed, .. } = residual;
        let rows = step.rows();
        step.backend.write(mixed.buf, before);
        step.backend.embed(hidden, embed_tokens, step.tokens);
        self.embed_norm.forward(step, self.joined.slice(0, hidden.len), hidden);
        self.hidden_norm.forward(step, self.joined.slice(hidden.len, hidden.len), mixed);
        let outputs = [Projection { weight: self.joint, out: hidden }];
        step.backend.project(rows, self.joined, &outputs);
    }
}
