//! The text side of a model by itself: conversations become prompts, and answers are read.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use moeflux_core::{Dialects, OptionId};
use moeflux_text::{
    AnswerShape, ChatModel, ChatTemplate, Conversation, Delta, Markup, Message, PromptError,
    RenderRequest, Tokenizer, ToolChoice, Tools, Turn,
};
use serde_json::{Value, json};

use crate::templates::write_tokenizer;

/// Opens each answer with thoughts.
const THINKS: &str = include_str!("../templates/qwen3_8.jinja");

fn demo() -> Arc<Tokenizer> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    Arc::new(Tokenizer::from_dir(&dir, &Dialects::default()).unwrap())
}

/// A model with this template.
fn with_template(template: &str) -> ChatModel {
    let dir = tempfile::tempdir().unwrap();
    write_tokenizer(dir.path(), template, &[]);
    ChatModel::new(
        Arc::new(Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap()),
        usize::MAX,
    )
}

fn without_template() -> ChatModel {
    let dir = tempfile::tempdir().unwrap();
    write_tokenizer(dir.path(), "", &[]);
    let path = dir.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("chat_template");
    fs::write(path, config.to_string()).unwrap();
    ChatModel::new(
        Arc::new(Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap()),
        usize::MAX,
    )
}

fn asking(question: &str) -> Conversation {
    Conversation::new(vec![Message::new("user", question)])
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "A tool",
        "parameters": parameters}})
}

fn tools(functions: Vec<Value>, strict: &[&str]) -> Tools {
    Tools { functions, strict: strict.iter().map(|name| (*name).to_owned()).collect() }
}

fn refused_option(err: PromptError) -> OptionId {
    match err {
        PromptError::Refused { option, .. } | PromptError::Constraint { option, .. } => option,
        other => panic!("{other}"),
    }
}

#[test]
fn a_prompt_is_what_the_template_says_and_leaves_room_for_an_answer() {
    let tokenizer = demo();
    let conversation = asking("What is an expert?");
    let template = ChatTemplate::of(&tokenizer, false).unwrap().unwrap();
    let request = RenderRequest { messages: &conversation.messages, ..RenderRequest::default() };
    let want = Turn::of(&tokenizer, &template, &request, usize::MAX).unwrap();
    let model = ChatModel::new(Arc::clone(&tokenizer), usize::MAX);
    let prepared = model.prepare(&conversation).unwrap();
    assert_eq!(prepared.turn, want);
    assert!(prepared.constraint.is_none() && prepared.expected.is_empty());
    assert!(!prepared.may_think && prepared.no_calls.is_some());
    let text = model.prompt_text(&conversation).unwrap();
    assert_eq!(tokenizer.encode(&text, Markup::Parse).unwrap(), want.tokens);

    let n = want.tokens.len();
    let fits = |ctx| ChatModel::new(Arc::clone(&tokenizer), ctx).prepare(&conversation);
    assert_eq!(fits(n + 1).unwrap().turn, want);
    for ctx in [0, 1, n] {
        assert!(matches!(fits(ctx), Err(PromptError::Text(_))), "{ctx} positions");
    }
}

#[test]
fn a_template_is_read_when_it_is_needed_first() {
    let broken = with_template("{% for %}");
    let text = broken.prepare_text("a <b>", &AnswerShape::Text).unwrap();
    let tokens = broken.tokenizer().encode("a <b>", Markup::Literal).unwrap();
    assert_eq!(text.turn.tokens, tokens);
    for _ in 0..2 {
        assert!(matches!(broken.prepare(&asking("Hi")), Err(PromptError::Text(_))));
    }
    assert!(broken.read_templates().is_err());

    let none = without_template();
    none.read_templates().unwrap();
    assert!(matches!(none.prepare(&asking("Hi")), Err(PromptError::NoTemplate)));
    assert!(none.prepare_text("a", &AnswerShape::Text).is_ok());
}

#[test]
fn an_answer_is_held_to_a_schema_and_a_schema_that_cannot_be_is_refused() {
    let model = ChatModel::new(demo(), usize::MAX);
    let shaped = |schema: Value| Conversation { shape: AnswerShape::Json(schema), ..asking("Hi") };
    let good = shaped(json!({"type": "object", "properties": {"n": {"type": "integer"}}}));
    assert!(model.prepare(&good).unwrap().constraint.is_some());
    assert!(model.constraint(&good).unwrap().is_some());
    assert!(model.prepare_text("n:", &good.shape).unwrap().constraint.is_some());
    assert!(model.constraint(&asking("Hi")).unwrap().is_none());
    let bad = shaped(json!({"type": "string", "pattern": "("}));
    assert_eq!(refused_option(model.prepare(&bad).err().unwrap()), OptionId::Format);
    assert_eq!(refused_option(model.constraint(&bad).err().unwrap()), OptionId::Format);
    let text = model.prepare_text("n:", &bad.shape);
    assert_eq!(refused_option(text.err().unwrap()), OptionId::Format);
}

#[test]
fn tools_are_called_by_the_names_that_they_were_given() {
    let model = ChatModel::new(demo(), usize::MAX);
    let object = json!({"type": "object", "properties": {}});
    let offered = tools(vec![tool("files:look/up", object)], &[]);
    let conversation = Conversation { tools: offered, ..asking("Hi") };
    let prompt = model.prompt_text(&conversation).unwrap();
    assert!(prompt.contains("files_look_up") && !prompt.contains("files:look"), "{prompt}");
    let prepared = model.prepare(&conversation).unwrap();
    assert!(prepared.no_calls.is_none() && prepared.constraint.is_some());
    let written = "<tool_call>\n{\"name\": \"files_look_up\", \"arguments\": {}}\n</tool_call>";
    let mut reader = prepared.reader.clone();
    let mut deltas = reader.push(written);
    deltas.extend(reader.finish());
    assert_eq!(deltas[0], Delta::Call { name: String::from("files:look/up") });
    // Read as text, it is none.
    let mut reader = prepared.read_as_text().reader;
    let mut deltas = reader.push(written);
    deltas.extend(reader.finish());
    assert!(deltas.iter().all(|delta| matches!(delta, Delta::Content(_))), "{deltas:?}");

    let never = Conversation { tool_choice: ToolChoice::Never, ..conversation.clone() };
    let prepared = model.prepare(&never).unwrap();
    assert!(prepared.no_calls.is_some() && prepared.constraint.is_none());
    let named = |name: &str| Conversation {
        tool_choice: ToolChoice::Named(name.to_owned()),
        ..conversation.clone()
    };
    assert!(model.prepare(&named("files:look/up")).unwrap().constraint.is_some());
    let missing = model.prepare(&named("missing")).err().unwrap();
    assert_eq!(refused_option(missing), OptionId::ToolChoice);
}

#[test]
fn tools_that_cannot_be_used_are_refused_by_their_place() {
    let model = ChatModel::new(demo(), usize::MAX);
    let loose = json!({"type": "object", "properties": {"word": {"type": "string",
        "pattern": "^(?=a)b"}}, "required": ["word"]});
    let functions = vec![tool("first", json!({"type": "object"})), tool("second", loose)];
    let lenient = Conversation { tools: tools(functions.clone(), &[]), ..asking("Hi") };
    assert!(model.prepare(&lenient).is_ok());
    let strict = Conversation { tools: tools(functions, &["second"]), ..asking("Hi") };
    let refused = model.prepare(&strict).err().unwrap();
    assert!(matches!(refused, PromptError::Refused { option: OptionId::Tools, item: Some(1), .. }));

    let plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}";
    let without_tools = with_template(plain);
    assert!(without_tools.prepare(&asking("Hi")).is_ok());
    assert!(matches!(without_tools.prepare(&lenient), Err(PromptError::NoTools)));
}

#[test]
fn an_answer_that_has_begun_is_no_other_answer() {
    let model = ChatModel::new(demo(), usize::MAX);
    let mut begun = asking("What is an expert?");
    begun.messages.push(Message::new("assistant", "An expert is"));
    begun.continues = true;
    let prepared = model.prepare(&begun).unwrap();
    let end = model.tokenizer().encode("An expert is", Markup::Literal).unwrap();
    assert!(prepared.turn.tokens.ends_with(&end));
    let offered = tools(vec![tool("first", json!({"type": "object"}))], &[]);
    let required =
        Conversation { tools: offered, tool_choice: ToolChoice::Required, ..begun.clone() };
    let shaped = Conversation { shape: AnswerShape::Json(json!({})), ..begun.clone() };
    let thinking = Conversation { thinking: Some(true), ..begun };
    for (conversation, option) in [
        (required, OptionId::ToolChoice),
        (shaped, OptionId::Format),
        (thinking, OptionId::Thinking),
    ] {
        assert_eq!(refused_option(model.prepare(&conversation).err().unwrap()), option);
    }
}

#[test]
fn thoughts_are_told_from_text_where_the_model_thinks() {
    let model = with_template(THINKS);
    let thinking = |thinking| Conversation { thinking, ..asking("Hi") };
    let prepared = model.prepare(&thinking(None)).unwrap();
    assert!(prepared.may_think);
    let mut reader = prepared.reader.clone();
    let mut deltas = reader.push("So.\n</think>\n\nHello");
    deltas.extend(reader.finish());
    let thought: String = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Reasoning(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let text: String = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Content(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!((thought.trim(), text.as_str()), ("So.", "Hello"));
    assert!(!model.prepare(&thinking(Some(false))).unwrap().may_think);
}

#[test]
fn what_is_expected_is_drafted_as_far_as_an_answer_could_be() {
    let tokenizer = demo();
    let expecting = |text: &str| Conversation { expected: Some(text.to_owned()), ..asking("Hi") };
    let model = ChatModel::new(Arc::clone(&tokenizer), 100);
    let prepared = model.prepare(&expecting("fn main() {}")).unwrap();
    let want = tokenizer.encode("fn main() {}", Markup::Literal).unwrap();
    assert_eq!(prepared.expected[..], want[..]);
    let prepared = model.prepare(&expecting(&"word ".repeat(1000))).unwrap();
    assert!((1..=100).contains(&prepared.expected.len()), "{}", prepared.expected.len());
}
