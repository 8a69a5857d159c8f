//! What can go wrong between opening a model and its next token.

use std::path::PathBuf;

use moeflux_backend::DeviceError;
use moeflux_core::TokenId;
use moeflux_store::StoreError;

use crate::load::LoadError;
use crate::pack::PackError;
use crate::sampler::SamplerError;
use crate::text::TextError;

/// Why a model could not be opened or a step could not be run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The checkpoint is not one that this engine runs, or is damaged.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An expert did not come.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Text or a template cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// No token can be chosen.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// Packing or verifying failed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A token is not of this model's vocabulary.
    #[error("token {} is outside the vocabulary of {vocab}", token.0)]
    TokenOutOfRange {
        /// The token.
        token: TokenId,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The session has no room for more tokens.
    #[error("the context is full: {wanted} tokens do not fit into {limit} (--ctx)")]
    ContextFull {
        /// Tokens that the session would hold.
        wanted: usize,
        /// Tokens that it may hold.
        limit: usize,
    },
    /// Nothing was given to evaluate.
    #[error("nothing to evaluate: the prompt has no tokens")]
    EmptyPrompt,
    /// An option makes no sense.
    #[error("{name} {value}: {remedy}")]
    Option {
        /// The option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        remedy: String,
    },
    /// The memory that the model needs is not there.
    #[error("the model at {} needs {needed} bytes resident, and {available} are available", path.display())]
    Memory {
        /// The model.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
}
