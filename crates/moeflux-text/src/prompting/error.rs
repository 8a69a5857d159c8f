//! Why a conversation cannot be answered.

use crate::constrain::ConstraintError;
use crate::error::TextError;

/// Part of a request that is at fault. Each caller has a name of its own for it: a field, a flag, a
/// parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The messages.
    Messages,
    /// The tools.
    Tools,
    /// One of the tools, by its place in the list.
    Tool(usize),
    /// Whether tools may be called.
    ToolChoice,
    /// The form of the answer.
    Shape,
    /// Whether the model is to think.
    Thinking,
    /// The text that the answer is expected to repeat.
    Expected,
}

/// Why a conversation cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// A message or the template cannot be used, or the prompt is too long.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// Tools are offered to a model that knows none.
    #[error("the model's chat template knows no tools")]
    NoTools,
    /// A part of the request makes no sense.
    #[error("{reason}")]
    Refused {
        /// The part.
        part: Part,
        /// Why.
        reason: String,
    },
    /// The form of the answer, or the tools, cannot become a grammar.
    #[error("{source}")]
    Constraint {
        /// The part.
        part: Part,
        /// Why.
        source: ConstraintError,
    },
    /// No answer of this model can be held to a grammar.
    #[error(transparent)]
    Vocabulary(ConstraintError),
}

impl PromptError {
    /// Refuses a part of a request.
    pub(super) fn refused(part: Part, reason: impl Into<String>) -> PromptError {
        PromptError::Refused { part, reason: reason.into() }
    }
}
