//! One layer of a decoder.

use moeflux_backend::Stage;

use super::connection::Connection;
use super::dense::Dense;
use super::moe::Moe;
use super::ngram::NgramLayer;
use super::norm::Norm;
use super::parallel_mlp::ParallelMlp;
use crate::layers::mixer::Mixer;

/// What follows the mixer.
#[derive(Debug)]
pub(crate) enum Mlp {
    Dense(Dense),
    Moe(Box<Moe>),
    /// A dense MLP and experts.
    Parallel(Box<ParallelMlp>),
}

impl Mlp {
    /// The experts, where it has some.
    pub(super) fn moe(&self) -> Option<&Moe> {
        match self {
            Mlp::Dense(_) => None,
            Mlp::Moe(moe) => Some(moe),
            Mlp::Parallel(parallel) => Some(&parallel.moe),
        }
    }

    /// What measurements count its beginning as.
    pub(super) fn stage(&self) -> Stage {
        match self {
            Mlp::Dense(_) => Stage::DenseMlp,
            Mlp::Moe(_) | Mlp::Parallel(_) => Stage::Router,
        }
    }
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Embeddings that join the residual first.
    pub(crate) ngram: Option<NgramLayer>,
    /// Stands around the mixer.
    pub(crate) mixer_connection: Connection,
    pub(crate) mixer: Box<dyn Mixer>,
    /// Normalises what the mixer gives, before it joins the stream.
    pub(crate) mixer_norm: Option<Norm>,
    /// Stands around the MLP.
    pub(crate) mlp_connection: Connection,
    pub(crate) mlp: Mlp,
    /// Multiplies the stream, last.
    pub(crate) scale: Option<f32>,
}
