//! A conversation as a dialect asks for it.

use moeflux_core::OptionId;
use moeflux_text::{Conversation, PromptError};

use crate::error::{ApiError, ApiResult};
use crate::model::Model;
use crate::pictures::{Pictures, Source};
use crate::settings::Settings;

/// A conversation and what else its request says.
#[derive(Clone, Debug)]
pub(crate) struct ConversationRequest {
    pub(crate) conversation: Conversation,
    pub(crate) names: Names,
    pub(crate) settings: Settings,
    /// The pictures of its messages that are still to be opened.
    pub(crate) pictures: Vec<Source>,
}

/// What a dialect calls the fields that refusals name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) shape: &'static str,
    pub(crate) thinking: &'static str,
}

impl ConversationRequest {
    pub(crate) fn new(
        conversation: Conversation,
        names: Names,
        settings: Settings,
        pictures: Pictures,
    ) -> ConversationRequest {
        let conversation = conversation.within(settings.max_tokens);
        let pictures = pictures.into_sources();
        ConversationRequest { conversation, names, settings, pictures }
    }

    /// Refuses what an answer cannot be that has begun as text.
    pub(crate) fn check_continued(&self, model: &Model) -> ApiResult<()> {
        let checked = model.text.check_continued(&self.conversation);
        checked.map_err(|err| self.names.refusal(err))
    }
}

impl Names {
    /// Why a conversation is refused, in the dialect's names.
    pub(crate) fn refusal(self, err: PromptError) -> ApiError {
        match err {
            PromptError::Text(err) => ApiError::text(err),
            PromptError::NoTemplate => {
                let problem = "the model has no chat template: use /v1/completions";
                ApiError::field("messages", problem)
            }
            PromptError::NoInfill => ApiError::not_supported("suffix", &err.to_string()),
            PromptError::NoTools => ApiError::field("tools", err.to_string()),
            PromptError::Refused { option, item, reason } => {
                let item = item.map_or(String::new(), |i| format!("[{i}]"));
                ApiError::field(format!("{}{item}", self.field(option)), reason)
            }
            PromptError::Constraint { option, source } => {
                ApiError::field(self.field(option), source.to_string())
            }
            PromptError::Vocabulary(err) => ApiError::internal(err.to_string()),
        }
    }

    fn field(self, option: OptionId) -> &'static str {
        match option {
            OptionId::Format => self.shape,
            OptionId::Thinking => self.thinking,
            OptionId::Expected => "prediction",
            option => option.name(),
        }
    }
}
