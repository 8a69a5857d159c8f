//! `moeflux prompt`: what a chat request becomes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{moeflux, refuses, succeeds};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use moeflux_convert::synth::{SynthFormat, SynthOptions};
use moeflux_convert::synthesise;
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

/// A request with a picture, and its path.
fn with_picture(dir: &Path, name: &str, url: &str) -> String {
    let content = json!([{"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": {"url": url}}]);
    let path = dir.join(name);
    let request = json!({"messages": [{"role": "user", "content": content}]});
    fs::write(&path, request.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The first small model whose template writes this placeholder.
fn seeing(towers: &Path) -> PathBuf {
    let folders = towers.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let writes_it = |dir: &PathBuf| {
        let template = fs::read_to_string(dir.join("chat_template.jinja"));
        template.is_ok_and(|template| template.contains("<|image_pad|>"))
    };
    let mut folders: Vec<PathBuf> = folders.filter(writes_it).collect();
    folders.sort();
    folders.into_iter().next().expect("a template with this placeholder")
}

#[test]
fn pictures_are_placeholders_that_logits_takes() {
    let dir = tempfile::tempdir().unwrap();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let picture = crates.join("moeflux-image/tests/data/wide.png");
    let model = seeing(&crates.join("moeflux-engine/tests/towers"));
    let (model, picture_path) = (model.to_str().unwrap(), picture.to_str().unwrap());
    let url = format!("data:;base64,{}", BASE64_STANDARD.encode(fs::read(&picture).unwrap()));
    let request = with_picture(dir.path(), "request.json", &url);
    let shown = |more: &[&str]| {
        let args = ["prompt", "-m", model, "--request", &request, "--json"];
        let (shown, _) = succeeds(&[&args, more].concat());
        serde_json::from_str::<Value>(&shown).unwrap()
    };
    let n_placeholders = |shown: &Value| {
        let tokens = shown["tokens"].as_array().unwrap();
        tokens.iter().filter(|token| token["piece"] == "<|image_pad|>").count()
    };
    let whole = shown(&[]);
    let n_rows = n_placeholders(&whole);
    assert!(n_rows > 4, "{whole}");
    assert!(
        whole["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .all(|token| token["id"].as_u64() < Some(1 << 31))
    );
    assert!(n_placeholders(&shown(&["--image-tokens", "4"])) <= 4);
    // The note of a model that takes none.
    assert_eq!(n_placeholders(&shown(&["--no-mmproj"])), 0);

    let ids: Vec<&Value> =
        whole["tokens"].as_array().unwrap().iter().map(|token| &token["id"]).collect();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("logits"));
    fs::write(&tokens, serde_json::to_string(&[ids]).unwrap()).unwrap();
    let (tokens, out) = (tokens.to_str().unwrap(), out.to_str().unwrap());
    let args = ["logits", "-m", model, "--tokens", tokens, "--out", out, "--images"];
    succeeds(&[&args[..], &[picture_path]].concat());
    let other = crates.join("moeflux-image/tests/data/tiny.png");
    let other = other.to_str().unwrap();
    fs::remove_file(out).unwrap();
    refuses(&[&args[..], &[other]].concat(), 1, &["sequence 0"]);

    let damaged = with_picture(dir.path(), "damaged.json", "data:;base64,aGVsbG8=");
    let args = ["prompt", "-m", model, "--request", &damaged];
    refuses(&args, 1, &["damaged.json", "messages[0].content[1]"]);
}

/// What `synth` makes of a shape with a tower takes pictures in its template, with GGUF's tokenizer and that of a
/// checkpoint.
#[test]
fn made_up_models_take_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let picture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-image/tests/data/tiny.png");
    let url = format!("data:;base64,{}", BASE64_STANDARD.encode(fs::read(picture).unwrap()));
    let request = with_picture(dir.path(), "request.json", &url);
    for format in [SynthFormat::Gguf, SynthFormat::Mlx] {
        let out = dir.path().join(format!("{format:?}"));
        let n_layers = Some(4);
        let options = SynthOptions { is_hollow: true, format, n_layers, ..Default::default() };
        synthesise("qwen3.6-35b-a3b", &out, &options, &mut |_| {}).unwrap();
        let args = ["prompt", "-m", out.to_str().unwrap(), "--request", &request];
        let (text, _) = succeeds(&args);
        assert!(text.contains("<|im_start|>Look: <|image_pad|><|im_end|>"), "{format:?}: {text}");
    }
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
    fs::write(&file, r#"{"messages": [{"role": "user", "content": "x"}]}"#).unwrap();
    refuses(
        &["prompt", "--request", path, "--mmproj", "nowhere.gguf"],
        2,
        &["--mmproj nowhere.gguf"],
    );
}
