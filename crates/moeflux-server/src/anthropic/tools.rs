//! Tools of a request, and whether one must be called.

use moeflux_text::{ToolChoice as Choice, Tools};
use serde_json::{Map, Value, json};

use super::request::{Tool, ToolChoice};
use crate::error::{ApiError, ApiResult};
use crate::request::{Ignored, List};
use crate::tools::{self, Function, MAX_TOOLS};

/// Reads `tools`. Those that would run on a server are left out.
pub(super) fn read(List(list): List<Tool, MAX_TOOLS>, ignored: &mut Ignored) -> ApiResult<Tools> {
    let mut tools = Tools::default();
    for (i, tool) in list.into_iter().enumerate() {
        let at = format!("tools[{i}]");
        let Tool { r#type: kind, name, description, input_schema, strict } = tool;
        let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "it is missing");
        let known = kind.as_deref().and_then(ClientTool::of);
        let is_own = matches!(kind.as_deref(), None | Some("custom"));
        let (description, schema) = match (input_schema, known) {
            (Some(schema), _) => (description, schema),
            (None, Some(known)) => (Some(known.description.to_owned()), known.schema()),
            (None, None) if is_own => return Err(missing("input_schema")),
            (None, None) => {
                ignored.add_named(&at);
                continue;
            }
        };
        let name = name.or_else(|| known.map(|known| known.name.to_owned()));
        let name = name.ok_or_else(|| missing("name"))?;
        let parameters = Some(Value::Object(schema));
        tools::add(&mut tools, Function { name, description, parameters, strict }, &at)?;
    }
    Ok(tools)
}

/// `tool_choice`, and whether several tools may be called.
pub(super) fn choice(field: Option<ToolChoice>, has_tools: bool) -> ApiResult<(Choice, bool)> {
    let Some(ToolChoice { r#type: kind, name, disable_parallel_tool_use }) = field else {
        return Ok((Choice::Auto, true));
    };
    let choice = match (kind.as_str(), name) {
        ("auto", _) => Choice::Auto,
        ("none", _) => Choice::Never,
        ("any", _) => Choice::Required,
        ("tool", Some(name)) => Choice::Named(name),
        ("tool", None) => return Err(ApiError::field("tool_choice.name", "it is missing")),
        _ => return Err(ApiError::field("tool_choice.type", "choose auto, any, tool or none")),
    };
    if !has_tools && matches!(choice, Choice::Required | Choice::Named(_)) {
        return Err(ApiError::field("tool_choice", "it needs tools"));
    }
    Ok((choice, disable_parallel_tool_use != Some(true)))
}

/// A tool that runs with the client and whose schema the API knows, so that clients send none.
#[derive(Clone, Copy, Debug)]
struct ClientTool {
    name: &'static str,
    description: &'static str,
    /// Names of its arguments, their types and what they are.
    arguments: &'static [(&'static str, &'static str, &'static str)],
    /// Arguments that every call has.
    required: &'static [&'static str],
}

const BASH: ClientTool = ClientTool {
    name: "bash",
    description: "Runs a command in a shell that stays open between calls.",
    arguments: &[
        ("command", "string", "The command to run."),
        ("restart", "boolean", "Whether to start the shell anew instead."),
    ],
    required: &[],
};

const TEXT_EDITOR: ClientTool = ClientTool {
    name: "str_replace_based_edit_tool",
    description: "Views, creates and changes text files. Commands: view (path, view_range), \
                  create (path, file_text), str_replace (path, old_str, new_str), insert (path, \
                  insert_line, insert_text or new_str), undo_edit (path).",
    arguments: &[
        ("command", "string", "view, create, str_replace, insert or undo_edit."),
        ("path", "string", "Path of the file or directory."),
        ("file_text", "string", "Content of the new file."),
        ("old_str", "string", "Text to replace; it must occur once."),
        ("new_str", "string", "Text to put in its place."),
        ("insert_line", "integer", "Line after which text is inserted; 0 for the beginning."),
        ("insert_text", "string", "Text to insert."),
        ("view_range", "array", "First and last line to view; -1 for the end."),
    ],
    required: &["command", "path"],
};

const MEMORY: ClientTool = ClientTool {
    name: "memory",
    description: "Keeps notes in files below /memories. Commands: view (path, view_range), create \
                  (path, file_text), str_replace (path, old_str, new_str), insert (path, \
                  insert_line, insert_text), delete (path), rename (old_path, new_path).",
    arguments: &[
        ("command", "string", "view, create, str_replace, insert, delete or rename."),
        ("path", "string", "Path of the file or directory."),
        ("file_text", "string", "Content of the new file."),
        ("old_str", "string", "Text to replace; it must occur once."),
        ("new_str", "string", "Text to put in its place."),
        ("insert_line", "integer", "Line after which text is inserted; 0 for the beginning."),
        ("insert_text", "string", "Text to insert."),
        ("old_path", "string", "Path to rename."),
        ("new_path", "string", "Its new name."),
        ("view_range", "array", "First and last line to view; -1 for the end."),
    ],
    required: &["command"],
};

impl ClientTool {
    /// The tool of a type such as `bash_20250124`.
    fn of(kind: &str) -> Option<ClientTool> {
        let (name, version) = kind.rsplit_once('_')?;
        let is_date = version.len() == 8 && version.bytes().all(|byte| byte.is_ascii_digit());
        match name {
            _ if !is_date => None,
            "bash" => Some(BASH),
            "text_editor" => Some(TEXT_EDITOR),
            "memory" => Some(MEMORY),
            _ => None,
        }
    }

    fn schema(self) -> Map<String, Value> {
        let property = |(name, kind, description): &(&str, &str, &str)| {
            let mut value = json!({"type": kind, "description": description});
            if *kind == "array" {
                value["items"] = json!({"type": "integer"});
            }
            ((*name).to_owned(), value)
        };
        let properties: Map<String, Value> = self.arguments.iter().map(property).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": self.required,
            "additionalProperties": false,
        });
        schema.as_object().cloned().unwrap_or_default()
    }
}
