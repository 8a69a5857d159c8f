//! Documents that the server sends, as the description of the API has them. Tests compare them with
//! what is sent.
#![expect(dead_code, reason = "the types describe documents that are written elsewhere")]

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// Whether the server answers.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Health {
    /// `ok`.
    status: String,
}

/// Facts of the model, memory and load.
#[derive(JsonSchema, Serialize)]
pub(super) struct Status {
    /// What the model is.
    model: Map<String, Value>,
    /// Bytes that are planned and used.
    memory: Map<String, Value>,
    /// What goes on, and counts since the start.
    now: Map<String, Value>,
}

/// A model.
#[derive(JsonSchema, Serialize)]
pub(super) struct ModelCard {
    /// Its name.
    id: String,
    /// `model`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    /// Who made it available.
    owned_by: String,
    /// Tokens of a conversation at most.
    context_length: usize,
}

/// The models.
#[derive(JsonSchema, Serialize)]
pub(super) struct ModelList {
    /// `list`.
    object: String,
    /// The models: one, under each of its names.
    data: Vec<ModelCard>,
}

/// Tokens that a request took.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Usage {
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// Tokens of all answers.
    completion_tokens: usize,
    /// The sum.
    total_tokens: usize,
    /// Of the prompt's tokens.
    prompt_tokens_details: PromptDetails,
    /// Of the answers' tokens.
    completion_tokens_details: CompletionDetails,
}

/// Of the prompt's tokens.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct PromptDetails {
    /// Tokens that were known from an earlier request.
    cached_tokens: usize,
}

/// Of the answers' tokens.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct CompletionDetails {
    /// Drafted tokens that were accepted.
    accepted_prediction_tokens: usize,
    /// Drafted tokens that were rejected.
    rejected_prediction_tokens: usize,
}

/// The next turn of a conversation.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct ChatCompletion {
    /// Its identifier.
    id: String,
    /// `chat.completion`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    /// The model's name.
    model: String,
    /// Tells models and arithmetics apart.
    system_fingerprint: String,
    /// The answers.
    #[schemars(length(min = 1))]
    choices: Vec<ChatChoice>,
    /// Tokens that they took.
    usage: Usage,
}

/// An answer.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct ChatChoice {
    /// Which answer it is, from 0.
    index: usize,
    /// What the model says.
    message: AnswerMessage,
    /// The logarithms of the tokens' probabilities, where they are wanted.
    logprobs: Option<Map<String, Value>>,
    /// Why the answer ended.
    finish_reason: ChatEnd,
}

/// What the model says.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct AnswerMessage {
    /// `assistant`.
    role: String,
    /// The text.
    content: Option<String>,
    /// Always null.
    refusal: Option<String>,
    /// What the model thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// Tools that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<AnswerCall>>,
    /// The function that it calls, where the request has `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<CalledFunction>,
}

/// A call of a tool.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct AnswerCall {
    /// What the result refers to.
    id: String,
    /// `function`.
    r#type: String,
    /// What is called.
    function: CalledFunction,
}

/// A function that is called.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct CalledFunction {
    /// Its name.
    name: String,
    /// Arguments as the text of a JSON object.
    arguments: String,
}

/// Why an answer ended.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChatEnd {
    /// The model has said all.
    Stop,
    /// A limit was reached.
    Length,
    /// Tools are called.
    ToolCalls,
    /// A function is called.
    FunctionCall,
}

/// Text that continues a prompt.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Completion {
    /// Its identifier.
    id: String,
    /// `text_completion`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    /// The model's name.
    model: String,
    /// Tells models and arithmetics apart.
    system_fingerprint: String,
    /// The answers.
    #[schemars(length(min = 1))]
    choices: Vec<TextChoice>,
    /// Tokens that they took.
    usage: Usage,
}

/// A text.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct TextChoice {
    /// Which answer it is, from 0: those to the first prompt come first.
    index: usize,
    /// The text.
    text: String,
    /// The logarithms of the tokens' probabilities, where they are wanted.
    logprobs: Option<Map<String, Value>>,
    /// Why the text ended.
    finish_reason: TextEnd,
}

/// Why a text ended.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TextEnd {
    /// A stop text, or the end of the text.
    Stop,
    /// A limit was reached.
    Length,
}

/// The next turn of a conversation, of OpenAI's responses.
#[derive(JsonSchema, Serialize)]
pub(super) struct Response {
    /// Its identifier.
    id: String,
    /// `response`.
    object: String,
    /// Whether all was said.
    status: ResponseEnd,
    /// What the model thought, said and called.
    #[schemars(length(min = 1))]
    output: Vec<Map<String, Value>>,
    /// Tokens that it took.
    usage: Map<String, Value>,
}

/// Whether all was said.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResponseEnd {
    /// The model has said all.
    Completed,
    /// A limit was reached.
    Incomplete,
}

/// The next turn of a conversation, of Anthropic's messages.
#[derive(JsonSchema, Serialize)]
pub(super) struct Message {
    /// Its identifier.
    id: String,
    /// `message`.
    r#type: String,
    /// `assistant`.
    role: String,
    /// What the model thought, said and called.
    content: Vec<Map<String, Value>>,
    /// Why it ended.
    stop_reason: MessageEnd,
    /// The stop text that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_sequence: Option<String>,
    /// Tokens that it took.
    usage: Map<String, Value>,
}

/// Why a message ended.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MessageEnd {
    /// The model has said all.
    EndTurn,
    /// A limit was reached.
    MaxTokens,
    /// A stop text.
    StopSequence,
    /// Tools are called.
    ToolUse,
    /// The context is full.
    ModelContextWindowExceeded,
}

/// Tokens of a conversation.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct TokenCount {
    /// Their number.
    input_tokens: usize,
}

/// The prompt that a chat request becomes.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Prompt {
    /// Its text.
    prompt: String,
}

/// Tokens of a text.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Tokens {
    /// Their numbers, or objects with numbers and texts.
    tokens: Vec<Token>,
}

/// A token.
#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub(super) enum Token {
    /// Its number.
    Number(u32),
    /// Its number and its text.
    Piece(Piece),
}

/// A token with its text.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Piece {
    /// Its number.
    id: u32,
    /// Its text, or a list of its bytes where these are not UTF-8 by themselves.
    piece: PieceText,
}

/// A token's text, or its bytes.
#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub(super) enum PieceText {
    /// The text.
    Text(String),
    /// The bytes.
    Bytes(Vec<u8>),
}

/// The text of tokens.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Content {
    /// The text.
    content: String,
}

/// Why a request is refused.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Error {
    /// The problem.
    error: Problem,
}

/// The problem with a request.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct Problem {
    /// In words.
    message: String,
    /// Its kind.
    r#type: String,
    /// The field at fault.
    param: Option<String>,
    /// A word for programs.
    code: Option<String>,
}

/// Why a request is refused, for Anthropic's clients.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct AnthropicError {
    /// `error`.
    r#type: String,
    /// The problem.
    error: AnthropicProblem,
}

/// The problem with a request, for Anthropic's clients.
#[derive(JsonSchema, Serialize)]
#[schemars(deny_unknown_fields)]
pub(super) struct AnthropicProblem {
    /// Its kind.
    r#type: String,
    /// In words.
    message: String,
}
