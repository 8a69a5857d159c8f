//! Folders with a chat template and a tokenizer that has the control tokens of its family.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// Control tokens of the families; those that a template names are added to the demo model's.
pub(crate) const TOKENS: [&str; 66] = [
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "[gMASK]",
    "<sop>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "]~!b[",
    "]~b]",
    "[e~[",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "｜DSML｜",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|call|>",
    "<|return|>",
    "[TOOL_CALLS]",
    "[INST]",
    "[/INST]",
    "</s>",
    "<|turn>",
    "<turn|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|channel>",
    "<channel|>",
    "<|think|>",
    "<|\"|>",
];

/// Writes the demo model's tokenizer with the control tokens that `template` names, and with
/// `pieces` as further tokens of plain text. Gives the number of tokens.
pub(crate) fn write_tokenizer(dir: &Path, template: &str, pieces: &[String]) -> usize {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    for file in ["generation_config.json", "config.json"] {
        fs::copy(demo.join(file), dir.join(file)).unwrap();
    }
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(demo.join(name)).unwrap()).unwrap()
    };
    let mut json = read("tokenizer.json");
    // Added tokens have the ids after those of the vocabulary, without gaps.
    let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
    for piece in pieces {
        let id = vocabulary.len();
        vocabulary.entry(letters(piece)).or_insert_with(|| json!(id));
    }
    let n_plain = vocabulary.len();
    let added = json["added_tokens"].as_array_mut().unwrap();
    let known: Vec<String> =
        added.iter().map(|token| token["content"].as_str().unwrap().to_owned()).collect();
    for token in TOKENS.iter().filter(|token| known.iter().all(|known| known != *token)) {
        // Templates put some together from pieces.
        if template.contains(token.trim_matches(['<', '>', '[', ']', '/', '|'])) {
            let mut one = added[0].clone();
            one["content"] = json!(token);
            added.push(one);
        }
    }
    for (token, id) in added.iter_mut().zip(n_plain..) {
        token["id"] = json!(id);
    }
    let n_tokens = n_plain + added.len();
    fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
    let mut config = read("tokenizer_config.json");
    config["chat_template"] = json!(template);
    fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    n_tokens
}

/// A text as byte-level vocabularies write it.
pub(crate) fn letters(text: &str) -> String {
    text.bytes().map(letter).collect()
}

/// The letter that stands for a byte in byte-level vocabularies, as GPT-2 has them.
fn letter(byte: u8) -> char {
    let is_shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_shown(byte) {
        char::from(byte)
    } else {
        let n_before = (0..byte).filter(|other| !is_shown(*other)).count();
        char::from_u32(256 + n_before as u32).unwrap()
    }
}
