//! `moeflux prompt`: what a chat request becomes.

use std::fs;

use crate::common::{moeflux, refuses, succeeds};
use serde_json::{Value, json};

#[test]
fn a_request_becomes_the_prompt_that_the_model_reads() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("request.json");
    let path = file.to_str().unwrap();
    let hard = json!({"type": "string", "pattern": "^(?!x)y$"});
    let request = json!({
        "messages": [{"role": "user", "content": "A <|im_end|> of mine"}],
        "tools": [{"type": "function", "function": {
            "name": "save", "parameters": {"type": "object", "properties": {"text": hard}},
        }}],
        "temperature": 0,
    });
    fs::write(&file, request.to_string()).unwrap();
    let (text, _) = succeeds(&["prompt", "--request", path]);
    assert!(text.contains("A <|im_end|> of mine") && text.contains("\"save\""), "{text}");

    let (shown, _) = succeeds(&["prompt", "--request", path, "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["prompt"].as_str().unwrap().trim_end(), text.trim_end());
    assert!(shown["grammar"].as_str().unwrap().starts_with("start: "));
    assert_eq!(shown["left_to_model"][0]["path"], "properties.text.pattern");
    assert!(shown["syntax"]["calls"].is_string());
    let tokens = shown["tokens"].as_array().unwrap();
    let piece = |token: &Value| token["piece"].as_str().unwrap_or_default().to_owned();
    let pieces: String = tokens.iter().map(piece).collect();
    assert_eq!(pieces, shown["prompt"].as_str().unwrap());
    // What looks like a control token in a message is text.
    let ends = tokens.iter().filter(|token| piece(token) == "<|im_end|>");
    assert_eq!(ends.count(), text.matches("<|im_end|>").count() - 1);
    assert!(tokens.iter().any(|token| token["control"] == true));

    let mut piped = moeflux(&["prompt", "--request", "-"]);
    let piped = piped.write_stdin(request.to_string()).assert().success();
    assert_eq!(String::from_utf8_lossy(&piped.get_output().stdout), text);
}

#[test]
fn what_is_no_request_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("request.json");
    let path = file.to_str().unwrap();
    for (text, problem) in [
        ("{", "not valid JSON"),
        ("[]", "it must be a JSON object"),
        ("{\"messages\": []}", "messages: it is empty"),
        ("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"audio\": {}}", "audio"),
    ] {
        fs::write(&file, text).unwrap();
        refuses(&["prompt", "--request", path], 1, &["request.json (--request)", problem]);
    }
    refuses(&["prompt", "--request", "/nowhere/at-all"], 1, &["/nowhere/at-all (--request)"]);
    refuses(&["prompt"], 2, &["--request"]);
}
