//! What templates render as an assistant's turn is accepted by the grammar of the model's syntax,
//! and is parsed back into the same thoughts, text and calls.
//!
//! `MOEFLUX_TEMPLATES` names a folder of further templates to try, such as published ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_core::Dialects;
use moeflux_text::{
    AnswerShape, ChatTemplate, Delta, Grammar, Grammars, Markup, Message, OutputFormat,
    OutputParser, RenderRequest, Tokenizer, ToolSyntax,
};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::templates::write_tokenizer;

use proptest::prelude::*;

fn own_templates() -> Vec<(PathBuf, ToolSyntax)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates");
    [
        ("hermes", ToolSyntax::Hermes),
        ("qwen_xml", ToolSyntax::QwenXml),
        ("qwen3_8", ToolSyntax::QwenXml),
        ("glm_4_5", ToolSyntax::Glm),
        ("glm_4_7", ToolSyntax::Glm),
        ("deepseek_v3", ToolSyntax::DeepSeekFenced),
        ("deepseek_v3_1", ToolSyntax::DeepSeek),
        ("kimi", ToolSyntax::Kimi),
        ("harmony", ToolSyntax::Harmony),
        ("harmony_recipient_last", ToolSyntax::Harmony),
        ("minimax", ToolSyntax::MiniMax),
        ("mistral", ToolSyntax::Mistral),
        ("gemma4", ToolSyntax::Gemma),
    ]
    .into_iter()
    .map(|(name, syntax)| (folder.join(format!("{name}.jinja")), syntax))
    .collect()
}

/// One turn of an assistant.
#[derive(Clone, Debug)]
struct Turn {
    /// Tools with random schemas, and those of [`tools`].
    tools: Vec<Value>,
    thought: String,
    said: String,
    /// Names and arguments.
    calls: Vec<Call>,
}

#[derive(Clone, Debug, PartialEq)]
struct Call {
    name: String,
    arguments: Map<String, Value>,
}

/// A tool with an argument of every kind, in every place where schemas put arguments.
fn tools() -> Vec<Value> {
    let tool = |name: &str, parameters: Value| {
        json!({"type": "function", "function": {
            "name": name, "description": "Does it.", "parameters": parameters}})
    };
    let kinds = json!({
        "text": {"type": "string"},
        "number": {"type": "number"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": ["string", "integer"]}},
        "nested": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}},
        "maybe": {"type": ["string", "null"]},
        "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "choice": {"$ref": "#/$defs/Colour"},
        "free": {"type": "object"},
        "any": {},
    });
    let definitions = json!({"Colour": {"type": "string", "enum": ["red", "light blue"]}});
    let all = json!({"type": "object", "properties": kinds, "required": ["text"],
        "$defs": definitions});
    vec![
        tool("all-kinds", all.clone()),
        tool("free_form", json!({"type": "object", "additionalProperties": true})),
        tool("bare.object", json!({"type": "object"})),
        tool(
            "by_reference",
            json!({"$ref": "#/$defs/All", "$defs": {"All": {
            "type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["text"]}}}),
        ),
        tool(
            "parts",
            json!({"allOf": [
            {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            {"type": "object", "properties": {"flag": {"type": "boolean"}}}]}),
        ),
        tool(
            "either",
            json!({"anyOf": [
            {"type": "object", "properties": {"text": {"type": "string"}}},
            {"type": "object", "properties": {"count": {"type": "integer"}}}]}),
        ),
        tool("nothing", json!({"type": "object", "properties": {}})),
    ]
}

/// Text as models and people write it; markup of the syntaxes aside.
fn text() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec![
        "Oslo",
        "new plan",
        "a\nb",
        "\"quoted\"",
        "x < y && y > z",
        "{\"a\": [1]}",
        "Größe",
        "日本語",
        "🦀",
        "\\n",
        "it's",
        "</b>",
        "true",
        "17",
        "null",
        "-",
        "a: b, c",
        "[1, 2]",
        "```json\n1\n```",
    ]);
    prop::collection::vec(odd, 1..4).prop_map(|words| words.join(" "))
}

/// Names of the arguments of the first of [`tools`].
const KINDS: [&str; 11] = [
    "text", "number", "count", "flag", "list", "nested", "maybe", "optional", "choice", "free",
    "any",
];

fn value(name: &str) -> BoxedStrategy<Value> {
    match name {
        "number" => prop_oneof![Just(json!(1.5)), Just(json!(-2)), Just(json!(1e3))].boxed(),
        "count" => (-1000..1000_i64).prop_map(Value::from).boxed(),
        "flag" => any::<bool>().prop_map(Value::from).boxed(),
        "list" => {
            prop::collection::vec(prop_oneof![text().prop_map(Value::from), Just(json!(4))], 0..3)
                .prop_map(Value::from)
                .boxed()
        }
        "nested" => text().prop_map(|text| json!({"a": text, "b": [1, null, {"c": true}]})).boxed(),
        "maybe" | "optional" => words().prop_map(Value::from).boxed(),
        "choice" => prop_oneof![Just(json!("red")), Just(json!("light blue"))].boxed(),
        "free" => text().prop_map(|text| json!({"k": text, "n": {"m": []}})).boxed(),
        "any" => prop_oneof![Just(json!([1, 2])), Just(json!({"z": 1.25}))].boxed(),
        _ => text().prop_map(Value::from).boxed(),
    }
}

/// Text that is no JSON: untagged arguments of several kinds cannot tell one from the other.
fn words() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a plan", "Oslo", "x < y", "it's\nso", "日本"]).prop_map(String::from)
}

fn call() -> impl Strategy<Value = Call> {
    let kinds = KINDS;
    let own = |name: &'static str| value(name).prop_map(move |value| (name.to_owned(), value));
    let required = own("text");
    let others = prop::sample::subsequence(kinds[1..].to_vec(), 0..5).prop_shuffle();
    let all =
        (required, others, any::<prop::sample::Index>()).prop_flat_map(move |(text, names, at)| {
            let others: Vec<_> = names.into_iter().map(own).collect();
            (Just(text), others, Just(at))
        });
    let all = all.prop_map(|(text, mut others, at)| {
        others.insert(at.index(others.len() + 1), text);
        ("all-kinds", others)
    });
    let free = || prop::collection::vec(("[a-z_]{1,8}", words().prop_map(Value::from)), 0..4);
    let pairs = |names: &'static [&'static str]| {
        prop::sample::subsequence(names.to_vec(), 1..=names.len())
            .prop_shuffle()
            .prop_flat_map(move |names| names.into_iter().map(own).collect::<Vec<_>>())
    };
    let with_text = |name: &'static str, other: &'static str| {
        (own("text"), prop::option::of(own(other)), any::<bool>()).prop_map(
            move |(text, other, is_last)| {
                let mut all: Vec<_> = other.into_iter().collect();
                all.insert(if is_last { all.len() } else { 0 }, text);
                (name, all)
            },
        )
    };
    prop_oneof![
        4 => all,
        1 => free().prop_map(|all| ("free_form", all)),
        1 => free().prop_map(|all| ("bare.object", all)),
        1 => with_text("by_reference", "count"),
        1 => with_text("parts", "flag"),
        1 => pairs(&["text", "count"]).prop_map(|all| ("either", all)),
        1 => Just(("nothing", Vec::new())),
    ]
    .prop_map(|(name, arguments)| Call {
        name: name.to_owned(),
        arguments: arguments.into_iter().collect(),
    })
}

/// A tool with some arguments of all kinds, some of them required, and a call of it.
fn random_tool() -> impl Strategy<Value = (Value, Call)> {
    let kinds = tools()[0]["function"]["parameters"]["properties"].clone();
    let definitions = tools()[0]["function"]["parameters"]["$defs"].clone();
    let names: Vec<&'static str> = KINDS.to_vec();
    let chosen = prop::sample::subsequence(names, 1..9).prop_shuffle();
    let given = chosen.prop_flat_map(|names| {
        let values: Vec<_> = names.iter().map(|name| value(name)).collect();
        let n = names.len();
        (Just(names), values, prop::collection::vec(any::<(bool, bool)>(), n))
    });
    given.prop_map(move |(names, values, flags)| {
        let mut properties = Map::new();
        let mut arguments = Map::new();
        let mut required = Vec::new();
        for ((name, value), (is_required, is_given)) in names.iter().zip(values).zip(flags) {
            properties.insert((*name).to_owned(), kinds[*name].clone());
            if is_required {
                required.push(json!(name));
            }
            if is_required || is_given {
                arguments.insert((*name).to_owned(), value);
            }
        }
        let schema = json!({"type": "object", "properties": properties, "required": required,
            "$defs": definitions});
        let tool = json!({"type": "function", "function": {
            "name": "random", "description": "Does it.", "parameters": schema}});
        (tool, Call { name: String::from("random"), arguments })
    })
}

fn turn() -> impl Strategy<Value = Turn> {
    let thought = prop_oneof![Just(String::new()), text()];
    let said = prop_oneof![2 => Just(String::new()), 1 => text()];
    let calls = prop::collection::vec(call(), 0..2);
    (thought, said, calls, random_tool(), any::<bool>()).prop_map(
        |(thought, said, mut calls, (tool, call), is_first)| {
            calls.insert(if is_first { 0 } else { calls.len() }, call);
            Turn { tools: [tools(), vec![tool]].concat(), thought, said, calls }
        },
    )
}

/// A template with what belongs to it.
struct Subject {
    name: String,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    format: OutputFormat,
    grammars: Grammars,
}

impl Subject {
    fn open(path: &Path) -> Option<Subject> {
        let source = fs::read_to_string(path).unwrap();
        let dir = tempfile::tempdir().unwrap();
        write_tokenizer(dir.path(), &source, &[]);
        let tokenizer = Arc::new(Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap());
        let template = ChatTemplate::of(&tokenizer, true)?.ok()?;
        Some(Subject {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            format: OutputFormat::of(&tokenizer),
            grammars: Grammars::new(&tokenizer).unwrap(),
            template,
            tokenizer,
        })
    }

    /// What the template makes of the turn: the end of the prompt before it, and the turn.
    fn written(&self, turn: &Turn) -> Option<(String, String)> {
        let tools = Value::from(turn.tools.clone());
        let question = Message::new("user", "Do it.");
        let calls: Vec<Value> = turn.calls.iter().enumerate().map(|(i, call)| json!({
            "id": format!("functions.{}:{i}", call.name), "type": "function",
            "function": {"name": call.name, "arguments": Value::Object(call.arguments.clone()).to_string()},
        })).collect();
        let answer = Message {
            content: if turn.said.is_empty() { Some(Value::Null) } else { Some(json!(turn.said)) },
            reasoning_content: (!turn.thought.is_empty()).then(|| json!(turn.thought)),
            tool_calls: Some(Value::from(calls)),
            ..Message::new("assistant", "")
        };
        let render = |messages: &[Message], add_generation_prompt: bool| {
            let request = RenderRequest {
                messages,
                tools: Some(&tools),
                add_generation_prompt,
                ..RenderRequest::default()
            };
            let rendered = self.template.render(&request).ok()?;
            Some(rendered.text().to_owned())
        };
        let prompt = render(std::slice::from_ref(&question), true)?;
        let whole = render(&[question, answer], false)?;
        let same = prompt.char_indices().zip(whole.chars()).take_while(|((_, a), b)| a == b);
        let mut at = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
        // A mark stays whole, and so do thoughts that a prompt without thinking leaves empty.
        if at < prompt.len() {
            let part = prompt[..at].rfind('<').filter(|mark| !prompt[*mark..at].contains('>'));
            at = part.unwrap_or(at);
            let opens = ["<think>", "<|channel>"];
            let opened = prompt[..at].rfind('<');
            let opened =
                opened.filter(|mark| opens.iter().any(|tag| prompt[*mark..].starts_with(tag)));
            at = opened.unwrap_or(at);
        }
        Some((prompt, whole[at..].to_owned()))
    }

    fn check(&self, turn: &Turn) -> Result<(), TestCaseError> {
        let mut turn = turn.clone();
        let many = !matches!(self.format.syntax(), Some(ToolSyntax::Harmony));
        if !many {
            turn.calls.truncate(1);
        }
        // These templates have no place for text in a turn with calls.
        let syntax = self.format.syntax();
        if matches!(syntax, Some(ToolSyntax::DeepSeekFenced | ToolSyntax::Mistral)) {
            turn.said.clear();
        }
        let Some((prompt, written)) = self.written(&turn) else {
            return Err(TestCaseError::reject("the template refuses the turn"));
        };
        let tokens = self.tokenizer.encode(&prompt, Markup::Parse).unwrap();
        let opens = self.format.prompt_opens_thinking(&tokens, &self.tokenizer);
        // The prompt may open thinking that the rendered turn has no part of.
        let is_thinking = opens && !written.starts_with("<think>") && written.contains("</think>");
        let mut written = written.as_str();
        for end in [
            "<|im_end|>",
            "<｜end▁of▁sentence｜>",
            "<|call|>",
            "[e~[",
            "</s>",
            "<|observation|>",
            "<turn|>",
            "<|tool_response>",
        ] {
            written = written.split(end).next().unwrap_or(written);
        }
        self.accepts(written, is_thinking, &turn, many)?;
        let whole = self.parsed(&turn, &[written], is_thinking);
        let chars: Vec<String> = written.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        prop_assert_eq!(
            &whole,
            &self.parsed(&turn, &chars, is_thinking),
            "{}: {}",
            self.name,
            written
        );
        let (said, calls) = whole;
        prop_assert_eq!(&calls, &turn.calls, "{}: {}", self.name, written);
        // Some templates leave the text out of a turn with calls, or take it for a thought.
        if written.contains(turn.said.trim()) && self.format.syntax() != Some(ToolSyntax::Harmony) {
            prop_assert_eq!(said.trim(), turn.said.trim(), "{}: {}", self.name, written);
        }
        Ok(())
    }

    fn accepts(
        &self,
        written: &str,
        is_thinking: bool,
        turn: &Turn,
        many: bool,
    ) -> Result<(), TestCaseError> {
        let grammar = Grammar {
            format: self.format.clone(),
            is_thinking,
            shape: AnswerShape::Text,
            tools: turn.tools.clone(),
            must_call: false,
            may_call_many: many,
        };
        let mut constraint = self.grammars.compile(&grammar).unwrap();
        let mut done = 0;
        for token in self.tokenizer.encode(written, Markup::Parse).unwrap() {
            let mut logits = vec![0.0; self.tokenizer.vocab_size()];
            constraint.restrict(&mut logits).unwrap();
            let allows = logits[token.0 as usize] == 0.0;
            prop_assert!(
                allows,
                "{}: {:?} is refused before {:?}, {:?}",
                self.name,
                &written[..done],
                &written[done..],
                turn
            );
            done += self.tokenizer.token_bytes(token).len();
            if constraint.accept(token).unwrap() {
                break;
            }
        }
        prop_assert_eq!(done, written.len(), "{}: ends within {}", self.name, written);
        Ok(())
    }

    /// What is said, and the calls.
    fn parsed(&self, turn: &Turn, pieces: &[&str], is_thinking: bool) -> (String, Vec<Call>) {
        let mut parser =
            OutputParser::new(&self.format, Some(&Value::from(turn.tools.clone())), is_thinking);
        let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        deltas.extend(parser.finish());
        let (mut said, mut calls) = (String::new(), Vec::<(String, String)>::new());
        for delta in deltas {
            match delta {
                Delta::Content(text) => said += &text,
                Delta::Reasoning(_) => {}
                Delta::Call { name } => calls.push((name, String::new())),
                Delta::Arguments(text) => calls.last_mut().expect("a call has begun").1 += &text,
            }
        }
        let calls = calls.into_iter().map(|(name, text)| Call {
            name,
            arguments: serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {text}")),
        });
        (said, calls.collect())
    }
}

fn try_turns(subject: &Subject, n: u32) -> Result<(), String> {
    let mut runner =
        TestRunner::new(Config { cases: n, failure_persistence: None, ..Config::default() });
    runner.run(&turn(), |turn| subject.check(&turn)).map_err(|err| err.to_string())
}

#[test]
fn what_templates_render_is_accepted_and_read_back() {
    let folder = std::env::var_os("MOEFLUX_TEMPLATES");
    folder.into_iter().for_each(|folder| report(Path::new(&folder)));
    for (path, syntax) in own_templates() {
        let subject = Subject::open(&path).expect("own templates can be read");
        assert_eq!(
            subject.format.syntax(),
            Some(syntax),
            "{path:?}: {:?}",
            subject.format.call_example()
        );
        try_turns(&subject, 24).unwrap_or_else(|err| panic!("{path:?}: {err}"));
    }
}

/// Prints what the templates of a folder give.
#[expect(clippy::print_stdout, reason = "a report that was asked for")]
fn report(folder: &Path) {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|kind| kind == "jinja")).collect();
    paths.sort();
    for path in paths {
        let Some(subject) = Subject::open(&path) else {
            println!("{}: cannot be read", path.display());
            continue;
        };
        let found = match (subject.format.syntax(), subject.format.call_example()) {
            (Some(syntax), _) => match try_turns(&subject, 40) {
                Ok(()) => format!("{syntax:?}, equal"),
                Err(err) => format!("{syntax:?}, differs: {err}"),
            },
            (None, reason) => format!("{reason:?}"),
        };
        println!("{}: {found} (thinks: {})", subject.name, subject.format.can_think());
    }
}
