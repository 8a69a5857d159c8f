//! `/api/chat`.

use std::sync::Arc;

use moeflux_text::Conversation;
use serde::Deserialize;
use serde_json::Value;

use super::format::{self, NAMES};
use super::messages::{self, ChatMessage, is_begun};
use super::names;
use super::options::{self, Options};
use super::reply::{Loading, Shape, Target, answer, loaded};
use super::shorten::{Shortened, Shortening};
use crate::app::App;
use crate::conversation::ConversationRequest;
use crate::error::ApiResult;
use crate::messages::MAX_MESSAGES;
use crate::offload::offload;
use crate::pictures::Pictures;
use crate::prepare::{open_pictures, submit_prepared};
use crate::reply::Reply;
use crate::request::{Body, Integer, List, Request, Toggle, object, read};
use crate::sampling::MAX_TOP;
use crate::thinking::ThinkingFields;
use crate::tools::{self, MAX_TOOLS, Tool};

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
    /// Whether the oldest messages are left out of a conversation that does not fit; true where this is
    /// left out.
    truncate: Option<bool>,
    /// Whether they are left out, too, where little room would be left for the answer; true where this is
    /// left out.
    shift: Option<bool>,
    /// How long the model stays loaded; 0 without messages unloads it.
    keep_alive: Option<Value>,
}

object!(ChatRequest);

impl Body for ChatRequest {
    const HINTS: &'static [&'static [&'static str]] = &[options::HINTS, messages::HINTS];
}

pub(crate) async fn handle(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, mut ignored } = read::<ChatRequest>(body)?;
    names::check(&app, &body.model)?;
    let List(messages) = body.messages.unwrap_or_default();
    if messages.is_empty() {
        return Ok(loaded(&body.model, Shape::Chat, Loading::Load));
    }
    let top = options::top_logprobs(body.logprobs, body.top_logprobs);
    let settings = body.options.unwrap_or_default().settings(&app, top)?;
    let fields = ThinkingFields { think: body.think, ..ThinkingFields::default() };
    let thinking = fields.request()?.of(&app);
    let List(tools) = body.tools.unwrap_or_default();
    let tools = tools::of_chat(tools, &mut ignored)?;
    let mut pictures = Pictures::of(&app);
    let messages = messages::read(messages, &mut pictures)?;
    let conversation = Conversation {
        continues: messages.last().is_some_and(is_begun),
        tools,
        shape: format::shape(body.format)?,
        thinking: thinking.thinks,
        thinking_budget: thinking.thinking_budget(),
        effort: thinking.effort,
        ..Conversation::new(messages)
    };
    let mut request = ConversationRequest::new(conversation, NAMES, settings, pictures);
    request.check_continued(&app)?;
    let ignored = ignored.accept(&app)?;
    let shortening =
        Shortening { truncates: body.truncate.unwrap_or(true), shifts: body.shift.unwrap_or(true) };
    let looks = open_pictures(&app, &mut request).await?;
    let (shared, settings) = (Arc::clone(&app), request.settings.clone());
    let shortened = offload(move || shortening.prepare(&shared, &request)).await??;
    let Shortened { prepared, left_out } = shortened;
    let seen = looks.seen(&app, &prepared.turn.pictures).await?;
    let answers = submit_prepared(&app, prepared, seen, settings)?;
    let target = Target { model: body.model, shape: Shape::Chat, with_logprobs: top.is_some() };
    let reply = answer(app, answers, target, body.stream.unwrap_or(true)).await?;
    Ok(left_out.mark(ignored.mark(reply)))
}
