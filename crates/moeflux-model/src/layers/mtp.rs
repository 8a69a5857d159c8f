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

use super::connection::Connection;
use super::mtp_streams::{StreamsEntry, StreamsEntryNames};
use super::norm::Norm;
use crate::layers::builder::{Builder, Residual};
use crate::layers::layer::Layer;
use crate::load::{LoadError, Weights};
use crate::step::Step;

/// What the parts are called.
#[derive(Clone, Debug)]
pub(crate) struct MtpNames {
    embed_norm: String,
    hidden_norm: String,
    joint: String,
    /// The projection of embeddings, where those of several streams go through `joint` apart.
    embed_proj: Option<String>,
    norm: String,
    /// The gates before the head, where the residual has several streams.
    gates: String,
    /// The norms of the layer, inside it.
    of_layer: [&'static str; 2],
    pub(crate) layer: String,
}

/// Norms of layers, as most families call them.
const NORMS: [&str; 2] = ["input_layernorm", "post_attention_layernorm"];

impl MtpNames {
    /// By Qwen.
    pub(crate) fn qwen() -> MtpNames {
        MtpNames {
            embed_norm: "mtp.pre_fc_norm_embedding".to_owned(),
            hidden_norm: "mtp.pre_fc_norm_hidden".to_owned(),
            joint: "mtp.fc".to_owned(),
            embed_proj: None,
            norm: "mtp.norm".to_owned(),
            gates: String::new(),
            of_layer: NORMS,
            layer: "mtp.layers.0".to_owned(),
        }
    }

    /// By Qwen, where the residual has several streams.
    pub(crate) fn qwen_streams() -> MtpNames {
        MtpNames {
            joint: "mtp.fc_hidden".to_owned(),
            embed_proj: Some("mtp.fc_embedding".to_owned()),
            norm: "mtp.hyper_connection_mixer.hc_norm".to_owned(),
            gates: "mtp.hyper_connection_mixer".to_owned(),
            of_layer: ["attn_hyper_connection.hc_norm", "mlp_hyper_connection.hc_norm"],
            ..MtpNames::qwen()
        }
    }

    /// By DeepSeek, where the residual has several streams.
    pub(crate) fn deepseek_streams() -> MtpNames {
        let part = |part: &str| format!("mtp.0.{part}");
        MtpNames {
            embed_norm: part("enorm"),
            hidden_norm: part("hnorm"),
            joint: part("h_proj"),
            embed_proj: Some(part("e_proj")),
            norm: part("norm"),
            gates: part("hc_head"),
            of_layer: NORMS,
            layer: "mtp.0".to_owned(),
        }
    }

    /// By DeepSeek and GLM: a layer past the last.
    pub(crate) fn past_the_last(n_layers: usize) -> MtpNames {
        let layer = format!("layers.{n_layers}");
        MtpNames {
            embed_norm: format!("{layer}.enorm"),
            hidden_norm: format!("{layer}.hnorm"),
            joint: format!("{layer}.eh_proj"),
            embed_proj: None,
            norm: format!("{layer}.shared_head.norm"),
            gates: String::new(),
            of_layer: NORMS,
            layer,
        }
    }

    /// The same with another name for the norm before the head, inside the layer.
    pub(crate) fn with_norm(self, norm: &str) -> MtpNames {
        MtpNames { norm: format!("{}.{norm}", self.layer), ..self }
    }

    /// Whether a checkpoint has them; some keep a few.
    pub(crate) fn are_in(&self, weights: &dyn Weights) -> bool {
        let MtpNames { embed_norm, hidden_norm, joint, embed_proj, norm, of_layer, layer, .. } =
            self;
        let of_layer = of_layer.map(|name| format!("{layer}.{name}"));
        let all = [embed_norm, hidden_norm, joint, norm].into_iter().chain(embed_proj);
        let mut all = all.chain(&of_layer);
        all.all(|name| weights.holds(&format!("{name}.weight")))
    }
}

/// What stands around that layer.
#[derive(Debug)]
pub(crate) struct Mtp {
    pub(crate) layer: Layer,
    entry: Entry,
    /// Before the head.
    pub(crate) output: Connection,
}

/// What makes the layer's input.
#[derive(Debug)]
enum Entry {
    Joint(JointEntry),
    Streams(StreamsEntry),
}

/// One projection of what the model made of a position and of the next token, side by side.
#[derive(Debug)]
struct JointEntry {
    embed_norm: Norm,
    hidden_norm: Norm,
    /// `(hidden, 2 * hidden)`: from both, side by side, to the layer's input.
    joint: Weight,
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
        let entry = match (&names.embed_proj, builder.residual.streams) {
            (Some(embed_proj), Some(streams)) => {
                let names = StreamsEntryNames {
                    hidden_norm: &names.hidden_norm,
                    hidden_proj: &names.joint,
                    embed_norm: &names.embed_norm,
                    embed_proj,
                };
                Entry::Streams(StreamsEntry::load(&names, streams, builder)?)
            }
            _ => Entry::Joint(JointEntry {
                joint: builder.build.weights.matrix(
                    &names.joint,
                    hidden,
                    2 * hidden,
                    Role::Projection,
                )?,
                embed_norm: builder.norm(&names.embed_norm, hidden)?,
                hidden_norm: builder.norm(&names.hidden_norm, hidden)?,
                joined: builder.build.cols(2 * hidden),
            }),
        };
        let output = builder.end(&names.norm, &names.gates)?;
        Ok(Mtp { layer, entry, output })
    }

    /// Gives the layer its input, `residual.hidden`, from the tokens of the step and what the
    /// model made of the positions before them: its output, or its streams where it has several,
    /// which are in `carried`.
    pub(crate) fn join(
        &self,
        step: &mut Step<'_>,
        residual: Residual,
        embed_tokens: Weight,
        carried: Cols,
    ) {
        match &self.entry {
            Entry::Joint(joint) => joint.join(step, residual, embed_tokens, carried),
            Entry::Streams(streams) => streams.join(step, residual, embed_tokens, carried),
        }
    }
}

impl JointEntry {
    fn join(&self, step: &mut Step<'_>, residual: Residual, embed_tokens: Weight, before: Cols) {
        let hidden = residual.hidden;
        let rows = step.rows();
        step.backend.embed(hidden, embed_tokens, step.tokens);
        self.embed_norm.forward(step, self.joined.slice(0, hidden.len), hidden);
        self.hidden_norm.forward(step, self.joined.slice(hidden.len, hidden.len), before);
        let outputs = [Projection { weight: self.joint, out: hidden }];
        step.backend.project(rows, self.joined, &outputs);
    }
}
