//! Whether and how much a model is to think, as the fields of several servers have it.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::{ApiError, ApiResult};
use crate::model::Model;
use crate::request::{Ignored, Limit, Toggle, object};

/// OpenRouter's `reasoning`, and that of responses.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Reasoning {
    /// How much the model thinks.
    pub(crate) effort: Option<String>,
    /// Whether it thinks.
    pub(crate) enabled: Option<bool>,
    /// Tokens that it thinks at most; 0 for no thoughts, -1 for no limit.
    pub(crate) max_tokens: Option<Limit<0>>,
    /// Whether a response has the thoughts as its summary, too: `auto`, `concise` or `detailed`.
    pub(crate) summary: Option<String>,
}

/// Anthropic's `thinking`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Thinking {
    /// `enabled`, `adaptive`, `auto` or `disabled`.
    #[schemars(extend("enum" = ["enabled", "adaptive", "auto", "disabled"]))]
    pub(crate) r#type: String,
    /// Tokens that the model thinks at most; 0 for no thoughts, -1 for no limit.
    pub(crate) budget_tokens: Option<Limit<0>>,
}

object!(Reasoning, Thinking);

/// What several servers call the most tokens of thoughts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BudgetFields {
    pub(crate) thinking_budget: Option<Limit<0>>,
    pub(crate) reasoning_budget: Option<Limit<0>>,
    pub(crate) thinking_token_budget: Option<Limit<0>>,
    pub(crate) thinking_budget_tokens: Option<Limit<0>>,
}

impl BudgetFields {
    /// The first of them.
    fn first(self) -> Option<Limit<0>> {
        let BudgetFields {
            thinking_budget,
            reasoning_budget,
            thinking_token_budget,
            thinking_budget_tokens,
        } = self;
        let all =
            [thinking_budget, reasoning_budget, thinking_token_budget, thinking_budget_tokens];
        all.into_iter().flatten().next()
    }
}

/// The fields of a request that say whether the model is to think.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThinkingFields {
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) reasoning: Option<Reasoning>,
    pub(crate) thinking: Option<Thinking>,
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) think: Option<Toggle>,
    pub(crate) budgets: BudgetFields,
}

/// What is wanted of a model that can think. Nothing is wanted of others: it is a hint.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThinkingRequest {
    /// Whether it is to think.
    pub(crate) thinks: Option<bool>,
    /// How much, in a word of OpenAI's API.
    pub(crate) effort: Option<String>,
    /// Tokens of thoughts at most.
    pub(crate) budget: Option<Limit<0>>,
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
                let switch = ThinkingRequest::switch(true);
                Ok(ThinkingRequest { effort: Some(effort.to_owned()), ..switch })
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

    /// With the most tokens of thoughts that a request names.
    pub(crate) fn within(self, nested: Option<Limit<0>>, budgets: BudgetFields) -> ThinkingRequest {
        ThinkingRequest { budget: nested.or(budgets.first()), ..self }
    }

    /// Tokens of thoughts at most.
    pub(crate) fn thinking_budget(&self) -> Option<usize> {
        self.budget.and_then(|Limit(most)| most)
    }

    /// What may be wanted of a model, and the server's own limit of thoughts where the request names
    /// none. That of 0 gives way to a request to think.
    pub(crate) fn of(self, model: &Model) -> ThinkingRequest {
        if model.text.format().can_think() {
            let own = model.facts.thinking_budget;
            let own = own.filter(|most| *most > 0 || self.thinks != Some(true));
            ThinkingRequest { budget: self.budget.or(own.map(|most| Limit(Some(most)))), ..self }
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
        let of_thinking = self.thinking.as_ref().and_then(|thinking| thinking.budget_tokens);
        let of_reasoning = self.reasoning.as_ref().and_then(|reasoning| reasoning.max_tokens);
        let budgets = self.budgets;
        Ok(self.switch()?.within(of_thinking.or(of_reasoning), budgets))
    }

    /// Whether the model is to think.
    fn switch(self) -> ApiResult<ThinkingRequest> {
        if let Some(effort) = self.reasoning_effort {
            return ThinkingRequest::of_effort(&effort, "reasoning_effort");
        }
        if let Some(reasoning) = self.reasoning {
            // Who limits thoughts there wants some.
            let is_limited = reasoning.max_tokens.is_some_and(|most| most != Limit(Some(0)));
            match (reasoning.effort, reasoning.enabled.or(is_limited.then_some(true))) {
                (_, Some(false)) => return Ok(ThinkingRequest::switch(false)),
                (Some(effort), _) => {
                    return ThinkingRequest::of_effort(&effort, "reasoning.effort");
                }
                (None, Some(true)) => return Ok(ThinkingRequest::switch(true)),
                (None, None) => {}
            }
        }
        if let Some(Thinking { r#type: kind, .. }) = self.thinking {
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
