//! `--thinking-budget`: the most tokens of thoughts, wherever an answer is made.

use std::fs;

use crate::common::{Copy, finish, moeflux, refuses, succeeds};

/// How the demo model's template opens an answer, and how one that thinks does.
const OPENS: &str = "{{- '<|im_start|>assistant\\n' }}\n{%- endif %}";
const THINKS: &str = "{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}
    {{- '<think>\\n' }}
{%- endif %}
{%- endif %}";

/// The demo model with a template that opens thoughts, which it was never taught to end.
fn thinker() -> Copy {
    let model = Copy::of_demo();
    let template = model.file("chat_template.jinja");
    let text = fs::read_to_string(&template).unwrap();
    assert_eq!(text.matches(OPENS).count(), 1);
    let text = text.replace(OPENS, THINKS);
    fs::write(&template, &text).unwrap();
    model.edit_json("moeflux.json", |value| {
        let files = value["files"].as_array_mut().unwrap();
        let entry = files.iter_mut().find(|file| file["path"] == "chat_template.jinja").unwrap();
        entry["bytes"] = text.len().into();
    });
    model
}

/// The tokens of an answer in front of what ends its thoughts, which are part of its text.
fn thought(model: &Copy, command: &str, budget: &str) -> String {
    let fixed = ["--temperature", "0", "--max-tokens", "40", "--quiet", "--model", model.arg()];
    let question = "What does `Vec::push` do?";
    let args = [&[command, "--thinking-budget", budget][..], &fixed, &[question]].concat();
    let (text, _) = finish(&mut moeflux(&args));
    let (thought, said) = text.split_once("</think>").unwrap_or(("", &text));
    assert!(!said.trim().is_empty(), "{text:?}");
    thought.trim().to_owned()
}

#[test]
fn run_ends_thoughts_after_their_tokens() {
    let model = thinker();
    let [few, more] = ["2", "5"].map(|budget| thought(&model, "run", budget));
    assert!(!few.is_empty() && more.len() > few.len() && more.starts_with(&few), "{few} {more}");
    assert_eq!(thought(&model, "run", "0"), "");
}

/// What is printed is JSON and nothing else, whether the model thinks or not.
#[test]
fn an_answer_of_a_schema_is_json_behind_thoughts() {
    let model = thinker();
    let schema = r#"{"type": "object", "required": ["name", "age"], "properties":
        {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}}}"#;
    let fixed = ["--temperature", "0", "--quiet", "--model", model.arg(), "--schema", schema];
    for budget in [&[][..], &["--thinking-budget", "5"], &["--thinking-budget", "0"]] {
        for (command, input) in
            [("run", "Invent a person."), ("chat", "Invent a person.\nAnother.\n")]
        {
            let args = [&[command, "--max-tokens", "120"][..], budget, &fixed].concat();
            let (text, _) = finish(moeflux(&args).write_stdin(input));
            assert!(!text.is_empty());
            for line in text.lines().filter(|line| !line.is_empty()) {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                assert!(value["age"].is_u64(), "{text}");
            }
        }
    }
}

#[test]
fn chat_sets_how_much_is_thought() {
    let model = thinker();
    let folder = tempfile::tempdir().unwrap();
    let file = |budget: &str| folder.path().join(budget);
    let question = "What does `Vec::push` do?";
    let turn = |budget: &str| {
        let file = file(budget).display().to_string();
        format!("/set thinking_budget {budget}\n{question}\n/save {file}\n/undo\n")
    };
    let lines = ["6", "3", "0", "-1"].map(turn).concat();
    let fixed = ["--temperature", "0", "--max-tokens", "40", "--plain"];
    let args = [&["chat", "--thinking-budget", "9", "--model", model.arg()][..], &fixed].concat();
    let (_, notes) = finish(moeflux(&args).write_stdin(lines));
    assert!(notes.contains("thinking_budget = 3\n"), "{notes}");
    let thought = |budget: &str| {
        let saved: serde_json::Value =
            serde_json::from_slice(&fs::read(file(budget)).unwrap()).unwrap();
        let answer = saved["messages"].as_array().unwrap().last().unwrap().clone();
        assert!(!answer["content"].as_str().unwrap().trim().is_empty(), "{answer}");
        answer["reasoning_content"].as_str().unwrap_or_default().trim().to_owned()
    };
    let [none, few, more, most] = ["0", "3", "6", "-1"].map(thought);
    assert_eq!(none, "");
    for (less, more) in [(&few, &more), (&more, &most)] {
        assert!(
            !less.is_empty() && more.len() > less.len() && more.starts_with(less),
            "{less} {more}"
        );
    }
}

#[test]
fn a_budget_that_makes_no_sense_is_refused_or_named() {
    refuses(&["run", "x", "--thinking-budget", "-2"], 2, &["-2", "--thinking-budget"]);
    refuses(&["run", "x", "--raw", "--thinking-budget", "2"], 2, &["--thinking-budget", "--raw"]);
    let args = ["run", "--thinking-budget", "2", "--temperature", "0", "hi", "--max-tokens", "2"];
    let (_, said) = succeeds(&args);
    assert!(said.contains("--thinking-budget changes nothing"), "{said}");
}

#[test]
fn launch_passes_it_on() {
    let args = ["launch", "codex", "--thinking-budget", "2048", "--addr", "127.0.0.1:1", "--print"];
    let (text, _) = succeeds(&args);
    assert!(text.contains(" --thinking-budget 2048 "), "{text}");
}
