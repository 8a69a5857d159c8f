//! How many tokens a conversation has at least, before it is rendered.
//!
//! Rendering takes several copies of a conversation. What templates write of one is found out
//! when a template is loaded, by a conversation whose texts are easy to recognise.

use serde_json::{Value, json};

use super::jinja::is_space;
use super::message::Message;

/// Shorter conversations are rendered and counted.
const MIN_BYTES: usize = 256 << 10;

/// Shorter stretches of text in JSON are not counted.
const MIN_STRETCH: usize = 64;

/// What a template writes of a conversation, as it is given but for white space around it.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Roles whose texts are written.
    roles: Vec<&'static str>,
    /// All texts in definitions of tools, escaped as in JSON.
    tools: bool,
    /// All texts in arguments of calls, escaped as in JSON.
    arguments: bool,
}

impl Written {
    /// Tries a template. `render` gives what it makes of messages and tools.
    pub(super) fn find(render: impl Fn(&[Message], Option<&Value>) -> Option<String>) -> Written {
        let mut written = Written::default();
        // A template that escapes texts, or takes lines apart, does not write this as it is.
        let text = |i: usize| format!("first \"{i}\"\n\n  second\té");
        let system = || Message::new("system", text(0));
        let talk: Vec<Message> = (1..=8)
            .map(|i| Message::new(if i % 2 == 1 { "user" } else { "assistant" }, text(i)))
            .chain([Message::new("user", text(9))])
            .collect();
        let with_system = [vec![system()], talk.clone()].concat();
        let whole = render(&with_system, None).or_else(|| render(&talk, None));
        let Some(whole) = whole else { return written };
        let has = |i: usize| whole.contains(&text(i));
        written.roles.extend(has(0).then_some("system"));
        written.roles.extend([1, 3, 5, 7, 9].into_iter().all(has).then_some("user"));
        written.roles.extend([2, 4, 6, 8].into_iter().all(has).then_some("assistant"));
        let tool = json!([{"type": "function", "function": {
            "name": "probe", "description": "describes-this",
            "parameters": {"type": "object", "properties": {
                "argument": {"type": "string", "enum": ["enumerated-here"], "x-other": "unknown"}}},
        }}]);
        let calls = json!([{"id": "call00000", "type": "function", "function": {
            "name": "probe", "arguments": {"argument": "given-here", "other": ["listed-here"]}}}]);
        let call = Message {
            content: Some(Value::from("")),
            tool_calls: Some(calls),
            ..Message::new("assistant", "")
        };
        let result = Message {
            tool_call_id: Some(Value::from("call00000")),
            ..Message::new("tool", text(1))
        };
        let question = || Message::new("user", "question");
        let answer = Message::new("assistant", "answer");
        let turns = [question(), call, result, answer, question()];
        if let Some(whole) = render(&turns, Some(&tool)) {
            let has = |words: &[&str]| words.iter().all(|word| whole.contains(word));
            written.roles.extend(whole.contains(&text(1)).then_some("tool"));
            written.tools = has(&["describes-this", "enumerated-here", "x-other", "unknown"]);
            written.arguments = has(&["given-here", "listed-here"]);
        }
        written
    }

    /// A number of tokens below which the conversation cannot come; zero where it is short.
    /// `fewest` gives that number for a text, and `tested` are words that change what a template
    /// writes of a text.
    pub(super) fn fewest_tokens(
        &self,
        messages: &[Message],
        tools: &[Value],
        tested: &[String],
        fewest: impl Fn(&str) -> usize,
    ) -> usize {
        let mut sum = Sum { fewest, n_bytes: 0, n_tokens: 0 };
        for message in messages {
            if self.roles.iter().any(|role| *role == message.role) {
                for text in texts(message.content.as_ref()) {
                    let is_changed = tested.iter().any(|word| text.contains(word.as_str()));
                    sum.add(if is_changed { "" } else { text.trim_matches(is_space) });
                }
            }
            if self.arguments {
                sum.add_json(message.tool_calls.as_ref());
            }
        }
        if self.tools {
            tools.iter().for_each(|tool| sum.add_json(Some(tool)));
        }
        if sum.n_bytes < MIN_BYTES { 0 } else { sum.n_tokens }
    }
}

/// The texts of a message.
fn texts(content: Option<&Value>) -> Vec<&str> {
    match content {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect()
        }
        _ => Vec::new(),
    }
}

struct Sum<F> {
    fewest: F,
    n_bytes: usize,
    n_tokens: usize,
}

impl<F: Fn(&str) -> usize> Sum<F> {
    fn add(&mut self, text: &str) {
        self.n_bytes += text.len();
        // The first and the last may be parts of tokens of what is around it.
        self.n_tokens += (self.fewest)(text).saturating_sub(2);
    }

    /// Adds what is not escaped in the texts of a value.
    fn add_json(&mut self, value: Option<&Value>) {
        match value {
            Some(Value::String(text)) => {
                let is_escaped = |c: char| {
                    !matches!(c, ' '..='~') || matches!(c, '"' | '\\' | '<' | '>' | '&' | '\'')
                };
                for stretch in text.split(is_escaped).filter(|part| part.len() >= MIN_STRETCH) {
                    self.add(stretch.trim());
                }
            }
            Some(Value::Array(items)) => items.iter().for_each(|item| self.add_json(Some(item))),
            Some(Value::Object(fields)) => {
                fields.values().for_each(|field| self.add_json(Some(field)));
            }
            _ => {}
        }
    }
}
