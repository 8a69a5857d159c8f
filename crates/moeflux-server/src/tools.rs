//! Tools as clients describe them.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, ApiResult};
use crate::fields::Fields;

/// Tools of one request at most.
const MAX_TOOLS: usize = 512;

/// Characters of a tool's name at most.
const MAX_NAME: usize = 128;

/// Tools that a model may call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    /// Their descriptions as templates read them, in the shape of the chat API.
    pub(crate) functions: Vec<Value>,
    /// Names of those whose arguments must follow their schema in every respect.
    pub(crate) strict: Vec<String>,
}

impl Tools {
    /// Reads `tools` in the shape of the chat API.
    pub(crate) fn of_chat(list: Vec<Value>) -> ApiResult<Tools> {
        let mut tools = Tools::default();
        for (i, tool) in list.into_iter().enumerate() {
            let mut tool = Fields::of(tool, &format!("tools[{i}]"))?;
            if tool.require_string("type")? != "function" {
                return Err(tool.refuse("type", "only functions are supported"));
            }
            let missing = tool.refuse("function", "it is missing");
            tools.add(tool.object("function")?.ok_or(missing)?)?;
            tool.finish()?;
        }
        Ok(tools)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Adds a function of which these are the name, the description and the parameters.
    pub(crate) fn add(&mut self, mut function: Fields) -> ApiResult<()> {
        if self.functions.len() == MAX_TOOLS {
            return Err(ApiError::field("tools", format!("there may be at most {MAX_TOOLS}")));
        }
        let name = function.require_string("name")?;
        if name.is_empty() || name.chars().nth(MAX_NAME).is_some() {
            return Err(function.refuse("name", format!("it must have 1 to {MAX_NAME} characters")));
        }
        if self.functions.iter().any(|other| other["function"]["name"] == *name) {
            return Err(function.refuse("name", "it is taken"));
        }
        let mut value = Map::new();
        value.insert("name".into(), Value::from(name.as_str()));
        if let Some(text) = function.string("description")? {
            value.insert("description".into(), Value::from(text));
        }
        value.insert("parameters".into(), parameters(&mut function)?);
        if function.bool("strict")? == Some(true) {
            self.strict.push(name);
        }
        function.finish()?;
        self.functions.push(json!({"type": "function", "function": value}));
        Ok(())
    }
}

/// `parameters`: a schema. Templates read an object.
fn parameters(function: &mut Fields) -> ApiResult<Value> {
    let none = || json!({"type": "object", "properties": {}});
    Ok(match function.take("parameters") {
        None | Some(Value::Bool(false)) => none(),
        Some(Value::Bool(true)) => json!({"type": "object", "additionalProperties": true}),
        Some(schema @ Value::Object(_)) => schema,
        // PHP writes an empty object as a list.
        Some(Value::Array(items)) if items.is_empty() => none(),
        Some(_) => return Err(function.refuse("parameters", "it must be an object")),
    })
}
