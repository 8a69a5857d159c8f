//! `moeflux logits`: logits of token sequences, for comparison with references.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use moeflux_engine::{Engine, EngineError, PromptPicture, TokenId};
use moeflux_text::Turn;
use serde_json::{Map, json};

use crate::args::LogitsArgs;
use crate::files::OutFile;
use crate::progress::{Bar, Unit};
use crate::{model, pictures};

pub(crate) fn run(args: &LogitsArgs) -> Result<()> {
    let sequences = read_tokens(&args.tokens)?;
    let out = OutFile::create(&args.out).with_context(|| out_name(args))?;
    let engine = model::open(&args.model, args.exact, false)?;
    check(&engine, &sequences).with_context(|| tokens_name(&args.tokens))?;
    let sequences = with_pictures(&engine, sequences, args)?;
    evaluate(&engine, &sequences, &out, args)?;
    out.publish().with_context(|| out_name(args))
}

fn tokens_name(path: &Path) -> String {
    format!("--tokens {}", path.display())
}

fn out_name(args: &LogitsArgs) -> String {
    format!("--out {}", args.out.display())
}

fn read_tokens(path: &Path) -> Result<Vec<Vec<TokenId>>> {
    let bytes = crate::files::read(path).with_context(|| tokens_name(path))?;
    let ids: Vec<Vec<u32>> = serde_json::from_slice(&bytes).map_err(|err| {
        let (name, problem) = (tokens_name(path), moeflux_core::json_problem(&err));
        anyhow!("{name}: {problem}; a list of lists of token ids is needed, as [[1, 2, 3]]")
    })?;
    Ok(ids.into_iter().map(|id| id.into_iter().map(TokenId).collect()).collect())
}

/// Finds what would fail after a long time.
fn check(engine: &Engine, sequences: &[Vec<TokenId>]) -> Result<()> {
    let (vocab, limit) = (engine.shape().vocab, engine.plan().ctx);
    ensure!(!sequences.is_empty(), "there is no sequence; give at least one, of one token or more");
    for (i, tokens) in sequences.iter().enumerate() {
        ensure!(!tokens.is_empty(), "sequence {i} is empty; it needs at least one token");
        let refuse = |err: EngineError| Err(err).with_context(|| format!("sequence {i}"));
        if let Some(&token) = tokens.iter().find(|token| token.0 as usize >= vocab) {
            return refuse(EngineError::TokenOutOfRange { token, vocab });
        }
        if tokens.len() > limit {
            return refuse(EngineError::ContextFull { wanted: tokens.len(), limit });
        }
    }
    Ok(())
}

/// A sequence, and the pictures whose rows it has.
struct Sequence {
    tokens: Vec<TokenId>,
    pictures: Vec<PromptPicture>,
}

/// The sequences with the rows of `--images` in place of placeholders.
fn with_pictures(
    engine: &Engine,
    sequences: Vec<Vec<TokenId>>,
    args: &LogitsArgs,
) -> Result<Vec<Sequence>> {
    if args.images.is_empty() {
        let plain = |tokens| Sequence { tokens, pictures: Vec::new() };
        return Ok(sequences.into_iter().map(plain).collect());
    }
    let tokenizer = engine.tokenizer()?;
    let seen = pictures::see_files(engine, &args.images, "--images", false)?;
    let mut left = &seen[..];
    let placed = sequences.into_iter().enumerate().map(|(i, tokens)| {
        let n_rows = tokenizer.n_placeholders(&tokens);
        let mut n = 0;
        let of_sequence = left.iter().take_while(|seen| {
            n += seen.rows().n_rows;
            n <= n_rows
        });
        let (its, rest) = left.split_at(of_sequence.count());
        left = rest;
        let rows: Vec<_> = its.iter().map(|seen| seen.rows()).collect();
        let turn = if rows.is_empty() && n_rows > 0 {
            bail!(
                "sequence {i} has {n_rows} tokens in place of pictures, and --images has no more"
            );
        } else {
            Turn::with_pictures(&tokenizer, tokens, &rows)
        };
        let turn = turn.with_context(|| format!("{}: sequence {i}", tokens_name(&args.tokens)))?;
        let pictures = turn.pictures.iter().zip(its).map(|(place, seen)| PromptPicture {
            start: place.start,
            placeholder: place.placeholder,
            seen: Arc::clone(seen),
        });
        Ok(Sequence { pictures: pictures.collect(), tokens: turn.tokens })
    });
    let placed = placed.collect::<Result<Vec<_>>>()?;
    let n_left = left.len();
    ensure!(n_left == 0, "--images: the tokens have no places for the last {n_left} pictures");
    Ok(placed)
}

fn evaluate(
    engine: &Engine,
    sequences: &[Sequence],
    out: &OutFile,
    args: &LogitsArgs,
) -> Result<()> {
    let mut file = BufWriter::new(out.file());
    let header = header(sequences, engine.shape().vocab)?;
    let mut written = file.write_all(&header);
    let n_tokens: usize = sequences.iter().map(|sequence| sequence.tokens.len()).sum();
    let mut bar = Bar::new("evaluating", Unit::Tokens, false);
    let mut n_done = 0;
    for (i, Sequence { tokens, pictures }) in sequences.iter().enumerate() {
        let mut sink = |_, logits: &[f32]| {
            if written.is_ok() {
                let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
                written = file.write_all(&bytes);
            }
            n_done += 1;
            bar.set(n_done, n_tokens as u64);
            Ok(())
        };
        let mut session = engine.session();
        let expected = session.expect_pictures(tokens, pictures);
        let evaluated = expected.and_then(|()| session.eval_all(tokens, &mut sink));
        evaluated.with_context(|| format!("{}: sequence {i}", tokens_name(&args.tokens)))?;
        if written.is_err() {
            break;
        }
    }
    written.and_then(|()| file.flush()).with_context(|| out_name(args))
}

/// The safetensors header: its length, then JSON padded to eight bytes.
fn header(sequences: &[Sequence], vocab: usize) -> Result<Vec<u8>> {
    let mut tensors = Map::new();
    let mut start = 0;
    for (i, Sequence { tokens, .. }) in sequences.iter().enumerate() {
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
