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
