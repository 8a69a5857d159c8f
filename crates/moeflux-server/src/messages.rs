//! A conversation as OpenAI's clients send it, to the messages that templates
//! read.

use moeflux_engine::text::Message;
use serde_json::{Value, json};

use crate::error::{ApiError, ApiResult};
use crate::fields::Fields;

/// Messages of a conversation at most.
const MAX_MESSAGES: usize = 10_000;

/// Reads `messages`.
pub(crate) fn parse(messages: Vec<Value>) -> ApiResult<Vec<Message>> {
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let problem = format!("there must be 1 to {MAX_MESSAGES} messages");
        return Err(ApiError::field("messages", problem));
    }
    let messages = messages.into_iter().enumerate();
    messages.map(|(i, it)| parse_one(it, &format!("messages[{i}]"))).collect()
}

fn parse_one(value: Value, at: &str) -> ApiResult<Message> {
    let mut fields = Fields::of(value, at)?;
    let role = fields.require_string("role")?;
    // Templates know the system's voice by one name.
    let role = match role.as_str() {
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        _ => return Err(fields.refuse("role", "choose system, developer, user, assistant or tool")),
    };
    let mut message = Message { role: role.to_owned(), ..Message::default() };
    let content = fields.take("content");
    let is_answer = role == "assistant";
    message.content = match content {
        Some(content) => Some(Value::from(text(content, &fields.name("content"))?)),
        // Some templates write calls only where the content is null.
        None if is_answer && fields.has("tool_calls") => Some(Value::Null),
        None if is_answer => Some(Value::from("")),
        None => return Err(fields.refuse("content", "it is missing")),
    };
    message.name = fields.string("name")?.map(Value::from);
    if is_answer {
        for name in ["reasoning_content", "reasoning", "thinking"] {
            let thought = fields.string(name)?.map(Value::from);
            message.reasoning_content = message.reasoning_content.take().or(thought);
        }
        if let Some(calls) = fields.list("tool_calls")? {
            message.tool_calls = Some(tool_calls(calls, &fields.name("tool_calls"))?);
            message.parse_arguments();
        }
        fields.ignore(&["refusal", "annotations"]);
    }
    if role == "tool" {
        message.tool_call_id = fields.string("tool_call_id")?.map(Value::from);
    }
    fields.finish()?;
    Ok(message)
}

/// Text, or parts of text.
pub(crate) fn text(content: Value, at: &str) -> ApiResult<String> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(at, "it must be a string or a list of parts")),
    };
    let mut text = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        let mut part = Fields::of(part, &format!("{at}[{i}]"))?;
        match part.require_string("type")?.as_str() {
            "text" | "input_text" | "output_text" => text.push_str(&part.require_string("text")?),
            "refusal" => text.push_str(&part.require_string("refusal")?),
            _ => {
                return Err(part.refuse("type", "this model reads text only"));
            }
        }
        part.ignore(&["annotations", "logprobs", "cache_control"]);
        part.finish()?;
    }
    Ok(text)
}

/// Calls that the model made, as templates read them.
fn tool_calls(calls: Vec<Value>, at: &str) -> ApiResult<Value> {
    let mut all = Vec::with_capacity(calls.len());
    for (i, call) in calls.into_iter().enumerate() {
        let mut call = Fields::of(call, &format!("{at}[{i}]"))?;
        let id = call.require_string("id")?;
        if call.string("type")?.is_some_and(|it| it != "function") {
            return Err(call.refuse("type", "only functions are called here"));
        }
        let missing = call.refuse("function", "it is missing");
        let mut function = call.object("function")?.ok_or(missing)?;
        let name = function.require_string("name")?;
        // Some clients send an object, or nothing for no arguments.
        let arguments = match function.take("arguments") {
            None => String::from("{}"),
            Some(Value::String(text)) => text,
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(_) => return Err(function.refuse("arguments", "it must be a string of JSON")),
        };
        function.finish()?;
        call.ignore(&["index"]);
        call.finish()?;
        all.push(json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
    }
    Ok(Value::from(all))
}
