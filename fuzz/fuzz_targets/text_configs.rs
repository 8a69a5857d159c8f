//! `tokenizer_config.json` and `generation_config.json` of a downloaded model.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use moeflux_engine::dialects;
use moeflux_text::{ChatTemplate, Message, OutputFormat, RenderRequest, Tokenizer};

const TOKENIZER: &[u8] =
    include_bytes!("../../crates/moeflux-engine/tests/golden/hf-bf16/tokenizer.json");

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a folder for the tokenizer");
    fs::write(dir.path().join("tokenizer.json"), TOKENIZER).expect("room for the tokenizer");
    dir
});

fuzz_target!(|input: &str| {
    // The tokenizer's, a line's end, the generation's.
    let (text, generation) = input.split_once('\n').unwrap_or((input, "{}"));
    let dir = DIR.path();
    fs::write(dir.join("tokenizer_config.json"), text).expect("room for a config");
    fs::write(dir.join("generation_config.json"), generation).expect("room for a config");
    let Ok(tokenizer) = Tokenizer::from_dir(dir, dialects()) else { return };
    let _ = (tokenizer.generation_defaults(), OutputFormat::of(&tokenizer));
    let _ = tokenizer.encode_prompt("a", usize::MAX);
    if let Some(Ok(template)) = ChatTemplate::of(&tokenizer, false) {
        let messages = [Message::new("user", "a")];
        let _ = template.render(&RenderRequest { messages: &messages, ..Default::default() });
    }
});
