//! `moeflux logits`: logits of token sequences, for comparison with references.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use moeflux_engine::{Engine, TokenId};
use serde_json::{Map, json};

use crate::args::LogitsArgs;
use crate::model;
use crate::progress::{Bar, Unit};

pub(crate) fn run(args: &LogitsArgs) -> Result<()> {
    let sequences = read_tokens(&args.tokens)?;
    let engine = model::open(&args.model, args.exact, false)?;
    let partial = PartialFile::create(&args.out)?;
    write(&engine, &sequences, &partial)
        .and_then(|()| partial.publish())
        .with_context(|| format!("--out {}", args.out.display()))
}

fn read_tokens(path: &Path) -> Result<Vec<Vec<TokenId>>> {
    let name = || format!("--tokens {}", path.display());
    let bytes = fs::read(path).with_context(name)?;
    let ids: Vec<Vec<u32>> = serde_json::from_slice(&bytes)
        .with_context(|| format!("{}: an array of arrays of token ids is needed", name()))?;
    Ok(ids.into_iter().map(|it| it.into_iter().map(TokenId).collect()).collect())
}

fn write(engine: &Engine, sequences: &[Vec<TokenId>], partial: &PartialFile) -> Result<()> {
    let vocab = engine.shape().vocab;
    let mut out = BufWriter::new(&partial.file);
    out.write_all(&header(sequences, vocab)?)?;
    let n_tokens: usize = sequences.iter().map(Vec::len).sum();
    let mut bar = Bar::new("evaluating", Unit::Tokens, false);
    let mut n_done = 0;
    for (i, tokens) in sequences.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
        let mut failed = None;
        let mut sink = |_, logits: &[f32]| {
            if failed.is_none() {
                let bytes: Vec<u8> = logits.iter().flat_map(|it| it.to_le_bytes()).collect();
                failed = out.write_all(&bytes).err();
            }
            n_done += 1;
            bar.set(n_done, n_tokens as u64);
            Ok(())
        };
        engine.session().eval_all(tokens, &mut sink).with_context(|| format!("sequence {i}"))?;
        if let Some(err) = failed {
            return Err(err.into());
        }
    }
    out.flush()?;
    Ok(())
}

/// The safetensors header: its length, then JSON padded to eight bytes.
fn header(sequences: &[Vec<TokenId>], vocab: usize) -> Result<Vec<u8>> {
    let mut tensors = Map::new();
    let mut start = 0;
    for (i, tokens) in sequences.iter().enumerate() {
        let end = start + tokens.len() * vocab * size_of::<f32>();
        let tensor =
            json!({"dtype": "F32", "shape": [tokens.len(), vocab], "data_offsets": [start, end]});
        tensors.insert(format!("logits.{i}"), tensor);
        start = end;
    }
    let mut json = serde_json::to_vec(&tensors)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    Ok(bytes)
}

/// A file that gets its name when it is whole.
struct PartialFile {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl PartialFile {
    fn create(target: &Path) -> Result<PartialFile> {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let path = target.with_file_name(name);
        let file =
            File::create(&path).with_context(|| format!("--out {}", target.display()))?;
        Ok(PartialFile { file, path, target: target.to_path_buf() })
    }

    fn publish(&self) -> Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.target)?;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Gone already if it was published.
        let _ = fs::remove_file(&self.path);
    }
}
