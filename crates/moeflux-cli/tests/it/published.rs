//! The table of published models: its sizes are those of checkpoints of the same shape and format.

use std::path::{Path, PathBuf};

use moeflux_convert::synth::{GgufMix, SynthFormat, SynthOptions};
use moeflux_convert::synthesise;
use moeflux_engine::{EngineOptions, inspect};
use serde_json::Value;

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/published.json")
}

/// The sizes of a checkpoint of a shape, without weights.
fn sizes(shape: &str, mix: Option<&str>) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join(shape);
    let mut options = SynthOptions { is_hollow: true, ..SynthOptions::default() };
    if let Some(mix) = mix {
        options.format = SynthFormat::Gguf;
        options.mix = GgufMix::by_name(mix).unwrap_or_else(|| panic!("no mix is called {mix}"));
    }
    synthesise(shape, &out, &options, &mut |_| {}).unwrap_or_else(|err| panic!("{shape}: {err}"));
    let facts = inspect(&out, &EngineOptions::default()).unwrap();
    serde_json::to_value(facts.sizes).unwrap()
}

#[test]
fn the_table_has_the_sizes_of_its_shapes() {
    let text = std::fs::read_to_string(table()).unwrap();
    let mut all: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(all.len() >= 10);
    let mut known = std::collections::BTreeMap::new();
    for model in &mut all {
        let (shape, mix) = (model["shape"].as_str().unwrap(), model["type"].as_str());
        let key = format!("{shape} {mix:?}");
        let made = known.entry(key).or_insert_with(|| sizes(shape, mix)).clone();
        model["sizes"] = made;
    }
    let made = serde_json::to_string_pretty(&all).unwrap() + "\n";
    if std::env::var_os("MOEFLUX_WRITE_DOCS").is_some_and(|flag| flag == "1") {
        return std::fs::write(table(), made).unwrap();
    }
    let command = "MOEFLUX_WRITE_DOCS=1 cargo test -p moeflux-cli --test it published::";
    assert!(text == made, "src/published.json is not current; write it with {command}");
}
