//! What makes the residual from the rows of a step.

use moeflux_backend::{Heads, Weight};
use moeflux_core::manifest::Role;

use crate::layers::builder::{Builder, Residual};
use crate::load::LoadError;
use crate::step::Step;

/// The embedding, in every stream of the residual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stem {
    pub(super) embedding: Weight,
    /// Multiplies embeddings.
    scale: Option<f32>,
}

impl Stem {
    pub(super) fn load(builder: &mut Builder<'_, '_>) -> Result<Stem, LoadError> {
        let outline = builder.outline;
        let weights = &mut *builder.build.weights;
        let (vocab, hidden) = (outline.vocab, outline.hidden);
        let embedding = weights.matrix(outline.embedding, vocab, hidden, Role::Embedding)?;
        Ok(Stem { embedding, scale: outline.embed_scale })
    }

    /// Writes the residual of the step's rows. Rows that are embeddings are not scaled.
    pub(super) fn forward(&self, step: &mut Step<'_>, residual: &Residual) {
        let Residual { hidden, mixed, streams, .. } = *residual;
        let rows = step.rows();
        let first = if streams.is_some() { mixed } else { hidden };
        step.backend.embed(first, self.embedding, step.tokens);
        if let Some(factor) = self.scale {
            step.backend.scale(rows, first, factor);
        }
        for row in step.embedded {
            step.backend.write_rows(first.buf, row.row, row.values);
        }
        if let Some(streams) = streams {
            let n_streams = streams.n_streams();
            let same = Heads { n_heads: n_streams, stride: 0, ..first.heads(1) };
            step.backend.copy(rows, hidden.heads(n_streams), same);
        }
    }
}
