//! One turn of a conversation, in the shape that clients send and templates read.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// A chat message. A field that is `null` and a field that is absent are different things to a
/// template, so `Some(Value::Null)` and `None` are kept apart; fields not listed are kept too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what the template knows.
    pub role: String,
    /// Text, or a list of parts.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
    /// What the model thought before it answered.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<Value>,
    /// Calls that the model made.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    /// Name of the speaker or of the tool.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub name: Option<Value>,
    /// Which call this message answers.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<Value>,
    /// Everything else that the client sent.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Value::String(content.into())), ..Self::default() }
    }

    /// How many of the parts of its content are pictures: `{"type": "image"}`.
    pub fn n_pictures(&self) -> usize {
        let parts = self.content.as_ref().and_then(Value::as_array);
        parts.into_iter().flatten().filter(|part| part["type"] == "image").count()
    }

    /// Turns the arguments of tool calls from JSON text, as the OpenAI API has them, into the
    /// objects that templates expect. Arguments that are not a JSON object stay text.
    pub fn parse_arguments(&mut self) {
        let calls = self.tool_calls.as_mut().and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(object @ Value::Object(_)) = parsed {
                *arguments = object;
            }
        }
    }
}

fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keeps_null_apart_from_absent_and_unknown_fields_in_place() {
        for value in [
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}),
            json!({"role": "assistant"}),
            json!({"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}),
        ] {
            let message: Message = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(message).unwrap(), value);
        }
    }

    #[test]
    fn parses_arguments_that_are_objects() {
        let calls = json!([
            {"function": {"name": "f", "arguments": "{\"a\": 1}"}},
            {"function": {"name": "g", "arguments": "not json"}},
            {"function": {"name": "h"}},
        ]);
        let mut message = Message { tool_calls: Some(calls), ..Message::new("assistant", "") };
        message.parse_arguments();
        let calls = message.tool_calls.unwrap();
        assert_eq!(calls[0]["function"]["arguments"], json!({"a": 1}));
        assert_eq!(calls[1]["function"]["arguments"], json!("not json"));
    }
}
