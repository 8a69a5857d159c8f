//! `moeflux perplexity`: how surprised a model is by a text.

use anyhow::{Context, Result};
use moeflux_engine::perplexity;
use moeflux_engine::text::Markup;

use super::print;
use crate::args::{PerplexityArgs, UsageError};
use crate::progress::{Bar, Unit};
use crate::{files, model};

/// Tokens of a window where nobody says otherwise.
const WINDOW: usize = 2048;

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let name = || format!("--text {}", args.text.display());
    let bytes = files::read(&args.text).with_context(name)?;
    let text = String::from_utf8(bytes).with_context(name)?;
    let engine = model::open(&args.model, args.exact, false)?;
    let tokens = engine.tokenizer()?.encode(&text, Markup::Literal)?;
    if tokens.len() < 2 {
        return Err(UsageError(format!("{}: at least two tokens are needed", name())).into());
    }
    let window = match args.window {
        Some(n) if n < 2 || n > engine.plan().ctx => {
            let ctx = engine.plan().ctx;
            return Err(UsageError(format!("--window {n}: choose 2 to {ctx}")).into());
        }
        window => window.unwrap_or(WINDOW).min(engine.plan().ctx),
    };
    let mut bar = Bar::new("evaluating", Unit::Tokens, false);
    let mut progress = |n_done| bar.set(n_done as u64, tokens.len() as u64);
    let result = perplexity(&mut engine.session(), &tokens, window, &mut progress)?;
    drop(bar);
    print(&format!(
        "perplexity {:.4} ({:.6} nats a token over {} tokens, windows of {window})\n",
        result.value(),
        result.mean_nll(),
        result.n_tokens,
    ))?;
    Ok(())
}
