//! One layer of a decoder.

use moeflux_backend::Stage;

use super::dense::Dense;
use super::moe::Moe;
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
    pub(crate) input_norm: Norm,
    pub(crate) mixer: Box<dyn Mixer>,
    /// Normalises what the mixer gives, before it joins the stream.
    pub(crate) mixer_norm: Option<Norm>,
    /// Normalises the stream for the MLP.
    pub(crate) post_norm: Norm,
    pub(crate) mlp: Mlp,
    /// Multiplies the stream, last.
    pub(crate) scale: Option<f32>,
}
