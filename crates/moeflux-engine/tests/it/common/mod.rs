//! Reading golden cases and running models over them.

use std::path::{Path, PathBuf};

use moeflux_engine::sampler::{Sampler, SamplerOptions};
use moeflux_engine::{Engine, EngineError, TokenId};
use moeflux_text::{NoCalls, Special, Tokenizer};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// How [`plain_answer`] makes an answer.
#[derive(Clone, Default)]
pub(crate) struct Plain {
    pub(crate) sampler: SamplerOptions,
    pub(crate) no_calls: Option<NoCalls>,
    pub(crate) max_tokens: usize,
}

/// The tokens of an answer, made one by one from all logits of a session: what every other way must
/// equal. The token that ends a text is left out.
///
/// # Errors
/// Where a step fails.
pub(crate) fn plain_answer(
    engine: &Engine,
    tokenizer: &Tokenizer,
    prompt: &[TokenId],
    how: &Plain,
) -> Result<Vec<TokenId>, EngineError> {
    let mut sampler = Sampler::new(how.sampler.clone())?;
    let mut no_calls = how.no_calls.clone();
    let mut session = engine.session();
    let mut logits = session.eval_prompt(prompt)?.to_vec();
    let mut answer = Vec::new();
    loop {
        for token in no_calls.iter().flat_map(NoCalls::ruled_out) {
            logits[token.0 as usize] = f32::NEG_INFINITY;
        }
        let token = sampler.sample(&logits, session.tokens())?;
        if tokenizer.eos_ids().contains(&token) {
            return Ok(answer);
        }
        if let Some(no_calls) = &mut no_calls {
            no_calls.accept(token);
        }
        answer.push(token);
        if answer.len() == how.max_tokens {
            return Ok(answer);
        }
        logits = session.eval_token(token)?.to_vec();
    }
}

/// The text of an answer's tokens.
pub(crate) fn text_of(tokenizer: &Tokenizer, tokens: &[TokenId]) -> String {
    let mut stream = tokenizer.stream(Special::Hide);
    let text: String = tokens.iter().map(|token| stream.push(*token)).collect();
    text + &stream.finish()
}

/// One tokenised text and what the reference makes of it.
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<TokenId>,
    /// `(tokens, vocab)`.
    pub(crate) logits: Vec<f32>,
    /// Mean divergence of the reference's BF16 run from its FP32 run.
    pub(crate) bf16_kl: f64,
}

/// What a case's directory expects.
pub(crate) struct Golden {
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) greedy_prompt: Vec<TokenId>,
    pub(crate) greedy_tokens: Vec<TokenId>,
}

impl Golden {
    pub(crate) fn read(case: &Path) -> Golden {
        let bytes = std::fs::read(case.join("expected.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let facts = std::fs::read(case.join("expected.json")).unwrap();
        let facts: serde_json::Value = serde_json::from_slice(&facts).unwrap();
        let facts = facts["sequences"].as_array().unwrap();
        let sequence = |(i, facts): (usize, &serde_json::Value)| Sequence {
            tokens: ids(&tensors.tensor(&format!("tokens.{i}")).unwrap()),
            logits: floats(&tensors.tensor(&format!("logits.{i}")).unwrap()),
            bf16_kl: facts["bf16_kl"].as_f64().unwrap(),
        };
        Golden {
            sequences: facts.iter().enumerate().map(sequence).collect(),
            greedy_prompt: ids(&tensors.tensor("greedy.prompt").unwrap()),
            greedy_tokens: ids(&tensors.tensor("greedy.tokens").unwrap()),
        }
    }
}

fn words(view: &TensorView<'_>) -> Vec<[u8; 4]> {
    view.data().as_chunks::<4>().0.to_vec()
}

pub(crate) fn ids(view: &TensorView<'_>) -> Vec<TokenId> {
    words(view).into_iter().map(|word| TokenId(u32::from_le_bytes(word))).collect()
}

pub(crate) fn floats(view: &TensorView<'_>) -> Vec<f32> {
    words(view).into_iter().map(f32::from_le_bytes).collect()
}

pub(crate) fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The directories of `MOEFLUX_GOLDEN`, or those of the repository.
pub(crate) fn cases() -> Vec<PathBuf> {
    folders_of(&std::env::var_os("MOEFLUX_GOLDEN").map_or_else(golden_dir, PathBuf::from))
}

/// The cases of a directory, by name.
pub(crate) fn folders_of(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut cases: Vec<PathBuf> =
        entries.filter(|entry| entry.join("expected.json").exists()).collect();
    cases.sort();
    assert!(!cases.is_empty(), "no cases in {}", dir.display());
    cases
}

/// Logits of every position, evaluated in calls of `chunk` tokens.
pub(crate) fn logits_by_chunk(engine: &Engine, tokens: &[TokenId], chunk: usize) -> Vec<f32> {
    let mut session = engine.session();
    let mut all = Vec::new();
    for part in tokens.chunks(chunk.min(tokens.len())) {
        let mut sink = |_, logits: &[f32]| {
            all.extend_from_slice(logits);
            Ok(())
        };
        session.eval_all(part, &mut sink).unwrap();
    }
    all
}

pub(crate) fn greedy(engine: &Engine, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    let mut session = engine.session();
    let mut logits = session.eval_prompt(prompt).unwrap();
    let mut tokens = Vec::new();
    for _ in 0..n {
        let best = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a });
        tokens.push(TokenId(u32::try_from(best.unwrap()).unwrap()));
        logits = session.eval_token(*tokens.last().unwrap()).unwrap();
    }
    tokens
}

/// Mean over the rows of `sum p ln(p / q)`.
pub(crate) fn kl(want: &[f32], got: &[f32], vocab: usize) -> f64 {
    let rows = want.chunks_exact(vocab).zip(got.chunks_exact(vocab));
    let n_rows = rows.len();
    let row = |(want, got): (&[f32], &[f32])| {
        let (want, got) = (log_softmax(want), log_softmax(got));
        want.iter().zip(&got).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
    };
    rows.map(row).sum::<f64>() / n_rows as f64
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = logits.iter().map(|logit| f64::from(logit - max));
    let sum = shifted.clone().map(f64::exp).sum::<f64>().ln();
    shifted.map(|log| log - sum).collect()
}
