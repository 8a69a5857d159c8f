//! The decoder that all families share: a residual stream that every layer
//! reads through a norm, first for its mixer, then for its MLP.

use moeflux_backend::{CacheSpec, Cols, Stage, Weight};
use moeflux_core::LayerIdx;
use moeflux_core::manifest::Role;

use super::lookahead::Lookahead;
use super::moe::MoeInput;
use super::mtp::{Mtp, MtpNames};
use super::norm::Norm;
use crate::forward_error::ForwardError;
use crate::layers::builder::{Builder, Outline, Residual};
use crate::layers::layer::{Layer, Mlp};
use crate::layers::mixer::Mixer;
use crate::layers::predict::Predict;
use crate::layers::step::Step;
use crate::load::LoadError;
use crate::model::{Model, WithMtp};
use crate::shape::ModelShape;

/// A model of such layers.
#[derive(Debug)]
struct Decoder {
    shape: ModelShape,
    embed_tokens: Weight,
    layers: Vec<Layer>,
    norm: Norm,
    lm_head: Weight,
    embed_scale: Option<f32>,
    logit_softcap: Option<f32>,
    residual: Residual,
    mtp: Option<Mtp>,
}

impl Model for Decoder {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn forward(&self, step: &mut Step<'_>) -> Result<(), ForwardError> {
        let Residual { hidden, normed, .. } = self.residual;
        step.backend.begin_stage(Stage::Rest, None);
        step.backend.embed(hidden, self.embed_tokens, step.tokens);
        if let Some(factor) = self.embed_scale {
            let rows = step.rows();
            step.backend.scale(rows, hidden, factor);
        }
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

    fn forward_mtp(
        &self,
        step: &mut Step<'_>,
        before: &[f32],
        wants_output: bool,
    ) -> Result<(), ForwardError> {
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

    fn logit_softcap(&self) -> Option<f32> {
        self.logit_softcap
    }
}

impl Decoder {
    /// The first half of a layer: `hidden += mixer(norm(hidden))`.
    fn mix(&self, step: &mut Step<'_>, i: u16, layer: &Layer) {
        let Residual { hidden, normed, mixed } = self.residual;
        if let Some(moe) = layer.mlp.moe() {
            step.experts.begin_layer(moe.layer);
        }
        step.backend.begin_stage(layer.mixer.stage(), Some(i));
        layer.input_norm.forward(step, normed, hidden);
        layer.mixer.forward(step, mixed, normed);
        if let Some(norm) = layer.mixer_norm {
            norm.forward(step, mixed, mixed);
        }
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
    ) -> Result<(), ForwardError> {
        let Residual { hidden, normed, .. } = self.residual;
        step.backend.begin_stage(layer.mlp.stage(), Some(i));
        layer.post_norm.forward(step, normed, hidden);
        let next = next.as_ref().map(|next| next as &dyn Predict);
        match &layer.mlp {
            Mlp::Dense(dense) => dense.forward(step, hidden, normed),
            Mlp::Moe(moe) => moe.forward(step, hidden, MoeInput::of(normed), next)?,
            Mlp::Parallel(parallel) => parallel.forward(step, hidden, next)?,
        }
        if let Some(factor) = layer.scale {
            let rows = step.rows();
            step.backend.scale(rows, hidden, factor);
        }
        Ok(())
    }

    /// For each layer, what predicts the next one's routing, where that has any.
    fn following(&self) -> impl Iterator<Item = Option<Lookahead<'_>>> {
        let Residual { hidden, mixed, .. } = self.residual;
        let pairs = self.layers.iter().zip(self.layers.iter().skip(1));
        let routers = pairs.map(move |(layer, next)| {
            let joins = match &layer.mlp {
                Mlp::Parallel(parallel) => Some(&**parallel),
                Mlp::Dense(_) | Mlp::Moe(_) => None,
            };
            let (norm, moe) = match &next.mlp {
                Mlp::Dense(_) => return None,
                Mlp::Moe(moe) => (next.post_norm, &**moe),
                Mlp::Parallel(parallel) => (parallel.router_norm, &*parallel.moe),
            };
            Some(Lookahead { joins, norm, moe, hidden, scratch: mixed })
        });
        routers.chain([None])
    }
}

impl Builder<'_, '_> {
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
            mixer_norm: None,
            post_norm: self.norm(&format!("{name}.post_attention_layernorm"), hidden)?,
            mlp,
            scale: None,
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

    /// [`finish`](Builder::finish) with multi-token prediction, where the checkpoint has these
    /// tensors; its layer stands past the last.
    pub(crate) fn finish_with(
        mut self,
        mtp: Option<MtpNames>,
        mut layer: impl FnMut(&mut Self, LayerIdx, &str) -> Result<Layer, LoadError>,
    ) -> Result<Box<dyn Model>, LoadError> {
        let Outline { hidden, n_layers, vocab, max_positions, is_tied, embedding, .. } =
            self.outline;
        let Outline { embed_scale, logit_softcap, .. } = self.outline;
        let matrix = |builder: &mut Self, name: &str, role| {
            builder.build.weights.matrix(name, vocab, hidden, role)
        };
        let embed_tokens = matrix(&mut self, embedding, Role::Embedding)?;
        let at = |i| LayerIdx(u16::try_from(i).expect("configs bound the number of layers"));
        let mut layers = Vec::with_capacity(n_layers);
        for i in 0..n_layers {
            layers.push(layer(&mut self, at(i), &format!("layers.{i}"))?);
        }
        let norm = self.norm("norm", hidden)?;
        // Embeddings are not tied to a head that is stored, as in the reference.
        let is_tied = is_tied && !self.build.weights.holds("lm_head.weight");
        let head = if is_tied { embedding } else { "lm_head" };
        let lm_head = matrix(&mut self, head, Role::Head)?;
        let n_caches = self.caches.len();
        let mut mtp_layer = None;
        let is_wanted = |names: &MtpNames| match self.build.variant.mtp {
            WithMtp::Found => names.are_in(self.build.weights),
            WithMtp::Always => true,
            WithMtp::Never => false,
        };
        if let Some(names) = mtp.filter(is_wanted) {
            let layer = layer(&mut self, at(n_layers), &names.layer)?;
            mtp_layer = Some(Mtp::load(&names, layer, &mut self)?);
        }
        let mut caches = self.caches;
        // The layer of multi-token prediction has gaps that are filled later, and recurrent
        // states return to positions that are far back.
        let keeps_all = caches.iter().any(CacheSpec::is_recurrent);
        for (i, cache) in caches.iter_mut().enumerate() {
            if let CacheSpec::Kv { window, .. } = cache
                && (keeps_all || i >= n_caches)
            {
                *window = None;
            }
        }
        let shape = ModelShape {
            vocab,
            hidden,
            n_layers,
            n_moe_layers: layers.iter().filter(|layer| layer.mlp.moe().is_some()).count(),
            n_experts: self.experts.n_experts,
            n_eligible: self.experts.n_eligible,
            top_k: self.experts.top_k,
            config_top_k: self.experts.config_top_k,
            max_positions,
            n_mtp_caches: caches.len() - n_caches,
            caches,
        };
        Ok(Box::new(Decoder {
            shape,
            embed_tokens,
            layers,
            norm,
            lm_head,
            embed_scale,
            logit_softcap,
            residual: self.residual,
            mtp: mtp_layer,
        }))
    }
}
