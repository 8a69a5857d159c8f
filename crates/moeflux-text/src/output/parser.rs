//! The state of taking a model's text apart.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::arguments::{JsonSpan, TaggedWriter, ToolSchema};
use super::bare::BareSpan;
use super::scan::{Found, Pending, strip_loose};
use super::syntax::{Calls, JsonCalls, TaggedCalls};
use super::{OutputFormat, Thinking};

/// A part of what the model wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// It thinks.
    Reasoning(String),
    /// It says.
    Content(String),
    /// It begins to call a tool; calls count from zero.
    Call {
        /// The tool.
        name: String,
    },
    /// More of the last call's arguments, as JSON text.
    Arguments(String),
}

/// Takes text apart as it comes.
#[derive(Clone, Debug)]
pub struct OutputParser {
    thinking: Thinking,
    calls: Option<Arc<Calls>>,
    /// The schemas of the tools' arguments.
    schemas: HashMap<String, Arc<ToolSchema>>,
    pending: Pending,
    state: State,
    deltas: Vec<Delta>,
    /// White space that is only said if something follows it.
    space: String,
    /// Whether white space that comes next is markup's.
    trims: bool,
    /// Where in the lines of a value the text is.
    line: Line,
    /// Whether the wrapper around calls is open.
    in_section: bool,
    /// Whether there was text that is no thought.
    has_said: bool,
}

/// Where in the lines of a value the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// At a line end that belongs to the markup, if there is one.
    Begins,
    Inside,
}

#[derive(Clone, Debug)]
enum State {
    Content,
    Reasoning,
    /// Between the messages of channels, or inside a header.
    Header,
    /// Behind what opens a call.
    Name,
    JsonArguments(JsonSpan),
    /// Arguments in JSON's structure with other quotes.
    BareArguments(BareSpan),
    /// Between tagged arguments.
    Tags(TaggedWriter),
    Key(TaggedWriter),
    Value(TaggedWriter),
    /// Behind the arguments.
    Close,
}

impl OutputParser {
    /// A parser for one answer. `tools` are the tools of the prompt, in the form of the request;
    /// without any, calls are text.
    pub fn new(format: &OutputFormat, tools: Option<&Value>, is_thinking: bool) -> OutputParser {
        let tools = tools.and_then(Value::as_array).filter(|list| !list.is_empty());
        let functions = tools.into_iter().flatten().map(|tool| &tool["function"]);
        let schema = |function: &Value| {
            let schema = ToolSchema::new(function["parameters"].clone());
            Some((function["name"].as_str()?.to_owned(), Arc::new(schema)))
        };
        let calls = format.calls().filter(|_| tools.is_some()).cloned();
        // Calls of this format are messages of channels, whatever is known of thoughts.
        let thinking = match calls.as_deref() {
            Some(Calls::Channels) => Thinking::Channels,
            _ => format.thinking,
        };
        let state = match thinking {
            Thinking::Channels => State::Header,
            thinking if is_thinking && thinking.tags().is_some() => State::Reasoning,
            _ => State::Content,
        };
        OutputParser {
            thinking,
            calls,
            schemas: functions.filter_map(schema).collect(),
            pending: Pending::default(),
            state,
            deltas: Vec::new(),
            space: String::new(),
            trims: is_thinking,
            line: Line::Inside,
            in_section: false,
            has_said: false,
        }
    }

    /// For an answer that has begun with text in the prompt.
    #[must_use]
    pub fn continuing(self) -> OutputParser {
        OutputParser { state: State::Content, trims: false, ..self }
    }

    /// Takes text and gives what has become certain.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.pending.push(text);
        while self.advance() {}
        std::mem::take(&mut self.deltas)
    }

    /// Ends the text.
    pub fn finish(&mut self) -> Vec<Delta> {
        let rest = self.pending.take();
        match &mut self.state {
            State::Content => {
                self.say(&rest);
                let space = std::mem::take(&mut self.space);
                if !space.is_empty() {
                    self.deltas.push(Delta::Content(space));
                }
            }
            State::Reasoning => self.think(&rest),
            State::JsonArguments(_) => self.arguments(rest),
            State::Value(writer) => {
                let text = writer.value(&rest);
                self.arguments(text);
            }
            _ => {}
        }
        std::mem::take(&mut self.deltas)
    }

    /// Does one step; whether there may be another.
    fn advance(&mut self) -> bool {
        let calls = self.calls.clone();
        match (self.state.clone(), calls.as_deref()) {
            (State::Content, _) => self.content(),
            (State::Reasoning, _) => self.reasoning(),
            (State::Header, _) => self.header(),
            (State::Name, Some(Calls::Json(calls))) => self.json_name(calls),
            (State::Name, Some(Calls::Tagged(calls))) => self.tagged_name(calls),
            (State::JsonArguments(span), _) => self.json_arguments(span),
            (State::BareArguments(span), _) => self.bare_arguments(span),
            (State::Tags(writer), Some(Calls::Tagged(calls))) => self.tags(writer, calls),
            (State::Key(writer), Some(Calls::Tagged(calls))) => self.key(writer, calls),
            (State::Value(writer), Some(Calls::Tagged(calls))) => self.value(writer, calls),
            (State::Close, Some(calls)) => self.close(calls),
            _ => unreachable!("calls begin only where their syntax is known"),
        }
    }

    fn content(&mut self) -> bool {
        let calls = self.calls.clone();
        let harmony = self.thinking == Thinking::Channels;
        let mut markers = match (calls.as_deref(), harmony) {
            (_, true) => vec!["<|end|>", "<|start|>", "<|channel|>"],
            (Some(calls), _) => {
                let section = calls.section();
                // What begins calls in a section may be plain text, which outside of it is text.
                let is_token = calls.open().starts_with('<') && calls.open().ends_with('>');
                let is_open = self.in_section || section.is_none() || is_token;
                let open = Some(calls.open()).filter(|_| is_open);
                let edge = section.map(|[open, close]| if self.in_section { close } else { open });
                edge.map(str::trim).into_iter().chain(open).collect()
            }
            (None, _) => Vec::new(),
        };
        let n_call_markers = markers.len();
        markers.extend(self.thinking.tags().into_iter().flatten());
        let Found { before, marker } = self.pending.until(&markers);
        if !self.in_section {
            self.say(&before);
        }
        let Some(i) = marker else { return false };
        self.state = match markers[i] {
            _ if harmony => State::Header,
            marker if i > n_call_markers => {
                // The end of thoughts that never began; later ones are text.
                if self.has_said {
                    self.say(marker);
                    return true;
                }
                self.trims = true;
                State::Content
            }
            _ if i == n_call_markers => {
                self.trims = true;
                State::Reasoning
            }
            marker if self.opens_call(marker) => State::Name,
            _ => {
                self.in_section = !self.in_section;
                State::Content
            }
        };
        self.space.clear();
        true
    }

    fn opens_call(&self, marker: &str) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.open() == marker)
    }

    fn reasoning(&mut self) -> bool {
        let markers = match self.thinking.tags() {
            None => vec!["<|end|>", "<|start|>", "<|channel|>"],
            Some([_, close]) => vec![close],
        };
        let Found { before, marker } = self.pending.until(&markers);
        self.think(&before);
        if marker.is_none() {
            return false;
        }
        self.space.clear();
        self.trims = true;
        self.state = match self.thinking {
            Thinking::Channels => State::Header,
            _ => State::Content,
        };
        true
    }

    /// A channel's name and recipient, up to `<|message|>`.
    fn header(&mut self) -> bool {
        let Found { before, marker } = self.pending.until(&["<|message|>"]);
        self.space.push_str(&before);
        if marker.is_none() {
            return false;
        }
        let header = std::mem::take(&mut self.space);
        let recipient = header.split_once("to=functions.").map(|(_, rest)| rest);
        let name = recipient.and_then(|rest| rest.split([' ', '<']).next()).map(str::to_owned);
        self.state = match name {
            Some(name) if self.calls.is_some() => {
                self.deltas.push(Delta::Call { name });
                State::JsonArguments(JsonSpan::default())
            }
            _ if header.contains("final") || header.trim().is_empty() => State::Content,
            // Commentary is no part of the answer either.
            _ => State::Reasoning,
        };
        true
    }

    fn json_name(&mut self, calls: &JsonCalls) -> bool {
        let Found { before, marker } = self.pending.until_loose(&calls.name_ends);
        self.space.push_str(&before);
        if marker.is_none() {
            return false;
        }
        let text = std::mem::take(&mut self.space);
        let text = strip_loose(&text, &calls.before_name);
        // Kimi numbers its calls.
        let name = if calls.after_name.starts_with(":#") {
            text.rsplit_once(':').map_or(text, |(name, _)| name)
        } else {
            text
        };
        self.deltas.push(Delta::Call { name: name.trim().to_owned() });
        self.state = match &calls.quote {
            Some(quote) => State::BareArguments(BareSpan::new(quote)),
            None => State::JsonArguments(JsonSpan::default()),
        };
        true
    }

    fn bare_arguments(&mut self, mut span: BareSpan) -> bool {
        let (text, is_done) = span.take(&mut self.pending);
        self.arguments(text);
        self.state = if is_done { State::Close } else { State::BareArguments(span) };
        is_done
    }

    fn json_arguments(&mut self, mut span: JsonSpan) -> bool {
        let (text, is_done) = span.take(&mut self.pending);
        self.arguments(text);
        let is_channels = self.thinking == Thinking::Channels;
        self.state = if !is_done {
            State::JsonArguments(span)
        } else if is_channels {
            State::Header
        } else {
            State::Close
        };
        is_done
    }

    fn tagged_name(&mut self, calls: &TaggedCalls) -> bool {
        // A name is a word: the first character of what follows it ends it.
        let ends = calls.after_name.chars().next().map(String::from).unwrap_or_default();
        let mut markers = vec![calls.key.trim(), calls.end_marker()];
        markers.extend(Some(&*ends).filter(|ends| !ends.is_empty()));
        let Found { before, marker } = self.pending.until(&markers);
        self.space.push_str(&before);
        let Some(i) = marker else { return false };
        let text = std::mem::take(&mut self.space);
        let text = strip_loose(&text, &calls.before_name);
        if text.trim().is_empty() && i == 2 {
            // White space before the name.
            return true;
        }
        let name = text.trim().to_owned();
        let schema = self.schemas.get(&name).cloned().unwrap_or_default();
        self.deltas.push(Delta::Call { name });
        self.tag(i, TaggedWriter::new(schema));
        true
    }

    fn tags(&mut self, writer: TaggedWriter, calls: &TaggedCalls) -> bool {
        let Found { marker, .. } = self.pending.until(&[calls.key.trim(), calls.end_marker()]);
        let Some(i) = marker else { return false };
        self.tag(i, writer);
        true
    }

    /// Goes on after what begins an argument (0), ends a call (1), or ends a name.
    fn tag(&mut self, i: usize, writer: TaggedWriter) {
        self.state = match i {
            0 => State::Key(writer),
            1 => {
                self.arguments(writer.end().to_owned());
                State::Content
            }
            _ => State::Tags(writer),
        };
    }

    fn key(&mut self, mut writer: TaggedWriter, calls: &TaggedCalls) -> bool {
        // Versions differ in line ends between the tags; the last tag ends the key.
        let last_tag = |text: &str| {
            let text = text.trim_end();
            let at = text.rfind('<').filter(|at| *at > 0 && text.ends_with('>')).unwrap_or(0);
            text[at..].to_owned()
        };
        let ends: Vec<String> = [&calls.value]
            .into_iter()
            .chain(&calls.json_value)
            .map(|text| last_tag(text))
            .collect();
        let markers: Vec<&str> = ends.iter().map(String::as_str).collect();
        let Found { before, marker } = self.pending.until(&markers);
        self.space.push_str(&before);
        let Some(i) = marker else { return false };
        let key = std::mem::take(&mut self.space);
        let first_tag = calls.value.trim_end().strip_suffix(&*ends[0]).unwrap_or_default().trim();
        let key = key.trim();
        let key = key.strip_suffix(first_tag).unwrap_or(key).trim();
        let text = writer.key(key, calls.json_value.as_ref().map(|_| i == 0));
        self.arguments(text);
        self.line = if calls.value.ends_with('\n') { Line::Begins } else { Line::Inside };
        self.state = State::Value(writer);
        true
    }

    fn value(&mut self, mut writer: TaggedWriter, calls: &TaggedCalls) -> bool {
        // Not all models end the line, too.
        let markers = [calls.value_end.trim_end(), calls.value_end.trim()];
        if self.line == Line::Begins {
            let Some(c) = self.pending.first_char() else { return false };
            if c == '\n' {
                self.pending.next_char();
            }
            self.line = Line::Inside;
            return true;
        }
        let Found { before, marker } = self.pending.until(&markers);
        let mut text = writer.value(&before);
        if marker.is_some() {
            text += &writer.end_value();
        }
        self.arguments(text);
        self.state = match marker {
            Some(_) => State::Tags(writer),
            None => State::Value(writer),
        };
        marker.is_some()
    }

    fn close(&mut self, calls: &Calls) -> bool {
        let close = calls.close().trim();
        let found = close.is_empty() || self.pending.until(&[close]).marker.is_some();
        if found {
            self.state = State::Content;
        }
        found
    }

    fn arguments(&mut self, text: String) {
        if !text.is_empty() {
            self.deltas.push(Delta::Arguments(text));
        }
    }

    /// White space before and behind markup is markup's, not content.
    fn say(&mut self, text: &str) {
        let text = if self.trims { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.trims = false;
        let has_markup = self.calls.is_some() || self.thinking != Thinking::Never;
        let body = if has_markup { text.trim_end() } else { text };
        let tail = &text[body.len()..];
        if body.is_empty() {
            self.space.push_str(tail);
            return;
        }
        self.has_said = true;
        let said = std::mem::take(&mut self.space) + body;
        self.space = tail.to_owned();
        self.deltas.push(Delta::Content(said));
    }

    fn think(&mut self, text: &str) {
        let text = if self.trims { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.trims = false;
        let body = text.trim_end();
        let tail = &text[body.len()..];
        if body.is_empty() {
            self.space.push_str(tail);
            return;
        }
        let thought = std::mem::take(&mut self.space) + body;
        self.space = tail.to_owned();
        self.deltas.push(Delta::Reasoning(thought));
    }
}
