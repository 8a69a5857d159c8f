//! What the router of a later layer will choose, asked of it before its turn.

use std::cmp::Reverse;

use moeflux_backend::{Cols, Combine};
use moeflux_core::{ExpertId, LayerIdx};

use super::connection::Connection;
use super::latent_moe::LatentMoe;
use super::moe::Moe;
use super::parallel_mlp::ParallelMlp;
use super::streams::StreamsSpare;
use crate::forward_error::ForwardError;
use crate::layers::predict::Predict;
use crate::step::Step;

/// Predicts the routing of one layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookahead<'a> {
    pub(crate) joins: ExpertsJoin<'a>,
    /// Stands before the router.
    pub(crate) connection: Connection,
    /// The block that is predicted.
    pub(crate) moe: &'a Moe,
    /// The residual.
    pub(crate) hidden: Cols,
    /// Free from the end of the last layer's mixer to that of its own.
    pub(crate) scratch: Cols,
}

/// How the experts of the layer before join the residual.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertsJoin<'a> {
    /// They are added to the one stream.
    Added,
    /// They are added together with a dense MLP.
    Parallel(&'a ParallelMlp),
    /// They are projected before they are added.
    Latent(&'a LatentMoe),
    /// They join several streams.
    Streams { connection: &'a Connection, spare: &'a StreamsSpare },
}

impl Lookahead<'_> {
    /// Predicts from the stream as an earlier layer leaves it, as if the
    /// mixers in between added nothing: on a trained model four in five are right.
    pub(crate) fn look(self, step: &mut Step<'_>) -> Result<(), ForwardError> {
        let is_wanted = self.is_wanted(step);
        if !is_wanted && step.recorder.is_none() {
            return Ok(());
        }
        self.connection.preview(step, self.scratch, self.hidden);
        let experts = self.moe.preview(step, self.scratch)?;
        if is_wanted {
            self.prefetch(step, &experts);
        }
        if let Some(recorder) = &mut step.recorder {
            recorder.predicted(self.moe.layer, experts);
        }
        Ok(())
    }

    /// Whether predicting may save a wait. Where rows want nearly all experts,
    /// nothing has to be predicted.
    fn is_wanted(&self, step: &Step<'_>) -> bool {
        let rows = step.rows();
        let is_known = rows > 1 && self.moe.wants_all(rows);
        !is_known && !self.moe.is_held(step) && step.experts.wants_lookahead(self.moe.layer, rows)
    }

    fn prefetch(&self, step: &Step<'_>, experts: &[ExpertId]) {
        match step.rows() {
            1 => step.experts.prefetch(self.moe.layer, experts),
            rows => step.experts.prefetch_many(self.moe.layer, &likeliest_first(experts, rows)),
        }
    }
}

impl Predict for Lookahead<'_> {
    fn layer(&self) -> LayerIdx {
        self.moe.layer
    }

    fn look_early(&self, step: &mut Step<'_>, so_far: Combine<'_>) -> Result<(), ForwardError> {
        if !self.is_wanted(step) {
            return Ok(());
        }
        let (rows, stream) = (step.rows(), self.scratch);
        match self.joins {
            ExpertsJoin::Added => {
                step.backend.copy(rows, stream.heads(1), self.hidden.heads(1));
                step.backend.combine(rows, Combine { acc: stream, ..so_far });
            }
            ExpertsJoin::Parallel(parallel) => {
                parallel.preview(step, stream, self.hidden, so_far);
            }
            ExpertsJoin::Latent(latent) => latent.preview(step, stream, self.hidden, so_far),
            ExpertsJoin::Streams { connection, spare } => {
                let streams = spare.all;
                step.backend.copy(rows, streams.heads(1), self.hidden.heads(1));
                step.backend.copy(rows, stream.heads(1), spare.zeros.heads(1));
                step.backend.combine(rows, Combine { acc: stream, ..so_far });
                connection.join(step, streams, stream);
                self.connection.preview(step, stream, streams);
            }
        }
        if !matches!(self.joins, ExpertsJoin::Streams { .. }) {
            self.connection.preview(step, stream, stream);
        }
        let experts = self.moe.preview(step, stream)?;
        self.prefetch(step, &experts);
        Ok(())
    }
}

/// An expert that a row would choose, as which of its experts.
struct Choice {
    expert: ExpertId,
    rank: usize,
}

/// The distinct experts of all rows, those of most rows first, then those of
/// the best ranks.
fn likeliest_first(experts: &[ExpertId], rows: usize) -> Vec<ExpertId> {
    let top_k = experts.len() / rows;
    let choices = experts.iter().enumerate();
    let mut choices: Vec<Choice> =
        choices.map(|(i, expert)| Choice { expert: *expert, rank: i % top_k }).collect();
    choices.sort_unstable_by_key(|choice| (choice.expert, choice.rank));
    let mut groups: Vec<&[Choice]> = choices.chunk_by(|a, b| a.expert == b.expert).collect();
    groups.sort_unstable_by_key(|group| (Reverse(group.len()), group[0].rank, group[0].expert));
    groups.into_iter().map(|group| group[0].expert).collect()
}
