//! Whole loops of tool calls through the server, in every syntax: a call, its result, a second
//! call, its result, and an answer, with thoughts between.
//!
//! The models are scripted: attention and experts give nothing, so that each token decides the
//! next one, and the model says a fixed text after any prompt. The text is what the template
//! renders for the turn.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::server::Server;
use crate::templates::{TOKENS, letters, write_tokenizer};
use moeflux_core::Dialects;
use moeflux_text::{ChatTemplate, Message, RenderRequest, Tokenizer};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};

const END: &str = "<|im_end|>";

/// One turn of the model.
struct Turn {
    thought: &'static str,
    said: &'static str,
    city: Option<&'static str>,
}

const TURNS: [Turn; 3] = [
    Turn { thought: "First Oslo.", said: "", city: Some("Oslo") },
    Turn { thought: "Now Rome.", said: "", city: Some("Rome") },
    Turn { thought: "Both are known.", said: "Oslo is colder.", city: None },
];

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "Weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
            "required": ["city"]}}}])
}

/// What a template renders for a turn after a question, and how thinking may go on from the prompt.
fn written(template: &str, turn: &Turn, thinks: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    write_tokenizer(dir.path(), template, &[]);
    let tokenizer = Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap();
    let template = ChatTemplate::of(&tokenizer, true).unwrap().unwrap();
    let question = Message::new("user", "Which is colder?");
    let calls = turn.city.map(|city| {
        json!([{"id": "functions.get_weather:0", "type": "function", "function": {
            "name": "get_weather", "arguments": json!({"city": city}).to_string()}}])
    });
    let content = if turn.said.is_empty() { Value::Null } else { json!(turn.said) };
    let answer = Message {
        content: Some(content),
        reasoning_content: thinks.then(|| json!(turn.thought)),
        tool_calls: calls,
        ..Message::new("assistant", "")
    };
    let tools = tools();
    let render = |messages: &[Message], add_generation_prompt: bool| {
        let request = RenderRequest {
            messages,
            tools: Some(&tools),
            add_generation_prompt,
            ..RenderRequest::default()
        };
        template.render(&request).unwrap().text().to_owned()
    };
    let prompt = render(std::slice::from_ref(&question), true);
    let whole = render(&[question, answer], false);
    let same = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
    let start = if same == prompt.len() { same } else { prompt[..same].rfind('<').unwrap() };
    let mut text = &whole[start..];
    for end in [END, "<｜end▁of▁sentence｜>", "<|call|>", "[e~[", "</s>", "<|observation|>"] {
        text = text.split(end).next().unwrap();
    }
    // Where a template drops the last thoughts, the answer stands alone.
    text.trim_end_matches("<|end|>").to_owned()
}

/// Cuts a text into tokens. Line ends come once: models may leave them out.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let marks =
            TOKENS.iter().chain(&[END, "<think>", "</think>", "<tool_call>", "</tool_call>"]);
        let next = marks.filter_map(|mark| Some((rest.find(mark)?, mark.len())));
        let (at, len) =
            next.min_by_key(|(at, len)| (*at, usize::MAX - len)).unwrap_or((rest.len(), 0));
        let (plain, after) = rest.split_at(at);
        let is_space = plain.trim().is_empty() && pieces.iter().any(|piece| piece == plain);
        if !plain.is_empty() && !is_space {
            pieces.push(plain.to_owned());
        }
        if len > 0 {
            pieces.push(after[..len].to_owned());
        }
        rest = &after[len..];
    }
    pieces
}

/// Whether a turn can be scripted: each token decides the next.
fn is_scripted(pieces: &[String]) -> bool {
    let mut sorted = pieces.to_vec();
    sorted.sort();
    sorted.dedup();
    sorted.len() == pieces.len()
}

/// Writes a model that says `text`.
fn write_model(dir: &Path, template: &str, pieces: &[String]) {
    let plain: Vec<String> =
        pieces.iter().filter(|piece| !TOKENS.contains(&piece.as_str())).cloned().collect();
    let n_tokens = write_tokenizer(dir, template, &plain);
    let n_tokens = n_tokens.next_multiple_of(8);
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../moeflux-engine/tests/golden/qwen3_moe-hf");
    let mut config: Value =
        serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
    let hidden = config["hidden_size"].as_u64().unwrap() as usize;
    config["vocab_size"] = json!(n_tokens);
    config["num_hidden_layers"] = json!(1);
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("generation_config.json"), "{\"do_sample\": false}").unwrap();
    let tokenizer = Tokenizer::from_dir(dir, &Dialects::default()).unwrap();
    let script: Vec<usize> = pieces
        .iter()
        .map(|piece| tokenizer.id_of(piece).or_else(|| tokenizer.id_of(&letters(piece))).unwrap())
        .chain([tokenizer.eos_ids()[0]])
        .map(|id| id.0 as usize)
        .collect();
    assert!(script.len() < hidden);

    let bytes = fs::read(golden.join("model.safetensors")).unwrap();
    let source = SafeTensors::deserialize(&bytes).unwrap();
    // A row for each token: what the model is in after it, and what it says it in.
    let mut state = vec![0_u16; n_tokens * hidden];
    let mut says = state.clone();
    let one = half_one();
    state.iter_mut().step_by(hidden).for_each(|first| *first = one);
    for (step, id) in script.iter().enumerate() {
        state[id * hidden..][..hidden].fill(0);
        state[id * hidden + step + 1] = one;
        says[id * hidden + step] = one;
    }
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (name, tensor) in source.tensors() {
        if name.contains(".layers.") && !name.contains(".layers.0.") {
            continue;
        }
        let data = match name.as_str() {
            name if name.contains("down_proj") || name.contains("o_proj") => {
                vec![0; tensor.data().len()]
            }
            "model.norm.weight" => one.to_le_bytes().repeat(hidden),
            _ => tensor.data().to_vec(),
        };
        tensors.insert(name, (tensor.shape().to_vec(), data));
    }
    let to_bytes = |rows: Vec<u16>| rows.into_iter().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    let shape = vec![n_tokens, hidden];
    tensors.insert("model.embed_tokens.weight".into(), (shape.clone(), to_bytes(state)));
    tensors.insert("lm_head.weight".into(), (shape, to_bytes(says)));
    let views = tensors.iter().map(|(name, (shape, data))| {
        (name, TensorView::new(Dtype::BF16, shape.clone(), data).unwrap())
    });
    fs::write(dir.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
}

/// 1 in BF16.
fn half_one() -> u16 {
    (1.0_f32.to_bits() >> 16) as u16
}

/// Goes through the loop and gives the prompt of its last turn.
fn run_loop(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../moeflux-text/tests/templates")
        .join(format!("{name}.jinja"));
    let template = fs::read_to_string(path).unwrap();
    let mut messages = vec![json!({"role": "user", "content": "Which is colder?"})];
    let mut last_prompt = String::new();
    for turn in &TURNS {
        let mut text = written(&template, turn, true);
        let mut thinks = true;
        if !is_scripted(&pieces(&text)) {
            text = written(&template, turn, false);
            thinks = false;
        }
        let pieces = pieces(&text);
        assert!(is_scripted(&pieces), "{name}: {text}");
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), &template, &pieces);
        let server = Server::start(dir.path());
        let model = dir.path().file_name().unwrap().to_str().unwrap();
        let asked =
            json!({"model": model, "messages": messages, "tools": tools(), "max_tokens": 60});
        let (status, body) = server.post("/apply-template", &asked);
        assert_eq!(status, 200, "{name}: {body}");
        let prompt: Value = serde_json::from_str(&body).unwrap();
        last_prompt = prompt["prompt"].as_str().unwrap().to_owned();
        let (status, body) = server.post("/v1/chat/completions", &asked);
        assert_eq!(status, 200, "{name}: {body}");
        let reply: Value = serde_json::from_str(&body).unwrap();
        let choice = &reply["choices"][0];
        let message = &choice["message"];
        if thinks && text.contains(turn.thought) {
            assert_eq!(message["reasoning_content"], *turn.thought, "{name}: {text:?}: {body}");
        }
        let Some(city) = turn.city else {
            let said = message["content"].as_str().unwrap().trim_start();
            assert_eq!(said, turn.said, "{name}: {text:?}: {body}");
            assert_eq!(choice["finish_reason"], "stop", "{name}: {body}");
            continue;
        };
        assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {text:?}: {body}");
        let call = &message["tool_calls"][0];
        assert_eq!(call["function"]["name"], "get_weather");
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert_eq!(arguments, json!({"city": city}), "{name}: {body}");
        messages.push(message.clone());
        let result = format!("It is cold in {city}.");
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": result}));
    }
    last_prompt
}

#[test]
fn loops_of_calls_end_with_an_answer_in_every_syntax() {
    for name in [
        "hermes",
        "qwen_xml",
        "glm_4_5",
        "glm_4_7",
        "deepseek_v3",
        "deepseek_v3_1",
        "kimi",
        "harmony",
        "harmony_recipient_last",
        "minimax",
        "mistral",
    ] {
        let prompt = run_loop(name);
        for city in ["Oslo", "Rome"] {
            let result = format!("It is cold in {city}.");
            let call = prompt.find(city).unwrap_or_else(|| panic!("{name}: {prompt}"));
            let result = prompt.find(&result).unwrap_or_else(|| panic!("{name}: {prompt}"));
            assert!(call < result, "{name}: the call of {city} is missing: {prompt}");
        }
    }
}
