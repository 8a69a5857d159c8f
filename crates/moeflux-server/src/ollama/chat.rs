//! `/api/chat`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::messages::{self, ChatMessage, is_begun};
use super::options::{self, Options};
use super::reply::{Loading, Shape, Target, answer, loaded};
use super::{format, names};
use crate::app::App;
use crate::conversation::{Choice, Conversation, Names};
use crate::error::ApiResult;
use crate::messages::MAX_MESSAGES;
use crate::openai::sampling::MAX_TOP;
use crate::openai::thinking::ThinkingFields;
use crate::prepare::ask;
use crate::reply::Reply;
use crate::request::{Body, Integer, List, Request, Toggle, object, read};
use crate::tools::{MAX_TOOLS, Tool, Tools};

/// A request for the next turn of a conversation.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ChatRequest {
    /// The model's name.
    model: String,
    /// The conversation so far. Without one the model is only loaded.
    messages: Option<List<ChatMessage, MAX_MESSAGES>>,
    /// Whether the answer is sent as it is made; true where this is left out.
    stream: Option<bool>,
    /// What the answer must look like: `json`, or a JSON schema.
    format: Option<format::Format>,
    /// How the answer is made.
    options: Option<Options>,
    /// Tools that the model may call.
    tools: Option<List<Tool, MAX_TOOLS>>,
    /// Whether the model thinks before it answers, or how much: `low`, `medium` or `high`.
    think: Option<Toggle>,
    /// Whether the logarithms of the tokens' probabilities are wanted.
    logprobs: Option<bool>,
    /// How many of the likeliest tokens are wanted for every token.
    top_logprobs: Option<Integer<0, MAX_TOP>>,
    /// How long the model stays loaded: it always does. 0 without messages is answered as unloaded.
    keep_alive: Option<Value>,
}

object!(ChatRequest);

impl Body for ChatRequest {
    const HINTS: &'static [&'static [&'static str]] =
        &[&["truncate", "shift"], options::HINTS, messages::HINTS];
}

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, mut ignored } = read::<ChatRequest>(body)?;
    names::check(&app, &body.model)?;
    let List(messages) = body.messages.unwrap_or_default();
    if messages.is_empty() {
        return Ok(loaded(&body.model, Shape::Chat, Loading::of(body.keep_alive.as_ref())));
    }
    let top = options::top_logprobs(body.logprobs, body.top_logprobs);
    let settings = body.options.unwrap_or_default().settings(&app, top)?;
    let fields = ThinkingFields { think: body.think, ..ThinkingFields::default() };
    let thinking = fields.request()?.of(&app);
    let List(tools) = body.tools.unwrap_or_default();
    let tools = Tools::of_chat(tools, &mut ignored)?;
    let messages = messages::read(messages)?;
    let conversation = Conversation {
        continues: messages.last().is_some_and(is_begun),
        messages,
        tools,
        choice: Choice::Auto,
        may_call_many: true,
        shape: format::shape(body.format)?,
        thinking: thinking.thinks,
        variables: thinking.variables,
        names: Names { shape: "format", thinking: "think" },
        settings,
    };
    conversation.check_continued(&app)?;
    let ignored = ignored.accept(&app)?;
    let answers = ask(&app, conversation).await?;
    let target = Target { model: body.model, shape: Shape::Chat, with_logprobs: top.is_some() };
    let reply = answer(app, answers, target, body.stream.unwrap_or(true)).await?;
    Ok(ignored.mark(reply))
}
