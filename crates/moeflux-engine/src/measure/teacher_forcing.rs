//! Teacher forcing: decodes a given text as if the model had chosen its tokens.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;

use crate::engine::Engine;
use crate::engine::step::RowLogits;
use crate::error::EngineError;
use crate::speculation::decode::{Chooser, SpeculativeDecoder};
use crate::speculation::limits::MAX_MTP_DRAFT;
use crate::speculation::options::{Speculation, SpeculationStats};

/// Statistics of [`teacher_force`].
#[derive(Clone, Copy, Debug)]
pub struct TeacherForced {
    /// Tokens of the text.
    pub n_tokens: usize,
    /// Steps that evaluated them.
    pub n_steps: usize,
    /// Tokens drafted and accepted.
    pub speculation: SpeculationStats,
    /// The time of the steps.
    pub time: Duration,
}

impl TeacherForced {
    /// Tokens a second.
    pub fn tok_s(&self) -> f64 {
        self.n_tokens as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Makes a text after `prompt` of which multi-token prediction drafts the share `acceptance`
/// correctly, whatever the model's weights are. With it, the cost and gain of drafts can be
/// measured on random weights. The other tokens are those of `random` at the same index.
///
/// With [`Speculation::Fixed`], each of that many tokens in a row is drafted correctly with this
/// probability if those before it are; otherwise one token at a time. Returns `None` where the
/// model has no multi-token prediction or the engine does not speculate.
///
/// # Errors
/// Where the context is too small or a step fails.
pub fn text_with_mtp_acceptance(
    engine: &Engine,
    prompt: &[TokenId],
    random: &[TokenId],
    acceptance: f64,
) -> Result<Option<Vec<TokenId>>, EngineError> {
    let n = match engine.speculation() {
        Speculation::Fixed(n) => n.min(MAX_MTP_DRAFT),
        Speculation::Auto | Speculation::Off => 1,
    };
    let mut session = engine.session();
    session.eval_prompt(prompt)?;
    if !session.can_mtp_draft() {
        return Ok(None);
    }
    let mut text: Vec<TokenId> = random.iter().copied().take(1).collect();
    while text.len() < random.len() {
        let first = text.len() - 1;
        let draft = session.mtp_draft(text[first], n);
        let is_accepted = |(at, _): &(usize, TokenId)| draw(random, *at) < acceptance;
        let accepted = (first + 1..random.len()).zip(draft).take_while(is_accepted);
        text.extend(accepted.map(|(_, token)| token));
        // A step yields one token more than it drafts. With drafts of one token, the next step
        // drafts that one.
        let is_all_of_one = n == 1 && text.len() > first + 1;
        text.extend(random.get(text.len()).copied().filter(|_| !is_all_of_one));
        session.eval_prompt(&text[first..text.len() - 1])?;
    }
    Ok(Some(text))
}

/// A pseudo-random number below one for an index, the same each time.
fn draw(random: &[TokenId], at: usize) -> f64 {
    /// Spreads tokens over all 32 bits (Knuth's multiplicative hash).
    const SPREAD: u32 = 0x9e37_79b9;
    f64::from(random[at].0.wrapping_mul(SPREAD)) / f64::from(u32::MAX)
}

/// Evaluates `prompt` in a new session and then decodes `text` as if the model had chosen its
/// tokens: each becomes known only after the step that would have chosen it. With `speculates`,
/// tokens are drafted as the engine's options say; else none are.
///
/// # Errors
/// Where the context is too small or a step fails.
pub fn teacher_force(
    engine: &Engine,
    prompt: &[TokenId],
    text: &[TokenId],
    speculates: bool,
) -> Result<TeacherForced, EngineError> {
    let mut session = engine.session();
    session.eval_prompt(prompt)?;
    let speculation = if speculates { engine.speculation() } else { Speculation::Off };
    let mut decoder = SpeculativeDecoder::new(speculation, &session);
    let mut text_ahead = Forced { rest: text.iter() };
    let mut next = text_ahead.rest.next().copied();
    let (mut n_steps, start) = (0, Instant::now());
    while let Some(token) = next {
        let chosen = decoder.step(&mut session, token, &mut text_ahead)?;
        n_steps += 1;
        next = chosen.continue_value();
    }
    let time = start.elapsed();
    Ok(TeacherForced { n_tokens: text.len(), n_steps, speculation: decoder.stats(), time })
}

/// Chooses the tokens of a text, whatever the model says.
struct Forced<'a> {
    rest: std::slice::Iter<'a, TokenId>,
}

impl Chooser<()> for Forced<'_> {
    fn n_top(&self, _draft: &[TokenId]) -> Option<usize> {
        Some(1)
    }

    fn choose(
        &mut self,
        _logits: &mut RowLogits,
        _before: &[TokenId],
    ) -> Result<ControlFlow<(), TokenId>, EngineError> {
        Ok(self.rest.next().copied().map_or(ControlFlow::Break(()), ControlFlow::Continue))
    }
}
