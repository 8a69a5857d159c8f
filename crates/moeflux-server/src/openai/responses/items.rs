//! Items of a conversation, to the messages that templates read.

use moeflux_text::Message;
use serde_json::{Map, Value, json};

use super::request::{Item, Tool};
use super::tools::{TEXT_ARGUMENT, ToolTable};
use crate::error::{ApiError, ApiResult};
use crate::messages::Said;
use crate::pictures::Pictures;
use crate::request::{Ignored, read_part};
use crate::result_text::{result_content, result_text};

/// Reads the items of a conversation, and adds the tools that searches found.
pub(super) struct Reader<'a> {
    pub(super) table: &'a mut ToolTable,
    pub(super) ignored: &'a mut Ignored,
    pictures: &'a mut Pictures,
    messages: Vec<Message>,
    /// What was thought before the next message or call.
    thought: String,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        table: &'a mut ToolTable,
        ignored: &'a mut Ignored,
        pictures: &'a mut Pictures,
        messages: Vec<Message>,
    ) -> Reader<'a> {
        Reader { table, ignored, pictures, messages, thought: String::new() }
    }

    /// The messages of a conversation: of the turns before a request, and of its own items.
    pub(super) fn read(mut self, before: Vec<Item>, items: Vec<Item>) -> ApiResult<Vec<Message>> {
        for (i, item) in before.into_iter().enumerate() {
            self.item(item, &format!("previous_response_id[{i}]"), false)?;
        }
        let (n, n_before) = (items.len(), self.messages.len());
        for (i, item) in items.into_iter().enumerate() {
            self.item(item, &format!("input[{i}]"), i + 1 == n)?;
        }
        if self.messages.len() == n_before {
            Err(ApiError::field("input", "it is empty"))
        } else {
            Ok(self.messages)
        }
    }

    fn item(&mut self, mut item: Item, at: &str, is_last: bool) -> ApiResult<()> {
        let kind = item.r#type.take().unwrap_or_else(|| String::from("message"));
        match kind.as_str() {
            "message" | "agent_message" => self.message(item, at, is_last)?,
            "reasoning" => self.think(item, at)?,
            "function_call" => {
                let arguments = item.arguments.take().unwrap_or_else(|| json!({}));
                self.named_call(item, arguments, at)?;
            }
            "custom_tool_call" => {
                let input = item.input.take().unwrap_or_default();
                self.named_call(item, json!({TEXT_ARGUMENT: input}), at)?;
            }
            "tool_search_call" => {
                let arguments = item.arguments.take().unwrap_or_else(|| json!({}));
                // A search that a server ran has no result here.
                match item.call_id {
                    Some(_) => self.call(item, "tool_search", arguments, at)?,
                    None => self.ignored.add_named(at),
                }
            }
            "local_shell_call" | "shell_call" => {
                let name = kind.trim_end_matches("_call");
                let action = shell_arguments(item.action.take());
                self.call(item, name, action, at)?;
            }
            "apply_patch_call" => {
                let operation = Value::Object(item.operation.take().unwrap_or_default());
                self.call(item, "apply_patch", operation, at)?;
            }
            "mcp_call" => self.finished_call(item, at)?,
            "tool_search_output" if item.call_id.is_some() => self.found_tools(item),
            // These answer calls that are left out.
            "computer_call_output" | "tool_search_output" => self.ignored.add_named(at),
            kind if kind.ends_with("_output") => self.result(item, at)?,
            kind if COMPACTED.contains(&kind) => {
                let problem = "this server cannot read what another one has made of a conversation: \
                               send its items";
                return Err(ApiError::not_supported(&format!("{at}.type"), problem));
            }
            kind if SAYS_NOTHING.contains(&kind) => {}
            _ if item.role.is_some() && item.content.is_some() => {
                self.message(item, at, is_last)?
            }
            _ => self.ignored.add_named(at),
        }
        Ok(())
    }

    fn message(&mut self, item: Item, at: &str, is_last: bool) -> ApiResult<()> {
        let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "it is missing");
        let role = item.role.ok_or_else(|| missing("role"))?;
        let content = item.content.ok_or_else(|| missing("content"))?;
        let role = match role.as_str() {
            "developer" => "system",
            role @ ("system" | "user" | "assistant") => role,
            _ => {
                let problem = "choose system, developer, user or assistant";
                return Err(ApiError::field(format!("{at}.role"), problem));
            }
        };
        let mut said = Said::default();
        said.add(content, &format!("{at}.content"), self.pictures)?;
        if is_last
            && role == "user"
            && let Some(part) = said.only_left_out()
        {
            let at = format!("{at}.content[{part}].type");
            return Err(ApiError::field(at, "this model reads text only"));
        }
        let mut message = Message::new(role, "");
        message.content = Some(said.into_content());
        if role == "assistant" {
            message.reasoning_content = self.take_thought();
        }
        self.messages.push(message);
        Ok(())
    }

    /// What was thought, or what is left of it. Encrypted thoughts only their maker can read.
    fn think(&mut self, item: Item, at: &str) -> ApiResult<()> {
        for (field, content) in [("content", item.content), ("summary", item.summary)] {
            let mut said = Said::default();
            if let Some(content) = content {
                said.add(content, &format!("{at}.{field}"), &mut Pictures::default())?;
            }
            if !said.text.is_empty() {
                self.thought.push_str(&said.text);
                return Ok(());
            }
        }
        if item.encrypted_content.is_some_and(|text| text != "") {
            self.ignored.add_named(&format!("{at}.encrypted_content"));
        }
        Ok(())
    }

    fn take_thought(&mut self) -> Option<Value> {
        let thought = std::mem::take(&mut self.thought);
        (!thought.is_empty()).then(|| Value::from(thought))
    }

    /// A call of a tool that the item names.
    fn named_call(&mut self, mut item: Item, arguments: Value, at: &str) -> ApiResult<()> {
        let missing = || ApiError::field(format!("{at}.name"), "it is missing");
        let name = item.name.take().ok_or_else(missing)?;
        let name = self.table.function_name(&name, item.namespace.as_deref());
        self.call(item, &name, arguments, at)
    }

    /// Calls that follow one another are of one turn.
    fn call(&mut self, item: Item, name: &str, arguments: Value, at: &str) -> ApiResult<()> {
        let missing = || ApiError::field(format!("{at}.call_id"), "it is missing");
        let id = call_id(item.call_id, item.id).ok_or_else(missing)?;
        let call = json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": arguments},
        });
        if self.messages.last().is_none_or(|last| last.role != "assistant") {
            self.messages.push(Message::new("assistant", ""));
        }
        let thought = self.take_thought();
        if let Some(last) = self.messages.last_mut() {
            last.reasoning_content = thought.or(last.reasoning_content.take());
            match last.tool_calls.as_mut().and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => last.tool_calls = Some(json!([call])),
            }
            last.parse_arguments();
        }
        Ok(())
    }

    fn result(&mut self, item: Item, at: &str) -> ApiResult<()> {
        let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "it is missing");
        let id = call_id(item.call_id, item.id).ok_or_else(|| missing("call_id"))?;
        let output = item.output.ok_or_else(|| missing("output"))?;
        let content = result_content(Some(output), &format!("{at}.output"), self.pictures)?;
        self.push_result(id, content);
        Ok(())
    }

    fn push_result(&mut self, id: String, content: Value) {
        let (tool_call_id, content) = (Some(Value::from(id)), Some(content));
        self.messages.push(Message { tool_call_id, content, ..Message::new("tool", "") });
    }

    /// A call that a server made, with its result.
    fn finished_call(&mut self, mut item: Item, at: &str) -> ApiResult<()> {
        let output = result_text(item.output.as_ref());
        let id = call_id(None, item.id.take()).unwrap_or_else(|| String::from("mcp"));
        let arguments = item.arguments.take().unwrap_or_else(|| json!({}));
        item.namespace = item.server_label.take();
        item.call_id = Some(id.clone());
        self.named_call(item, arguments, at)?;
        self.push_result(id, Value::from(output));
        Ok(())
    }

    /// The tools that a search of the client found can be called from now on.
    fn found_tools(&mut self, item: Item) {
        let tools = item.tools.unwrap_or_default();
        // What cannot be read is not offered.
        let tools: Vec<Tool> = read_part(tools, "tools").unwrap_or_default();
        let names = self.table.add_found(tools);
        let text = if names.is_empty() {
            String::from("No tool was found.")
        } else {
            format!("Found these tools: {}.", names.join(", "))
        };
        self.push_result(item.call_id.unwrap_or_default(), Value::from(text));
    }
}

/// What a result refers to; some items have no other identifier than their own.
fn call_id(call_id: Option<String>, id: Option<Value>) -> Option<String> {
    call_id.or_else(|| id?.as_str().map(str::to_owned))
}

/// Conversations in a form that only their maker reads.
const COMPACTED: [&str; 4] =
    ["compaction", "compaction_summary", "compaction_trigger", "context_compaction"];

/// Items of clients that are no part of what was said.
const SAYS_NOTHING: [&str; 3] = ["ghost_snapshot", "mcp_list_tools", "other"];

/// What a shell ran. The API has more fields than the tools have arguments.
fn shell_arguments(action: Option<Map<String, Value>>) -> Value {
    let mut action = action.unwrap_or_default();
    action.retain(|name, value| {
        let is_empty = value.as_object().is_some_and(Map::is_empty);
        !value.is_null() && !is_empty && name != "type"
    });
    Value::Object(action)
}
