//! The decoder that all families share: a stem that makes the residual, layers whose halves read and
//! join it, and a head.

use std::sync::Arc;

use moeflux_backend::{CacheSpec, Cols, Stage, Weight};
use moeflux_core::LayerIdx;

use super::connection::Connection;
use super::head::Head;
use super::lookahead::{ExpertsJoin, Lookahead};
use super::mtp::{Mtp, MtpNames};
use super::stem::Stem;
use crate::forward_error::ForwardError;
use crate::layers::builder::{Builder, Outline, Residual};
use crate::layers::layer::{Body, Half, Layer};
use crate::layers::predict::Predict;
use crate::load::LoadError;
use crate::model::{Model, WithMtp};
use crate::rows::RowIds;
use crate::shape::ModelShape;
use crate::step::{EmbeddedRow, Step};

/// A model of such layers.
#[derive(Debug)]
struct Decoder {
    shape: ModelShape,
    stem: Stem,
    layers: Vec<Layer>,
    head: Head,
    residual: Residual,
    mtp: Option<Mtp>,
    row_ids: Vec<Arc<dyn RowIds>>,
}

impl Model for Decoder {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn forward(&self, step: &mut Step<'_>) -> Result<(), ForwardError> {
        step.backend.begin_stage(Stage::Rest, None);
        self.layers.iter().filter_map(Layer::moe).for_each(|moe| moe.read_known(step));
        self.stem.forward(step, &self.residual);
        for ((i, layer), next) in (0..).zip(&self.layers).zip(self.following()) {
            layer.run_caching(step, &self.residual, i)?;
            let predict = next.as_ref().map(|next| next as &dyn Predict);
            layer.run_rest(step, &self.residual, i, predict)?;
            self.add_deepstack(step, i.into());
            if let Some(next) = next {
                next.look(step)?;
            }
        }
        self.head.finish(step, self.residual.hidden);
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
        let input = self.head.carried.unwrap_or(self.residual.mixed);
        step.backend.write(input.buf, before);
        mtp.join(step, self.residual, self.stem.embedding, input);
        let i = u16::try_from(self.layers.len()).expect("configs bound the number of layers");
        mtp.layer.run_caching(step, &self.residual, i)?;
        if wants_output {
            mtp.layer.run_rest(step, &self.residual, i, None)?;
            self.head.finish_by(step, self.residual.hidden, &mtp.output);
        }
        Ok(())
    }

    fn output(&self) -> (Cols, Weight) {
        (self.head.output, self.head.weight)
    }

    fn logit_softcap(&self) -> Option<f32> {
        self.head.softcap
    }

    fn routes_by_tokens(&self) -> bool {
        self.layers.iter().filter_map(Layer::moe).any(|moe| moe.token_experts.is_some())
    }

    fn row_ids(&self) -> Vec<Arc<dyn RowIds>> {
        self.row_ids.clone()
    }
}

impl Decoder {
    /// Adds to every stream of the residual what embedded rows bring along for a layer.
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
        for start in (0..hidden.len).step_by(mixed.len) {
            step.backend.add(rows, hidden.slice(start, mixed.len), mixed);
        }
    }

    /// The layer whose routing is predicted where layer `i` ends: the next one, if it has experts
    /// and a mixer before them. Where layers are mixers or experts, a layer of experts predicts the
    /// next one of these, with the mixers between them.
    fn predicted_by(&self, i: usize) -> Option<&Layer> {
        let later = &self.layers[i + 1..];
        if self.layers[i].moe().is_none() {
            return later.first().filter(|next| next.mixes_before_experts());
        }
        let n_between = later.iter().position(|layer| layer.moe().is_some())?;
        let next = &later[n_between];
        (n_between == 0 || !next.mixes_before_experts()).then_some(next)
    }

    /// For each layer, what predicts the routing of a later one, where there is one to predict.
    fn following(&self) -> impl Iterator<Item = Option<Lookahead<'_>>> {
        let Residual { hidden, mixed, .. } = self.residual;
        let streams = self.residual.streams.as_ref();
        self.layers.iter().enumerate().map(move |(i, layer)| {
            let next = self.predicted_by(i)?;
            let joins = match (layer.experts(), streams) {
                (Some(Half::Parallel(parallel)), _) => ExpertsJoin::Parallel(parallel),
                (Some(Half::Body(_, Body::Latent(latent))), _) => ExpertsJoin::Latent(latent),
                (Some(Half::Body(connection, _)), Some(streams)) => {
                    ExpertsJoin::Streams { connection, spare: streams.spare() }
                }
                // A layer without experts waits for none.
                _ => ExpertsJoin::Added,
            };
            let (connection, moe) = match next.experts()? {
                Half::Body(connection, Body::Moe(moe)) => (**connection, &**moe),
                Half::Body(connection, Body::Latent(latent)) => (**connection, &*latent.moe),
                Half::Parallel(parallel) => {
                    (Connection::Norm(parallel.router_norm), &*parallel.moe)
                }
                _ => return None,
            };
            // What follows from tokens is on its way.
            if moe.token_experts.is_some() {
                return None;
            }
            // Experts of several streams are added up where one stream has its scratch.
            let scratch = streams.map_or(mixed, |streams| streams.spare().one);
            Some(Lookahead { joins, connection, moe, hidden, scratch })
        })
    }
}

impl Builder<'_, '_> {
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
        let Outline { hidden, n_layers, vocab, max_positions, .. } = self.outline;
        let stem = Stem::load(&mut self)?;
        let at = |i| LayerIdx(u16::try_from(i).expect("configs bound the number of layers"));
        let mut layers = Vec::with_capacity(n_layers);
        for i in 0..n_layers {
            layers.push(layer(&mut self, at(i), &format!("layers.{i}"))?);
        }
        let mut head = Head::load(&mut self)?;
        let n_caches = self.caches.len();
        let mut mtp_layer = None;
        let is_wanted = |names: &MtpNames| match self.build.variant.mtp {
            WithMtp::IfStored => names.are_in(self.build.weights),
            WithMtp::IfSupported => true,
            WithMtp::Never => false,
        };
        if let Some(names) = mtp.filter(is_wanted) {
            let layer = layer(&mut self, at(n_layers), &names.layer)?;
            mtp_layer = Some(Mtp::load(&names, layer, &mut self)?);
            head.carry_streams(&mut self);
        }
        let mut caches = self.caches;
        // The layer of multi-token prediction has gaps that are filled later, and recurrent
        // states return to positions that are far back.
        let keeps_all = caches.iter().any(CacheSpec::is_recurrent);
        for (i, cache) in caches.iter_mut().enumerate() {
            if let CacheSpec::Pages { window, .. } = cache
                && (keeps_all || i >= n_caches)
            {
                *window = None;
            }
        }
        let shape = ModelShape {
            vocab,
            hidden,
            n_layers,
            n_moe_layers: layers.iter().filter(|layer| layer.moe().is_some()).count(),
            n_experts: self.experts.n_experts,
            n_eligible: self.experts.n_eligible,
            top_k: self.experts.top_k,
            config_top_k: self.experts.config_top_k,
            max_positions,
            n_mtp_caches: caches.len() - n_caches,
            mtp_width: hidden + head.carried.map_or(0, |streams| streams.len),
            has_position_parts: self.positions.have_parts,
            rotary_before: self.positions.n_before,
            sees_pictures_whole: self.positions.look_ahead,
            caches,
        };
        Ok(Box::new(Decoder {
            shape,
            stem,
            layers,
            head,
            residual: self.residual,
            mtp: mtp_layer,
            row_ids: self.row_ids,
        }))
    }
}
