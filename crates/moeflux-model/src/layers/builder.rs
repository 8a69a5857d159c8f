//! What blocks are loaded with.

use std::sync::Arc;

use moeflux_backend::{Cache, CacheSpec, Cols, GatedActivation, Vector, Weight};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::Role;

use super::connection::Connection;
use super::expert_shape::Activation;
use super::hyper::{HyperBlocks, HyperShape};
use super::norm::{Norm, NormWeights};
use super::streams::{NormFormat, StreamsBlocks, StreamsShape, StreamsSpare};
use crate::load::LoadError;
use crate::model::Build;
use crate::rows::RowIds;

/// Activations between layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residual {
    /// The residual: one stream of `hidden_size` columns, or several side by side.
    pub(crate) hidden: Cols,
    /// What a half of a layer reads of it, `hidden_size` columns.
    pub(crate) normed: Cols,
    /// What a mixer or an MLP gives before it joins the residual, `hidden_size` columns.
    pub(crate) mixed: Cols,
    /// What several streams need, where there are several.
    pub(crate) streams: Option<Streams>,
}

/// The connections of a residual of several streams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Streams {
    /// Gates read them.
    Gated(StreamsBlocks),
    /// Shares mix them.
    Hyper(HyperBlocks),
}

impl Streams {
    pub(crate) fn n_streams(&self) -> usize {
        match self {
            Streams::Gated(streams) => streams.shape.n_streams,
            Streams::Hyper(streams) => streams.shape.n_streams,
        }
    }

    pub(crate) fn spare(&self) -> &StreamsSpare {
        match self {
            Streams::Gated(streams) => &streams.scratch.spare,
            Streams::Hyper(streams) => streams.spare(),
        }
    }

    /// All streams, normalised.
    pub(super) fn normed(&self) -> Cols {
        match self {
            Streams::Gated(streams) => streams.scratch.normed,
            Streams::Hyper(streams) => streams.normed(),
        }
    }

    /// What the gates are called by which the head reads them.
    pub(super) fn end_gates(&self) -> &'static str {
        match self {
            Streams::Gated(_) => "hyper_connection_mixer",
            Streams::Hyper(_) => "hc_head",
        }
    }

    /// What stands behind the name of a layer in those of the gates before its mixer, and before its MLP.
    fn names(&self) -> [&'static str; 2] {
        match self {
            Streams::Gated(_) => ["attn_hyper_connection", "mlp_hyper_connection"],
            Streams::Hyper(_) => ["hc_attn", "hc_ffn"],
        }
    }
}

impl Residual {
    fn one(hidden: usize, build: &mut Build<'_>) -> Residual {
        let mut cols = || build.cols(hidden);
        Residual { hidden: cols(), normed: cols(), mixed: cols(), streams: None }
    }

    fn several(shape: StreamsShape, hidden: usize, build: &mut Build<'_>) -> Residual {
        Residual {
            hidden: build.cols(shape.n_streams * hidden),
            normed: build.cols(hidden),
            mixed: build.cols(hidden),
            streams: Some(Streams::Gated(StreamsBlocks::new(shape, hidden, build))),
        }
    }

    fn mixed(shape: HyperShape, hidden: usize, build: &mut Build<'_>) -> Residual {
        Residual {
            hidden: build.cols(shape.n_streams * hidden),
            normed: build.cols(hidden),
            mixed: build.cols(hidden),
            streams: Some(Streams::Hyper(HyperBlocks::new(shape, hidden, build))),
        }
    }
}

/// What every decoder's config says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outline {
    pub(crate) hidden: usize,
    pub(crate) n_layers: usize,
    pub(crate) vocab: usize,
    pub(crate) eps: f32,
    pub(crate) max_positions: usize,
    /// Whether the head is the embedding.
    pub(crate) is_tied: bool,
    /// What checkpoints call the embedding.
    pub(crate) embedding: &'static str,
    /// What they call the norm before the head.
    pub(crate) end: &'static str,
    /// What stands between the products of MLPs that every row gets.
    pub(crate) activation: Activation,
    /// Multiplies embeddings.
    pub(crate) embed_scale: Option<f32>,
    /// Multiplies logits, where the norm before the head is one of a single stream.
    pub(crate) logit_scale: Option<f32>,
    /// Logits are `cap * tanh(logit / cap)`, with this cap.
    pub(crate) logit_softcap: Option<f32>,
}

impl Outline {
    /// From the keys that most families use, with SwiGLU.
    pub(crate) fn read(config: &Config) -> Result<Outline, LoadError> {
        // Two names of one function.
        if !["silu", "swish"].contains(&config.str("hidden_act")?) {
            return Err(config.refuse("hidden_act", "be \"silu\" or \"swish\"").into());
        }
        Outline::of_activation(config, Activation::Gated(GatedActivation::Swiglu))
    }

    /// From the keys that all families use.
    pub(crate) fn of_activation(
        config: &Config,
        activation: Activation,
    ) -> Result<Outline, LoadError> {
        Ok(Outline {
            hidden: config.usize("hidden_size")?,
            n_layers: config.usize("num_hidden_layers")?,
            vocab: config.usize("vocab_size")?,
            eps: config.f32("rms_norm_eps")?,
            max_positions: config.usize("max_position_embeddings")?,
            is_tied: config.bool("tie_word_embeddings")?,
            embedding: "embed_tokens",
            end: "norm",
            activation,
            embed_scale: None,
            logit_scale: None,
            logit_softcap: None,
        })
    }
}

/// Builds a decoder, layer by layer.
pub(crate) struct Builder<'a, 'b> {
    pub(crate) build: &'a mut Build<'b>,
    pub(crate) outline: Outline,
    pub(crate) residual: Residual,
    /// How the norms of layers and of whole rows are stored.
    pub(crate) stored: NormWeights,
    /// Set by the mixture-of-experts blocks.
    pub(crate) experts: ExpertCounts,
    /// Which rows tokens need of each table that was declared.
    pub(crate) row_ids: Vec<Arc<dyn RowIds>>,
    /// Set by mixers.
    pub(crate) positions: PositionNeeds,
    pub(super) caches: Vec<CacheSpec>,
}

impl<'a, 'b> Builder<'a, 'b> {
    pub(crate) fn new(
        outline: Outline,
        stored: NormWeights,
        build: &'a mut Build<'b>,
    ) -> Builder<'a, 'b> {
        let residual = Residual::one(outline.hidden, build);
        Builder::with_residual(residual, outline, stored, build)
    }

    /// A builder of a model whose residual has several streams.
    pub(crate) fn of_streams(
        shape: StreamsShape,
        outline: Outline,
        stored: NormWeights,
        build: &'a mut Build<'b>,
    ) -> Builder<'a, 'b> {
        let residual = Residual::several(shape, outline.hidden, build);
        Builder::with_residual(residual, outline, stored, build)
    }

    /// A builder of a model whose halves of layers mix several streams.
    pub(crate) fn of_mixed_streams(
        shape: HyperShape,
        outline: Outline,
        build: &'a mut Build<'b>,
    ) -> Builder<'a, 'b> {
        let residual = Residual::mixed(shape, outline.hidden, build);
        Builder::with_residual(residual, outline, NormWeights::Plain, build)
    }

    fn with_residual(
        residual: Residual,
        outline: Outline,
        stored: NormWeights,
        build: &'a mut Build<'b>,
    ) -> Builder<'a, 'b> {
        let (experts, row_ids, positions, caches) = Default::default();
        Builder { build, outline, residual, stored, experts, row_ids, positions, caches }
    }

    /// The connections of the layer called `name`: before its mixer, and before its MLP.
    pub(crate) fn connections(&mut self, name: &str) -> Result<[Connection; 2], LoadError> {
        let norms = ["input_layernorm", "post_attention_layernorm"];
        let [mixer, mlp] = norms.map(|norm| format!("{name}.{norm}"));
        let Some(streams) = self.residual.streams else {
            let hidden = self.outline.hidden;
            return Ok([
                Connection::Norm(self.norm(&mixer, hidden)?),
                Connection::Norm(self.norm(&mlp, hidden)?),
            ]);
        };
        let gates = streams.names().map(|gates| format!("{name}.{gates}"));
        let mut load = |norm: &str, gates: &str| match streams {
            Streams::Gated(streams) => {
                let norms = NormFormat { stored: self.stored, eps: self.outline.eps };
                Ok::<_, LoadError>(Connection::Gated(streams.load(gates, true, norms, self.build)?))
            }
            Streams::Hyper(streams) => {
                Ok(Connection::Hyper(streams.load(norm, gates, self.build)?))
            }
        };
        Ok([load(&mixer, &gates[0])?, load(&mlp, &gates[1])?])
    }

    /// What reads the residual for a head: a norm called `norm`, gates called `gates`, or both.
    pub(crate) fn end(&mut self, norm: &str, gates: &str) -> Result<Connection, LoadError> {
        Ok(match self.residual.streams {
            None => Connection::Norm(self.norm(norm, self.outline.hidden)?),
            Some(Streams::Gated(streams)) => {
                let norms = NormFormat { stored: self.stored, eps: self.outline.eps };
                Connection::Gated(streams.load(gates, false, norms, self.build)?)
            }
            Some(Streams::Hyper(streams)) => {
                Connection::Hyper(streams.load_end(norm, gates, self.build)?)
            }
        })
    }

    /// A large projection.
    pub(crate) fn projection(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, LoadError> {
        self.build.weights.matrix(name, rows, cols, Role::Projection)
    }

    /// A router or a gate, whose inputs stay as they are.
    pub(crate) fn gate(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, LoadError> {
        self.build.weights.matrix(name, rows, cols, Role::Gate)
    }

    /// The norm called `name`, of `len` weights.
    pub(crate) fn norm(&mut self, name: &str, len: usize) -> Result<Norm, LoadError> {
        let name = format!("{name}.weight");
        Norm::load(self.build.weights, &name, len, self.stored, self.outline.eps)
    }

    /// The tensor called `name`, of one dimension.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vector, LoadError> {
        let values = self.build.weights.vector(name, &[vec![len]])?.values;
        Ok(self.build.backend().load_vector(&values))
    }

    /// The norm called `name`, whose tensor has no more than that name, with weights `factor`
    /// times as large as stored.
    pub(crate) fn scaled_norm(
        &mut self,
        name: &str,
        len: usize,
        factor: f32,
    ) -> Result<Norm, LoadError> {
        let mut values = self.build.weights.vector(name, &[vec![len]])?.values;
        values.iter_mut().for_each(|value| *value *= factor);
        Ok(Norm::of_values(self.build.weights, &values, self.outline.eps))
    }

    /// A norm of `len` elements without weights.
    pub(crate) fn plain_norm(&mut self, len: usize) -> Norm {
        Norm::of_values(self.build.weights, &vec![1.0; len], self.outline.eps)
    }

    /// The number that is stored under `name`.
    pub(crate) fn number(&mut self, name: &str) -> Result<f32, LoadError> {
        Ok(self.build.weights.vector(name, &[vec![1]])?.values[0])
    }

    /// Something that every sequence keeps.
    pub(crate) fn cache(&mut self, spec: CacheSpec) -> Cache {
        self.caches.push(spec);
        Cache(u32::try_from(self.caches.len() - 1).expect("few caches"))
    }

    /// Keys and values, stored as the user chose.
    pub(crate) fn kv_cache(
        &mut self,
        n_heads: usize,
        k_dim: usize,
        v_dim: usize,
        window: Option<usize>,
    ) -> Cache {
        let dtype = self.build.variant.kv_type;
        self.cache(CacheSpec::Pages { n_heads, k_dim, v_dim, dtype, window })
    }
}

/// What mixers need to know of the positions of rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PositionNeeds {
    /// Rotations go by three parts of a position.
    pub(crate) have_parts: bool,
    /// Rotations go by those of this many rows before a step.
    pub(crate) n_before: usize,
    /// Rows of a picture see those after them.
    pub(crate) look_ahead: bool,
}

/// How many experts a model has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpertCounts {
    /// In a layer.
    pub(crate) n_experts: usize,
    /// That a token may choose from.
    pub(crate) n_eligible: usize,
    /// That a token gets.
    pub(crate) top_k: usize,
    /// That it gets by the config.
    pub(crate) config_top_k: usize,
}
