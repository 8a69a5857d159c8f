//! A text that is made as if the model had chosen its tokens.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;

use crate::draft::limits::MOST_FORESEEN;
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

/// A text behind a prompt of which multi-token prediction foresees so great a share, whatever
/// the model is: what guesses cost and gain can be measured on random weights with it. The
/// other tokens are those of `random` at their places. Where an engine guesses a fixed number
/// of tokens, so many are foreseen behind each other, each with that share if those before are;
/// else one. `None` where the model has no multi-token prediction, or nothing is guessed.
///
/// # Errors
/// Where the context is too small or a step fails.
pub fn foreseeable(
    engine: &Engine,
    prompt: &[TokenId],
    random: &[TokenId],
    share: f64,
) -> Result<Option<Vec<TokenId>>, EngineError> {
    let n = match engine.drafts() {
        Drafts::Fixed(n) => n.min(MOST_FORESEEN),
        Drafts::Auto | Drafts::Off => 1,
    };
    let mut session = engine.session();
    session.eval_prompt(prompt)?;
    if !session.can_foresee() {
        return Ok(None);
    }
    let mut text: Vec<TokenId> = random.iter().copied().take(1).collect();
    while text.len() < random.len() {
        let first = text.len() - 1;
        let guess = session.foresee(text[first], n);
        let is_right = |(at, _): &(usize, TokenId)| draw(random, *at) < share;
        let right = (first + 1..random.len()).zip(guess).take_while(is_right);
        text.extend(right.map(|it| it.1));
        // A step says one token more than it was given; where only one is foreseen, that too
        // is foreseen by the next.
        let is_all_of_one = n == 1 && text.len() > first + 1;
        text.extend(random.get(text.len()).copied().filter(|_| !is_all_of_one));
        session.eval_prompt(&text[first..text.len() - 1])?;
    }
    Ok(Some(text))
}

/// A number below one for a place, the same each time.
fn draw(random: &[TokenId], at: usize) -> f64 {
    /// Spreads tokens over all 32 bits (Knuth's multiplicative hash).
    const SPREAD: u32 = 0x9e37_79b9;
    f64::from(random[at].0.wrapping_mul(SPREAD)) / f64::from(u32::MAX)
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
