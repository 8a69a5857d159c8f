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

    /// Whether rows may be embeddings: these are not scaled.
    pub(super) fn takes_embeddings(&self) -> bool {
        self.scale.is_none()
    }

    /// Writes the residual of the step's rows.
    pub(super) fn forward(&self, step: &mut Step<'_>, residual: &Residual) {
        self.embed(step, residual);
        if let Some(factor) = self.scale {
            let rows = step.rows();
            step.backend.scale(rows, residual.hidden, factor);
        }
    }

    fn embed(&self, step: &mut Step<'_>, residual: &Residual) {
        let Residual { hidden, mixed, streams, .. } = *residual;
        let Some(streams) = streams else {
            step.backend.embed(hidden, self.embedding, step.tokens);
            for row in step.embedded {
                step.backend.write_rows(hidden.buf, row.row, row.values);
            }
            return;
        };
        assert!(step.embedded.is_empty(), "several streams take tokens");
        step.backend.embed(mixed, self.embedding, step.tokens);
        let n_streams = streams.shape.n_streams;
        let rows = step.rows();
        let same = Heads { n_heads: n_streams, stride: 0, ..mixed.heads(1) };
        step.backend.copy(rows, hidden.heads(n_streams), same);
    }
}
