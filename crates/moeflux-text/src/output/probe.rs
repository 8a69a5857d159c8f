//! Conversations that show how a model's template writes calls and thoughts.

use serde_json::{Map, Value, json};

use super::read::{self, NAMES, arguments};
use super::table::{KnownCalls, ToolSyntax};
use super::thinking::{THINK, Thinking};
use crate::chat::ChatTemplate;
use crate::message::Message;
use crate::render_request::RenderRequest;

/// A result of a call, where an answer with calls has ended.
const RESULT: &str = "Result58";
/// What the user asks.
const QUESTION: &str = "Question93";
/// What the assistant thinks.
const THOUGHT: &str = "Thought26";
/// What the assistant says.
const SAID: &str = "Said41";

/// Reads the syntax of calls out of conversations with calls.
///
/// # Errors
/// The reason why the template does not show one.
pub(super) fn calls(template: &ChatTemplate) -> Result<KnownCalls, &'static str> {
    let tools = tools();
    let mut described = None;
    let mut is_refused = true;
    for (content, is_text, ids) in shapes() {
        let messages = conversation(&content, is_text, &ids);
        // Some templates render one call for each answer.
        let single = [&messages[0..1], &[one_call(&messages[1])], &messages[2..3]].concat();
        let [both, single] =
            [&messages, &single].map(|messages| template.plain(messages, Some(&tools)));
        is_refused &= both.is_none() && single.is_none();
        let rendered = both.as_deref().or(single.as_deref());
        let Some(rendered) = rendered else { continue };
        let (prompt, turn) = rendered.split_once(QUESTION).unwrap_or((rendered, ""));
        let turn = turn.split(RESULT).next().unwrap_or(turn);
        if turn.contains("None") {
            // Content that is null was printed.
            continue;
        }
        if is_harmony(turn) {
            return Ok(KnownCalls::of(ToolSyntax::Harmony));
        }
        if turn.contains(&format!("<|tool_call>call:{}", NAMES[0])) {
            return Ok(KnownCalls::of(ToolSyntax::Gemma));
        }
        let opening = shared_opening(turn, &opening(template, &tools));
        if let Some(calls) = read::calls(turn, opening, [&ids[0], &ids[1]]) {
            return Ok(KnownCalls::read(calls));
        }
        let shows_calls = turn.contains(NAMES[0]);
        described = described.or(ToolSyntax::described(if shows_calls { turn } else { prompt }));
    }
    match described {
        Some(syntax) => Ok(KnownCalls::of(syntax)),
        None if is_refused => Err("the template refuses conversations with calls"),
        None => Err("the template shows no calls of tools"),
    }
}

/// An answer with thoughts, by all names that templates have for them.
fn thoughtful() -> Message {
    let mut thinks = Message::new("assistant", SAID);
    thinks.reasoning_content = Some(Value::from(THOUGHT));
    for name in ["reasoning", "thinking"] {
        thinks.extra.insert(name.to_owned(), Value::from(THOUGHT));
    }
    thinks
}

/// Characters of what ends thoughts, at most.
const MAX_CLOSING: usize = 64;

/// What the template writes between thoughts and what is said, where it shows that: behind thoughts of
/// the last turn, else where it opens an answer without thoughts.
pub(super) fn closing(template: &ChatTemplate, [begin, end]: [&str; 2]) -> Option<String> {
    let question = Message::new("user", QUESTION);
    let shown = || {
        let text = template.plain(&[question.clone(), thoughtful()], None)?;
        let (_, behind) = text.split_once(THOUGHT)?;
        Some(behind.split_once(SAID)?.0.to_owned())
    };
    let opened = || {
        let question = std::slice::from_ref(&question);
        let text = open(template, question, None, Value::Bool(false))?;
        let (_, turn) = text.rsplit_once(QUESTION)?;
        // Some only end thoughts that have not begun.
        let behind = turn.split_once(begin).map(|(_, behind)| behind);
        let behind = behind.or_else(|| turn.get(turn.find(end)?..))?;
        let inner = behind.trim_start_matches('\n');
        Some(if inner == behind { inner.to_owned() } else { format!("\n{inner}") })
    };
    let is_closing = |text: &String| text.contains(end) && text.len() <= MAX_CLOSING;
    shown().filter(is_closing).or_else(|| opened().filter(is_closing))
}

/// Finds out, from rendered conversations, how the template separates reasoning from content.
pub(super) fn thinking(template: &ChatTemplate) -> Thinking {
    let question = Message::new("user", QUESTION);
    let thinks = thoughtful();
    let follow_up = Message::new("user", "More");
    let shown = template.plain(&[question.clone(), thinks.clone()], None);
    if let Some((_, turn)) = shown.as_deref().and_then(|text| text.split_once(QUESTION)) {
        if is_harmony(turn) {
            return Thinking::Channels;
        }
        let before = turn.split(THOUGHT).next().unwrap_or_default();
        if turn.contains(THOUGHT) && before.trim_end().ends_with(THINK[0]) {
            return Thinking::Tags;
        }
    }
    // Some keep no thoughts: they take them out of what was said, or only open an answer with them.
    for thinking in Thinking::TAGGED {
        let [open, close] = thinking.tags().unwrap_or(THINK);
        let tagged = Message::new("assistant", format!("{open}{THOUGHT}{close}{SAID}"));
        let cut = template.plain(&[question.clone(), tagged, follow_up.clone()], None);
        if cut.is_some_and(|text| text.contains(SAID) && !text.contains(THOUGHT)) {
            return thinking;
        }
    }
    let opens = [Value::Null, Value::Bool(true), Value::Bool(false)].into_iter().any(|is_on| {
        let text = open(template, std::slice::from_ref(&question), None, is_on);
        text.is_some_and(|text| {
            let turn = text.rsplit_once(QUESTION).map_or(&*text, |(_, turn)| turn);
            THINK.iter().any(|tag| turn.contains(tag))
        })
    });
    if opens { Thinking::Tags } else { Thinking::Never }
}

/// A conversation to which no tools were offered, with thoughts and all, and how the template opens
/// its next answer. Empty where the template refuses it.
pub(super) fn without_tools(template: &ChatTemplate) -> String {
    let question = Message::new("user", QUESTION);
    let mut answer = Message::new("assistant", SAID);
    answer.reasoning_content = Some(Value::from(THOUGHT));
    let messages = [question.clone(), answer, question];
    open(template, &messages, None, Value::Null).unwrap_or_default()
}

fn is_harmony(turn: &str) -> bool {
    turn.contains("<|channel|>") && turn.contains("<|message|>")
}

/// How the template opens an answer, after the question.
fn opening(template: &ChatTemplate, tools: &Value) -> String {
    let question = Message::new("user", QUESTION);
    let text = open(template, &[question], Some(tools), Value::Null).unwrap_or_default();
    text.rsplit_once(QUESTION).map_or(String::new(), |(_, opening)| opening.to_owned())
}

fn open(
    template: &ChatTemplate,
    messages: &[Message],
    tools: Option<&Value>,
    is_thinking: Value,
) -> Option<String> {
    let mut extra = Map::new();
    if !is_thinking.is_null() {
        extra.insert(String::from("enable_thinking"), is_thinking.clone());
        extra.insert(String::from("thinking"), is_thinking);
    }
    let request = RenderRequest {
        messages,
        tools,
        add_generation_prompt: true,
        extra,
        ..RenderRequest::default()
    };
    template.render_as_given(&request)
}

/// What a turn and the opening of an answer begin with alike, up to the last whole mark.
fn shared_opening<'t>(turn: &'t str, opening: &str) -> &'t str {
    let same = turn.char_indices().zip(opening.chars()).take_while(|((_, x), y)| x == y);
    let shared = &turn[..same.last().map_or(0, |((at, c), _)| at + c.len_utf8())];
    let is_cut = |at: &usize| !shared[*at..].contains('>') && shared.len() < opening.len();
    &shared[..shared.rfind('<').filter(is_cut).unwrap_or(shared.len())]
}

/// Ways to give an answer with calls: its content, whether arguments are text, and identifiers.
fn shapes() -> impl Iterator<Item = (Value, bool, [String; 2])> {
    let kimi = || [0, 1].map(|i| format!("functions.{}:{i}", NAMES[i]));
    // Mistral's templates want nine letters.
    let short = || ["probe0001", "probe0002"].map(String::from);
    let all = [Value::Null, Value::from("")].into_iter().flat_map(|content| {
        [false, true].into_iter().map(move |is_text| (content.clone(), is_text))
    });
    let again = all.clone();
    all.map(move |(content, is_text)| (content, is_text, kimi()))
        .chain(again.map(move |(content, is_text)| (content, is_text, short())))
}

fn tools() -> Value {
    let tool = |name: &str| {
        json!({"type": "function", "function": {
            "name": name, "description": "Tries calls.", "parameters": {
                "type": "object",
                "properties": {
                    read::KEYS[0]: {"type": "string", "description": "A text."},
                    read::KEYS[1]: {"type": "integer", "description": "A number."},
                },
                "required": [read::KEYS[0]],
        }}})
    };
    Value::from(NAMES.map(tool).to_vec())
}

fn conversation(content: &Value, is_text: bool, ids: &[String; 2]) -> Vec<Message> {
    let arguments = if is_text { Value::from(arguments().to_string()) } else { arguments() };
    let call = |i: usize| {
        json!({"id": ids[i], "type": "function",
            "function": {"name": NAMES[i], "arguments": arguments.clone()}})
    };
    let answer = Message {
        content: Some(content.clone()),
        tool_calls: Some(Value::from(vec![call(0), call(1)])),
        ..Message::new("assistant", "")
    };
    let result = |i: usize| Message {
        tool_call_id: Some(Value::from(ids[i].clone())),
        name: Some(Value::from(NAMES[i])),
        ..Message::new("tool", RESULT)
    };
    vec![Message::new("user", QUESTION), answer, result(0), result(1)]
}

/// An answer with its first call alone.
fn one_call(answer: &Message) -> Message {
    let first = answer.tool_calls.as_ref().map(|calls| json!([calls[0]]));
    Message { tool_calls: first, ..answer.clone() }
}
