//! Token ids of texts, to compare a model's tokenizer with a reference
//! (`tools/tokenizers/compare.py`).
//!
//!     tokenize MODEL < TEXTS
//!
//! `MODEL` is a directory or a file of a checkpoint. `TEXTS` has a JSON string on every line. Each is answered by a line with a JSON object: `ids`,
//! control tokens counted; `literal`, with none; and `text`, which is `ids` decoded. The first line
//! of the answer says how long opening took.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::PathBuf;
use std::time::Instant;

use moeflux_engine::dialects;
use moeflux_text::{Markup, TextSource, Tokenizer};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model =
        std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: tokenize MODEL < TEXTS")?;
    let start = Instant::now();
    // The keys of a GGUF file need no family that runs it.
    let is_gguf = model.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
    let source =
        if is_gguf { TextSource::Gguf(model) } else { TextSource::at(&model, dialects())? };
    let tokenizer = Tokenizer::open(&source, dialects())?;
    let seconds = start.elapsed().as_secs_f64();
    let mut out = stdout().lock();
    let facts = json!({
        "files": source.names()?,
        "seconds": seconds,
        "vocab_size": tokenizer.vocab_size(),
        "bos": tokenizer.bos_id().map(|id| id.0),
        "eos": tokenizer.eos_ids().iter().map(|id| id.0).collect::<Vec<_>>(),
    });
    writeln!(out, "{facts}")?;
    for line in stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        let ids = tokenizer.encode(&text, Markup::Parse)?;
        let literal = tokenizer.encode(&text, Markup::Literal)?;
        let numbers = |ids: &[moeflux_core::TokenId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        let answer = json!({
            "ids": numbers(&ids),
            "literal": numbers(&literal),
            "text": tokenizer.decode(&ids),
        });
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
