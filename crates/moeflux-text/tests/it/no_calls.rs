//! Answers to which no tools were offered: what begins a call is ruled out in every syntax, and
//! nothing else is.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux_core::{Dialects, TokenId};
use moeflux_text::{
    ChatTemplate, Markup, Message, NoCalls, OutputFormat, RenderRequest, Special, Tokenizer,
    ToolSyntax, Turn,
};
use serde_json::{Value, json};

use crate::templates::write_tokenizer;

/// All templates of the tests: those with a syntax that has a name, and those of families.
fn templates() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = ["templates", "golden/templates"].into_iter().flat_map(|folder| {
        fs::read_dir(here.join(folder)).unwrap().map(|entry| entry.unwrap().path())
    });
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|ext| ext == "jinja")).collect();
    files.sort();
    assert!(files.len() > 12, "{files:?}");
    files
}

/// A tokenizer with a template, and its output format.
struct Subject {
    tokenizer: Tokenizer,
    format: OutputFormat,
}

impl Subject {
    fn of(source: &str) -> Subject {
        Subject::without(source, &[])
    }

    /// Without some control tokens: the vocabulary writes them letter by letter.
    fn without(source: &str, control: &[&str]) -> Subject {
        let dir = tempfile::tempdir().unwrap();
        write_tokenizer(dir.path(), source, &[]);
        let path = dir.path().join("tokenizer.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        for token in added.iter_mut() {
            if control.contains(&token["content"].as_str().unwrap()) {
                token["content"] = json!(format!("<|unused_{}|>", token["id"]));
            }
        }
        fs::write(path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap();
        let format = OutputFormat::of(&tokenizer);
        Subject { tokenizer, format }
    }

    fn turn(&self, messages: &[Message]) -> Option<Turn> {
        let template = ChatTemplate::of(&self.tokenizer, false)?.ok()?;
        let request = RenderRequest { messages, ..RenderRequest::default() };
        Turn::of(&self.tokenizer, &template, &request, usize::MAX).ok()
    }

    /// For an answer to a question without tools.
    fn no_calls(&self) -> Option<NoCalls> {
        let messages = [Message::new("user", "Hello")];
        let turn = self.turn(&messages)?;
        self.format.no_calls(&messages, &turn.tokens)
    }

    fn tokens(&self, text: &str) -> Vec<TokenId> {
        self.tokenizer.encode(text, Markup::Parse).unwrap()
    }

    /// How much of a text an answer can be, up to the first token that is ruled out.
    fn allowed(&self, text: &str) -> String {
        self.allowed_tokens(&self.tokens(text))
    }

    fn allowed_tokens(&self, tokens: &[TokenId]) -> String {
        let mut no_calls = self.no_calls().unwrap();
        let mut said = self.tokenizer.stream(Special::Show);
        let mut text = String::new();
        for token in tokens {
            if no_calls.rules_out(*token) {
                assert!(no_calls.ruled_out().any(|other| other == *token));
                return text;
            }
            no_calls.accept(*token);
            text += &said.push(*token);
        }
        text
    }
}

#[test]
fn no_call_of_any_syntax_gets_as_far_as_its_arguments() {
    let mut seen = Vec::new();
    for path in templates() {
        let subject = Subject::of(&fs::read_to_string(&path).unwrap());
        let Ok(call) = subject.format.call_example() else { continue };
        let allowed = subject.allowed(&call);
        assert!(!allowed.contains("NAME"), "{}: {allowed:?} of {call:?}", path.display());
        seen.extend(subject.format.syntax());
        // Calls of a syntax that begin with a token get no further than to it.
        if subject.format.syntax() != Some(ToolSyntax::Harmony) {
            assert_eq!(allowed, "", "{}: {call:?}", path.display());
        }
    }
    // Models of these come without a template: see below.
    let scripted = [ToolSyntax::Dsml, ToolSyntax::DsmlToolCalls];
    for syntax in ToolSyntax::ALL {
        assert!(seen.contains(&syntax) || scripted.contains(&syntax), "{syntax:?} of {seen:?}");
    }
}

#[test]
fn text_and_thoughts_are_not_touched() {
    let text = "Use `x < y` and a <b>tag</b>, [1, 2], {\"name\": \"x\"}.\n\n```json\n{\"a\": 1}\n```\n\
                Send it to=me. Größe, 日本語 🦀";
    for path in templates() {
        let subject = Subject::of(&fs::read_to_string(&path).unwrap());
        let Some(no_calls) = subject.no_calls() else { continue };
        let begun = match subject.format.syntax() {
            Some(ToolSyntax::Harmony) => {
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant\
                                          <|channel|>final<|message|>"
            }
            _ if subject.format.can_think() => "<think>Hm.</think>",
            _ => "",
        };
        let whole = format!("{begun}{text}");
        let literal = subject.tokenizer.encode(text, Markup::Literal).unwrap();
        let tokens = [subject.tokens(begun), literal].concat();
        assert_eq!(subject.allowed_tokens(&tokens), whole, "{}", path.display());
        // Markup as ordinary letters is text, too.
        if no_calls.ruled_out().all(|token| subject.tokenizer.is_control(token)) {
            let call = subject.format.call_example().unwrap_or_default();
            let letters = subject.tokenizer.encode(&call, Markup::Literal).unwrap();
            let whole = format!("{begun}{call}");
            let tokens = [subject.tokens(begun), letters].concat();
            assert_eq!(subject.allowed_tokens(&tokens), whole, "{}", path.display());
        }
    }
}

fn template(name: &str) -> String {
    let path = format!("tests/templates/{name}.jinja");
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn calls_that_begin_with_letters_are_ruled_out_where_they_would_be_calls() {
    let subject = Subject::without(&template("hermes"), &["<tool_call>", "</tool_call>"]);
    assert!(subject.format.syntax().is_none() && subject.tokenizer.id_of("<tool_call>").is_none());
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    for before in ["", "\n", "  ", "I call it.\n", "```\nlet x;\n```\n"] {
        let allowed = subject.allowed(&format!("{before}{call}"));
        assert!(allowed.starts_with(before) && !allowed.contains("<tool_call>"), "{allowed:?}");
    }
    for text in [
        "A call begins with <tool_call> and ends with </tool_call>.",
        "Like this:\n```xml\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n```\nDone.",
        "~~~\n<tool_call>\n~~~\n",
        "<tool>\n<tools_call>\n<tool_ca>",
    ] {
        assert_eq!(subject.allowed(text), text);
    }
}

#[test]
fn a_header_of_channels_names_no_recipient() {
    for name in ["harmony", "harmony_recipient_last"] {
        let subject = Subject::of(&template(name));
        for call in [
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
            " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f<|message|>{}",
            "<|channel|>final<|message|>Yes.<|call|>",
        ] {
            let allowed = subject.allowed(call);
            assert!(!allowed.contains("to=") && !allowed.contains("<|call|>"), "{allowed:?}");
        }
        for text in [
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final\
             <|message|>to=functions.f is a recipient",
            "<|channel|>final <|constrain|>json<|message|>{\"to\": 1}<|return|>",
        ] {
            assert_eq!(subject.allowed(text), text);
        }
    }
}

#[test]
fn a_call_between_tags_with_a_token_inside_does_not_begin() {
    for (tag, syntax) in
        [("function_calls", ToolSyntax::Dsml), ("tool_calls", ToolSyntax::DsmlToolCalls)]
    {
        let template = format!(
            "{{# <think></think> #}}{{{{ messages[0].content }}}}\
             {{% if tools %}}{{{{ tools }}}}<｜DSML｜{tag}>{{% endif %}}"
        );
        let dir = tempfile::tempdir().unwrap();
        write_tokenizer(dir.path(), &template, &[]);
        let tokenizer = Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap();
        let format = OutputFormat::of(&tokenizer);
        assert_eq!(format.syntax(), Some(syntax));
        let subject = Subject { tokenizer, format };
        let call = subject.format.call_example().unwrap();
        assert_eq!(subject.allowed(&call), "<");
        assert_eq!(subject.allowed("<think>Hm.</think>a < b"), "<think>Hm.</think>a < b");
    }
}

#[test]
fn drafts_need_as_many_logits_as_their_worst_place() {
    let subject = Subject::of(&template("harmony"));
    let no_calls = subject.no_calls().unwrap();
    let here = no_calls.most_ruled_out(&[]);
    let draft = subject.tokens("<|channel|>final<|message|>Yes");
    assert!(no_calls.most_ruled_out(&draft) >= here);
    let mut inside = no_calls.clone();
    draft.iter().for_each(|token| inside.accept(*token));
    assert_eq!(inside.most_ruled_out(&[]), 1, "inside of a message only <|call|>");
    let header = subject.tokens("<|end|><|start|>assistant to");
    assert!(inside.most_ruled_out(&header) > 1);
}

#[test]
fn a_system_message_that_shows_how_to_call_offers_tools() {
    let subject = Subject::of(&template("hermes"));
    let shown = "Call tools as <tool_call>{\"name\": …}</tool_call>.";
    let of = |messages: &[Message]| {
        let turn = subject.turn(messages).unwrap();
        subject.format.no_calls(messages, &turn.tokens)
    };
    let question = || Message::new("user", "Hello");
    assert!(of(&[Message::new("system", shown), question()]).is_none());
    assert!(of(&[Message::new("system", "Be brief."), question()]).is_some());
    assert!(of(&[Message::new("user", shown)]).is_some(), "users offer no tools");
}

#[test]
fn models_without_calls_have_nothing_to_rule_out() {
    let plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}";
    assert!(Subject::of(plain).no_calls().is_none());
    assert!(OutputFormat::plain().no_calls(&[], &[]).is_none());
}
