//! Teacher forcing: decodes a given text as if the model had chosen its tokens.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;

use crate::drafting::drafter::{Draft, DraftContext, Drafter};
use crate::drafting::verify::{Verified, verify};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::Session;
use crate::speculation::limits::MAX_MTP_DRAFT;
use crate::speculation::options::{Speculation, SpeculationStats};
use crate::step::RowLogits;

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
    if !session.state.can_mtp_draft() {
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
    let drafter = Drafter::new(speculation, &[], session.tokens());
    let mut forced = Forced { drafter, rest: text.iter() };
    let mut next = forced.rest.next().copied();
    let (mut n_steps, start) = (0, Instant::now());
    while let Some(token) = next {
        next = forced.step(&mut session, token)?;
        n_steps += 1;
    }
    let time = start.elapsed();
    let speculation = forced.drafter.as_ref().map(Drafter::stats).unwrap_or_default();
    Ok(TeacherForced { n_tokens: text.len(), n_steps, speculation, time })
}

/// Decodes a text whose tokens are chosen whatever the model says.
struct Forced<'a> {
    drafter: Option<Drafter>,
    rest: std::slice::Iter<'a, TokenId>,
}

/// A draft of the next step, and how long the MTP layer took for it.
#[derive(Default)]
struct Drafted {
    tokens: Vec<TokenId>,
    mtp_time: Duration,
}

impl Forced<'_> {
    /// Evaluates a token and drafts of those after it. Returns the token of the text that is evaluated
    /// next; `None` at its end.
    fn step(
        &mut self,
        session: &mut Session,
        token: TokenId,
    ) -> Result<Option<TokenId>, EngineError> {
        let mut start = Instant::now();
        let Drafted { tokens: mut draft, mtp_time } = self.draft(session, token);
        let n_pending = session.state.n_pending();
        // The logits are not looked at: one is read back in the place of all.
        let drafted = (!draft.is_empty()).then(|| session.eval_draft(token, &draft, Some(1)));
        let (mut logits, time) = match drafted {
            Some(Ok(logits)) => (logits, start.elapsed().saturating_sub(mtp_time)),
            // Where the step fails, one without drafts may succeed: it needs less memory.
            None | Some(Err(_)) => {
                draft.clear();
                start = Instant::now();
                (vec![session.eval_next(token, Some(1))?], start.elapsed())
            }
        };
        let rows = 1 + n_pending + draft.len();
        session.speculation_rates().step_cost.record(rows, time, !draft.is_empty());
        let rest = &mut self.rest;
        let Verified { chosen, n_accepted } =
            verify(session, &draft, &mut logits, &mut |_: &mut RowLogits, _| {
                Ok(rest.next().copied().map_or(ControlFlow::Break(()), ControlFlow::Continue))
            })?;
        if let Some(drafter) = &mut self.drafter {
            if draft.is_empty() {
                drafter.discard();
            }
            drafter.accept(session, &draft[..n_accepted]);
        }
        Ok(chosen.continue_value())
    }

    /// Drafts tokens after `token`; none where there is no memory to roll them back.
    fn draft(&mut self, session: &mut Session, token: TokenId) -> Drafted {
        let Some(drafter) = &mut self.drafter else { return Drafted::default() };
        drafter.push(token);
        let rows = 1 + session.state.n_pending();
        let rates = session.speculation_rates();
        let context = DraftContext {
            step_cost: &rates.step_cost,
            rows,
            n_others: 0,
            max_draft: session.max_draft(rows),
            reevaluates: session.reevaluates_accepted(),
            mtp: session.state.can_mtp_draft().then(|| rates.mtp()),
        };
        let draft = drafter.draft(&context, &[]);
        drop(rates);
        if draft.is_empty() || !session.prepare_rollback() {
            return Drafted::default();
        }
        match draft {
            Draft::Tokens(tokens) => Drafted { tokens, mtp_time: Duration::ZERO },
            Draft::Mtp(n) => {
                let start = Instant::now();
                let tokens = session.mtp_draft(token, n);
                drafter.set_mtp_len(tokens.len());
                Drafted { tokens, mtp_time: start.elapsed() }
            }
        }
    }
}
