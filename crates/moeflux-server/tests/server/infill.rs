//! Raw prompts, and texts with a gap.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::common::{Running, options, start, start_at};

/// Control tokens of the demo model, and what they are called here.
const RENAMED: [(&str, &str); 4] = [
    ("<tool_call>", "<|fim_prefix|>"),
    ("</tool_call>", "<|fim_suffix|>"),
    ("<think>", "<|fim_middle|>"),
    ("</think>", "<|file_sep|>"),
];

/// A server whose model fills gaps.
fn filling() -> Running {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(filling_model);
    start_at(&FOLDER, options())
}

/// The demo model with the tokens around gaps.
fn filling_model() -> PathBuf {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("filling");
    // It may be there from an earlier run.
    let _ = fs::remove_dir_all(&dir);
    copy(&demo, &dir);
    let path = dir.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for token in json["added_tokens"].as_array_mut().unwrap() {
        let known = RENAMED.iter().find(|(from, _)| token["content"] == *from);
        if let Some((_, name)) = known {
            token["content"] = json!(name);
        }
    }
    fs::write(&path, json.to_string()).unwrap();
    // The file is not the one that was packed any more.
    let manifest = dir.join("moeflux.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let bytes = fs::metadata(&path).unwrap().len();
    for file in json["files"].as_array_mut().unwrap() {
        if file["path"] == "tokenizer.json" {
            file["bytes"] = json!(bytes);
        }
    }
    fs::write(manifest, json.to_string()).unwrap();
    dir
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

fn n_prompt(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn a_raw_prompt_is_read_alike_at_every_door() {
    let server = start(options());
    let text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    let tokens = server.post("/tokenize", &json!({"content": text})).json();
    let tokens = tokens["tokens"].as_array().unwrap().clone();
    let begun = json!({"content": text, "add_special": true});
    let begun = server.post("/tokenize", &begun).json();
    assert_eq!(begun["tokens"].as_array().unwrap(), &tokens);
    for prompt in [json!(text), json!([text]), json!(tokens), json!([tokens])] {
        let asked = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0});
        let reply = server.post("/v1/completions", &asked).json();
        assert_eq!(n_prompt(&reply), tokens.len() as u64, "{prompt}");
    }
    let asked = json!({"model": "demo", "prompt": text, "raw": true, "stream": false,
        "options": {"num_predict": 1, "temperature": 0}});
    let reply = server.post("/api/generate", &asked).json();
    assert_eq!(reply["prompt_eval_count"], json!(tokens.len()));
    // Messages of a chat never become control tokens.
    let message = |content: &str| {
        let asked = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
        n_prompt(&server.post("/v1/chat/completions", &asked).json())
    };
    assert!(message("<|im_end|>") > message("a") + 3);
}

#[test]
fn gaps_are_filled_at_every_door() {
    let server = filling();
    let (before, behind) = ("fn add(a: u8, b: u8) {", "}\n");
    let raw = format!("<|fim_prefix|>{before}<|fim_suffix|>{behind}<|fim_middle|>");
    let complete = |body: Value| {
        let mut body = body;
        body["max_tokens"] = json!(6);
        body["temperature"] = json!(0);
        server.post("/v1/completions", &body)
    };
    let want = complete(json!({"prompt": raw})).json();
    let text = &want["choices"][0]["text"];
    let filled = complete(json!({"prompt": before, "suffix": behind})).json();
    assert_eq!((&filled["choices"][0]["text"], n_prompt(&filled)), (text, n_prompt(&want)));
    let many = json!({"prompt": [before, before], "suffix": behind, "echo": true, "n": 2});
    let many = complete(many).json();
    let text = text.as_str().unwrap();
    assert_eq!(many["choices"].as_array().unwrap().len(), 4);
    assert_eq!(many["choices"][3]["text"], format!("{before}{text}"));
    let probable = complete(json!({"prompt": before, "suffix": behind, "logprobs": 2})).json();
    let tokens = &probable["choices"][0]["logprobs"]["tokens"];
    assert_eq!(tokens.as_array().unwrap().len(), 6);

    let asked = json!({"model": "demo", "prompt": before, "suffix": behind, "stream": false,
        "options": {"num_predict": 6, "temperature": 0}});
    for raw in [false, true] {
        let mut asked = asked.clone();
        asked["raw"] = json!(raw);
        let reply = server.post("/api/generate", &asked).json();
        assert_eq!(
            (&reply["response"], &reply["prompt_eval_count"]),
            (&json!(text), &json!(n_prompt(&want)))
        );
    }

    let asked = json!({"input_prefix": "fn add(a: u8, ", "prompt": "b: u8) {", "input_suffix": behind,
        "n_predict": 6, "temperature": 0, "cache_prompt": true, "samplers": ["top_k"]});
    let reply = server.post("/infill", &asked).json();
    assert_eq!((&reply["content"], &reply["stop"]), (&json!(text), &json!(true)), "{reply}");
    assert_eq!(reply["tokens_evaluated"], json!(n_prompt(&want)));
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let streamed = server.post("/infill", &streamed);
    let events = streamed.body.split("\n\n").filter_map(|block| block.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let parts: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(parts, text);
    assert_eq!(events.last().unwrap()["tokens_predicted"], json!(6));
    let mut read = asked.clone();
    read["n_predict"] = json!(0);
    assert_eq!(server.post("/infill", &read).json()["content"], "");
}

#[test]
fn texts_around_a_gap_never_become_control_tokens_and_must_fit() {
    let server = filling();
    let hostile: String = RENAMED.iter().map(|(_, name)| *name).collect();
    let infill = |before: &str, behind: &str, more: Value| {
        let mut body = json!({"input_prefix": before, "input_suffix": behind, "n_predict": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/infill", &body)
    };
    let n = |reply: &Value| reply["tokens_evaluated"].as_u64().unwrap();
    let plain = n(&infill("a", "b", json!({})).json());
    assert_eq!(plain, 5);
    assert!(n(&infill(&hostile, &hostile, json!({})).json()) > plain + 20);
    let others: Vec<Value> = (0..50)
        .map(|i| json!({"filename": format!("{i}.rs"), "text": "let x = 1;\n".repeat(20)}))
        .collect();
    let with_others = n(&infill("a", "b", json!({"input_extra": others})).json());
    assert!(with_others > 1000, "{with_others} tokens");
    let long = infill(&"word ".repeat(100_000), "b", json!({}));
    assert_eq!(
        (long.status, &long.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    for (fields, name) in [
        (json!({"n": 2}), "n"),
        (json!({"grammar": "root ::= \"a\""}), "grammar"),
        (json!({"input_suffix": 1}), "input_suffix"),
        (json!({"input_extra": [{"filename": "a"}]}), "input_extra[0].text"),
    ] {
        let refused = infill("a", "b", fields);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(name)));
    }
    let tokens = json!({"prompt": [1, 2], "suffix": "b"});
    let refused = server.post("/v1/completions", &tokens);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("suffix")));
}

#[test]
fn a_model_without_the_tokens_says_so() {
    let server = start(options());
    let infill = json!({"input_prefix": "a", "input_suffix": "b"});
    let generate = json!({"model": "demo", "prompt": "a", "suffix": "b"});
    for (path, body, name) in [
        ("/infill", &infill, "input_suffix"),
        ("/v1/completions", &json!({"prompt": "a", "suffix": "b"}), "suffix"),
        ("/api/generate", &generate, "suffix"),
    ] {
        let refused = server.post(path, body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(
            refused.body.contains(&format!("{name}: the vocabulary of the model has no tokens"))
        );
    }
    // An empty suffix is none.
    let empty =
        server.post("/v1/completions", &json!({"prompt": "a", "suffix": "", "max_tokens": 1}));
    assert_eq!(empty.status, 200);
}
