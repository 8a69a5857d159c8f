//! Tokenizer and templates against what Hugging Face's libraries gave for the same input.

use crate::templates;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use moeflux_core::{Dialects, TokenId};
use moeflux_text::{
    ChatTemplate, Delta, Markup, MarkupText, Message, OutputFormat, OutputParser, RenderRequest,
    Special, Tokenizer, ToolSyntax,
};
use serde_json::{Map, Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[derive(serde::Deserialize)]
struct TemplateCase {
    template: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    messages: Vec<Message>,
    tools: Option<Value>,
    add_generation_prompt: bool,
    extra: Map<String, Value>,
    rendered: Option<String>,
    error: Option<String>,
}

/// Control tokens that occur in the golden templates: with them every case goes through fences.
const CONTROL: [(&str, bool); 12] = [
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<|user|>", true),
    ("<|eot_id|>", true),
    ("[INST]", true),
    ("<｜User｜>", true),
    ("<think>", false),
    ("</think>", false),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
];

fn check_template(path: &Path) {
    let case: TemplateCase = serde_json::from_value(read(path)).unwrap();
    let named: BTreeMap<_, _> = [("bos_token", case.bos_token), ("eos_token", case.eos_token)]
        .into_iter()
        .filter_map(|(name, text)| Some((name.to_owned(), text?)))
        .collect();
    let control = CONTROL.map(|(text, special)| (text.to_owned(), special)).to_vec();
    let markup = MarkupText::new(control, named);
    let request = RenderRequest {
        messages: &case.messages,
        tools: case.tools.as_ref(),
        add_generation_prompt: case.add_generation_prompt,
        extra: case.extra,
        ..RenderRequest::default()
    };
    let got = ChatTemplate::new(&case.template, markup).and_then(|t| t.render(&request));
    match (got, &case.rendered, &case.error) {
        (Ok(got), Some(want), None) => assert_eq!(got.text(), want, "{}", path.display()),
        (Err(got), None, Some(want)) => {
            assert!(got.to_string().contains(want), "{}: {got}, not {want}", path.display());
        }
        // System messages are put where the template takes them.
        (Ok(got), None, Some(_))
            if case.messages.iter().any(|message| message.role == "system") =>
        {
            assert!(!got.text().is_empty(), "{}", path.display());
        }
        (got, ..) => panic!("{}: {got:?}", path.display()),
    }
}

#[test]
fn templates_render_as_transformers_renders_them() {
    let mut n_cases = 0;
    for entry in std::fs::read_dir(golden("templates")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ext| ext == "json") {
            check_template(&path);
            n_cases += 1;
        }
    }
    assert!(n_cases > 0, "no cases in {}", golden("templates").display());
}

#[test]
fn the_demo_tokenizer_agrees_with_the_reference() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo/tokenizer.json");
    let tokenizer = Tokenizer::from_file(&demo).unwrap();
    let cases = read(&golden("demo-tokenizer.json"));
    let cases = cases["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<TokenId> = case["ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| TokenId(id.as_u64().unwrap() as u32))
            .collect();
        assert_eq!(tokenizer.encode(text, Markup::Parse).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids), case["decoded"], "{text:?}");
        let mut stream = tokenizer.stream(Special::Hide);
        let pieces: String = ids.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(pieces + &stream.finish(), case["decoded_without_special"], "{text:?}");
        let literal = tokenizer.encode(text, Markup::Literal).unwrap();
        assert_eq!(tokenizer.decode(&literal), case["decoded"], "{text:?}");
    }
}

/// Qwen3.8-Flash-Next ends turns with `<|im_end|>`. Its `text_config` names `<|endoftext|>`, which
/// ends n-grams, and its generation config both.
#[test]
fn a_turn_of_qwen4_exp_ends_and_its_thoughts_are_told_from_its_answer() {
    let dir = tempfile::tempdir().unwrap();
    templates::write_tokenizer(dir.path(), include_str!("../templates/qwen3_8.jinja"), &[]);
    let write = |name: &str, json: Value| std::fs::write(dir.path().join(name), json.to_string());
    let plain = Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap();
    let id = |token: &str| plain.id_of(token).unwrap();
    let [end_of_text, end_of_turn] = ["<|endoftext|>", "<|im_end|>"].map(id);
    let config = json!({
        "model_type": "any",
        "text_config": {"model_type": "any_text", "eos_token_id": end_of_text.0},
    });
    write("config.json", config).unwrap();
    write("generation_config.json", json!({"eos_token_id": [end_of_turn.0, end_of_text.0]}))
        .unwrap();

    let tokenizer = Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap();
    // The vocabulary has more that end answers by name.
    for end in [end_of_text, end_of_turn] {
        assert!(tokenizer.eos_ids().contains(&end));
    }
    assert_eq!(tokenizer.eos_id(), plain.eos_id());
    for token in ["<|im_start|>", "<|im_end|>", "<|endoftext|>"] {
        assert!(tokenizer.is_control(id(token)), "{token}");
    }

    let format = OutputFormat::of(&tokenizer);
    assert_eq!(format.syntax(), Some(ToolSyntax::QwenXml));
    let mut parser = OutputParser::new(&format, None, true);
    let mut said = parser.push("Two and two.\n</think>\n\nFour");
    said.extend(parser.finish());
    let (mut thought, mut answer) = (String::new(), String::new());
    for delta in said {
        match delta {
            Delta::Reasoning(text) => thought += &text,
            Delta::Content(text) => answer += &text,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!([thought.trim(), &answer], ["Two and two.", "Four"]);
}
