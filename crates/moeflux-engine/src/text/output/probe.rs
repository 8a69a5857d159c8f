//! What a template makes of a conversation with calls, from which their syntax is read.

use serde_json::{Value, json};

use crate::text::message::Message;
use crate::text::tokenizer::Tokenizer;

/// The conversation that shows how a model's template writes calls: a tool, two calls of it, and
/// their results. `None` where the template is absent or refuses it in every shape.
pub(super) fn render(tokenizer: &Tokenizer) -> Option<String> {
    let template = tokenizer.chat_template(true)?.ok()?;
    let tools = json!([{"type": "function", "function": {
        "name": "probe", "description": "Tries calls.", "parameters": {
            "type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["text"],
    }}}]);
    let mut best = None;
    for content in [Value::Null, Value::from("")] {
        for is_text in [false, true] {
            let messages = conversation(&content, is_text);
            let Some(text) = template.plain(&messages, Some(&tools)) else { continue };
            // Templates that skip the calls in this shape show them in another.
            if text.contains("Probe17") {
                return Some(text);
            }
            best = best.or(Some(text));
        }
    }
    best
}

fn conversation(content: &Value, is_text: bool) -> Vec<Message> {
    let arguments = json!({"text": "Probe17", "n": 3, "nested": {"a": [1, null]}});
    let arguments = if is_text { Value::from(arguments.to_string()) } else { arguments };
    let call = |id: &str| {
        json!({"id": id, "type": "function",
            "function": {"name": "probe", "arguments": arguments.clone()}})
    };
    // Some templates refuse a second call in one turn.
    let turn = |id: &str| {
        let answer = Message {
            content: Some(content.clone()),
            tool_calls: Some(json!([call(id)])),
            ..Message::new("assistant", "")
        };
        let result = Message { tool_call_id: Some(Value::from(id)), ..Message::new("tool", "1") };
        [answer, result]
    };
    let question = [Message::new("user", "Try it.")];
    let turns = ["functions.probe:0", "functions.probe:1"].map(turn);
    question.into_iter().chain(turns.into_iter().flatten()).collect()
}
