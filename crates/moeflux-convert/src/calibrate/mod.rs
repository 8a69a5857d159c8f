//! How much each column of the experts' matrices matters, learnt by running
//! text through the model: what is multiplied by large inputs should be
//! rounded with care, what is multiplied by small ones need not be.

mod file;
mod observer;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use moeflux_core::TokenId;
use moeflux_engine::{Engine, EngineError};
use moeflux_model::{Declared, LoadError, Variant, open_checkpoint};

use crate::error::ConvertError;

pub(crate) use observer::Moments;

/// What a text showed of a model's experts.
#[derive(Debug)]
pub struct Calibration {
    moments: Moments,
    n_tokens: u64,
}

/// Runs token sequences through a model, each from an empty session;
/// `progress` learns how many tokens are done.
///
/// # Errors
/// Where a step fails, or nothing was given.
pub fn calibrate(
    engine: &Engine,
    sequences: &[Vec<TokenId>],
    progress: &mut dyn FnMut(usize),
) -> Result<Calibration, EngineError> {
    let shape = engine.shape();
    let moments = Arc::new(Mutex::new(Moments::new(shape.n_layers, shape.n_experts)));
    engine.observe_experts(Some(Box::new(Arc::clone(&moments))));
    let run = run(engine, sequences, progress);
    engine.observe_experts(None);
    let n_tokens = run? as u64;
    let moments = Arc::into_inner(moments).expect("the engine has dropped the observer");
    let moments = moments.into_inner().unwrap_or_else(PoisonError::into_inner);
    moments.check_finite()?;
    Ok(Calibration { n_tokens, moments })
}

fn run(
    engine: &Engine,
    sequences: &[Vec<TokenId>],
    progress: &mut dyn FnMut(usize),
) -> Result<usize, EngineError> {
    let mut n_done = 0;
    let mut session = engine.session();
    for tokens in sequences.iter().filter(|sequence| !sequence.is_empty()) {
        session.clear();
        session.eval_prompt_with_progress(tokens, &mut |n| progress(n_done + n))?;
        n_done += tokens.len();
    }
    if n_done == 0 { Err(EngineError::EmptyPrompt) } else { Ok(n_done) }
}

impl Calibration {
    /// Experts of all layers, and how many of them no token chose.
    pub fn n_experts(&self) -> (usize, usize) {
        let all = || self.moments.layers.iter().flatten();
        (all().count(), all().filter(|layer| layer.n_rows == 0).count())
    }

    /// Writes the importance file; `source` is the model that was run.
    ///
    /// # Errors
    /// Where the model has changed, or the file cannot be written.
    pub fn write(&self, source: &Path, out: &Path) -> Result<(), ConvertError> {
        let checkpoint = open_checkpoint(source).map_err(LoadError::from)?;
        let declared = Declared::of(&checkpoint, Variant::default())?;
        Ok(file::write(&self.moments, self.n_tokens, &checkpoint, &declared.manifest, out)?)
    }
}
