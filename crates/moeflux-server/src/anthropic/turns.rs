//! Turns of a conversation, to the messages that templates read.

use moeflux_text::Message;
use serde_json::{Value, json};

use super::blocks::{Text, picture, required_text, system};
use super::request::{Block, Content, Turn};
use crate::error::{ApiError, ApiResult};
use crate::pictures::Pictures;
use crate::request::{List, StringOr};
use crate::result_text::{result_content, result_text, with_prefix};

/// Adds the messages of `turns`; whether the last of them is the beginning of the answer.
pub(super) fn read(
    turns: Vec<Turn>,
    messages: &mut Vec<Message>,
    pictures: &mut Pictures,
) -> ApiResult<bool> {
    let (n, n_before) = (turns.len(), messages.len());
    if n == 0 {
        return Err(ApiError::field("messages", "it is empty: there must be a message"));
    }
    let mut continues = false;
    for (i, Turn { role, content }) in turns.into_iter().enumerate() {
        let at = format!("messages[{i}].content");
        let is_last = i + 1 == n;
        match role.as_str() {
            "user" => user(content, &at, is_last, messages, pictures)?,
            "assistant" => {
                Assistant::default().read(content, &at, messages)?;
                continues = is_last && begins_answer(&at, messages)?;
            }
            "system" => messages.push(Message::new("system", system(content, &at)?)),
            _ => {
                let problem = "choose user, assistant or system";
                return Err(ApiError::field(format!("messages[{i}].role"), problem));
            }
        }
    }
    if messages.len() == n_before {
        return Err(ApiError::field("messages", "there must be a message of the user's"));
    }
    Ok(continues)
}

/// Whether the last message is the beginning of the answer. It is taken away where it is empty.
fn begins_answer(at: &str, messages: &mut Vec<Message>) -> ApiResult<bool> {
    let Some(message) = messages.last().filter(|message| message.role == "assistant") else {
        return Ok(false);
    };
    if message.tool_calls.is_some() || message.reasoning_content.is_some() {
        let problem = "as the beginning of the answer it may only hold text";
        return Err(ApiError::field(at, problem));
    }
    let text = message.content.as_ref().and_then(Value::as_str).unwrap_or_default();
    if text.ends_with(char::is_whitespace) {
        let problem = "the beginning of the answer must not end with white space";
        return Err(ApiError::field("messages", problem));
    }
    let is_empty = text.is_empty();
    if is_empty {
        messages.pop();
    }
    Ok(!is_empty)
}

/// Results of tools are messages of their own, before what the user says.
fn user(
    content: Content,
    at: &str,
    is_last: bool,
    messages: &mut Vec<Message>,
    pictures: &mut Pictures,
) -> ApiResult<()> {
    let blocks = match content {
        StringOr::String(text) => {
            messages.push(Message::new("user", text));
            return Ok(());
        }
        StringOr::Other(List(blocks)) => blocks,
    };
    let mut said = Text::default();
    let mut n_texts = 0;
    let n_before = messages.len();
    // The user's own stand behind those of results.
    let mut own = pictures.others();
    for (i, mut block) in blocks.into_iter().enumerate() {
        if block.r#type.as_deref() == Some("tool_result") {
            messages.push(result(block, &format!("{at}[{i}]"), pictures)?);
            continue;
        }
        n_texts += 1;
        if picture(&mut block, &format!("{at}[{i}]"), &mut own)? {
            said.add_picture();
            continue;
        }
        match required_text(&block, at, i)? {
            Some(text) => said.add(text),
            None => said.add_block(i, &block),
        }
    }
    pictures.append(own)?;
    let has_results = messages.len() > n_before;
    match said.left_out.filter(|_| is_last && !said.has_text && !has_results) {
        Some(i) => Err(ApiError::field(format!("{at}[{i}].type"), "this model reads text only")),
        None if n_texts == 0 && !has_results => Err(ApiError::field(at, "it is empty")),
        None => {
            if n_texts > 0 {
                let content = Some(said.into_content());
                messages.push(Message { content, ..Message::new("user", "") });
            }
            Ok(())
        }
    }
}

fn result(block: Block, at: &str, pictures: &mut Pictures) -> ApiResult<Message> {
    let missing = || ApiError::field(format!("{at}.tool_use_id"), "it is missing");
    let id = block.tool_use_id.ok_or_else(missing)?;
    let content = result_content(block.content, &format!("{at}.content"), pictures)?;
    let is_error = block.is_error == Some(true);
    let content = if is_error { with_prefix("Error: ", content) } else { content };
    Ok(tool_message(id, content))
}

fn tool_message(id: String, content: Value) -> Message {
    let (tool_call_id, content) = (Some(Value::from(id)), Some(content));
    Message { tool_call_id, content, ..Message::new("tool", "") }
}

/// A message of the assistant, as far as its blocks are read.
#[derive(Clone, Debug, Default)]
struct Assistant {
    said: String,
    thought: String,
    calls: Vec<Value>,
    /// Calls of tools that ran on a server, whose results are to come.
    server_calls: Vec<Value>,
}

impl Assistant {
    /// Adds the messages of a turn: one, and one more after each result of a tool that ran on a
    /// server.
    fn read(mut self, content: Content, at: &str, messages: &mut Vec<Message>) -> ApiResult<()> {
        let blocks = match content {
            StringOr::String(text) => {
                messages.push(Message::new("assistant", text));
                return Ok(());
            }
            StringOr::Other(List(blocks)) => blocks,
        };
        let n_before = messages.len();
        for (i, block) in blocks.into_iter().enumerate() {
            let place = format!("{at}[{i}]");
            match block.r#type.as_deref() {
                Some("thinking") => self.thought.push_str(&block.thinking.unwrap_or_default()),
                // Only its maker can read it. What was left of the conversation is in the text.
                Some("redacted_thinking" | "fallback") => {}
                Some("tool_use") => self.calls.push(call(block, &place)?),
                Some("server_tool_use" | "mcp_tool_use") => {
                    self.server_calls.push(call(block, &place)?);
                }
                Some(kind) if kind.ends_with("_tool_result") => self.result(&block, messages),
                _ => match required_text(&block, at, i)? {
                    Some(text) => self.said.push_str(text),
                    None => {
                        let mut note = Text::default();
                        note.add_block(i, &block);
                        self.said.push_str(&note.text);
                    }
                },
            }
        }
        let is_empty = self.said.is_empty() && self.thought.is_empty() && self.calls.is_empty();
        if !is_empty || messages.len() == n_before {
            messages.push(self.message());
        }
        Ok(())
    }

    /// The result of a tool that ran on a server, after its call.
    fn result(&mut self, block: &Block, messages: &mut Vec<Message>) {
        let id = block.tool_use_id.as_deref().unwrap_or_default();
        let called = self.server_calls.iter().position(|call| call["id"] == id);
        let text = result_text(block.content.as_ref());
        match called {
            Some(i) => {
                let call = self.server_calls.remove(i);
                let others = std::mem::take(&mut self.server_calls);
                let before = Assistant { calls: vec![call], ..std::mem::take(self) };
                self.server_calls = others;
                messages.push(before.message());
                messages.push(tool_message(id.to_owned(), Value::from(text)));
            }
            None => self.said.push_str(&text),
        }
    }

    fn message(self) -> Message {
        let mut message = Message::new("assistant", self.said);
        message.reasoning_content = (!self.thought.is_empty()).then(|| Value::from(self.thought));
        message.tool_calls = (!self.calls.is_empty()).then(|| Value::from(self.calls));
        message
    }
}

fn call(block: Block, at: &str) -> ApiResult<Value> {
    let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "it is missing");
    let id = block.id.ok_or_else(|| missing("id"))?;
    let name = block.name.ok_or_else(|| missing("name"))?;
    let input = Value::Object(block.input.unwrap_or_default());
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}))
}
