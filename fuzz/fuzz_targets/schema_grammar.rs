//! JSON schemas of clients as grammars: one that is refused is refused, and one that is not leads on.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use moeflux_engine::dialects;
use moeflux_text::{AnswerShape, Grammar, Grammars, OutputFormat, Tokenizer};

/// A vocabulary, and what grammars of it share.
struct Model {
    tokenizer: Arc<Tokenizer>,
    grammars: Grammars,
}

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/moeflux-cli/demo");
    let tokenizer = Arc::new(Tokenizer::from_dir(Path::new(dir), dialects()).expect("the demo model's"));
    let grammars = Grammars::new(&tokenizer).expect("its tokens end answers");
    Model { tokenizer, grammars }
});

fuzz_target!(|input: &[u8]| {
    // The first byte, a digit in seeds, tells whether it is a tool's.
    let Some((kind, json)) = input.split_first() else { return };
    let is_tool = kind % 2 == 1;
    let Ok(schema) = serde_json::from_slice::<serde_json::Value>(json) else { return };
    let tool = serde_json::json!({
        "type": "function", "function": {"name": "f", "parameters": schema},
    });
    let grammar = Grammar {
        format: OutputFormat::of(&MODEL.tokenizer),
        is_thinking: false,
        shape: if is_tool { AnswerShape::Text } else { AnswerShape::Json(schema) },
        tools: if is_tool { vec![tool] } else { Vec::new() },
        must_call: is_tool,
        may_call_many: false,
    };
    let Ok(mut constraint) = MODEL.grammars.compile(&grammar) else { return };
    let mut logits = vec![0.0; MODEL.tokenizer.vocab_size()];
    let _ = constraint.restrict(&mut logits);
});
