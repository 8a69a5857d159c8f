//! What makes logits from the residual.

use moeflux_backend::{Cols, Stage, Weight};
use moeflux_core::manifest::Role;

use super::connection::Connection;
use crate::layers::builder::{Builder, Outline, Residual, Streams};
use crate::load::LoadError;
use crate::step::Step;

/// What stands behind the layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Reads the residual of the last layer.
    end: Connection,
    /// What the weight multiplies.
    pub(super) output: Cols,
    /// Next to the output: the streams of the last layer, for multi-token prediction.
    pub(super) carried: Option<Cols>,
    pub(super) weight: Weight,
    /// Logits are `cap * tanh(logit / cap)`, with this cap.
    pub(super) softcap: Option<f32>,
}

impl Head {
    pub(super) fn load(builder: &mut Builder<'_, '_>) -> Result<Head, LoadError> {
        let Outline { hidden, vocab, is_tied, embedding, end, logit_scale, logit_softcap, .. } =
            builder.outline;
        let end = match logit_scale {
            Some(factor) => {
                let norm = builder.scaled_norm(&format!("{end}.weight"), hidden, factor)?;
                Connection::Norm(norm)
            }
            None => {
                let gates = builder.residual.streams.as_ref().map_or("", Streams::end_gates);
                builder.end(end, gates)?
            }
        };
        // Embeddings are not tied to a head that is stored, as in the reference.
        let is_tied = is_tied && !builder.build.weights.holds("lm_head.weight");
        let name = if is_tied { embedding } else { "lm_head" };
        let weight = builder.build.weights.matrix(name, vocab, hidden, Role::Head)?;
        let output = builder.residual.normed;
        Ok(Head { end, output, carried: None, weight, softcap: logit_softcap })
    }

    /// Puts the streams of the residual, where there are several, next to the output:
    /// multi-token prediction gets whole rows of one buffer.
    pub(super) fn carry_streams(&mut self, builder: &mut Builder<'_, '_>) {
        let Residual { hidden, normed, streams, .. } = builder.residual;
        if streams.is_some() {
            let both = builder.build.cols(normed.len + hidden.len);
            self.output = both.slice(0, normed.len);
            self.carried = Some(both.slice(normed.len, hidden.len));
        }
    }

    /// Writes what the weight multiplies.
    pub(super) fn finish(&self, step: &mut Step<'_>, hidden: Cols) {
        self.finish_by(step, hidden, &self.end);
    }

    /// As [`finish`](Head::finish), where another connection reads the residual.
    pub(super) fn finish_by(&self, step: &mut Step<'_>, hidden: Cols, end: &Connection) {
        step.backend.begin_stage(Stage::Head, None);
        end.read(step, self.output, hidden);
        if let Some(carried) = self.carried {
            let rows = step.rows();
            step.backend.copy(rows, carried.heads(1), hidden.heads(1));
        }
    }
}
