//! `moeflux perplexity`: how surprised a model is by a text, and how far it is
//! from another.

use std::path::Path;

use anyhow::{Context, Result};
use moeflux_engine::{Divergence, Engine, divergence, perplexity};

use super::print;
use crate::args::PerplexityArgs;
use crate::error::UsageError;
use crate::progress::{Bar, Unit};
use crate::{corpus, model};

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let engine = model::open(&args.model, args.exact, false)?;
    let sequences = corpus::read(&args.text, &engine, args.window)?;
    let n_tokens: usize = sequences.iter().map(Vec::len).sum();
    let reference = args.against.as_deref().map(|model| open_reference(args, model)).transpose()?;
    if let Some(reference) = &reference {
        check_same_vocabulary(&engine, reference)?;
    }
    let mut bar = Bar::new("evaluating", Unit::Tokens, false);
    let mut progress = |n_done| bar.set(n_done as u64, n_tokens as u64);
    let session = &mut engine.session();
    let text = match reference {
        None => {
            let result = perplexity(session, &sequences, &mut progress)?;
            format!(
                "perplexity {:.4} ({:.6} nats a token over {} tokens in {} windows)\n",
                result.value(),
                result.mean_nll(),
                result.n_tokens,
                sequences.len(),
            )
        }
        Some(reference) => {
            let mut other = reference.session();
            summary(&divergence(session, &mut other, &sequences, &mut progress)?)
        }
    };
    drop(bar);
    print(&text)?;
    Ok(())
}

fn open_reference(args: &PerplexityArgs, name: &Path) -> Result<Engine> {
    let source = name.to_str().map(str::to_owned);
    let source = source.ok_or_else(|| UsageError(format!("--against {name:?}: not UTF-8")))?;
    let model = args.model.with_model(source);
    model::open(&model, args.exact, false).context("--against")
}

fn check_same_vocabulary(engine: &Engine, reference: &Engine) -> Result<()> {
    let (mine, yours) = (engine.shape().vocab, reference.shape().vocab);
    if mine == yours {
        return Ok(());
    }
    let message = format!("--against: that model has a vocabulary of {yours}, this one of {mine}");
    Err(UsageError(message).into())
}

fn summary(result: &Divergence) -> String {
    format!(
        "perplexity {:.4}, of the reference {:.4}\n\
         divergence {:.6} nats a token, same choice {:.2} % (over {} tokens)\n",
        result.own.value(),
        result.reference.value(),
        result.mean_kl(),
        100.0 * result.same_choice(),
        result.n_rows,
    )
}
