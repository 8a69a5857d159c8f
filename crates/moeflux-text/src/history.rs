//! The shape of a conversation that a template can render.
//!
//! Templates disagree on small things: whether the arguments of a call are an object or text,
//! what the thoughts of an assistant are called, where a system message may stand. A few short
//! conversations are rendered when a template is loaded; what it accepts decides how each later
//! conversation is handed to it.

use serde_json::{Map, Value, json};

use super::message::Message;

/// Names under which templates read what an assistant thought.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Text that stands in the arguments of the calls that are tried.
const PROBE: &str = "Probe17";

/// What a template accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HistoryShape {
    /// Arguments are joined as text, not iterated as an object.
    text_arguments: bool,
    /// Calls are only written where there is no text.
    needs_null_content: bool,
    /// Calls need a text, if an empty one.
    needs_text_content: bool,
    /// What identifiers of calls look like.
    ids: CallIds,
    /// Thoughts and text of a message with calls exclude each other.
    joins_thoughts: bool,
    /// No system message is accepted.
    no_system: bool,
    /// One system message is accepted, at the beginning.
    one_system: bool,
    /// Users and assistants must take turns.
    alternates: bool,
    /// A conversation without a question of the user is refused.
    needs_user: bool,
}

/// Identifiers of calls that a template takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CallIds {
    /// Any.
    #[default]
    AsGiven,
    /// `functions.NAME:N`, N counting all calls of the conversation: the name is in the prompt.
    Named,
    /// Nine letters and digits.
    Nine,
}

impl HistoryShape {
    /// Tries conversations: `render` gives what the template makes of messages, `None` where it
    /// refuses them.
    pub(super) fn find(render: impl Fn(&[Message]) -> Option<String>) -> HistoryShape {
        let mut shape = HistoryShape::default();
        // A message that is left out is not accepted, but for a first system message: templates
        // that do something else with it are left to do so.
        let accepts = |messages: &[Message]| {
            let Some(text) = render(messages) else { return false };
            let text = text.to_lowercase();
            let mut said = messages.iter().filter_map(|message| message.content.as_ref()?.as_str());
            said.all(|said| text.contains(&said.to_lowercase()))
        };
        let [system, user, answer, late_system] = [
            Message::new("system", "Rule61"),
            Message::new("user", "Question93"),
            Message::new("assistant", "Answer47"),
            Message::new("system", "Rule62"),
        ];
        if !accepts(std::slice::from_ref(&user)) {
            return shape;
        }
        let begins = [system.clone(), user.clone()];
        shape.no_system = render(&begins).is_none();
        let late = [&begins[..], &[answer.clone(), late_system.clone(), user.clone()]].concat();
        let twice = [&[late_system][..], &begins].concat();
        shape.one_system = !(shape.no_system || accepts(&late) && accepts(&twice));
        shape.needs_user = shape.no_system || !accepts(&[system]);
        shape.alternates = !accepts(&[user.clone(), user.clone()])
            && accepts(&[user.clone(), answer, user.clone()]);
        shape.find_calls(&user, render);
        shape
    }

    fn find_calls(&mut self, user: &Message, render: impl Fn(&[Message]) -> Option<String>) {
        let object = json!({"text": PROBE});
        let text = Value::from(object.to_string());
        let empty = Value::from("");
        let named = "functions.probe:0";
        let shows = |id: &str, arguments: &Value, content: &Value| {
            let turn = turn_with_call(user, id, arguments, content);
            // Some templates print content that is null as Python prints it.
            render(&turn).filter(|text| text.contains(PROBE) && !text.contains("None"))
        };
        let ways = [named, "probe0001"].into_iter().flat_map(|id| {
            [&object, &text].into_iter().flat_map(move |arguments| {
                [Value::Null, Value::from("")].map(|content| (id, arguments, content))
            })
        });
        let works = ways.into_iter().find_map(|(id, arguments, content)| {
            shows(id, arguments, &content).map(|_| (id, arguments, content))
        });
        let Some((id, arguments, content)) = works else { return };
        self.text_arguments = arguments.is_string();
        self.needs_text_content = content.is_string();
        self.needs_null_content = content.is_null() && shows(id, arguments, &empty).is_none();
        // Some templates write the identifier where the name of the tool belongs.
        let names_tool = |text: String| text.contains("probe");
        self.ids = match id {
            _ if id != named => CallIds::Nine,
            _ if shows("call_1", arguments, &content).is_some_and(names_tool) => CallIds::AsGiven,
            _ => CallIds::Named,
        };
        let mut thinks = turn_with_call(user, id, arguments, &Value::from("Text"));
        let plain = render(&thinks).is_some();
        for name in THOUGHTS {
            set(&mut thinks[1], name, Value::from("Thought"));
        }
        self.joins_thoughts = plain && render(&thinks).is_none();
    }

    /// A conversation as the template can render it.
    pub(super) fn apply(&self, messages: &[Message]) -> Vec<Message> {
        let mut messages = self.place_systems(messages);
        let mut ids = Map::new();
        let mut n_calls = 0;
        for message in &mut messages {
            name_thoughts(message);
            self.shape_calls(message);
            if self.ids != CallIds::AsGiven {
                number_calls(message, self.ids, &mut ids, &mut n_calls);
            }
        }
        if self.needs_null_content {
            messages = messages.into_iter().flat_map(text_before_calls).collect();
        }
        messages
    }

    fn shape_calls(&self, message: &mut Message) {
        let Some(calls) = message.tool_calls.as_mut().and_then(Value::as_array_mut) else { return };
        if calls.is_empty() {
            return;
        }
        for call in calls {
            let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
                continue;
            };
            let given = function.remove("arguments").unwrap_or_default();
            function.insert(String::from("arguments"), self.arguments(given));
        }
        let text = message.content.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_empty = message
            .content
            .as_ref()
            .is_none_or(|content| content.is_null() || content.as_str() == Some(""));
        if is_empty && self.needs_null_content {
            message.content = Some(Value::Null);
        } else if is_empty && self.needs_text_content {
            message.content = Some(Value::from(""));
        }
        let thought = message.reasoning_content.as_ref().and_then(Value::as_str);
        if let Some(thought) = thought.filter(|thought| !thought.is_empty() && !text.is_empty())
            && self.joins_thoughts
        {
            let joined = Value::from(format!("{thought}\n\n{text}"));
            message.content = Some(Value::from(""));
            for name in THOUGHTS {
                set(message, name, joined.clone());
            }
        }
    }

    /// Arguments as an object or as text. None are an empty object.
    fn arguments(&self, given: Value) -> Value {
        let parsed = match &given {
            Value::String(text) if text.trim().is_empty() => Some(Value::Null),
            Value::String(text) => serde_json::from_str(text).ok(),
            other => Some(other.clone()),
        };
        match parsed {
            Some(Value::Null) if self.text_arguments => Value::from("{}"),
            Some(Value::Null) => json!({}),
            Some(Value::Object(_)) if self.text_arguments && given.is_string() => given,
            Some(object @ Value::Object(_)) if self.text_arguments => {
                Value::from(object.to_string())
            }
            Some(object @ Value::Object(_)) => object,
            _ => given,
        }
    }

    /// Puts system messages where the template takes them. A late one becomes a part of the
    /// question that follows it, so that what stands before it stays as it was.
    fn place_systems(&self, messages: &[Message]) -> Vec<Message> {
        if !(self.no_system || self.one_system || self.alternates || self.needs_user) {
            return messages.to_vec();
        }
        let mut placed: Vec<Message> = Vec::with_capacity(messages.len());
        let mut waiting: Option<Message> = None;
        for message in messages {
            let is_system = matches!(message.role.as_str(), "system" | "developer");
            let leads = placed.iter().all(|message| message.role == "system");
            match waiting.take() {
                Some(before) if is_system => waiting = Some(join(before, message)),
                Some(before) if message.role == "user" => {
                    self.push(&mut placed, join(before, message))
                }
                Some(before) => {
                    self.push(&mut placed, before);
                    self.push(&mut placed, message.clone());
                }
                None if is_system && (self.no_system || (self.one_system && !leads)) => {
                    waiting = Some(Message { role: String::from("user"), ..message.clone() });
                }
                None if is_system && self.one_system && !placed.is_empty() => {
                    if let Some(first) = placed.pop() {
                        placed.push(join(first, message));
                    }
                }
                None => self.push(&mut placed, message.clone()),
            }
        }
        if let Some(last) = waiting {
            self.push(&mut placed, last);
        }
        if self.needs_user
            && placed.iter().all(|message| message.role == "system")
            && let Some(last) = placed.last_mut()
        {
            last.role = String::from("user");
        }
        placed
    }

    fn push(&self, placed: &mut Vec<Message>, message: Message) {
        let repeats =
            placed.last().is_some_and(|last| last.role == "user" && message.role == "user");
        match placed.pop_if(|_| repeats && self.alternates) {
            Some(before) => placed.push(join(before, &message)),
            None => placed.push(message),
        }
    }
}

/// A message and the one after it, as one of the first one's role.
fn join(first: Message, second: &Message) -> Message {
    let content = match (first.content.clone(), second.content.clone()) {
        (Some(Value::String(a)), Some(Value::String(b))) => Value::from(format!("{a}\n\n{b}")),
        (a, b) => {
            let parts = |content: Option<Value>| match content {
                Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
                Some(Value::Array(parts)) => parts,
                _ => Vec::new(),
            };
            Value::from([parts(a), parts(b)].concat())
        }
    };
    Message { content: Some(content), ..first }
}

fn thought_of(message: &Message) -> Option<Value> {
    let names = [message.reasoning_content.as_ref()];
    let others = THOUGHTS[1..].iter().map(|name| message.extra.get(*name));
    names.into_iter().chain(others).flatten().find(|name| name.is_string()).cloned()
}

/// Gives what an assistant thought under every name that templates read.
fn name_thoughts(message: &mut Message) {
    if message.role != "assistant" {
        return;
    }
    let Some(thought) = thought_of(message) else { return };
    for name in THOUGHTS {
        set(message, name, thought.clone());
    }
}

fn set(message: &mut Message, name: &str, value: Value) {
    if name == THOUGHTS[0] {
        message.reasoning_content = Some(value);
    } else {
        message.extra.insert(name.to_owned(), value);
    }
}

/// Gives calls identifiers that the template takes, and results those of their calls.
fn number_calls(
    message: &mut Message,
    kind: CallIds,
    ids: &mut Map<String, Value>,
    n_calls: &mut usize,
) {
    for call in message.tool_calls.as_mut().and_then(Value::as_array_mut).into_iter().flatten() {
        let name = call["function"]["name"].as_str().unwrap_or_default();
        let id = Value::from(match kind {
            CallIds::Nine => format!("call{n_calls:05}"),
            _ => format!("functions.{name}:{n_calls}"),
        });
        *n_calls += 1;
        if let Some(given) = call["id"].as_str() {
            ids.insert(given.to_owned(), id.clone());
        }
        if let Some(fields) = call.as_object_mut() {
            fields.insert(String::from("id"), id);
        }
    }
    let given = message.tool_call_id.as_ref().and_then(Value::as_str);
    if let Some(id) = given.and_then(|given| ids.get(given)) {
        message.tool_call_id = Some(id.clone());
    }
}

/// What is said before calls, as a message of its own.
fn text_before_calls(message: Message) -> Vec<Message> {
    let has_calls = message
        .tool_calls
        .as_ref()
        .and_then(Value::as_array)
        .is_some_and(|calls| !calls.is_empty());
    let has_text = message.content.as_ref().is_some_and(|content| !content.is_null());
    if !(has_calls && has_text) {
        return vec![message];
    }
    let text = Message { tool_calls: None, ..message.clone() };
    vec![text, Message { content: Some(Value::Null), ..message }]
}

/// A question, an answer that calls a tool, and the result.
pub(super) fn turn_with_call(
    user: &Message,
    id: &str,
    arguments: &Value,
    content: &Value,
) -> [Message; 3] {
    let call = json!([{"id": id, "type": "function",
        "function": {"name": "probe", "arguments": arguments}}]);
    let answer = Message {
        content: Some(content.clone()),
        tool_calls: Some(call),
        ..Message::new("assistant", "")
    };
    let result = Message { tool_call_id: Some(Value::from(id)), ..Message::new("tool", "1") };
    [user.clone(), answer, result]
}
