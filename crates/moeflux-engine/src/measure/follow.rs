//! A text that is made as if the model had chosen its tokens.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;

use crate::draft::{DraftCounts, Drafting, Drafts};
use crate::engine::Engine;
use crate::error::EngineError;

/// What making a text took.
#[derive(Clone, Copy, Debug)]
pub struct Followed {
    /// Tokens made.
    pub n_tokens: usize,
    /// In so many steps.
    pub n_steps: usize,
    /// What was guessed of them, and how much of that was right.
    pub drafts: DraftCounts,
    /// How long the steps took.
    pub time: Duration,
}

impl Followed {
    /// Tokens a second.
    pub fn tok_s(&self) -> f64 {
        self.n_tokens as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Reads a prompt in a new session, then makes the tokens of `text` as if the model had
/// chosen them: each is known only after the step that would have chosen it. With guesses as
/// the engine makes them, or without.
///
/// # Errors
/// Where the context is too small or a step fails.
pub fn follow(
    engine: &Engine,
    prompt: &[TokenId],
    text: &[TokenId],
    with_guesses: bool,
) -> Result<Followed, EngineError> {
    let mut session = engine.session();
    session.eval_prompt(prompt)?;
    let drafts = if with_guesses { engine.drafts() } else { Drafts::Off };
    let mut drafting = Drafting::new(drafts, &session);
    let mut rest = text.iter().copied();
    let mut next = rest.next();
    let (mut n_steps, start) = (0, Instant::now());
    while let Some(token) = next {
        let chosen = drafting.step(&mut session, token, Some(1), &mut |_, _| {
            Ok(rest.next().map_or(ControlFlow::Break(()), ControlFlow::Continue))
        })?;
        n_steps += 1;
        next = chosen.continue_value();
    }
    let time = start.elapsed();
    Ok(Followed { n_tokens: text.len(), n_steps, drafts: drafting.counts(), time })
}
