//! A conversation as Ollama's clients send it, to the messages that templates read.

use moeflux_text::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, ApiResult};
use crate::messages::{Content, Said, left_out};
use crate::pictures::Pictures;
use crate::request::{List, StringOr, object};

/// Images of a message, and calls of one, at most.
const MAX_PARTS: usize = 1000;

/// Images in base64.
pub(super) type Images = List<Value, MAX_PARTS>;

/// A message.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant` or `tool`.
    role: String,
    /// What is said.
    content: Option<Content>,
    /// What the assistant thought.
    thinking: Option<String>,
    /// Images, which are left out where the model reads text only.
    images: Option<Images>,
    /// Calls that the assistant made.
    tool_calls: Option<List<ToolCall, MAX_PARTS>>,
    /// Which tool's result this is.
    tool_name: Option<String>,
    /// Another name of `tool_name`.
    name: Option<String>,
    /// Which call's result this is.
    tool_call_id: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ToolCall {
    /// What its result refers to.
    id: Option<String>,
    /// What was called.
    function: FunctionCall,
}

/// A function that was called.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct FunctionCall {
    /// Its name.
    name: String,
    /// Its arguments; some clients send their JSON text.
    arguments: Option<StringOr<Map<String, Value>>>,
}

object!(ChatMessage, ToolCall, FunctionCall);

/// Fields of messages that change nothing here.
pub(super) const HINTS: &[&str] = &[
    "messages[].tool_calls[].type",
    "messages[].tool_calls[].function.index",
    "messages[].tool_calls[].function.description",
];

/// Whether the last message of a conversation is the beginning of the answer.
pub(super) fn is_begun(last: &Message) -> bool {
    let text = last.content.as_ref().and_then(Value::as_str);
    last.role == "assistant"
        && last.tool_calls.is_none()
        && text.is_some_and(|text| !text.is_empty())
}

/// A call whose result has not been given.
struct OpenCall {
    id: String,
    name: String,
}

/// The messages of a request as templates read them.
pub(super) fn read(messages: Vec<ChatMessage>, pictures: &mut Pictures) -> ApiResult<Vec<Message>> {
    let n = messages.len();
    let mut open = Vec::new();
    let read_one =
        |(i, message): (usize, ChatMessage)| message.read(i, i + 1 == n, &mut open, pictures);
    messages.into_iter().enumerate().map(read_one).collect()
}

impl ChatMessage {
    fn read(
        self,
        i: usize,
        is_last: bool,
        open: &mut Vec<OpenCall>,
        pictures: &mut Pictures,
    ) -> ApiResult<Message> {
        let at = format!("messages[{i}]");
        let role = match self.role.to_lowercase().as_str() {
            "system" | "developer" => "system",
            "user" => "user",
            "assistant" => "assistant",
            "tool" | "function" => "tool",
            _ => {
                let problem = "choose system, user, assistant or tool";
                return Err(ApiError::field(format!("{at}.role"), problem));
            }
        };
        let (mut said, mut seen) = (Said::default(), pictures.others());
        if let Some(content) = self.content {
            said.add(content, &format!("{at}.content"), &mut seen)?;
        }
        let List(images) = self.images.unwrap_or_default();
        let images_at = format!("{at}.images");
        // Images stand before the text.
        let content = if pictures.sees() {
            behind_images(images, said.into_content(), &images_at, pictures)?
        } else {
            let text = with_images(said.text, images.len(), is_last && role == "user");
            Value::from(text.map_err(|problem| ApiError::field(images_at, problem))?)
        };
        pictures.append(seen)?;
        let mut message = Message { content: Some(content), ..Message::new(role, "") };
        match role {
            "assistant" => {
                message.reasoning_content =
                    self.thinking.filter(|thought| !thought.is_empty()).map(Value::from);
                if let Some(List(calls)) = self.tool_calls.filter(|List(calls)| !calls.is_empty()) {
                    message.tool_calls = Some(read_calls(calls, i, open)?);
                    // Some templates write calls only where the content is null.
                    if message.content.as_ref().and_then(Value::as_str) == Some("") {
                        message.content = Some(Value::Null);
                    }
                }
            }
            "tool" => {
                let name = self.tool_name.or(self.name);
                let (id, name) = answered(self.tool_call_id, name, open);
                message.tool_call_id = id.map(Value::from);
                message.name = name.map(Value::from);
            }
            _ => message.name = self.name.map(Value::from),
        }
        Ok(message)
    }
}

/// What is said, behind images that the model sees.
pub(super) fn behind_images(
    images: Vec<Value>,
    said: Value,
    at: &str,
    pictures: &mut Pictures,
) -> ApiResult<Value> {
    if images.is_empty() {
        return Ok(said);
    }
    let mut parts = Vec::with_capacity(images.len() + 1);
    for (i, image) in images.into_iter().enumerate() {
        pictures.add_base64(image, &format!("{at}[{i}]"))?;
        parts.push(json!({"type": "image"}));
    }
    match said {
        Value::Array(own) => parts.extend(own),
        Value::String(text) if text.is_empty() => {}
        text => parts.push(json!({"type": "text", "text": text})),
    }
    Ok(Value::from(parts))
}

/// What is said, with a text in place of images. A question that is nothing but images is refused.
pub(super) fn with_images(
    text: String,
    n_images: usize,
    is_question: bool,
) -> Result<String, &'static str> {
    if n_images == 0 {
        return Ok(text);
    }
    if is_question && text.trim().is_empty() {
        return Err("this model reads text only");
    }
    let notes = vec![left_out("image"); n_images];
    let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    Ok(format!("{text}{separator}{}", notes.join("\n")))
}

/// Calls of message `i` as templates read them.
fn read_calls(calls: Vec<ToolCall>, i: usize, open: &mut Vec<OpenCall>) -> ApiResult<Value> {
    open.clear();
    let mut all = Vec::with_capacity(calls.len());
    for (k, ToolCall { id, function }) in calls.into_iter().enumerate() {
        let FunctionCall { name, arguments } = function;
        let arguments = match arguments {
            None => Map::new(),
            Some(StringOr::Other(arguments)) => arguments,
            Some(StringOr::String(text)) => serde_json::from_str(&text).map_err(|_| {
                let at = format!("messages[{i}].tool_calls[{k}].function.arguments");
                ApiError::field(at, "it must be an object")
            })?,
        };
        // Many clients keep no identifiers. The same conversation gets the same ones, so that it
        // stays the same prompt.
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{i}_{k}"));
        all.push(json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
        open.push(OpenCall { id, name });
    }
    Ok(Value::from(all))
}

/// Which call a result answers, and the name of its tool: the call with the identifier, else the
/// first without a result that has the name, else the first without a result.
fn answered(
    id: Option<String>,
    name: Option<String>,
    open: &mut Vec<OpenCall>,
) -> (Option<String>, Option<String>) {
    let position = match (&id, &name) {
        (Some(id), _) => open.iter().position(|call| call.id == *id),
        (None, Some(name)) => open.iter().position(|call| call.name == *name),
        (None, None) => (!open.is_empty()).then_some(0),
    };
    match position.map(|at| open.remove(at)) {
        Some(call) => (Some(call.id), Some(name.unwrap_or(call.name))),
        None => (id, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_json(messages: Value) -> ApiResult<Vec<Message>> {
        read(serde_json::from_value(messages).unwrap(), &mut Pictures::default())
    }

    #[test]
    fn results_answer_calls_by_name_and_by_order() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"x": 1}}});
        let messages = read_json(json!([
            {"role": "User", "content": "?"},
            {"role": "assistant", "tool_calls": [call("a"), call("b"), call("b")]},
            {"role": "tool", "tool_name": "b", "content": "first b"},
            {"role": "tool", "content": "a"},
            {"role": "tool", "tool_name": "b", "content": "second b"},
            {"role": "tool", "tool_call_id": "other", "content": "unknown"},
        ]))
        .unwrap();
        let calls = messages[1].tool_calls.as_ref().unwrap();
        assert_eq!(calls[0]["function"]["arguments"], json!({"x": 1}));
        let results: Vec<(Option<&str>, Option<&str>)> = messages[2..]
            .iter()
            .map(|message| {
                (
                    message.tool_call_id.as_ref().and_then(Value::as_str),
                    message.name.as_ref().and_then(Value::as_str),
                )
            })
            .collect();
        assert_eq!(
            results,
            [
                (Some("call_1_1"), Some("b")),
                (Some("call_1_0"), Some("a")),
                (Some("call_1_2"), Some("b")),
                (Some("other"), None),
            ]
        );
    }

    #[test]
    fn images_are_left_out_unless_they_are_all_that_is_asked() {
        let image = json!({"role": "user", "content": "What is this?", "images": ["aGk="]});
        let messages = read_json(json!([image, {"role": "assistant", "content": "A cat."}, image]));
        let text = messages.unwrap()[0].content.clone().unwrap();
        assert_eq!(text, "What is this?\n[image left out: this model reads text only]");
        let alone = json!({"role": "user", "content": "", "images": ["aGk="]});
        let refused = read_json(json!([alone.clone()])).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("messages[0].images"));
        assert!(read_json(json!([alone, {"role": "user", "content": "?"}])).is_ok());
    }
}
