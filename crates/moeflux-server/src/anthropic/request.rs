//! `/v1/messages` and its `count_tokens`: the fields of a request.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::hints::{MESSAGES, REQUEST, TOOLS};
use crate::messages::MAX_MESSAGES;
use crate::request::{Body, Integer, Limit, List, Refused, StringOr, hints, object};
use crate::sampling::{Sampling, Share, Stops, Temperature};
use crate::thinking::{BudgetFields, Thinking};
use crate::tools::MAX_TOOLS;
use schemars::JsonSchema;

/// Blocks of a message at most.
const MAX_BLOCKS: usize = 100_000;

/// What a message says: text, or blocks.
pub(super) type Content = StringOr<List<Block, MAX_BLOCKS>>;

/// A request for the next turn of a conversation, or for the number of its tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct MessageRequest {
    /// The model's name; it may be left out.
    pub(super) model: Option<String>,
    /// Tokens of the answer at most. An answer needs it.
    pub(super) max_tokens: Option<Integer<1>>,
    /// The conversation so far.
    #[schemars(extend("minItems" = 1))]
    pub(super) messages: List<Turn, MAX_MESSAGES>,
    /// The system prompt.
    pub(super) system: Option<Content>,

    /// How freely tokens are drawn; 0 takes the likeliest.
    pub(super) temperature: Option<Temperature>,
    /// Draw from the fewest tokens whose probabilities reach this sum.
    pub(super) top_p: Option<Share>,
    /// Draw from this many of the likeliest tokens; 0 or -1 for all.
    pub(super) top_k: Option<Limit<0>>,
    /// Leave out tokens below this share of the highest probability.
    pub(super) min_p: Option<Share>,
    /// Texts that end the answer.
    pub(super) stop_sequences: Option<Stops>,
    /// Whether the answer is sent as it is made.
    pub(super) stream: Option<bool>,

    /// Tools that the model may call.
    pub(super) tools: Option<List<Tool, MAX_TOOLS>>,
    /// Whether it must call one.
    pub(super) tool_choice: Option<ToolChoice>,
    /// Whether the model thinks before it answers. Dropped where it does not think.
    pub(super) thinking: Option<Thinking>,
    /// Tokens that the model thinks at most; then the answer goes on. 0 for no thoughts, -1 for no
    /// limit.
    pub(super) thinking_budget: Option<Limit<0>>,
    /// llama.cpp's name of `thinking_budget`.
    pub(super) reasoning_budget: Option<Limit<0>>,
    /// vLLM's name of `thinking_budget`.
    pub(super) thinking_token_budget: Option<Limit<0>>,
    /// llama-server's name of `thinking_budget`.
    pub(super) thinking_budget_tokens: Option<Limit<0>>,
    /// What the answer must look like, and how much the model thinks.
    pub(super) output_config: Option<OutputConfig>,
    /// The older place of `output_config.format`.
    pub(super) output_format: Option<Format>,

    /// Refused, unless it is empty: servers of tools.
    #[schemars(with = "Option<Refused>")]
    pub(super) mcp_servers: Option<Value>,
    /// Refused: a machine on which tools run.
    #[schemars(with = "Option<Refused>")]
    pub(super) container: Option<Value>,
}

/// A message.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "MessageTurn")]
pub(crate) struct Turn {
    /// Who speaks: `user`, `assistant` or `system`.
    #[schemars(extend("enum" = ["user", "assistant", "system"]))]
    pub(super) role: String,
    /// Text, or blocks.
    pub(super) content: Content,
}

/// A part of a message. What is no text, no thought and no call becomes a short text.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "MessageBlock")]
pub(super) struct Block {
    /// What it is.
    pub(super) r#type: Option<String>,
    /// Its text.
    pub(super) text: Option<String>,
    /// What the model thought.
    pub(super) thinking: Option<String>,
    /// What the result of a call refers to.
    pub(super) id: Option<String>,
    /// Name of the tool that is called.
    pub(super) name: Option<String>,
    /// Arguments of a call.
    pub(super) input: Option<Map<String, Value>>,
    /// Which call this is the result of.
    pub(super) tool_use_id: Option<String>,
    /// What a tool gave, or what was found: text, blocks or an object.
    pub(super) content: Option<Value>,
    /// Whether the tool failed.
    pub(super) is_error: Option<bool>,
    /// Where a document or an image is from.
    pub(super) source: Option<Value>,
    /// Title of a document.
    pub(super) title: Option<String>,
    /// Name of a tool that was found.
    pub(super) tool_name: Option<String>,
}

/// A tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "MessageTool")]
pub(super) struct Tool {
    /// `custom`, or the name and version of a tool that the API knows. Those that run on a server
    /// are left out.
    pub(super) r#type: Option<String>,
    /// Its name.
    pub(super) name: Option<String>,
    /// What it does.
    pub(super) description: Option<String>,
    /// A JSON schema of its arguments.
    pub(super) input_schema: Option<Map<String, Value>>,
    /// Whether arguments must follow the schema in every respect.
    pub(super) strict: Option<bool>,
}

/// Whether the model must call a tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "MessageToolChoice")]
pub(super) struct ToolChoice {
    /// `auto`, `any`, `tool` or `none`.
    #[schemars(extend("enum" = ["auto", "any", "tool", "none"]))]
    pub(super) r#type: String,
    /// The tool that must be called.
    pub(super) name: Option<String>,
    /// Whether at most one tool may be called.
    pub(super) disable_parallel_tool_use: Option<bool>,
}

/// What is wanted of the answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(super) struct OutputConfig {
    /// How much the model thinks. Dropped where it does not think.
    pub(super) effort: Option<String>,
    /// What the answer must look like.
    pub(super) format: Option<Format>,
}

/// What an answer must look like.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "OutputFormat")]
pub(super) struct Format {
    /// `json_schema`.
    #[schemars(extend("enum" = ["json_schema"]))]
    pub(super) r#type: String,
    /// The schema.
    pub(super) schema: Map<String, Value>,
}

object!(MessageRequest, Turn, Block, Tool, ToolChoice, OutputConfig, Format);

impl MessageRequest {
    /// The fields that say how an answer is made.
    pub(super) fn sampling(&mut self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            stop: self.stop_sequences.take(),
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
}

impl Body for MessageRequest {
    const HINTS: &'static [&'static [&'static str]] = &[hints::REQUEST, REQUEST, MESSAGES, TOOLS];
}
