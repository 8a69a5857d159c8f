//! The demo model with fewer bits for its experts, packed from the four bits
//! that the binary carries: JSON and tool calls must survive.

use std::path::Path;

use crate::common::{self, Copy, refuses, succeeds};
use serde_json::Value;

const TOOLS: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
    You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n\
    {\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": \
    \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}}\n\
    </tools>";

/// What the importance of columns is learnt from.
const CONVERSATIONS: &str = include_str!("../data/calibration.jsonl");

fn pack(source: &str, target: &Path, flags: &[&str]) {
    let target = target.to_str().unwrap();
    succeeds(&[&["pack", source, target, "--resident-bits", "8"], flags].concat());
}

/// What the model calls when it is asked for the weather.
fn call(model: &Path, question: &str) -> Option<Value> {
    let model = model.to_str().unwrap();
    let flags = ["--temperature", "0", "--max-tokens", "40"];
    // A template's own list of tools, without the template: else nothing offers tools, and none is called.
    let prompt = format!(
        "<|im_start|>system\n{TOOLS}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    );
    let question = ["run", "-q", "--model", model, "--raw", &prompt];
    let (answer, _) = succeeds(&[&question[..], &flags].concat());
    let call = answer.trim().strip_prefix("<tool_call>")?.strip_suffix("</tool_call>")?;
    serde_json::from_str(call).ok()
}

fn weather(city: &str) -> Value {
    serde_json::json!({"name": "get_weather", "arguments": {"city": city}})
}

fn demo() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo").to_str().unwrap().to_owned()
}

/// An importance file of the demo model.
fn calibrated(dir: &Path) -> String {
    let text = dir.join("conversations.jsonl");
    std::fs::write(&text, CONVERSATIONS).unwrap();
    let out = dir.join("importance").to_str().unwrap().to_owned();
    let (said, _) = succeeds(&["calibrate", "--text", text.to_str().unwrap(), "--out", &out]);
    assert!(said.contains("of 256 experts were never chosen"), "{said}");
    out
}

#[test]
fn two_and_three_bits_still_call_tools() {
    let dir = tempfile::tempdir().unwrap();
    let importance = calibrated(dir.path());
    for (bits, down) in [("2", "2"), ("2", "3"), ("3", "3")] {
        let packed = dir.path().join(format!("{bits}-{down}"));
        let flags = ["--bits", bits, "--down-bits", down, "--importance", &importance];
        pack(&demo(), &packed, &flags);
        let facts = std::fs::read(packed.join("moeflux.json")).unwrap();
        let facts: Value = serde_json::from_slice(&facts).unwrap();
        for layer in facts["layers"].as_array().unwrap() {
            let n_bits = ["gate", "up", "down"].map(|part| layer[part]["bits"].to_string());
            assert_eq!(n_bits, [bits, bits, down]);
        }
        for city in ["Paris", "Oslo"] {
            let question = format!("What is the weather in {city}?");
            assert_eq!(call(&packed, &question), Some(weather(city)), "{bits} and {down} bits");
        }
    }
}

#[test]
fn more_bits_and_the_reference_itself_are_nearer() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("conversations.jsonl");
    let lines: Vec<&str> = CONVERSATIONS.lines().take(12).collect();
    std::fs::write(&text, lines.join("\n")).unwrap();
    let demo = demo();
    let far = |model: &str| {
        let flags = ["--text", text.to_str().unwrap(), "--against", &demo];
        let (said, _) = succeeds(&[&["perplexity", "--model", model], &flags[..]].concat());
        let (_, rest) = said.split_once("divergence ").unwrap();
        rest.split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let packed = |name: &str, flags: &[&str]| {
        let target = dir.path().join(name);
        pack(&demo, &target, flags);
        far(target.to_str().unwrap())
    };
    let nearest = packed("nearest", &["--bits", "2", "--rounding", "nearest"]);
    let fitted = packed("fitted", &["--bits", "2"]);
    let three = packed("three", &["--bits", "3"]);
    let mixed = packed("mixed", &["--bits", "2", "--down-bits", "3"]);
    assert!(far(&demo) < 1e-6);
    assert!(
        three < mixed && mixed < fitted && fitted < nearest,
        "{three} {mixed} {fitted} {nearest}"
    );
}

#[test]
fn importance_of_another_model_or_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let importance = calibrated(dir.path());
    let other = common::golden("hf-bf16");
    let target = dir.path().join("packed").to_str().unwrap().to_owned();
    let flags = ["--bits", "2", "--importance"];
    let pack = |source: &str, file: &str, words: &[&str]| {
        refuses(&[&["pack", source, &target], &flags[..], &[file]].concat(), 1, words);
        assert!(!Path::new(&target).exists());
    };
    pack(other.to_str().unwrap(), &importance, &["calibrate this model"]);
    let demo = Copy::of_demo();
    let bytes = std::fs::read(&importance).unwrap();
    for (name, damaged, words) in [
        ("cut", bytes[..bytes.len() - 8].to_vec(), "the header describes"),
        (
            "negative",
            [&bytes[..bytes.len() - 4], &(-1f32).to_le_bytes()].concat(),
            "mean of squares",
        ),
        ("short", b"{}".to_vec(), "too few"),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, damaged).unwrap();
        let args = ["pack", demo.arg(), &target, "--force", "--bits", "2", "--importance"];
        refuses(&[&args[..], &[path.to_str().unwrap()]].concat(), 1, &[name, words]);
    }
    let file = demo.file("resident.safetensors");
    let args = ["pack", demo.arg(), &target, "--force", "--bits", "2", "--importance"];
    let file = file.to_str().unwrap();
    refuses(&[&args[..], &[file]].concat(), 1, &["resident.safetensors", "no importance file"]);
}

#[test]
fn calibrating_twice_gives_the_same_file_whatever_the_threads() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "A `Vec` is a growable array. ".repeat(40)).unwrap();
    let bytes = |threads: &str, chunk: &str| {
        let out = dir.path().join(format!("{threads}-{chunk}"));
        let flags = ["--threads", threads, "--chunk", chunk, "--out", out.to_str().unwrap()];
        succeeds(&[&["calibrate", "--text", text.to_str().unwrap()], &flags[..]].concat());
        std::fs::read(out).unwrap()
    };
    assert!(bytes("1", "64") == bytes("2", "64"));
}

#[test]
fn conversations_that_are_none_are_refused_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("bad.jsonl");
    let out = dir.path().join("importance");
    for line in ["not json", "[]", "{\"messages\": 3}", "{\"prompt\": \"x\"}"] {
        std::fs::write(&text, format!("{{\"messages\": []}}\n{line}\n")).unwrap();
        let args = ["calibrate", "--text", text.to_str().unwrap(), "--out"];
        refuses(&[&args[..], &[out.to_str().unwrap()]].concat(), 1, &["bad.jsonl", "line "]);
        assert!(!out.exists());
    }
}
