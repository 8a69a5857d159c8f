//! Tools of a request, and how calls of them are written as items.
//!
//! The model calls functions only. A namespace becomes functions whose names begin with its name, a
//! tool that takes text becomes a function with one argument, and tools of the API that the client
//! runs get the schema that their calls have. Items name and shape them as the client knows them.

use std::collections::HashMap;

use moeflux_text::{ToolChoice as Choice, Tools};
use serde_json::{Map, Value, json};

use super::request::{NamedTool, TextFormat, Tool, ToolChoice};
use crate::error::{ApiError, ApiResult};
use crate::request::{Ignored, List, StringOr};
use crate::tools::{self, Function, MAX_TOOLS};

/// What calls of a tool are as items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Function,
    /// A tool that takes text.
    Custom,
    ToolSearch,
    LocalShell,
    Shell,
    ApplyPatch,
}

/// A tool as the client knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientTool {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
}

/// Tools of a request, and of its history.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolTable {
    pub(super) functions: Tools,
    /// By the name of the function.
    by_function: HashMap<String, ClientTool>,
}

impl ToolTable {
    /// Reads `tools`. Those that run on a server are left out.
    pub(super) fn read(
        List(list): List<Tool, MAX_TOOLS>,
        ignored: &mut Ignored,
    ) -> ApiResult<ToolTable> {
        let mut table = ToolTable::default();
        for (i, tool) in list.into_iter().enumerate() {
            let at = format!("tools[{i}]");
            if !table.add(tool, None, &at)? {
                ignored.add_named(&at);
            }
        }
        Ok(table)
    }

    /// Adds tools that a search found. Those that are known, or that cannot be read, are left out.
    /// Gives the names of all of them.
    pub(super) fn add_found(&mut self, tools: Vec<Tool>) -> Vec<String> {
        let mut names = Vec::new();
        for tool in tools {
            let (namespace, tools) = match tool.tools {
                Some(tools) => (tool.name, tools),
                None => (None, vec![tool]),
            };
            for tool in tools {
                let name = tool.name.clone().unwrap_or_default();
                let name = self.function_name(&name, namespace.as_deref());
                if !self.by_function.contains_key(&name) {
                    // What a client found a moment ago must not end the conversation.
                    let _ = self.add(tool, namespace.as_deref(), "input");
                }
                names.push(name);
            }
        }
        names
    }

    /// Adds the tool that stands at a path; whether the model can call it.
    fn add(&mut self, tool: Tool, namespace: Option<&str>, at: &str) -> ApiResult<bool> {
        let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "it is missing");
        if let Some(tools) = tool.tools {
            let name = tool.name.ok_or_else(|| missing("name"))?;
            for (i, mut inner) in tools.into_iter().enumerate() {
                if i == 0
                    && let Some(text) = &tool.description
                {
                    let own = inner.description.unwrap_or_default();
                    let about = format!("{own}\n\nTools of {name}: {text}");
                    inner.description = Some(about.trim_start().to_owned());
                }
                self.add(inner, Some(&name), &format!("{at}.tools[{i}]"))?;
            }
            return Ok(true);
        }
        let Some((kind, known)) = kind_of(&tool) else { return Ok(false) };
        let Tool { name, description, parameters, strict, format, .. } = tool;
        let (name, description, parameters) = match known {
            Some(known) => {
                let parameters = parameters.unwrap_or_else(known.parameters);
                let description = description.unwrap_or_else(|| known.description.to_owned());
                (known.name.to_owned(), Some(description), Some(parameters))
            }
            None => {
                let name = name.ok_or_else(|| missing("name"))?;
                match kind {
                    Kind::Custom => {
                        let about = custom_description(description, format);
                        (name, Some(about), Some(custom_parameters()))
                    }
                    _ => (name, description, parameters),
                }
            }
        };
        let function = self.function_name(&name, namespace);
        let client = ClientTool { kind, name, namespace: namespace.map(str::to_owned) };
        let described = Function { name: function.clone(), description, parameters, strict };
        tools::add(&mut self.functions, described, at)?;
        self.by_function.insert(function, client);
        Ok(true)
    }

    /// The function that a tool has become.
    pub(super) fn function_name(&self, name: &str, namespace: Option<&str>) -> String {
        match namespace {
            None | Some("") => name.to_owned(),
            Some(namespace) if namespace.ends_with("__") => format!("{namespace}{name}"),
            Some(namespace) => format!("{namespace}__{name}"),
        }
    }

    /// The tool of a function that the model calls.
    pub(super) fn client_tool(&self, function: &str) -> ClientTool {
        let unknown = || ClientTool { name: function.to_owned(), ..ClientTool::default() };
        self.by_function.get(function).cloned().unwrap_or_else(unknown)
    }

    /// `tool_choice`.
    pub(super) fn choice(&mut self, field: Option<StringOr<ToolChoice>>) -> ApiResult<Choice> {
        let choice = match field {
            None => Choice::Auto,
            Some(StringOr::String(word)) => word_choice(&word)
                .ok_or_else(|| ApiError::field("tool_choice", "choose none, auto or required"))?,
            Some(StringOr::Other(choice)) => self.object_choice(choice)?,
        };
        if self.functions.is_empty() && !matches!(choice, Choice::Auto | Choice::Never) {
            return Err(ApiError::field("tool_choice", "it needs tools"));
        }
        Ok(choice)
    }

    fn object_choice(&mut self, choice: ToolChoice) -> ApiResult<Choice> {
        let ToolChoice { r#type: kind, name, namespace, mode, tools } = choice;
        if kind == "allowed_tools" {
            let List(allowed) = tools.unwrap_or_default();
            self.keep(&allowed);
            let mode = mode.as_deref().unwrap_or("auto");
            return word_choice(mode)
                .ok_or_else(|| ApiError::field("tool_choice.mode", "choose auto or required"));
        }
        let known = KNOWN.iter().find(|known| known.kind == kind).map(|known| known.name);
        match (kind.as_str(), name) {
            ("function" | "custom", Some(name)) => {
                Ok(Choice::Named(self.function_name(&name, namespace.as_deref())))
            }
            ("function" | "custom", None) => {
                Err(ApiError::field("tool_choice.name", "it is missing"))
            }
            _ => match known.map(str::to_owned).map(Choice::Named).or_else(|| word_choice(&kind)) {
                Some(choice) => Ok(choice),
                None => Err(ApiError::field("tool_choice.type", "choose function or custom")),
            },
        }
    }

    /// Leaves out all tools but these.
    fn keep(&mut self, allowed: &[NamedTool]) {
        let names: Vec<String> = allowed
            .iter()
            .map(|tool| match &tool.name {
                Some(name) => self.function_name(name, tool.namespace.as_deref()),
                None => tool.r#type.clone(),
            })
            .collect();
        self.functions.functions.retain(|function| {
            let name = function["function"]["name"].as_str().unwrap_or_default();
            names.iter().any(|allowed| allowed == name)
        });
    }
}

fn word_choice(word: &str) -> Option<Choice> {
    match word {
        "none" => Some(Choice::Never),
        "auto" => Some(Choice::Auto),
        "required" | "any" => Some(Choice::Required),
        _ => None,
    }
}

/// What the calls of a tool are, and the schema where the API has it; `None` where the tool runs on
/// a server.
fn kind_of(tool: &Tool) -> Option<(Kind, Option<&'static Known>)> {
    let kind = match tool.r#type.as_deref() {
        None | Some("function") => return Some((Kind::Function, None)),
        Some("custom") => return Some((Kind::Custom, None)),
        Some("tool_search") if tool.execution.as_deref() != Some("client") => return None,
        Some("shell") if !is_local(tool.environment.as_ref()) => return None,
        Some(kind) => kind,
    };
    let known = KNOWN.iter().find(|known| known.kind == kind)?;
    Some((known.items, Some(known)))
}

/// Whether a shell runs with the client.
fn is_local(environment: Option<&Value>) -> bool {
    environment.is_none_or(|environment| environment["type"] == "local")
}

/// A tool whose schema the API has.
#[derive(Debug)]
struct Known {
    kind: &'static str,
    items: Kind,
    name: &'static str,
    description: &'static str,
    parameters: fn() -> Value,
}

static KNOWN: [Known; 4] = [
    Known {
        kind: "tool_search",
        items: Kind::ToolSearch,
        name: "tool_search",
        description: "Finds tools that are not listed here.",
        parameters: || {
            json!({"type": "object", "properties": {"query": {"type": "string"}},
                "required": ["query"], "additionalProperties": false})
        },
    },
    Known {
        kind: "local_shell",
        items: Kind::LocalShell,
        name: "local_shell",
        description: "Runs a command on the user's machine.",
        parameters: || {
            json!({"type": "object", "properties": {
                "command": {"type": "array", "items": {"type": "string"},
                    "description": "The program and its arguments."},
                "working_directory": {"type": "string", "description": "Where it runs."},
                "timeout_ms": {"type": "integer", "description": "Milliseconds at most."}},
                "required": ["command"], "additionalProperties": false})
        },
    },
    Known {
        kind: "shell",
        items: Kind::Shell,
        name: "shell",
        description: "Runs commands in a shell on the user's machine.",
        parameters: || {
            json!({"type": "object", "properties": {
                "commands": {"type": "array", "items": {"type": "string"},
                    "description": "The commands."},
                "timeout_ms": {"type": "integer", "description": "Milliseconds at most."},
                "max_output_length": {"type": "integer", "description": "Characters at most."}},
                "required": ["commands"], "additionalProperties": false})
        },
    },
    Known {
        kind: "apply_patch",
        items: Kind::ApplyPatch,
        name: "apply_patch",
        description: "Creates, changes or deletes a file. A change is a diff without line \
                      numbers: after @@ lines that begin with a space, + or -.",
        parameters: || {
            json!({"type": "object", "properties": {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": {"type": "string", "description": "Path of the file."},
                "diff": {"type": "string", "description": "The change; none to delete a file."}},
                "required": ["type", "path"], "additionalProperties": false})
        },
    },
];

/// The argument of a tool that takes text.
pub(super) const TEXT_ARGUMENT: &str = "input";

fn custom_parameters() -> Value {
    json!({"type": "object", "properties": {TEXT_ARGUMENT: {"type": "string"}},
        "required": [TEXT_ARGUMENT], "additionalProperties": false})
}

fn custom_description(description: Option<String>, format: Option<TextFormat>) -> String {
    let mut text = description.unwrap_or_default();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str("Give the whole text as the argument `input`.");
    let grammar = format.and_then(|format| Some((format.syntax, format.definition?)));
    if let Some((syntax, definition)) = grammar {
        let syntax = syntax.unwrap_or_else(|| String::from("lark"));
        text.push_str(&format!(" It follows this grammar ({syntax}):\n{definition}"));
    }
    text
}

/// Arguments of a function, as far as they are an object.
pub(super) fn arguments_object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}
