//! A residual of several streams that gates read and write: gated hyper-connections, as in
//! transformers' `modeling_qwen4_exp`.

use moeflux_backend::{Cols, Heads, JoinStreams, MixStreams, Projection, Weight};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::Role;

use super::norm::{Norm, NormWeights};
use crate::load::LoadError;
use crate::model::Build;
use crate::step::Step;

/// What the connections of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamsShape {
    pub(crate) n_streams: usize,
    /// Columns between the two products that give the gates.
    pub(crate) rank: usize,
}

impl StreamsShape {
    pub(crate) fn read(config: &Config) -> Result<StreamsShape, LoadError> {
        let n_streams = config.usize_in("hc_count", 2..=64)?;
        Ok(StreamsShape { n_streams, rank: config.usize("hc_lowrank")? })
    }
}

/// Loads connections that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamsBlocks {
    pub(crate) shape: StreamsShape,
    pub(crate) scratch: StreamsScratch,
}

/// Activations of connections; one set serves all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamsScratch {
    /// All streams, normalised; free between a read and the next.
    pub(crate) normed: Cols,
    /// Gates of all elements of all streams; free between a read and the next.
    pub(crate) gates: Cols,
    /// Columns between the two products that give the gates.
    low: Cols,
    /// One a stream: how much of an output joins it.
    shares: Cols,
    pub(crate) spare: StreamsSpare,
}

/// Activations that residuals of several streams have, of whatever kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamsSpare {
    /// As wide as all streams; free between ops of a layer.
    pub(crate) all: Cols,
    /// As wide as one stream; free between ops of a layer.
    pub(crate) one: Cols,
    /// As wide as one stream, never written.
    pub(crate) zeros: Cols,
}

impl StreamsSpare {
    /// Allocates them for `n_streams` of `hidden` columns.
    pub(crate) fn new(n_streams: usize, hidden: usize, build: &mut Build<'_>) -> StreamsSpare {
        StreamsSpare {
            all: build.cols(n_streams * hidden),
            one: build.cols(hidden),
            zeros: build.cols(hidden),
        }
    }
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedConnection {
    norm: Norm,
    down: Weight,
    up: Weight,
    /// To how much of an output joins each stream, where there is an output.
    inject: Option<Weight>,
    n_streams: usize,
    scratch: StreamsScratch,
}

impl StreamsBlocks {
    /// Allocates what the connections of a model share, for streams of `hidden` columns.
    pub(crate) fn new(shape: StreamsShape, hidden: usize, build: &mut Build<'_>) -> StreamsBlocks {
        let all = shape.n_streams * hidden;
        let [low, shares] = build.cols_together([shape.rank, shape.n_streams]);
        let scratch = StreamsScratch {
            normed: build.cols(all),
            gates: build.cols(all),
            low,
            shares,
            spare: StreamsSpare::new(shape.n_streams, hidden, build),
        };
        StreamsBlocks { shape, scratch }
    }

    /// The connection called `name`; `joins` where an output joins the streams again.
    pub(crate) fn load(
        &self,
        name: &str,
        joins: bool,
        norms: NormFormat,
        build: &mut Build<'_>,
    ) -> Result<GatedConnection, LoadError> {
        let StreamsShape { n_streams, rank } = self.shape;
        let all = self.scratch.normed.len;
        let weights = &mut *build.weights;
        let norm = format!("{name}.hc_norm.weight");
        let norm = Norm::load(weights, &norm, all, norms.stored, norms.eps)?;
        let part = |part: &str| format!("{name}.{part}");
        let down = part("input_mix_weight_down");
        let up = part("input_mix_weight_up");
        let inject = part("block_inject_weight");
        Ok(GatedConnection {
            norm,
            down: weights.matrix(&down, rank, all, Role::Projection)?,
            up: weights.matrix(&up, all, rank, Role::Projection)?,
            inject: joins
                .then(|| weights.matrix(&inject, n_streams, all, Role::Gate))
                .transpose()?,
            n_streams,
            scratch: self.scratch,
        })
    }
}

/// How norms are stored, and what is added to their mean squares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormFormat {
    pub(crate) stored: NormWeights,
    pub(crate) eps: f32,
}

impl GatedConnection {
    /// As [`Connection::read`](super::connection::Connection::read) describes.
    pub(super) fn read(&self, step: &mut Step<'_>, out: Cols, streams: Cols) {
        self.mix(step, out, streams, self.inject);
    }

    /// As [`Connection::preview`](super::connection::Connection::preview) describes.
    pub(super) fn preview(&self, step: &mut Step<'_>, out: Cols, streams: Cols) {
        self.mix(step, out, streams, None);
    }

    fn mix(&self, step: &mut Step<'_>, out: Cols, streams: Cols, inject: Option<Weight>) {
        let rows = step.rows();
        let StreamsScratch { normed, gates, low, shares, .. } = self.scratch;
        let (x, normed_streams) = (self.heads(streams), self.heads(normed));
        step.backend.rms_norm(rows, self.norm.op(normed_streams, x));
        let down = Projection { weight: self.down, out: low };
        match inject {
            Some(weight) => {
                let outputs = [down, Projection { weight, out: shares }];
                step.backend.project(rows, normed, &outputs);
            }
            None => step.backend.project(rows, normed, &[down]),
        }
        step.backend.scaled_silu(rows, low, 1.0 / self.n_streams as f32);
        step.backend.project(rows, low, &[Projection { weight: self.up, out: gates }]);
        let gates = self.heads(gates);
        step.backend.mix_streams(rows, MixStreams { out, streams: normed_streams, gates });
    }

    /// As [`Connection::join`](super::connection::Connection::join) describes.
    pub(super) fn join(&self, step: &mut Step<'_>, streams: Cols, x: Cols) {
        let (rows, scale) = (step.rows(), 1.0 / self.n_streams as f32);
        let streams = self.heads(streams);
        let op = JoinStreams { streams, x, gates: self.scratch.shares, scale };
        step.backend.join_streams(rows, op);
    }

    fn heads(&self, streams: Cols) -> Heads {
        streams.heads(self.n_streams)
    }
}
