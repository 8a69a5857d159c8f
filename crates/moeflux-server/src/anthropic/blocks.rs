//! Messages made of blocks, to the messages that templates read.

use moeflux_engine::text::Message;
use serde_json::{Value, json};

use crate::error::{ApiError, ApiResult};
use crate::fields::Fields;

/// Messages of a conversation at most.
const MAX_MESSAGES: usize = 10_000;

/// A conversation.
pub(super) struct Turns {
    pub(super) messages: Vec<Message>,
    /// Whether the last message is the beginning of the answer.
    pub(super) continues: bool,
}

/// Reads `messages`.
pub(super) fn parse(turns: Vec<Value>) -> ApiResult<Turns> {
    if turns.is_empty() || turns.len() > MAX_MESSAGES {
        let problem = format!("there must be 1 to {MAX_MESSAGES} messages");
        return Err(ApiError::field("messages", problem));
    }
    let mut messages = Vec::new();
    let n = turns.len();
    let mut continued = None;
    for (i, turn) in turns.into_iter().enumerate() {
        let mut fields = Fields::of(turn, &format!("messages[{i}]"))?;
        let role = fields.require_string("role")?;
        let missing = fields.refuse("content", "it is missing");
        let content = fields.take("content").ok_or(missing)?;
        let at = fields.name("content");
        match role.as_str() {
            "user" => user(content, &at, &mut messages)?,
            "assistant" if i + 1 == n => continued = begun(content, &at)?,
            "assistant" => messages.push(assistant(content, &at)?),
            "system" => messages.push(Message::new("system", text(content, &at)?)),
            _ => return Err(fields.refuse("role", "choose user or assistant")),
        }
        fields.finish()?;
    }
    let continues = continued.is_some();
    messages.extend(continued);
    if messages.is_empty() {
        return Err(ApiError::field("messages", "there must be a message of the user's"));
    }
    Ok(Turns { messages, continues })
}

/// The beginning of the answer, if the last message holds any of it.
fn begun(content: Value, at: &str) -> ApiResult<Option<Message>> {
    let message = assistant(content, at)?;
    if message.tool_calls.is_some() || message.reasoning_content.is_some() {
        let problem = "as the beginning of the answer it may only hold text";
        return Err(ApiError::field(at, problem));
    }
    let text = message.content.as_ref().and_then(Value::as_str).unwrap_or_default();
    if text.ends_with(char::is_whitespace) {
        let problem = "the beginning of the answer must not end with white space";
        return Err(ApiError::field("messages", problem));
    }
    Ok((!text.is_empty()).then_some(message))
}

/// Text, or blocks of text.
pub(super) fn text(content: Value, at: &str) -> ApiResult<String> {
    let blocks = match content {
        Value::String(text) => return Ok(text),
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::field(at, "it must be a string or a list of blocks")),
    };
    let mut text = String::new();
    for (i, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::of(block, &format!("{at}[{i}]"))?;
        if block.require_string("type")? != "text" {
            return Err(block.refuse("type", "this model reads text only"));
        }
        text.push_str(&take_text(block)?);
    }
    Ok(text)
}

fn take_text(mut block: Fields) -> ApiResult<String> {
    let text = block.require_string("text")?;
    block.ignore(&["cache_control", "citations"]);
    block.finish()?;
    Ok(text)
}

/// Results of tools are messages of their own, before what the user says.
fn user(content: Value, at: &str, messages: &mut Vec<Message>) -> ApiResult<()> {
    let blocks = match content {
        Value::Array(blocks) => blocks,
        one => {
            messages.push(Message::new("user", text(one, at)?));
            return Ok(());
        }
    };
    let mut said = None;
    let mut n_results = 0;
    for (i, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::of(block, &format!("{at}[{i}]"))?;
        match block.require_string("type")?.as_str() {
            "text" => said.get_or_insert_with(String::new).push_str(&take_text(block)?),
            "tool_result" => {
                messages.push(result(block)?);
                n_results += 1;
            }
            _ => return Err(block.refuse("type", "this model reads text and results of tools")),
        }
    }
    match said {
        Some(text) => messages.push(Message::new("user", text)),
        None if n_results == 0 => return Err(ApiError::field(at, "it is empty")),
        None => {}
    }
    Ok(())
}

fn result(mut block: Fields) -> ApiResult<Message> {
    let id = block.require_string("tool_use_id")?;
    let content = match block.take("content") {
        Some(content) => text(content, &block.name("content"))?,
        None => String::new(),
    };
    let is_error = block.bool("is_error")?.unwrap_or(false);
    block.ignore(&["cache_control"]);
    block.finish()?;
    let content = if is_error { format!("Error: {content}") } else { content };
    Ok(Message { tool_call_id: Some(Value::from(id)), ..Message::new("tool", content) })
}

fn assistant(content: Value, at: &str) -> ApiResult<Message> {
    let blocks = match content {
        Value::Array(blocks) => blocks,
        one => return Ok(Message::new("assistant", text(one, at)?)),
    };
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for (i, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::of(block, &format!("{at}[{i}]"))?;
        match block.require_string("type")?.as_str() {
            "text" => said.push_str(&take_text(block)?),
            "thinking" => {
                thought.push_str(&block.require_string("thinking")?);
                block.ignore(&["signature"]);
                block.finish()?;
            }
            // Nobody here can read it.
            "redacted_thinking" => {}
            "tool_use" => calls.push(call(block)?),
            _ => return Err(block.refuse("type", "choose text, thinking or tool_use")),
        }
    }
    let mut message = Message::new("assistant", said);
    message.reasoning_content = (!thought.is_empty()).then(|| Value::from(thought));
    message.tool_calls = (!calls.is_empty()).then(|| Value::from(calls));
    Ok(message)
}

fn call(mut block: Fields) -> ApiResult<Value> {
    let id = block.require_string("id")?;
    let name = block.require_string("name")?;
    let input = block.object("input")?.map_or_else(|| json!({}), |it| Value::Object(it.rest()));
    block.ignore(&["cache_control", "caller"]);
    block.finish()?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}))
}
