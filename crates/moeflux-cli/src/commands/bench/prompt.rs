//! What the model reads: text where there is some, else random tokens.

use std::path::Path;

use anyhow::{Context, Result};
use moeflux_core::SplitMix64;
use moeflux_engine::{Engine, EngineError, TokenId, measure};
use moeflux_text::Markup;

use crate::args::BenchArgs;
use crate::error::UsageError;
use crate::files;
use crate::turns::explain;

/// Prompts of the demo model, which was trained on technical English. The text is fixed, so that figures
/// of different versions can be compared.
const DEMO_TEXT: &str = include_str!("prompt.txt");

/// Prompts of one length, another one for every run.
pub(crate) struct Prompts {
    tokens: Vec<TokenId>,
    n_prompt: usize,
    /// Random tokens that follow random prompts; none follow a text.
    given: Vec<TokenId>,
    n_gen: usize,
}

/// The text of `--text`.
pub(crate) fn read(path: &Path) -> Result<String> {
    let name = || format!("--text {}", path.display());
    let text = String::from_utf8(files::read(path).with_context(name)?).with_context(name)?;
    if text.trim().is_empty() {
        return Err(UsageError(format!("{}: there is no text in it", name())).into());
    }
    Ok(text)
}

fn encode(engine: &Engine, text: &str) -> Result<Vec<TokenId>> {
    let tokenizer = engine.tokenizer()?;
    tokenizer.encode(text, Markup::Literal).map_err(|err| explain(&tokenizer, err))
}

/// The tokens of `--teacher-force`, more than those of a prompt.
pub(crate) fn to_force(path: &Path, args: &BenchArgs, engine: &Engine) -> Result<Vec<TokenId>> {
    let name = || format!("--teacher-force {}", path.display());
    let bytes = files::read(path).with_context(name)?;
    let tokens = match serde_json::from_slice::<Vec<u32>>(&bytes) {
        Ok(ids) => ids.into_iter().map(TokenId).collect(),
        Err(_) => {
            let text = String::from_utf8(bytes).with_context(name)?;
            encode(engine, &text).with_context(name)?
        }
    };
    let vocab = engine.shape().vocab;
    if let Some(&token) = tokens.iter().find(|token| token.0 as usize >= vocab) {
        return Err(EngineError::TokenOutOfRange { token, vocab }).with_context(name);
    }
    if tokens.len() <= args.prompt_tokens {
        let (n, prompt) = (tokens.len(), args.prompt_tokens);
        let message =
            format!("{}: it has {n} tokens, more than --prompt-tokens {prompt} are needed", name());
        return Err(UsageError(message).into());
    }
    Ok(tokens)
}

/// The tokens of `--mtp-acceptance`: a prompt, and a text behind it.
pub(crate) fn with_mtp_acceptance(
    share: f32,
    args: &BenchArgs,
    prompts: &Prompts,
    engine: &Engine,
) -> Result<Vec<TokenId>> {
    let prompt = prompts.get(0);
    let others = random(args.gen_tokens, engine.shape().vocab, args.seed.wrapping_add(1));
    match measure::text_with_mtp_acceptance(engine, prompt, &others, f64::from(share))? {
        Some(text) => Ok([prompt, &text].concat()),
        None => {
            let message =
                "--mtp-acceptance: needs a model with multi-token prediction, and --draft";
            Err(UsageError(message.to_owned()).into())
        }
    }
}

impl Prompts {
    pub(crate) fn new(args: &BenchArgs, text: Option<String>, engine: &Engine) -> Result<Prompts> {
        let (wanted, limit) =
            (args.prompt_tokens.saturating_add(args.gen_tokens), engine.plan().ctx);
        if !args.kernels && wanted > limit {
            return Err(UsageError(EngineError::ContextFull { wanted, limit }.to_string()).into());
        }
        let is_demo = args.model.model.is_none();
        let text = text.or_else(|| is_demo.then(|| String::from(DEMO_TEXT)));
        let n_prompt = args.prompt_tokens.min(limit);
        // The conversations of a step each have their own, runs as far as there are any.
        let n_runs = args.repeat.saturating_add(2).saturating_mul(args.sequences);
        let n_runs = n_runs.min(args.sequences.max(64));
        let (vocab, n_gen) = (engine.shape().vocab, args.gen_tokens.min(limit));
        let (tokens, given) = match text {
            Some(text) => (encode(engine, &text)?, Vec::new()),
            None => (
                random(n_prompt * n_runs, vocab, args.seed),
                random(n_gen * n_runs, vocab, args.seed.wrapping_add(1)),
            ),
        };
        if tokens.is_empty() {
            let message = "--text: the model's tokenizer has no tokens for it: give another text";
            return Err(UsageError(String::from(message)).into());
        }
        Ok(Prompts { tokens: cycled(tokens, n_prompt), n_prompt, given, n_gen })
    }

    /// The prompt of a run: what follows that of the run before, from the
    /// beginning again where there is no more.
    pub(crate) fn get(&self, i: usize) -> &[TokenId] {
        let n_starts = self.tokens.len() - self.n_prompt + 1;
        let start = i * self.n_prompt % n_starts;
        &self.tokens[start..start + self.n_prompt]
    }

    /// The tokens to decode after the prompt of a run; none where the model chooses them.
    pub(crate) fn given(&self, i: usize) -> &[TokenId] {
        let n_runs = self.given.len() / self.n_gen.max(1);
        match n_runs {
            0 => &[],
            n_runs => &self.given[i % n_runs * self.n_gen..][..self.n_gen],
        }
    }
}

/// At least `n`, by repetition.
fn cycled(tokens: Vec<TokenId>, n: usize) -> Vec<TokenId> {
    let len = tokens.len().max(n);
    tokens.into_iter().cycle().take(len).collect()
}

/// Tokens of a vocabulary, all equally likely.
fn random(n: usize, vocab: usize, seed: u64) -> Vec<TokenId> {
    let mut random = SplitMix64::new(seed);
    (0..n).map(|_| TokenId(u32::try_from(random.below(vocab)).unwrap_or(0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_read_different_parts_as_long_as_there_are_any() {
        let tokens = cycled(random(50, 100, 7), 10);
        let prompts = Prompts { tokens, n_prompt: 10, given: random(6, 100, 8), n_gen: 3 };
        let all: Vec<&[TokenId]> = (0..5).map(|i| prompts.get(i)).collect();
        for (i, prompt) in all.iter().enumerate() {
            assert_eq!(prompt.len(), 10);
            assert!(!all[..i].contains(prompt), "{i}");
        }
        assert_ne!(prompts.given(0), prompts.given(1));
        assert_eq!(prompts.given(2), prompts.given(0));
        let tokens = cycled(random(3, 100, 7), 10);
        let short = Prompts { tokens, n_prompt: 10, given: Vec::new(), n_gen: 0 };
        assert_eq!(short.get(4), short.get(0));
        assert_eq!(short.given(4), []);
        assert_eq!(random(9, 1, 3), vec![TokenId(0); 9]);
    }
}
