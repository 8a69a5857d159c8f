//! Embeddings of hashed n-grams that join a residual of several streams, as in transformers'
//! `modeling_qwen4_exp`: gated by how similar they are to each stream, and convolved over a few
//! tokens.

use std::sync::Arc;

use moeflux_backend::{
    Cache, CacheSpec, CausalConv, Cols, Projection, SimilarityGate, StateShape, Vector, Weight,
};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::TableDecl;

use super::ngram_ids::{NgramIds, NgramShape, StoredHash};
use super::norm::Norm;
use super::recurrent::conv_shapes;
use super::streams::StreamsBlocks;
use crate::forward_error::ForwardError;
use crate::layers::builder::Builder;
use crate::load::LoadError;
use crate::step::Step;

/// What the n-gram embeddings of a model have in common.
#[derive(Clone, Debug)]
pub(crate) struct NgramEmbedShape {
    pub(crate) ids: NgramShape,
    /// Columns of all rows of a token together.
    pub(crate) dim: usize,
    /// Taps of the convolution, the current input included; they are `ids.ngram` tokens apart.
    pub(crate) kernel: usize,
    /// The layers that have embeddings, ascending.
    pub(crate) layers: Vec<usize>,
    /// The constants of the only layer's hash, where the config has them.
    hash: Option<StoredHash>,
}

impl NgramEmbedShape {
    /// `None` where no layer has embeddings.
    pub(crate) fn read(config: &Config) -> Result<Option<NgramEmbedShape>, LoadError> {
        let key = "ple_layer_ids";
        let mut layers = config.usize_list(key)?.unwrap_or_default();
        if layers.is_empty() {
            return Ok(None);
        }
        layers.sort_unstable();
        layers.dedup();
        let n_layers = config.usize("num_hidden_layers")?;
        if layers[0] == 0 || layers.last() > Some(&n_layers) {
            return Err(config.refuse(key, "count layers from 1 to num_hidden_layers").into());
        }
        layers.iter_mut().for_each(|layer| *layer -= 1);
        let ids = NgramShape::read(config)?;
        let dim = match config.get("ple_embed_dim") {
            Some(_) => config.usize("ple_embed_dim")?,
            None => config.usize("hidden_size")?,
        };
        if !dim.is_multiple_of(ids.per_token()) {
            let rule = "be divisible by the rows of a token: (ngram_size - 1) * heads_per_ngram";
            return Err(config.refuse("ple_embed_dim", rule).into());
        }
        let kernel = config.usize_in("ple_conv_kernel_size", 2..=8)?;
        let hash = StoredHash::read(config, &ids)?;
        if hash.is_some() && layers.len() > 1 {
            return Err(config.refuse(key, "name one layer: there is one table").into());
        }
        Ok(Some(NgramEmbedShape { ids, dim, kernel, layers, hash }))
    }
}

/// Loads n-gram embeddings that share their activations.
#[derive(Clone, Debug)]
pub(crate) struct NgramBlocks {
    pub(crate) shape: NgramEmbedShape,
    streams: StreamsBlocks,
    /// The rows of a token, side by side.
    rows: Cols,
    value: Cols,
}

/// The n-gram embedding of one layer.
#[derive(Debug)]
pub(crate) struct NgramLayer {
    /// Which of the model's tables it reads.
    table: usize,
    key_proj: Weight,
    value_proj: Weight,
    key_norm: Norm,
    query_norm: Norm,
    conv_norm: Norm,
    conv: Vector,
    conv_cache: Cache,
    blocks: NgramBlocks,
}

impl NgramBlocks {
    /// Allocates what the n-gram embeddings of a model share.
    pub(crate) fn new(
        shape: NgramEmbedShape,
        streams: StreamsBlocks,
        builder: &mut Builder<'_, '_>,
    ) -> NgramBlocks {
        let rows = builder.build.cols(shape.dim);
        let value = builder.build.cols(builder.outline.hidden);
        NgramBlocks { shape, streams, rows, value }
    }

    /// The embedding called `name` of a layer, or `None` where the layer has none.
    pub(crate) fn load(
        &self,
        layer: usize,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Option<NgramLayer>, LoadError> {
        let Some(nth) = self.shape.layers.iter().position(|other| *other == layer) else {
            return Ok(None);
        };
        let (hidden, dim) = (builder.outline.hidden, self.shape.dim);
        let all = self.streams.scratch.normed.len;
        let table = self.load_table(nth, &format!("{name}.ple_embedding"), builder)?;
        let part = |part: &str| format!("{name}.{part}");
        let taps = 1 + (self.shape.kernel - 1) * self.shape.ids.ngram;
        Ok(Some(NgramLayer {
            table,
            key_proj: builder.projection(&part("key_proj"), all, dim)?,
            value_proj: builder.projection(&part("value_proj"), hidden, dim)?,
            key_norm: builder.norm(&part("norm_key"), all)?,
            query_norm: builder.norm(&part("norm_query"), all)?,
            conv_norm: builder.norm(&part("norm_conv"), all)?,
            conv: self.load_taps(&part("conv1d.weight"), taps, builder)?,
            conv_cache: builder
                .cache(CacheSpec::State(StateShape::Rows { n: taps - 1, cols: all })),
            blocks: self.clone(),
        }))
    }

    /// The layer's table, and the constants of its hash, which follow from the config.
    fn load_table(
        &self,
        nth: usize,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<usize, LoadError> {
        let ids = match &self.shape.hash {
            Some(hash) => NgramIds::stored(self.shape.ids, hash.clone()),
            None => NgramIds::new(self.shape.ids, nth),
        };
        let weights = &mut *builder.build.weights;
        weights.constants(&format!("{name}.layer_multipliers"), &ids.multipliers)?;
        weights.constants(&format!("{name}.ngram_heads_vocab_sizes"), &ids.sizes)?;
        weights.constants(&format!("{name}.ngram_heads_offsets"), &ids.offsets)?;
        let name = format!("{name}.ngram_embedding");
        let cols = self.shape.dim / self.shape.ids.per_token();
        weights.table(TableDecl { name, rows: ids.n_rows(), cols })?;
        builder.row_ids.push(Arc::new(ids));
        Ok(builder.row_ids.len() - 1)
    }

    /// A convolution whose taps are some tokens apart is one with zeros between them.
    fn load_taps(
        &self,
        name: &str,
        taps: usize,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Vector, LoadError> {
        let (kernel, channels) = (self.shape.kernel, self.streams.scratch.normed.len);
        let shapes = conv_shapes(channels, kernel);
        let stored = builder.build.weights.vector(name, &shapes)?.values;
        let mut spread = vec![0.0; taps * channels];
        for (i, tap) in stored.iter().enumerate() {
            let (channel, nth) = (i / kernel, i % kernel);
            spread[nth * self.shape.ids.ngram * channels + channel] = *tap;
        }
        Ok(builder.build.backend().load_vector(&spread))
    }
}

impl NgramLayer {
    /// Adds the embeddings of the step's tokens to all streams.
    pub(crate) fn forward(&self, step: &mut Step<'_>, residual: Cols) -> Result<(), ForwardError> {
        let n_rows = step.rows();
        let NgramBlocks { streams, rows, value, .. } = self.blocks;
        let scratch = streams.scratch;
        let heads = |cols: Cols| cols.heads(streams.shape.n_streams);
        let mut values = Vec::new();
        step.rows.rows(self.table, &mut values)?;
        step.backend.write(rows.buf, &values);
        let Step { backend, spans, .. } = step;
        let (key, query, gated) = (scratch.gates, scratch.normed, scratch.spare.all);
        let projections = [
            Projection { weight: self.key_proj, out: key },
            Projection { weight: self.value_proj, out: value },
        ];
        backend.project(n_rows, rows, &projections);
        backend.rms_norm(n_rows, self.key_norm.op(heads(key), heads(key)));
        backend.rms_norm(n_rows, self.query_norm.op(heads(query), heads(residual)));
        let op = SimilarityGate {
            out: heads(gated),
            a: heads(key),
            b: heads(query),
            x: value,
            scale: 1.0 / (value.len as f32).sqrt(),
        };
        backend.similarity_gate(n_rows, op);
        let (x, out) = (query, key);
        backend.rms_norm(n_rows, self.conv_norm.op(heads(x), heads(gated)));
        let op = CausalConv { out, x, weight: self.conv, bias: None, cache: self.conv_cache };
        backend.causal_conv(op, spans);
        backend.add(n_rows, residual, gated);
        backend.add(n_rows, residual, out);
        Ok(())
    }
}
