//! What an answer may look like, as a grammar in the Lark notation.

use serde_json::Value;

use super::members::Level;
use super::rules::Rules;
use super::schema::any_arguments;
use super::tagged::tagged_arguments;
use super::values::{Notation, Values};
use crate::{Calls, JsonCalls, OutputFormat, Thinking, Tokenizer};

/// What an answer may look like, thinking left aside.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerShape {
    /// Text.
    Text,
    /// JSON that a schema describes.
    Json(Value),
}

/// What an answer may look like.
#[derive(Clone, Debug)]
pub struct Grammar {
    /// How the model writes what is not text.
    pub format: OutputFormat,
    /// Whether the prompt ends with thinking that has begun.
    pub is_thinking: bool,
    /// What it says.
    pub shape: AnswerShape,
    /// Tools that it may call, as clients give them.
    pub tools: Vec<Value>,
    /// Whether it must call one.
    pub must_call: bool,
    /// Whether it may call several.
    pub may_call_many: bool,
}

/// The calls of tools, as rules.
struct CallRules {
    /// All of it.
    whole: String,
    /// Text and then that, where calls begin with text in front of a token.
    behind_text: Option<String>,
    n_held: usize,
}

/// A grammar in the Lark notation.
pub(super) struct Lark {
    pub(super) text: String,
    /// Tools whose arguments are held to their schemas; those after them may have any.
    pub(super) n_held: usize,
}

/// What may follow a call.
#[derive(Clone, Copy)]
struct Many {
    /// Further calls.
    calls: bool,
    /// Text before each of them.
    with_text: bool,
}

impl Grammar {
    /// The text of the grammar.
    ///
    /// # Errors
    /// If it would be too large.
    pub(super) fn to_lark(&self, tokenizer: &Tokenizer) -> Result<Lark, String> {
        let mut rules = Rules::new(tokenizer);
        let calls = self.format.calls().filter(|_| !self.tools.is_empty());
        let many = Many { calls: self.may_call_many, with_text: !self.must_call };
        let calls = calls.map(|calls| call_rules(&mut rules, calls, &self.tools, many));
        let n_held = calls.as_ref().map_or(0, |calls| calls.n_held);
        let said = match (&self.shape, &calls) {
            _ if self.must_call => None,
            (AnswerShape::Text, _) => Some(String::from("TEXT?")),
            (AnswerShape::Json(schema), _) => Some(rules.json(schema)),
        };
        rules.check_size()?;
        let is_text = self.shape == AnswerShape::Text;
        let start = match self.format.thinking {
            Thinking::Channels => channels(&mut rules, said, calls.map(|calls| calls.whole)),
            thinking => {
                let thought = match thinking.tags() {
                    Some([_, close]) if self.is_thinking => {
                        format!("TEXT? {} ", rules.literal(close))
                    }
                    Some(tags) => {
                        let [open, close] = tags.map(|tag| rules.literal(tag));
                        // Some templates end thoughts that never began.
                        format!("(SPACE? {open} TEXT? {close} | {close})? ")
                    }
                    None => String::new(),
                };
                let space = if thought.is_empty() { "" } else { "SPACE? " };
                match (said, calls) {
                    (Some(said), Some(calls)) if is_text => match calls.behind_text {
                        Some(behind_text) => format!("{thought}({said} | {behind_text})"),
                        None => format!("{thought}{said} ({})?", calls.whole),
                    },
                    (Some(said), Some(calls)) => {
                        format!("{thought}{space}({said} | {})", calls.whole)
                    }
                    (Some(said), None) if is_text => format!("{thought}{said}"),
                    (Some(said), None) => format!("{thought}{space}{said}"),
                    (None, Some(calls)) => format!("{thought}{space}{}", calls.whole),
                    (None, None) => format!("{thought}TEXT?"),
                }
            }
        };
        let text = format!(
            "start: {start}\nTEXT: /(.|\\n)+/\nSPACE: /[ \\n]{{1,2}}/\nNL: /\\n/\n\
             COMMA: /, ?/\nCOLON: /: ?/\n{}",
            rules.text
        );
        Ok(Lark { text, n_held })
    }
}

/// One or several calls.
fn call_rules(rules: &mut Rules<'_>, calls: &Calls, tools: &[Value], many: Many) -> CallRules {
    let level = Level::of_arguments(tools.len());
    let any = any_arguments();
    let (mut bodies, mut n_held) = (Vec::new(), 0);
    for tool in tools {
        let (name, mut schema) = (&tool["function"]["name"], &tool["function"]["parameters"]);
        if rules.has_room_for_arguments() {
            n_held += 1
        } else {
            schema = &any
        }
        bodies.push(call(rules, calls, name.as_str().unwrap_or_default(), schema, level));
    }
    let call = rules.rule(&bodies.join(" | "));
    let more = if many.calls {
        format!("({} {call})*", between(rules, calls, many.with_text))
    } else {
        String::new()
    };
    let Some([open, close]) = calls.section() else {
        let whole = rules.rule(&format!("{call} {more}"));
        return CallRules { whole, behind_text: None, n_held };
    };
    let close = rules.loose(close);
    let whole = format!("{} {call} {more} NL? {close}", rules.loose(open));
    let whole = rules.rule(&whole);
    // A text before the section would also match what the section has before its control token.
    let behind_text = rules.split_at_control(open).map(|(before, rest)| {
        let rest = rules.loose(rest);
        let before = rules.text_ending(before, "");
        rules.rule(&format!("{before} {rest} {call} {more} NL? {close}"))
    });
    CallRules { whole, behind_text, n_held }
}

/// What may stand between two calls: what the template writes there, line ends or none, or
/// text where it cannot be taken for a call.
fn between(rules: &Rules<'_>, calls: &Calls, with_text: bool) -> String {
    let between = calls.between();
    if !between.trim().is_empty() {
        return rules.loose(between);
    }
    let begins_with_token = rules.control_at(calls.open()).is_some();
    if with_text && begins_with_token && calls.section().is_none() {
        String::from("TEXT?")
    } else {
        String::from("NL? NL?")
    }
}

fn call(rules: &mut Rules<'_>, calls: &Calls, name: &str, schema: &Value, level: Level) -> String {
    match calls {
        Calls::Channels => harmony_call(rules, name, schema, level),
        Calls::Json(calls) => json_call(rules, calls, name, schema, level),
        Calls::Tagged(calls) => {
            let before = rules
                .loose(&format!("{}{}{name}{}", calls.open, calls.before_name, calls.after_name));
            let end = rules.loose(&format!("{}{}", calls.end, calls.close));
            let arguments = tagged_arguments(rules, calls, schema, level);
            // DeepSeek-V3.2 leaves an empty line where there are no arguments.
            rules.rule(&format!("{before} {arguments} NL? {end}"))
        }
    }
}

fn json_call(
    rules: &mut Rules<'_>,
    calls: &JsonCalls,
    name: &str,
    schema: &Value,
    level: Level,
) -> String {
    let before = format!("{}{}{name}", calls.open, calls.before_name);
    let before = rules.loose(&before);
    let (name_end, number) = match calls.after_name.split_once('#') {
        // Kimi numbers its calls.
        Some((before, after)) => (format!("{} /[0-9]{{1,3}}/", rules.literal(before)), after),
        None => (String::new(), &*calls.after_name),
    };
    let after_name = rules.loose(number);
    let notation = match &calls.quote {
        Some(quote) => Notation::Bare { quote },
        None => Notation::Json,
    };
    let arguments = Values { rules, notation, root: schema }.object(schema, level);
    let end = rules.loose(&format!("{}{}", calls.after_arguments, calls.close));
    let id = if calls.has_id { "(COMMA \"\\\"id\\\"\" COLON /\"[a-zA-Z0-9]{9}\"/)?" } else { "" };
    rules.rule(&format!("{before} {name_end} {after_name} {arguments} {id} {end}"))
}

/// A call in the harmony format, whose recipient stands before or after the channel. What
/// closes it ends the answer.
fn harmony_call(rules: &mut Rules<'_>, name: &str, schema: &Value, level: Level) -> String {
    let [channel, constrain, message] =
        ["<|channel|>", "<|constrain|>", "<|message|>"].map(|marker| rules.literal(marker));
    let constrain = if constrain.starts_with('<') { constrain } else { String::from("\"\"") };
    let recipient = Value::from(format!(" to=functions.{name}"));
    let arguments = Values { rules, notation: Notation::Json, root: schema }.object(schema, level);
    rules.rule(&format!(
        "({channel} \"commentary\" {recipient} | {recipient} {channel} \"commentary\") \
         (\" \"? {constrain}? \"json\")? {message} {arguments}"
    ))
}

/// An answer in the channels of the harmony format.
fn channels(rules: &mut Rules<'_>, said: Option<String>, calls: Option<String>) -> String {
    let message = rules.literal("<|message|>");
    let channel = rules.literal("<|channel|>");
    let next = rules.literal("<|end|><|start|>assistant");
    let aside =
        rules.rule(&format!("{channel} (\"analysis\" | \"commentary\") {message} TEXT? {next}"));
    let said = said.map(|rule| format!("{channel} \"final\" {message} {rule}"));
    let last: Vec<String> = [said, calls].into_iter().flatten().collect();
    format!("{aside}* ({})", last.join(" | "))
}
