//! Tokens of one session, one or several a step.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;

use super::{DraftCounts, Drafter, Drafts, Guess, Occasion};
use crate::draft::limits::MOST_ROWS;
use crate::error::EngineError;
use crate::session::{Next, Session};

/// Chooses a token by what may follow and the tokens before; breaks where it is the last.
pub(crate) type Choose<'a, B> =
    dyn FnMut(&Next, &[TokenId]) -> Result<ControlFlow<B, TokenId>, EngineError> + 'a;

/// Guesses in the answer of one session.
pub(crate) struct Drafting {
    drafter: Option<Drafter>,
}

impl Drafting {
    /// For an answer to what a session holds.
    pub(crate) fn new(drafts: Drafts, session: &Session) -> Drafting {
        Drafting { drafter: Drafter::new(drafts, &[], session.tokens()) }
    }

    pub(crate) fn counts(&self) -> DraftCounts {
        self.drafter.as_ref().map_or_else(DraftCounts::default, Drafter::counts)
    }

    /// Evaluates a token and a guess of what follows it. `choose` gets what may follow the
    /// token, then what may follow the guess, as far as that is what it chose. Gives what it
    /// chose last, behind which the session ends, and has chosen nothing where a step fails.
    ///
    /// # Errors
    /// Those of the step and of `choose`.
    pub(crate) fn step<B>(
        &mut self,
        session: &mut Session,
        token: TokenId,
        n_leaders: Option<usize>,
        choose: &mut Choose<'_, B>,
    ) -> Result<ControlFlow<B, TokenId>, EngineError> {
        let drafter = &mut self.drafter;
        let (mut guess, mut is_marked) = (Vec::new(), false);
        let (start, mut foresight) = (Instant::now(), Duration::ZERO);
        if let Some(drafter) = drafter {
            drafter.push(token);
            let learned = session.learned();
            let occasion = Occasion {
                pace: &learned.pace,
                rows: 1 + session.n_pending(),
                n_others: 0,
                room: session.room_for_guess(1 + session.n_pending()),
                again: session.evaluates_again(),
                foresight: session.can_foresee().then(|| learned.foresight()),
            };
            let wanted = drafter.guess(&occasion, &[]);
            drop(learned);
            is_marked = !wanted.is_empty() && session.mark();
            guess = match wanted {
                Guess::Known(guess) => guess,
                Guess::Foresee(n) if is_marked => {
                    let start = Instant::now();
                    let guess = session.foresee(token, n);
                    foresight = start.elapsed();
                    drafter.has_foreseen(guess.len());
                    guess
                }
                Guess::Foresee(_) => Vec::new(),
            };
        }
        if is_marked && !guess.is_empty() {
            let rows = session.n_pending() + 1 + guess.len();
            if let Ok(next) = session.eval_guess(token, &guess, n_leaders) {
                let time = start.elapsed().saturating_sub(foresight);
                session.learned().pace.note(rows, time, true);
                let (chosen, n_right) = follow(session, &guess, &next, choose)?;
                if let Some(drafter) = drafter {
                    if let Some(n) = drafter.judge(n_right) {
                        session.learned().note_foreseen(n, n_right);
                    }
                    guess[..n_right].iter().for_each(|it| drafter.push(*it));
                }
                return Ok(chosen);
            }
            // A step that needs less may succeed.
        }
        drafter.iter_mut().for_each(Drafter::forget);
        let (rows, start) = (1 + session.n_pending(), Instant::now());
        let next = session.eval_next(token, n_leaders)?;
        session.learned().pace.note(rows, start.elapsed(), false);
        choose(&next, session.tokens())
    }
}

/// Chooses behind a token and a guess that a session has just evaluated, which then ends
/// where the guess is wrong; also says how much of it was right.
///
/// # Errors
/// Those of `choose`, and the device's.
pub(crate) fn follow<B>(
    session: &mut Session,
    guess: &[TokenId],
    next: &[Next],
    choose: &mut Choose<'_, B>,
) -> Result<(ControlFlow<B, TokenId>, usize), EngineError> {
    let n_before = session.tokens().len() - guess.len();
    let mut n_right = 0;
    let chosen = loop {
        match choose(&next[n_right], &session.tokens()[..n_before + n_right]) {
            Ok(ControlFlow::Continue(it)) if guess.get(n_right) == Some(&it) => n_right += 1,
            chosen => break chosen,
        }
    };
    if !guess.is_empty() {
        session.take_back(guess.len() - n_right)?;
    }
    Ok((chosen?, n_right))
}

impl Session {
    /// Tokens of a guess that a step of so many rows has room for.
    pub(crate) fn room_for_guess(&self, rows: usize) -> usize {
        let rows = self.chunk_rows().min(MOST_ROWS).saturating_sub(rows);
        rows.min(self.guess_room())
    }
}
