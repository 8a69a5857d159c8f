//! Decoding one session, one or several tokens a step.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;

use crate::engine::step::RowLogits;
use crate::error::EngineError;
use crate::session::handle::Session;
use crate::speculation::drafter::{Draft, DraftContext, Drafter};
use crate::speculation::options::{Speculation, SpeculationStats};
use crate::speculation::verify::verify;

/// Chooses the tokens of an answer.
pub(crate) trait Chooser<B> {
    /// How many of the highest logits suffice after a token and after each token of a draft behind
    /// it; `None` where all are needed.
    fn n_top(&self, draft: &[TokenId]) -> Option<usize>;

    /// As [`Choose`](crate::speculation::verify::Choose).
    ///
    /// # Errors
    /// Where no token can be chosen.
    fn choose(
        &mut self,
        logits: &mut RowLogits,
        before: &[TokenId],
    ) -> Result<ControlFlow<B, TokenId>, EngineError>;
}

/// Decodes an answer of one session speculatively.
pub(crate) struct SpeculativeDecoder {
    drafter: Option<Drafter>,
}

/// A draft of the next step, and how long the MTP layer took for it.
#[derive(Default)]
struct Drafted {
    tokens: Vec<TokenId>,
    mtp_time: Duration,
}

impl SpeculativeDecoder {
    /// For an answer to the tokens of a session.
    pub(crate) fn new(speculation: Speculation, session: &Session) -> SpeculativeDecoder {
        // What stands for embeddings is not drafted.
        let is_plain = session.timeline.n_plain() == session.position();
        let speculation = if is_plain { speculation } else { Speculation::Off };
        SpeculativeDecoder { drafter: Drafter::new(speculation, &[], session.tokens()) }
    }

    pub(crate) fn stats(&self) -> SpeculationStats {
        self.drafter.as_ref().map_or_else(SpeculationStats::default, Drafter::stats)
    }

    /// Evaluates a token and drafts of those after it. The chooser gets the logits after the token,
    /// and then after each draft, as long as the draft is what it chose. Returns what it chose last;
    /// the session ends before that. It is not asked where a step fails.
    ///
    /// # Errors
    /// Those of the step and of the chooser.
    pub(crate) fn step<B>(
        &mut self,
        session: &mut Session,
        token: TokenId,
        chooser: &mut dyn Chooser<B>,
    ) -> Result<ControlFlow<B, TokenId>, EngineError> {
        let start = Instant::now();
        let Drafted { tokens: draft, mtp_time } = self.draft(session, token);
        if !draft.is_empty() {
            let rows = session.n_pending() + 1 + draft.len();
            // Where the step fails, one without drafts may succeed: it needs less memory.
            if let Ok(mut logits) = session.eval_draft(token, &draft, chooser.n_top(&draft)) {
                let time = start.elapsed().saturating_sub(mtp_time);
                session.speculation_rates().step_cost.record(rows, time, true);
                let verified = verify(session, &draft, &mut logits, &mut |logits, before| {
                    chooser.choose(logits, before)
                })?;
                if let Some(drafter) = &mut self.drafter {
                    drafter.accept(session, &draft[..verified.n_accepted]);
                }
                return Ok(verified.chosen);
            }
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.discard();
        }
        let (rows, start) = (1 + session.n_pending(), Instant::now());
        let mut logits = session.eval_next(token, chooser.n_top(&[]))?;
        session.speculation_rates().step_cost.record(rows, start.elapsed(), false);
        let chosen = chooser.choose(&mut logits, session.tokens())?;
        session.request_rows_of(&chosen);
        Ok(chosen)
    }

    /// Drafts tokens after `token`; none where there is no memory to roll them back.
    fn draft(&mut self, session: &mut Session, token: TokenId) -> Drafted {
        let Some(drafter) = &mut self.drafter else { return Drafted::default() };
        drafter.push(token);
        let rows = 1 + session.n_pending();
        let rates = session.speculation_rates();
        let context = DraftContext {
            step_cost: &rates.step_cost,
            rows,
            n_others: 0,
            max_draft: session.max_draft(rows),
            reevaluates: session.reevaluates_accepted(),
            mtp: session.can_mtp_draft().then(|| rates.mtp()),
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
