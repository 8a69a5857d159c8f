//! What models write around tool calls: the parser finds the same in it however it is cut.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use moeflux_engine::dialects;
use moeflux_text::{Delta, OutputFormat, OutputParser, Tokenizer, ToolSyntax};
use serde_json::{Value, json};

static FORMAT: LazyLock<OutputFormat> = LazyLock::new(|| {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/moeflux-cli/demo");
    OutputFormat::of(&Tokenizer::from_dir(Path::new(dir), dialects()).expect("the demo model's"))
});

static TOOLS: LazyLock<Value> = LazyLock::new(|| {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}});
    json!([{"type": "function", "function": {"name": "f", "parameters": schema}}])
});

/// All of a kind that follows itself as one.
fn joined(deltas: Vec<Delta>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for delta in deltas {
        let (kind, text) = match delta {
            Delta::Content(text) => ('c', text),
            Delta::Reasoning(text) => ('r', text),
            Delta::Call { name } => ('f', name),
            Delta::Arguments(text) => ('a', text),
        };
        match all.last_mut() {
            Some(last) if kind != 'f' && last.starts_with(kind) => last.push_str(&text),
            _ => all.push(format!("{kind}{text}")),
        }
    }
    all
}

fuzz_target!(|input: (u8, bool, Vec<&str>)| {
    let (syntax, is_thinking, pieces) = input;
    let syntax = ToolSyntax::ALL[usize::from(syntax) % ToolSyntax::ALL.len()];
    let format = FORMAT.clone().with_syntax(syntax);
    let parse = |pieces: &[&str]| {
        let mut parser = OutputParser::new(&format, Some(&TOOLS), is_thinking);
        let mut deltas: Vec<Delta> = pieces.iter().flat_map(|text| parser.push(text)).collect();
        deltas.extend(parser.finish());
        joined(deltas)
    };
    assert_eq!(parse(&pieces), parse(&[&pieces.concat()]));
});
