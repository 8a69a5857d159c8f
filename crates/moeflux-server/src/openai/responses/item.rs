//! Items of an answer.

use serde_json::{Value, json};

use super::freeform::Freeform;
use super::tools::{ClientTool, Kind as ToolKind, TEXT_ARGUMENT, arguments_object};
use crate::app::App;

/// What an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Message,
    Call(ClientTool),
}

/// Whether an item is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// The answer was cut off.
    Incomplete,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
        }
    }
}

/// An item that is being written.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) kind: Kind,
    pub(super) id: String,
    call_id: String,
    /// What it says, or the arguments of the call.
    pub(super) text: String,
    /// Reads the text that a tool is given.
    freeform: Freeform,
}

impl Item {
    pub(super) fn new(app: &App, kind: Kind) -> Item {
        let prefix = match &kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call(tool) => match tool.kind {
                ToolKind::Function => "fc_",
                ToolKind::Custom => "ctc_",
                ToolKind::ToolSearch => "tsc_",
                ToolKind::LocalShell => "lsh_",
                ToolKind::Shell => "sh_",
                ToolKind::ApplyPatch => "apc_",
            },
        };
        let (id, call_id) = (app.ids.draw(prefix), app.ids.draw("call_"));
        Item { kind, id, call_id, text: String::new(), freeform: Freeform::default() }
    }

    /// Adds text; gives what there is more of for the client, if its dialect shows parts of this
    /// kind of item.
    pub(super) fn add(&mut self, text: &str) -> Option<String> {
        self.text.push_str(text);
        match self.tool_kind() {
            None | Some(ToolKind::Function) => Some(text.to_owned()),
            Some(ToolKind::Custom) => {
                Some(self.freeform.push(text)).filter(|text| !text.is_empty())
            }
            Some(_) => None,
        }
    }

    /// What calls of the tool are as items; `None` where this is no call.
    pub(super) fn tool_kind(&self) -> Option<ToolKind> {
        match &self.kind {
            Kind::Call(tool) => Some(tool.kind),
            _ => None,
        }
    }

    /// The text that a tool is given.
    pub(super) fn given(&self) -> String {
        Freeform::default().push(&self.text)
    }

    pub(super) fn value(&self, status: Status, logprobs: &[Value]) -> Value {
        let parts = || match status {
            Status::InProgress => Vec::new(),
            _ => vec![self.part(logprobs)],
        };
        let mut value = match &self.kind {
            Kind::Reasoning => json!({"type": "reasoning", "summary": [], "content": parts()}),
            Kind::Message => {
                json!({"type": "message", "role": "assistant", "content": parts()})
            }
            Kind::Call(tool) => self.call(tool),
        };
        value["id"] = Value::from(self.id.as_str());
        value["status"] = Value::from(status.name());
        value
    }

    fn call(&self, tool: &ClientTool) -> Value {
        let arguments = arguments_object(&self.text);
        let field = |name: &str| arguments.get(name).cloned().unwrap_or_default();
        let mut value = match tool.kind {
            ToolKind::Function => {
                json!({"type": "function_call", "name": tool.name, "arguments": self.text})
            }
            ToolKind::Custom => {
                json!({"type": "custom_tool_call", "name": tool.name, TEXT_ARGUMENT: self.given()})
            }
            ToolKind::ToolSearch => {
                json!({"type": "tool_search_call", "execution": "client", "arguments": arguments})
            }
            ToolKind::LocalShell => json!({"type": "local_shell_call", "action": {
                "type": "exec", "command": field("command"), "env": {}, "user": null,
                "timeout_ms": field("timeout_ms"), "working_directory": field("working_directory"),
            }}),
            ToolKind::Shell => json!({"type": "shell_call", "action": {
                "commands": field("commands"), "timeout_ms": field("timeout_ms"),
                "max_output_length": field("max_output_length"),
            }}),
            ToolKind::ApplyPatch => json!({"type": "apply_patch_call", "operation": arguments}),
        };
        value["call_id"] = Value::from(self.call_id.as_str());
        if let Some(namespace) = &tool.namespace {
            value["namespace"] = Value::from(namespace.as_str());
        }
        value
    }

    /// The part of which a message or a thought consists.
    pub(super) fn part(&self, logprobs: &[Value]) -> Value {
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": self.text}),
            _ => json!({
                "type": "output_text", "text": self.text, "annotations": [],
                "logprobs": logprobs,
            }),
        }
    }
}
