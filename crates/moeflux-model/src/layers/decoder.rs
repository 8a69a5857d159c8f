//! The decoder that all families share: a residual that every layer reads through a norm or
//! through gates, first for its mixer, then for its MLP.

use std::sync::Arc;

use moeflux_backend::{CacheSpec, Cols, Heads, Stage, Weight};
use moeflux_core::LayerIdx;
use moeflux_core::manifest::Role;

use super::connection::Connection;
use super::lookahead::{ExpertsJoin, Lookahead};
use super::moe::MoeInput;
use super::mtp::{Mtp, MtpNames};
use crate::forward_error::ForwardError;
use crate::layers::builder::{Builder, Outline, Residual};
use crate::layers::layer::{Layer, Mlp};
use crate::layers::mixer::Mixer;
use crate::layers::predict::Predict;
use crate::layers::step::{EmbeddedRow, Step};
use crate::load::LoadError;
use crate::model::{Model, WithMtp};
use crate::rows::RowIds;
use crate::shape::ModelShape;

/// A model of such layers.
#[derive(Debug)]
struct Decoder {
    shape: ModelShape,
    embed_tokens: Weight,
    layers: Vec<Layer>,
    /// Before the head.
    end: Connection,
    /// What the head multiplies.
    output: Cols,
    /// Next to the output: the streams of the last layer, for multi-token prediction.
    carried: Option<Cols>,
    lm_head: Weight,
    embed_scale: Option<f32>,
    logit_softcap: Option<f32>,
    residual: Residual,
    mtp: Option<Mtp>,
    row_ids: Vec<Arc<dyn RowIds>>,
}

impl Model for Decoder {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn forward(&self, step: &mut Step<'_>) -> Result<(), ForwardError> {
        let hidden = self.residual.hidden;
        step.backend.begin_stage(Stage::Rest, None);
        self.embed(step);
        if let Some(factor) = self.embed_scale {
            let rows = step.rows();
            step.backend.scale(rows, hidden, factor);
        }
        for ((i, layer), next) in (0..).zip(&self.layers).zip(self.following()) {
            self.mix(step, i, layer)?;
            self.run_mlp(step, i, layer, next)?;
            self.add_deepstack(step, i.into());
            if let Some(next) = next {
                next.look(step)?;
            }
        }
        self.finish(step, &self.end);
        Ok(())
    }

    fn forward_mtp(
        &self,
        step: &mut Step<'_>,
        before: &[f32],
        wants_output: bool,
    ) -> Result<(), ForwardError> {
        let mtp = self.mtp.as_ref().expect("a model with multi-token prediction");
        step.backend.begin_stage(Stage::Rest, None);
        let input = match self.carried {
            None => self.residual.mixed,
            Some(carried) => carried,
        };
        step.backend.write(input.buf, before);
        mtp.join(step, self.residual, self.embed_tokens, input);
        let i = u16::try_from(self.layers.len()).expect("configs bound the number of layers");
        self.mix(step, i, &mtp.layer)?;
        if wants_output {
            self.run_mlp(step, i, &mtp.layer, None)?;
            self.finish(step, &mtp.output);
        }
        Ok(())
    }

    fn output(&self) -> (Cols, Weight) {
        (self.output, self.lm_head)
    }

    fn logit_softcap(&self) -> Option<f32> {
        self.logit_softcap
    }

    fn row_ids(&self) -> Vec<Arc<dyn RowIds>> {
        self.row_ids.clone()
    }
}

impl Decoder {
    /// The residual of the step's tokens: their embeddings, in every stream.
    fn embed(&self, step: &mut Step<'_>) {
        let Residual { hidden, mixed, streams, .. } = self.residual;
        let Some(streams) = streams else {
            step.backend.embed(hidden, self.embed_tokens, step.tokens);
            for row in step.embedded {
                step.backend.write_rows(hidden.buf, row.row, row.values);
            }
            return;
        };
        assert!(step.embedded.is_empty(), "several streams take tokens");
        step.backend.embed(mixed, self.embed_tokens, step.tokens);
        let n_streams = streams.shape.n_streams;
        let rows = step.rows();
        let same = Heads { n_heads: n_streams, stride: 0, ..mixed.heads(1) };
        step.backend.copy(rows, hidden.heads(n_streams), same);
    }

    /// Adds to the residual what embedded rows bring along for a layer.
    fn add_deepstack(&self, step: &mut Step<'_>, layer: usize) {
        let of_layer = |row: &EmbeddedRow<'_>| row.deepstack.get(layer).is_some();
        if !step.embedded.iter().any(of_layer) {
            return;
        }
        let Residual { hidden, mixed, .. } = self.residual;
        let rows = step.rows();
        // To which any number can be added: it stays what it is, zeros too.
        let mut added = vec![-0.0; rows * mixed.len];
        for row in step.embedded {
            if let Some(values) = row.deepstack.get(layer) {
                added[row.row * mixed.len..][..mixed.len].copy_from_slice(values);
            }
        }
        step.backend.write(mixed.buf, &added);
        step.backend.add(rows, hidden, mixed);
    }

    /// What the head multiplies.
    fn finish(&self, step: &mut Step<'_>, end: &Connection) {
        step.backend.begin_stage(Stage::Head, None);
        let hidden = self.residual.hidden;
        end.read(step, self.output, hidden);
        if let Some(carried) = self.carried {
            let rows = step.rows();
            step.backend.copy(rows, carried.heads(1), hidden.heads(1));
        }
    }

    /// The first half of a layer: its mixer reads the residual and joins it.
    fn mix(&self, step: &mut Step<'_>, i: u16, layer: &Layer) -> Result<(), ForwardError> {
        let Residual { hidden, normed, mixed, .. } = self.residual;
        if let Some(moe) = layer.mlp.moe() {
            step.experts.begin_layer(moe.layer);
        }
        if let Some(ngram) = &layer.ngram {
            step.backend.begin_stage(Stage::Rest, Some(i));
            ngram.forward(step, hidden)?;
        }
        step.backend.begin_stage(layer.mixer.stage(), Some(i));
        layer.mixer_connection.read(step, normed, hidden);
        layer.mixer.forward(step, mixed, normed);
        if let Some(norm) = layer.mixer_norm {
            norm.forward(step, mixed, mixed);
        }
        layer.mixer_connection.join(step, hidden, mixed);
        Ok(())
    }

    /// The second half: its MLP reads the residual and joins it.
    fn run_mlp(
        &self,
        step: &mut Step<'_>,
        i: u16,
        layer: &Layer,
        next: Option<Lookahead<'_>>,
    ) -> Result<(), ForwardError> {
        let Residual { hidden, normed, mixed, streams } = self.residual;
        step.backend.begin_stage(layer.mlp.stage(), Some(i));
        let connection = &layer.mlp_connection;
        connection.read(step, normed, hidden);
        let next = next.as_ref().map(|next| next as &dyn Predict);
        match &layer.mlp {
            Mlp::Dense(dense) => {
                let out = dense.forward(step, normed);
                connection.join(step, hidden, out);
            }
            Mlp::Moe(moe) => match streams {
                None => moe.forward(step, hidden, MoeInput::of(normed), next)?,
                Some(streams) => {
                    let rows = step.rows();
                    step.backend.copy(rows, mixed.heads(1), streams.scratch.zeros.heads(1));
                    moe.forward(step, mixed, MoeInput::of(normed), next)?;
                    connection.join(step, hidden, mixed);
                }
            },
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
        let streams = self.residual.streams.as_ref();
        let pairs = self.layers.iter().zip(self.layers.iter().skip(1));
        let routers = pairs.map(move |(layer, next)| {
            let joins = match (&layer.mlp, streams) {
                (Mlp::Parallel(parallel), _) => ExpertsJoin::Parallel(parallel),
                (_, None) => ExpertsJoin::Added,
                (_, Some(streams)) => {
                    let (connection, scratch) = (&layer.mlp_connection, &streams.scratch);
                    ExpertsJoin::Streams { connection, scratch }
                }
            };
            let (connection, moe) = match &next.mlp {
                Mlp::Dense(_) => return None,
                Mlp::Moe(moe) => (next.mlp_connection, &**moe),
                Mlp::Parallel(parallel) => (Connection::Norm(parallel.router_norm), &*parallel.moe),
            };
            // Experts of several streams are added up where one stream has its scratch.
            let scratch = streams.map_or(mixed, |streams| streams.scratch.spare_out);
            Some(Lookahead { joins, connection, moe, hidden, scratch })
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
        let part = |part: &str| format!("{name}.{part}");
        let (norm, gates) = (part("input_layernorm"), part("attn_hyper_connection"));
        let mixer_connection = self.connection(&norm, &gates, true)?;
        let (norm, gates) = (part("post_attention_layernorm"), part("mlp_hyper_connection"));
        let mlp_connection = self.connection(&norm, &gates, true)?;
        Ok(Layer {
            ngram: None,
            mixer_connection,
            mixer,
            mixer_norm: None,
            mlp_connection,
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
        let end = match self.outline.logit_scale {
            Some(factor) => Connection::Norm(self.scaled_norm("norm.weight", hidden, factor)?),
            None => self.connection("norm", "hyper_connection_mixer", false)?,
        };
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
        let (output, carried) = self.output(mtp_layer.is_some());
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
        let takes_embeddings = mtp_layer.is_none()
            && embed_scale.is_none()
            && self.residual.streams.is_none()
            && self.row_ids.is_empty()
            && caches.iter().all(|cache| !cache.is_recurrent() && cache.window().is_none());
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
            mtp_width: hidden + carried.map_or(0, |streams| streams.len),
            takes_embeddings,
            has_position_parts: self.has_position_parts,
            caches,
        };
        Ok(Box::new(Decoder {
            shape,
            embed_tokens,
            layers,
            end,
            output,
            carried,
            lm_head,
            embed_scale,
            logit_softcap,
            residual: self.residual,
            mtp: mtp_layer,
            row_ids: self.row_ids,
        }))
    }

    /// What the head multiplies, and where streams are carried to multi-token prediction, which
    /// gets whole rows of one buffer.
    fn output(&mut self, has_mtp: bool) -> (Cols, Option<Cols>) {
        let Residual { hidden, normed, streams, .. } = self.residual;
        if streams.is_none() || !has_mtp {
            return (normed, None);
        }
        let both = self.build.cols(normed.len + hidden.len);
        (both.slice(0, normed.len), Some(both.slice(normed.len, hidden.len)))
    }
}
