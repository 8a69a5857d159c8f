//! What the handles of a loaded model share.

use std::sync::Arc;

use moeflux_engine::{Engine, Scheduler};
use moeflux_text::{ChatModel, PromptError};

use crate::error::Error;

/// A loaded model and the thread that runs its answers.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) scheduler: Scheduler,
    pub(crate) text: Arc<ChatModel>,
}

impl Shared {
    /// Why a conversation is refused, with the model's directory.
    pub(crate) fn refusal(&self, err: PromptError) -> Error {
        Error::refusal(&self.name(), err)
    }

    /// Where its files are.
    pub(crate) fn name(&self) -> String {
        self.engine.root().display().to_string()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("path", &self.name())
            .field("family", &self.engine.family())
            .finish_non_exhaustive()
    }
}
