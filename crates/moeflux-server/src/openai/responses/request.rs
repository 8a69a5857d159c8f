//! `/v1/responses`: the fields of a request.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::hints::{INPUT, REQUEST};
use crate::messages::{Content, MAX_MESSAGES};
use crate::request::{Body, Integer, Limit, List, Refused, StringOr, hints, object};
use crate::sampling::{MAX_TOP, Sampling, Share, Temperature};
use crate::thinking::{BudgetFields, Reasoning};
use crate::tools::MAX_TOOLS;
use schemars::JsonSchema;

/// Items that may be asked for in addition to the answer, at most.
const MAX_INCLUDE: usize = 64;

/// A request for the next turn of a conversation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ResponseRequest {
    /// The model's name; it may be left out.
    pub(super) model: Option<String>,
    /// A question, or the conversation so far.
    pub(super) input: StringOr<List<Item, MAX_MESSAGES>>,
    /// The system prompt.
    pub(super) instructions: Option<String>,

    /// How freely tokens are drawn; 0 takes the likeliest.
    pub(super) temperature: Option<Temperature>,
    /// Draw from the fewest tokens whose probabilities reach this sum.
    pub(super) top_p: Option<Share>,
    /// Draw from this many of the likeliest tokens; 0 or -1 for all.
    pub(super) top_k: Option<Limit<0>>,
    /// Leave out tokens below this share of the highest probability.
    pub(super) min_p: Option<Share>,
    /// Tokens of the answer at most; -1 for no limit but the context's.
    pub(super) max_output_tokens: Option<Limit<1>>,
    /// What is sent in addition: `message.output_text.logprobs`.
    pub(super) include: Option<List<String, MAX_INCLUDE>>,
    /// How many of the likeliest tokens are wanted for every token.
    pub(super) top_logprobs: Option<Integer<0, MAX_TOP>>,
    /// Whether the answer is sent as it is made.
    pub(super) stream: Option<bool>,

    /// Tools that the model may call.
    pub(super) tools: Option<List<Tool, MAX_TOOLS>>,
    /// `none`, `auto`, `required`, or the tool that must be called.
    pub(super) tool_choice: Option<StringOr<ToolChoice>>,
    /// Whether several tools may be called in an answer.
    pub(super) parallel_tool_calls: Option<bool>,
    /// What the answer must look like.
    pub(super) text: Option<TextConfig>,
    /// Whether and how much the model thinks. Dropped where it does not think.
    pub(super) reasoning: Option<Reasoning>,
    /// Tokens that the model thinks at most; then the answer goes on. 0 for no thoughts, -1 for no
    /// limit.
    pub(super) thinking_budget: Option<Limit<0>>,
    /// llama.cpp's name of `thinking_budget`.
    pub(super) reasoning_budget: Option<Limit<0>>,
    /// vLLM's name of `thinking_budget`.
    pub(super) thinking_token_budget: Option<Limit<0>>,
    /// llama-server's name of `thinking_budget`.
    pub(super) thinking_budget_tokens: Option<Limit<0>>,

    /// Refused where it is true: answers are made while their clients wait.
    #[schemars(extend("enum" = [false, Value::Null]))]
    pub(super) background: Option<bool>,
    /// Whether the response is kept, for requests that refer to it; it is where this is left out.
    pub(super) store: Option<bool>,
    /// The response that this one goes on from, which was kept.
    pub(super) previous_response_id: Option<String>,
    /// Refused: no conversation is kept.
    #[schemars(with = "Option<Refused>")]
    pub(super) conversation: Option<Value>,
    /// Refused: no template of a prompt is kept.
    #[schemars(with = "Option<Refused>")]
    pub(super) prompt: Option<Value>,
}

/// An item of a conversation. An item with `id` alone, or of type
/// `item_reference`, stands for one of a response that was kept. What is no message, call, result or
/// thought is left out, and named.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "ResponseItem")]
pub(super) struct Item {
    /// What it is; `message` where it is left out.
    pub(super) r#type: Option<String>,
    /// Who speaks.
    pub(super) role: Option<String>,
    /// What a message says, or what was thought.
    pub(super) content: Option<Content>,
    /// What was thought, in short.
    pub(super) summary: Option<Content>,
    /// What was thought, for its maker alone. It cannot be read here.
    pub(super) encrypted_content: Option<Value>,
    /// Which call this is, or the result of.
    pub(super) call_id: Option<String>,
    /// Identifier of the item; some results refer to it.
    pub(super) id: Option<Value>,
    /// Name of the tool that was called.
    pub(super) name: Option<String>,
    /// Group of tools that the name is from.
    pub(super) namespace: Option<String>,
    /// Server of tools that the name is from.
    pub(super) server_label: Option<String>,
    /// Arguments of a call, as JSON text or as an object.
    pub(super) arguments: Option<Value>,
    /// What a tool was given that takes text.
    pub(super) input: Option<Value>,
    /// What a tool gave: text, parts, or an object.
    pub(super) output: Option<Value>,
    /// What was run.
    pub(super) action: Option<Map<String, Value>>,
    /// What was done to a file.
    pub(super) operation: Option<Map<String, Value>>,
    /// Tools that were found, or that a server has.
    pub(super) tools: Option<Value>,
}

impl Item {
    /// A message of the user.
    pub(super) fn said_by_user(text: String) -> Item {
        let (role, content) = (Some(String::from("user")), Some(StringOr::String(text)));
        Item { role, content, ..Item::default() }
    }
}

/// A tool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(remote = "Self", default)]
#[schemars(rename = "ResponseTool")]
pub(super) struct Tool {
    /// What it is: `function`, `custom`, `namespace`, or the name of a tool that the API knows.
    /// Those that run on a server are left out.
    pub(super) r#type: Option<String>,
    /// Its name.
    pub(super) name: Option<String>,
    /// What it does.
    pub(super) description: Option<String>,
    /// A JSON schema of its arguments.
    pub(super) parameters: Option<Value>,
    /// Whether arguments must follow the schema in every respect.
    pub(super) strict: Option<bool>,
    /// What the text is that a custom tool is given.
    pub(super) format: Option<TextFormat>,
    /// The tools of a namespace.
    pub(super) tools: Option<Vec<Tool>>,
    /// Who runs it: `client` or `server`.
    pub(super) execution: Option<String>,
    /// Where a shell runs.
    pub(super) environment: Option<Value>,
}

/// What the text is that a custom tool is given.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(super) struct TextFormat {
    /// Notation of a grammar: `lark` or `regex`.
    pub(super) syntax: Option<String>,
    /// The grammar.
    pub(super) definition: Option<String>,
}

/// The tool that must be called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "ResponseToolChoice")]
pub(super) struct ToolChoice {
    /// `function`, `custom`, or `allowed_tools`.
    pub(super) r#type: String,
    /// Its name.
    pub(super) name: Option<String>,
    /// Its namespace.
    pub(super) namespace: Option<String>,
    /// Of allowed tools: `auto` or `required`.
    pub(super) mode: Option<String>,
    /// The only tools that may be called.
    pub(super) tools: Option<List<NamedTool, MAX_TOOLS>>,
}

/// A tool by its name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(super) struct NamedTool {
    /// `function` or `custom`.
    pub(super) r#type: String,
    /// Its name.
    pub(super) name: Option<String>,
    /// Its namespace.
    pub(super) namespace: Option<String>,
}

/// What the answer must look like.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(super) struct TextConfig {
    /// The format.
    pub(super) format: Option<FlatFormat>,
}

/// A format whose schema is not nested.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(super) struct FlatFormat {
    /// `text`, `json_object` or `json_schema`.
    #[schemars(extend("enum" = ["text", "json_object", "json_schema"]))]
    pub(super) r#type: String,
    /// The schema. Answers always follow it.
    pub(super) schema: Option<Map<String, Value>>,
}

object!(ResponseRequest, Item, Tool, TextFormat, ToolChoice, NamedTool, TextConfig, FlatFormat);

impl ResponseRequest {
    /// The fields that say how an answer is made.
    pub(super) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            ..Sampling::default()
        }
    }

    /// What it says of the most tokens of thoughts.
    pub(super) fn budgets(&self) -> BudgetFields {
        BudgetFields {
            thinking_budget: self.thinking_budget,
            reasoning_budget: self.reasoning_budget,
            thinking_token_budget: self.thinking_token_budget,
            thinking_budget_tokens: self.thinking_budget_tokens,
        }
    }

    /// Fields that ask for what the server cannot do, and why it cannot.
    pub(super) fn refused(&self) -> Option<(&'static str, &'static str)> {
        let fields = [
            (
                "background",
                self.background == Some(true),
                "answers are made while their clients wait: leave it out",
            ),
            (
                "conversation",
                self.conversation.is_some(),
                "conversations are not kept by name: use previous_response_id",
            ),
            ("prompt", self.prompt.is_some(), "no templates are kept: send the prompt's text"),
        ];
        let mut asked = fields.into_iter().filter(|(_, is_asked, _)| *is_asked);
        asked.next().map(|(name, _, why)| (name, why))
    }
}

impl Body for ResponseRequest {
    const HINTS: &'static [&'static [&'static str]] = &[hints::REQUEST, REQUEST, INPUT, HINTS];
}

/// Fields of tools that change nothing here, those of tools that are left out included.
pub(super) const HINTS: &[&str] = &[
    "tools[].cache_control",
    "tools[].defer_loading",
    "tools[].allowed_callers",
    "tools[].output_schema",
    "tools[].format.type",
    "tools[].external_web_access",
    "tools[].search_content_types",
    "tools[].search_context_size",
    "tools[].user_location",
    "tools[].filters",
    "tools[].vector_store_ids",
    "tools[].max_num_results",
    "tools[].ranking_options",
    "tools[].container",
    "tools[].server_label",
    "tools[].server_url",
    "tools[].server_description",
    "tools[].connector_id",
    "tools[].authorization",
    "tools[].headers",
    "tools[].require_approval",
    "tools[].allowed_tools",
    "tools[].display_width",
    "tools[].display_height",
    "tools[].background",
    "tools[].model",
    "tools[].moderation",
    "tools[].output_compression",
    "tools[].output_format",
    "tools[].partial_images",
    "tools[].quality",
    "tools[].size",
    "tools[].input_fidelity",
    "tools[].input_image_mask",
    "tools[].tools[].defer_loading",
    "tools[].tools[].output_schema",
    "tools[].tools[].format.type",
];
