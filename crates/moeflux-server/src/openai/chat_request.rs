//! `/v1/chat/completions`: the fields of a request.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::format::{ResponseFormat, StructuredOutputs};
use super::hints::{CHAT, MESSAGES};
use crate::messages::{ChatMessage, Content, MAX_MESSAGES};
use crate::request::{Body, Given, Integer, Limit, List, Refused, StringOr, Toggle, hints, object};
use crate::sampling::MAX_TOP;
use crate::thinking::{BudgetFields, Reasoning, Thinking, ThinkingFields};
use crate::tools::{Function, MAX_TOOLS, Tool};

/// A request for the next turn of a conversation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ChatRequest {
    /// The model's name. It may be left out.
    pub(crate) model: Option<String>,
    /// The conversation so far.
    #[schemars(extend("minItems" = 1))]
    pub(crate) messages: List<ChatMessage, MAX_MESSAGES>,

    /// Tokens of the answer at most; -1 for no limit but the context's.
    pub(crate) max_completion_tokens: Option<Limit<1>>,
    /// The older name of `max_completion_tokens`.
    pub(crate) max_tokens: Option<Limit<1>>,
    /// llama-server's name of `max_completion_tokens`.
    pub(crate) n_predict: Option<Limit<1>>,
    /// Whether the logarithms of the tokens' probabilities are wanted.
    pub(crate) logprobs: Option<bool>,
    /// How many of the likeliest tokens are wanted for every token. Needs `logprobs`.
    pub(crate) top_logprobs: Option<Integer<0, MAX_TOP>>,

    /// Whether the answer is sent as it is made.
    pub(crate) stream: Option<bool>,
    /// How it is sent then.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Whether a stream says how much of the prompt has been read.
    pub(crate) return_progress: Option<bool>,

    /// Whether the last message, the assistant's, is the beginning of the answer.
    pub(crate) continue_final_message: Option<bool>,
    /// The opposite of `continue_final_message`.
    pub(crate) add_generation_prompt: Option<bool>,

    /// Tools that the model may call.
    pub(crate) tools: Option<List<Tool, MAX_TOOLS>>,
    /// `none`, `auto`, `required`, or the tool that must be called.
    pub(crate) tool_choice: Option<StringOr<ToolChoice>>,
    /// Whether several tools may be called in an answer.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Tools as clients described them before there were tools. The answer has their shape, too.
    pub(crate) functions: Option<List<Function, MAX_TOOLS>>,
    /// `none`, `auto`, or the function that must be called.
    pub(crate) function_call: Option<StringOr<NamedFunction>>,

    /// What the answer must look like.
    pub(crate) response_format: Option<ResponseFormat>,
    /// llama-server's field for a JSON schema of the answer.
    pub(crate) json_schema: Option<Map<String, Value>>,
    /// vLLM's field for a JSON schema of the answer.
    pub(crate) guided_json: Option<StringOr<Map<String, Value>>>,
    /// vLLM's field for what the answer must look like.
    pub(crate) structured_outputs: Option<StructuredOutputs>,

    /// How much the model thinks before it answers. Dropped where the model does not think.
    #[schemars(extend("enum" = ["none", "default", "auto", "minimal", "low", "medium", "high", "xhigh", "max", serde_json::Value::Null]))]
    pub(crate) reasoning_effort: Option<String>,
    /// OpenRouter's field for thinking.
    pub(crate) reasoning: Option<Reasoning>,
    /// Anthropic's field for thinking.
    pub(crate) thinking: Option<Thinking>,
    /// Qwen's field for thinking.
    pub(crate) enable_thinking: Option<bool>,
    /// Ollama's field for thinking.
    pub(crate) think: Option<Toggle>,
    /// Tokens that the model thinks at most; then the answer goes on. 0 for no thoughts, -1 for no
    /// limit.
    pub(crate) thinking_budget: Option<Limit<0>>,
    /// llama.cpp's name of `thinking_budget`.
    pub(crate) reasoning_budget: Option<Limit<0>>,
    /// vLLM's name of `thinking_budget`.
    pub(crate) thinking_token_budget: Option<Limit<0>>,
    /// llama-server's name of `thinking_budget`.
    pub(crate) thinking_budget_tokens: Option<Limit<0>>,
    /// Variables of the chat template.
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,

    /// Text that the answer is expected to hold much of.
    pub(crate) prediction: Option<Prediction>,
    /// Kinds of output that are wanted: `text`.
    #[schemars(extend("items" = {"enum": ["text"]}))]
    pub(crate) modalities: Option<Vec<String>>,

    /// Refused: spoken answers.
    pub(crate) audio: Option<Refused>,
    /// Refused: the server searches nothing.
    pub(crate) web_search_options: Option<Refused>,
    /// Refused: the server has no plugins.
    pub(crate) plugins: Option<Given>,
    /// Refused: grammars of llama-server's notation.
    pub(crate) grammar: Option<Given>,
    /// Refused: grammars of vLLM's notation.
    pub(crate) guided_grammar: Option<Given>,
    /// Refused: answers that match an expression.
    pub(crate) guided_regex: Option<Given>,
    /// Refused: answers of a list.
    pub(crate) guided_choice: Option<Given>,
    /// Refused: the template is the model's.
    pub(crate) chat_template: Option<Given>,
    /// Refused: documents that a template would cite.
    pub(crate) documents: Option<Given>,
    /// Refused: adapters.
    pub(crate) lora: Option<Given>,
    /// Refused: a search for the likeliest answer.
    pub(crate) use_beam_search: Option<Given>,
    /// Refused: the prompt in front of the answer.
    pub(crate) echo: Option<Given>,
    /// Refused: probabilities of the prompt.
    pub(crate) prompt_logprobs: Option<Given>,
    /// Refused: prompts are never cut.
    pub(crate) truncate_prompt_tokens: Option<Given>,
    /// Refused: tokens that end the answer.
    pub(crate) stop_token_ids: Option<Given>,
    /// Refused: stop texts at the end of the answer.
    pub(crate) include_stop_str_in_output: Option<Given>,
    /// Refused: the only tokens that may be chosen.
    pub(crate) allowed_token_ids: Option<Given>,
    /// Refused: words that may not occur.
    pub(crate) bad_words: Option<Given>,
}

/// How an answer is sent as it is made. Without a stream these fields change nothing.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct StreamOptions {
    /// Whether the last chunk has the count of tokens.
    pub(crate) include_usage: Option<bool>,
}

/// The tool that must be called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ToolChoice {
    /// `function`, `custom` or `allowed_tools`.
    #[schemars(extend("enum" = ["function", "custom", "allowed_tools", "none", "auto", "required", "any"]))]
    pub(crate) r#type: String,
    /// The function.
    pub(crate) function: Option<NamedFunction>,
    /// The tool that takes text.
    pub(crate) custom: Option<NamedFunction>,
    /// The only tools that may be called, and whether one must be.
    pub(crate) allowed_tools: Option<AllowedTools>,
    /// The function's name, where clients leave out the level above.
    pub(crate) name: Option<String>,
}

/// The only tools that may be called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct AllowedTools {
    /// `auto`, or `required` where one must be called.
    #[schemars(extend("enum" = ["auto", "required"]))]
    pub(crate) mode: String,
    /// The tools.
    pub(crate) tools: List<AllowedTool, MAX_TOOLS>,
}

/// A tool that may be called, by its name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct AllowedTool {
    /// `function` or `custom`.
    pub(crate) r#type: Option<String>,
    /// The function.
    pub(crate) function: Option<NamedFunction>,
    /// The tool that takes text.
    pub(crate) custom: Option<NamedFunction>,
}

/// A function by its name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct NamedFunction {
    /// Its name.
    pub(crate) name: String,
}

/// Text that the answer is expected to hold much of.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Prediction {
    /// `content`.
    #[schemars(extend("enum" = ["content"]))]
    pub(crate) r#type: String,
    /// The text.
    pub(crate) content: Content,
}

object!(
    ChatRequest,
    StreamOptions,
    ToolChoice,
    AllowedTools,
    AllowedTool,
    NamedFunction,
    Prediction
);

impl ChatRequest {
    /// Whether it has functions as clients described them before there were tools.
    pub(super) fn has_functions(&self) -> bool {
        self.tools.is_none() && self.functions.is_some()
    }

    /// What it says of thinking.
    pub(super) fn thinking(&mut self) -> ThinkingFields {
        ThinkingFields {
            reasoning_effort: self.reasoning_effort.take(),
            reasoning: self.reasoning.take(),
            thinking: self.thinking.take(),
            enable_thinking: self.enable_thinking,
            think: self.think.take(),
            budgets: self.budgets(),
        }
    }

    /// What it says of the most tokens of thoughts.
    fn budgets(&self) -> BudgetFields {
        BudgetFields {
            thinking_budget: self.thinking_budget,
            reasoning_budget: self.reasoning_budget,
            thinking_token_budget: self.thinking_token_budget,
            thinking_budget_tokens: self.thinking_budget_tokens,
        }
    }

    /// Fields that ask for what the server cannot do, and why it cannot.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let is_given = |field: Option<Given>| field == Some(Given(true));
        let text_only = "this model writes text only";
        let grammar = "only JSON schemas are enforced: use response_format";
        let fields = [
            ("audio", self.audio.is_some(), text_only),
            (
                "web_search_options",
                self.web_search_options.is_some(),
                "this server searches nothing: leave it out",
            ),
            ("plugins", is_given(self.plugins), "this server has no plugins: leave it out"),
            ("grammar", is_given(self.grammar), grammar),
            ("guided_grammar", is_given(self.guided_grammar), grammar),
            ("guided_regex", is_given(self.guided_regex), grammar),
            ("guided_choice", is_given(self.guided_choice), grammar),
            (
                "chat_template",
                is_given(self.chat_template),
                "the template is the model's own: leave it out",
            ),
            (
                "documents",
                is_given(self.documents),
                "documents are not supported: put their text into messages",
            ),
            ("lora", is_given(self.lora), "this server has no adapters: leave it out"),
            (
                "use_beam_search",
                is_given(self.use_beam_search),
                "answers are drawn, not searched: leave it out",
            ),
            ("echo", is_given(self.echo), "the prompt is not repeated: leave it out"),
            (
                "prompt_logprobs",
                is_given(self.prompt_logprobs),
                "there are no probabilities of prompts: leave it out",
            ),
            (
                "truncate_prompt_tokens",
                is_given(self.truncate_prompt_tokens),
                "prompts are never cut: leave it out",
            ),
            ("stop_token_ids", is_given(self.stop_token_ids), "answers end at texts: use stop"),
            (
                "include_stop_str_in_output",
                is_given(self.include_stop_str_in_output),
                "answers never have the stop text: leave it out",
            ),
            (
                "allowed_token_ids",
                is_given(self.allowed_token_ids),
                "it is not supported: use logit_bias",
            ),
            ("bad_words", is_given(self.bad_words), "it is not supported: use logit_bias"),
        ];
        fields.into_iter().filter(|(_, is_asked, _)| *is_asked).map(|(name, _, why)| (name, why))
    }
}

impl Body for ChatRequest {
    const HINTS: &'static [&'static [&'static str]] = &[hints::REQUEST, CHAT, MESSAGES];
}
