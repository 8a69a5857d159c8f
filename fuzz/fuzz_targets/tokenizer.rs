//! A tokenizer of a downloaded model, and text for it.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use moeflux_engine::dialects;
use moeflux_text::{Markup, Tokenizer};

fuzz_target!(|input: (&str, &[u8])| {
    let (text, json) = input;
    let dir = tempfile::tempdir().expect("a folder for the tokenizer");
    fs::write(dir.path().join("tokenizer.json"), json).expect("room for the tokenizer");
    let Ok(tokenizer) = Tokenizer::from_dir(dir.path(), dialects()) else { return };
    let Ok(ids) = tokenizer.encode(text, Markup::Literal) else { return };
    let _ = tokenizer.decode(&ids);
});
