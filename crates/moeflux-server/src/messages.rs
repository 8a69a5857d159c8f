//! A conversation as OpenAI's clients send it, to the messages that templates read.

use moeflux_text::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, ApiResult};
use crate::pictures::{PictureFields, Pictures};
use crate::request::{List, StringOr, object};

/// Messages of a conversation at most.
pub(crate) const MAX_MESSAGES: usize = 10_000;

/// Parts of a message, and calls of one, at most.
const MAX_PARTS: usize = 100_000;

/// What a message says: text, or parts of text.
pub(crate) type Content = StringOr<List<StringOr<Part>, MAX_PARTS>>;

/// A message.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ChatMessage {
    /// Who speaks.
    #[schemars(extend("enum" = ["system", "developer", "user", "assistant", "tool", "function"]))]
    pub(crate) role: String,
    /// Text, or parts. What is no text is left out, and a short text says so.
    pub(crate) content: Option<Content>,
    /// Name of the speaker or of the tool.
    pub(crate) name: Option<String>,
    /// What the assistant thought.
    pub(crate) reasoning_content: Option<Value>,
    /// Another name of `reasoning_content`.
    pub(crate) reasoning: Option<Value>,
    /// Another name of `reasoning_content`.
    pub(crate) thinking: Option<Value>,
    /// Calls that the assistant made.
    pub(crate) tool_calls: Option<List<ToolCall, MAX_PARTS>>,
    /// A call as clients wrote it before there were tools.
    pub(crate) function_call: Option<FunctionCall>,
    /// Which call this message answers.
    pub(crate) tool_call_id: Option<String>,
}

/// A part of a message.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Part {
    /// What it is; a part with a text may leave it out.
    pub(crate) r#type: Option<String>,
    /// Its text.
    pub(crate) text: Option<String>,
    /// Why the assistant did not answer.
    pub(crate) refusal: Option<String>,
    /// What the assistant thought.
    pub(crate) thinking: Option<Value>,
    /// An image: `data:image/png;base64,…`, as it is or as `url` of an object.
    pub(crate) image_url: Option<Value>,
    /// Another name of `image_url`.
    pub(crate) image: Option<Value>,
    /// An image as Anthropic's API has it.
    pub(crate) source: Option<Value>,
    /// How much of an image is looked at: `low`, `high` or `auto`.
    pub(crate) detail: Option<Value>,
}

/// A call of a tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ToolCall {
    /// What its result refers to.
    pub(crate) id: Option<String>,
    /// `function` or `custom`.
    pub(crate) r#type: Option<String>,
    /// What was called.
    pub(crate) function: Option<FunctionCall>,
    /// What was called with text.
    pub(crate) custom: Option<CustomCall>,
}

/// A function that was called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct FunctionCall {
    /// Its name.
    pub(crate) name: String,
    /// Arguments as JSON text; some clients send an object, or nothing for no arguments.
    pub(crate) arguments: Option<StringOr<Map<String, Value>>>,
}

/// A tool that was called with text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct CustomCall {
    /// Its name.
    pub(crate) name: String,
    /// What it was given.
    pub(crate) input: String,
}

object!(ChatMessage, Part, ToolCall, FunctionCall, CustomCall);

/// The messages of a request as templates read them.
pub(crate) fn read(messages: Vec<ChatMessage>, pictures: &mut Pictures) -> ApiResult<Vec<Message>> {
    let n = messages.len();
    if n == 0 {
        return Err(ApiError::field("messages", "it is empty: there must be a message"));
    }
    let mut read = Vec::with_capacity(n);
    // Results without a call's identifier answer the call before them.
    let mut last_call = None;
    for (i, message) in messages.into_iter().enumerate() {
        let at = format!("messages[{i}]");
        read.push(message.read(&at, i + 1 == n, &mut last_call, pictures)?);
    }
    Ok(read)
}

impl ChatMessage {
    fn read(
        self,
        at: &str,
        is_last: bool,
        last_call: &mut Option<String>,
        pictures: &mut Pictures,
    ) -> ApiResult<Message> {
        // Templates know the system's voice by one name.
        let role = match self.role.as_str() {
            "developer" => "system",
            "function" => "tool",
            role @ ("system" | "user" | "assistant" | "tool") => role,
            _ => {
                let problem = "choose system, developer, user, assistant, tool or function";
                return Err(ApiError::field(format!("{at}.role"), problem));
            }
        };
        let is_question = is_last && role == "user";
        let content_at = format!("{at}.content");
        let mut said = Said::default();
        match self.content {
            Some(content) => said.add(content, &content_at, pictures)?,
            None if is_question => return Err(ApiError::field(content_at, "it is missing")),
            None => {}
        }
        if is_question && let Some(part) = said.only_left_out() {
            let at = format!("{content_at}[{part}].type");
            return Err(ApiError::field(at, "this model reads text only"));
        }
        let thought_part = std::mem::take(&mut said.thought);
        let is_given = said.is_given;
        let mut message = Message::new(role, "");
        message.content = Some(said.into_content());
        message.name = self.name.map(Value::from);
        if role == "assistant" {
            let thoughts = [self.reasoning_content, self.reasoning, self.thinking];
            let thought = thoughts.into_iter().flatten().find(Value::is_string);
            let part = (!thought_part.is_empty()).then(|| Value::from(thought_part));
            message.reasoning_content = thought.or(part);
            let calls = calls(self.tool_calls, self.function_call, at)?;
            if let Some(calls) = calls {
                // Some templates write calls only where the content is null.
                if message.content.as_ref().and_then(Value::as_str) == Some("") && !is_given {
                    message.content = Some(Value::Null);
                }
                *last_call = calls.last().and_then(|call| call["id"].as_str()).map(str::to_owned);
                message.tool_calls = Some(Value::from(calls));
                message.parse_arguments();
            }
        }
        if role == "tool" {
            let id = self.tool_call_id.or_else(|| last_call.clone());
            message.tool_call_id = id.map(Value::from);
        }
        Ok(message)
    }
}

/// What the parts of a message say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) thought: String,
    /// Whether there is a content, if an empty one.
    is_given: bool,
    has_text: bool,
    /// The first part that was left out.
    left_out: Option<usize>,
    /// Whether the text ends with a note, so that more text begins on a new line.
    ends_with_note: bool,
    /// Pictures and the texts before them.
    parts: Vec<Value>,
}

impl Said {
    /// Adds the content that stands at a path.
    pub(crate) fn add(
        &mut self,
        content: Content,
        at: &str,
        pictures: &mut Pictures,
    ) -> ApiResult<()> {
        self.is_given = true;
        let parts = match content {
            StringOr::String(text) => {
                self.add_text(&text);
                return Ok(());
            }
            StringOr::Other(List(parts)) => parts,
        };
        for (i, part) in parts.into_iter().enumerate() {
            match part {
                StringOr::String(text) => self.add_text(&text),
                StringOr::Other(part) => self.add_part(part, i, at, pictures)?,
            }
        }
        Ok(())
    }

    /// The first part that is no text, where all are.
    pub(crate) fn only_left_out(&self) -> Option<usize> {
        self.left_out.filter(|_| !self.has_text && self.parts.is_empty())
    }

    /// Adds a picture behind what was said.
    pub(crate) fn add_picture(&mut self) {
        self.end_text();
        self.parts.push(json!({"type": "image"}));
    }

    /// What is said as templates read it: a text, or parts where there are pictures.
    pub(crate) fn into_content(mut self) -> Value {
        if self.parts.is_empty() {
            return Value::from(self.text);
        }
        self.end_text();
        Value::from(self.parts)
    }

    fn end_text(&mut self) {
        self.ends_with_note = false;
        let text = std::mem::take(&mut self.text);
        if !text.is_empty() {
            self.parts.push(json!({"type": "text", "text": text}));
        }
    }

    pub(crate) fn add_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.ends_with_note) && !text.starts_with(char::is_whitespace) {
            self.text.push('\n');
        }
        self.has_text = true;
        self.text.push_str(text);
    }

    fn add_part(
        &mut self,
        part: Part,
        i: usize,
        at: &str,
        pictures: &mut Pictures,
    ) -> ApiResult<()> {
        let missing = |field: &str| ApiError::field(format!("{at}[{i}].{field}"), "it is missing");
        let Part { r#type: kind, text, refusal, thinking, image_url, image, source, detail } = part;
        let fields = PictureFields { image_url, image, source, detail, ..PictureFields::default() };
        if fields.is_picture(kind.as_deref()) && pictures.add(fields, &format!("{at}[{i}]"))? {
            self.add_picture();
            return Ok(());
        }
        match kind.as_deref() {
            Some("text" | "input_text" | "output_text") => {
                self.add_text(&text.ok_or_else(|| missing("text"))?);
            }
            Some("refusal") => self.add_text(&refusal.ok_or_else(|| missing("refusal"))?),
            Some("thinking" | "reasoning") => {
                let thinking = thinking.and_then(|value| value.as_str().map(str::to_owned));
                self.thought.push_str(&thinking.or(text).unwrap_or_default());
            }
            Some(kind) => match text {
                Some(text) => self.add_text(&text),
                None => self.leave_out(kind, i),
            },
            None => self.add_text(&text.ok_or_else(|| missing("type"))?),
        }
        Ok(())
    }

    pub(crate) fn leave_out(&mut self, kind: &str, i: usize) {
        self.left_out = self.left_out.or(Some(i));
        if !self.text.is_empty() && !self.text.ends_with(char::is_whitespace) {
            self.text.push('\n');
        }
        self.text.push_str(&left_out(kind));
        self.ends_with_note = true;
    }
}

/// A text in place of what the model cannot read.
pub(crate) fn left_out(kind: &str) -> String {
    let name = match kind {
        "image" | "image_url" | "input_image" | "image_file" => "image",
        "audio" | "input_audio" | "audio_url" => "audio",
        "video" | "video_url" | "input_video" => "video",
        "file" | "input_file" | "document" => "file",
        other => {
            let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == '-';
            let plain: String = other.chars().filter(is_plain).take(40).collect();
            return format!("[{} left out: this model reads text only]", plain.replace('_', " "));
        }
    };
    format!("[{name} left out: this model reads text only]")
}

/// The text of parts that must be text.
pub(crate) fn text(content: Content, at: &str) -> ApiResult<String> {
    let mut said = Said::default();
    said.add(content, at, &mut Pictures::default())?;
    match said.only_left_out() {
        Some(part) => {
            Err(ApiError::field(format!("{at}[{part}].type"), "this model reads text only"))
        }
        None => Ok(said.text),
    }
}

/// Calls that the model made, as templates read them.
fn calls(
    calls: Option<List<ToolCall, MAX_PARTS>>,
    old: Option<FunctionCall>,
    at: &str,
) -> ApiResult<Option<Vec<Value>>> {
    let old = old.map(|function| ToolCall {
        id: None,
        r#type: None,
        function: Some(function),
        custom: None,
    });
    let calls = match (calls, old) {
        (None, None) => return Ok(None),
        (Some(List(calls)), None) => calls,
        (calls, old) => calls.unwrap_or_default().0.into_iter().chain(old).collect(),
    };
    let mut all = Vec::with_capacity(calls.len());
    for (i, call) in calls.into_iter().enumerate() {
        let ToolCall { id, r#type: kind, function, custom } = call;
        let field = |name: &str| format!("{at}.tool_calls[{i}].{name}");
        let (name, arguments) = match (function, custom) {
            (Some(FunctionCall { name, arguments }), _) => (name, arguments),
            (None, Some(CustomCall { name, input })) => {
                let arguments = Map::from_iter([(String::from("input"), Value::from(input))]);
                (name, Some(StringOr::Other(arguments)))
            }
            (None, None) if kind.is_none_or(|kind| kind == "function") => {
                return Err(ApiError::field(field("function"), "it is missing"));
            }
            (None, None) => return Err(ApiError::field(field("type"), "choose function")),
        };
        let arguments = match arguments {
            None => String::from("{}"),
            Some(StringOr::String(text)) => text,
            Some(StringOr::Other(object)) => Value::Object(object).to_string(),
        };
        // Some clients leave identifiers out.
        let id = id.unwrap_or_else(|| format!("call_{at}_{i}").replace(['[', ']', '.'], ""));
        all.push(json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
    }
    Ok(Some(all))
}
