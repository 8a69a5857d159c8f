//! A residual of several streams that each half of a layer mixes with each other:
//! manifold-constrained hyper-connections (DeepSeek-AI, 2025, "mHC"; as in transformers'
//! `modeling_glm5_next` and `modeling_deepseek_v4`).

use moeflux_backend::{
    BlendStreams, Cols, Heads, Projection, StreamShares, Vector, WeighStreams, Weight,
};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::Role;

use super::norm::{Norm, NormWeights};
use super::streams::StreamsSpare;
use crate::load::LoadError;
use crate::model::Build;
use crate::step::Step;

/// What the connections of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyperShape {
    pub(crate) n_streams: usize,
    /// Keeps shares and sums above 0.
    pub(crate) eps: f32,
    /// Added to mean squares of norms.
    pub(crate) norm_eps: f32,
    /// How often shares are normalised.
    pub(crate) n_rounds: usize,
    /// Whether a head reads the streams by gates, not their mean.
    pub(crate) gates_end: bool,
}

impl HyperShape {
    pub(crate) fn read(config: &Config) -> Result<HyperShape, LoadError> {
        let eps = config.f32("hc_eps")?;
        if !(0.0..1.0).contains(&eps) {
            return Err(config.refuse("hc_eps", "be at least 0 and below 1").into());
        }
        Ok(HyperShape {
            n_streams: config.usize_in("hc_mult", 1..=StreamShares::MOST)?,
            eps,
            norm_eps: config.f32("rms_norm_eps")?,
            n_rounds: config.usize_in("hc_sinkhorn_iters", 1..=1000)?,
            gates_end: false,
        })
    }
}

/// Loads connections that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyperBlocks {
    pub(crate) shape: HyperShape,
    /// Multiplies by nothing.
    unweighted: Norm,
    scratch: HyperScratch,
}

/// Activations of connections; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct HyperScratch {
    /// All streams, normalised together.
    normed: Cols,
    /// A number for each share.
    logits: Cols,
    /// What the last read found, for the join after it.
    shares: Cols,
    /// The same of a preview.
    previewed: Cols,
    spare: StreamsSpare,
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyperConnection {
    shape: HyperShape,
    /// Of what is read of the streams.
    norm: Norm,
    unweighted: Norm,
    /// To the logits of shares, and what these are scaled and moved by.
    gates: Option<Gates>,
    scratch: HyperScratch,
}

#[derive(Clone, Copy, Debug)]
struct Gates {
    weight: Weight,
    of_logits: Vector,
    /// How many shares they give.
    n: usize,
}

impl HyperBlocks {
    /// Allocates what the connections of a model share, for streams of `hidden` columns.
    pub(crate) fn new(shape: HyperShape, hidden: usize, build: &mut Build<'_>) -> HyperBlocks {
        let (all, len) = (shape.n_streams * hidden, StreamShares::len(shape.n_streams));
        let unweighted = Norm::of_values(build.weights, &vec![1.0; all], shape.norm_eps);
        let scratch = HyperScratch {
            normed: build.cols(all),
            logits: build.cols(len),
            shares: build.cols(len),
            previewed: build.cols(len),
            spare: StreamsSpare::new(shape.n_streams, hidden, build),
        };
        HyperBlocks { shape, unweighted, scratch }
    }

    pub(crate) fn spare(&self) -> &StreamsSpare {
        &self.scratch.spare
    }

    /// All streams, normalised.
    pub(crate) fn normed(&self) -> Cols {
        self.scratch.normed
    }

    /// The connection of a half of a layer, with the norm called `norm` and gates called `gates`.
    pub(crate) fn load(
        &self,
        norm: &str,
        gates: &str,
        build: &mut Build<'_>,
    ) -> Result<HyperConnection, LoadError> {
        let gates = self.gates(gates, self.scratch.shares.len, 3, build)?;
        self.connection(norm, Some(gates), build)
    }

    /// Gates of `n` shares in `n_parts` parts.
    fn gates(
        &self,
        name: &str,
        n: usize,
        n_parts: usize,
        build: &mut Build<'_>,
    ) -> Result<Gates, LoadError> {
        let (weights, cols) = (&mut *build.weights, self.scratch.normed.len);
        let weight = weights.matrix(&format!("{name}_fn"), n, cols, Role::Gate)?;
        let mut of_logits = weights.vector(&format!("{name}_scale"), &[vec![n_parts]])?.values;
        of_logits.extend(weights.vector(&format!("{name}_base"), &[vec![n]])?.values);
        let of_logits = weights.backend().load_vector(&of_logits);
        Ok(Gates { weight, of_logits, n })
    }

    /// What the head reads: the mean of the streams, or by gates called `gates`, through the norm called
    /// `norm`.
    pub(crate) fn load_end(
        &self,
        norm: &str,
        gates: &str,
        build: &mut Build<'_>,
    ) -> Result<HyperConnection, LoadError> {
        let n = self.shape.n_streams;
        let gates = self.shape.gates_end.then(|| self.gates(gates, n, 1, build)).transpose()?;
        self.connection(norm, gates, build)
    }

    fn connection(
        &self,
        norm: &str,
        gates: Option<Gates>,
        build: &mut Build<'_>,
    ) -> Result<HyperConnection, LoadError> {
        let HyperBlocks { shape, unweighted, scratch } = *self;
        let (name, hidden) = (format!("{norm}.weight"), scratch.spare.one.len);
        let norm = Norm::load(build.weights, &name, hidden, NormWeights::Plain, shape.norm_eps)?;
        Ok(HyperConnection { shape, norm, unweighted, gates, scratch })
    }
}

impl HyperConnection {
    /// As [`Connection::read`](super::connection::Connection::read) describes.
    pub(super) fn read(&self, step: &mut Step<'_>, out: Cols, streams: Cols) {
        self.weigh(step, out, streams, self.scratch.shares);
    }

    /// As [`Connection::preview`](super::connection::Connection::preview) describes.
    pub(super) fn preview(&self, step: &mut Step<'_>, out: Cols, streams: Cols) {
        self.weigh(step, out, streams, self.scratch.previewed);
    }

    fn weigh(&self, step: &mut Step<'_>, out: Cols, streams: Cols, shares: Cols) {
        let rows = step.rows();
        let HyperScratch { normed, logits, .. } = self.scratch;
        let HyperShape { n_streams, eps, n_rounds, .. } = self.shape;
        let read = self.gates.map(|Gates { weight, of_logits, n }| {
            let (logits, shares) = (logits.slice(0, n), shares.slice(0, n));
            self.unweighted.forward(step, normed, streams);
            step.backend.project(rows, normed, &[Projection { weight, out: logits }]);
            let op = StreamShares { out: shares, logits, n_streams, of_logits, eps, n_rounds };
            step.backend.stream_shares(rows, op);
            shares.slice(0, n_streams)
        });
        let op = WeighStreams { out, streams: self.heads(streams), shares: read };
        step.backend.weigh_streams(rows, op);
        self.norm.forward(step, out, out);
    }

    /// As [`Connection::join`](super::connection::Connection::join) describes.
    pub(super) fn join(&self, step: &mut Step<'_>, streams: Cols, x: Cols) {
        let (rows, n) = (step.rows(), self.shape.n_streams);
        let shares = self.scratch.shares;
        let shares = shares.slice(n, shares.len - n);
        step.backend.blend_streams(rows, BlendStreams { streams: self.heads(streams), x, shares });
    }

    fn heads(&self, streams: Cols) -> Heads {
        streams.heads(self.shape.n_streams)
    }
}
