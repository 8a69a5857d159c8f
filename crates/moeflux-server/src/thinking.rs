//! Whether and how much a model is to think, as the fields of several servers have it.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::{ApiError, ApiResult};
use crate::model::Model;
use crate::request::{Ignored, Toggle, object};

/// OpenRouter's `reasoning`, and that of responses.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Reasoning {
    /// How much the model thinks.
    pub(crate) effort: Option<String>,
    /// Whether it thinks.
    pub(crate) enabled: Option<bool>,
}

/// Anthropic's `thinking`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Thinking {
    /// `enabled`, `adaptive`, `auto` or `disabled`.
    #[schemars(extend("enum" = ["enabled", "adaptive", "auto", "disabled"]))]
    pub(crate) r#type: String,
}

object!(Reasoning, Thinking);

/// The fields of a request that say whether the model is to think.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThinkingFields {
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) reasoning: Option<Reasoning>,
    pub(crate) thinking: Option<Thinking>,
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) think: Option<Toggle>,
}

/// What is wanted of a model that can think. Nothing is wanted of others: it is a hint.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThinkingRequest {
    /// Whether it is to think.
    pub(crate) thinks: Option<bool>,
    /// How much, in a word of OpenAI's API.
    pub(crate) effort: Option<String>,
}

impl ThinkingRequest {
    fn switch(thinks: bool) -> ThinkingRequest {
        ThinkingRequest { thinks: Some(thinks), ..ThinkingRequest::default() }
    }

    /// What an effort means, which stands in a field.
    pub(crate) fn of_effort(effort: &str, field: &str) -> ApiResult<ThinkingRequest> {
        match effort {
            "none" => Ok(ThinkingRequest::switch(false)),
            "default" | "auto" => Ok(ThinkingRequest::default()),
            "minimal" | "low" | "medium" | "high" | "xhigh" | "max" => {
                Ok(ThinkingRequest { thinks: Some(true), effort: Some(effort.to_owned()) })
            }
            _ => {
                let problem = "choose none, minimal, low, medium, high, xhigh or max";
                Err(ApiError::field(field, problem))
            }
        }
    }

    /// As [`of_effort`](ThinkingRequest::of_effort) for clients that know more efforts than this
    /// server: an unknown one is dropped and named.
    pub(crate) fn hint_of_effort(
        effort: &str,
        field: &str,
        ignored: &mut Ignored,
    ) -> ThinkingRequest {
        ThinkingRequest::of_effort(effort, field).unwrap_or_else(|_| {
            ignored.add_named(field);
            ThinkingRequest::default()
        })
    }

    /// What may be wanted of a model.
    pub(crate) fn of(self, model: &Model) -> ThinkingRequest {
        if model.text.format().can_think() {
            self
        } else {
            ThinkingRequest {
                thinks: self.thinks.filter(|thinks| !thinks),
                ..ThinkingRequest::default()
            }
        }
    }
}

impl ThinkingFields {
    /// What the first of these fields asks for.
    pub(crate) fn request(self) -> ApiResult<ThinkingRequest> {
        if let Some(effort) = self.reasoning_effort {
            return ThinkingRequest::of_effort(&effort, "reasoning_effort");
        }
        if let Some(reasoning) = self.reasoning {
            match (reasoning.effort, reasoning.enabled) {
                (_, Some(false)) => return Ok(ThinkingRequest::switch(false)),
                (Some(effort), _) => {
                    return ThinkingRequest::of_effort(&effort, "reasoning.effort");
                }
                (None, Some(true)) => return Ok(ThinkingRequest::switch(true)),
                (None, None) => {}
            }
        }
        if let Some(Thinking { r#type: kind }) = self.thinking {
            match kind.as_str() {
                "enabled" => return Ok(ThinkingRequest::switch(true)),
                "disabled" => return Ok(ThinkingRequest::switch(false)),
                "adaptive" | "auto" => {}
                _ => {
                    let problem = "choose enabled, adaptive, auto or disabled";
                    return Err(ApiError::field("thinking.type", problem));
                }
            }
        }
        match (self.enable_thinking, self.think) {
            (Some(is_on), _) | (None, Some(Toggle::Switch(is_on))) => {
                Ok(ThinkingRequest::switch(is_on))
            }
            (None, Some(Toggle::Level(effort))) => ThinkingRequest::of_effort(&effort, "think"),
            (None, None) => Ok(ThinkingRequest::default()),
        }
    }
}
