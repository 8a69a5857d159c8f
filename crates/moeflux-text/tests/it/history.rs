//! Conversations in the shape that each template accepts.

use std::fs;
use std::path::Path;

use moeflux_core::Dialects;
use moeflux_text::{ChatTemplate, Message, RenderRequest, Tokenizer};
use serde_json::{Value, json};

use crate::templates::write_tokenizer;

/// A template of this project's, by name.
fn template(name: &str) -> ChatTemplate {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates");
    of_source(&fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap())
}

fn of_source(source: &str) -> ChatTemplate {
    let dir = tempfile::tempdir().unwrap();
    write_tokenizer(dir.path(), source, &[]);
    ChatTemplate::of(&Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap(), true)
        .unwrap()
        .unwrap()
}

fn render(template: &ChatTemplate, messages: &Value) -> String {
    let messages: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
    let request = RenderRequest { messages: &messages, ..RenderRequest::default() };
    template.render(&request).unwrap().text().to_owned()
}

fn says(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

fn calls(content: Value, id: &str, arguments: Value) -> Value {
    json!({"role": "assistant", "content": content, "tool_calls": [{"id": id, "type": "function",
        "function": {"name": "get_weather", "arguments": arguments}}]})
}

fn result(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

const ALL: [&str; 12] = [
    "hermes",
    "qwen_xml",
    "qwen3_8",
    "glm_4_5",
    "glm_4_7",
    "deepseek_v3",
    "deepseek_v3_1",
    "kimi",
    "harmony",
    "harmony_recipient_last",
    "minimax",
    "mistral",
];

#[test]
fn system_messages_are_taken_anywhere_and_lose_nothing() {
    let conversations = [
        json!([says("system", "Rule A."), says("system", "Rule B."), says("user", "Q1")]),
        json!([
            says("user", "Q1"),
            says("assistant", "A1"),
            says("system", "Rule A."),
            says("user", "Rule B.")
        ]),
        json!([says("system", "Rule A."), says("user", "Q1"), says("system", "Rule B.")]),
        json!([
            says("system", "Rule A."),
            says("user", "Q1"),
            says("assistant", "A1"),
            says("system", "Rule B."),
            says("user", "Q2"),
            says("assistant", "A2"),
            says("user", "Q3")
        ]),
        json!([says("user", "Q1"), says("user", "Rule A."), says("user", "Rule B.")]),
        json!([says("system", "Rule A. Rule B.")]),
    ];
    for name in ALL {
        let template = template(name);
        for conversation in &conversations {
            let text = render(&template, conversation);
            for rule in ["Rule A.", "Rule B."] {
                assert_eq!(text.matches(rule).count(), 1, "{name}: {conversation} gives {text}");
            }
        }
    }
}

#[test]
fn a_late_system_message_leaves_the_text_before_it_as_it_was() {
    // Templates that put the last question or all system messages at the beginning change it.
    for name in
        ["hermes", "qwen_xml", "qwen3_8", "glm_4_5", "glm_4_7", "kimi", "harmony", "minimax"]
    {
        let template = template(name);
        let begins = [says("system", "Rule A."), says("user", "Q1"), says("assistant", "A1")];
        let before = render(&template, &Value::from(begins.to_vec()));
        let goes_on = [&begins[..], &[says("system", "Rule B."), says("user", "Q2")]].concat();
        let after = render(&template, &Value::from(goes_on));
        assert!(after.starts_with(&before), "{name}: {before} becomes {after}");
    }
}

#[test]
fn arguments_come_as_the_template_reads_them() {
    let given = [
        (json!("{\"city\": \"Oslo\"}"), Some("Oslo")),
        (json!({"city": "Oslo"}), Some("Oslo")),
        (json!(""), None),
        (json!("null"), None),
        (Value::Null, None),
    ];
    for name in ALL {
        let template = template(name);
        for (arguments, city) in &given {
            for content in [Value::Null, json!("")] {
                let conversation = json!([
                    says("user", "Q1"),
                    calls(content, "call_x", arguments.clone()),
                    result("call_x", "Cold."),
                ]);
                let text = render(&template, &conversation);
                assert!(text.contains("get_weather") && text.contains("Cold."), "{name}: {text}");
                assert!(!text.contains("None") && !text.contains("null"), "{name}: {text}");
                assert!(city.is_none_or(|city| text.contains(city)), "{name}: {text}");
                assert!(!text.contains("\\\""), "{name}: {text}");
            }
        }
    }
}

#[test]
fn arguments_that_are_absent_are_an_empty_object() {
    for name in ALL {
        let mut call = calls(Value::Null, "call_x", Value::Null);
        let function = call["tool_calls"][0]["function"].as_object_mut().unwrap();
        function.remove("arguments");
        let text =
            render(&template(name), &json!([says("user", "Q1"), call, result("call_x", "Cold.")]));
        assert!(text.contains("get_weather") && text.contains("Cold."), "{name}: {text}");
    }
}

#[test]
fn thoughts_are_found_under_every_name() {
    for (reads, gives) in [
        ("thinking", "reasoning_content"),
        ("reasoning", "reasoning_content"),
        ("reasoning_content", "thinking"),
        ("reasoning_content", "reasoning"),
    ] {
        let source = format!(
            "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}{{{{ m.{reads} or '' }}}}{{{{ m.content }}}}{{% endfor %}}"
        );
        let text = render(
            &of_source(&source),
            &json!([says("user", "Q1"), {"role": "assistant", "content": "A1", gives: "Hm."}]),
        );
        assert!(text.contains("Hm.A1"), "{gives} read as {reads}: {text}");
    }
}

#[test]
fn identifiers_of_calls_are_what_the_template_wants() {
    let two = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "toolu_1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"id": "toolu_2", "type": "function", "function": {"name": "b", "arguments": "{}"}}]});
    let conversation = json!([
        says("user", "Q1"),
        two,
        result("toolu_2", "Of b."),
        result("toolu_1", "Of a."),
        calls(Value::Null, "toolu_3", json!("{}")),
        result("toolu_3", "Of the third."),
    ]);
    let text = render(&template("kimi"), &conversation);
    assert!(!text.contains("toolu"), "{text}");
    for part in [
        "<|tool_call_begin|>functions.a:0<",
        "<|tool_call_begin|>functions.b:1<",
        "functions.b:1\nOf b.",
        "functions.a:0\nOf a.",
        "<|tool_call_begin|>functions.get_weather:2<",
        "functions.get_weather:2\nOf the third.",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let text = render(&template("mistral"), &conversation);
    assert!(text.contains("\"id\": \"call00001\"") && text.contains("\"call_id\": \"call00001\""));
    assert!(render(&template("hermes"), &conversation).contains("Of the third."));
}

#[test]
fn text_and_thoughts_are_given_where_a_template_has_one_place_for_both() {
    let mut call = calls(json!("I look it up."), "call_x", json!("{\"city\": \"Oslo\"}"));
    call["reasoning_content"] = json!("Hm.");
    let conversation = json!([says("user", "Q1"), call, result("call_x", "Cold.")]);
    for name in ["harmony", "harmony_recipient_last"] {
        let text = render(&template(name), &conversation);
        assert!(
            text.contains("<|channel|>analysis<|message|>Hm.\n\nI look it up.<|end|>"),
            "{text}"
        );
    }
    // Text before calls becomes a turn of its own where calls are written without text only.
    let text = render(&template("deepseek_v3"), &conversation);
    let said = text.find("I look it up.").unwrap();
    assert!(said < text.find("<｜tool▁calls▁begin｜>").unwrap(), "{text}");
}
