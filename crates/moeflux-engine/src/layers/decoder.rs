//! The decoder that all families share: a residual stream that every layer
//! reads through a norm, first for its mixer, then for its MLP.

use std::fmt;

use moeflux_backend::{Cache, CacheSpec, Cols, Stage, Vector, Weight};
use moeflux_core::LayerIdx;
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::Role;

use super::Step;
use super::dense::Dense;
use super::lookahead::Lookahead;
use super::moe::{ExpertCounts, Moe};
use super::mtp::{Mtp, MtpNames};
use super::norm::{Norm, NormWeights};
use crate::error::EngineError;
use crate::load::LoadError;
use crate::models::{Build, Model, ModelShape, WithMtp};

/// What lets tokens see others: attention, or a recurrence.
pub(crate) trait Mixer: fmt::Debug + Send {
    /// `out = mixer(x)`.
    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols);

    /// What measurements count it as.
    fn stage(&self) -> Stage {
        Stage::Attention
    }
}

/// What follows the mixer.
#[derive(Debug)]
pub(crate) enum Mlp {
    Dense(Dense),
    Moe(Box<Moe>),
}

impl Mlp {
    /// What measurements count its beginning as.
    fn stage(&self) -> Stage {
        match self {
            Mlp::Dense(_) => Stage::DenseMlp,
            Mlp::Moe(_) => Stage::Router,
        }
    }
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) input_norm: Norm,
    pub(crate) mixer: Box<dyn Mixer>,
    pub(crate) post_norm: Norm,
    pub(crate) mlp: Mlp,
}

/// A model of such layers.
#[derive(Debug)]
struct Decoder {
    shape: ModelShape,
    embed_tokens: Weight,
    layers: Vec<Layer>,
    norm: Norm,
    lm_head: Weight,
    residual: Residual,
    mtp: Option<Mtp>,
}

/// Activations between layers, `hidden_size` columns each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residual {
    /// The residual stream.
    pub(crate) hidden: Cols,
    /// It, normalised.
    pub(crate) normed: Cols,
    /// What a mixer or a dense MLP gives, before it joins the stream.
    pub(crate) mixed: Cols,
}

impl Model for Decoder {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn forward(&self, step: &mut Step<'_>) -> Result<(), EngineError> {
        let Residual { hidden, normed, .. } = self.residual;
        step.backend.begin_stage(Stage::Rest, None);
        step.backend.embed(hidden, self.embed_tokens, step.tokens);
        for ((i, layer), next) in (0..).zip(&self.layers).zip(self.following()) {
            self.mix(step, i, layer);
            self.run_mlp(step, i, layer, next)?;
            if let Some(next) = next {
                next.look(step)?;
            }
        }
        step.backend.begin_stage(Stage::Head, None);
        self.norm.forward(step, normed, hidden);
        Ok(())
    }

    fn foresee(
        &self,
        step: &mut Step<'_>,
        before: &[f32],
        wants_output: bool,
    ) -> Result<(), EngineError> {
        let mtp = self.mtp.as_ref().expect("a model with multi-token prediction");
        let Residual { hidden, normed, .. } = self.residual;
        step.backend.begin_stage(Stage::Rest, None);
        mtp.join(step, self.residual, self.embed_tokens, before);
        let i = u16::try_from(self.layers.len()).expect("configs bound the number of layers");
        self.mix(step, i, &mtp.layer);
        if wants_output {
            self.run_mlp(step, i, &mtp.layer, None)?;
            step.backend.begin_stage(Stage::Head, None);
            mtp.norm.forward(step, normed, hidden);
        }
        Ok(())
    }

    fn output(&self) -> (Cols, Weight) {
        (self.residual.normed, self.lm_head)
    }
}

impl Decoder {
    /// The first half of a layer: `hidden += mixer(norm(hidden))`.
    fn mix(&self, step: &mut Step<'_>, i: u16, layer: &Layer) {
        let Residual { hidden, normed, mixed } = self.residual;
        if let Mlp::Moe(moe) = &layer.mlp {
            step.experts.begin_layer(moe.layer);
        }
        step.backend.begin_stage(layer.mixer.stage(), Some(i));
        layer.input_norm.forward(step, normed, hidden);
        layer.mixer.forward(step, mixed, normed);
        let rows = step.rows();
        step.backend.add(rows, hidden, mixed);
    }

    /// The second half: `hidden += mlp(norm(hidden))`.
    fn run_mlp(
        &self,
        step: &mut Step<'_>,
        i: u16,
        layer: &Layer,
        next: Option<Lookahead<'_>>,
    ) -> Result<(), EngineError> {
        let Residual { hidden, normed, .. } = self.residual;
        step.backend.begin_stage(layer.mlp.stage(), Some(i));
        layer.post_norm.forward(step, normed, hidden);
        match &layer.mlp {
            Mlp::Dense(dense) => dense.forward(step, hidden, normed),
            Mlp::Moe(moe) => moe.forward(step, hidden, normed, next)?,
        }
        Ok(())
    }

    /// For each layer, what predicts the next one's routing, where that has any.
    fn following(&self) -> impl Iterator<Item = Option<Lookahead<'_>>> {
        let Residual { hidden, mixed, .. } = self.residual;
        let routers = self.layers.iter().skip(1).map(move |it| match &it.mlp {
            Mlp::Moe(moe) => Some(Lookahead { norm: it.post_norm, moe, hidden, scratch: mixed }),
            Mlp::Dense(_) => None,
        });
        routers.chain([None])
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
}

impl Outline {
    /// From the keys that all families use.
    pub(crate) fn read(config: &Config) -> Result<Outline, LoadError> {
        // Two names of one function.
        if !["silu", "swish"].contains(&config.str("hidden_act")?) {
            return Err(config.refuse("hidden_act", "be \"silu\" or \"swish\"").into());
        }
        Ok(Outline {
            hidden: config.usize("hidden_size")?,
            n_layers: config.usize("num_hidden_layers")?,
            vocab: config.usize("vocab_size")?,
            eps: config.f32("rms_norm_eps")?,
            max_positions: config.usize("max_position_embeddings")?,
            is_tied: config.bool("tie_word_embeddings")?,
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
    caches: Vec<CacheSpec>,
}

impl<'a, 'b> Builder<'a, 'b> {
    pub(crate) fn new(
        outline: Outline,
        stored: NormWeights,
        build: &'a mut Build<'b>,
    ) -> Builder<'a, 'b> {
        let mut cols = || build.cols(outline.hidden);
        let residual = Residual { hidden: cols(), normed: cols(), mixed: cols() };
        let experts = ExpertCounts::default();
        Builder { build, outline, residual, stored, experts, caches: Vec::new() }
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

    /// Something that every sequence keeps.
    pub(crate) fn cache(&mut self, spec: CacheSpec) -> Cache {
        self.caches.push(spec);
        Cache(u32::try_from(self.caches.len() - 1).expect("few caches"))
    }

    /// Keys and values, stored as the user chose.
    pub(crate) fn kv_cache(&mut self, n_heads: usize, k_dim: usize, v_dim: usize) -> Cache {
        let dtype = self.build.variant.kv_type;
        self.cache(CacheSpec::Kv { n_heads, k_dim, v_dim, dtype })
    }

    /// A layer whose norms have their usual names.
    pub(crate) fn layer(
        &mut self,
        name: &str,
        mixer: Box<dyn Mixer>,
        mlp: Mlp,
    ) -> Result<Layer, LoadError> {
        let hidden = self.outline.hidden;
        Ok(Layer {
            input_norm: self.norm(&format!("{name}.input_layernorm"), hidden)?,
            mixer,
            post_norm: self.norm(&format!("{name}.post_attention_layernorm"), hidden)?,
            mlp,
        })
    }

    /// Loads every layer, and what stands before and behind them. `layer` is
    /// given each layer's place and name.
    pub(crate) fn finish(
        self,
        layer: impl FnMut(&mut Self, LayerIdx, &str) -> Result<Layer, LoadError>,
    ) -> Result<Box<dyn Model>, LoadError> {
        self.finish_with(None, layer)
    }

    /// The same with multi-token prediction, where the checkpoint has what is called so; its
    /// layer stands past the last.
    pub(crate) fn finish_with(
        mut self,
        mtp: Option<MtpNames>,
        mut layer: impl FnMut(&mut Self, LayerIdx, &str) -> Result<Layer, LoadError>,
    ) -> Result<Box<dyn Model>, LoadError> {
        let Outline { hidden, n_layers, vocab, max_positions, is_tied, .. } = self.outline;
        let matrix =
            |it: &mut Self, name: &str, role| it.build.weights.matrix(name, vocab, hidden, role);
        let embed_tokens = matrix(&mut self, "embed_tokens", Role::Embedding)?;
        let at = |i| LayerIdx(u16::try_from(i).expect("configs bound the number of layers"));
        let mut layers = Vec::with_capacity(n_layers);
        for i in 0..n_layers {
            layers.push(layer(&mut self, at(i), &format!("layers.{i}"))?);
        }
        let norm = self.norm("norm", hidden)?;
        // Embeddings are not tied to a head that is stored, as in the reference.
        let is_tied = is_tied && !self.build.weights.holds("lm_head.weight");
        let head = if is_tied { "embed_tokens" } else { "lm_head" };
        let lm_head = matrix(&mut self, head, Role::Head)?;
        let n_caches = self.caches.len();
        let mut foreseeing = None;
        let is_wanted = |names: &MtpNames| match self.build.variant.mtp {
            WithMtp::Found => names.are_in(self.build.weights),
            WithMtp::Always => true,
            WithMtp::Never => false,
        };
        if let Some(names) = mtp.filter(is_wanted) {
            let layer = layer(&mut self, at(n_layers), &names.layer)?;
            foreseeing = Some(Mtp::load(&names, layer, &mut self)?);
        }
        let shape = ModelShape {
            vocab,
            hidden,
            n_layers,
            n_moe_layers: layers.iter().filter(|it| matches!(it.mlp, Mlp::Moe(_))).count(),
            n_experts: self.experts.n_experts,
            n_eligible: self.experts.n_eligible,
            top_k: self.experts.top_k,
            config_top_k: self.experts.config_top_k,
            max_positions,
            n_mtp_caches: self.caches.len() - n_caches,
            caches: self.caches,
        };
        let (residual, mtp) = (self.residual, foreseeing);
        Ok(Box::new(Decoder { shape, embed_tokens, layers, norm, lm_head, residual, mtp }))
    }
}
