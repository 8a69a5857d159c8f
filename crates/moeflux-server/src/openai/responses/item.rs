//! Items of an answer.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::freeform::Freeform;
use super::tools::{ClientTool, Kind as ToolKind, arguments_object};
use crate::app::App;
use crate::kept::item_id;
use crate::logprobs::Entry;

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerStyle {
    /// Whether thoughts are written as summaries.
    pub(super) summarises: bool,
}

/// What an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Message,
    Call(ClientTool),
}

/// Whether an item is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ItemStatus")]
pub(super) enum Status {
    /// It is being written.
    InProgress,
    /// It is complete.
    Completed,
    /// The answer was cut off.
    Incomplete,
}

/// An item of an answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct OutputItem {
    #[serde(flatten)]
    said: Said,
    /// Its identifier.
    id: String,
    /// Whether it is complete.
    status: Status,
}

/// What an item says.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Said {
    /// What the model thought.
    Reasoning {
        /// The thoughts, where the request asks for a summary of them.
        summary: Vec<Summary>,
        /// The thoughts, where it does not.
        content: Vec<Part>,
    },
    /// What the model said.
    Message {
        /// `assistant`.
        role: &'static str,
        /// The text.
        content: Vec<Part>,
    },
    /// A call of a function.
    FunctionCall {
        /// The function's name.
        name: String,
        /// Arguments as the text of a JSON object.
        arguments: String,
        #[serde(flatten)]
        place: CallPlace,
    },
    /// A call of a tool that takes text.
    CustomToolCall {
        /// The tool's name.
        name: String,
        /// The text.
        input: String,
        #[serde(flatten)]
        place: CallPlace,
    },
    /// A search for tools.
    ToolSearchCall {
        /// `client`.
        execution: &'static str,
        /// What is searched for.
        arguments: Map<String, Value>,
        #[serde(flatten)]
        place: CallPlace,
    },
    /// A command for a shell.
    LocalShellCall {
        /// The command.
        action: Command,
        #[serde(flatten)]
        place: CallPlace,
    },
    /// Commands for a shell.
    ShellCall {
        /// The commands.
        action: Commands,
        #[serde(flatten)]
        place: CallPlace,
    },
    /// A change of files.
    ApplyPatchCall {
        /// The change.
        operation: Map<String, Value>,
        #[serde(flatten)]
        place: CallPlace,
    },
}

/// What the result of a call refers to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct CallPlace {
    /// The call.
    call_id: String,
    /// The namespace of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
}

/// A command for a shell, as the model wrote it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Command {
    /// `exec`.
    r#type: &'static str,
    /// The command and its arguments.
    command: Value,
    /// Always empty.
    env: Map<String, Value>,
    /// Always null.
    user: Option<String>,
    /// Milliseconds that it may take.
    timeout_ms: Value,
    /// Where it runs.
    working_directory: Value,
}

/// Commands for a shell, as the model wrote them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Commands {
    /// The commands.
    commands: Value,
    /// Milliseconds that they may take.
    timeout_ms: Value,
    /// Characters of output that are wanted at most.
    max_output_length: Value,
}

/// A part of what was thought, for clients that read summaries alone.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "SummaryPart")]
pub(super) enum Summary {
    /// Text.
    SummaryText {
        /// The text.
        text: String,
    },
}

/// The part of which a message or a thought consists.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "OutputPart")]
pub(super) enum Part {
    /// A thought.
    ReasoningText {
        /// The text.
        text: String,
    },
    /// Text of the answer.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        annotations: Vec<String>,
        /// The logarithms of the tokens' probabilities, where they are wanted.
        logprobs: Vec<Entry>,
    },
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
    /// Item `i` of a response.
    pub(super) fn new(app: &App, response: &str, i: usize, kind: Kind) -> Item {
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
        let (id, call_id) = (item_id(prefix, response, i), app.ids.draw("call_"));
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

    /// The item as it is now.
    pub(super) fn output(
        &self,
        status: Status,
        logprobs: &[Entry],
        style: AnswerStyle,
    ) -> OutputItem {
        let is_begun = status != Status::InProgress;
        let summary: Vec<Summary> =
            (is_begun && style.summarises).then(|| self.summary()).into_iter().collect();
        let is_summary = self.kind == Kind::Reasoning && style.summarises;
        let content: Vec<Part> =
            (is_begun && !is_summary).then(|| self.part(logprobs)).into_iter().collect();
        let said = match &self.kind {
            Kind::Reasoning => Said::Reasoning { summary, content },
            Kind::Message => Said::Message { role: "assistant", content },
            Kind::Call(tool) => self.call(tool),
        };
        OutputItem { said, id: self.id.clone(), status }
    }

    fn call(&self, tool: &ClientTool) -> Said {
        let arguments = arguments_object(&self.text);
        let field = |name: &str| arguments.get(name).cloned().unwrap_or_default();
        let name = tool.name.clone();
        let place = CallPlace { call_id: self.call_id.clone(), namespace: tool.namespace.clone() };
        match tool.kind {
            ToolKind::Function => Said::FunctionCall { name, arguments: self.text.clone(), place },
            ToolKind::Custom => Said::CustomToolCall { name, input: self.given(), place },
            ToolKind::ToolSearch => Said::ToolSearchCall { execution: "client", arguments, place },
            ToolKind::LocalShell => {
                let action = Command {
                    r#type: "exec",
                    command: field("command"),
                    env: Map::new(),
                    user: None,
                    timeout_ms: field("timeout_ms"),
                    working_directory: field("working_directory"),
                };
                Said::LocalShellCall { action, place }
            }
            ToolKind::Shell => {
                let action = Commands {
                    commands: field("commands"),
                    timeout_ms: field("timeout_ms"),
                    max_output_length: field("max_output_length"),
                };
                Said::ShellCall { action, place }
            }
            ToolKind::ApplyPatch => Said::ApplyPatchCall { operation: arguments, place },
        }
    }

    /// What was thought, as a summary.
    pub(super) fn summary(&self) -> Summary {
        Summary::SummaryText { text: self.text.clone() }
    }

    /// The part of which a message or a thought consists.
    pub(super) fn part(&self, logprobs: &[Entry]) -> Part {
        let text = self.text.clone();
        match self.kind {
            Kind::Reasoning => Part::ReasoningText { text },
            _ => Part::OutputText { text, annotations: Vec::new(), logprobs: logprobs.to_vec() },
        }
    }
}
