//! Pictures in requests of all dialects, to a small model that sees.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use moeflux_engine::{Activations, Engine, EngineOptions};
use moeflux_server::Server;
use serde_json::{Value, json};

use crate::common::{Running, options, start};

/// A small model whose vision tower also adds to layers of the text. transformers 5.24 makes [`ANSWER`] of
/// [`PROMPT_TOKENS`] with it.
fn folder() -> PathBuf {
    let towers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-engine/tests/towers");
    let folders = towers.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut folders = folders.filter(|path| path.is_dir());
    let is_it = |path: &PathBuf| {
        let config = std::fs::read(path.join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let layers = config["vision_config"]["deepstack_visual_indexes"].as_array();
        layers.is_some_and(|layers| !layers.is_empty())
    };
    folders.find(is_it).expect("a tower that adds to layers")
}

/// Tokens of a question with one picture, of which 8 are the picture's.
const PROMPT_TOKENS: usize = 45;

/// What the model says to it.
const ANSWER: &str = "S\u{fffd}_\u{fffd} th\u{2}]\u{fffd}4 th<\u{fffd}";

fn seeing() -> Running {
    let options = options();
    let engine =
        EngineOptions::default().sessions(Some(options.n_sessions)).activations(Activations::Full);
    Running::of(Server::bind(Engine::open(&folder(), &engine).unwrap(), options).unwrap())
}

fn base64(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-image/tests/data");
    BASE64_STANDARD.encode(std::fs::read(data.join(name)).unwrap())
}

fn data_url(name: &str) -> String {
    format!("data:image/png;base64,{}", base64(name))
}

fn asking(content: Value) -> Value {
    json!({"model": "demo", "temperature": 0, "max_tokens": 12,
        "messages": [{"role": "user", "content": content}]})
}

/// The question with a picture as these parts of a dialect.
fn parts(kind: &str, picture: Value) -> Value {
    json!([{"type": kind, "text": "Look: "}, picture, {"type": kind, "text": " What is it?"}])
}

#[test]
fn every_dialect_shows_the_same_picture() {
    let server = seeing();
    let url = data_url("alpha.png");
    for picture in [
        json!({"type": "image_url", "image_url": {"url": url, "detail": "auto"}}),
        json!({"type": "image_url", "image_url": url}),
        json!({"image_url": {"url": url}}),
        json!({"type": "input_image", "image_url": url, "detail": "high"}),
    ] {
        let reply = server.post("/v1/chat/completions", &asking(parts("text", picture))).json();
        assert_eq!(reply["usage"]["prompt_tokens"], PROMPT_TOKENS, "{reply}");
        assert_eq!(reply["choices"][0]["message"]["content"], ANSWER);
    }
    let picture = json!({"type": "image_url", "image_url": {"url": url}});
    let shown = server.post("/apply-template", &asking(parts("text", picture))).json();
    assert!(shown["prompt"].as_str().unwrap().contains("<|image_pad|>"), "{shown}");

    let picture = json!({"type": "input_image", "image_url": url});
    let input = json!([{"role": "user", "content": parts("input_text", picture)}]);
    let asked = json!({"model": "demo", "temperature": 0, "max_output_tokens": 12, "input": input});
    let reply = server.post("/v1/responses", &asked).json();
    assert_eq!(reply["usage"]["input_tokens"], PROMPT_TOKENS, "{reply}");
    assert_eq!(reply["output"][0]["content"][0]["text"], ANSWER);

    // Clients name a type that is not the picture's, and wrap lines.
    let mut data = base64("alpha.png");
    data.insert(76, '\n');
    let source = json!({"type": "base64", "media_type": "image/jpeg", "data": data});
    let asked = asking(parts("text", json!({"type": "image", "source": source})));
    let reply = server.post("/v1/messages", &asked).json();
    assert_eq!(reply["content"][0]["text"], ANSWER, "{reply}");
    let usage = &reply["usage"];
    let n_prompt = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
        .map(|name| usage[name].as_u64().unwrap_or_default());
    assert_eq!(n_prompt.iter().sum::<u64>(), PROMPT_TOKENS as u64, "{usage}");
    let counted = server.post("/v1/messages/count_tokens", &asked).json();
    assert_eq!(counted["input_tokens"], PROMPT_TOKENS);
}

#[test]
fn ollamas_images_stand_before_the_text() {
    let server = seeing();
    let picture = json!({"type": "image_url", "image_url": data_url("alpha.png")});
    let asked = asking(json!([picture, {"type": "text", "text": "What is it?"}]));
    let chat = server.post("/v1/chat/completions", &asked).json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();
    let images = json!([base64("alpha.png")]);
    let options = json!({"temperature": 0, "num_predict": 12});
    let message = json!({"role": "user", "content": "What is it?", "images": images});
    let asked =
        json!({"model": "demo", "stream": false, "options": options, "messages": [message]});
    let reply = server.post("/api/chat", &asked).json();
    assert_eq!(reply["message"]["content"], text, "{reply}");
    assert_eq!(reply["prompt_eval_count"], chat["usage"]["prompt_tokens"]);
    let asked = json!({"model": "demo", "stream": false, "options": options,
        "prompt": "What is it?", "images": images});
    let reply = server.post("/api/generate", &asked).json();
    assert_eq!(reply["response"], text, "{reply}");
    // What clients send back has tokens of the vocabulary alone.
    let context = reply["context"].as_array().unwrap();
    assert!(context.iter().all(|token| token.as_u64().unwrap() < 1 << 31), "{context:?}");
    let again = json!({"model": "demo", "stream": false, "options": options,
        "prompt": "And now?", "images": images, "context": context});
    assert!(server.post("/api/generate", &again).json()["response"].is_string());
    for field in ["raw", "suffix"] {
        let mut refused = asked.clone();
        refused[field] = if field == "raw" { json!(true) } else { json!("end") };
        let reply = server.post("/api/generate", &refused);
        assert_eq!(reply.status, 400);
        assert!(reply.body.contains("images"), "{}", reply.body);
    }
}

#[test]
fn results_of_tools_show_pictures() {
    let server = seeing();
    let source = json!({"type": "base64", "media_type": "image/png", "data": base64("alpha.png")});
    let turns = |content: Value| {
        json!({"model": "demo", "temperature": 0, "max_tokens": 12, "messages": [
            {"role": "user", "content": "Read it."},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "t", "name": "read", "input": {}}]},
            {"role": "user", "content": [
                {"type": "image", "source": {"type": "url", "url": data_url("tiny.png")}},
                {"type": "tool_result", "tool_use_id": "t", "content": content},
                {"type": "text", "text": "Well?"}]},
        ]})
    };
    let count = |content: Value| {
        let reply = server.post("/v1/messages/count_tokens", &turns(content)).json();
        reply["input_tokens"].as_u64().unwrap_or_else(|| panic!("{reply}"))
    };
    let without = count(json!([{"type": "text", "text": "A picture."}]));
    let with = count(json!([{"type": "text", "text": "A picture."},
        {"type": "image", "source": source}]));
    assert!(with >= without + 8, "{with} after {without}");
    let asked = turns(json!([{"type": "image", "source": source}]));
    let reply = server.post("/v1/messages", &asked);
    assert_eq!(reply.status, 200, "{}", reply.body);

    let output = json!([{"type": "input_image", "image_url": data_url("alpha.png")}]);
    let input = json!([{"role": "user", "content": "Read it."},
        {"type": "function_call", "call_id": "t", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": output}]);
    let asked = json!({"model": "demo", "temperature": 0, "max_output_tokens": 12, "input": input});
    let reply = server.post("/v1/responses", &asked).json();
    assert!(reply["usage"]["input_tokens"].as_u64().unwrap() > 16, "{reply}");
}

#[test]
fn pictures_that_cannot_be_seen_are_refused_by_their_place() {
    let server = seeing();
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let refusal = |content: Value| {
        let reply = server.post("/v1/chat/completions", &asking(content));
        assert_eq!(reply.status, 400, "{}", reply.body);
        let error = reply.json()["error"].clone();
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        (text("param"), text("message"))
    };
    let damaged = format!("data:image/png;base64,{}", &base64("alpha.png")[..400]);
    for (url, problem) in [
        ("data:image/png;base64,aGVsbG8=", ""),
        ("data:image/png;base64,????", "base64"),
        (damaged.as_str(), ""),
        ("https://example.org/a.png", "fetches no images"),
        ("file:///etc/hostname", "data URL"),
        ("/etc/hostname", "data URL"),
    ] {
        let (param, message) = refusal(json!([{"type": "text", "text": "?"}, image(url)]));
        assert!(param.starts_with("messages[0].content[1]"), "{param}: {message}");
        assert!(message.contains(problem) && message.len() < 400, "{message}");
    }
    let (param, message) = refusal(json!([{"type": "image_url"}]));
    assert_eq!(param, "messages[0].content[0]", "{message}");
    let tiny = image(&data_url("tiny.png"));
    let (param, message) = refusal(Value::from(vec![tiny; 101]));
    assert_eq!(param, "messages[0].content[100]", "{message}");
    assert!(message.contains("100 images"), "{message}");
}

#[test]
fn a_model_says_whether_it_sees() {
    let (seeing, blind) = (seeing(), start(options()));
    for (server, sees) in [(&seeing, true), (&blind, false)] {
        let card = server.get("/v1/models/demo").json();
        assert_eq!(card["capabilities"]["image_input"]["supported"], sees, "{card}");
        assert_eq!(card["capabilities"]["vision"], sees);
        let kinds = card["architecture"]["input_modalities"].as_array().unwrap();
        assert_eq!(kinds.contains(&json!("image")), sees);
        assert_eq!(server.get("/props").json()["modalities"]["vision"], sees);
        let shown = server.post("/api/show", &json!({"model": "demo"})).json();
        let can = shown["capabilities"].as_array().unwrap();
        assert_eq!(can.contains(&json!("vision")), sees, "{can:?}");
    }
    // A model without a tower says that a picture is left out, and refuses a question that is nothing else.
    let picture = json!({"type": "image_url", "image_url": {"url": data_url("alpha.png")}});
    let alone = blind.post("/v1/chat/completions", &asking(json!([picture])));
    assert_eq!(alone.status, 400, "{}", alone.body);
    let asked = asking(parts("text", picture));
    assert_eq!(blind.post("/v1/chat/completions", &asked).status, 200);
}
