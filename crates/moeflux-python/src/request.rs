//! Prompts and requests, from the JSON of the package.

use std::sync::Arc;

use moeflux::{
    Bias, Error, Format, LOW_DETAIL, Message, Model, Request, Sampling, SeenPicture, ToolChoice,
    picture_id,
};
use moeflux_engine::TokenId;
use moeflux_text::Prepared;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use serde::Deserialize;
use serde_json::Value;

use crate::error::Failure;

/// What a model is to go on with.
#[derive(FromPyObject)]
pub(crate) enum PromptArg {
    /// Tokens.
    Tokens(Vec<u32>),
    /// A raw prompt.
    Text(String),
    /// A conversation as JSON, and its pictures as files, whose parts have their numbers.
    Conversation(String, Vec<PyBackedBytes>),
}

/// How an answer is made. Names are those of the package's keywords.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RequestArg {
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    seed: Option<u64>,
    stop: Vec<String>,
    frequency_penalty: f32,
    presence_penalty: f32,
    logit_bias: Vec<(u32, f32)>,
    logprobs: Option<usize>,
    thinking: Option<bool>,
    thinking_budget: Option<usize>,
    expected: Option<String>,
    /// A JSON schema.
    schema: Option<Value>,
    tools: Vec<Value>,
    /// `auto`, `none`, `required`, or the name of a tool behind a colon.
    tool_choice: Option<String>,
    parallel_tool_calls: Option<bool>,
    continues: bool,
}

impl RequestArg {
    /// Reads a request of the package.
    pub(crate) fn read(json: &str) -> Result<RequestArg, Failure> {
        serde_json::from_str(json)
            .map_err(|err| Failure::new("request", format!("the request cannot be read: {err}")))
    }

    /// The request of a model: what is absent is as the model's makers recommend.
    pub(crate) fn of_model(&self, model: &Model) -> Request {
        let advised = Sampling::recommended(model.tokenizer().generation_defaults());
        let mut request = Request::default();
        request.max_tokens = self.max_tokens;
        request.stop.clone_from(&self.stop);
        request.sampling = Some(Sampling {
            temperature: self.temperature.unwrap_or(advised.temperature),
            top_p: self.top_p.unwrap_or(advised.top_p),
            top_k: self.top_k.unwrap_or(advised.top_k),
            min_p: self.min_p.unwrap_or(advised.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(advised.repeat_penalty),
            seed: self.seed.unwrap_or(advised.seed),
            ..advised
        });
        request.bias = Bias {
            tokens: self.logit_bias.iter().map(|(id, bias)| (TokenId(*id), *bias)).collect(),
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
        };
        request.top_logprobs = self.logprobs;
        request.thinking = self.thinking;
        request.thinking_budget = self.thinking_budget;
        request.expected.clone_from(&self.expected);
        request.format = self.schema.clone().map_or(Format::Text, Format::Json);
        request.tools.clone_from(&self.tools);
        request.strict = strict_tools(&self.tools);
        request.tool_choice = self.tool_choice.as_deref().map(tool_choice);
        request.one_call = self.parallel_tool_calls == Some(false);
        request.continues = self.continues;
        request
    }
}

/// Names of the tools that are marked as strict.
fn strict_tools(tools: &[Value]) -> Vec<String> {
    let functions = tools.iter().map(|tool| &tool["function"]);
    let strict = functions.filter(|function| function["strict"] == true);
    strict.filter_map(|function| function["name"].as_str().map(str::to_owned)).collect()
}

fn tool_choice(choice: &str) -> ToolChoice {
    match choice {
        "none" => ToolChoice::Never,
        "required" => ToolChoice::Required,
        "auto" => ToolChoice::Auto,
        name => ToolChoice::Named(name.strip_prefix(':').unwrap_or(name).to_owned()),
    }
}

/// Reads the messages of a conversation.
fn messages(json: &str) -> Result<Vec<Message>, Failure> {
    let mut messages: Vec<Message> = serde_json::from_str(json).map_err(|err| {
        let text = format!(
            "messages: {}; write a list like [{{\"role\": \"user\", \"content\": \"Hi\"}}]",
            moeflux_engine::json_problem(&err)
        );
        Failure::of_request("messages", text)
    })?;
    messages.iter_mut().for_each(Message::parse_arguments);
    Ok(messages)
}

/// A conversation, and what the model has seen of its pictures, in their order.
pub(crate) struct Shown {
    pub(crate) messages: Vec<Message>,
    pub(crate) pictures: Vec<Arc<SeenPicture>>,
}

impl Shown {
    /// Looks at the pictures of a conversation, and names each by its hash.
    pub(crate) fn see(
        model: &Model,
        json: &str,
        pictures: &[PyBackedBytes],
    ) -> Result<Shown, Failure> {
        let mut messages = messages(json)?;
        let mut all = Vec::with_capacity(pictures.len());
        let contents = messages.iter_mut().filter_map(|message| message.content.as_mut());
        let parts = contents.filter_map(Value::as_array_mut).flatten();
        for part in parts.filter(|part| part["type"] == "image") {
            let number = part["picture"].as_str().and_then(|number| number.parse::<usize>().ok());
            let Some(bytes) = number.and_then(|number| pictures.get(number)) else { continue };
            let seen = if part["detail"] == "low" {
                model.see_within(bytes, LOW_DETAIL)?
            } else {
                model.see(bytes)?
            };
            part["picture"] = Value::from(picture_id(&seen));
            all.push(seen);
        }
        Ok(Shown { messages, pictures: all })
    }
}

impl PromptArg {
    /// Bytes of its text.
    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            PromptArg::Tokens(tokens) => size_of_val(&tokens[..]),
            PromptArg::Text(text) => text.len(),
            // Towers take seconds for a picture.
            PromptArg::Conversation(_, pictures) if !pictures.is_empty() => usize::MAX,
            PromptArg::Conversation(text, _) => text.len(),
        }
    }

    /// Reads a prompt as the model does, and looks at its pictures.
    pub(crate) fn prepare(
        self,
        model: &Model,
        request: &Request,
    ) -> Result<(Prepared, Vec<Arc<SeenPicture>>), Failure> {
        let prepared: Result<Prepared, Error> = match self {
            PromptArg::Tokens(tokens) => {
                model.prepare_tokens(tokens.into_iter().map(TokenId).collect(), request)
            }
            PromptArg::Text(text) => model.prepare_text(&text, request),
            PromptArg::Conversation(text, pictures) => {
                let shown = Shown::see(model, &text, &pictures)?;
                let request = request.clone().pictures(shown.pictures.clone());
                return Ok((model.prepare(&shown.messages, &request)?, shown.pictures));
            }
        };
        Ok((prepared?, Vec::new()))
    }
}
