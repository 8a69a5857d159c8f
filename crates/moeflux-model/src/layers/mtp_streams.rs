//! The input of multi-token prediction where the residual has several streams, as in mlx-vlm and
//! llama.cpp, and for DeepSeek-V4 in SGLang: every stream of a position goes through one projection, and
//! the token that was chosen there is added to all of them.

use moeflux_backend::{Cols, Projection, Weight};
use moeflux_core::manifest::Role;

use super::norm::Norm;
use crate::layers::builder::{Builder, Residual, Streams};
use crate::load::LoadError;
use crate::step::Step;

/// What makes that input.
#[derive(Debug)]
pub(crate) struct StreamsEntry {
    hidden_norm: Norm,
    /// Heads that it normalises apart from each other: one of all streams, or each stream.
    n_heads: usize,
    hidden_proj: Weight,
    embed_norm: Norm,
    embed_proj: Weight,
    /// All streams, normalised.
    normed: Cols,
}

/// What its parts are called.
pub(crate) struct StreamsEntryNames<'a> {
    pub(crate) hidden_norm: &'a str,
    pub(crate) hidden_proj: &'a str,
    pub(crate) embed_norm: &'a str,
    pub(crate) embed_proj: &'a str,
}

impl StreamsEntry {
    pub(crate) fn load(
        names: &StreamsEntryNames<'_>,
        streams: Streams,
        builder: &mut Builder<'_, '_>,
    ) -> Result<StreamsEntry, LoadError> {
        let hidden = builder.outline.hidden;
        let normed = streams.normed();
        let n_heads = match streams {
            Streams::Gated(_) => 1,
            Streams::Hyper(_) => streams.n_streams(),
        };
        let weights = &mut *builder.build.weights;
        let mut matrix = |name| weights.matrix(name, hidden, hidden, Role::Projection);
        Ok(StreamsEntry {
            hidden_proj: matrix(names.hidden_proj)?,
            embed_proj: matrix(names.embed_proj)?,
            hidden_norm: builder.norm(names.hidden_norm, normed.len / n_heads)?,
            embed_norm: builder.norm(names.embed_norm, hidden)?,
            n_heads,
            normed,
        })
    }

    /// Writes the layer's input from the tokens of the step and the streams of the positions before
    /// them.
    pub(crate) fn join(
        &self,
        step: &mut Step<'_>,
        residual: Residual,
        embed_tokens: Weight,
        before: Cols,
    ) {
        let Residual { hidden, normed, mixed, .. } = residual;
        let (streams, rows) = (self.normed, step.rows());
        let heads = |cols: Cols| cols.heads(self.n_heads);
        step.backend.rms_norm(rows, self.hidden_norm.op(heads(streams), heads(before)));
        step.backend.embed(mixed, embed_tokens, step.tokens);
        self.embed_norm.forward(step, normed, mixed);
        let outputs = [Projection { weight: self.embed_proj, out: mixed }];
        step.backend.project(rows, normed, &outputs);
        for start in (0..hidden.len).step_by(mixed.len) {
            let (x, out) = (streams.slice(start, mixed.len), hidden.slice(start, mixed.len));
            let outputs = [Projection { weight: self.hidden_proj, out }];
            step.backend.project(rows, x, &outputs);
            step.backend.add(rows, out, mixed);
        }
    }
}
