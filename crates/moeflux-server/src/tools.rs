//! Tools as clients describe them.

use moeflux_text::Tools;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, ApiResult};
use crate::request::{Ignored, object};

/// Tools of one request at most.
pub(crate) const MAX_TOOLS: usize = 512;

/// Characters of a tool's name at most.
const MAX_NAME: usize = 128;

/// A tool as the chat API describes it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Tool {
    /// `function`; tools of other kinds are left out.
    pub(crate) r#type: Option<String>,
    /// The function.
    pub(crate) function: Option<Function>,
}

/// A function that the model may call.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Function {
    /// Its name.
    #[schemars(length(min = 1, max = 128))]
    pub(crate) name: String,
    /// What it does.
    pub(crate) description: Option<String>,
    /// A JSON schema of its arguments.
    #[schemars(with = "Option<Map<String, Value>>")]
    pub(crate) parameters: Option<Value>,
    /// Whether arguments must follow the schema in every respect.
    pub(crate) strict: Option<bool>,
}

object!(Tool, Function);

/// Reads `tools` in the shape of the chat API. Tools that are no functions are left out.
pub(crate) fn of_chat(list: Vec<Tool>, ignored: &mut Ignored) -> ApiResult<Tools> {
    let mut tools = Tools::default();
    for (i, tool) in list.into_iter().enumerate() {
        let at = format!("tools[{i}]");
        match tool.function {
            _ if tool.r#type.as_ref().is_some_and(|kind| kind != "function") => {
                ignored.add_named(&at);
            }
            Some(function) => add(&mut tools, function, &format!("{at}.function"))?,
            None => return Err(ApiError::field(format!("{at}.function"), "it is missing")),
        }
    }
    Ok(tools)
}

/// Adds the function that stands at a path.
pub(crate) fn add(tools: &mut Tools, function: Function, at: &str) -> ApiResult<()> {
    if tools.functions.len() == MAX_TOOLS {
        return Err(ApiError::field("tools", format!("there may be at most {MAX_TOOLS}")));
    }
    let Function { name, description, parameters: schema, strict } = function;
    let refuse = |problem: String| ApiError::field(format!("{at}.name"), problem);
    if name.is_empty() || name.chars().nth(MAX_NAME).is_some() {
        return Err(refuse(format!("it must have 1 to {MAX_NAME} characters")));
    }
    if tools.functions.iter().any(|other| other["function"]["name"] == *name) {
        return Err(refuse(String::from("it is taken")));
    }
    let mut value = Map::new();
    value.insert("name".into(), Value::from(name.as_str()));
    if let Some(text) = description {
        value.insert("description".into(), Value::from(text));
    }
    value.insert("parameters".into(), parameters(schema, at)?);
    if strict == Some(true) {
        tools.strict.push(name);
    }
    tools.functions.push(json!({"type": "function", "function": value}));
    Ok(())
}

/// `parameters`: a schema. Templates read an object.
fn parameters(schema: Option<Value>, at: &str) -> ApiResult<Value> {
    let none = || json!({"type": "object", "properties": {}});
    Ok(match schema {
        None | Some(Value::Bool(false)) => none(),
        Some(Value::Bool(true)) => json!({"type": "object", "additionalProperties": true}),
        Some(schema @ Value::Object(_)) => schema,
        // PHP writes an empty object as a list.
        Some(Value::Array(items)) if items.is_empty() => none(),
        Some(_) => {
            return Err(ApiError::field(format!("{at}.parameters"), "it must be an object"));
        }
    })
}
