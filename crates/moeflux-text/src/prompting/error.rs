//! Why a conversation cannot be answered.

use moeflux_core::OptionId;

use crate::constrain::ConstraintError;
use crate::error::TextError;

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
    /// A gap in a text is to be filled by a model that has no tokens for that.
    #[error(
        "the vocabulary of the model has no tokens around a gap in a text (such as <|fim_prefix|>): the \
         model continues texts at their end only"
    )]
    NoInfill,
    /// A part of the request makes no sense.
    #[error("{reason}")]
    Refused {
        /// The part.
        option: OptionId,
        /// Its item at fault, where it is a list and one is.
        item: Option<usize>,
        /// Why.
        reason: String,
    },
    /// The form of the answer, or the tools, cannot become a grammar.
    #[error("{source}")]
    Constraint {
        /// The part.
        option: OptionId,
        /// Why.
        source: ConstraintError,
    },
    /// No answer of this model can be held to a grammar.
    #[error(transparent)]
    Vocabulary(ConstraintError),
}

impl PromptError {
    /// Refuses a part of a request.
    pub(super) fn refused(option: OptionId, reason: impl Into<String>) -> PromptError {
        PromptError::Refused { option, item: None, reason: reason.into() }
    }
}
