//! One layer of a decoder.

use moeflux_backend::Stage;

use super::dense::Dense;
use super::moe::Moe;
use super::norm::Norm;
use crate::layers::mixer::Mixer;

/// What follows the mixer.
#[derive(Debug)]
pub(crate) enum Mlp {
    Dense(Dense),
    Moe(Box<Moe>),
}

impl Mlp {
    /// What measurements count its beginning as.
    pub(super) fn stage(&self) -> Stage {
        match self {
            Mlp::Dense(_) => Stage::DenseMlp,
            Mlp::Moe(_) => Stage::Router,
        }
    }
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) input_norm: Norm,
    pub(crate) mixer: Box<dyn Mixer>,
    pub(crate) post_norm: Norm,
    pub(crate) mlp: Mlp,
}
